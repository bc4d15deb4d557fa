"""`decode` with a sharded cache: each rank attends to its own tokens, and the partial results are merged by
log-sum-exp.

Only a result and a log-sum-exp for each query are sent, for any length of the context. Before that, while each rank
computes, the ranks compare their arguments, so that only results of the same call are merged.

Rank r of R has position j = s·R + r in slot s. A query at position p attends to the slots s ≤ (p − r) // R. Queries
that are R positions apart are one slot apart, like the queries of a chunk in an unsharded cache: the native kernel runs
the new queries in R strides, each of them causal, without a mask.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..backends.argmax import resolve_ties
from ..backends.base import NEG_INF, RUNS
from ..backends.dispatch import choose
from ..backends.reference import dot_products
from ..cache import KVCache as LocalCache
from ..cache import LinearState
from ..cache.decode import _FEW_SCORES, MAX_MASK_CELLS, native_reasons_against
from ..cache.pages import PAGE, from_storage
from ..errors import BackendRefused, Disagreement, OptionError, OptionTypeError, QkvError, complaint
from ..inputs import DecodeInputs, compute_dtype, fold_group, read_decode_inputs, read_inputs, unfold_group
from ..masks import Band, Dense, Mask
from ..ops.kernels import DTYPE_CODE, NO_STRIDES, cache_attend
from ..similarity import AnySimilarity, Softmax
from .cache import KVCache
from .consensus import PendingAgreement, agree, finish_agreement, start_agreement
from .fingerprint import Fingerprint, fingerprint, mask_text, similarity_text, token_phases, value_text
from .transfer import Axis, all_reduce

_UNBOUNDED = 1 << 62
_TOKENS_AT_ONCE = 64 * PAGE  # without the native kernel
_MAX_NUMBERS_SENT = 1 << 22  # in one message
# The relative difference of fingerprints that is accepted: more than rounding causes in a deep model (a few ulp), less
# than one different token causes in a chunk of hundreds.
_TOLERANCE, _TOLERANCE_ULPS = 0.01, 8
_COMPARED = ("query", "key", "value", "the cache's tokens")  # three numbers each
_TRAILER = 1 + 3 * len(_COMPARED)  # numbers after a partial result: a failure flag and the fingerprints


def merge_by_lse(parts: list[tuple[Tensor, Tensor]], sink: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Σ_r e^(lse_r) out_r / (Σ_r e^(lse_r) + e^sink) and the logarithm of the denominator, in the order of the parts.

    out_r (…, n, value_width), lse_r (…, n); sink broadcasts to lse. An empty part is 0 with an lse of −∞; if all are
    empty, the result is 0. Non-finite numbers of a part stay non-finite, however small its weight is.

    >>> one, three = (torch.tensor([[1.0]]), torch.tensor([0.0])), (torch.tensor([[3.0]]), torch.tensor([0.0]))
    >>> merge_by_lse([one, three])
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


class _QueryPositions(NamedTuple):
    """The positions of the new queries. first (batch,): the position of query 0, even if it is padding. The real
    queries of row b are skipped[b] to stop[b] - 1."""

    first: np.ndarray
    skipped: np.ndarray
    stop: np.ndarray


def _query_positions(step: DecodeInputs) -> _QueryPositions:
    n = step.extent.len_q
    skipped = np.zeros_like(step.past) if step.counts is None or not step.left else n - step.counts
    stop = np.full_like(step.past, n) if step.counts is None else skipped + step.counts
    return _QueryPositions(step.past - skipped, skipped, stop)


def attend_native(step: DecodeInputs, cache: KVCache, out: Tensor, lse: Tensor) -> None:
    """Run the native kernel on this rank's pages; float32 out (batch, heads_q, n, value_width), lse (batch, heads_q,
    n)."""
    n, ranks, slots = step.extent.len_q, cache.ranks, int(cache._slots(step.extent.len_k))
    positions, band = _query_positions(step), step.band
    if band is not None and cache.window is not None:
        band = band.intersect(Band(lower=1 - cache.window))
    uneven = bool((positions.first % ranks != positions.first[0] % ranks).any())
    # Rows at different positions modulo the ranks have no common diagonal in slots.
    if band is not None and uneven and band.is_diagonal and n > ranks:
        band = None
    bias = _bias_of_slots(step, cache, (0, slots))
    bias = None if bias is None else bias.to(torch.float32).resolve_neg()
    query = step.query.detach().resolve_neg().to(torch.float32)
    for i0, i1 in [(0, n)] if band is not None else _query_blocks(step, cache, positions, (0, n), (0, slots)):
        keep = None if band is not None else _attended_slots(step, cache, positions, (i0, i1), (0, slots))
        for first in range(i0, min(i1, i0 + ranks)):
            rows = slice(first, i1, ranks)
            kept = None if keep is None else keep[:, :, first - i0 :: ranks]
            added = bias if bias is None or bias.shape[2] == 1 else bias[:, :, rows]
            _attend_strided(step, cache, positions, band, query, rows, (kept, added), (out, lse))


def _attend_strided(
    step: DecodeInputs,
    cache: KVCache,
    positions: _QueryPositions,
    band: Band | None,
    query: Tensor,
    rows: slice,
    keep_and_bias: tuple[Tensor | None, Tensor | None],
    results: tuple[Tensor, Tensor],
) -> None:
    """Run the kernel on every R-th query: their diagonal advances by one slot, as in an unsharded cache."""
    assert cache_attend is not None
    assert isinstance(step.similarity, Softmax)
    rank, ranks, local = cache._axis.rank, cache.ranks, cache._local
    part = query[:, :, rows]
    count = part.shape[2]
    # The real queries of this stride are begin[b] to end[b] - 1.
    begin = np.clip(_ceil_div(positions.skipped - rows.start, ranks), 0, count)
    end = np.clip(_ceil_div(positions.stop - rows.start, ranks), begin, count)
    counts = np.ascontiguousarray(end - begin)
    distance = positions.first + rows.start + begin * ranks - rank
    query_slots = np.ascontiguousarray(distance // ranks)
    starts, stops, lower, upper = _band_in_slots(band, cache, distance, query_slots)
    whole = count == query.shape[2]
    out, lse = results if whole else [part.new_empty((*part.shape[:3], *result.shape[3:])) for result in results]
    scores = (*part.shape[:3], int(cache._slots(step.extent.len_k)))
    keep, bias = (None if tensor is None else tensor.expand(scores) for tensor in keep_and_bias)
    cache_attend(
        *local._layout.native_args,
        local._table.address,
        local._table.slots,
        DTYPE_CODE[torch.float32],
        part.shape,
        part.data_ptr(),
        part.stride(),
        out.data_ptr(),
        lse.data_ptr(),
        query_slots.ctypes.data,
        0 if step.counts is None else counts.ctypes.data,
        step.left,
        local.window or 0,
        0 if starts is None else starts.ctypes.data,
        0 if stops is None else stops.ctypes.data,
        lower,
        upper,
        0 if keep is None else keep.data_ptr(),
        NO_STRIDES if keep is None else keep.stride(),
        0 if bias is None else bias.data_ptr(),
        NO_STRIDES if bias is None else bias.stride(),
        step.similarity.scale_for(cache.width),
        step.similarity.softcap or 0.0,
        0,
        False,
        torch.get_num_threads(),
    )
    if not whole:
        results[0][:, :, rows], results[1][:, :, rows] = out, lse


def _band_in_slots(
    band: Band | None, cache: KVCache, distance: np.ndarray, query_slots: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None, int | None, int | None]:
    """The band in slots: starts and stops of each row, lower and upper relative to the slot of a query. distance
    (batch,): from this rank's first token to the first query, whose slot is `query_slots`."""
    if band is None:
        return None, None, None, None
    rank, ranks = cache._axis.rank, cache.ranks
    starts, stops = (
        None
        if limits is None
        else _ceil_div(np.array([_clamp(limit) for limit in limits], dtype=np.int64) - rank, ranks)
        for limits in (band.starts, band.stops)
    )
    remainder = distance - query_slots * ranks
    lower, upper = (
        None if limit is None else _ceil_div(remainder + _clamp(limit), ranks) for limit in (band.lower, band.upper)
    )
    if (remainder == remainder[0]).all():
        return starts, stops, None if lower is None else int(lower[0]), None if upper is None else int(upper[0])
    # One query in a row: its limits are those of the row.
    if lower is not None:
        starts = query_slots + lower if starts is None else np.maximum(starts, query_slots + lower)
    if upper is not None:
        stops = query_slots + upper if stops is None else np.minimum(stops, query_slots + upper)
    return starts, stops, None, None


