"""Counts of cells, queries and keys against brute force."""

import random
import subprocess
import sys

import numpy as np
import pytest

from qkv.errors import MaskError
from qkv.masks import Causal, Dense, Extent, Or, Padding, Predicate, Segments, Window
from qkv.masks.count import alternatives, blocks, reach
from qkv.masks.grid import NumpyGrid


@pytest.mark.slow
def test_packed_documents_are_rectangles():
    ids = np.repeat(np.arange(1000), 1000)
    assert Segments(ids).population() == 1000 * 1000**2
    assert (Segments(ids) & Causal()).population() == 1000 * 1000 * 1001 // 2


def test_paddings_with_holes_are_rectangles():
    keep = np.arange(10**5) % 1000 != 0
    n = 10**5
    left_out = sum(n - j for j in range(0, n, 1000))
    assert (Causal() & Padding(keep=[keep])).population(len_q=n) == n * (n + 1) // 2 - left_out


def test_many_small_runs_are_counted_one_by_one():
    ids = np.arange(3000) % 2
    want = sum((i // 2) + 1 for i in range(3000))
    assert (Segments(ids) & Causal()).population() == want


def test_many_alternatives_are_counted_one_by_one():
    either = Or(*(Window(0, 0, offset=step) for step in range(-8, 8, 2)))
    assert alternatives(either) is None
    assert either.population(len_q=11, len_k=13) == sum(max(0, min(11, 13 - o) - max(0, -o)) for o in range(-8, 8, 2))
    assert alternatives(Causal(0) & (Window(1) | Window(2)) & (Causal(1) | Causal(2))) is not None
    assert alternatives(Or(Causal(0), either)) is None
    assert alternatives(Causal(0) & either & either) is None


def test_counting_one_by_one_has_an_end():
    with pytest.raises(MaskError, match=r"to count one by one\. Hint: Causal, Window, Padding"):
        Predicate(lambda b, h, q, k: q == k).population(len_q=10**6, len_k=10**6)


@pytest.mark.parametrize(
    "extent", [Extent(2, 3, 5, 7), Extent(1, 1, 5000, 3000), Extent(10**4, 10**3, 3, 2), Extent(0, 1, 2, 3)]
)
def test_blocks_cover_everything_once(extent):
    assert sum((i1 - i0) * (j1 - j0) for (i0, i1), (j0, j1) in blocks(extent)) == extent.len_q * extent.len_k


def test_torch_is_not_needed():
    code = """
import sys
from qkv.masks import *
masks = [Causal(), Window(2), Padding(lengths=[3]), Padding(keep=[True, False, True, False, True]),
         Segments([0, 0, 1, 1, 1]), Dense([[True, False, True, True, True]]), Predicate(lambda b, h, q, k: q % 2 == k)]
extent = Extent(1, 1, 5, 5)
for mask in masks:
    joined = mask & (Causal() | Window(1))
    for each in (mask, joined):
        each.population(extent), each.lint(extent), each.band(extent), each.allows(0, 0, 0, 0, extent)
        str(each), each._repr_html_()
assert "torch" not in sys.modules, "torch was loaded"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


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
    cells = np.broadcast_to(resolved.cells(NumpyGrid(extent, (0, len_q), (0, len_k))), extent.shape)
    keys = cells.reshape(batch, groups, group, len_q, len_k).any((2, 3))
    assert reach(mask, extent, groups) == (int(cells.any(3).sum()), int(keys.sum()))


def test_bands_are_counted_at_any_size() -> None:
    n = 10**15
    assert reach(Causal(), Extent(2, 6, n, n), groups=3) == (12 * n, 6 * n)
    assert reach(Causal(offset=-3), Extent(1, 1, n, n), groups=1) == (n - 3, n - 3)


@pytest.mark.slow
def test_a_million_packed_tokens_take_no_square() -> None:
    ids = np.repeat(np.arange(100), 10**4)
    assert reach(Causal() & Segments(ids, ids), Extent(1, 2, 10**6, 10**6), groups=1) == (2 * 10**6, 10**6)


def test_what_would_take_too_long_is_refused() -> None:
    n = 10**12
    with pytest.raises(MaskError, match="one by one"):
        reach(Causal() | Window(left=5), Extent(1, 1, n, n), groups=1)
