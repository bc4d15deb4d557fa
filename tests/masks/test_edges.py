"""Masks at their edges: what is empty, what touches, what a mask knows of itself, and how long words may be."""

import itertools

import numpy as np
import pytest
import torch

from qkv.errors import OptionError, OptionTypeError
from qkv.masks import Causal, Dense, Extent, Padding, Predicate, Segments, Window
from qkv.masks.grid import as_integer, as_size, describe


def seen_run(mask, extent: Extent, rows: tuple[int, int]) -> tuple[int, int]:
    """First and last + 1 of the keys that some of these queries see, cell by cell."""
    keys = [
        key
        for batch, head, query, key in itertools.product(
            range(extent.batch), range(extent.heads), range(*rows), range(extent.len_k)
        )
        if mask.allows(batch, head, query, key, extent)
    ]
    return (min(keys), max(keys) + 1) if keys else (0, 0)


MASKS = {
    "causal": Causal(offset=-2),
    "a window": Window(left=1, right=0, offset=1),
    "lengths": Padding(lengths=[0, 4]),
    "documents": Segments([5, 5, 9, 9, 2, 2], [5, 9, 9, 9, 2]),
    "documents of rows": Segments([[0, 0, 0, 1, 1, 1], [3, 3, 4, 4, 4, 4]], [[0, 1, 1, 1, 1], [7, 7, 3, 3, 4]]),
    "documents that never meet": Segments([0] * 6, [1] * 5),
    "nothing or nothing": Causal(offset=-9) | Causal(offset=-8),
    "causal documents": Causal(offset=0) & Segments([5, 5, 9, 9, 2, 2], [5, 9, 9, 9, 2]),
}


@pytest.mark.parametrize("name", MASKS)
def test_bounds_are_the_keys_that_are_seen_and_no_keys_are_nought_to_nought(name: str) -> None:
    mask, extent = MASKS[name], Extent(2, 1, 6, 5)
    for rows in itertools.combinations_with_replacement(range(7), 2):
        lo, hi = mask.bounds(extent, rows)
        first, last = seen_run(mask, extent, rows)
        if "&" in repr(mask):
            assert lo <= first
            assert last <= hi or (first, last) == (0, 0)
        else:
            assert (lo, hi) == (first, last)


@pytest.mark.parametrize("name", MASKS)
def test_population_of_what_a_mask_knows_of_itself(name: str) -> None:
    mask, extent = MASKS[name], Extent(2, 1, 6, 5)
    cells = sum(mask.allows(b, 0, i, j, extent) for b in range(2) for i in range(6) for j in range(5))
    assert mask.population(extent) == mask.population(2, 1, 6, 5) == cells
    if isinstance(mask, Segments):
        one = 1 if mask.query_ids.ndim == 1 else 2
        assert mask.population() * 2 == cells * one


def test_a_mask_counts_the_writes_to_each_of_its_tensors() -> None:
    ids, keys = torch.zeros(5, dtype=torch.long), torch.zeros(7, dtype=torch.long)
    segments, padding = Segments(ids, keys), Padding(lengths=torch.tensor([3, 5]))
    assert len(segments.versions()) == 2
    assert len(padding.versions()) == 1
    assert len((segments & padding).versions()) == 3
    assert Causal().versions() == Padding(lengths=[3]).versions() == ()
    before = segments.versions()
    keys += 1
    after = segments.versions()
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_kept_keys_and_tiles_are_where_they_are_wanted(device: str) -> None:
    extent = Extent(2, 1, 6, 5)
    for padding in (Padding(lengths=[1, 4]), Padding(keep=torch.ones(2, 5, dtype=torch.bool))):
        kept = padding.keys_kept(extent, device)
        assert kept is not None
        assert kept.shape == (2, 5)
        assert kept.device.type == device
    for mask in (*MASKS.values(), Dense(torch.ones(6, 5, dtype=torch.bool)), Predicate(lambda b, h, i, j: j <= i)):
        assert mask.tile(extent, (0, 6), (0, 5), device).device.type == device


def test_what_is_described_takes_sixty_signs_at_most() -> None:
    class Thing:
        def __init__(self, length: int) -> None:
            self.length = length

        def __repr__(self) -> str:
            return "x" * self.length

    assert describe(Thing(60)) == "x" * 60
    assert describe(Thing(61)) == "x" * 57 + "..."


