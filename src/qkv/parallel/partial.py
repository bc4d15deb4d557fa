"""One rank's part of a decoder's step: all new queries over the tokens that this rank holds, and how parts are merged.

Rank r of R holds position j = s·R + r in slot s. A query at position p sees the slots s ≤ (p − r) // R. Queries R
positions apart stand one slot apart, as the queries of a chunk do in a cache of its own: the native kernel takes the
new queries in R strides, each of them causal as it stands, and no mask has to be made for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..backends.argmax import resolve_ties
from ..backends.base import NEG_INF
from ..backends.dispatch import choose
from ..backends.reference import products
from ..cache.decode import _FEW_SCORES, TILE
from ..cache.pages import PAGE, numbers
from ..inputs import DecodeInputs, compute_dtype, fold_group, read_inputs, unfold_group
from ..masks import Band, Dense
from ..ops.kernels import CODE, NOTHING, memory_attend
from ..similarity import Softmax
from .cache import KVCache

_FAR = 1 << 62
# Tokens that torch is given at a time.
_PIECE = 64 * PAGE


def merged(parts: list[tuple[Tensor, Tensor]], sink: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Σ_r e^(lse_r) out_r / (Σ_r e^(lse_r) + e^sink) and the logarithm of what is below, in the order of the parts.

    out_r (…, n, value_width), lse_r (…, n); sink broadcasts to lse. A part that saw nothing is 0 with an lse of −∞, and
    where all did the answer is 0. What is not finite in a part stays so, however small its weight is.

    >>> one, three = (torch.tensor([[1.0]]), torch.tensor([0.0])), (torch.tensor([[3.0]]), torch.tensor([0.0]))
    >>> merged([one, three])
    (tensor([[2.]]), tensor([0.6931]))
    """
    top = parts[0][1] if sink is None else torch.maximum(parts[0][1], sink)
    for _, lse in parts[1:]:
        top = torch.maximum(top, lse)
    base = torch.where(top == NEG_INF, 0.0, top)
    below = torch.zeros_like(base) if sink is None else torch.exp(sink - base)
    above = torch.zeros_like(parts[0][0])
    for out, lse in parts:
        weight = torch.exp(lse - base)
        below = below + weight
        above = above + weight[..., None] * out
    out = above / torch.where(below == 0, 1.0, below)[..., None]
    return out, torch.where(below == 0, NEG_INF, base + torch.log(below))


class _Spots(NamedTuple):
    """Where the new queries stand. first (batch,): the position that the call's query 0 has, or would have. real: which
    queries of each row count, from skipped[b] to stop[b] - 1."""

    first: np.ndarray
    skipped: np.ndarray
    stop: np.ndarray


def _spots(step: DecodeInputs) -> _Spots:
    n = step.extent.len_q
    skipped = np.zeros_like(step.past) if step.counts is None or not step.left else n - step.counts
    stop = np.full_like(step.past, n) if step.counts is None else skipped + step.counts
    return _Spots(step.past - skipped, skipped, stop)


def by_kernel(step: DecodeInputs, cache: KVCache, out: Tensor, lse: Tensor) -> None:
    """The native kernel on this rank's pages; float32 out (batch, heads_q, n, value_width), lse (batch, heads_q, n)."""
    n, ranks, slots = step.extent.len_q, cache.ranks, int(cache._slots(step.extent.len_k))
    spots, band = _spots(step), step.band
    if band is not None and cache.window is not None:
        band = band.intersect(Band(lower=1 - cache.window))
    uneven = bool((spots.first % ranks != spots.first[0] % ranks).any())
    # Rows that stand differently between the ranks' tokens have no common distance in slots.
    if band is not None and uneven and band.is_diagonal and n > ranks:
        band = None
    bias = _own_bias(step, cache, (0, slots))
    bias = None if bias is None else bias.to(torch.float32).resolve_neg()
    query = step.query.detach().resolve_neg().to(torch.float32)
    for i0, i1 in [(0, n)] if band is not None else _blocks(step, cache, spots, (0, n), (0, slots)):
        keep = None if band is not None else _cells(step, cache, spots, (i0, i1), (0, slots))
        for first in range(i0, min(i1, i0 + ranks)):
            rows = slice(first, i1, ranks)
            kept = None if keep is None else keep[:, :, first - i0 :: ranks]
            added = bias if bias is None or bias.shape[2] == 1 else bias[:, :, rows]
            _stride(step, cache, spots, band, query, rows, (kept, added), (out, lse))


