"""`best`: argmax over a spread sequence. Queries travel; their best keys come back, and at the end one value for each.

Every rank finds the best of its own keys for the queries of every other. The owner of a query compares what comes back
by the same sums that found it, so that the answer is the one of a single process, near ties included. Only the
winner's value moves.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from ..backends.argmax import best_keys_of_part
from ..backends.base import RUNS, native_kernel_reasons
from ..backends.reference import NAN, Result
from ..inputs import compute_dtype, read_inputs
from ..similarity import Argmax
from .inputs import ShardedInputs, Shards
from .transfer import DATA, RESULTS, Axis, Message, Pending, start

_NO_KEY, _NAN_SCORE = -1, -2  # no key has a score above -inf; a NaN is among the scores


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    reasons = []
    if not isinstance(sharded.call.similarity, Argmax):
        reasons.append(f"only Argmax() has a single best key, not {type(sharded.call.similarity).__name__}")
    if sharded.call.return_weights:
        reasons.append("return_weights asks for the len_q x len_k matrix that best never makes")
    if sharded.call.backend not in ("auto", "argmax"):
        reasons.append(f"each rank runs the backend hard, not {sharded.call.backend}")
    return tuple(reasons)


def run(sharded: ShardedInputs) -> Result:
    RUNS["parallel.best"] += 1
    call = sharded.call
    return Result(_GatherBestValues.apply(sharded, call.query, call.key, call.value), None, None)  # pyright: ignore[reportArgumentType]


class _BestKeys(NamedTuple):
    """For each query, the best key so far and where it stands in the whole sequence, or _NONE or _LOST."""

    place: Tensor
    key: Tensor


class _GatherBestValues(torch.autograd.Function):
    """value[argmax_j q·k_j] over the keys of all ranks. Backward, the gradient of a query goes to the value that it
    took, whose owner adds up what comes in rank order; query and key get 0, for this is a step function of them."""

    @staticmethod
    def forward(ctx, sharded: ShardedInputs, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        index = _best_positions(sharded, query, key)
        asked = _requested_rows(sharded, index)
        ctx.axis, ctx.keys, ctx.asked, ctx.shapes = (
            sharded.axis,
            sharded.keys,
            asked,
            (query.shape, key.shape, value.shape),
        )
        ctx.save_for_backward(index)
        flat = value.reshape(-1, value.shape[3])
        out = torch.where((index == _NAN_SCORE).unsqueeze(-1), NAN, value.new_zeros((*index.shape, value.shape[3])))
        own = [_owned_by(sharded.keys, index, rank) for rank in range(sharded.axis.size)]
        arriving = [out.new_empty((int(took.sum()), value.shape[3])) for took in own]
        for took, part in zip(
            own, _all_to_all(sharded.axis, [flat[places] for places in asked], arriving), strict=True
        ):
            out[took] = part
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        axis: Axis = ctx.axis
        (index,) = ctx.saved_tensors
        leaving = [grad[_owned_by(ctx.keys, index, rank)] for rank in range(axis.size)]
        arriving = [grad.new_empty((len(places), grad.shape[3])) for places in ctx.asked]
        total = torch.zeros(ctx.shapes[2], dtype=compute_dtype(grad.dtype), device=grad.device)
        flat = total.view(-1, grad.shape[3])
        for places, part in zip(ctx.asked, _all_to_all(axis, leaving, arriving), strict=True):
            flat.index_add_(0, places, part.to(total.dtype))
        return None, grad.new_zeros(ctx.shapes[0]), grad.new_zeros(ctx.shapes[1]), total.to(grad.dtype)


def _best_positions(sharded: ShardedInputs, query: Tensor, key: Tensor) -> Tensor:
    """The global index of the best key of each of this rank's queries, (batch, heads, own queries)."""
    axis, native = sharded.axis, _uses_kernel(sharded)
    query = query.detach().contiguous()
    # The queries of the next rank come while those of this one are compared.
    coming = _exchange_queries(sharded, query, 1) if axis.size > 1 else None
    found = _best_local_keys(sharded, query, key, axis.rank, native)
    for step in range(1, axis.size):
        assert coming is not None
        queries, pending = coming
        pending.wait()
        coming = _exchange_queries(sharded, query, step + 1) if step + 1 < axis.size else None
        theirs = _best_local_keys(sharded, queries, key, axis.after(-step), native)
        other = _exchange_best(sharded, theirs, found, step)
        found = found if other is None else _better_of(query, found, other, native)
    return found.place


def _uses_kernel(sharded: ShardedInputs) -> bool:
    """Whether one process would let the kernel find the keys of the whole call."""
    if native_kernel_reasons(sharded.call):
        return False
    return sharded.mask is None or sharded.mask.band(sharded.extent) is not None


def _exchange_queries(sharded: ShardedInputs, query: Tensor, step: int) -> tuple[Tensor, Pending]:
    axis = sharded.axis
    to, of = axis.after(step), axis.after(-step)
    sends = [Message(to, query)] if _attends(sharded, axis.rank, to) else []
    queries = query.new_empty((*query.shape[:2], _query_count(sharded, of), query.shape[3]))
    receives = [Message(of, queries)] if _attends(sharded, of, axis.rank) else []
    return queries, start(axis, sends, receives, DATA)


def _exchange_best(sharded: ShardedInputs, theirs: _BestKeys, like: _BestKeys, step: int) -> _BestKeys | None:
    """Give another rank what was found for it, and take what a third found for us; None where it has nothing for us."""
    axis = sharded.axis
    to, of = axis.after(-step), axis.after(step)
    sends = [Message(to, each) for each in theirs] if _attends(sharded, to, axis.rank) else []
    if not _attends(sharded, axis.rank, of):
        start(axis, sends, [], RESULTS).wait()
        return None
    other = _BestKeys(*(torch.empty_like(each) for each in like))
    start(axis, sends, [Message(of, each) for each in other], RESULTS).wait()
    return other