@pytest.mark.parametrize("given", [3, np.int32(3), np.uint8(3)])
def test_integers_of_any_kind_are_sizes(given: object) -> None:
    assert type(as_integer("n", given)) is int
    assert as_size("n", given) == 3
    assert as_size("n", 0) == 0


@pytest.mark.parametrize("given", [True, 3.0, "3", None, np.float64(3)])
def test_what_is_no_integer_is_named(given: object) -> None:
    with pytest.raises(OptionTypeError, match=r"^n: got .*an integer"):
        as_integer("n", given)
    with pytest.raises(OptionError, match=r"^n: got -1"):
        as_size("n", -1)


@pytest.mark.parametrize("argument", ["left", "right", "offset"])
def test_an_argument_of_a_window_is_called_by_its_name(argument: str) -> None:
    with pytest.raises(OptionTypeError, match=f"^{argument}"):
        Window(**{argument: 1.5})


@pytest.mark.parametrize(("rows", "keys"), [(4, 4), (3, 5), (5, 3)])
def test_a_dense_mask_the_wrong_way_round_is_told_its_offset(rows: int, keys: int) -> None:
    for offset in range(keys - 1):
        cells = np.tri(rows, keys, offset, dtype=bool)
        plain = "Causal()" if offset == 0 and rows == keys else f"Causal(offset={offset})"
        (said,) = [s for s in Dense(cells).lint(Extent(1, 1, rows, keys)) if "causal" in s] or [""]
        if not cells.all():
            assert f"use {plain} instead" in said
        upside_down = Dense(~cells).lint(Extent(1, 1, rows, keys))
        if (~cells).any():
            assert any(f"Dense(~mask) or {plain}." in s for s in upside_down)


def test_padding_that_looks_turned_round_is_told_from_the_second_key_on() -> None:
    assert any("use drop=" in said for said in Padding(keep=np.array([[False, True]])).lint())
    assert not any("use drop=" in said for said in Padding(keep=np.array([[False]])).lint())
    # Two rows of five keep their last key alone: that is not most of them.
    kept = np.zeros((5, 4), dtype=bool)
    kept[:2, 3] = True
    assert not any("use drop=" in said for said in Padding(keep=kept).lint())
    kept[2, 3] = True
    assert any("use drop=" in said for said in Padding(keep=kept).lint())


def test_lengths_of_a_part_are_those_of_its_keys() -> None:
    part = Padding(lengths=torch.tensor([7, 3, 1])).part(Extent(3, 1, 4, 7), (0, 4), (2, 5))
    assert isinstance(part, Padding)
    assert list(part.lengths) == [3, 1, 0]


def test_a_predicate_of_python_numbers_is_asked_cell_by_cell() -> None:
    mask = Predicate(lambda b, h, i, j: bool(j <= i) if i < 3 else bool(j == 0))
    extent = Extent(1, 1, 5, 5)
    assert mask.population(extent) == 1 + 2 + 3 + 1 + 1
    assert mask.allows(0, 0, 4, 0, extent) is True
    assert mask.allows(0, 0, 4, 1, extent) is False
    assert repr(Predicate(len)) == "Predicate(len)"


def test_a_predicate_that_gives_no_boolean_is_refused() -> None:
    for wrong in (lambda b, h, i, j: 1, lambda b, h, i, j: None, lambda b, h, i, j: j - i):
        with pytest.raises(TypeError, match="booleans"):
            Predicate(wrong).allows(0, 0, 0, 0, Extent(1, 1, 2, 2))


def test_signatures_tell_masks_apart_by_kind_and_numbers() -> None:
    masks = [
        Causal(),
        Causal(offset=1),
        Window(left=1),
        Window(right=1),
        Window(offset=1),
        Padding(lengths=[1, 2]),
        Padding(lengths=[1, 2, 3]),
        Padding(keep=np.ones((2, 3), dtype=bool)),
        Padding(drop=np.ones((2, 3), dtype=bool)),
        Segments([0, 1]),
        Segments([0, 1], [0, 1, 1]),
        Dense(np.ones((2, 3), dtype=bool)),
        Causal(offset=1) & Window(left=1),
        Causal(offset=1) | Window(left=1),
        Window(left=1) & Causal(offset=1),
    ]
    assert len({mask.signature() for mask in masks}) == len(masks)
