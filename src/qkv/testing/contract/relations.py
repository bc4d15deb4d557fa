"""Promises that need no oracle: two calls whose answers have to agree."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from qkv.masks import Causal, Dense

from ..cases import CallCase, as_called
from ..specs import Spec
from ..tolerance import Budget, ulp
from .accuracy import close
from .registry import check
from .subject import Answer, Case, Subject, ask


def agree(subject: Subject, case: Case, found: Tensor, wanted: Tensor, what: str) -> None:
    """Two answers to one question differ by no more than both may be wrong."""
    call = case.call
    if call.kind == "argmax":
        assert torch.equal(found, wanted), f"{case.backend}: {what}: argmax chose otherwise"
        return
    part = call.measure.parts["out"]
    allowed = 2 * part.allowed(subject.bound(case.backend), Budget()) * ulp(part.reach, part.dtype)
    off = (found.double() - wanted.double()).abs() - allowed[..., None]
    worst = float(off.max()) if off.numel() else 0.0
    assert worst <= 0, f"{case.backend}: {what}: {worst:.3g} more than twice the bound apart"


def _repeated(call: CallCase) -> tuple[CallCase, ...]:
    return (call.but(heads_kv=call.heads_q),)


@check(5, applies=lambda call: call.heads_q != call.heads_kv, also=_repeated)
def grouped_heads_are_repeated_heads(subject: Subject, case: Case) -> None:
    """Query head h reads key/value head h // group: repeating each of those gives the same answer."""
    call = case.call
    group = call.heads_q // call.heads_kv
    repeated = {name: call.kwargs[name].repeat_interleave(group, dim=1) for name in ("key", "value")}
    agree(subject, case, ask(subject, case, **repeated).out, ask(subject, case).out, "repeated heads")


def _any_order(call: CallCase) -> bool:
    return call.len_k > 1 and (call.mask is None or call.mask.kind == "dense")


