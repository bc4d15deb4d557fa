"""`blockwise`: the equation on blocks of query rows, one after the other, recomputed in the backward pass.

It takes what `reference` takes, since it runs the same lines, but holds one block of scores instead of all of them.
Derivatives of a bias and of the log-sum-exp are written out block by block (`block_gradients`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .. import ops
from ..cost.price import Cost, product_flops
from ..inputs import AttentionInputs, compact, compute_dtype, fold_group, unfold_group
from ..masks import Band, Extent
from ..shapes import Float
from ..similarity import Argmax, Softmax
from . import work
from .base import RUNS, Backend, population
from .reference import NEG_INF, Result, Tile, attend

# Scores in a block: as many as stay in the caches of two cores. Found by trial: docs/log.md.
BLOCK = 1 << 20


def reasons_against(call: AttentionInputs) -> tuple[str, ...]:
    reasons = []
    if isinstance(call.similarity, Argmax):
        reasons.append("Argmax sums nothing; backend='argmax' keeps a running best")
    if call.return_weights:
        reasons.append("return_weights asks for the len_q x len_k matrix, which is never made here")
    if call.traced:
        reasons.append(
            "under torch.compile, torch.export, torch.func and forward-mode AD the values of tensors are not known"
        )
    if call.width_v == 0:
        reasons.append("values have width 0")
    return tuple(reasons)


def cost(call: AttentionInputs) -> Cost:
    pairs = population(call)
    size = compute_dtype(call.query.dtype).itemsize
    held = 3 * size * min(BLOCK, call.extent.cells)
    # Blocks stay in the caches: a quarter of the reference backend's passes reach main memory.
    flops = product_flops(pairs, call.width + call.width_v)
    return Cost(flops, 2 * pairs * size, held, 90e-6, work=partial(work.blockwise, call, BLOCK))


def run(call: AttentionInputs) -> Result:
    RUNS["blockwise"] += 1
    return run_blocks(call)


BLOCKWISE = Backend(
    name="blockwise",
    summary="the equation on blocks of query rows, no matrix of scores",
    bound={torch.float64: 32.0, torch.float32: 48.0, torch.bfloat16: 3.0, torch.float16: 3.0},
    keeps=("runs at the same number of threads", "layouts"),
    reasons_against=reasons_against,
    cost=cost,
    run=run,
)


class Block(NamedTuple):
    """Batch rows, key/value heads and queries of a block, and the keys that any of them may see."""

    b0: int
    b1: int
    g0: int
    g1: int
    i0: int
    i1: int
    j0: int
    j1: int


def run_blocks(call: AttentionInputs) -> Result:
    sink = call.sink
    query, key, value = compact(call.query), compact(call.key), compact(call.value)
    finite = ops.all_finite(query, key, value)
    versions = call.mask_versions()
    step = rows_in_block(call)
    bias = call.bias
    # One split of the bias, so that its gradient is put together once and not block by block.
    strips = bias.split(step, dim=2) if bias is not None and bias.shape[2] > 1 else None

    outs: dict[tuple[int, int, int, int], list[Result]] = {}
    for block in blocks_of(call, step):
        strip = strips[block.i0 // step] if strips is not None else bias
        arguments = (call, block, finite, versions, query, key, value, strip, sink)
        if call.needs_grad and torch.is_grad_enabled():
            result = checkpoint(
                _block,
                *arguments,
                use_reentrant=False,
                preserve_rng_state=call.dropout > 0,
                determinism_check="none",
            )
        else:
            result = _block(*arguments)
        assert result is not None
        outs.setdefault(block[:4], []).append(result)
    return _assembled(call, outs)


def _block(
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
    call.check_mask_is_as_it_was(versions)
    b0, b1, g0, g1, i0, i1, j0, j1 = block
    h0, h1 = g0 * call.group, g1 * call.group
    if j0 >= j1:
        shape = (b1 - b0, h1 - h0, i1 - i0)
        # Still part of the graph, like the row of zeros that dense gives.
        nothing = query[b0:b1, h0:h1, i0:i1, :0].sum(-1, keepdim=True)
        for tensor in (key, value, bias, sink):
            nothing = nothing if tensor is None else nothing + tensor[..., :0].sum().to(nothing.dtype)
        lse = query.new_full(shape, float("-inf"), dtype=torch.promote_types(query.dtype, torch.float32))
        return Result(nothing.expand(*shape, call.width_v), lse if call.return_lse else None, None)
    keep = None
    if call.mask is not None:
        keep = call.mask.tile(call.extent, (i0, i1), (j0, j1), query.device)
        keep = cut_heads(keep, (b0, b1), (h0, h1))
    if bias is not None:
        bias = cut_heads(bias, (b0, b1), (h0, h1))
        bias = bias[..., j0:j1] if bias.shape[3] > 1 else bias
    if sink is not None and sink.shape[0] > 1:
        sink = sink[h0:h1]
    rows = Tile(
        query[b0:b1, h0:h1, i0:i1],
        key[b0:b1, g0:g1, j0:j1],
        value[b0:b1, g0:g1, j0:j1],
        keep,
        bias,
        sink,
        finite,
    )
    result = attend(call, rows)
    return Result(result.out.to(query.dtype), result.lse, None)


def cut_heads(tensor: Tensor, batch: tuple[int, int], heads: tuple[int, int]) -> Tensor:
    tensor = tensor[batch[0] : batch[1]] if tensor.shape[0] > 1 else tensor
    return tensor[:, heads[0] : heads[1]] if tensor.shape[1] > 1 else tensor


def _units(call: AttentionInputs) -> tuple[int, int]:
    """How many batch rows and key/value heads a block spans: all, or fewer where 16 rows would be too large."""
    extent = call.extent
    per_head = 16 * call.group * extent.len_k
    heads = max(1, min(call.heads_kv, BLOCK // max(1, per_head)))
    batch = max(1, min(extent.batch, BLOCK // max(1, per_head * call.heads_kv))) if heads == call.heads_kv else 1
    return batch, heads


def rows_in_block(call: AttentionInputs) -> int:
    batch, heads = _units(call)
    scores = batch * heads * call.group * call.extent.len_k
    return max(1, min(call.extent.len_q, BLOCK // max(1, scores)))


def keys_of_rows(
    band: Band | None, extent: Extent, i0: int, i1: int, batch: tuple[int, int] | None = None
) -> tuple[int, int]:
    """The range of keys that some of these rows may see."""
    if band is None:
        return 0, extent.len_k
    ranges = [band.bounds_for_rows(b, i0, i1, extent.len_k) for b in range(*(batch or (0, extent.batch)))]
    return min(lo for lo, _ in ranges), max(hi for _, hi in ranges)


def blocks_of(call: AttentionInputs, step: int) -> Iterator[Block]:
    extent = call.extent
    batch, heads = _units(call)
    band = None if call.mask is None else call.mask.band(extent)
    for b0 in range(0, extent.batch, batch):
        b1 = min(b0 + batch, extent.batch)
        for g0 in range(0, call.heads_kv, heads):
            for i0 in range(0, extent.len_q, step):
                i1 = min(i0 + step, extent.len_q)
                j0, j1 = keys_of_rows(band, extent, i0, i1, (b0, b1))
                yield Block(b0, b1, g0, min(g0 + heads, call.heads_kv), i0, i1, j0, j1)


def _assembled(call: AttentionInputs, outs: dict[tuple[int, int, int, int], list[Result]]) -> Result:
    """Rows beside rows, then heads, then batch."""
    strips = {
        unit: (
            torch.cat([r.out for r in results], dim=2),
            torch.cat([r.lse for r in results if r.lse is not None], dim=2) if call.return_lse else None,
        )
        for unit, results in outs.items()
    }
    by_batch: dict[int, list[tuple[Tensor, Tensor | None]]] = {}
    for unit, strip in strips.items():
        by_batch.setdefault(unit[0], []).append(strip)
    outputs = [torch.cat([out for out, _ in heads], dim=1) for heads in by_batch.values()]
    lse = None
    if call.return_lse:
        lse = torch.cat([torch.cat([x for _, x in heads if x is not None], dim=1) for heads in by_batch.values()])
    return Result(torch.cat(outputs), lse, None)


class Gradients(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    sink: Tensor | None


class Outcome(NamedTuple):
    """The forward pass's lse, and what came back for it and for out."""

    lse: Float[Tensor, "b h r"]
    grad_out: Float[Tensor, "b h r dv"] | None
    grad_lse: Float[Tensor, "b h r"] | None


