"""Every kind of mask and random compositions, against independent rules for each cell."""

import copy
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.masks import (
    Causal,
    Dense,
    Extent,
    Or,
    Padding,
    Predicate,
    Segments,
    Window,
)
from qkv.masks.grid import NumpyGrid

EXTENTS = [
    Extent(2, 3, 5, 7),
    Extent(3, 2, 7, 5),
    Extent(2, 3, 5, 5),
    Extent(3, 1, 5, 2, dims=3),
    Extent(1, 1, 3, 11, dims=2),
    Extent(2, 3, 0, 5),
    Extent(2, 3, 5, 0),
    Extent(0, 3, 2, 5),
]
some = settings(max_examples=80, deadline=None, derandomize=True, database=None)


def holders(array):
    """The same numbers as a list, a numpy array and a torch tensor."""
    return st.sampled_from([array.tolist(), array, torch.from_numpy(array.copy())])


SEEDS = st.integers(0, 2**32 - 1)
BOOLS = st.booleans()
NUMBERS = st.integers(-9, 9)


@st.composite
def flags(draw, shape):
    """Booleans, from nearly none to nearly all True: by seed, since a hundred single draws are slow."""
    return np.asarray(np.random.default_rng(draw(SEEDS)).random(shape) < draw(st.sampled_from([0.1, 0.5, 0.9])))


@st.composite
def numbers(draw, shape, low, high):
    return np.random.default_rng(draw(SEEDS)).integers(low, high + 1, shape)


@st.composite
def causals(draw, extent):
    offset = draw(NUMBERS)
    return Causal(offset), lambda b, h, i, j: j <= i + offset


@st.composite
def windows(draw, extent):
    left, right, offset = draw(st.none() | st.integers(0, 9)), draw(st.none() | st.integers(0, 9)), draw(NUMBERS)

    def rule(b, h, i, j):
        return (left is None or j >= i + offset - left) and (right is None or j <= i + offset + right)

    return Window(left, right, offset), rule


@st.composite
def paddings(draw, extent):
    if draw(BOOLS):
        lengths = draw(numbers((extent.batch,), 0, extent.len_k))
        return Padding(draw(holders(lengths))), lambda b, h, i, j: j < lengths[b]
    marks = draw(flags((extent.batch, extent.len_k)))
    values = draw(holders(marks)) if marks.size else marks  # a list cannot say (0, 5)
    if draw(BOOLS):
        return Padding(keep=values), lambda b, h, i, j: bool(marks[b, j])
    return Padding(drop=values), lambda b, h, i, j: not marks[b, j]


@st.composite
def segments(draw, extent):
    shared = draw(BOOLS)
    queries = draw(numbers((extent.len_q,) if shared else (extent.batch, extent.len_q), -1, 2))
    keys = draw(numbers((extent.batch, extent.len_k), -1, 2))

    def rule(b, h, i, j):
        return (queries[i] if shared else queries[b, i]) == keys[b, j]

    return Segments(torch.from_numpy(queries), keys), rule


@st.composite
def denses(draw, extent):
    full = extent.scores
    ones = [draw(BOOLS) for _ in full]
    shape = [1 if one else size for one, size in zip(ones, full, strict=True)][draw(st.integers(0, len(full))) :]
    keep = draw(flags(tuple(shape)))
    place = {4: (0, 1, 2, 3), 3: (0, 2, 3), 2: (2, 3)}[extent.dims]

    whole = np.broadcast_to(keep, full)

    def rule(*position):
        return bool(whole[tuple(position[axis] for axis in place)])

    return Dense(torch.from_numpy(keep) if draw(BOOLS) else keep), rule


@st.composite
def predicates(draw, extent):
    a, b, c, d, m = (draw(st.integers(0, 3)) for _ in range(5))
    function = {
        "vectorised": lambda w, x, y, z: (a * w + b * x + c * y + d * z) % (m + 1) == 0,
        "torch": lambda w, x, y, z: torch.eq(torch.as_tensor(a * w + b * x + c * y + d * z) % (m + 1), 0),
        "constant": lambda w, x, y, z: m > 1,
    }
    name = draw(st.sampled_from(list(function)))
    if name == "constant":
        return Predicate(function[name]), lambda *position: m > 1
    return Predicate(function[name]), lambda w, x, y, z: (a * w + b * x + c * y + d * z) % (m + 1) == 0


