"""`heads`: tokens are exchanged for heads, so that each rank has the whole sequence of some of the heads.

Of R ranks, rank r runs the query heads r·H/R to (r + 1)·H/R - 1 and the key/value heads that they read, and sends the
answers back to those who have the queries. It knows everything that `qkv.attention` knows, for what a rank runs is a
whole call of fewer heads. A token's numbers travel once, whatever the length.
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
from .consensus import agree
from .inputs import ShardedInputs, Shards, sink_of_heads
from .transfer import Axis, Message, start

Heads = tuple[tuple[int, int], ...]


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    ranks, heads, heads_kv = sharded.axis.size, sharded.extent.heads, sharded.call.heads_kv
    if heads % ranks:
        return (f"{heads} query heads cannot be dealt out evenly to {ranks} ranks",)
    if heads_kv and heads_kv % ranks and ranks % heads_kv:
        return (f"{heads_kv} key/value heads cannot be dealt out evenly to {ranks} ranks, nor {ranks} ranks to them",)
    return ()


def query_heads(heads: int, ranks: int) -> Heads:
    """The query heads of each rank, half-open.

    >>> query_heads(6, 3)
    ((0, 2), (2, 4), (4, 6))
    """
    each = heads // ranks
    return tuple((rank * each, (rank + 1) * each) for rank in range(ranks))


def kv_heads(heads_kv: int, ranks: int) -> Heads:
    """The key/value heads that each rank's query heads read: where there are fewer than ranks, several sharded one.

    >>> kv_heads(2, 4)
    ((0, 1), (0, 1), (1, 2), (1, 2))
    """
    each = max(1, heads_kv // ranks)
    firsts = [rank * heads_kv // ranks for rank in range(ranks)]
    return tuple((first, first + each) for first in firsts)


class HeadShards(NamedTuple):
    """How a tensor (batch, heads, rows, …) is spread: rank r has all heads of rows.of(r), or heads[r] of all rows."""

    heads: Heads
    rows: Shards


def run(sharded: ShardedInputs) -> Result:
    RUNS["parallel.heads"] += 1
    call, extent, ranks = sharded.call, sharded.extent, sharded.axis.size
    of_queries = HeadShards(query_heads(extent.heads, ranks), sharded.queries)
    of_keys = HeadShards(kv_heads(call.heads_kv, ranks), sharded.keys)
    inputs, deals, learns = (
        [call.query, call.key, call.value],
        [of_queries, of_keys, of_keys],
        [*sharded.requires_grad[:3]],
    )
    own = of_queries.heads[sharded.axis.rank]
    bias = sharded.bias
    spread = None if bias is None else _shard_bias(sharded, bias, of_queries.heads)
    if spread is not None:
        inputs.append(spread[0])
        deals.append(spread[1])
        learns.append(sharded.requires_grad[3])
    query, key, value, *rest = _ToHeads.apply(sharded.axis, deals, learns, *inputs)  # pyright: ignore[reportGeneralTypeIssues]
    if spread is not None:
        bias = _expand_rows(rest[0], spread[1].rows, sharded.queries)
    elif bias is not None and bias.shape[1] > 1:
        bias = bias[:, own[0] : own[1]]
    every = (0, extent.len_q), (0, extent.len_k)
    mask = None if sharded.mask is None else sharded.mask.part(extent, *every, heads=own)
    similarity = sink_of_heads(call.similarity, extent.heads, own)
    whole = read_inputs(
        query, key, value, similarity, mask, bias, call.dropout, call.backend, call.return_lse, call.return_weights
    )
    # A backend may give a log-sum-exp that nobody asked for: it stays here.
    asked = True, call.return_lse, call.return_weights
    result = [tensor for tensor, wanted in zip(choose(whole).run(whole), asked, strict=True) if wanted]
    out, *back = _ToTokens.apply(sharded.axis, [of_queries] * len(result), *result)  # pyright: ignore[reportGeneralTypeIssues]
    return Result(out, back[0] if call.return_lse else None, back[-1] if call.return_weights else None)


def _shard_bias(sharded: ShardedInputs, bias: Tensor, heads: Heads) -> tuple[Tensor, HeadShards] | None:
    """The bias of this rank's queries, and how it is dealt out; None if all ranks have the same row for all queries.

    Ranks may have written theirs in different ways, with axes of 1 for what is the same along them.
    """
    shapes = agree(sharded.axis, {"call": "the shapes of the bias"}, tuple(bias.shape))
    lengths = [sharded.queries.edges[rank + 1] - sharded.queries.edges[rank] for rank in range(sharded.axis.size)]
    if all(shape[2] == 1 for shape in shapes) and max(lengths) > 1:
        return None
    batch, of_heads, _, keys = (max(shape[place] for shape in shapes) for place in range(4))
    # One row that stands for several travels as one.
    rows = [min(shape[2], length) for shape, length in zip(shapes, lengths, strict=True)]
    own = bias[:, :, : rows[sharded.axis.rank]].expand(batch, of_heads, -1, keys)
    return own, HeadShards(heads if of_heads > 1 else ((0, 1),) * sharded.axis.size, Shards.of_lengths(rows))


def _expand_rows(bias: Tensor, rows: Shards, queries: Shards) -> Tensor:
    if rows == queries:
        return bias
    each = zip(bias.split([b - a for a, b in _ranges(rows)], dim=2), _ranges(queries), strict=True)
    return torch.cat([part.expand(-1, -1, b - a, -1) for part, (a, b) in each], dim=2)


def _ranges(shards: Shards) -> list[tuple[int, int]]:
    return [shards.of(rank) for rank in range(len(shards.edges) - 1)]


def to_heads(axis: Axis, deals: list[HeadShards], tensors: list[Tensor]) -> list[Tensor]:
    """All heads of this rank's rows → this rank's heads of all rows."""
    outgoing = [[t[:, a:b] for a, b in deal.heads] for deal, t in zip(deals, tensors, strict=True)]
    shapes = []
    for deal, tensor in zip(deals, tensors, strict=True):
        a, b = deal.heads[axis.rank]
        shapes.append([(tensor.shape[0], b - a, i1 - i0, *tensor.shape[3:]) for i0, i1 in _ranges(deal.rows)])
    return [torch.cat(parts, dim=2) for parts in _all_to_all(axis, outgoing, shapes)]


def to_tokens(axis: Axis, deals: list[HeadShards], tensors: list[Tensor]) -> list[Tensor]:
    """This rank's heads of all rows → all heads of this rank's rows; where several ranks have a head, their sum."""
    outgoing = [[t[:, :, a:b] for a, b in _ranges(deal.rows)] for deal, t in zip(deals, tensors, strict=True)]
    shapes = []
    for deal, tensor in zip(deals, tensors, strict=True):
        i0, i1 = deal.rows.of(axis.rank)
        shapes.append([(tensor.shape[0], b - a, i1 - i0, *tensor.shape[3:]) for a, b in deal.heads])
    return [
        _join_heads(deal.heads, parts) for deal, parts in zip(deals, _all_to_all(axis, outgoing, shapes), strict=True)
    ]


def _join_heads(heads: Heads, parts: list[Tensor]) -> Tensor:
    if len(set(heads)) == len(heads):
        return torch.cat(parts, dim=1)
    dtype = parts[0].dtype
    shape = parts[0].shape[0], max(b for _, b in heads), *parts[0].shape[2:]
    total = parts[0].new_zeros(shape, dtype=compute_dtype(dtype))
    for (a, b), part in zip(heads, parts, strict=True):  # in rank order, so that bits do not depend on who came first
        total[:, a:b] += part
    return total.to(dtype)


def _all_to_all(axis: Axis, outgoing: list[list[Tensor]], shapes: list[list[tuple[int, ...]]]) -> list[list[Tensor]]:
    """outgoing[t][r] goes to rank r; of each t, what came from every rank, in rank order."""
    found = []
    for parts, each in zip(outgoing, shapes, strict=True):
        own = axis.rank
        found.append([parts[own] if rank == own else parts[own].new_empty(each[rank]) for rank in range(axis.size)])
    sends, receives = [], []
    for step in range(1, axis.size):
        to, of = axis.after(step), axis.after(-step)
        sends += [Message(to, parts[to].contiguous()) for parts in outgoing]
        receives += [Message(of, parts[of]) for parts in found]
    start(axis, sends, receives).wait()
    return found


class _ToHeads(torch.autograd.Function):
    """learns: which tensors want gradients; the others send none back."""

    @staticmethod
    def forward(ctx, axis: Axis, deals: list[HeadShards], learns: list[bool], *tensors: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.axis, ctx.deals, ctx.learns = axis, deals, learns
        found = to_heads(axis, deals, list(tensors))
        ctx.mark_non_differentiable(*(t for t, learn in zip(found, learns, strict=True) if not learn))
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        wanted = [place for place, learn in enumerate(ctx.learns) if learn]
        found = to_tokens(ctx.axis, [ctx.deals[p] for p in wanted], [grads[p] for p in wanted])
        back = dict(zip(wanted, found, strict=True))
        return None, None, None, *(back.get(place) for place in range(len(grads)))


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, axis: Axis, deals: list[HeadShards], *tensors: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.axis, ctx.deals = axis, deals
        return tuple(to_tokens(axis, deals, list(tensors)))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None, *to_heads(ctx.axis, ctx.deals, list(grads))
