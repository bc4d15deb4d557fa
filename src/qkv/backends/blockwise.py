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
from ..inputs import AttentionInputs, compact, compute_dtype, fold_group, unfold_group
from ..masks import Band, Extent
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
    """Half-open ranges of batch rows b, key/value heads g and queries i, and of the keys j that they may attend to."""

    b0: int
    b1: int
    g0: int
    g1: int
    i0: int
    i1: int
    j0: int
    j1: int


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
        strip = strips[block.i0 // step] if strips is not None else bias
        arguments = (call, block, finite, versions, query, key, value, strip, sink)
        if call.needs_grad and torch.is_grad_enabled():
            result = checkpoint(
                _run_block,
                *arguments,
                use_reentrant=False,
                preserve_rng_state=call.dropout > 0,
                determinism_check="none",
            )
        else:
            result = _run_block(*arguments)
        assert result is not None
        outs.setdefault(block.b0, {}).setdefault(block.g0, []).append(result.out)
        if result.lse is not None:
            lses.setdefault(block.b0, {}).setdefault(block.g0, []).append(result.lse)
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
    out = result.out.detach()
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


def _run_block(
    call: AttentionInputs,
    block: Block,
    finite: bool,
    versions: tuple[int, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    sink: Tensor | None,
) -> Result:
    call.check_mask_unchanged(versions)
    b0, b1, g0, g1, i0, i1, j0, j1 = block
    h0, h1 = g0 * call.group, g1 * call.group
    if j0 >= j1:
        shape = (b1 - b0, h1 - h0, i1 - i0)
        # Zeros that are part of the graph, as in `reference`.
        zeros = query[b0:b1, h0:h1, i0:i1, :0].sum(-1, keepdim=True)
        for tensor in (key, value, bias, sink):
            zeros = zeros if tensor is None else zeros + tensor[..., :0].sum().to(zeros.dtype)
        lse = query.new_full(shape, float("-inf"), dtype=torch.promote_types(query.dtype, torch.float32))
        return Result(zeros.expand(*shape, call.width_v), lse if call.return_lse else None, None)
    keep = None
    if call.mask is not None:
        keep = call.mask.tile(call.extent, (i0, i1), (j0, j1), query.device)
        keep = slice_heads(keep, (b0, b1), (h0, h1))
    if bias is not None:
        bias = slice_heads(bias, (b0, b1), (h0, h1))
        bias = bias[..., j0:j1] if bias.shape[3] > 1 else bias
    if sink is not None and sink.shape[0] > 1:
        sink = sink[h0:h1]
    tile = Tile(
        query[b0:b1, h0:h1, i0:i1],
        key[b0:b1, g0:g1, j0:j1],
        value[b0:b1, g0:g1, j0:j1],
        keep,
        bias,
        sink,
        finite,
    )
    result = attend(call, tile)
    return Result(result.out.to(query.dtype), result.lse, None)


def slice_heads(tensor: Tensor, batch: tuple[int, int], heads: tuple[int, int]) -> Tensor:
    tensor = tensor[batch[0] : batch[1]] if tensor.shape[0] > 1 else tensor
    return tensor[:, heads[0] : heads[1]] if tensor.shape[1] > 1 else tensor


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
            for i0 in range(0, extent.len_q, step):
                i1 = min(i0 + step, extent.len_q)
                j0, j1 = key_range_of_rows(band, extent, i0, i1, (b0, b1))
                yield Block(b0, b1, g0, min(g0 + heads, call.heads_kv), i0, i1, j0, j1)


class Gradients(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    sink: Tensor | None


def block_gradients(
    call: AttentionInputs,
    sink: Tensor | None,
    lse: Float[Tensor, "b h r"],
    grad_out: Float[Tensor, "b h r dv"] | None,
    grad_lse: Float[Tensor, "b h r"] | None,
) -> Gradients:
    """The gradients of softmax attention, holding one block of scores at a time.

    With P_ij = exp(s_ij) / Σ_j exp(s_ij), out = P v, P_sink = exp(sink − lse), dP = dout vᵀ, delta_i = Σ_j P_ij dP_ij:

        dv = Pᵀ dout        ds = P ∘ (dP − delta + dlse)        dbias = ds
        dq = scale·ds k     dk = scale·dsᵀ q                    dsink = Σ P_sink (dlse − delta)
    """
    dtype = compute_dtype(call.query.dtype)
    grad_out = call.query.new_zeros(*lse.shape, call.width_v) if grad_out is None else grad_out
    # dlse − delta of each row, where delta = Σ_j P_ij dP_ij; a block has whole rows, and so computes their delta.
    row_term = torch.zeros_like(lse) if grad_lse is None else grad_lse.clone()
    bias = call.bias
    total = Gradients(
        torch.zeros_like(call.query, dtype=dtype),
        torch.zeros_like(call.key, dtype=dtype),
        torch.zeros_like(call.value, dtype=dtype),
        None if bias is None else torch.zeros_like(bias, dtype=dtype),
        None,
    )
    for block in blocks_of(call, rows_in_block(call)):
        if block.j0 < block.j1:
            _add_block_gradients(call, block, total, sink, row_term, grad_out)
    return Gradients(
        total.query.to(call.query.dtype),
        total.key.to(call.query.dtype),
        total.value.to(call.query.dtype),
        None if total.bias is None or bias is None else total.bias.to(bias.dtype),
        None if sink is None else sink_gradient(sink, lse, row_term),
    )


def sink_gradient(sink: Tensor, lse: Tensor, row_term: Tensor) -> Tensor:
    """The gradient of the sink: a key with value 0 and weight exp(sink − lse)."""
    weight = torch.where(lse == NEG_INF, 0.0, torch.exp(sink.squeeze(-1) - lse))
    by_head = (weight * row_term).sum((0, 2)).reshape(-1, 1, 1)
    return by_head.sum(0, keepdim=True) if sink.shape[0] == 1 else by_head


def _add_block_gradients(
    call: AttentionInputs, block: Block, total: Gradients, sink: Tensor | None, row_term: Tensor, grad_out: Tensor
) -> None:
    assert isinstance(call.similarity, Softmax)
    scale = call.similarity.scale_for(call.width)
    b0, b1, g0, g1, i0, i1, j0, j1 = block
    heads = slice(g0 * call.group, g1 * call.group)
    rows, keys = (slice(b0, b1), heads, slice(i0, i1)), (slice(b0, b1), slice(g0, g1), slice(j0, j1))
    dtype, shape = row_term.dtype, (b1 - b0, heads.stop - heads.start, i1 - i0, j1 - j0)
    query = fold_group(call.query[rows].to(dtype), g1 - g0) * scale
    dout = fold_group(grad_out[rows].to(dtype), g1 - g0)
    key, value = call.key[keys].to(dtype), call.value[keys].to(dtype)

    scores = (query @ key.transpose(-1, -2)).view(shape)
    bias_place = _bias_slices(call, block)
    if call.bias is not None:
        scores += call.bias[bias_place]
    if call.mask is not None:
        keep = call.mask.tile(call.extent, (i0, i1), (j0, j1), scores.device)
        scores.masked_fill_(~slice_heads(keep, (b0, b1), (heads.start, heads.stop)), NEG_INF)
    # Not exp(score − lse): that lse was summed from scores which round differently, and large scores differ by much.
    top = scores.amax(-1, keepdim=True)
    sink = sink if sink is None or sink.shape[0] == 1 else sink[heads]
    top = top if sink is None else torch.maximum(top, sink)
    weights = scores.sub_(torch.where(top == NEG_INF, 0.0, top)).exp_()
    sums = weights.sum(-1, keepdim=True)
    sums = sums if sink is None else sums + torch.exp(sink - top)
    weights.div_(torch.where(sums == 0, 1.0, sums))
    weights = fold_group(weights, g1 - g0)
    total.value[keys].add_(weights.transpose(-1, -2) @ dout)

    dscores = dout @ value.transpose(-1, -2)
    delta = (weights * dscores).sum(-1, keepdim=True)
    row_term[rows] -= unfold_group(delta, shape[1]).squeeze(-1)
    dscores.add_(fold_group(row_term[rows].unsqueeze(-1), g1 - g0)).mul_(weights)
    total.query[rows] = unfold_group(dscores @ key, shape[1]) * scale
    total.key[keys].add_(dscores.transpose(-1, -2) @ query)
    if total.bias is not None:
        part = total.bias[bias_place]
        part.add_(dscores.view(shape).sum_to_size(part.shape))


def _bias_slices(call: AttentionInputs, block: Block) -> tuple[slice, ...]:
    b0, b1, g0, g1, i0, i1, j0, j1 = block
    whole = slice(b0, b1), slice(g0 * call.group, g1 * call.group), slice(i0, i1), slice(j0, j1)
    sizes = (1,) * 4 if call.bias is None else call.bias.shape
    return tuple(part if size > 1 else slice(None) for part, size in zip(whole, sizes, strict=True))