def leaves(extent):
    kinds = (causals, windows, paddings, segments, denses, predicates)
    return st.one_of([kind(extent) for kind in kinds])


def joins(children):
    def both(pairs):
        masks, rules = zip(*pairs, strict=True)
        joined = masks[0]
        for mask in masks[1:]:
            joined = joined & mask
        return joined, lambda *position: all(rule(*position) for rule in rules)

    def either(pairs):
        masks, rules = zip(*pairs, strict=True)
        return Or(*masks), lambda *position: any(rule(*position) for rule in rules)

    several = st.lists(children, min_size=1, max_size=3)
    return several.map(both) | several.map(either)


@st.composite
def cases(draw):
    extent = draw(st.sampled_from(EXTENTS))
    mask, rule = draw(st.recursive(leaves(extent), joins, max_leaves=4))
    return extent, mask, rule


def table(extent, rule):
    cells = np.zeros(extent.shape, dtype=bool)
    for position in product(*map(range, extent.shape)):
        cells[position] = rule(*position)
    return cells


@pytest.mark.slow
@some
@given(case=cases(), data=st.data())
def test_tiles_are_the_rule_cell_by_cell(case, data):
    extent, mask, rule = case
    i0, i1 = sorted(data.draw(st.tuples(st.integers(0, extent.len_q), st.integers(0, extent.len_q))))
    j0, j1 = sorted(data.draw(st.tuples(st.integers(0, extent.len_k), st.integers(0, extent.len_k))))
    want = table(extent, rule)[:, :, i0:i1, j0:j1]
    resolved = mask.resolved(extent)
    for each in (mask, resolved):
        tile = each.tile(extent, (i0, i1), (j0, j1), "cpu")
        assert tile.dtype == torch.bool
        assert tile.ndim == 4
        assert all(own in (1, full) for own, full in zip(tile.shape, want.shape, strict=True))
        assert np.array_equal(tile.expand(want.shape).numpy(), want)
    in_numpy = resolved.cells(NumpyGrid(extent, (i0, i1), (j0, j1)))
    assert np.array_equal(np.broadcast_to(in_numpy, want.shape), want)


@some
@given(case=cases())
def test_allows_is_the_rule(case):
    extent, mask, rule = case
    got = table(extent, lambda *position: mask.allows(*position, extent))
    assert np.array_equal(got, table(extent, rule))


@pytest.mark.slow
@some
@given(case=cases())
def test_bands_are_the_rule_where_there_are_bands(case):
    extent, mask, rule = case
    want, band = table(extent, rule), mask.band(extent)
    if band is None:
        assert not isinstance(mask, Causal | Window)
        return
    for b, h, i in product(range(extent.batch), range(extent.heads), range(extent.len_q)):
        lo, hi = band.interval(b, i, extent.len_k)
        assert want[b, h, i].nonzero()[0].tolist() == list(range(lo, hi))
    if band.is_trivial:
        assert want.all()


@some
@given(case=cases())
def test_population_is_the_number_of_cells(case):
    extent, mask, rule = case
    assert mask.population(extent) == table(extent, rule).sum()


@some
@given(case=cases())
def test_keys_kept_is_the_rule_where_only_keys_matter(case):
    extent, mask, rule = case
    kept = mask.keys_kept(extent)
    if isinstance(mask, Padding):
        assert kept is not None
    if kept is not None:
        assert kept.shape == (extent.batch, extent.len_k)
        want = table(extent, rule)
        assert np.array_equal(np.broadcast_to(kept.numpy()[:, None, None], want.shape), want)


@pytest.mark.slow
@some
@given(case=cases())
def test_signatures_copies_and_pictures_of_everything(case):
    extent, mask, _ = case
    assert hash(mask.signature()) == hash(copy.deepcopy(mask).signature())
    assert mask.signature() == copy.copy(mask).signature()
    assert "\n" not in repr(mask)
    assert str(mask)
    assert "<figure>" in mask._repr_html_() or "<p>" in mask._repr_html_()
    assert all(sentence.endswith(".") for sentence in mask.lint(extent))
