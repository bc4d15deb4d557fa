"""`decode` with a sharded cache: each rank attends to its own tokens, and the partial results are merged by
log-sum-exp.

Only a result and a log-sum-exp for each query are sent, for any length of the context. Before that, while each rank
computes, the ranks compare their arguments, so that only results of the same call are merged.

Rank r of R has position j = s·R + r in slot s. A query at position p attends to the slots s ≤ (p − r) // R. Queries
that are R positions apart are one slot apart, like the queries of a chunk in an unsharded cache: the native kernel runs
the new queries in R strides, each of them causal, without a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
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
from ..cache.decode import FEW_SCORES, MAX_MASK_CELLS, native_reasons_against
from ..cache.inputs import DecodeInputs, read_decode_inputs
from ..cache.kv import Bounds
from ..errors import BackendRefused, Disagreement, OptionTypeError, complaint
from ..inputs import compute_dtype, fold_group, read_inputs, unfold_group
from ..masks import Dense, Mask
from ..similarity import AnySimilarity, Softmax
from . import consensus
from .cache import KVCache
from .inputs import Range, check_device
from .ring import merge_into
from .transfer import Axis, all_reduce

_UNBOUNDED = 1 << 62
_MAX_NUMBERS_SENT = 1 << 22  # in one message


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
    check: bool = False,
) -> Tensor:
    """Append n tokens to a sharded cache, and attend from them to all tokens in it.

    V'_i = Σ_r e^(lse_ri) V'_ri / Σ_r e^(lse_ri), where V'_ri and lse_ri are the result and the log-sum-exp of rank r
    over its own tokens; a sink is added once. With `Argmax` the best of the ranks' best keys is taken, the lowest
    position among equals.

    Every rank makes the same call with the same tokens and gets the same bits. Each rank sends
    batch · heads_q · n · (value_width + 1) numbers to each other rank, or, from 8 ranks on, to ⌈log₂ R⌉ of them, for
    any length of the context. Edge cases are as in `qkv.decode`.

    Args:
        query: all new queries (batch, heads_q, n, width).
        key: all new keys (batch, heads_kv, n, width).
        value: all new values (batch, heads_kv, n, value_width).
        cache: a `qkv.parallel.KVCache`.
        similarity, mask, bias, lengths, padding: as in `qkv.decode`, over the whole context.
        check: also compare the numbers of query, key and value, padding included, between ranks, in a second message.
            They may differ by rounding.

    Returns:
        The result for all queries, (batch, heads_q, n, value_width).

    Raises:
        Disagreement: on every rank, if arguments or lengths of caches, with `check` also tokens, differ between ranks.
        PeerLost: if a rank is lost or does not respond in time. After any error the cache is unchanged.
    """
    cache = _check_cache(cache)
    with cache._local.lock:
        axis = cache._axis
        with consensus.sharing_errors(axis):
            step = read_decode_inputs(query, key, value, cast(Any, cache), similarity, mask, bias, lengths, padding)
            check_device(axis, step.query)
            _check_similarity(step)
            cache._check_capacity(step.extent.len_q if step.counts is None else step.counts)
            arguments = {
                "call": "decode",
                "query": f"{tuple(step.query.shape)} {consensus.dtype_text(step.query.dtype)}",
                "cache": repr(cache),
                "lengths of the cache": str(step.past.tolist()),
                "similarity": consensus.similarity_text(step.similarity),
                "mask": consensus.mask_text(mask),
                "bias": "None" if bias is None else consensus.value_text(bias),
                "lengths": "None" if step.counts is None else str(step.counts.tolist()),
                "padding": padding,
            }
            partial = _PartialResult(step, cache.value_width)
        with torch.no_grad():
            return _run(step, cache, partial, consensus.start_agreement(axis, arguments), check)


def _check_similarity(step: DecodeInputs) -> None:
    if step.score_rule is not None:
        reason = "a function of scores is given the whole sequence, of which a rank has a part"
        raise BackendRefused(complaint("bias", "a function", "a tensor in qkv.parallel", reason), (reason,))
    if step.forgetting is not None:
        reason = "a rank does not have the gates of the others"
        given = f"{step.similarity!r} with log_decay"
        raise BackendRefused(complaint("similarity", given, "no log_decay in qkv.parallel", reason), (reason,))
    if not step.similarity.has_lse and not step.is_argmax:
        reason = "parts of ranks are merged by their log-sum-exp, or by the best score"
        given = f"{step.similarity!r} with a qkv.parallel.KVCache"
        raise BackendRefused(complaint("similarity", given, "Softmax or Argmax", reason), (reason,))


def _run(step: DecodeInputs, cache: KVCache, partial: _PartialResult, agree: Callable[[], Any], check: bool) -> Tensor:
    """Write, attend, finish the agreement and merge; only then make the new tokens visible."""
    own, failure = None, None
    try:
        try:
            own = cache._local_tokens(step.key, step.value, step.counts, step.left)
            _append_and_attend(step, cache, own, partial)
        except BaseException as error:  # the other ranks wait for the result: send them the failure
            failure = error
        agree()
        if check:
            tensors = {"query": step.query, "key": step.key, "value": step.value}
            consensus.compare_numbers(cache._axis, {"call": "the tokens of decode"}, tensors)
        out = partial.merge(cache._axis, failure)
    except BaseException:
        cache._local.cancel()
        raise
    if own is not None and own[0].shape[2]:
        cache._local.commit(own[0], own[2])
    cache._publish(step.key, step.counts)
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


def _append_and_attend(
    step: DecodeInputs, cache: KVCache, own: tuple[Tensor, Tensor, np.ndarray | None], partial: _PartialResult
) -> None:
    """Write this rank's new tokens, not visible yet, and attend to all tokens of this rank."""
    key, value, counts = own
    if key.shape[2]:
        cache._local.reserve(key.shape[2], counts)
        cache._local.write(key, value, counts, False)
    no_queries = step.extent.len_q == 0 or (step.counts is not None and not step.counts.any())
    if no_queries or not cache._slots(step.extent.len_k):
        return
    if step.is_argmax or native_reasons_against(step, cache._local.format):
        _attend_torch(step, cache, partial)
    else:
        _attend_native(step, cache, partial)


