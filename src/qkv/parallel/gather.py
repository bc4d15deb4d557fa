"""`gather`: every rank fetches the keys and values that its queries may see, and runs the call of its own.

It knows everything that `qkv.attention` knows, and holds as many keys as its queries see.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends.base import RUNS
from ..backends.dispatch import choose
from ..backends.reference import Result
from ..inputs import read_inputs
from .inputs import ShardedInputs
from .transfer import Message, start


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    return ()


def run(sharded: ShardedInputs) -> Result:
    RUNS["parallel.gather"] += 1
    lo, hi = needed_keys(sharded, sharded.axis.rank)
    key, value = _FetchKeys.apply(sharded, sharded.call.key, sharded.call.value)  # pyright: ignore[reportGeneralTypeIssues]
    call, (i0, i1) = sharded.call, sharded.rows
    whole = (0, sharded.extent.len_k) if call.return_weights else (lo, hi)
    if call.return_weights:  # weights of all keys are asked for, those that nobody sees included
        room = (0, 0, lo, sharded.extent.len_k - hi)
        key, value = torch.nn.functional.pad(key, room), torch.nn.functional.pad(value, room)
    mask = None if sharded.mask is None else sharded.mask.part(sharded.extent, (i0, i1), whole)
    bias = sharded.bias
    if bias is not None and bias.shape[3] > 1:
        bias = bias[..., whole[0] : whole[1]]
    returns = call.return_lse, call.return_weights
    own = read_inputs(call.query, key, value, call.similarity, mask, bias, call.dropout, call.backend, *returns)
    if not (own.extent.len_k and own.extent.len_q and own.extent.heads and own.extent.batch):
        from ..functional import empty_result

        return empty_result(own)
    return choose(own).run(own)


def needed_keys(sharded: ShardedInputs, rank: int) -> tuple[int, int]:
    """The keys that the queries of a rank may see, in global positions."""
    rows = sharded.queries.of(rank)
    if rows[0] >= rows[1]:
        return 0, 0
    return (0, sharded.extent.len_k) if sharded.mask is None else sharded.mask.bounds(sharded.extent, rows)


def fetched_keys(sharded: ShardedInputs, rank: int, of: int) -> tuple[int, int]:
    """The keys of rank `of` that a rank fetches."""
    lo, hi = needed_keys(sharded, rank)
    start_, stop = sharded.keys.of(of)
    lo, hi = max(lo, start_), min(hi, stop)
    return (lo, hi) if lo < hi else (0, 0)


class _FetchKeys(torch.autograd.Function):
    """Keys and values of all ranks, as far as they are seen here; backward, what comes back goes to their owners, who
    add it up in rank order."""

    @staticmethod
    def forward(ctx, sharded: ShardedInputs, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.sharded = sharded
        ctx.set_materialize_grads(False)
        axis = sharded.axis
        lo, hi = needed_keys(sharded, axis.rank)
        found = [t.new_empty((*t.shape[:2], hi - lo, t.shape[3])) for t in (key, value)]
        first = sharded.own_keys[0]
        sends, receives, places = [], [], []
        for step in range(1, axis.size):
            to, of = axis.after(step), axis.after(-step)
            a, b = fetched_keys(sharded, to, axis.rank)
            c, d = fetched_keys(sharded, axis.rank, of)
            for tensor, target in zip((key, value), found, strict=True):
                sends.append(Message(to, tensor[:, :, a - first : b - first].contiguous()))
                buffer = target.new_empty((*target.shape[:2], d - c, target.shape[3]))
                receives.append(Message(of, buffer))
                places.append((target, c - lo, d - lo, buffer))
        pending = start(axis, sends, receives)
        a, b = fetched_keys(sharded, axis.rank, axis.rank)
        for tensor, target in zip((key, value), found, strict=True):
            target[:, :, a - lo : b - lo] = tensor[:, :, a - first : b - first]
        pending.wait()
        for target, c, d, buffer in places:
            target[:, :, c:d] = buffer
        return found[0], found[1]

    @staticmethod
    def backward(ctx, *grads: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        sharded: ShardedInputs = ctx.sharded
        axis, call = sharded.axis, sharded.call
        lo, hi = needed_keys(sharded, axis.rank)
        first = sharded.own_keys[0]
        sends, receives, arrivals = [], [], {}
        shapes = call.key.shape, call.value.shape
        whole = [
            torch.zeros((*shape[:2], hi - lo, shape[3]), dtype=call.query.dtype, device=call.query.device)
            if grad is None else grad
            for grad, shape in zip(grads, shapes, strict=True)
        ]  # fmt: skip
        for step in range(1, axis.size):
            to, of = axis.after(step), axis.after(-step)
            a, b = fetched_keys(sharded, axis.rank, to)
            c, d = fetched_keys(sharded, of, axis.rank)
            for place, grad in enumerate(whole):
                sends.append(Message(to, grad[:, :, a - lo : b - lo].contiguous()))
                buffer = grad.new_empty((*grad.shape[:2], d - c, grad.shape[3]))
                receives.append(Message(of, buffer))
                arrivals[of, place] = (c, d, buffer)
        start(axis, sends, receives).wait()
        found = []
        for place, shape in enumerate(shapes):
            total = whole[place].new_zeros(shape)
            for rank in range(axis.size):
                if rank == axis.rank:
                    a, b = fetched_keys(sharded, rank, rank)
                    part = whole[place][:, :, a - lo : b - lo]
                else:
                    a, b, part = arrivals[rank, place]
                total[:, :, a - first : b - first] += part
            found.append(total)
        return None, found[0], found[1]
