"""Promises about what must not change an answer: masked numbers, layouts, threads, order and chunks."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from qkv.masks import Causal, Dense, Padding

from ..call_case import CallCase
from ..poison import LAYOUTS, poison_masked, poisoned_memory, unseen_keys
from ..tolerance import Answer, Budget, compute_dtype, ulp
from .correctness import assert_close
from .subject import (
    BackendCase,
    Subject,
    assert_same_bits,
    check,
    cotangent_like,
    gradient_noise,
    gradients,
    max_difference,
    run_case,
)


def has_empty_rows(call: CallCase) -> bool:
    return bool((~call.attended.any(-1)).any())


def masks_something(call: CallCase) -> bool:
    """Whether some pair is masked and some pair is not."""
    return bool((~call.attended).any() and call.attended.any())


@check(2, applies=has_empty_rows, wants=["lse"])
def empty_rows_are_zero(subject: Subject, case: BackendCase) -> None:
    """A query with nothing to attend to gets exactly 0 and lse −inf."""
    answer = run_case(subject, case, lse=True)
    empty = ~case.call.keep.any(-1)
    assert not bool(answer.out[empty].ne(0).any()), f"{case.backend}: an empty row is {answer.out[empty][0].tolist()}"
    if answer.lse is not None:
        assert bool((answer.lse[empty] == -math.inf).all()), f"{case.backend}: an empty row's lse is not −inf"


@check(2, applies=has_empty_rows, wants=["grad"])
def empty_rows_have_zero_gradient(subject: Subject, case: BackendCase) -> None:
    """A query with nothing to attend to has gradient 0 and adds none to keys, values, bias and sink."""
    call = case.call
    empty = ~call.keep.any(-1)
    for name, grad in gradients(subject, case).items():
        assert not bool(grad.isnan().any()), f"{case.backend}: the gradient of {name} is NaN"
        if name == "query":
            assert not bool(grad[empty].ne(0).any()), f"{case.backend}: an empty row has a gradient"
    only_empty = empty[..., None].to(call.torch_dtype).expand(*call.query.shape[:-1], call.width_v)
    for name, grad in gradients(subject, case, only_empty).items():
        assert not bool(grad.ne(0).any()), f"{case.backend}: an empty row adds to the gradient of {name}"


@check(3, applies=masks_something, wants=["lse"])
def masked_numbers_cannot_matter(subject: Subject, case: BackendCase) -> None:
    """NaN, ±inf and 1e30 in keys and values that no query attends to do not change a bit of out and lse."""
    clean, dirty = (run_case(subject, case, lse=True, **given) for given in ({}, _poisoned(case.call)))
    _assert_same_answer(case, dirty, clean, "with masked NaN and infinity")


@check(3, applies=masks_something, wants=["grad"])
def masked_numbers_get_no_gradient(subject: Subject, case: BackendCase) -> None:
    """With masked NaN and infinity, masked gradients are exactly 0 and the others do not change."""
    clean, dirty = (gradients(subject, case, **given) for given in ({}, _poisoned(case.call)))
    unseen = unseen_keys(case.call.keep, case.call.heads_kv)
    for name in ("key", "value"):
        assert not bool(dirty[name][unseen].ne(0).any()), f"{case.backend}: a masked {name} has a gradient"
    for name, grad in dirty.items():
        lost = clean[name].isfinite() & ~grad.isfinite()
        assert not bool(lost.any()), f"{case.backend}: the gradient of {name} is not finite"
        _assert_same_gradient(case, name, grad, clean[name], "with masked NaN and infinity")


def _assert_same_gradient(case: BackendCase, name: str, found: Tensor, wanted: Tensor, when: str) -> None:
    """Equal up to rounding."""
    allowed = 64 * torch.finfo(found.dtype).eps * float(wanted.abs().max())
    off = max_difference(found, wanted)
    allowed = max(allowed, gradient_noise(case.call, found.dtype))
    assert off <= allowed, f"{case.backend}: the gradient of {name} changed by {off:.3g} {when}"


def _poisoned(call: CallCase) -> dict[str, Any]:
    return dict(zip(("query", "key", "value"), poison_masked(*call.tensors, call.keep), strict=True))


@lru_cache(maxsize=512)
def _injections(call: CallCase) -> list[tuple[str, CallCase]]:
    """NaN in one key, in one number of a value, in one query; for softmax infinities as well."""
    j, made = _half_attended_key(call), []
    for name, row, column, number in (
        ("key", j, slice(None), math.nan),
        ("value", j, 0, math.nan),
        ("value", j, -1, math.inf),
        ("key", j, 0, math.inf),
        ("query", call.len_q // 2, slice(None), math.nan),
    ):
        if number != math.inf or call.kind == "softmax":
            changed = call.kwargs[name].clone()
            changed[..., row, column] = number
            made.append((f"{number} in {name} {row}", call.with_tensors(**{name: changed})))
    return made


def _half_attended_key(call: CallCase) -> int:
    """The key that is attended by the number of queries closest to half."""
    fraction = call.attended.double().mean(dim=(0, 1, 2))
    return int((fraction - 0.5).abs().argmin())


@check(3, applies=lambda call: 0 < call.attended.numel() <= 800 and call.width_v > 0)
def attended_nan_propagates(subject: Subject, case: BackendCase) -> None:
    """NaN reaches exactly the rows (for values: the columns too) that attend to it; infinity as in the oracle."""
    for what, changed in _injections(case.call):
        injected = BackendCase(case.backend, changed)
        try:
            assert_close(subject, injected, run_case(subject, injected))
        except AssertionError as broken:
            raise AssertionError(f"with {what}: {broken}") from broken


@check(3, applies=masks_something, wants=["lse"])
def unattended_keys_do_not_change_a_bit(subject: Subject, case: BackendCase) -> None:
    """Changing keys and values that a query does not attend to, such as later ones, does not change its bits."""
    call, j = case.call, _half_attended_key(case.call)
    key, value = call.key.clone(), call.value.clone()
    key[..., j, :] = -1.5 * key[..., j, :] + 0.25
    value[..., j, :] = 3.0 * value[..., j, :] - 1.0
    clean, changed = run_case(subject, case, lse=True), run_case(subject, case, lse=True, key=key, value=value)
    masked = ~call.keep[..., j]
    _assert_same_answer(case, changed.rows(masked), clean.rows(masked), f"of queries that do not attend to key {j}")


def _is_small(call: CallCase) -> bool:
    return call.dtype == "float64" and call.attended.numel() <= 1500 and bool(call.attended.any())


@check(3, applies=lambda call: _is_small(call) and masks_something(call), wants=["grad"])
def masked_pairs_have_zero_gradient(subject: Subject, case: BackendCase) -> None:
    """∂out_i/∂key_j and ∂out_i/∂value_j are exactly 0 where (i, j) is masked, and ∂out_i/∂query_j for j ≠ i."""
    call = case.call
    for i in sorted({0, call.len_q // 2, call.len_q - 1}):
        cotangent = torch.zeros_like(call.gold.out, dtype=call.torch_dtype)
        cotangent[..., i, :] = 1.0
        grads, here = gradients(subject, case, cotangent), f"{case.backend}: query {i}"
        masked = unseen_keys(call.keep[..., i : i + 1, :], call.heads_kv)
        for name in ("key", "value"):
            assert not bool(grads[name][masked].ne(0).any()), f"{here} depends on a masked {name}"
        others = [row for row in range(call.len_q) if row != i]
        assert not bool(grads["query"][..., others, :].ne(0).any()), f"{here} depends on other queries"
        seen = call.gold.weights.detach()[..., i, :].ne(0).any()
        assert not bool(seen) or bool(grads["value"].ne(0).any()), f"{here} has no gradient"


@check(6, wants=["lse"])
def layouts_give_the_same_bits(subject: Subject, case: BackendCase) -> None:
    """Transposed, sliced, strided, expanded and misaligned tensors give the same bits as contiguous ones."""
    wide = {name: t for name, t in case.call.kwargs.items() if isinstance(t, Tensor) and t.dim() > 1}
    views: dict[str, dict[str, Any]] = {name: {k: f(t) for k, t in wide.items()} for name, f in LAYOUTS.items()}
    wanted = run_case(subject, case, lse=True, **views["contiguous"])
    for layout, given in views.items():
        _assert_same_answer(case, run_case(subject, case, lse=True, **given), wanted, f"in layout {layout}")


@check(6, wants=["lse"])
def repeats_give_the_same_bits(subject: Subject, case: BackendCase) -> None:
    """A repeated call gives the same bits, with NaN in all newly allocated memory."""
    first = run_case(subject, case, lse=True)
    with poisoned_memory():
        second = run_case(subject, case, lse=True)
    _assert_same_answer(case, second, first, "the second time, in memory full of NaN")


@check(6, wants=["grad"])
def gradients_repeat(subject: Subject, case: BackendCase) -> None:
    """The backward pass reads no memory that it did not write, and gives the same bits again."""
    first = gradients(subject, case)
    with poisoned_memory():
        second = gradients(subject, case)
    for name, grad in second.items():
        assert_same_bits(grad, first[name], f"{case.backend}: gradient of {name} the second time")


@check(6, applies=lambda call: call.batch > 1, wants=["lse"])
def other_batch_rows_do_not_matter(subject: Subject, case: BackendCase) -> None:
    """Other numbers in other batch rows do not change this one: not a bit, where the backend claims so."""
    named = {name: case.call.kwargs[name] for name in ("query", "key", "value")}
    other: dict[str, Any] = {name: torch.cat([t[:1], 7 * t[1:] + 2]) for name, t in named.items()}
    before, after = run_case(subject, case, lse=True), run_case(subject, case, lse=True, **other)
    _assert_same_first_row(subject, case, after, before, "with other batch rows")


def _assert_same_first_row(subject: Subject, case: BackendCase, found: Answer, wanted: Answer, when: str) -> None:
    """Bit for bit where the backend claims so; otherwise within the bound."""
    first, rest = found.rows(slice(1)), wanted.rows(slice(1, None))
    if subject.same_bits_across(case.backend, "batch"):
        _assert_same_answer(case, first, wanted.rows(slice(1)), when)
    else:
        lse = None if first.lse is None or rest.lse is None else torch.cat([first.lse, rest.lse])
        assert_close(subject, case, Answer(torch.cat([first.out, rest.out]), lse))


def _fits_any_batch(call: CallCase) -> bool:
    kinds = frozenset() if call.mask is None else call.mask.kinds()
    return (
        call.batch > 1
        and call.state is None
        and not call.forgets
        and call.bias in (None, "row")
        and kinds <= {"and", "or", "causal", "window"}
    )


@check(6, applies=_fits_any_batch, wants=["lse"], extra_calls=lambda call: (call.replace(batch=1),))
def a_batch_row_alone_gives_the_same(subject: Subject, case: BackendCase) -> None:
    """A batch row computed alone equals the row in the batch: bit for bit, where the backend claims so."""
    first: dict[str, Any] = {name: case.call.kwargs[name][:1] for name in ("query", "key", "value")}
    together, alone = run_case(subject, case, lse=True), run_case(subject, case, lse=True, **first)
    _assert_same_first_row(subject, case, alone, together, "alone")


@check(6, wants=["lse"])
def threads_do_not_matter(subject: Subject, case: BackendCase) -> None:
    """One thread gives the same as two: bit for bit, where the backend claims so."""
    before, answers = torch.get_num_threads(), []
    try:
        for count in (2, 1):
            torch.set_num_threads(count)
            answers.append(run_case(subject, case, lse=True))
    finally:
        torch.set_num_threads(before)
    two, one = answers
    if subject.same_bits_across(case.backend, "threads"):
        _assert_same_answer(case, one, two, "with one thread instead of two")
    else:
        assert_close(subject, case, one)
        assert_close(subject, case, two)


def _assert_same_answer(case: BackendCase, found: Answer, wanted: Answer, when: str) -> None:
    assert_same_bits(found.out, wanted.out, f"{case.backend}: out {when}")
    assert_same_bits(found.lse, wanted.lse, f"{case.backend}: lse {when}")


@check(6, applies=lambda call: call.attended.numel() > 0, wants=["grad"])
def gradients_do_not_depend_on_layout(subject: Subject, case: BackendCase) -> None:
    """A cotangent that is expanded or transposed gives the gradients that a contiguous one gives, up to rounding."""
    out = case.call.gold.out.to(case.call.torch_dtype)
    for layout, wanted in (("transposed", cotangent_like(out)), ("expanded", torch.ones_like(out))):
        found = LAYOUTS[layout](wanted)
        before, after = gradients(subject, case, wanted), gradients(subject, case, found)
        for name, grad in after.items():
            _assert_same_gradient(case, name, grad, before[name], f"with a cotangent that is {layout}")


def assert_agree(subject: Subject, case: BackendCase, found: Tensor, wanted: Tensor, what: str) -> None:
    """Check that two answers to the same call differ by at most the sum of their bounds."""
    call = case.call
    if call.kind == "argmax":
        assert torch.equal(found, wanted), f"{case.backend}: {what}: argmax chose another key"
        return
    part = call.error_bounds.parts["out"]
    allowed = 2 * part.allowed(subject.bound(case.backend), Budget()) * ulp(part.magnitude, part.dtype)
    off = (found.double() - wanted.double()).abs() - allowed[..., None]
    worst = float(off.max()) if off.numel() else 0.0
    assert worst <= 0, f"{case.backend}: {what}: the difference exceeds twice the bound by {worst:.3g}"


def _in_chunks(call: CallCase) -> bool:
    counts_from_zero = call.bias == "function"  # in each chunk
    return (
        call.state is None
        and not counts_from_zero
        and call.len_q > 1
        and (call.mask is None or call.mask.kind == "causal")
    )


@check(4, applies=_in_chunks)
def chunks_of_queries_are_rows_of_the_whole(subject: Subject, case: BackendCase) -> None:
    """Queries in two chunks, with their offsets, give the same answer as all queries at once."""
    call = case.call
    cut, parts = (call.len_q + 1) // 2, []
    for start, stop in ((0, cut), (cut, call.len_q)):
        changed: dict[str, Any] = {"query": call.query[..., start:stop, :]}
        if call.mask is not None:
            changed["mask"] = Causal(offset=call.mask.options.get("offset", 0) + start)
        bias = call.built_bias
        if bias is not None and bias.dim() > 1 and bias.shape[-2] > 1:
            changed["bias"] = bias[..., start:stop, :]
        parts.append(run_case(subject, case, **changed).out)
    assert_agree(subject, case, torch.cat(parts, dim=-2), run_case(subject, case).out, "queries in chunks")


def _state_continues(call: CallCase) -> bool:
    kinds = frozenset() if call.mask is None else call.mask.kinds()
    return call.state is not None and "segments" not in kinds


@check(5, applies=_state_continues)
def a_state_continues_where_it_stopped(subject: Subject, case: BackendCase) -> None:
    """Tokens in two parts, or one by one from the last state, give the answer and the last state of all at once."""
    call = case.call
    assert call.built_state is not None
    whole = subject.attend(*call.tensors, backend=case.backend, return_state=True, **_rules(call, 0, call.len_k))
    one_by_one = list(range(min(call.len_k, 12) + 1))
    for edges in ([0, call.len_k // 3, call.len_k], [*one_by_one[:-1], call.len_k]):
        outs, state = [], None
        for i, j in pairwise(edges):
            tensors = (tensor[..., i:j, :] for tensor in call.tensors)
            rules = _rules(call, i, j) | {"initial_state": state, "return_state": True}
            out, state = subject.attend(*tensors, backend=case.backend, **rules)
            outs.append(out)
        assert_agree(subject, case, torch.cat(outs, dim=-2), whole[0], f"tokens in parts {edges}")
        noise = 64 * torch.finfo(compute_dtype(call.torch_dtype)).eps * max(1.0, float(whole[1].abs().max()))
        off = max_difference(state, whole[1]) if state is not None else 0.0
        assert off <= noise, f"{case.backend}: the last state of parts {edges} is off by {off:.3g}, allowed {noise:.3g}"


def _rules(call: CallCase, start: int, stop: int) -> dict[str, Any]:
    """Similarity, state and padding of the tokens start … stop − 1."""
    assert call.built_state is not None
    tokens = (slice(None),) * {4: 2, 3: 1, 2: 0}[call.dims] + (slice(start, stop),)
    named = {name: getattr(call.built_state, name, None) for name in ("log_gate", "beta")}
    parts = {name: tensor[tokens] for name, tensor in named.items() if isinstance(tensor, Tensor)}
    keep = call.attended.diagonal(dim1=-2, dim2=-1)[:, 0, start:stop]
    state = replace(call.built_state, **parts)
    return {"similarity": call.built_similarity, "state": state, "mask": Padding(keep=keep)}


def _can_split(call: CallCase) -> bool:
    plain = call.mask is None or call.mask.kind == "dense"
    causal = call.mask is not None and call.mask.kind == "causal" and "offset" in call.mask.options
    sink = None if call.similarity is None else call.similarity.options.get("sink")
    # Queries after the last key of a part have no gates, and a function counts its keys from 0.
    whole = call.forgets or call.bias == "function"
    return call.kind == "softmax" and sink is None and not whole and call.len_k > 1 and (plain or causal)


@check(5, applies=_can_split, wants=["lse"])
def pieces_merge_by_lse(subject: Subject, case: BackendCase) -> None:
    """Softmax over two parts of the keys, merged with weights exp(lse), is softmax over all keys."""
    call = case.call
    cut = max(1, call.len_k // 3)
    pieces = [_attend_to_keys(subject, case, 0, cut), _attend_to_keys(subject, case, cut, call.len_k)]
    lses = torch.stack([piece.lse.double() for piece in pieces if piece.lse is not None])
    total = torch.logsumexp(lses, 0)
    factors = torch.exp(lses - torch.where(total.isinf(), 0.0, total))
    merged = (factors[..., None] * torch.stack([piece.out.double() for piece in pieces])).sum(0)
    whole = run_case(subject, case, lse=True)
    assert whole.lse is not None
    assert_agree(subject, case, merged, whole.out, "two parts merged")
    assert_close(subject, case, Answer(whole.out, total.to(whole.lse.dtype)))


def _attend_to_keys(subject: Subject, case: BackendCase, start: int, stop: int) -> Answer:
    call = case.call
    changed: dict[str, Any] = {name: call.kwargs[name][..., start:stop, :] for name in ("key", "value")}
    if call.mask is not None and call.mask.kind == "causal":
        changed["mask"] = Causal(offset=call.mask.options["offset"] - start)
    elif call.mask is not None:
        changed["mask"] = Dense(call.keep[..., start:stop])
    if call.built_bias is not None:
        changed["bias"] = call.built_bias[..., start:stop]
    return run_case(subject, case, lse=True, **changed)
