"""A part of a mask is the mask of a part: cells, bounds and heads."""

import numpy as np
import pytest
import torch

from qkv.masks import Causal, Dense, Extent, Mask, Padding, Predicate, Segments, Window

EXTENT = Extent(batch=2, heads=3, len_q=11, len_k=13)
ROWS, KEYS, HEADS = (2, 9), (3, 13), (1, 3)
SEED = np.random.default_rng(5)
KEEP = SEED.random((2, 13)) < 0.6

MASKS = [
    Causal(offset=2),
    Causal(offset=-4),
    Window(left=2, right=1, offset=1),
    Causal(offset=2) & Window(left=3),
    Padding(lengths=[5, 13]),
    Padding(lengths=torch.tensor([2, 7])),
    Padding(keep=KEEP),
    Padding(drop=torch.from_numpy(~KEEP)),
    Segments([0] * 4 + [1] * 7, [0] * 6 + [1] * 7),
    Segments([0, 1] * 5 + [0], [1, 0] * 6 + [1]),
    Dense(SEED.random((2, 3, 11, 13)) < 0.5),
    Dense(SEED.random((3, 1, 13)) < 0.5),
    Dense(torch.from_numpy(SEED.random((11, 1)) < 0.5)),
    Predicate(lambda batch, head, query, key: (batch + 2 * head + query + key) % 5 != 0),
    (Causal(offset=2) | Padding(lengths=[3, 1])) & Dense(SEED.random((2, 1, 1, 13)) < 0.7),
]


def cells(mask: Mask, extent: Extent) -> np.ndarray:
    shape = extent.shape
    return np.array([mask.allows(*place, extent=extent) for place in np.ndindex(*shape)]).reshape(shape)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_cells_of_a_part(mask: Mask) -> None:
    part = mask.part(EXTENT, ROWS, KEYS, HEADS)
    here = Extent(2, HEADS[1] - HEADS[0], ROWS[1] - ROWS[0], KEYS[1] - KEYS[0])
    part.resolved(here).check_contents(here)
    wanted = cells(mask, EXTENT)[:, slice(*HEADS), slice(*ROWS), slice(*KEYS)]
    assert (cells(part, here) == wanted).all()
    tile = part.tile(here, (0, here.len_q), (0, here.len_k))
    assert (tile.expand(here.shape).numpy() == wanted).all()


@pytest.mark.parametrize("mask", [*MASKS, Segments([[0] * 11, [0, 1] * 5 + [2]], [0] * 13)], ids=repr)
@pytest.mark.parametrize("batch", [(0, 1), (1, 2)])
def test_cells_of_some_rows_of_the_batch(mask: Mask, batch: tuple[int, int]) -> None:
    part, here = mask.part(EXTENT, ROWS, KEYS, HEADS, batch), Extent(1, 2, 7, 10)
    part.resolved(here).check_contents(here)
    assert (cells(part, here) == cells(mask, EXTENT)[slice(*batch), slice(*HEADS), slice(*ROWS), slice(*KEYS)]).all()


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("rows", [(0, 11), (4, 5), (7, 11), (3, 3)])
def test_nobody_sees_beyond_the_bounds(mask: Mask, rows: tuple[int, int]) -> None:
    lo, hi = mask.bounds(EXTENT, rows)
    seen = np.asarray(cells(mask, EXTENT)[:, :, slice(*rows)].any(axis=(0, 1, 2)))
    assert not seen[:lo].any()
    assert not seen[hi:].any()
    if mask.band(EXTENT) is not None and seen.any():  # a run is known to the key
        assert (lo, hi) == (int(seen.argmax()), 13 - int(seen[::-1].argmax()))


def test_a_part_of_three_dimensions_has_four() -> None:
    keep = SEED.random((2, 11, 13)) < 0.5
    part = Dense(keep).part(Extent(2, 1, 11, 13, dims=3), ROWS, KEYS)
    assert part.keep.shape == (2, 1, 7, 10)  # pyright: ignore[reportAttributeAccessIssue]
