"""One block: some queries, some keys, the backends of one process. Forward, an answer and its lse; backward, its share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..backends import sdpa
from ..backends.base import RUNS
from ..backends.dispatch import choose
from ..backends.reference import NEG_INF
from ..inputs import AttentionInputs, read_inputs
from ..similarity import Softmax
from .share import Share

Run = tuple[int, int]
TILE = 1 << 18  # numbers of an answer that are held beside those that were merged


class Rows(NamedTuple):
    """Queries in global positions, and all that belongs to them. out, lse: being merged in the forward pass, final in
    the backward pass, in which grad_out and grad_lse come back and by_query is added to. bias: of these rows, or None.
    """

    rows: Run
    query: Tensor
    out: Tensor
    lse: Tensor
    grad_out: Tensor | None
    grad_lse: Tensor | None
    by_query: Tensor | None
    bias: Tensor | None

    def cut(self, start: int, stop: int) -> Rows:
        """Some of them, counted from the first."""
        part = slice(start, stop)
        bias = self.bias
        if bias is not None and bias.shape[2] > 1:
            bias = bias[:, :, part]
        return Rows(
            (self.rows[0] + start, self.rows[0] + stop),
            self.query[:, :, part],
            self.out[:, :, part],
            self.lse[:, :, part],
            None if self.grad_out is None else self.grad_out[:, :, part],
            None if self.grad_lse is None else self.grad_lse[:, :, part],
            None if self.by_query is None else self.by_query[:, :, part],
            bias,
        )


def tiles(share: Share, rows: Rows) -> Iterator[Rows]:
    """The rows in parts whose answers are small."""
    count, extent = rows.rows[1] - rows.rows[0], share.extent
    step = max(256, TILE // max(1, extent.batch * extent.heads * max(share.call.width, share.call.width_v)))
    for start in range(0, count, step):
        yield rows.cut(start, min(start + step, count))


def _block(share: Share, tile: Rows, key: Tensor, value: Tensor, keys: Run) -> tuple[AttentionInputs, slice] | None:
    """The call of these rows and those of the keys that they may see; None where they see none."""
    lo, hi = (0, share.extent.len_k) if share.mask is None else share.mask.bounds(share.extent, tile.rows)
    lo, hi = max(lo, keys[0]), min(hi, keys[1])
    if lo >= hi or not tile.query.numel():
        return None
    seen = slice(lo - keys[0], hi - keys[0])
    similarity = share.call.similarity
    assert isinstance(similarity, Softmax)
    if similarity.sink is not None:  # it joins once, at the end
        similarity = Softmax(similarity.scale_for(share.call.width), similarity.softcap)
    mask = None if share.mask is None else share.mask.part(share.extent, tile.rows, (lo, hi))
    bias = tile.bias
    if bias is not None and bias.shape[3] > 1:
        bias = bias[..., lo:hi]
    key, value = key[:, :, seen], value[:, :, seen]
    backend = share.call.backend
    return read_inputs(tile.query, key, value, similarity, mask, bias, 0.0, backend, True, False), seen


def attend(share: Share, tile: Rows, key: Tensor, value: Tensor, keys: Run) -> tuple[Tensor, Tensor] | None:
    """out and lse of the tile over these keys alone; None where it sees none of them."""
    block = _block(share, tile, key, value, keys)
    if block is None:
        return None
    call, _ = block
    result = choose(call).run(call)
    assert result.lse is not None
    return result.out, result.lse


def gradients(
    share: Share,
    rows: Rows,
    key: Tensor,
    value: Tensor,
    keys: Run,
    by_key: Tensor,
    by_value: Tensor,
    by_bias: Tensor | None,
    first: int,
) -> None:
    """Add what these keys have to do with the gradients of the rows, and the rows with theirs. first: the query that
    the bias begins with."""
    for tile in tiles(share, rows):
        block = _block(share, tile, key, value, keys)
        if block is None:
            continue
        call, seen = block
        assert tile.grad_out is not None
        assert tile.by_query is not None
        if _flash_serves(call, tile, by_bias):
            RUNS["parallel.flash"] += 1
            found = sdpa.gradients_of(call, tile.grad_out, tile.out.to(call.query.dtype), tile.lse)
        else:
            RUNS["parallel.equation"] += 1
            *found, of_bias = _by_autograd(call, tile, by_bias is not None)
            if by_bias is not None and of_bias is not None:
                lo = keys[0] + seen.start
                _bias_place(by_bias, tile.rows[0] - first, call, lo).add_(of_bias)
        tile.by_query.add_(found[0])
        by_key[:, :, seen].add_(found[1])
        by_value[:, :, seen].add_(found[2])


def _bias_place(by_bias: Tensor, row: int, call: AttentionInputs, lo: int) -> Tensor:
    rows = slice(row, row + call.extent.len_q) if by_bias.shape[2] > 1 else slice(None)
    keys = slice(lo, lo + call.extent.len_k) if by_bias.shape[3] > 1 else slice(None)
    return by_bias[:, :, rows, keys]


def _flash_serves(call: AttentionInputs, tile: Rows, by_bias: Tensor | None) -> bool:
    if by_bias is not None or sdpa.flash_reasons_against(call):
        return False
    if tile.grad_lse is not None and tile.grad_lse.any():
        return False
    if not ops.all_finite(call.query, call.key, call.value):
        return False
    return not (tile.lse.isnan() | (tile.lse == torch.inf)).any()


def _by_autograd(call: AttentionInputs, tile: Rows, of_bias: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """By torch's own derivative of the block, with the weight that it has in the whole.

    out = Σ_c w_c out_c with w_c = exp(lse_c − lse), and so dout_c = w_c dout and
    dlse_c = w_c (dout·out_c − dout·out + dlse).
    """
    assert tile.grad_out is not None
    dtype = tile.lse.dtype
    with torch.enable_grad():
        # In the arithmetic's dtype: what two rounded answers differ by would have no digits left.
        query, key, value = (
            tensor.detach().to(dtype).requires_grad_() for tensor in (call.query, call.key, call.value)
        )
        bias = call.bias.detach().to(dtype).requires_grad_(of_bias) if call.bias is not None else None
        inputs = [query, key, value, *([bias] if bias is not None and of_bias else [])]
        own = read_inputs(query, key, value, call.similarity, call.mask, bias, 0.0, "auto", True, False)
        result = choose(own).run(own)
    assert result.lse is not None
    with torch.no_grad():
        lse = torch.where(tile.lse == NEG_INF, 0.0, tile.lse)
        weight = torch.exp(result.lse - lse)
        grad_out, out = tile.grad_out.to(dtype), result.out.to(dtype)
        level = (grad_out * out).sum(-1) - (grad_out * tile.out.to(dtype)).sum(-1)
        if tile.grad_lse is not None:
            level = level + tile.grad_lse
        # A row of the block that sees nothing has weight 0, and nothing goes back through it.
        nothing = result.lse == NEG_INF
        by_lse = torch.where(nothing, 0.0, weight * level)
        by_out = torch.where(nothing.unsqueeze(-1), 0.0, weight.unsqueeze(-1) * grad_out)
    found = torch.autograd.grad(
        [result.out, result.lse], inputs, [by_out.to(result.out.dtype), by_lse.to(result.lse.dtype)], allow_unused=True
    )
    filled = [torch.zeros_like(t) if g is None else g for g, t in zip(found, inputs, strict=True)]
    return filled[0], filled[1], filled[2], filled[3] if len(filled) > 3 else None
