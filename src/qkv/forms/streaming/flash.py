"""Softmax on torch's flash kernel for CPUs, in pieces, each at the kernel's full speed.

The kernel takes four dimensions, equal widths, a last axis of stride 1, an additive mask and a triangle
from the top left. It returns lse = 0 for a row whose mask is all −inf, and one NaN spoils the rows of
other keys, so it is only given finite numbers, and the empty rows are told apart here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ... import kernels
from ...call import Call, arithmetic, fold_group, level, unfold_group
from ...similarity import Softmax
from ..equation import NEVER, Result, Rows, attend
from .backward import Outcome, gradients, of_sink
from .pieces import Piece, cut

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def reasons_against(call: Call) -> tuple[str, ...]:
    """What the kernel does not know, by sizes and kinds."""
    similarity = call.similarity
    if not isinstance(similarity, Softmax):
        return ("the kernel knows softmax only",)
    if similarity.softcap is None and not call.dropout and call.query.is_cpu:
        return ()
    reasons = []
    if similarity.softcap is not None:
        reasons.append("the kernel has no softcap")
    if call.dropout:
        reasons.append("the kernel has no dropout")
    if not call.query.is_cpu:
        reasons.append(f"the kernel runs on the CPU, not on {call.query.device.type}")
    return tuple(reasons)


def run(call: Call) -> Result | None:
    """The answer for finite numbers, or None where a score overflows: blocks follow the equation to the letter then."""
    similarity = call.similarity
    assert isinstance(similarity, Softmax)
    pieces = None if call.mask is None else cut(call)
    whole = pieces is None or (len(pieces) == 1 and pieces[0].covers(call))
    plain = call.bias is None and similarity.sink is None and call.width == call.width_v
    if whole and plain and not call.needs_grad:
        causal = pieces is not None and pieces[0].causal
        query, key, value = level(call.query), level(call.key), level(call.value)
        out, lse = _kernel(query, key, value, None, causal, similarity.scale_for(call.width))
        return Result(out, lse, None) if kernels.all_finite(lse.transpose(1, 2)) else None
    if isinstance(similarity.sink, Tensor) and not kernels.all_finite(similarity.sink):
        return None
    pieces = cut(call) if pieces is None else pieces
    if call.needs_grad:
        answer = _Pieces.apply(call, pieces, call.query, call.key, call.value, call.bias, call.sink)
    else:
        answer = _merge(call, pieces)
    if answer is None:
        return None
    out, lse = answer  # pyright: ignore[reportGeneralTypeIssues]
    return Result(out, lse, None)


def _kernel(
    query: Tensor, key: Tensor, value: Tensor, additive: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    heads_q, heads_kv = query.shape[1], key.shape[1]
    if heads_q != heads_kv and not causal and additive is None and query.shape[2] < 64 and not query.requires_grad:
        # Few rows: the group's heads become rows, and each key is read once.
        out, lse = _forward(fold_group(query, heads_kv), key, value, 0.0, False, scale=scale)
        return unfold_group(out, heads_q), unfold_group(lse.unsqueeze(-1), heads_q).squeeze(-1)
    return _forward(query, key, value, 0.0, causal, attn_mask=additive, scale=scale)


def _merge(call: Call, pieces: list[Piece]) -> tuple[Tensor, Tensor] | None:
    """Every piece by the kernel, pieces with the same rows joined by log-sum-exp. None: something overflowed."""
    assert isinstance(call.similarity, Softmax)
    scale = call.similarity.scale_for(call.width)
    query, key, value = _equal_widths(call.query, call.key, call.value)
    whole = (0, call.extent.batch, 0, call.extent.len_q)
    out = lse = None
    for rows, group in _by_rows(pieces):
        part_out = part_lse = None
        for piece in group:
            b, i, j = slice(piece.b0, piece.b1), slice(piece.i0, piece.i1), slice(piece.j0, piece.j1)
            additive = piece.additive(call)
            o, s = _kernel(query[b, :, i], key[b, :, j], value[b, :, j], additive, piece.causal, scale)
            if not kernels.all_finite(s.transpose(1, 2)):
                return None
            if additive is not None:
                s = _without_empty_rows(s, additive, piece.causal)
            part_out, part_lse = (o, s) if part_out is None else _joined(part_out, part_lse, o, s)
        assert part_out is not None
        assert part_lse is not None
        if rows == whole:
            out, lse = part_out, part_lse
            break
        if out is None or lse is None:
            out, lse = _nothing_yet(call, value.shape[3])
        b, i = slice(rows[0], rows[1]), slice(rows[2], rows[3])
        out[b, :, i], lse[b, :, i] = part_out, part_lse
    if out is None or lse is None:
        out, lse = _nothing_yet(call, value.shape[3])
    if call.sink is not None:
        out, lse = with_sink(out, lse, call.sink.detach())
    return out[..., : call.width_v], lse


def _without_empty_rows(lse: Tensor, additive: Tensor, causal: bool) -> Tensor:
    """The kernel says lse = 0 for a row that sees nothing; −inf is what it should say."""
    suspects = lse == 0
    if not suspects.any():
        return lse
    if causal:
        rows, keys = lse.shape[2], additive.shape[3]
        additive = additive.masked_fill(lse.new_ones(rows, keys, dtype=torch.bool).triu(1), NEVER)
    return torch.where(suspects & (additive.amax(-1) == NEVER), NEVER, lse)


def _by_rows(pieces: list[Piece]) -> list[tuple[tuple[int, int, int, int], list[Piece]]]:
    groups: dict[tuple[int, int, int, int], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.rows, []).append(piece)
    return list(groups.items())


def _nothing_yet(call: Call, width: int) -> tuple[Tensor, Tensor]:
    shape = call.query.shape[:3]
    return call.query.new_zeros(*shape, width), call.query.new_full(shape, NEVER, dtype=arithmetic(call.query.dtype))


def _joined(out: Tensor, lse: Tensor | None, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_c exp(lse_c − lse)·out_c with lse = log Σ_c exp(lse_c); −inf is a piece with nothing in it."""
    assert lse is not None
    total = torch.logaddexp(lse, more_lse)
    top = torch.where(total == NEVER, 0.0, total)
    first, second = torch.exp(lse - top).unsqueeze(-1), torch.exp(more_lse - top).unsqueeze(-1)
    return (out * first + more * second).to(out.dtype), total