class _PartialResult:
    """The result of a rank over its own tokens: out and log-sum-exp of each query, or for Argmax out, the best score
    and its position."""

    def __init__(self, step: DecodeInputs, value_width: int) -> None:
        self.step, shape = step, step.query.shape[:3]
        # float64 stores positions up to 2^53 exactly.
        dtype = torch.float64 if step.is_argmax else compute_dtype(step.query.dtype)
        self.out = step.query.new_zeros((*shape, value_width), dtype=dtype)
        self.lse = step.query.new_full(shape, NEG_INF, dtype=dtype)
        self.at = torch.zeros_like(self.lse) if step.is_argmax else None
        # Allocated here, where the other ranks can still be told if it fails.
        self.answer = step.query.new_empty(self.out.shape)

    def merge(self, axis: Axis, failure: BaseException | None) -> Tensor:
        """The merged result of all ranks: some rows at a time, to bound the memory of messages."""
        width, rows = self.out.shape[3], self.lse.numel()
        columns = [t.reshape(rows, -1) for t in (self.out, self.lse, self.at) if t is not None]
        failed, sink = self.out.new_zeros(axis.size), self._sink()
        failed[axis.rank] = float(failure is not None)
        height = max(1, _MAX_NUMBERS_SENT // (width + 2))
        for first in range(0, max(1, rows), height):
            own = torch.cat([column[first : first + height] for column in columns], 1)
            message = torch.cat([own.flatten(), failed]).to(axis.device)
            message = all_reduce(axis, message, lambda every, shape=own.shape: self._reduce(every, shape))
            _raise_failures(axis, message[own.numel() :], failure)
            found = message[: own.numel()].view(own.shape).to(self.out.device)
            out, score = found[:, :width], found[:, width]
            if self.at is not None:  # NaN where a score is NaN, and 0 where no key is attended
                out = torch.where(score[:, None] == NEG_INF, 0.0, out).masked_fill(score[:, None].isnan(), torch.nan)
            elif sink is not None:  # another part, whose value is 0
                merge_into(out, score, torch.zeros_like(out), sink[first : first + height])
            self.answer.view(-1, width)[first : first + height] = out
        return self.answer

    def _reduce(self, every: list[Tensor], shape: torch.Size) -> Tensor:
        """Merge the messages of several ranks into one."""
        parts = [each[: shape.numel()].view(shape) for each in every]
        failed = torch.stack([each[shape.numel() :] for each in every]).sum(0)  # each rank fills another number
        return torch.cat([reduce(_merged if self.at is None else _best, parts).flatten(), failed])

    def _sink(self) -> Tensor | None:
        """The sink of each row of the result."""
        sink = getattr(self.step.similarity, "sink", None)
        if sink is None:
            return None
        sink = torch.as_tensor(sink, dtype=self.out.dtype, device=self.out.device).detach()
        return sink.reshape(-1, 1).expand(self.lse.shape).reshape(-1)


def _merged(one: Tensor, other: Tensor) -> Tensor:
    """Out and log-sum-exp, in the last column, of two ranks."""
    one = one.clone()
    merge_into(one[:, :-1], one[:, -1], other[:, :-1], other[:, -1])
    return one


def _best(one: Tensor, other: Tensor) -> Tensor:
    """Out, score and position of the rank with the larger score, the lowest position among equals. NaN counts as the
    largest."""
    (score, at), (new, new_at) = one[:, -2:].unbind(1), other[:, -2:].unbind(1)
    better = (new > score) | ((new == score) & (new_at < at)) | new.isnan()
    return torch.where((better & ~score.isnan())[:, None], other, one)


def _raise_failures(axis: Axis, failed: Tensor, failure: BaseException | None) -> None:
    if failure is not None:
        raise failure
    ranks = failed.nonzero().flatten().tolist()
    if ranks:
        hint = "the cache is unchanged on every rank; see the output of that rank"
        raise Disagreement(f"axis {axis.name!r}, rank {axis.rank}: {consensus.list_ranks(ranks)} failed. Hint: {hint}.")


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


def _attend_native(step: DecodeInputs, cache: KVCache, partial: _PartialResult) -> None:
    """Run the native kernel on this rank's pages: on every R-th query, whose diagonal advances by one slot, as in an
    unsharded cache."""
    n, ranks, slots = step.extent.len_q, cache.ranks, int(cache._slots(step.extent.len_k))
    positions, limit, view = _query_positions(step), _lower_limit(step, cache), cache._local.view()
    # Rows at different positions modulo the ranks have no common limit in slots.
    if n > ranks and limit != -_UNBOUNDED and (positions.first % ranks != positions.first[0] % ranks).any():
        limit = None
    bias = _bias_of_slots(step, cache)
    bias = None if bias is None else bias.to(torch.float32).resolve_neg()
    query = step.query.detach().resolve_neg().to(torch.float32)
    assert isinstance(step.similarity, Softmax)
    scale, softcap = step.similarity.scale_for(cache.width), step.similarity.softcap or 0.0
    blocks = [(slice(0, n), None)] if limit is not None else _masked_blocks(step, cache, positions, (0, slots))
    for block, keep in blocks:
        for first in range(block.start, min(block.stop, block.start + ranks)):
            rows = slice(first, block.stop, ranks)
            part = query[:, :, rows]
            scores = (*part.shape[:3], slots)
            kept = None if keep is None else keep[:, :, first - block.start :: ranks].expand(scores)
            added = bias if bias is None or bias.shape[2] == 1 else bias[:, :, rows]
            added = None if added is None else added.expand(scores)
            at, counts, bounds = _slots_of_queries(cache, positions, rows, part.shape[2], limit)
            counts = None if step.counts is None else counts
            out, lse = part.new_empty((*part.shape[:3], cache.value_width)), part.new_empty(part.shape[:3])
            options: dict[str, Any] = {"left": step.left, "lse": lse, "keep": kept, "bias": added}
            view.attend(part, out, at, counts=counts, bounds=bounds, scale=scale, softcap=softcap, **options)
            partial.out[:, :, rows], partial.lse[:, :, rows] = out, lse


def _lower_limit(step: DecodeInputs, cache: KVCache) -> int | None:
    """The first key that a query attends to, relative to its position; None if the mask is not only such a limit."""
    band = step.band
    if band is None or band.starts is not None or band.stops is not None or (band.upper or 0) < 0:
        return None
    window = None if cache.window is None else 1 - cache.window
    return max([-_UNBOUNDED, *(limit for limit in (band.lower, window) if limit is not None)])


def _slots_of_queries(
    cache: KVCache, positions: _QueryPositions, rows: slice, count: int, limit: int | None
) -> tuple[np.ndarray, np.ndarray, Bounds]:
    """For a stride of queries the slot of the first real one of each row, their number, and the limit in slots."""
    ranks = cache.ranks
    # The real queries of this stride are begin[b] to end[b] - 1.
    begin = np.clip(-((rows.start - positions.skipped) // ranks), 0, count)
    end = np.clip(-((rows.start - positions.stop) // ranks), begin, count)
    # From this rank's first token to the first query.
    distance = positions.first + rows.start + begin * ranks - cache._axis.rank
    slots, counts = np.ascontiguousarray(distance // ranks), np.ascontiguousarray(end - begin)
    if limit is None or limit == -_UNBOUNDED:
        return slots, counts, Bounds()
    limits = -((slots * ranks - distance - limit) // ranks)
    if (limits == limits[0]).all():
        return slots, counts, Bounds(lower=int(limits[0]))
    return slots, counts, Bounds(starts=np.ascontiguousarray(slots + limits))  # one query in a row has the row's limit


def _attend_torch(step: DecodeInputs, cache: KVCache, partial: _PartialResult) -> None:
    """Attend without the native kernel, row by row. With Argmax, lse is the best score and `at` the position of the
    first key that has it."""
    view, dtype, positions = cache._local.view(), compute_dtype(step.query.dtype), _query_positions(step)
    bias, ends = _bias_of_slots(step, cache), cache._slots(positions.first + positions.stop).tolist()
    with torch.autocast(step.query.device.type, enabled=False):
        for row, (first, end) in enumerate(zip(view.starts.tolist(), ends, strict=True)):
            if first >= end:
                continue
            key, value = (t.to(step.query.device, dtype) for t in view.read(slice(row, row + 1), first, end))
            added = None if bias is None else _select_row(bias, row).to(dtype)
            added = added if added is None or added.shape[3] == 1 else added[..., first:end]
            for rows, keep in _masked_blocks(step, cache, positions, (first, end)):
                block = slice(row, row + 1), slice(None), rows
                query, keep = step.query.detach()[block].to(dtype), _select_row(keep, row)
                if partial.at is not None:
                    scores = resolve_ties(dot_products(query, key).masked_fill(~keep, NEG_INF), query, key)
                    partial.lse[block], index = scores.max(-1)  # the first of equals; NaN is the largest
                    chosen = fold_group(index[..., None], key.shape[1]).expand(-1, -1, -1, value.shape[3])
                    partial.out[block] = unfold_group(value.gather(2, chosen), query.shape[1])
                    partial.at[block] = (index + first) * cache.ranks + cache._axis.rank
                    continue
                assert isinstance(step.similarity, Softmax)
                similarity = Softmax(step.similarity.scale, step.similarity.softcap)
                part = added if added is None or added.shape[2] == 1 else added[:, :, rows]
                backend = "reference" if query.shape[:3].numel() * (end - first) <= FEW_SCORES else "auto"
                call = read_inputs(query, key, value, similarity, Dense(keep), part, 0.0, backend, True, False)
                partial.out[block], partial.lse[block] = choose(call).run(call)[:2]  # pyright: ignore[reportArgumentType]


def _select_row(tensor: Tensor, row: int) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[row : row + 1]


def _bias_of_slots(step: DecodeInputs, cache: KVCache) -> Tensor | None:
    """The bias of this rank's tokens."""
    bias = step.bias
    return bias if bias is None or bias.shape[3] == 1 else bias.detach()[..., cache._axis.rank :: cache.ranks]


def _masked_blocks(
    step: DecodeInputs, cache: KVCache, positions: _QueryPositions, slots: Range
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of queries with a small part of the mask, and that."""
    n, height = step.extent.len_q, 1
    if n > 1:  # most masks are the same for all heads or batch rows: evaluate one query to see it
        cells = _attended_slots(step, cache, positions, (0, 1), slots).numel() * cache.ranks
        height = max(1, MAX_MASK_CELLS // max(1, cells))
    for first in range(0, n, height):
        rows = first, min(n, first + height)
        yield slice(*rows), _attended_slots(step, cache, positions, rows, slots)


def _attended_slots(
    step: DecodeInputs, cache: KVCache, positions: _QueryPositions, rows: Range, slots: Range
) -> Tensor:
    """Which of this rank's tokens each new query attends to: (batch or 1, heads or 1, queries, slots)."""
    device, ranks = step.query.device, cache.ranks
    first, last = (slot * ranks + cache._axis.rank for slot in (slots[0], slots[1] - 1))
    keys = torch.arange(first, last + 1, ranks, device=device)
    firsts, skipped, stop = (torch.from_numpy(a).to(device)[:, None, None, None] for a in positions)
    if step.counts is None and bool((firsts == firsts[0]).all()):
        firsts, skipped, stop = firsts[:1], skipped[:1], stop[:1]
    queries = torch.arange(*rows, device=device)[:, None]
    at = firsts + queries
    attended = (keys <= at) & (queries >= skipped) & (queries < stop)
    if cache.window is not None:
        attended &= keys > at - cache.window
    if step.mask is not None:
        kept = step.keep(rows, (first, last + 1))
        attended = attended & (kept if kept.shape[3] == 1 else kept[..., ::ranks])
    return attended
