"""The strategy `argmax`: queries are sent, their best keys are returned, and at the end one value for each query.

Every rank finds its best key for each query of every other rank. The rank of a query compares the returned
keys by the same sums that found them, so that the answer is that of a single process, near ties included. Only the
value of the best key is sent.
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

_NO_KEY, _NAN_SCORE = -1, -2  # no score is above -inf; a score is NaN


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    reasons = []
    if not isinstance(sharded.call.similarity, Argmax):
        reasons.append(f"only Argmax() has a single best key, not {type(sharded.call.similarity).__name__}")
    if sharded.call.return_weights:
        reasons.append("return_weights asks for the len_q x len_k matrix of weights, which argmax never forms")
    if sharded.call.backend not in ("auto", "argmax"):
        reasons.append(f"each rank runs the backend argmax, not {sharded.call.backend}")
    return tuple(reasons)


def run(sharded: ShardedInputs) -> Result:
    RUNS["parallel.argmax"] += 1
    call = sharded.call
    return Result(_GatherBestValues.apply(sharded, call.query, call.key, call.value), None, None)  # pyright: ignore[reportArgumentType]


class _BestKeys(NamedTuple):
    """For each query the best key so far and its global position, or _NO_KEY or _NAN_SCORE."""

    position: Tensor
    key: Tensor


class _GatherBestValues(torch.autograd.Function):
    """value[argmax_j q·k_j] over the keys of all ranks. In the backward pass the gradient of a query is sent to the
    rank of the chosen value, which adds gradients in rank order; query and key get 0: argmax is a step function of
    them."""

    @staticmethod
    def forward(ctx, sharded: ShardedInputs, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        position = _best_positions(sharded, query, key)
        requested = _requested_rows(sharded, position)
        ctx.axis, ctx.keys, ctx.requested = sharded.axis, sharded.keys, requested
        ctx.shapes = query.shape, key.shape, value.shape
        ctx.save_for_backward(position)
        flat = value.reshape(-1, value.shape[3])
        out = torch.where(
            (position == _NAN_SCORE).unsqueeze(-1), NAN, value.new_zeros((*position.shape, value.shape[3]))
        )
        own = [_owned_by(sharded.keys, position, rank) for rank in range(sharded.axis.size)]
        incoming = [out.new_empty((int(chosen.sum()), value.shape[3])) for chosen in own]
        for chosen, part in zip(
            own, _all_to_all(sharded.axis, [flat[rows] for rows in requested], incoming), strict=True
        ):
            out[chosen] = part
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        axis: Axis = ctx.axis
        (position,) = ctx.saved_tensors
        outgoing = [grad[_owned_by(ctx.keys, position, rank)] for rank in range(axis.size)]
        incoming = [grad.new_empty((len(rows), grad.shape[3])) for rows in ctx.requested]
        total = torch.zeros(ctx.shapes[2], dtype=compute_dtype(grad.dtype), device=grad.device)
        flat = total.view(-1, grad.shape[3])
        for rows, part in zip(ctx.requested, _all_to_all(axis, outgoing, incoming), strict=True):
            flat.index_add_(0, rows, part.to(total.dtype))
        return None, grad.new_zeros(ctx.shapes[0]), grad.new_zeros(ctx.shapes[1]), total.to(grad.dtype)


def _best_positions(sharded: ShardedInputs, query: Tensor, key: Tensor) -> Tensor:
    """The global position of the best key of each of this rank's queries, (batch, heads, own queries)."""
    axis, kernel = sharded.axis, _uses_kernel(sharded)
    query = query.detach().contiguous()
    # Receive the queries of the next rank while comparing those of this one.
    next_queries = _exchange_queries(sharded, query, 1) if axis.size > 1 else None
    found = _best_local_keys(sharded, query, key, axis.rank, kernel)
    for step in range(1, axis.size):
        assert next_queries is not None
        queries, pending = next_queries
        pending.wait()
        next_queries = _exchange_queries(sharded, query, step + 1) if step + 1 < axis.size else None
        theirs = _best_local_keys(sharded, queries, key, axis.after(-step), kernel)
        other = _exchange_best(sharded, theirs, found, step)
        found = found if other is None else _better_of(query, found, other, kernel)
    return found.position


def _uses_kernel(sharded: ShardedInputs) -> bool:
    """Whether one process would run the native kernel on the whole call."""
    if native_kernel_reasons(sharded.call):
        return False
    return sharded.mask is None or sharded.mask.band(sharded.extent) is not None


def _exchange_queries(sharded: ShardedInputs, query: Tensor, step: int) -> tuple[Tensor, Pending]:
    axis = sharded.axis
    to, source = axis.after(step), axis.after(-step)
    sends = [Message(to, query)] if _attends(sharded, axis.rank, to) else []
    queries = query.new_empty((*query.shape[:2], _query_count(sharded, source), query.shape[3]))
    receives = [Message(source, queries)] if _attends(sharded, source, axis.rank) else []
    return queries, start(axis, sends, receives, DATA)


def _exchange_best(sharded: ShardedInputs, theirs: _BestKeys, like: _BestKeys, step: int) -> _BestKeys | None:
    """Send another rank the best keys for its queries, and receive those for our own; None if there are none."""
    axis = sharded.axis
    to, source = axis.after(-step), axis.after(step)
    sends = [Message(to, each) for each in theirs] if _attends(sharded, to, axis.rank) else []
    if not _attends(sharded, axis.rank, source):
        start(axis, sends, [], RESULTS).wait()
        return None
    other = _BestKeys(*(torch.empty_like(each) for each in like))
    start(axis, sends, [Message(source, each) for each in other], RESULTS).wait()
    return other