def _clamp(limit: int) -> int:
    return max(-_UNBOUNDED, min(_UNBOUNDED, limit))


def _ceil_div(number: np.ndarray, ranks: int) -> np.ndarray:
    """⌈number / ranks⌉."""
    return -(-number // ranks)


def attend_torch(step: DecodeInputs, cache: KVCache, out: Tensor, lse: Tensor, at: Tensor | None) -> None:
    """Attend without the native kernel, in pieces of the cache. With Argmax, lse is the best score and `at` the
    position of the first key that has it."""
    local, dtype = cache._local, compute_dtype(step.query.dtype)
    positions, ranks = _query_positions(step), cache.ranks
    ends = cache._slots(positions.first + positions.stop)
    equal_rows = (ends == ends[0]).all() and (local._table.first == local._table.first[0]).all()
    with torch.autocast(step.query.device.type, enabled=False):
        for rows in [slice(0, len(ends))] if equal_rows else [slice(b, b + 1) for b in range(len(ends))]:
            first, stop = int(local._table.first[rows.start]) * PAGE, int(ends[rows.start])
            for lo in range(first, stop, _TOKENS_AT_ONCE):
                hi = min(stop, lo + _TOKENS_AT_ONCE)
                pairs = [from_storage(local._read(row, lo, hi)) for row in range(rows.start, rows.stop)]
                key, value = (torch.stack(ts).to(step.query.device, dtype) for ts in zip(*pairs, strict=True))
                bias = _bias_of_slots(step, cache, (lo, hi))
                for i0, i1 in _query_blocks(step, cache, positions, (0, step.extent.len_q), (lo, hi)):
                    block = rows, slice(None), slice(i0, i1)
                    query = step.query.detach()[block].to(dtype)
                    keep = _select_rows(_attended_slots(step, cache, positions, (i0, i1), (lo, hi)), rows)
                    if at is not None:
                        _update_best(query, key, value, keep, (out[block], lse[block], at[block]), lo)
                        continue
                    added = None if bias is None else _select_rows(bias, rows).to(dtype)
                    added = added if added is None or added.shape[2] == 1 else added[:, :, i0:i1]
                    backend = "reference" if query.shape[:3].numel() * (hi - lo) <= _FEW_SCORES else "auto"
                    assert isinstance(step.similarity, Softmax)
                    similarity = Softmax(step.similarity.scale, step.similarity.softcap)
                    call = read_inputs(query, key, value, similarity, Dense(keep), added, 0.0, backend, True, False)
                    more = choose(call).run(call)
                    assert more.lse is not None
                    merged = merge_by_lse([(out[block], lse[block]), (more.out.to(dtype), more.lse.to(dtype))])
                    out[block], lse[block] = merged
    if at is not None:
        at.mul_(ranks).add_(cache._axis.rank)


def _update_best(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor, best: tuple[Tensor, Tensor, Tensor], lo: int
) -> None:
    """Store score, slot and value of the keys of this piece that score higher than all before. NaN stays."""
    out, score, at = best
    scores = resolve_ties(dot_products(query, key).masked_fill(~keep, NEG_INF), query, key)
    found, index = scores.max(-1)  # the first of equals; NaN is the largest
    heads, heads_kv = query.shape[1], key.shape[1]
    chosen = fold_group(index[..., None], heads_kv).expand(-1, -1, -1, value.shape[3])
    values = unfold_group(value.gather(2, chosen), heads)
    better = (found > score) | found.isnan()
    out.copy_(torch.where(better[..., None], values, out))
    at.copy_(torch.where(better, index + lo, at))
    score.copy_(torch.where(better, found, score))


def _select_rows(tensor: Tensor, rows: slice) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[rows]


def _bias_of_slots(step: DecodeInputs, cache: KVCache, slots: tuple[int, int]) -> Tensor | None:
    """The bias of this rank's tokens in these slots."""
    bias = step.bias
    if bias is None or bias.shape[3] == 1:
        return bias
    return bias.detach()[..., cache._axis.rank :: cache.ranks][..., slots[0] : slots[1]]


def _attended_slots(
    step: DecodeInputs, cache: KVCache, positions: _QueryPositions, rows: tuple[int, int], slots: tuple[int, int]
) -> Tensor:
    """Which of this rank's tokens each new query attends to: (batch or 1, heads or 1, queries, slots)."""
    (i0, i1), (lo, hi), device = rows, slots, step.query.device
    first, last = lo * cache.ranks + cache._axis.rank, (hi - 1) * cache.ranks + cache._axis.rank
    keys = torch.arange(first, last + 1, cache.ranks, device=device)
    firsts, skipped, stop = (torch.from_numpy(a).to(device)[:, None, None, None] for a in positions)
    if step.counts is None and bool((firsts == firsts[0]).all()):
        firsts, skipped, stop = firsts[:1], skipped[:1], stop[:1]
    queries = torch.arange(i0, i1, device=device)[:, None]
    at = firsts + queries
    attended = (keys <= at) & (queries >= skipped) & (queries < stop)
    if cache.window is not None:
        attended &= keys > at - cache.window
    if step.mask is not None:
        kept = step.keep(rows, (first, last + 1))
        attended = attended & (kept if kept.shape[3] == 1 else kept[..., :: cache.ranks])
    return attended


def _query_blocks(
    step: DecodeInputs, cache: KVCache, positions: _QueryPositions, rows: tuple[int, int], slots: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Blocks of queries with a small part of the mask."""
    i0, i1 = rows
    extent = step.extent
    cells = extent.batch * extent.heads * (slots[1] - slots[0]) * cache.ranks
    if (i1 - i0) * cells > MAX_MASK_CELLS:
        # Most masks are the same for all heads or batch rows: evaluate one query to see it.
        cells = max(1, _attended_slots(step, cache, positions, (i0, i0 + 1), slots).numel() * cache.ranks)
    height = max(1, MAX_MASK_CELLS // cells)
    for start in range(i0, i1, height):
        yield start, min(i1, start + height)


def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: KVCache,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    lengths: Any = None,
    padding: str = "right",
) -> Tensor:
    """Append n tokens to a sharded cache, and attend from them to all tokens in it.

    V'_i = Σ_r e^(lse_ri) V'_ri / Σ_r e^(lse_ri), where V'_ri and lse_ri are the result and the log-sum-exp of rank r
    over its own tokens; a sink is added once. With `Argmax` the best of the ranks' best keys is taken, the lowest
    position among equals.

    Every rank makes the same call with the same tokens and gets the same bits. Each rank sends
    batch · heads_q · n · (value_width + 1) numbers, and 13 · R that compare the tokens, to each other rank, or, from 8
    ranks on, to ⌈log₂ R⌉ of them, for any length of the context. Edge cases are as in `qkv.decode`.

    Args:
        query: all new queries (batch, heads_q, n, width).
        key: all new keys (batch, heads_kv, n, width).
        value: all new values (batch, heads_kv, n, value_width).
        cache: a `qkv.parallel.KVCache`.
        similarity, mask, bias, lengths, padding: as in `qkv.decode`, over the whole context.

    Returns:
        The result for all queries, (batch, heads_q, n, value_width).

    Raises:
        Disagreement: on every rank, if arguments, tokens or caches differ between ranks. Tokens may differ by rounding:
            1 % of their norm (bfloat16: 6 %).
        PeerLost: if a rank is lost or does not respond in time. After any error the cache is unchanged.
    """
    cache = _check_cache(cache)
    with cache._lock:
        axis = cache._axis
        try:
            step = read_decode_inputs(query, key, value, cast(Any, cache), similarity, mask, bias, lengths, padding)
            _check_device(step, axis)
            cache._check_capacity(step.extent.len_q if step.counts is None else step.counts)
            arguments = _shared_arguments(step, cache, mask, bias, padding)
            partial = _PartialResult(step, cache)
        except (QkvError, MemoryError, RuntimeError, TypeError, ValueError) as error:
            agree(axis, error)  # raises it
            raise
        with torch.no_grad():
            return _run(step, cache, partial, start_agreement(axis, arguments))


def _run(step: DecodeInputs, cache: KVCache, partial: _PartialResult, agreement: PendingAgreement) -> Tensor:
    """Write, attend, finish the agreement and merge; only then make the new tokens visible."""
    axis, own, failure = cache._axis, None, None
    try:
        try:
            own = cache._local_tokens(step.key, step.value, step.counts, step.left)
            _append_and_attend(step, cache, own, partial)
        except BaseException as error:  # the other ranks wait for the result: send them the failure
            failure = error
            partial.fail()
        finish_agreement(agreement)
        out = partial.merge(axis, failure)
    except BaseException:
        cache._local._unreserve()
        raise
    assert own is not None
    if own[0].shape[2]:
        cache._local._publish(own[0], own[2])
    cache._publish(step.key, step.counts)
    cache._mark_compared(partial.mark)
    RUNS["parallel.decode"] += 1
    return out


def _check_cache(cache: object) -> KVCache:
    if isinstance(cache, KVCache):
        return cache
    if isinstance(cache, LinearState):
        reason = "the size of a LinearState does not depend on the context, so that every rank can store the whole"
        hint = "call qkv.decode with it on each rank"
        message = complaint("cache", "a LinearState", "a qkv.parallel.KVCache", f"{reason}; {hint}")
        raise BackendRefused(message, (reason,))
    hint = "call qkv.decode with a qkv.KVCache" if isinstance(cache, LocalCache) else ""
    raise OptionTypeError(complaint("cache", type(cache).__name__, "a qkv.parallel.KVCache", hint))


def _check_device(step: DecodeInputs, axis: Axis) -> None:
    if step.query.device.type != axis.device.type:
        given, wanted = f"a tensor on {step.query.device}", f"a tensor on the mesh's {axis.device.type}"
        raise OptionError(complaint("query", given, wanted))


def _shared_arguments(
    step: DecodeInputs, cache: KVCache, mask: Mask | None, bias: Tensor | None, padding: str
) -> dict[str, str]:
    counts = "None" if step.counts is None else str(step.counts.tolist())
    return {
        "call": "decode",
        "query": f"{tuple(step.query.shape)} {str(step.query.dtype).removeprefix('torch.')}",
        "cache": repr(cache),
        "lengths of the cache": str(cache._lengths.tolist()),
        "history of the cache": cache._histories[-1].events,
        "similarity": similarity_text(step.similarity),
        "mask": mask_text(mask),
        "bias": "None" if bias is None else value_text(bias),
        "lengths": counts,
        "padding": padding,
    }


class _PartialResult:
    """The result of a rank over its own tokens: out and log-sum-exp of each query, or for Argmax out, the best score
    and its position; a failure flag, and the fingerprints of its tokens."""

    def __init__(self, step: DecodeInputs, cache: KVCache) -> None:
        self.step = step
        # float64 stores positions up to 2^53 exactly.
        options = {
            "dtype": torch.float64 if step.is_argmax else compute_dtype(step.query.dtype),
            "device": step.query.device,
        }
        shape = step.query.shape[:3]
        self.out, self.lse = torch.zeros(*shape, cache.value_width, **options), torch.full(shape, NEG_INF, **options)
        self.at = torch.zeros(shape, **options) if step.is_argmax else None
        # Allocated here, where the other ranks can still be told if it fails.
        self.answer = step.query.new_empty(self.out.shape)
        self.trailer = torch.zeros(_TRAILER, **options)
        self.mark = ""
        if cache.ranks > 1:
            prints = *_fingerprints(step), cache._histories[-1].tokens
            numbers = [number for each in prints for number in (each.sum.real, each.sum.imag, each.norm)]
            self.trailer[1:] = torch.tensor(numbers, **options)

    def fail(self) -> None:
        self.trailer[0] = 1

    def merge(self, axis: Axis, failure: BaseException | None) -> Tensor:
        """The merged result of all ranks: some rows at a time, to bound the memory of messages."""
        shape, width = self.out.shape, self.out.shape[3]
        tensors = [t.reshape(-1, w) for t, w in ((self.out, width), (self.lse, 1), (self.at, 1)) if t is not None]
        rows, sink = shape[:3].numel(), self._sink()
        height = max(1, _MAX_NUMBERS_SENT // (width + len(tensors) - 1))
        trailers = self.trailer.new_zeros(axis.size, _TRAILER)
        trailers[axis.rank] = self.trailer
        for first in range(0, max(1, rows), height):
            own = [t[first : first + height] for t in tensors]
            sizes = [*(t.numel() for t in own), trailers.numel()]
            flat = torch.cat([*(t.reshape(-1) for t in own), trailers.reshape(-1)]).to(axis.device)
            found = all_reduce(axis, flat, lambda every, sizes=sizes: self._reduce(every, sizes)).to(self.out.device)
            out, *others, end = found.split(sizes)
            if first == 0:
                every = end.view(-1, _TRAILER).tolist()
                _check_trailers(axis, every, failure, self.step.query.dtype)
                self.mark = hashlib.blake2b(repr(every).encode(), digest_size=6).hexdigest()
            part: Any = out.view(-1, width), *others
            if self.at is not None:
                out = _argmax_result(part)
            else:
                out, _ = merge_by_lse([part], None if sink is None else sink[first : first + height])
            self.answer.view(-1, width)[first : first + height] = out
        return self.answer

    def _reduce(self, every: list[Tensor], sizes: list[int]) -> Tensor:
        """Merge the messages of several ranks into one message."""
        width = self.out.shape[3]
        found = [each.split(sizes) for each in every]
        parts: list[Any] = [(out.view(-1, width), *others) for out, *others, _ in found]
        trailers = torch.stack([each[-1] for each in found]).sum(0)  # each rank fills another row
        whole = merge_by_lse(parts) if self.at is None else _best_of_ranks(parts)
        return torch.cat([*(t.reshape(-1) for t in whole), trailers])

    def _sink(self) -> Tensor | None:
        """The sink of each row of the result."""
        sink = self.step.similarity.sink if isinstance(self.step.similarity, Softmax) else None
        if sink is None:
            return None
        sink = torch.as_tensor(sink, dtype=self.out.dtype, device=self.out.device).detach()
        return sink.reshape(-1, 1).expand(self.lse.shape).reshape(-1)


def _best_of_ranks(parts: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Result, score and position of the rank with the largest score, the lowest position among equals. NaN counts as
    the largest."""
    out, score, at = parts[0]
    for other, other_score, other_at in parts[1:]:
        better = (other_score > score) | ((other_score == score) & (other_at < at)) | other_score.isnan()
        better &= ~score.isnan()
        out = torch.where(better[..., None], other, out)
        score, at = torch.where(better, other_score, score), torch.where(better, other_at, at)
    return out, score, at


def _argmax_result(best: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """NaN where a score is NaN, and 0 where no key is attended."""
    out, score, _ = best
    out = torch.where((score == NEG_INF)[..., None], 0.0, out)
    return torch.where(score.isnan()[..., None], torch.nan, out)


def _append_and_attend(
    step: DecodeInputs, cache: KVCache, own: tuple[Tensor, Tensor, np.ndarray | None], partial: _PartialResult
) -> None:
    """Write this rank's new tokens, not visible yet, and attend to all tokens of this rank."""
    key, value, counts = own
    if key.shape[2]:
        cache._local._reserve(key.shape[2], counts)
        cache._local._write(key, value, counts, False)
    no_queries = step.extent.len_q == 0 or (step.counts is not None and not step.counts.any())
    if no_queries or not cache._slots(step.extent.len_k):
        return
    if step.is_argmax or native_reasons_against(step):
        attend_torch(step, cache, partial.out, partial.lse, partial.at)
    else:
        attend_native(step, cache, partial.out, partial.lse)


def _check_trailers(axis: Axis, trailers: list[list[float]], failure: BaseException | None, dtype: torch.dtype) -> None:
    """Raise if a rank failed or if the fingerprints differ."""
    if failure is not None:
        raise failure
    failed = [rank for rank, (bad, *_) in enumerate(trailers) if bad]
    if failed:
        hint = "the cache is unchanged on every rank; see the output of that rank"
        raise Disagreement(f"axis {axis.name!r}, rank {axis.rank}: {_list_ranks(failed)} failed. Hint: {hint}.")
    tolerance = max(_TOLERANCE, _TOLERANCE_ULPS * torch.finfo(dtype).eps)
    prints = [[Fingerprint(complex(*end[i : i + 2]), end[i + 2]) for i in range(1, _TRAILER, 3)] for end in trailers]
    differing = {  # names and ranks
        name: others
        for at, name in enumerate(_COMPARED)
        if (others := [rank for rank, each in enumerate(prints) if _differ(each[at], prints[0][at], tolerance)])
    }
    if not differing:
        return
    parts = "; ".join(
        f"{name}: other numbers on {_list_ranks(others)} than on rank 0" for name, others in differing.items()
    )
    hint = "give every rank the same tokens: sample on one rank, or with the same seed on all"
    if [*differing] == [_COMPARED[-1]]:
        hint = "append the same tokens on every rank: crop or reset the cache, and append them again"
    where = f"axis {axis.name!r}, rank {axis.rank}"
    raise Disagreement(f"{where}: the ranks have different tokens. {parts}. Hint: {hint}.")


def _differ(one: Fingerprint, other: Fingerprint, tolerance: float) -> bool:
    if repr(one) == repr(other):  # NaN equals NaN
        return False
    return not max(abs(one.sum - other.sum), abs(one.norm - other.norm)) <= tolerance * max(one.norm, other.norm)


def _list_ranks(which: list[int]) -> str:
    return f"rank{'s' * (len(which) > 1)} {', '.join(map(str, which))}"


def _fingerprints(step: DecodeInputs) -> tuple[Fingerprint, Fingerprint, Fingerprint]:
    phases = token_phases(step.past, step.key, step.counts, step.left)
    return fingerprint(step.query, phases), fingerprint(step.key, phases), fingerprint(step.value, phases)
