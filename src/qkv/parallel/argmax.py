"""The strategy `argmax`: queries are sent, their best keys are returned, and at the end one value for each query.

Every rank finds its best key for each query of every other rank. The rank of a query compares the returned
keys by the same sums that found them, so that the answer is that of a single process, near ties included. Only the
value of the best key is sent.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..backends.argmax import NAN_SCORE, NO_KEY, best_keys_of_part
from ..backends.base import native_kernel_reasons
from ..backends.reference import NAN, Result, StepFunction
from ..inputs import compute_dtype, fold_group, read_inputs, unfold_group
from .inputs import ShardedInputs, Shards
from .transfer import RESULTS, Message, all_to_all, exchange, start

SUMMARY = "each rank finds its best key for every query, and the best of those is taken"


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    call, name = sharded.call, type(sharded.call.similarity).__name__
    against = {
        f"only Argmax() has a single best key, not {name}": not call.similarity.picks_one_key,
        "return_weights asks for the len_q x len_k matrix of weights, which argmax never forms": call.return_weights,
        f"each rank runs the backend argmax, not {call.backend}": call.backend not in ("auto", "argmax"),
    }
    return tuple(reason for reason, holds in against.items() if holds)


class _BestKeys(NamedTuple):
    """For each query the best key so far and its global position, or NO_KEY or NAN_SCORE."""

    position: Tensor
    key: Tensor


def run(sharded: ShardedInputs) -> Result:
    """value[argmax_j q·k_j] over the keys of all ranks. In the backward pass the gradient of a query is sent to the
    rank of the chosen value, which adds gradients in rank order and in the compute dtype."""
    call, axis = sharded.call, sharded.axis
    query, key, value = call.query, call.key, call.value
    with torch.no_grad():
        position = _best_positions(sharded, query, key)
        requested = _requested_rows(sharded, position)
    flat = value.to(compute_dtype(value.dtype)).reshape(-1, call.width_v)
    own = [_owned_by(sharded.keys, position, rank) for rank in range(axis.size)]
    shapes = [(int(chosen.sum()), call.width_v) for chosen in own]
    outgoing = [flat.index_select(0, rows).to(value.dtype) for rows in requested]
    (parts,) = exchange(axis, [outgoing], [shapes], RESULTS)
    out = torch.where((position == NAN_SCORE).unsqueeze(-1), NAN, value.new_zeros((*position.shape, call.width_v)))
    for chosen, part in zip(own, parts, strict=True):
        out[chosen] = part
    return Result(StepFunction.apply(out, query, key), None, None)  # pyright: ignore[reportArgumentType]


def _best_positions(sharded: ShardedInputs, query: Tensor, key: Tensor) -> Tensor:
    """The global position of the best key of each of this rank's queries, (batch, heads, own queries)."""
    axis, query = sharded.axis, query.detach().contiguous()
    # Whether one process would run the native kernel on the whole call.
    banded = sharded.mask is None or sharded.mask.band(sharded.extent) is not None
    kernel = banded and not native_kernel_reasons(sharded.call)
    found = _best_local_keys(sharded, query, key, axis.rank, kernel)
    for step in range(1, axis.size):
        # This rank answers the queries of one rank, and another rank answers its own.
        asking, asked = axis.after(-step), axis.after(step)
        answers, asks = sharded.attends(asking, axis.rank), sharded.attends(axis.rank, asked)
        theirs = query.new_empty((*query.shape[:2], sharded.queries.lengths[asking], query.shape[3]))
        start(axis, [Message(asked, query)] * asks, [Message(asking, theirs)] * answers).wait()
        best = _best_local_keys(sharded, theirs, key, asking, kernel) if answers else ()
        other = _BestKeys(*map(torch.empty_like, found))
        receives = [Message(asked, each) for each in other] * asks
        start(axis, [Message(asking, each) for each in best], receives, RESULTS).wait()
        found = _better_of(query, found, other, kernel) if asks else found
    return found.position


def _best_local_keys(sharded: ShardedInputs, query: Tensor, key: Tensor, rank: int, kernel: bool) -> _BestKeys:
    """The best of this rank's keys for the queries of a rank."""
    rows, first = sharded.queries.of(rank), sharded.own_keys[0]
    lo, hi = sharded.needed_keys(rank, sharded.axis.rank)
    if lo == hi or not query.shape[2]:
        return _BestKeys(torch.full(query.shape[:3], NO_KEY, device=query.device), torch.zeros_like(query))
    key = key.detach()[:, :, lo - first : hi - first]
    mask = None if sharded.mask is None else sharded.mask.part(sharded.extent, rows, (lo, hi))
    call = read_inputs(query, key, key, sharded.call.similarity, mask, None, 0.0, "argmax", False, False)
    best = best_keys_of_part(call, kernel)
    code = best.code()
    chosen = fold_group(best.key_index.unsqueeze(-1), key.shape[1]).expand(-1, -1, -1, key.shape[3])
    return _BestKeys(torch.where(code < 0, code, code + lo), unfold_group(key.gather(2, chosen), query.shape[1]))


def _better_of(query: Tensor, one: _BestKeys, other: _BestKeys, kernel: bool) -> _BestKeys:
    """The better of two keys for each query; of equals the first in the sequence; NAN_SCORE if either has it."""
    swapped = (other.position < one.position).unsqueeze(-1)
    pair = torch.stack((torch.where(swapped, other.key, one.key), torch.where(swapped, one.key, other.key)), dim=-2)
    second = _second_is_better(query, pair, kernel)
    takes_other = torch.where(other.position < one.position, ~second, second)
    takes_other = torch.where(one.position == NO_KEY, True, torch.where(other.position == NO_KEY, False, takes_other))
    position = torch.where(takes_other, other.position, one.position)
    position = torch.where((one.position == NAN_SCORE) | (other.position == NAN_SCORE), NAN_SCORE, position)
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
    axis, (first, stop) = sharded.axis, sharded.own_keys
    shape = position.shape[:2]
    asks = [sharded.attends(axis.rank, rank) for rank in range(axis.size)]
    lengths = [n * sharded.attends(rank, axis.rank) for rank, n in enumerate(sharded.queries.lengths)]
    outgoing = [position if needed else position[..., :0] for needed in asks]
    (every,) = all_to_all(axis, [outgoing], [[(*shape, n) for n in lengths]])
    found = []
    for theirs in every:
        b, h, i = _owned_by(sharded.keys, theirs, axis.rank).nonzero(as_tuple=True)
        unit = b * sharded.call.heads_kv + h // sharded.call.group
        found.append(unit * (stop - first) + theirs[b, h, i] - first)
    return found
