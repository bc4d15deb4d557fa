"""The strategy `heads`: an all-to-all exchanges tokens for heads, so that each rank has the whole sequence of some
heads.

Of R ranks, rank r runs the query heads r·H/R to (r + 1)·H/R - 1 and the key/value heads that they read, and sends the
results back to the ranks of the queries. It supports everything that `qkv.attention` does, since a rank runs a whole
call with fewer heads. Each token is sent once, for any length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..backends.base import RUNS
from ..backends.dispatch import choose
from ..backends.reference import Result
from ..inputs import compute_dtype, read_inputs
from .inputs import ShardedInputs, Shards, Strategy, sink_of_heads
from .transfer import Axis, all_to_all

Heads = tuple[tuple[int, int], ...]


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    ranks, heads, heads_kv = sharded.axis.size, sharded.extent.heads, sharded.call.heads_kv
    if heads % ranks:
        return (f"{heads} query heads cannot be divided evenly among {ranks} ranks",)
    if heads_kv and heads_kv % ranks and ranks % heads_kv:
        return (
            f"{heads_kv} key/value heads cannot be divided evenly among {ranks} ranks, nor {ranks} ranks among them",
        )
    return ()


def query_heads(heads: int, ranks: int) -> Heads:
    """The query heads of each rank, half-open.

    >>> query_heads(6, 3)
    ((0, 2), (2, 4), (4, 6))
    """
    each = heads // ranks
    return tuple((rank * each, (rank + 1) * each) for rank in range(ranks))


def kv_heads(heads_kv: int, ranks: int) -> Heads:
    """The key/value heads that each rank's query heads read: where there are fewer than ranks, several ranks share one.

    >>> kv_heads(2, 4)
    ((0, 1), (0, 1), (1, 2), (1, 2))
    """
    each = max(1, heads_kv // ranks)
    firsts = [rank * heads_kv // ranks for rank in range(ranks)]
    return tuple((first, first + each) for first in firsts)


class HeadShards(NamedTuple):
    """How a tensor (batch, heads, rows, …) is sharded: rank r has all heads of rows.of(r), or heads[r] of all rows."""

    heads: Heads
    rows: Shards


def run(sharded: ShardedInputs) -> Result:
    RUNS["parallel.heads"] += 1
    call, extent, ranks = sharded.call, sharded.extent, sharded.axis.size
    of_queries = HeadShards(query_heads(extent.heads, ranks), sharded.queries)
    of_keys = HeadShards(kv_heads(call.heads_kv, ranks), sharded.keys)
    inputs, requires_grad = [call.query, call.key, call.value], [*sharded.requires_grad[:3]]
    layouts = [of_queries, of_keys, of_keys]
    own = of_queries.heads[sharded.axis.rank]
    bias = sharded.bias
    sharded_bias = None if bias is None else _shard_bias(sharded, bias, of_queries.heads)
    if sharded_bias is not None:
        inputs.append(sharded_bias[0])
        layouts.append(sharded_bias[1])
        requires_grad.append(sharded.requires_grad[3])
    query, key, value, *rest = _Exchange.apply(sharded.axis, layouts, False, requires_grad, *inputs)  # pyright: ignore[reportGeneralTypeIssues]
    if sharded_bias is not None:
        bias = rest[0]
    elif bias is not None and bias.shape[1] > 1:
        bias = bias[:, own[0] : own[1]]
    every = (0, extent.len_q), (0, extent.len_k)
    mask = None if sharded.mask is None else sharded.mask.part(extent, *every, heads=own)
    similarity = sink_of_heads(call.similarity, extent.heads, own)
    whole = read_inputs(
        query, key, value, similarity, mask, bias, call.dropout, call.backend, call.return_lse, call.return_weights
    )
    # A backend may return a log-sum-exp that was not requested: it is not sent.
    requested = True, call.return_lse, call.return_weights
    result = [tensor for tensor, needed in zip(choose(whole).run(whole), requested, strict=True) if needed]
    out, *back = _Exchange.apply(sharded.axis, [of_queries] * len(result), True, [True] * len(result), *result)  # pyright: ignore[reportGeneralTypeIssues]
    return Result(out, back[0] if call.return_lse else None, back[-1] if call.return_weights else None)


def _shard_bias(sharded: ShardedInputs, bias: Tensor, heads: Heads) -> tuple[Tensor, HeadShards] | None:
    """The bias of this rank's queries, and how it is sharded; None if all ranks have the same row for all queries.

    Ranks may have biases of different shapes, with sizes of 1 that are broadcast.
    """
    shapes = sharded.bias_shapes
    if all(shape[2] == 1 for shape in shapes) and max(sharded.queries.lengths) > 1:
        return None
    batch, of_heads, _, keys = (max(sizes) for sizes in zip(*shapes, strict=True))
    own = bias.expand(batch, of_heads, sharded.queries.lengths[sharded.axis.rank], keys)
    return own, HeadShards(heads if of_heads > 1 else ((0, 1),) * sharded.axis.size, sharded.queries)


def to_heads(axis: Axis, layouts: list[HeadShards], tensors: list[Tensor]) -> list[Tensor]:
    """All heads of this rank's rows → this rank's heads of all rows."""
    outgoing, shapes = [], []
    for layout, tensor in zip(layouts, tensors, strict=True):
        a, b = layout.heads[axis.rank]
        outgoing.append([tensor[:, first:last] for first, last in layout.heads])
        shapes.append([(tensor.shape[0], b - a, length, *tensor.shape[3:]) for length in layout.rows.lengths])
    return [torch.cat(parts, dim=2) for parts in all_to_all(axis, outgoing, shapes)]


def to_tokens(axis: Axis, layouts: list[HeadShards], tensors: list[Tensor]) -> list[Tensor]:
    """This rank's heads of all rows → all heads of this rank's rows; where several ranks have a head, their sum."""
    outgoing, shapes = [], []
    for layout, tensor in zip(layouts, tensors, strict=True):
        length = layout.rows.lengths[axis.rank]
        outgoing.append(tensor.split(layout.rows.lengths, dim=2))
        shapes.append([(tensor.shape[0], b - a, length, *tensor.shape[3:]) for a, b in layout.heads])
    found = all_to_all(axis, outgoing, shapes)
    return [_join_heads(layout.heads, parts) for layout, parts in zip(layouts, found, strict=True)]


def _join_heads(heads: Heads, parts: list[Tensor]) -> Tensor:
    if len(set(heads)) == len(heads):
        return torch.cat(parts, dim=1)
    dtype = parts[0].dtype
    shape = parts[0].shape[0], max(b for _, b in heads), *parts[0].shape[2:]
    total = parts[0].new_zeros(shape, dtype=compute_dtype(dtype))
    for (a, b), part in zip(heads, parts, strict=True):  # in rank order, so that the bits do not depend on timing
        total[:, a:b] += part
    return total.to(dtype)


class _Exchange(torch.autograd.Function):
    """`to_heads` or `to_tokens`; each is the derivative of the other. requires_grad: of each tensor; gradients of the
    others are not sent."""

    @staticmethod
    def forward(ctx, axis: Axis, layouts: list[HeadShards], back: bool, requires_grad: list[bool], *tensors: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.axis, ctx.layouts, ctx.back, ctx.wanted = axis, layouts, back, requires_grad
        found = (to_tokens if back else to_heads)(axis, layouts, list(tensors))
        ctx.mark_non_differentiable(*(t for t, needed in zip(found, requires_grad, strict=True) if not needed))
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        wanted = [index for index, needed in enumerate(ctx.wanted) if needed]
        run = to_heads if ctx.back else to_tokens
        found = run(ctx.axis, [ctx.layouts[index] for index in wanted], [grads[index] for index in wanted])
        back = dict(zip(wanted, found, strict=True))
        return None, None, None, None, *(back.get(index) for index in range(len(grads)))


HEADS = Strategy(
    "heads", "tokens are exchanged for heads: each rank has the whole sequence of some heads", reasons_against, run
)