def _attends(sharded: ShardedInputs, rank: int, of: int) -> bool:
    lo, hi = sharded.sees(of, sharded.queries.of(rank))
    return lo < hi


def _best_local_keys(sharded: ShardedInputs, query: Tensor, key: Tensor, rank: int, native: bool) -> _BestKeys:
    """The best of this rank's keys for the queries of a rank."""
    rows, first = sharded.queries.of(rank), sharded.own_keys[0]
    lo, hi = sharded.sees(sharded.axis.rank, rows)
    if lo == hi or not query.shape[2]:
        return _BestKeys(torch.full(query.shape[:3], _NO_KEY, device=query.device), torch.zeros_like(query))
    key = key.detach()[:, :, lo - first : hi - first]
    mask = None if sharded.mask is None else sharded.mask.part(sharded.extent, rows, (lo, hi))
    call = read_inputs(query, key, key, sharded.call.similarity, mask, None, 0.0, "argmax", False, False)
    best = best_keys_of_part(call, native)
    index = torch.where(best.has_nan, _NAN_SCORE, torch.where(best.empty, _NO_KEY, best.key_index + lo))
    return _BestKeys(index, _take_keys(key, best.key_index))


def _take_keys(tensor: Tensor, chosen: Tensor) -> Tensor:
    """tensor[b, g, chosen[b, h, i]] for g = h // group: (b, heads_q, r, n)."""
    batch, heads, _ = chosen.shape
    b = torch.arange(batch, device=chosen.device)[:, None, None]
    g = (torch.arange(heads, device=chosen.device) // (heads // tensor.shape[1]))[:, None]
    return tensor[b, g, chosen]


def _better_of(query: Tensor, one: _BestKeys, other: _BestKeys, native: bool) -> _BestKeys:
    """The better of two keys for each query; of equals the first in the sequence; _LOST if a NaN was met by either."""
    swapped = (other.place < one.place).unsqueeze(-1)
    pair = torch.stack((torch.where(swapped, other.key, one.key), torch.where(swapped, one.key, other.key)), dim=-2)
    second = _second_is_better(query, pair, native)
    takes_other = torch.where(other.place < one.place, ~second, second)
    takes_other = torch.where(one.place == _NO_KEY, True, torch.where(other.place == _NO_KEY, False, takes_other))
    index = torch.where(takes_other, other.place, one.place)
    index = torch.where((one.place == _NAN_SCORE) | (other.place == _NAN_SCORE), _NAN_SCORE, index)
    return _BestKeys(index, torch.where(takes_other.unsqueeze(-1), other.key, one.key))


def _second_is_better(query: Tensor, pair: Tensor, native: bool) -> Tensor:
    """Whether q·pair[1] > q·pair[0]. Where that hangs on rounding, the kernel decides that found the keys."""
    dtype = compute_dtype(query.dtype)
    terms = query.to(dtype).unsqueeze(-2) * pair.to(dtype)
    first, second = terms.sum(-1).unbind(-1)
    better = second > first
    if native:
        width = query.shape[3]
        doubt = 2 * width * torch.finfo(dtype).eps * terms.abs().sum((-2, -1))
        close = ~((second - first).abs() > doubt)  # NaN is close
        sides = query[close].view(-1, 1, 1, width), pair[close].view(-1, 1, 2, width)
        better[close] = ops.argmax_scores(*sides).flatten() == 1
    return better


def _owned_by(keys: Shards, index: Tensor, rank: int) -> Tensor:
    """Which queries took a value of a rank."""
    lo, hi = keys.of(rank)
    return (index >= lo) & (index < hi)


def _requested_rows(sharded: ShardedInputs, index: Tensor) -> list[Tensor]:
    """What each rank takes of this rank's values: rows of (batch · heads_kv · own keys, width_v), in the order of its
    queries. Ranks that may see each other's keys tell all that they took, so that both sides know every size."""
    axis = sharded.axis
    first, stop = sharded.own_keys
    others = [rank for rank in range(axis.size) if rank != axis.rank]
    taken = {rank: index.new_empty((*index.shape[:2], _query_count(sharded, rank))) for rank in others}
    asking = [rank for rank in others if _attends(sharded, rank, axis.rank)]
    sends = [Message(rank, index) for rank in others if _attends(sharded, axis.rank, rank)]
    start(axis, sends, [Message(rank, taken[rank]) for rank in asking], DATA).wait()
    found = []
    for rank in range(axis.size):
        if rank in others and rank not in asking:
            found.append(index.new_empty(0))
            continue
        theirs = taken.get(rank, index)
        b, h, i = _owned_by(sharded.keys, theirs, axis.rank).nonzero(as_tuple=True)
        unit = b * sharded.call.heads_kv + h // sharded.call.group
        found.append(unit * (stop - first) + theirs[b, h, i] - first)
    return found


def _query_count(sharded: ShardedInputs, rank: int) -> int:
    lo, hi = sharded.queries.of(rank)
    return hi - lo


def _all_to_all(axis: Axis, leaving: list[Tensor], arriving: list[Tensor]) -> list[Tensor]:
    """A part for each rank goes, one from each comes; what a rank has for itself stays where it is."""
    here, ranks = axis.rank, range(axis.size)
    sends = [Message(rank, leaving[rank].contiguous()) for rank in ranks if rank != here]
    receives = [Message(rank, arriving[rank]) for rank in ranks if rank != here]
    start(axis, sends, receives, RESULTS).wait()
    return [leaving[here] if rank == here else arriving[rank] for rank in ranks]