def _stride(
    step: DecodeInputs,
    cache: KVCache,
    spots: _Spots,
    band: Band | None,
    query: Tensor,
    rows: slice,
    beside: tuple[Tensor | None, Tensor | None],
    results: tuple[Tensor, Tensor],
) -> None:
    """Every so-manieth query: slot by slot like the queries of a cache of its own."""
    assert memory_attend is not None
    assert isinstance(step.similarity, Softmax)
    rank, ranks, local = cache._axis.rank, cache.ranks, cache._local
    part = query[:, :, rows]
    count = part.shape[2]
    # Of this stride's queries, those from begin[b] to end[b] - 1 count.
    begin = np.clip(_up(spots.skipped - rows.start, ranks), 0, count)
    end = np.clip(_up(spots.stop - rows.start, ranks), begin, count)
    counts = np.ascontiguousarray(end - begin)
    away = spots.first + rows.start + begin * ranks - rank
    places = np.ascontiguousarray(away // ranks)
    starts, stops, lower, upper = _limits(band, cache, away, places)
    whole = count == query.shape[2]
    out, lse = results if whole else [part.new_empty((*part.shape[:3], *result.shape[3:])) for result in results]
    scores = (*part.shape[:3], int(cache._slots(step.extent.len_k)))
    keep, bias = (None if tensor is None else tensor.expand(scores) for tensor in beside)
    memory_attend(
        *local._layout.numbers,
        local._table.address,
        local._table.slots,
        CODE[torch.float32],
        part.shape,
        part.data_ptr(),
        part.stride(),
        out.data_ptr(),
        lse.data_ptr(),
        places.ctypes.data,
        0 if step.counts is None else counts.ctypes.data,
        step.left,
        local.window or 0,
        0 if starts is None else starts.ctypes.data,
        0 if stops is None else stops.ctypes.data,
        lower,
        upper,
        0 if keep is None else keep.data_ptr(),
        NOTHING if keep is None else keep.stride(),
        0 if bias is None else bias.data_ptr(),
        NOTHING if bias is None else bias.stride(),
        step.similarity.scale_for(cache.width),
        step.similarity.softcap or 0.0,
        0,
        False,
        torch.get_num_threads(),
    )
    if not whole:
        results[0][:, :, rows], results[1][:, :, rows] = out, lse


def _limits(
    band: Band | None, cache: KVCache, away: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None, int | None, int | None]:
    """The band in slots: starts and stops of each row, lower and upper counted from a query's own place. away (batch,):
    how far the first query stands behind this rank's first token; it is in slot `places`."""
    if band is None:
        return None, None, None, None
    rank, ranks = cache._axis.rank, cache.ranks
    starts, stops = (
        None if limits is None else _up(np.array([_near(limit) for limit in limits], dtype=np.int64) - rank, ranks)
        for limits in (band.starts, band.stops)
    )
    rest = away - places * ranks
    lower, upper = (None if limit is None else _up(rest + _near(limit), ranks) for limit in (band.lower, band.upper))
    if (rest == rest[0]).all():
        return starts, stops, None if lower is None else int(lower[0]), None if upper is None else int(upper[0])
    # One query a row: its own limits are the row's.
    if lower is not None:
        starts = places + lower if starts is None else np.maximum(starts, places + lower)
    if upper is not None:
        stops = places + upper if stops is None else np.minimum(stops, places + upper)
    return starts, stops, None, None


def _near(limit: int) -> int:
    return max(-_FAR, min(_FAR, limit))


def _up(number: np.ndarray, ranks: int) -> np.ndarray:
    """⌈number / ranks⌉."""
    return -(-number // ranks)


def by_torch(step: DecodeInputs, cache: KVCache, out: Tensor, lse: Tensor, at: Tensor | None) -> None:
    """The same with torch alone, piece by piece of the past. With Argmax, lse is the best score and `at` the position
    of the first key that has it."""
    local, dtype = cache._local, compute_dtype(step.query.dtype)
    spots, ranks = _spots(step), cache.ranks
    ends = cache._slots(spots.first + spots.stop)
    alike = (ends == ends[0]).all() and (local._table.first == local._table.first[0]).all()
    with torch.autocast(step.query.device.type, enabled=False):
        for rows in [slice(0, len(ends))] if alike else [slice(b, b + 1) for b in range(len(ends))]:
            first, stop = int(local._table.first[rows.start]) * PAGE, int(ends[rows.start])
            for lo in range(first, stop, _PIECE):
                hi = min(stop, lo + _PIECE)
                pairs = [numbers(local._read(row, lo, hi)) for row in range(rows.start, rows.stop)]
                key, value = (torch.stack(ts).to(step.query.device, dtype) for ts in zip(*pairs, strict=True))
                bias = _own_bias(step, cache, (lo, hi))
                for i0, i1 in _blocks(step, cache, spots, (0, step.extent.len_q), (lo, hi)):
                    place = rows, slice(None), slice(i0, i1)
                    query = step.query.detach()[place].to(dtype)
                    keep = _of_rows(_cells(step, cache, spots, (i0, i1), (lo, hi)), rows)
                    if at is not None:
                        _take_best(query, key, value, keep, (out[place], lse[place], at[place]), lo)
                        continue
                    added = None if bias is None else _of_rows(bias, rows).to(dtype)
                    added = added if added is None or added.shape[2] == 1 else added[:, :, i0:i1]
                    backend = "reference" if query.shape[:3].numel() * (hi - lo) <= _FEW_SCORES else "auto"
                    assert isinstance(step.similarity, Softmax)
                    similarity = Softmax(step.similarity.scale, step.similarity.softcap)
                    call = read_inputs(query, key, value, similarity, Dense(keep), added, 0.0, backend, True, False)
                    more = choose(call).run(call)
                    assert more.lse is not None
                    joined = merged([(out[place], lse[place]), (more.out.to(dtype), more.lse.to(dtype))])
                    out[place], lse[place] = joined
    if at is not None:
        at.mul_(ranks).add_(cache._axis.rank)


def _take_best(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor, best: tuple[Tensor, Tensor, Tensor], lo: int
) -> None:
    """Where a key of this piece scores higher than all before it, its score, slot and value. NaN stays."""
    out, score, at = best
    scores = resolve_ties(products(query, key).masked_fill(~keep, NEG_INF), query, key)
    found, index = scores.max(-1)  # the first of equals; NaN is the largest
    heads, heads_kv = query.shape[1], key.shape[1]
    chosen = fold_group(index[..., None], heads_kv).expand(-1, -1, -1, value.shape[3])
    values = unfold_group(value.gather(2, chosen), heads)
    better = (found > score) | found.isnan()
    out.copy_(torch.where(better[..., None], values, out))
    at.copy_(torch.where(better, index + lo, at))
    score.copy_(torch.where(better, found, score))


def _of_rows(tensor: Tensor, rows: slice) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[rows]


def _own_bias(step: DecodeInputs, cache: KVCache, slots: tuple[int, int]) -> Tensor | None:
    """The bias of this rank's tokens in these slots."""
    bias = step.bias
    if bias is None or bias.shape[3] == 1:
        return bias
    return bias.detach()[..., cache._axis.rank :: cache.ranks][..., slots[0] : slots[1]]


def _cells(step: DecodeInputs, cache: KVCache, spots: _Spots, rows: tuple[int, int], slots: tuple[int, int]) -> Tensor:
    """Which of this rank's tokens each new query sees: (batch or 1, heads or 1, queries, slots)."""
    (i0, i1), (lo, hi), device = rows, slots, step.query.device
    first, last = lo * cache.ranks + cache._axis.rank, (hi - 1) * cache.ranks + cache._axis.rank
    keys = torch.arange(first, last + 1, cache.ranks, device=device)
    firsts, skipped, stop = (torch.from_numpy(a).to(device)[:, None, None, None] for a in spots)
    if step.counts is None and bool((firsts == firsts[0]).all()):
        firsts, skipped, stop = firsts[:1], skipped[:1], stop[:1]
    queries = torch.arange(i0, i1, device=device)[:, None]
    at = firsts + queries
    seen = (keys <= at) & (queries >= skipped) & (queries < stop)
    if cache.window is not None:
        seen &= keys > at - cache.window
    if step.mask is not None:
        kept = step.keep(rows, (first, last + 1))
        seen = seen & (kept if kept.shape[3] == 1 else kept[..., :: cache.ranks])
    return seen


def _blocks(
    step: DecodeInputs, cache: KVCache, spots: _Spots, rows: tuple[int, int], slots: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Queries in blocks whose part of the mask stays small."""
    i0, i1 = rows
    extent = step.extent
    cells = extent.batch * extent.heads * (slots[1] - slots[0]) * cache.ranks
    if (i1 - i0) * cells > TILE:
        # Most masks are alike for all heads, or for all rows of the batch: one query shows it.
        cells = max(1, _cells(step, cache, spots, (i0, i0 + 1), slots).numel() * cache.ranks)
    height = max(1, TILE // cells)
    for start in range(i0, i1, height):
        yield start, min(i1, start + height)