def with_sink(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """The sink joins the sum below the fraction; a row that sees nothing stays as it is."""
    sink = sink.squeeze(-1)
    total = torch.where(lse == NEVER, NEVER, torch.logaddexp(lse, sink))
    share = torch.where(lse == NEVER, 0.0, torch.exp(lse - total))
    return (out * share.unsqueeze(-1)).to(out.dtype), total


def _equal_widths(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Level, and as wide as each other: zeros change neither q·k nor the columns that are asked for."""
    width, width_v = query.shape[3], value.shape[3]
    if width < width_v:
        room = (0, width_v - width)
        query, key = torch.nn.functional.pad(query, room), torch.nn.functional.pad(key, room)
    elif width_v < width:
        value = torch.nn.functional.pad(value, (0, width - width_v))
    return level(query), level(key), level(value)


class _Pieces(torch.autograd.Function):
    """Forward in pieces; backward by the kernel's own, piece by piece, with the whole row's out and lse.

    In the forward pass this was: P_ij = exp(s_ij − lse_i), out_i = Σ_j P_ij v_j. Since
    ds_ij = P_ij (dout_i·v_j − dout_i·out_i) needs only the row's final lse and out, each piece adds its
    share of dq, dk and dv without the others. A gradient of the bias or of lse is not the kernel's: `backward`
    has it. A gradient that is differentiated again is torch's own of the equation.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx,
        call: Call,
        pieces: list[Piece],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        sink: Tensor | None,
    ) -> tuple[Tensor, Tensor] | None:
        merged = _merge(call, pieces)
        if merged is None:
            return None
        out, lse = merged
        ctx.call, ctx.pieces = call._replace(query=None, key=None, value=None, bias=None), pieces
        ctx.save_for_backward(query, key, value, bias, sink, out, lse)
        ctx.versions = call.mask_versions()
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, grad_out: Tensor | None, grad_lse: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, bias, sink, out, lse = ctx.saved_tensors
        call: Call = ctx.call._replace(query=query, key=key, value=value, bias=bias)
        wants = ctx.needs_input_grad[2:]
        if grad_out is None and grad_lse is None:
            return (None,) * 7
        call.check_mask_is_as_it_was(ctx.versions)
        if torch.is_grad_enabled():
            return None, None, *_by_the_equation(call, sink, wants, grad_out, grad_lse)
        empty = lse == NEVER
        if grad_out is not None and empty.any():
            # What comes back for a row that saw nothing must not reach a key, whatever it is.
            grad_out = grad_out.masked_fill(empty.unsqueeze(-1), 0.0)
        if grad_lse is not None or wants[3]:
            by_blocks = gradients(call, sink, Outcome(lse, grad_out, grad_lse))
            return None, None, *(found if want else None for found, want in zip(by_blocks, wants, strict=True))
        assert grad_out is not None
        dq, dk, dv = _gradients(call, ctx.pieces, grad_out, out, lse)
        dsink = None
        if wants[4] and sink is not None:
            dsink = of_sink(sink, lse, -(grad_out.to(lse.dtype) * out.to(lse.dtype)).sum(-1))
        return None, None, dq, dk, dv, None, dsink


def _by_the_equation(
    call: Call, sink: Tensor | None, wants: tuple[bool, ...], grad_out: Tensor | None, grad_lse: Tensor | None
) -> list[Tensor | None]:
    """Gradients that can be differentiated again: torch's own of the equation, all scores at once."""
    extent = call.extent
    keep = None
    if call.mask is not None:
        keep = call.mask.tile(extent, (0, extent.len_q), (0, extent.len_k), call.query.device)
    inputs = (call.query, call.key, call.value, call.bias, sink)
    with torch.enable_grad():
        rows = Rows(call.query, call.key, call.value, keep, call.bias, sink, finite=True)
        result = attend(call._replace(return_lse=True), rows)
        out = result.out.to(call.query.dtype)
    pairs = [(o, g) for o, g in ((out, grad_out), (result.lse, grad_lse)) if o is not None and g is not None]
    asked = [t for t, want in zip(inputs, wants, strict=True) if want and t is not None]
    outputs, grads = [o for o, _ in pairs], [g for _, g in pairs]
    found = iter(torch.autograd.grad(outputs, asked, grads, create_graph=True, allow_unused=True))
    return [next(found) if want and t is not None else None for t, want in zip(inputs, wants, strict=True)]


def gradients_of(call: Call, grad_out: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv of a call whose keys are some of those that its rows see: out and lse are those of all of them."""
    return _gradients(call, cut(call), grad_out, out, lse)


def _gradients(
    call: Call, pieces: list[Piece], grad_out: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    assert isinstance(call.similarity, Softmax)
    scale = call.similarity.scale_for(call.width)
    query, key, value = _equal_widths(call.query, call.key, call.value)
    room = (0, value.shape[3] - out.shape[3])
    grad_out, out = torch.nn.functional.pad(grad_out, room), torch.nn.functional.pad(out, room)
    # exp(−inf − 0) = 0: a row that sees nothing gives nothing.
    lse = torch.where(lse == NEVER, 0.0, lse)

    def of_piece(piece: Piece, b: slice, i: slice, j: slice) -> tuple[Tensor, Tensor, Tensor]:
        inputs = grad_out[b, :, i], query[b, :, i], key[b, :, j], value[b, :, j], out[b, :, i], lse[b, :, i]
        return _backward(*inputs, 0.0, piece.causal, attn_mask=piece.additive(call), scale=scale)

    if len(pieces) == 1 and pieces[0].covers(call):
        everything = slice(None)
        dq, dk, dv = of_piece(pieces[0], everything, everything, everything)
    else:
        dq, dk, dv = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for piece in pieces:
            b, i, j = slice(piece.b0, piece.b1), slice(piece.i0, piece.i1), slice(piece.j0, piece.j1)
            more_q, more_k, more_v = of_piece(piece, b, i, j)
            dq[b, :, i] += more_q
            dk[b, :, j] += more_k
            dv[b, :, j] += more_v
    return dq[..., : call.width], dk[..., : call.width], dv[..., : call.width_v]
