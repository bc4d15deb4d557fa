"""`sdpa`: softmax on torch's flash kernel for CPUs, without the len_q × len_k matrix.

The kernel runs on pieces of the mask that it can represent (rectangles, and triangles below a diagonal); pieces with
the same rows are merged by log-sum-exp. It takes four dimensions, equal widths, a last axis of stride 1, an additive
mask and a triangle from the top left. It returns lse = 0 for a row whose mask is all −inf, and a NaN in one key affects
other rows too. It is therefore given finite numbers only: rows that attend to a non-finite number are computed by
`blockwise`, and so is a call whose scores overflow. `blockwise` also has the gradients of a bias and of lse, which the
kernel lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import torch
from torch import Tensor

from .. import ops
from ..cost.price import Cost, product_flops
from ..inputs import AttentionInputs, aligned_layout, compute_dtype, fold_group, unfold_group
from ..masks import Extent
from ..scoring import cut
from ..shapes import Bool
from ..similarity import Softmax
from . import blockwise
from .base import RUNS, Backend, OutputGradients, attended_pairs, reasons_for
from .blockwise import block_gradients, replace_rows, sink_gradient
from .pieces import Piece, cut_mask
from .reference import NEG_INF, Result, Tile, attend

_FLASH_KEYS = 512  # keys in a block of torch's kernel
_flash_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def cost(call: AttentionInputs) -> Cost:
    extent = call.extent
    pairs = attended_pairs(call)
    size = compute_dtype(call.query.dtype).itemsize
    flops = product_flops(pairs, call.width + call.width_v)
    rows = extent.batch * extent.heads * extent.len_q
    # A block of the kernel is 32 queries of one head, whether there are that many or not.
    executed = flops * max(1, 32 // max(extent.len_q, 1))
    if call.mask is not None and extent.len_q == extent.len_k and pairs < extent.cells:
        executed = max(executed, product_flops(_causal_pairs(extent), call.width + call.width_v))
    extra = size * rows + (size * rows * call.width_v if call.mask is not None else 0)
    traffic, mode = size * rows * (call.width + call.width_v), "few" if extent.len_q <= 16 else ""
    return Cost(flops, traffic, extra, 10e-6, executed, mode)


def _causal_pairs(extent: Extent) -> int:
    """Pairs that the kernel computes below a diagonal: blocks of keys are computed whole, even if partly masked."""
    whole, rest = divmod(extent.len_k, _FLASH_KEYS)
    pairs = _FLASH_KEYS * _FLASH_KEYS * whole * (whole + 1) // 2 + rest * extent.len_k
    return extent.batch * extent.heads * pairs


def run(call: AttentionInputs) -> Result:
    finite = ops.all_finite(call.query, call.key, call.value)
    result = run_flash(call) if finite else run_nonfinite(call, run_flash)
    if result is None:
        RUNS["sdpa.overflow"] += 1
        return blockwise.run(call)
    RUNS["sdpa" if finite else "sdpa.nonfinite"] += 1
    return replace_rows(call, result) if finite else result


# What torch's kernel lacks; the pieces of a mask are cut from its contents.
FLASH = "PyTorch's flash kernel"
FLASH_LACKS = (
    "similarities other than softmax",
    "softcap",
    "forgetting",
    "score functions",
    "dropout",
    "other devices",
)
SDPA = Backend(
    name="sdpa",
    summary="PyTorch's flash kernel on pieces of the mask, no matrix of scores",
    # The kernel's exp is accurate to 20 ulp, and weights are rounded to half precision before the second product.
    bound={torch.float64: 32.0, torch.float32: 48.0, torch.bfloat16: 3.0, torch.float16: 3.0},
    same_bits_across=("runs at the same number of threads", "layouts"),
    cost=cost,
    run=run,
    lacks=(*FLASH_LACKS, "weights", "tracing", "empty values"),
    engine=FLASH,
)


def flash_reasons_against(call: AttentionInputs) -> tuple[str, ...]:
    """Why torch's flash kernel cannot run the call: the similarity, dropout or the device."""
    return reasons_for(call, FLASH_LACKS, FLASH)


