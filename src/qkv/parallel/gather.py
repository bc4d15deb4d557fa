"""The strategy `gather`: every rank fetches the keys and values that its queries may attend to, and runs a local call.

It supports everything that `qkv.attention` does, and needs memory for all keys that its queries attend to.
"""

from __future__ import annotations

import torch

from ..backends.dispatch import choose
from ..backends.reference import Result
from ..functional import empty_result
from ..inputs import read_inputs
from .inputs import ShardedInputs
from .transfer import exchange

SUMMARY = "every rank fetches the keys and values that its queries attend to"


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    return ()


def run(sharded: ShardedInputs) -> Result:
    call, extent, axis, first = sharded.call, sharded.extent, sharded.axis, sharded.own_keys[0]
    sent = [sharded.needed_keys(rank, axis.rank) for rank in range(axis.size)]
    needed = [sharded.needed_keys(axis.rank, of) for of in range(axis.size)]
    tensors = call.key, call.value
    outgoing = [[t[:, :, max(0, a - first) : max(0, b - first)] for a, b in sent] for t in tensors]
    shapes = [[(*t.shape[:2], b - a, t.shape[3]) for a, b in needed] for t in tensors]
    key, value = (torch.cat(parts, dim=2) for parts in exchange(axis, outgoing, shapes))
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