def _attends(sharded: ShardedInputs, rank: int, of: int) -> bool:
    lo, hi = sharded.attended_keys(of, sharded.queries.of(rank))
    return lo < hi


def _best_local_keys(sharded: ShardedInputs, query: Tensor, key: Tensor, rank: int, kernel: bool) -> _BestKeys:
    """The best of this rank's keys for the queries of a rank."""
    rows, first = sharded.queries.of(rank), sharded.own_keys[0]
    lo, hi = sharded.attended_keys(sharded.axis.rank, rows)
    if lo == hi or not query.shape[2]:
        return _BestKeys(torch.full(query.shape[:3], _NO_KEY, device=query.device), torch.zeros_like(query))
    key = key.detach()[:, :, lo - first : hi - first]
    mask = None if sharded.mask is None else sharded.mask.part(sharded.extent, rows, (lo, hi))
    call = read_inputs(query, key, key, sharded.call.similarity, mask, None, 0.0, "argmax", False, False)
    best = best_keys_of_part(call, kernel)
    position = torch.where(best.has_nan, _NAN_SCORE, torch.where(best.empty, _NO_KEY, best.key_index + lo))
    return _BestKeys(position, _take_keys(key, best.key_index))


def _take_keys(tensor: Tensor, chosen: Tensor) -> Tensor:
    """tensor[b, g, chosen[b, h, i]] for g = h // group: (b, heads_q, r, n)."""
    batch, heads, _ = chosen.shape
    b = torch.arange(batch, device=chosen.device)[:, None, None]
    g = (torch.arange(heads, device=chosen.device) // (heads // tensor.shape[1]))[:, None]
    return tensor[b, g, chosen]


def _better_of(query: Tensor, one: _BestKeys, other: _BestKeys, kernel: bool) -> _BestKeys:
    """The better of two keys for each query; of equals the first in the sequence; _NAN_SCORE if either has it."""
    swapped = (other.position < one.position).unsqueeze(-1)
    pair = torch.stack((torch.where(swapped, other.key, one.key), torch.where(swapped, one.key, other.key)), dim=-2)
    second = _second_is_better(query, pair, kernel)
    takes_other = torch.where(other.position < one.position, ~second, second)
    takes_other = torch.where(one.position == _NO_KEY, True, torch.where(other.position == _NO_KEY, False, takes_other))
    position = torch.where(takes_other, other.position, one.position)
    position = torch.where((one.position == _NAN_SCORE) | (other.position == _NAN_SCORE), _NAN_SCORE, position)
    return _BestKeys(position, torch.where(takes_other.unsqueeze(-1), other.key, one.key))


def _second_is_better(query: Tensor, pair: Tensor, kernel: bool) -> Tensor:
    """Whether q·pair[1] > q·pair[0]. Where that depends on rounding, the kernel that found the keys decides."""
    dtype = compute_dtype(query.dtype)
    terms = query.to(dtype).unsqueeze(-2) * pair.to(dtype)
    first, second = terms.sum(-1).unbind(-1)
    better = second > first
    if kernel:
        width = query.shape[3]
        rounding = 2 * width * torch.finfo(dtype).eps * terms.abs().sum((-2, -1))
        close = ~((second - first).abs() > rounding)  # NaN is close
        sides = query[close].view(-1, 1, 1, width), pair[close].view(-1, 1, 2, width)
        better[close] = ops.argmax_scores(*sides).flatten() == 1
    return better


def _owned_by(keys: Shards, position: Tensor, rank: int) -> Tensor:
    """Which queries chose a key of a rank."""
    lo, hi = keys.of(rank)
    return (position >= lo) & (position < hi)


def _requested_rows(sharded: ShardedInputs, position: Tensor) -> list[Tensor]:
    """Which of this rank's values each rank needs: rows of (batch · heads_kv · own keys, width_v), in the order of its
    queries. Every rank sends its positions to the ranks whose keys it may attend to, so that both know all sizes."""
    axis = sharded.axis
    first, stop = sharded.own_keys
    others = [rank for rank in range(axis.size) if rank != axis.rank]
    taken = {rank: position.new_empty((*position.shape[:2], _query_count(sharded, rank))) for rank in others}
    requesting = [rank for rank in others if _attends(sharded, rank, axis.rank)]
    sends = [Message(rank, position) for rank in others if _attends(sharded, axis.rank, rank)]
    start(axis, sends, [Message(rank, taken[rank]) for rank in requesting], DATA).wait()
    found = []
    for rank in range(axis.size):
        if rank in others and rank not in requesting:
            found.append(position.new_empty(0))
            continue
        theirs = taken.get(rank, position)
        b, h, i = _owned_by(sharded.keys, theirs, axis.rank).nonzero(as_tuple=True)
        unit = b * sharded.call.heads_kv + h // sharded.call.group
        found.append(unit * (stop - first) + theirs[b, h, i] - first)
    return found


def _query_count(sharded: ShardedInputs, rank: int) -> int:
    lo, hi = sharded.queries.of(rank)
    return hi - lo


def _all_to_all(axis: Axis, outgoing: list[Tensor], incoming: list[Tensor]) -> list[Tensor]:
    """Send a part to each rank and receive one from each; a rank's part for itself is not sent."""
    here, ranks = axis.rank, range(axis.size)
    sends = [Message(rank, outgoing[rank].contiguous()) for rank in ranks if rank != here]
    receives = [Message(rank, incoming[rank]) for rank in ranks if rank != here]
    start(axis, sends, receives, RESULTS).wait()
    return [outgoing[here] if rank == here else incoming[rank] for rank in ranks]