def block_gradients(call: AttentionInputs, sink: Tensor | None, outcome: Outcome) -> Gradients:
    """dquery, dkey, dvalue, dbias and dsink, holding one block of scores at a time."""
    dtype = compute_dtype(call.query.dtype)
    lse, grad_out, grad_lse = outcome
    grad_out = call.query.new_zeros(*lse.shape, call.width_v) if grad_out is None else grad_out
    # What each row's weights are measured against, dlse − delta; a block sees whole rows and so knows their delta.
    level = torch.zeros_like(lse) if grad_lse is None else grad_lse.clone()
    bias = call.bias
    found = Gradients(
        torch.zeros_like(call.query, dtype=dtype),
        torch.zeros_like(call.key, dtype=dtype),
        torch.zeros_like(call.value, dtype=dtype),
        None if bias is None else torch.zeros_like(bias, dtype=dtype),
        None,
    )
    # exp(−inf − 0) = 0: a row that sees nothing gives nothing.
    safe = torch.where(lse == NEG_INF, 0.0, lse)
    for block in blocks_of(call, rows_in_block(call)):
        if block.j0 < block.j1:
            _add_block(call, block, found, safe, level, grad_out)
    return Gradients(
        found.query.to(call.query.dtype),
        found.key.to(call.query.dtype),
        found.value.to(call.query.dtype),
        None if found.bias is None or bias is None else found.bias.to(bias.dtype),
        None if sink is None else sink_gradient(sink, lse, level),
    )


