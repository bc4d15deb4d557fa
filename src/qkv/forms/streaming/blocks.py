"""The equation on blocks of query rows, one after the other, recomputed in the backward pass.

It knows everything that `dense` knows, since it runs the same lines, and holds one block of scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ... import kernels
from ...call import Call, compact
from ...masks import Band, Extent
from ..equation import Result, Rows, attend

# Scores in a block: as many as stay near two cores. Found by trial: docs/log.md.
BLOCK = 1 << 20


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


def run(call: Call) -> Result:
    sink = call.sink
    query, key, value = compact(call.query), compact(call.key), compact(call.value)
    finite = kernels.all_finite(query, key, value)
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
    call: Call,
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
    rows = Rows(
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


def _units(call: Call) -> tuple[int, int]:
    """How many batch rows and key/value heads a block spans: all, or fewer where 16 rows would be too large."""
    extent = call.extent
    per_head = 16 * call.group * extent.len_k
    heads = max(1, min(call.heads_kv, BLOCK // max(1, per_head)))
    batch = max(1, min(extent.batch, BLOCK // max(1, per_head * call.heads_kv))) if heads == call.heads_kv else 1
    return batch, heads


def rows_in_block(call: Call) -> int:
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


def blocks_of(call: Call, step: int) -> Iterator[Block]:
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


def _assembled(call: Call, outs: dict[tuple[int, int, int, int], list[Result]]) -> Result:
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
