"""Which queries see anything and which keys are seen, against a look at every cell."""

import random

import numpy as np
import pytest

from qkv.errors import MaskError
from qkv.masks import Causal, Dense, Extent, Padding, Predicate, Segments, Window
from qkv.masks.count import reach
from qkv.masks.grid import NumpyGrid


def some_mask(draw: random.Random, batch: int, len_q: int, len_k: int):
    parts = [
        Causal(offset=draw.randint(-len_q - 1, len_k + 1)),
        Window(left=draw.choice([None, 0, 3]), right=draw.choice([0, 2, 5]), offset=draw.randint(-len_q, len_k)),
        Padding(lengths=[draw.randint(0, len_k) for _ in range(batch)]),
        Padding(keep=np.array([[draw.random() < 0.4 for _ in range(len_k)] for _ in range(batch)])),
        Segments([draw.randint(0, 3) for _ in range(len_q)], [draw.randint(0, 3) for _ in range(len_k)]),
        Dense(np.array([[draw.random() < 0.1 for _ in range(len_k)] for _ in range(len_q)])),
        Predicate(lambda b, h, i, j: (i + j + h) % 5 == 0),
    ]
    one, two, three = draw.choices(parts, k=3)
    return draw.choice([one, one & two, one | two, (one & two) | three, one & (two | three)])


@pytest.mark.parametrize("seed", range(200))
def test_reach_is_what_a_look_at_every_cell_finds(seed: int) -> None:
    draw = random.Random(seed)
    batch, groups, group, len_q, len_k = (
        draw.choice(sizes) for sizes in ([1, 2], [1, 2], [1, 3], [1, 5, 11], [3, 7, 13])
    )
    extent = Extent(batch, groups * group, len_q, len_k)
    mask = some_mask(draw, batch, len_q, len_k)
    try:
        resolved = mask.resolved(extent)
    except MaskError:
        pytest.skip("parts that do not go together")
    cells = np.broadcast_to(resolved._cells(NumpyGrid(extent, (0, len_q), (0, len_k))), extent.shape)
    keys = cells.reshape(batch, groups, group, len_q, len_k).any((2, 3))
    assert reach(mask, extent, groups) == (int(cells.any(3).sum()), int(keys.sum()))


def test_bands_are_counted_at_any_size() -> None:
    n = 10**15
    assert reach(Causal(), Extent(2, 6, n, n), groups=3) == (12 * n, 6 * n)
    assert reach(Causal(offset=-3), Extent(1, 1, n, n), groups=1) == (n - 3, n - 3)


def test_a_million_packed_tokens_take_no_square() -> None:
    ids = np.repeat(np.arange(100), 10**4)
    assert reach(Causal() & Segments(ids, ids), Extent(1, 2, 10**6, 10**6), groups=1) == (2 * 10**6, 10**6)


def test_what_would_take_too_long_is_refused() -> None:
    n = 10**12
    with pytest.raises(MaskError, match="one by one"):
        reach(Causal() | Window(left=5), Extent(1, 1, n, n), groups=1)