def sink_gradient(sink: Tensor, lse: Tensor, level: Tensor) -> Tensor:
    """dsink, whose value is 0 and whose weight is exp(sink − lse)."""
    share = torch.where(lse == NEG_INF, 0.0, torch.exp(sink.squeeze(-1) - lse))
    each = (share * level).sum((0, 2)).reshape(-1, 1, 1)
    return each.sum(0, keepdim=True) if sink.shape[0] == 1 else each


def _add_block(
    call: AttentionInputs, block: Block, found: Gradients, lse: Tensor, level: Tensor, grad_out: Tensor
) -> None:
    assert isinstance(call.similarity, Softmax)
    scale = call.similarity.scale_for(call.width)
    b0, b1, g0, g1, i0, i1, j0, j1 = block
    heads = slice(g0 * call.group, g1 * call.group)
    rows, keys = (slice(b0, b1), heads, slice(i0, i1)), (slice(b0, b1), slice(g0, g1), slice(j0, j1))
    dtype, shape = lse.dtype, (b1 - b0, heads.stop - heads.start, i1 - i0, j1 - j0)
    query = fold_group(call.query[rows].to(dtype), g1 - g0) * scale
    dout = fold_group(grad_out[rows].to(dtype), g1 - g0)
    key, value = call.key[keys].to(dtype), call.value[keys].to(dtype)

    scores = (query @ key.transpose(-1, -2)).view(shape)
    place = _place_in_bias(call, block)
    if call.bias is not None:
        scores += call.bias[place]
    weights = scores.sub_(lse[rows].unsqueeze(-1)).exp_()
    if call.mask is not None:
        keep = call.mask.tile(call.extent, (i0, i1), (j0, j1), weights.device)
        weights.masked_fill_(~cut_heads(keep, (b0, b1), (heads.start, heads.stop)), 0.0)
    weights = fold_group(weights, g1 - g0)
    found.value[keys].add_(weights.transpose(-1, -2) @ dout)

    dscores = dout @ value.transpose(-1, -2)
    delta = (weights * dscores).sum(-1, keepdim=True)
    level[rows] -= unfold_group(delta, shape[1]).squeeze(-1)
    dscores.add_(fold_group(level[rows].unsqueeze(-1), g1 - g0)).mul_(weights)
    found.query[rows] = unfold_group(dscores @ key, shape[1]) * scale
    found.key[keys].add_(dscores.transpose(-1, -2) @ query)
    if found.bias is not None:
        part = found.bias[place]
        part.add_(dscores.view(shape).sum_to_size(part.shape))


def _place_in_bias(call: AttentionInputs, block: Block) -> tuple[slice, ...]:
    b0, b1, g0, g1, i0, i1, j0, j1 = block
    whole = slice(b0, b1), slice(g0 * call.group, g1 * call.group), slice(i0, i1), slice(j0, j1)
    sizes = (1,) * 4 if call.bias is None else call.bias.shape
    return tuple(part if size > 1 else slice(None) for part, size in zip(whole, sizes, strict=True))
