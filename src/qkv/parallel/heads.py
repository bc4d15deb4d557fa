"""The strategy `heads`: an all-to-all exchanges tokens for heads, so that each rank has the whole sequence of some
heads.

Of R ranks, rank r runs the query heads r·H/R to (r + 1)·H/R - 1 and the key/value heads that they read, and sends the
results back to the ranks of the queries. It supports everything that `qkv.attention` does, since a rank runs a whole
call with fewer heads. Each token is sent once, for any length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends.dispatch import choose
from ..backends.reference import Result
from ..inputs import compute_dtype, read_inputs
from .inputs import Range, ShardedInputs, sink_of_heads
from .transfer import exchange

SUMMARY = "tokens are exchanged for heads: each rank has the whole sequence of some heads"


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    ranks, heads, heads_kv = sharded.axis.size, sharded.extent.heads, sharded.call.heads_kv
    if heads % ranks:
        return (f"{heads} query heads cannot be divided evenly among {ranks} ranks",)
    if heads_kv and heads_kv % ranks and ranks % heads_kv:
        against = f"{heads_kv} key/value heads cannot be divided evenly among {ranks} ranks"
        return (f"{against}, nor {ranks} ranks among them",)
    return ()


def heads_of_ranks(heads: int, ranks: int) -> list[Range]:
    """The heads of each rank, half-open; where there are fewer heads than ranks, several ranks share one.

    >>> heads_of_ranks(6, 3), heads_of_ranks(2, 4)
    ([(0, 2), (2, 4), (4, 6)], [(0, 1), (0, 1), (1, 2), (1, 2)])
    """
    firsts = [rank * heads // ranks for rank in range(ranks)]
    return [(first, first + max(1, heads // ranks)) for first in firsts]


def run(sharded: ShardedInputs) -> Result:
    call, extent, axis, bias = sharded.call, sharded.extent, sharded.axis, sharded.bias
    own = heads_of_ranks(extent.heads, axis.size)[axis.rank]
    inputs, lengths = [call.query, call.key, call.value], [sharded.queries.lengths, *[sharded.keys.lengths] * 2]
    shapes = sharded.bias_shapes
    # Unless all ranks have the same row for all queries, each has the bias of the queries it holds.
    if bias is not None and (any(shape[2] > 1 for shape in shapes) or max(lengths[0]) <= 1):
        # Ranks may have biases of different shapes, with sizes of 1 that are broadcast.
        batch, heads, _, keys = (max(sizes) for sizes in zip(*shapes, strict=True))
        inputs.append(bias.expand(batch, heads, lengths[0][axis.rank], keys))
        lengths.append(lengths[0])
    elif bias is not None and bias.shape[1] > 1:
        bias = bias[:, own[0] : own[1]]
    query, key, value, *rest = _to_heads(sharded, lengths, inputs)
    bias = rest[0] if rest else bias
    every = (0, extent.len_q), (0, extent.len_k)
    mask = None if sharded.mask is None else sharded.mask.part(extent, *every, heads=own)
    similarity = sink_of_heads(call.similarity, extent.heads, own)
    returns = call.return_lse, call.return_weights
    whole = read_inputs(query, key, value, similarity, mask, bias, call.dropout, call.backend, *returns)
    # A backend may return a log-sum-exp or a state that was not requested: it is not sent.
    requested = zip(choose(whole).run(whole), (True, *returns, False), strict=True)
    out, *back = _to_tokens(sharded, [tensor for tensor, needed in requested if needed and tensor is not None])
    return Result(out, back[0] if call.return_lse else None, back[-1] if call.return_weights else None)


def _to_heads(sharded: ShardedInputs, lengths: list[list[int]], tensors: list[Tensor]) -> list[Tensor]:
    """All heads of this rank's rows → this rank's heads of all rows. lengths: the rows of each rank."""
    outgoing, shapes = [], []
    for rows, tensor in zip(lengths, tensors, strict=True):
        heads = heads_of_ranks(tensor.shape[1], sharded.axis.size)
        a, b = heads[sharded.axis.rank]
        # Gradients of a head that several ranks have are added in the compute dtype.
        wide = tensor.to(compute_dtype(tensor.dtype)) if len(set(heads)) < len(heads) else tensor
        outgoing.append([wide[:, first:last].to(tensor.dtype) for first, last in heads])
        shapes.append([(tensor.shape[0], b - a, length, *tensor.shape[3:]) for length in rows])
    return [torch.cat(parts, dim=2) for parts in exchange(sharded.axis, outgoing, shapes)]


def _to_tokens(sharded: ShardedInputs, tensors: list[Tensor]) -> list[Tensor]:
    """This rank's query heads of all rows → all query heads of this rank's rows."""
    rows, axis = sharded.queries.lengths, sharded.axis
    outgoing = [tensor.split(rows, dim=2) for tensor in tensors]
    shapes = [[(*tensor.shape[:2], rows[axis.rank], *tensor.shape[3:])] * axis.size for tensor in tensors]
    return [torch.cat(parts, dim=1) for parts in exchange(axis, outgoing, shapes)]
