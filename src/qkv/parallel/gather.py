"""The strategy `gather`: every rank fetches the keys and values that its queries may attend to, and runs a local call.

It supports everything that `qkv.attention` does, and needs memory for all keys that its queries attend to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends.base import RUNS
from ..backends.dispatch import choose
from ..backends.reference import Result
from ..functional import empty_result
from ..inputs import read_inputs
from .inputs import ShardedInputs, Strategy
from .transfer import all_to_all


def run(sharded: ShardedInputs) -> Result:
    RUNS["parallel.gather"] += 1
    call, extent = sharded.call, sharded.extent
    key, value = _FetchKeys.apply(sharded, call.key, call.value)  # pyright: ignore[reportGeneralTypeIssues]
    lo, hi = sharded.attended_keys(sharded.rows)
    if call.return_weights:  # weights have a column for every key, masked or not
        padding = (0, 0, lo, extent.len_k - hi)
        key, value = torch.nn.functional.pad(key, padding), torch.nn.functional.pad(value, padding)
        lo, hi = 0, extent.len_k
    mask = None if sharded.mask is None else sharded.mask.part(extent, sharded.rows, (lo, hi))
    bias = sharded.bias if sharded.bias is None or sharded.bias.shape[3] == 1 else sharded.bias[..., lo:hi]
    returns = call.return_lse, call.return_weights
    own = read_inputs(call.query, key, value, call.similarity, mask, bias, call.dropout, call.backend, *returns)
    if not (own.extent.len_k and own.extent.len_q and own.extent.heads and own.extent.batch):
        return empty_result(own)
    return choose(own).run(own)


class _FetchKeys(torch.autograd.Function):
    """Fetch the keys and values that this rank needs; in the backward pass their gradients are sent back to their
    ranks, which add them in rank order."""

    @staticmethod
    def forward(ctx, sharded: ShardedInputs, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.sharded = sharded
        axis, first = sharded.axis, sharded.own_keys[0]
        ranges = [sharded.needed_keys(rank, axis.rank) for rank in range(axis.size)]
        outgoing = [[t[:, :, max(0, a - first) : max(0, b - first)] for a, b in ranges] for t in (key, value)]
        needed = [sharded.needed_keys(axis.rank, of) for of in range(axis.size)]
        shapes = [[(*t.shape[:2], b - a, t.shape[3]) for a, b in needed] for t in (key, value)]
        return tuple(torch.cat(parts, dim=2) for parts in all_to_all(axis, outgoing, shapes))

    @staticmethod
    def backward(ctx, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        sharded: ShardedInputs = ctx.sharded
        axis, first = sharded.axis, sharded.own_keys[0]
        lengths = [b - a for a, b in (sharded.needed_keys(axis.rank, of) for of in range(axis.size))]
        ranges = [sharded.needed_keys(rank, axis.rank) for rank in range(axis.size)]
        shapes = [[(*grad.shape[:2], b - a, grad.shape[3]) for a, b in ranges] for grad in grads]
        received = all_to_all(axis, [grad.split(lengths, dim=2) for grad in grads], shapes)
        found = []
        for tensor, parts in zip((sharded.call.key, sharded.call.value), received, strict=True):
            total = torch.zeros_like(tensor, requires_grad=False)
            for (a, b), part in zip(ranges, parts, strict=True):
                if a < b:
                    total[:, :, a - first : b - first] += part
            found.append(total)
        return None, *found


GATHER = Strategy(
    "gather", "every rank fetches the keys and values that its queries attend to", lambda sharded: (), run
)
