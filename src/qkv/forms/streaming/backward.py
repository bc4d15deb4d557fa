"""The derivative of softmax by blocks, where the flash kernel's own does not serve: of a bias, or of lse.

In the forward pass this was:

    s = scale·q kᵀ + bias        P = exp(s − lse)        out = P v        P_sink = exp(sink − lse)

and so, with delta = Σ_j P dP for each row:

    dv = Pᵀ dout                 dP = dout vᵀ            ds = P ∘ (dP − delta + dlse)
    dq = scale·ds k              dk = scale·dsᵀ q        dbias = ds       dsink = Σ P_sink (dlse − delta)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...call import Call, arithmetic, fold_group, unfold_group
from ...shapes import Float
from ...similarity import Softmax
from ..equation import NEVER
from .blocks import Block, blocks_of, cut_heads, rows_in_block


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


def gradients(call: Call, sink: Tensor | None, outcome: Outcome) -> Gradients:
    """dquery, dkey, dvalue, dbias and dsink, holding one block of scores at a time."""
    dtype = arithmetic(call.query.dtype)
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
    safe = torch.where(lse == NEVER, 0.0, lse)
    for block in blocks_of(call, rows_in_block(call)):
        if block.j0 < block.j1:
            _add_block(call, block, found, safe, level, grad_out)
    return Gradients(
        found.query.to(call.query.dtype),
        found.key.to(call.query.dtype),
        found.value.to(call.query.dtype),
        None if found.bias is None or bias is None else found.bias.to(bias.dtype),
        None if sink is None else of_sink(sink, lse, level),
    )


def of_sink(sink: Tensor, lse: Tensor, level: Tensor) -> Tensor:
    """dsink, whose value is 0 and whose weight is exp(sink − lse)."""
    share = torch.where(lse == NEVER, 0.0, torch.exp(sink.squeeze(-1) - lse))
    each = (share * level).sum((0, 2)).reshape(-1, 1, 1)
    return each.sum(0, keepdim=True) if sink.shape[0] == 1 else each


def _add_block(call: Call, block: Block, found: Gradients, lse: Tensor, level: Tensor, grad_out: Tensor) -> None:
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


def _place_in_bias(call: Call, block: Block) -> tuple[slice, ...]:
    b0, b1, g0, g1, i0, i1, j0, j1 = block
    whole = slice(b0, b1), slice(g0 * call.group, g1 * call.group), slice(i0, i1), slice(j0, j1)
    sizes = (1,) * 4 if call.bias is None else call.bias.shape
    return tuple(part if size > 1 else slice(None) for part, size in zip(whole, sizes, strict=True))
