"""Cuts a mask into pieces that torch's flash kernel can run: rectangles, and triangles below a diagonal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..inputs import AttentionInputs
from ..masks import And, Band, Causal, Mask, Segments
from ..scoring import cut

# The most scores of a piece with a mask: an additive mask of that size is made for it.
MAX_MASKED_SCORES = 1 << 22

# Pieces of Causal masks by offset and extent.
_PIECES: dict[tuple, list[Piece]] = {}
_MAX_PIECES = 1024


class Piece(NamedTuple):
    """A rectangle of pairs, and which of them attend.

    Args:
        b0, b1: Batch rows, half-open.
        i0, i1: Queries, half-open.
        j0, j1: Keys, half-open.
        causal: Only pairs with j − j0 <= i − i0 attend.
        lower, upper: Only pairs with i + lower <= j < i + upper attend.
        mask: Only pairs that this mask keeps attend; it includes `lower` and `upper`.
    """

    b0: int
    b1: int
    i0: int
    i1: int
    j0: int
    j1: int
    causal: bool = False
    lower: int | None = None
    upper: int | None = None
    mask: Mask | None = None

    @property
    def slices(self) -> tuple[slice, slice, slice]:
        """Batch rows, queries and keys."""
        return slice(self.b0, self.b1), slice(self.i0, self.i1), slice(self.j0, self.j1)

    @property
    def rows(self) -> tuple[int, int, int, int]:
        return self.b0, self.b1, self.i0, self.i1

    def covers(self, call: AttentionInputs) -> bool:
        """Whether the piece is the whole call: every row, every key, and no mask but the triangle."""
        extent = call.extent
        whole = self.rows == (0, extent.batch, 0, extent.len_q) and (self.j0, self.j1) == (0, extent.len_k)
        return whole and self.lower is None and self.upper is None and self.mask is None

    def additive(self, call: AttentionInputs) -> Tensor | None:
        """The mask added to the piece's scores: the bias for attended pairs, −inf for others; None if all are 0."""
        everything, keep = slice(None), None
        if self.mask is not None:
            keep = self.mask.tile(call.extent, (self.i0, self.i1), (self.j0, self.j1), call.query.device)
            keep = cut(keep, slice(self.b0, self.b1), everything, everything, everything)
        elif self.lower is not None or self.upper is not None:
            keep = self._diagonals(call.query.device)[None, None]
        b, i, j = self.slices
        bias = None if call.bias is None else cut(call.bias, b, everything, i, j)
        if keep is None:
            return bias
        dtype = call.query.dtype if bias is None else bias.dtype
        zero = call.query.new_zeros((), dtype=dtype) if bias is None else bias
        return torch.where(keep, zero, call.query.new_full((), float("-inf"), dtype=dtype))

    def _diagonals(self, device: torch.device) -> Tensor:
        keys, rows = torch.arange(self.j0, self.j1, device=device), torch.arange(self.i0, self.i1, device=device)
        distance = keys - rows.unsqueeze(1)
        keep = torch.ones_like(distance, dtype=torch.bool)
        if self.lower is not None:
            keep &= distance >= self.lower
        if self.upper is not None:
            keep &= distance < self.upper
        return keep


def cut_mask(call: AttentionInputs) -> list[Piece]:
    """Pieces that cover exactly the attended pairs, each once; pieces with the same rows follow one another."""
    if type(call.mask) is not Causal:
        return _cut_mask(call)
    # The pieces depend on the offset and the sizes only, and can be reused.
    signature = call.mask.offset, call.extent
    pieces = _PIECES.get(signature)
    if pieces is None:
        if len(_PIECES) >= _MAX_PIECES:
            _PIECES.clear()
        pieces = _PIECES[signature] = _cut_mask(call)
    return pieces


def _cut_mask(call: AttentionInputs) -> list[Piece]:
    extent = call.extent
    mask = call.mask
    if mask is None:
        return [Piece(0, extent.batch, 0, extent.len_q, 0, extent.len_k)]
    band, rest = _split_band(call, mask)
    if not rest:
        return list(_pieces_of_band(call, band))
    if len(rest) == 1 and isinstance(rest[0], Segments):
        documents = rest[0].documents_by_row(extent)
        if documents is not None:
            return list(_pieces_of_segments(call, band, documents))
    if band.is_trivial and all(part.keys_kept(extent) is not None for part in rest):
        return [Piece(0, extent.batch, 0, extent.len_q, 0, extent.len_k, mask=mask)]
    return list(_masked_pieces(call, band, mask))