def run_flash(call: AttentionInputs) -> Result | None:
    """The answer for finite inputs; None if a score overflows, which `blockwise` then computes as the equation says."""
    similarity = call.similarity
    assert isinstance(similarity, Softmax)
    pieces = None if call.mask is None else cut_mask(call)
    whole = pieces is None or (len(pieces) == 1 and pieces[0].covers(call))
    plain = call.bias is None and similarity.sink is None and call.width == call.width_v
    if whole and plain and not call.needs_grad:
        causal = pieces is not None and pieces[0].causal
        query, key, value = aligned_layout(call.query), aligned_layout(call.key), aligned_layout(call.value)
        out, lse = _kernel(query, key, value, None, causal, similarity.scale_for(call.width))
        return Result(out, lse, None) if ops.all_finite(lse.transpose(1, 2)) else None
    if isinstance(similarity.sink, Tensor) and not ops.all_finite(similarity.sink):
        return None
    pieces = cut_mask(call) if pieces is None else pieces
    if call.needs_grad:
        answer = _PiecewiseAttention.apply(call, pieces, call.query, call.key, call.value, call.bias, call.sink)
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
        # With few queries the heads of a group become rows, and each key is read once.
        out, lse = _flash_forward(fold_group(query, heads_kv), key, value, 0.0, False, scale=scale)
        return unfold_group(out, heads_q), unfold_group(lse.unsqueeze(-1), heads_q).squeeze(-1)
    return _flash_forward(query, key, value, 0.0, causal, attn_mask=additive, scale=scale)


def _merge(call: AttentionInputs, pieces: list[Piece]) -> tuple[Tensor, Tensor] | None:
    """Runs the kernel on every piece and merges pieces with the same rows by log-sum-exp; None if a score overflows."""
    assert isinstance(call.similarity, Softmax)
    scale = call.similarity.scale_for(call.width)
    query, key, value = _pad_to_equal_widths(call.query, call.key, call.value)
    whole = (0, call.extent.batch, 0, call.extent.len_q)
    out = lse = None
    for rows, group in groupby(pieces, lambda piece: piece.rows):
        part_out = part_lse = None
        for piece in group:
            b, i, j = piece.slices
            additive = piece.additive(call)
            o, s = _kernel(query[b, :, i], key[b, :, j], value[b, :, j], additive, piece.causal, scale)
            if not ops.all_finite(s.transpose(1, 2)):
                return None
            if additive is not None:
                s = _mark_empty_rows(s, additive, piece.causal)
            part_out, part_lse = (o, s) if part_out is None else _merge_two(part_out, part_lse, o, s)
        assert part_out is not None
        assert part_lse is not None
        if rows == whole:
            out, lse = part_out, part_lse
            break
        if out is None or lse is None:
            out, lse = _empty_result(call, value.shape[3])
        b, i = slice(rows[0], rows[1]), slice(rows[2], rows[3])
        out[b, :, i], lse[b, :, i] = part_out, part_lse
    if out is None or lse is None:
        out, lse = _empty_result(call, value.shape[3])
    if call.sink is not None:
        out, lse = add_sink(out, lse, call.sink.detach())
    return out[..., : call.width_v], lse


def _mark_empty_rows(lse: Tensor, additive: Tensor, causal: bool) -> Tensor:
    """lse with −inf for fully masked rows, for which the kernel returns 0."""
    candidates = lse == 0
    if not candidates.any():
        return lse
    if causal:
        rows, keys = lse.shape[2], additive.shape[3]
        additive = additive.masked_fill(lse.new_ones(rows, keys, dtype=torch.bool).triu(1), NEG_INF)
    return torch.where(candidates & (additive.amax(-1) == NEG_INF), NEG_INF, lse)


def _empty_result(call: AttentionInputs, width: int) -> tuple[Tensor, Tensor]:
    query, shape = call.query, call.query.shape[:3]
    return query.new_zeros(*shape, width), query.new_full(shape, NEG_INF, dtype=compute_dtype(query.dtype))


