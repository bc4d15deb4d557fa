"""Pieces of a mask cover every attended pair once, and nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.backends import pieces
from qkv.inputs import read_inputs
from qkv.masks import Extent


def call(mask, batch: int, len_q: int, len_k: int):
    q, k = torch.zeros(batch, 2, len_q, 3), torch.zeros(batch, 2, len_k, 3)
    return read_inputs(q, k, k, None, mask, None, 0.0, "auto", False, False)


def covered(read, cut) -> torch.Tensor:
    """How many pieces contain each attended pair."""
    extent = read.extent
    times = torch.zeros(extent.batch, extent.heads, extent.len_q, extent.len_k, dtype=torch.int64)
    for piece in cut:
        assert piece.b0 < piece.b1
        assert piece.i0 < piece.i1
        assert piece.j0 < piece.j1
        rows, keys = piece.i1 - piece.i0, piece.j1 - piece.j0
        attended = torch.ones(rows, keys, dtype=torch.bool)
        if piece.causal:
            attended = attended.tril()
        attended = attended[None, None].expand(piece.b1 - piece.b0, extent.heads, rows, keys)
        added = piece.additive(read)
        if added is not None:
            attended = attended & (added == 0)
        times[piece.b0 : piece.b1, :, piece.i0 : piece.i1, piece.j0 : piece.j1] += attended
    return times


def expected(mask, extent: Extent) -> torch.Tensor:
    whole = torch.ones(extent.batch, extent.heads, extent.len_q, extent.len_k, dtype=torch.bool)
    if mask is None:
        return whole
    return mask.resolved(extent).tile(extent, (0, extent.len_q), (0, extent.len_k), whole.device) & whole


offsets = st.integers(-9, 12)
sides = st.none() | st.integers(0, 9)


@st.composite
def masks(draw, batch: int, len_q: int, len_k: int):
    kinds = {
        "causal": lambda: qkv.Causal(draw(offsets)),
        "window": lambda: qkv.Window(draw(sides), draw(sides), offset=draw(offsets)),
        "padding": lambda: qkv.Padding(lengths=draw(st.lists(st.integers(0, len_k), min_size=batch, max_size=batch))),
        "keep": lambda: qkv.Padding(keep=torch.tensor(draw(cells(batch, len_k)))),
        "segments": lambda: qkv.Segments(torch.tensor(draw(ids(len_q))), torch.tensor(draw(ids(len_k)))),
        "dense": lambda: qkv.Dense(torch.tensor(draw(cells(len_q, len_k)))),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=3))
    mask = kinds[chosen[0]]()
    for kind in chosen[1:]:
        mask = mask | kinds[kind]() if draw(st.integers(0, 4)) == 0 else mask & kinds[kind]()
    return mask


def cells(rows: int, columns: int):
    row = st.lists(st.booleans(), min_size=columns, max_size=columns)
    return st.lists(row, min_size=rows, max_size=rows)


def ids(length: int):
    return st.lists(st.integers(0, 3), min_size=length, max_size=length).flatmap(
        lambda numbers: st.sampled_from([numbers, sorted(numbers)])
    )


@given(st.data(), st.integers(1, 3), st.integers(1, 13), st.integers(1, 11))
def test_every_attended_pair_is_in_exactly_one_piece(data, batch: int, len_q: int, len_k: int) -> None:
    read = call(data.draw(masks(batch, len_q, len_k)), batch, len_q, len_k)
    assert torch.equal(covered(read, pieces.cut_mask(read)), expected(read.mask, read.extent).long())


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        (None, 1),
        (qkv.Causal(0), 1),
        (qkv.Causal(300), 2),
        (qkv.Causal(1000), 1),
        (qkv.Padding(lengths=[700, 700]), 1),
        (qkv.Causal(0) & qkv.Padding(lengths=[700, 500]), 2),
        (qkv.Padding(keep=torch.arange(1000).expand(2, 1000) % 2 == 0), 1),
        (qkv.Segments(torch.arange(1000) // 250), 8),
    ],
)
def test_structure_needs_few_pieces_and_no_square_mask(mask, count: int) -> None:
    read = call(mask, 2, 1000, 1000)
    cut = pieces.cut_mask(read)
    assert len(cut) == count
    for piece in cut:
        added = piece.additive(read)
        assert added is None or added.shape[-2] == 1


def test_a_window_covers_only_its_band() -> None:
    read = call(qkv.Causal(0) & qkv.Window(left=63), 1, 4096, 4096)
    covered_pairs = sum((p.i1 - p.i0) * (p.j1 - p.j0) for p in pieces.cut_mask(read))
    assert covered_pairs < 4096 * 64 * 4


def test_large_masks_are_made_in_tiles() -> None:
    read = call(qkv.Predicate(lambda b, h, i, j: (i + j + h) % 3 == 0), 2, 4096, 1024)
    for piece in pieces.cut_mask(read):
        assert 2 * 2 * (piece.i1 - piece.i0) * (piece.j1 - piece.j0) <= pieces.MAX_MASKED_SCORES


def test_an_empty_batch_has_no_pieces() -> None:
    either = qkv.Causal() | qkv.Causal(offset=0)
    read = call(either, 0, 33, 33)
    assert pieces.cut_mask(read) == []
    assert qkv.explain(read.query, read.key, read.value, mask=either).backend
