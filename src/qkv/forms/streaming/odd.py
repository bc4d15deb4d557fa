"""Calls in which some number is NaN or infinite.

Most often such numbers stand where nobody looks, in padding or in a buffer's unwritten end. They are set to 0 and
the engine, flash for one, runs as ever: every row that attends to none of them comes out in the same bits as without.
Rows that do attend to one are then taken from the equation itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...call import Call, fold_group, unfold_group
from ...shapes import Bool
from ..equation import NEVER, Result
from . import blocks


def run(call: Call, engine: Callable[[Call], Result | None]) -> Result | None:
    """The answer, or None where the engine cannot serve even without the odd numbers."""
    odd_query = ~call.query.isfinite().all(-1)
    odd_key = ~(call.key.isfinite().all(-1) & call.value.isfinite().all(-1))
    touched = _touched(call, odd_query, odd_key)
    result = engine(
        call._replace(
            query=call.query.masked_fill(odd_query.unsqueeze(-1), 0.0),
            key=call.key.masked_fill(odd_key.unsqueeze(-1), 0.0),
            value=torch.where(call.value.isfinite(), call.value, 0.0),
        )
    )
    if result is None or not touched.any():
        return result
    exact = blocks.run(call)
    out = torch.where(touched.unsqueeze(-1), exact.out, result.out)
    if exact.lse is None or result.lse is None:
        return Result(out, None, None)
    return Result(out, torch.where(touched, exact.lse, result.lse), None)


def _touched(call: Call, odd_query: Tensor, odd_key: Tensor) -> Bool[Tensor, "batch heads len_q"]:
    """The rows that attend to an odd key or value, and the odd queries that attend to anything."""
    extent = call.extent
    touched = torch.zeros_like(odd_query)
    step = max(1, blocks.BLOCK // max(1, extent.batch * extent.heads * extent.len_k))
    band = None if call.mask is None else call.mask.band(extent)
    for i0 in range(0, extent.len_q, step):
        i1 = min(i0 + step, extent.len_q)
        j0, j1 = blocks.keys_of_rows(band, extent, i0, i1)
        if not (odd_key[..., j0:j1].any() or odd_query[:, :, i0:i1].any()):
            continue
        keep = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=call.query.device)
        if call.mask is not None:
            keep = call.mask.tile(extent, (i0, i1), (j0, j1), call.query.device)
        if call.bias is not None:
            bias = call.bias[:, :, i0:i1] if call.bias.shape[2] > 1 else call.bias
            bias = bias[..., j0:j1] if bias.shape[3] > 1 else bias
            keep = keep & (bias != NEVER)
        keep = keep.expand(extent.batch, extent.heads, i1 - i0, j1 - j0)
        sees_odd = (fold_group(keep, call.heads_kv) & odd_key[..., j0:j1].unsqueeze(-2)).any(-1, keepdim=True)
        sees_odd = unfold_group(sees_odd, extent.heads).squeeze(-1)
        touched[:, :, i0:i1] = sees_odd | (odd_query[:, :, i0:i1] & keep.any(-1))
    return touched
