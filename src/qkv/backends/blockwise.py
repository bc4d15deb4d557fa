"""`blockwise`: the equation on blocks of query rows, one after the other, recomputed in the backward pass.

It runs the code of `reference`, and so takes nearly everything that `reference` takes, but holds one block of scores
instead of all of them. `block_gradients` has the gradients of softmax written out, those of a bias and of the
log-sum-exp included, for `sdpa`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .. import ops
from ..cost.price import Cost, product_flops
from ..inputs import AttentionInputs, aligned_layout, compact, compute_dtype, fold_group, unfold_group
from ..masks import Band, Extent
from ..scoring import cut
from ..shapes import Float
from ..similarity import Softmax
from .base import RUNS, Backend, attended_pairs
from .reference import NEG_INF, Result, Tile, attend

# Scores in a block: as many as stay in the caches of two cores, by measurement (docs/log.md).
BLOCK_SCORES = 1 << 20


def cost(call: AttentionInputs) -> Cost:
    pairs = attended_pairs(call)
    size = compute_dtype(call.query.dtype).itemsize
    extra = 3 * size * min(BLOCK_SCORES, call.extent.cells)
    # Blocks stay in the CPU caches: a quarter of the passes of `reference` reach main memory.
    flops = product_flops(pairs, call.width + call.width_v)
    return Cost(flops, 2 * pairs * size, extra, 90e-6)


def run(call: AttentionInputs) -> Result:
    RUNS["blockwise"] += 1
    return run_blocks(call)


BLOCKWISE = Backend(
    name="blockwise",
    summary="the equation on blocks of query rows, without the whole matrix of scores",
    bound={torch.float64: 32.0, torch.float32: 48.0, torch.bfloat16: 3.0, torch.float16: 3.0},
    same_bits_across=("runs at the same number of threads", "layouts"),
    cost=cost,
    run=run,
    lacks=("similarities of one key", "weights", "tracing", "empty values"),
)


class Block(NamedTuple):
    """Ranges of batch rows, of query heads and the key/value heads that they read, of queries, and of the keys that
    these may attend to."""

    batch: slice
    heads_q: slice
    heads_kv: slice
    queries: slice
    keys: slice

    @property
    def query_part(self) -> tuple[slice, slice, slice]:
        return self.batch, self.heads_q, self.queries

    @property
    def key_part(self) -> tuple[slice, slice, slice]:
        return self.batch, self.heads_kv, self.keys

    @property
    def score_part(self) -> tuple[slice, slice, slice, slice]:
        return self.batch, self.heads_q, self.queries, self.keys

    def keep(self, call: AttentionInputs) -> Tensor | None:
        """The mask of the block."""
        keep = call.keep(_bounds(self.queries), _bounds(self.keys))
        return None if keep is None else cut(keep, self.batch, self.heads_q, slice(None), slice(None))


def _bounds(part: slice) -> tuple[int, int]:
    return part.start, part.stop


Parts = dict[int, dict[int, list[Tensor]]]  # rows by first batch row and first key/value head


def run_blocks(call: AttentionInputs) -> Result:
    sink = call.sink
    query, key, value = compact(call.query), compact(call.key), compact(call.value)
    finite = ops.all_finite(query, key, value)
    versions = call.mask_versions()
    step = rows_in_block(call)
    bias = call.bias
    # The bias is split once, so that its gradient is assembled once and not block by block.
    strips = bias.split(step, dim=2) if bias is not None and bias.shape[2] > 1 else None

    outs: Parts = {}
    lses: Parts = {}
    for block in blocks_of(call, step):
        strip = strips[block.queries.start // step] if strips is not None else bias
        arguments = (call, block, versions, Tile(query, key, value, None, strip, sink, finite, call.score_rule))
        if call.needs_grad and torch.is_grad_enabled():
            options = {"preserve_rng_state": call.dropout > 0, "determinism_check": "none"}
            result = checkpoint(_run_block, *arguments, use_reentrant=False, **options)
        else:
            result = _run_block(*arguments)
        assert result is not None
        for parts, part in ((outs, result.out), (lses, result.lse)):
            if part is not None:
                parts.setdefault(block.batch.start, {}).setdefault(block.heads_kv.start, []).append(part)
    return Result(_join(outs), _join(lses) if call.return_lse else None, None)


def _join(parts: Parts) -> Tensor:
    """The blocks joined along rows, then heads, then batch rows."""
    by_batch = [torch.cat([torch.cat(rows, dim=2) for rows in heads.values()], dim=1) for heads in parts.values()]
    return torch.cat(by_batch)


def replace_rows(call: AttentionInputs, result: Result, rows: Tensor | None = None) -> Result:
    """A result with these rows, (batch, heads, len_q), and those with non-finite numbers, from `blockwise`.

    Kernels that sum weighted values before they divide overflow where the equation does not. The other rows do not
    change.
    """
    out = result.out.detach() if result.out.requires_grad else result.out
    overflows = not ops.all_finite(out if out.is_contiguous() else out.transpose(1, 2))
    if overflows:
        nonfinite = ~out.isfinite().all(-1)
        rows = nonfinite if rows is None else rows | nonfinite
    if rows is None or not rows.any():
        return result
    exact = run_blocks(call)
    out = torch.where(rows.unsqueeze(-1), exact.out, result.out)
    if overflows:  # the derivative of what overflowed is not finite, even where its gradient is 0
        out = _WithGradient.apply(out.detach(), exact.out)
        assert isinstance(out, Tensor)
    if exact.lse is None or result.lse is None:
        return Result(out, None, None)
    return Result(out, torch.where(rows, exact.lse, result.lse), None)


class _WithGradient(torch.autograd.Function):
    """`out`, with its gradient passed on to another tensor."""

    @staticmethod
    def forward(ctx, out: Tensor, source: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[None, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, grad


def _run_block(call: AttentionInputs, block: Block, versions: tuple[int, ...], whole: Tile) -> Result:
    """The answer for a block; `whole` has all rows, but the bias of these queries only, and no mask."""
    call.check_mask_unchanged(versions)
    query, key, value, _, bias, sink, finite, rule = whole
    rows = query[block.query_part]
    if block.keys.start >= block.keys.stop:
        # Zeros that are part of the graph, as in `reference`.
        zeros = rows[..., :0].sum(-1, keepdim=True)
        for tensor in (key, value, bias, sink):
            zeros = zeros if tensor is None else zeros + tensor[..., :0].sum().to(zeros.dtype)
        lse = rows.new_full(rows.shape[:3], NEG_INF, dtype=compute_dtype(query.dtype)) if call.return_lse else None
        return Result(zeros.expand(*rows.shape[:3], call.width_v), lse, None)
    if bias is not None:
        bias = cut(bias, block.batch, block.heads_q, slice(None), block.keys)
    if call.forgetting is not None:
        bias = call.forgetting.part(*block.score_part).added_to(bias, compute_dtype(query.dtype))
    if sink is not None and sink.shape[0] > 1:
        sink = sink[block.heads_q]
    # Where numbers are replaced, they are copied: products round alike only if the others have aligned rows too.
    keys, values = aligned_layout(key[block.key_part]), aligned_layout(value[block.key_part])
    rule = None if rule is None else rule.part(*block.score_part)
    tile = Tile(rows, keys, values, block.keep(call), bias, sink, finite, rule)
    result = attend(call, tile)
    return Result(result.out.to(query.dtype), result.lse, None)


def _heads_in_block(call: AttentionInputs) -> tuple[int, int]:
    """Batch rows and key/value heads in a block: all, or fewer if 16 rows of all would exceed `BLOCK_SCORES`."""
    extent = call.extent
    per_head = 16 * call.group * extent.len_k
    heads = max(1, min(call.heads_kv, BLOCK_SCORES // max(1, per_head)))
    batch = max(1, min(extent.batch, BLOCK_SCORES // max(1, per_head * call.heads_kv))) if heads == call.heads_kv else 1
    return batch, heads


def rows_in_block(call: AttentionInputs) -> int:
    batch, heads = _heads_in_block(call)
    scores = batch * heads * call.group * call.extent.len_k
    return max(1, min(call.extent.len_q, BLOCK_SCORES // max(1, scores)))


def key_range_of_rows(
    band: Band | None, extent: Extent, i0: int, i1: int, batch: tuple[int, int] | None = None
) -> tuple[int, int]:
    """The range of keys that any of these rows may attend to."""
    if band is None:
        return 0, extent.len_k
    ranges = [band.bounds_for_rows(b, i0, i1, extent.len_k) for b in range(*(batch or (0, extent.batch)))]
    return min(lo for lo, _ in ranges), max(hi for _, hi in ranges)


def blocks_of(call: AttentionInputs, step: int) -> Iterator[Block]:
    extent = call.extent
    batch, heads = _heads_in_block(call)
    band = None if call.mask is None else call.mask.band(extent)
    for b0 in range(0, extent.batch, batch):
        b1 = min(b0 + batch, extent.batch)
        for g0 in range(0, call.heads_kv, heads):
            g1 = min(g0 + heads, call.heads_kv)
            for i0 in range(0, extent.len_q, step):
                i1 = min(i0 + step, extent.len_q)
                keys = slice(*key_range_of_rows(band, extent, i0, i1, (b0, b1)))
                heads_q = slice(g0 * call.group, g1 * call.group)
                yield Block(slice(b0, b1), heads_q, slice(g0, g1), slice(i0, i1), keys)


def block_gradients(
    call: AttentionInputs,
    sink: Tensor | None,
    lse: Float[Tensor, "b h r"],
    grad_out: Float[Tensor, "b h r dv"] | None,
    grad_lse: Float[Tensor, "b h r"] | None,
) -> list[Tensor | None]:
    """The gradients of query, key, value, bias and sink, for softmax, holding one block of scores at a time.

    With P_ij = exp(s_ij) / Σ_j exp(s_ij), out = P v, P_sink = exp(sink − lse), dP = dout vᵀ, delta_i = Σ_j P_ij dP_ij:

        dv = Pᵀ dout        ds = P ∘ (dP − delta + dlse)        dbias = ds
        dq = scale·ds k     dk = scale·dsᵀ q                    dsink = Σ P_sink (dlse − delta)
    """
    dtype = compute_dtype(call.query.dtype)
    grad_out = call.query.new_zeros(*lse.shape, call.width_v) if grad_out is None else grad_out
    # dlse − delta of each row, where delta = Σ_j P_ij dP_ij; a block has whole rows, and so computes their delta.
    row_term = torch.zeros_like(lse) if grad_lse is None else grad_lse.clone()
    inputs = call.query, call.key, call.value, call.bias
    total = [None if x is None else torch.zeros_like(x, dtype=dtype) for x in inputs]
    for block in blocks_of(call, rows_in_block(call)):
        if block.keys.start < block.keys.stop:
            _add_block_gradients(call, block, total, sink, row_term, grad_out)
    found = [None if x is None or sums is None else sums.to(x.dtype) for x, sums in zip(inputs, total, strict=True)]
    return [*found, None if sink is None else sink_gradient(sink, lse, row_term)]


def sink_gradient(sink: Tensor, lse: Tensor, row_term: Tensor) -> Tensor:
    """The gradient of the sink: a key with value 0 and weight exp(sink − lse)."""
    weight = torch.where(lse == NEG_INF, 0.0, torch.exp(sink.squeeze(-1) - lse))
    by_head = (weight * row_term).sum((0, 2)).reshape(-1, 1, 1)
    return by_head.sum(0, keepdim=True) if sink.shape[0] == 1 else by_head


def _add_block_gradients(
    call: AttentionInputs,
    block: Block,
    total: list[Tensor | None],
    sink: Tensor | None,
    row_term: Tensor,
    grad_out: Tensor,
) -> None:
    assert isinstance(call.similarity, Softmax)
    by_query, by_key, by_value, by_bias = total
    assert by_query is not None and by_key is not None and by_value is not None  # noqa: PT018
    scale = call.similarity.scale_for(call.width)
    rows, keys, dtype = block.query_part, block.key_part, row_term.dtype
    key, value = call.key[keys].to(dtype), call.value[keys].to(dtype)
    heads_kv = key.shape[1]
    shape = (*call.query[rows].shape[:3], key.shape[2])
    query = fold_group(call.query[rows].to(dtype), heads_kv) * scale
    dout = fold_group(grad_out[rows].to(dtype), heads_kv)

    scores = (query @ key.transpose(-1, -2)).view(shape)
    if call.bias is not None:
        scores += cut(call.bias, *block.score_part)
    keep = block.keep(call)
    if keep is not None:
        scores.masked_fill_(~keep, NEG_INF)
    # Not exp(score − lse): that lse was summed from scores which round differently, and large scores differ by much.
    top = scores.amax(-1, keepdim=True)
    sink = sink if sink is None or sink.shape[0] == 1 else sink[block.heads_q]
    top = top if sink is None else torch.maximum(top, sink)
    weights = scores.sub_(torch.where(top == NEG_INF, 0.0, top)).exp_()
    sums = weights.sum(-1, keepdim=True)
    sums = sums if sink is None else sums + torch.exp(sink - top)
    weights.div_(torch.where(sums == 0, 1.0, sums))
    weights = fold_group(weights, heads_kv)
    by_value[keys].add_(weights.transpose(-1, -2) @ dout)

    dscores = dout @ value.transpose(-1, -2)
    delta = (weights * dscores).sum(-1, keepdim=True)
    row_term[rows] -= unfold_group(delta, shape[1]).squeeze(-1)
    dscores.add_(fold_group(row_term[rows].unsqueeze(-1), heads_kv)).mul_(weights)
    by_query[rows] = unfold_group(dscores @ key, shape[1]) * scale
    by_key[keys].add_(dscores.transpose(-1, -2) @ query)
    if by_bias is not None:
        part = cut(by_bias, *block.score_part)
        part.add_(dscores.view(shape).sum_to_size(part.shape))