@check(5, applies=_any_order)
def the_order_of_keys_does_not_matter(subject: Subject, case: Case) -> None:
    """Keys, values, mask and bias in another order give the same answer."""
    call = case.call
    order = torch.arange(call.len_k - 1, -1, -1).roll(call.len_k // 3)
    changed: dict[str, Any] = {name: call.kwargs[name][..., order, :] for name in ("key", "value")}
    if call.mask is not None:
        changed["mask"] = Dense(as_called(call.attended, call.dims)[..., order])
    if call.built_bias is not None:
        changed["bias"] = call.built_bias[..., order]
    agree(subject, case, ask(subject, case, **changed).out, ask(subject, case).out, "keys in another order")


def _ends_by_itself(call: CallCase) -> bool:
    """Keys behind the last one are masked by the same mask object."""

    def ends(spec: Spec) -> bool:
        if spec.kind == "and":
            return any(ends(part) for part in spec.parts)
        if spec.kind == "causal":
            offset = spec.options.get("offset")
            return offset is not None and offset + call.len_q <= call.len_k
        return spec.kind == "padding" and "lengths" in spec.options

    if call.mask is None or "_seed" in repr(call.mask) or "Spec('causal')" in repr(call.mask):
        return False
    return call.mask.kinds() <= {"and", "causal", "padding", "window"} and ends(call.mask)


@check(3, applies=_ends_by_itself, wants=["lse"])
def masked_keys_can_be_appended(subject: Subject, case: Case) -> None:
    """Keys behind the end, with NaN and huge values, change nothing."""
    call = case.call
    extra = {}
    for name, number in (("key", 1e4), ("value", math.nan)):
        tensor = call.kwargs[name]
        extra[name] = torch.cat([tensor, torch.full_like(tensor[..., :1, :], number).expand_as(tensor)], dim=-2)
    bias = call.built_bias
    if bias is not None:
        extra["bias"] = torch.cat([bias, torch.zeros_like(bias)], dim=-1)
    answer = ask(subject, case, lse=True, **extra)
    close(subject, case, answer)


def _with_window(call: CallCase) -> tuple[CallCase, ...]:
    everything = call.len_q + call.len_k
    window = Spec("window", left=everything, right=everything, offset=0)
    return (call.but(mask=window if call.mask is None else Spec("and", call.mask, window)),)


@check(4, applies=lambda call: call.mask is None or call.mask.kind == "causal", also=_with_window)
def a_wide_window_is_no_window(subject: Subject, case: Case) -> None:
    """A window at least as wide as everything changes nothing."""
    (wide,) = _with_window(case.call)
    agree(subject, case, ask(subject, Case(case.backend, wide)).out, ask(subject, case).out, "with a wide window")


def _in_chunks(call: CallCase) -> bool:
    return call.len_q > 1 and (call.mask is None or call.mask.kind == "causal")


@check(4, applies=_in_chunks)
def chunks_of_queries_are_rows_of_the_whole(subject: Subject, case: Case) -> None:
    """Queries in two chunks, each told by its offset where it stands, give what all give at once."""
    call = case.call
    cut, parts = (call.len_q + 1) // 2, []
    for start, stop in ((0, cut), (cut, call.len_q)):
        changed: dict[str, Any] = {"query": call.query[..., start:stop, :]}
        if call.mask is not None:
            changed["mask"] = Causal(offset=call.mask.options.get("offset", 0) + start)
        bias = call.built_bias
        if bias is not None and bias.dim() > 1 and bias.shape[-2] > 1:
            changed["bias"] = bias[..., start:stop, :]
        parts.append(ask(subject, case, **changed).out)
    agree(subject, case, torch.cat(parts, dim=-2), ask(subject, case).out, "queries in chunks")


def _can_split(call: CallCase) -> bool:
    plain = call.mask is None or call.mask.kind == "dense"
    causal = call.mask is not None and call.mask.kind == "causal" and "offset" in call.mask.options
    sink = None if call.similarity is None else call.similarity.options.get("sink")
    return call.kind == "softmax" and sink is None and call.len_k > 1 and (plain or causal)


@check(5, applies=_can_split, wants=["lse"])
def pieces_merge_by_lse(subject: Subject, case: Case) -> None:
    """Softmax over two pieces of the keys, weighed by exp(lse), is softmax over all of them."""
    call = case.call
    cut = max(1, call.len_k // 3)
    pieces = [_piece(subject, case, 0, cut), _piece(subject, case, cut, call.len_k)]
    lses = torch.stack([piece.lse.double() for piece in pieces if piece.lse is not None])
    top = lses.amax(0)
    shares = torch.where(lses == -math.inf, 0.0, torch.exp(lses - torch.where(top.isinf(), 0.0, top)))
    total = shares.sum(0)
    shares = shares / torch.where(total == 0, 1.0, total)
    outs = torch.stack([piece.out.double() for piece in pieces])
    merged = (shares[..., None] * outs).sum(0)
    whole = ask(subject, case, lse=True)
    assert whole.lse is not None
    agree(subject, case, merged, whole.out, "two pieces merged")
    again = torch.where(total == 0, -math.inf, torch.where(top.isinf(), 0.0, top) + total.log())
    close(subject, case, Answer(whole.out, again.to(whole.lse.dtype)))


def _piece(subject: Subject, case: Case, start: int, stop: int) -> Answer:
    call = case.call
    changed: dict[str, Any] = {name: call.kwargs[name][..., start:stop, :] for name in ("key", "value")}
    if call.mask is not None and call.mask.kind == "causal":
        changed["mask"] = Causal(offset=call.mask.options["offset"] - start)
    elif call.mask is not None:
        changed["mask"] = Dense(as_called(call.attended, call.dims)[..., start:stop])
    if call.built_bias is not None:
        changed["bias"] = call.built_bias[..., start:stop]
    return ask(subject, case, lse=True, **changed)


def _with_bias(call: CallCase) -> tuple[CallCase, ...]:
    return (call.but(bias=call.bias or "row"),)


def _shiftable(call: CallCase) -> bool:
    return call.kind == "softmax" and (call.similarity is None or call.similarity.options.get("sink") is None)


@check(5, applies=_shiftable, wants=["lse"], also=_with_bias)
def a_constant_added_to_scores_cancels(subject: Subject, case: Case) -> None:
    """Adding 2 to every score leaves out as it is and adds 2 to lse."""
    call = case.call
    bias = torch.full((1, call.len_k), 2.0, dtype=call.torch_dtype)
    if call.built_bias is not None:
        # Eighths, so that adding 2 is exact in every dtype.
        bias = torch.where(call.built_bias.isinf(), call.built_bias, (call.built_bias * 8).round() / 8)
        before, after = ask(subject, case, lse=True, bias=bias), ask(subject, case, lse=True, bias=bias + 2)
    else:
        before, after = ask(subject, case, lse=True), ask(subject, case, lse=True, bias=bias)
    agree(subject, case, after.out, before.out, "with 2 added to every score")
    assert after.lse is not None
    assert before.lse is not None
    off = (after.lse.double() - before.lse.double() - 2).abs()
    off = torch.where(before.lse.isinf() & (after.lse == before.lse), 0.0, off)
    part = call.measure.parts["lse"]
    allowed = 4 * part.allowed(subject.bound(case.backend), Budget()) * ulp(part.reach + 2, part.dtype)
    assert bool((off <= allowed).all()), (
        f"{case.backend}: lse did not move by 2, but by {float(off.max()):.3g} beside it"
    )