def _split_band(call: AttentionInputs, mask: Mask) -> tuple[Band, tuple[Mask, ...]]:
    """The mask as a band, and the parts of it that are no band."""
    band, rest = Band(), []
    for part in mask.parts() if isinstance(mask, And) else (mask,):
        part_band = part.band(call.extent)
        if part_band is None:
            rest.append(part)
        else:
            band = band.intersect(part_band)
    return band, tuple(rest)


def _pieces_of_band(call: AttentionInputs, band: Band) -> Iterator[Piece]:
    extent = call.extent
    for b0, b1, j0, j1 in _batches_with_equal_keys(band, extent.batch, extent.len_k):
        yield from pieces_of_rectangle(Piece(b0, b1, 0, extent.len_q, j0, j1), band)


def _batches_with_equal_keys(band: Band, batch: int, len_k: int) -> Iterator[tuple[int, int, int, int]]:
    """Runs of batch rows with the same range of keys: b0, b1, j0, j1."""
    ranges = [(band.starts[b] if band.starts else 0, band.stops[b] if band.stops else len_k) for b in range(batch)]
    b0 = 0
    for b in range(1, batch + 1):
        if b == batch or ranges[b] != ranges[b0]:
            yield b0, b, max(ranges[b0][0], 0), min(ranges[b0][1], len_k)
            b0 = b


def _pieces_of_segments(
    call: AttentionInputs, band: Band, documents: list[list[tuple[int, int, int, int]]]
) -> Iterator[Piece]:
    for b, rectangles in enumerate(documents):
        first = band.starts[b] if band.starts else 0
        last = band.stops[b] if band.stops else call.extent.len_k
        for i0, i1, j0, j1 in rectangles:
            yield from pieces_of_rectangle(Piece(b, b + 1, i0, i1, max(j0, first), min(j1, last)), band)


def pieces_of_rectangle(piece: Piece, band: Band) -> Iterator[Piece]:
    """The part of a rectangle between the band's diagonals i + lower <= j < i + upper."""
    b0, b1, i0, i1, j0, j1 = piece[:6]
    if i0 >= i1 or j0 >= j1:
        return
    if band.lower is None and band.upper is None:
        yield piece
    elif band.lower is None:
        assert band.upper is not None
        # Counted from the rectangle's corner, row i attends to columns 0 to i + shift.
        shift = i0 + band.upper - 1 - j0
        if shift < 0:
            i0, shift = i0 - shift, 0
        if i0 >= i1:
            return
        if shift:
            yield Piece(b0, b1, i0, i1, j0, min(j1, j0 + shift))
        if j0 + shift < j1:
            yield Piece(b0, b1, i0, i1, j0 + shift, min(j1, j0 + shift + i1 - i0), causal=True)
    else:
        yield from _pieces_of_window(piece, band.lower, band.upper)


def _pieces_of_window(piece: Piece, lower: int, upper: int | None) -> Iterator[Piece]:
    b0, b1, i0, i1, j0, j1 = piece[:6]
    span = j1 - j0 if upper is None else max(upper - lower, 1)
    step = min(max(span, 64), 512)
    for first in range(i0, i1, step):
        last = min(first + step, i1)
        left = max(j0, first + lower)
        right = j1 if upper is None else min(j1, last - 1 + upper)
        if left < right:
            covers_left = last - 1 + lower <= left
            covers_right = upper is None or right <= first + upper
            limits = (None, None) if covers_left and covers_right else (lower, upper)
            yield Piece(b0, b1, first, last, left, right, False, *limits)


def _masked_pieces(call: AttentionInputs, band: Band, mask: Mask) -> Iterator[Piece]:
    extent = call.extent
    if not extent.batch:
        return
    step = max(16, min(extent.len_q, MAX_MASKED_SCORES // max(1, extent.batch * extent.heads * extent.len_k)))
    for i0 in range(0, extent.len_q, step):
        i1 = min(i0 + step, extent.len_q)
        ranges = [band.bounds_for_rows(b, i0, i1, extent.len_k) for b in range(extent.batch)]
        j0, j1 = min(lo for lo, _ in ranges), max(hi for _, hi in ranges)
        if j0 < j1:
            yield Piece(0, extent.batch, i0, i1, j0, j1, mask=mask)
