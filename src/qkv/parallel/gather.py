"""The strategy `gather`: every rank fetches the keys and values that its queries may attend to, and runs a local call.

It supports everything that `qkv.attention` does, and needs memory for all keys that its queries attend to.
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
    if call.return_weights:  # weights have a column for every key, masked or not
        padding = (0, 0, lo, sharded.extent.len_k - hi)
        key, value = torch.nn.functional.pad(key, padding), torch.nn.functional.pad(value, padding)
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
    """The global positions of the keys that a rank's queries may attend to."""
    rows = sharded.queries.of(rank)
    if rows[0] >= rows[1]:
        return 0, 0
    return (0, sharded.extent.len_k) if sharded.mask is None else sharded.mask.bounds(sharded.extent, rows)


def fetched_keys(sharded: ShardedInputs, rank: int, of: int) -> tuple[int, int]:
    """The global positions of the keys that a rank fetches from rank `of`."""
    lo, hi = needed_keys(sharded, rank)
    first, stop = sharded.keys.of(of)
    lo, hi = max(lo, first), min(hi, stop)
    return (lo, hi) if lo < hi else (0, 0)


class _FetchKeys(torch.autograd.Function):
    """Fetch the keys and values that this rank needs; in the backward pass their gradients are sent back to their
    ranks, which add them in rank order."""

    @staticmethod
    def forward(ctx, sharded: ShardedInputs, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.sharded = sharded
        ctx.set_materialize_grads(False)
        axis = sharded.axis
        lo, hi = needed_keys(sharded, axis.rank)
        found = [t.new_empty((*t.shape[:2], hi - lo, t.shape[3])) for t in (key, value)]
        first = sharded.own_keys[0]
        sends, receives, buffers = [], [], []
        for step in range(1, axis.size):
            to, of = axis.after(step), axis.after(-step)
            a, b = fetched_keys(sharded, to, axis.rank)
            c, d = fetched_keys(sharded, axis.rank, of)
            for tensor, target in zip((key, value), found, strict=True):
                sends.append(Message(to, tensor[:, :, a - first : b - first].contiguous()))
                buffer = target.new_empty((*target.shape[:2], d - c, target.shape[3]))
                receives.append(Message(of, buffer))
                buffers.append((target, c - lo, d - lo, buffer))
        pending = start(axis, sends, receives)
        a, b = fetched_keys(sharded, axis.rank, axis.rank)
        for tensor, target in zip((key, value), found, strict=True):
            target[:, :, a - lo : b - lo] = tensor[:, :, a - first : b - first]
        pending.wait()
        for target, c, d, buffer in buffers:
            target[:, :, c:d] = buffer
        return found[0], found[1]

    @staticmethod
    def backward(ctx, *grads: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        sharded: ShardedInputs = ctx.sharded
        axis, call = sharded.axis, sharded.call
        lo, hi = needed_keys(sharded, axis.rank)
        first = sharded.own_keys[0]
        sends, receives, received = [], [], {}
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
            for index, grad in enumerate(whole):
                sends.append(Message(to, grad[:, :, a - lo : b - lo].contiguous()))
                buffer = grad.new_empty((*grad.shape[:2], d - c, grad.shape[3]))
                receives.append(Message(of, buffer))
                received[of, index] = (c, d, buffer)
        start(axis, sends, receives).wait()
        found = []
        for index, shape in enumerate(shapes):
            total = whole[index].new_zeros(shape)
            for rank in range(axis.size):
                if rank == axis.rank:
                    a, b = fetched_keys(sharded, rank, rank)
                    part = whole[index][:, :, a - lo : b - lo]
                else:
                    a, b, part = received[rank, index]
                total[:, :, a - first : b - first] += part
            found.append(total)
        return None, found[0], found[1]