def _merge_two(out: Tensor, lse: Tensor | None, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_c exp(lse_c − lse)·out_c with lse = log Σ_c exp(lse_c) of two pieces; lse = −inf is a fully masked piece."""
    assert lse is not None
    total = torch.logaddexp(lse, more_lse)
    top = torch.where(total == NEG_INF, 0.0, total)
    first, second = torch.exp(lse - top).unsqueeze(-1), torch.exp(more_lse - top).unsqueeze(-1)
    return (out * first + more * second).to(out.dtype), total


def add_sink(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """out and lse with the sink added to the denominator; fully masked rows do not change."""
    sink = sink.squeeze(-1)
    total = torch.where(lse == NEG_INF, NEG_INF, torch.logaddexp(lse, sink))
    share = torch.where(lse == NEG_INF, 0.0, torch.exp(lse - total))
    return (out * share.unsqueeze(-1)).to(out.dtype), total


def _pad_to_equal_widths(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All with stride 1 along the width, padded to equal widths: zeros change neither q·k nor the first columns."""
    width, width_v = query.shape[3], value.shape[3]
    if width < width_v:
        padding = (0, width_v - width)
        query, key = torch.nn.functional.pad(query, padding), torch.nn.functional.pad(key, padding)
    elif width_v < width:
        value = torch.nn.functional.pad(value, (0, width - width_v))
    return aligned_layout(query), aligned_layout(key), aligned_layout(value)


class _PiecewiseAttention(torch.autograd.Function):
    """Attention in pieces, forward and backward.

    Forward: P_ij = exp(s_ij − lse_i) and out_i = Σ_j P_ij v_j. Backward: ds_ij = P_ij (dout_i·v_j − dout_i·out_i) needs
    only lse and out of the whole row, so each piece adds its part of dq, dk and dv independently. Gradients of a bias
    or of lse come from `blockwise`; gradients that are differentiated again come from the reference equation.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx,
        call: AttentionInputs,
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
        call: AttentionInputs = ctx.call._replace(query=query, key=key, value=value, bias=bias)
        needed = ctx.needs_input_grad[2:]
        if grad_out is None and grad_lse is None:
            return (None,) * 7
        call.check_mask_unchanged(ctx.versions)
        if torch.is_grad_enabled():
            return None, None, *_reference_gradients(call, sink, needed, (grad_out, grad_lse))
        return None, None, *_softmax_gradients(call, ctx.pieces, sink, needed, (grad_out, grad_lse), (out, lse))


def gradients_from_lse(
    call: AttentionInputs, needed: Sequence[bool], grads: OutputGradients, answer: tuple[Tensor, Tensor]
) -> list[Tensor | None] | None:
    """The gradients of query, key, value, bias and sink from out and lse; None if a number is not finite."""
    out, lse = answer
    given = call.similarity.sink if isinstance(call.similarity, Softmax) else None
    sink = given if isinstance(given, Tensor) else None
    tensors = call.query, call.key, call.value, *(() if sink is None else (sink,))
    if not ops.all_finite(*tensors, out) or not bool((lse < torch.inf).all()):
        return None
    found = _softmax_gradients(call, cut_mask(call), call.sink, needed, grads, answer)
    if sink is not None and found[4] is not None:
        found[4] = found[4].reshape(sink.shape).to(sink.dtype)
    return found


def _softmax_gradients(
    call: AttentionInputs,
    pieces: list[Piece],
    sink: Tensor | None,
    needed: Sequence[bool],
    grads: OutputGradients,
    answer: tuple[Tensor, Tensor],
) -> list[Tensor | None]:
    (grad_out, grad_lse), (out, lse) = grads, answer
    empty = lse == NEG_INF
    if grad_out is not None and empty.any():
        # The gradient of a fully masked row must not reach a key, even if it is NaN.
        grad_out = grad_out.masked_fill(empty.unsqueeze(-1), 0.0)
    if grad_lse is not None or needed[3]:
        by_blocks = block_gradients(call, sink, lse, grad_out, grad_lse)
        return [grad if need else None for grad, need in zip(by_blocks, needed, strict=True)]
    assert grad_out is not None
    by_sink = None
    if needed[4] and sink is not None:
        by_sink = sink_gradient(sink, lse, -(grad_out.to(lse.dtype) * out.to(lse.dtype)).sum(-1))
    return [*partial_gradients(call, grad_out, out, lse, pieces), None, by_sink]


def _reference_gradients(
    call: AttentionInputs, sink: Tensor | None, needed: tuple[bool, ...], grads: OutputGradients
) -> list[Tensor | None]:
    """Gradients that can be differentiated again: autograd's of the reference equation, all scores at once."""
    inputs = (call.query, call.key, call.value, call.bias, sink)
    with torch.enable_grad():
        rows = Tile(call.query, call.key, call.value, call.keep(), call.bias, sink, finite=True)
        result = attend(call._replace(return_lse=True), rows)
        out = result.out.to(call.query.dtype)
    return needed_gradients(inputs, needed, zip((out, result.lse), grads, strict=True), create_graph=True)


def needed_gradients(
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    outputs: Iterable[tuple[Tensor | None, Tensor | None]],
    create_graph: bool = False,
) -> list[Tensor | None]:
    """Autograd's gradients of the inputs that need one, given outputs with their gradients."""
    pairs = [(o, g) for o, g in outputs if o is not None and g is not None]
    wanted = [need and t is not None for t, need in zip(inputs, needed, strict=True)]
    sources = [t for t, want in zip(inputs, wanted, strict=True) if want and t is not None]
    ends, grads = [o for o, _ in pairs], [g for _, g in pairs]
    found = iter(torch.autograd.grad(ends, sources, grads, create_graph=create_graph, allow_unused=True))
    return [next(found) if want else None for want in wanted]


def partial_gradients(
    call: AttentionInputs, grad_out: Tensor, out: Tensor, lse: Tensor, pieces: list[Piece] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv of a call with a part of the keys, or all; out and lse are those of the rows over all keys."""
    pieces = cut_mask(call) if pieces is None else pieces
    assert isinstance(call.similarity, Softmax)
    scale = call.similarity.scale_for(call.width)
    query, key, value = _pad_to_equal_widths(call.query, call.key, call.value)
    padding = (0, value.shape[3] - out.shape[3])
    grad_out, out = torch.nn.functional.pad(grad_out, padding), torch.nn.functional.pad(out, padding)
    # exp(−inf − 0) = 0: a fully masked row contributes nothing.
    lse = torch.where(lse == NEG_INF, 0.0, lse)

    def gradients_of_piece(piece: Piece, b: slice, i: slice, j: slice) -> tuple[Tensor, Tensor, Tensor]:
        inputs = grad_out[b, :, i], query[b, :, i], key[b, :, j], value[b, :, j], out[b, :, i], lse[b, :, i]
        return _flash_backward(*inputs, 0.0, piece.causal, attn_mask=piece.additive(call), scale=scale)

    if len(pieces) == 1 and pieces[0].covers(call):
        dq, dk, dv = gradients_of_piece(pieces[0], *(slice(None),) * 3)
    else:
        dq, dk, dv = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for piece in pieces:
            b, i, j = piece.slices
            piece_dq, piece_dk, piece_dv = gradients_of_piece(piece, b, i, j)
            dq[b, :, i] += piece_dq
            dk[b, :, j] += piece_dk
            dv[b, :, j] += piece_dv
    return dq[..., : call.width], dk[..., : call.width], dv[..., : call.width_v]


def run_nonfinite(call: AttentionInputs, run_finite: Callable[[AttentionInputs], Result | None]) -> Result | None:
    """`run_finite` with every non-finite number replaced by 0; rows that attend to one are computed by `blockwise`.

    Non-finite numbers are usually masked, such as in padding. Rows that attend to none of them have the same bits as
    without them. None if `run_finite` returns None.
    """
    nonfinite_query = ~call.query.isfinite().all(-1)
    nonfinite_key = ~(call.key.isfinite().all(-1) & call.value.isfinite().all(-1))
    affected = _rows_attending_nonfinite(call, nonfinite_query, nonfinite_key)
    result = run_finite(
        call._replace(
            query=call.query.masked_fill(nonfinite_query.unsqueeze(-1), 0.0),
            key=call.key.masked_fill(nonfinite_key.unsqueeze(-1), 0.0),
            value=torch.where(call.value.isfinite(), call.value, 0.0),
        )
    )
    return None if result is None else replace_rows(call, result, affected)


def _rows_attending_nonfinite(
    call: AttentionInputs, nonfinite_query: Tensor, nonfinite_key: Tensor
) -> Bool[Tensor, "batch heads len_q"]:
    """Rows that attend to a non-finite key or value, and non-finite queries that attend to anything."""
    extent = call.extent
    affected = torch.zeros_like(nonfinite_query)
    step = max(1, blockwise.BLOCK_SCORES // max(1, extent.batch * extent.heads * extent.len_k))
    band = None if call.mask is None else call.mask.band(extent)
    for i0 in range(0, extent.len_q, step):
        i1 = min(i0 + step, extent.len_q)
        j0, j1 = blockwise.key_range_of_rows(band, extent, i0, i1)
        if not (nonfinite_key[..., j0:j1].any() or nonfinite_query[:, :, i0:i1].any()):
            continue
        keep = call.keep((i0, i1), (j0, j1))
        keep = nonfinite_key.new_ones((1, 1, 1, 1)) if keep is None else keep
        if call.bias is not None:
            keep = keep & (cut(call.bias, slice(None), slice(None), slice(i0, i1), slice(j0, j1)) != NEG_INF)
        keep = keep.expand(extent.batch, extent.heads, i1 - i0, j1 - j0)
        attends = fold_group(keep, call.heads_kv) & nonfinite_key[..., j0:j1].unsqueeze(-2)
        attends = unfold_group(attends.any(-1, keepdim=True), extent.heads).squeeze(-1)
        affected[:, :, i0:i1] = attends | (nonfinite_query[:, :, i0:i1] & keep.any(-1))
    return affected
