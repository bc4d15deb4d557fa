"""Promises about what is not attended: it cannot matter, and what is attended is never hidden."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..cases import CallCase, as_called
from ..oracle import oracle
from ..poison import poison_masked, unseen_keys
from ..tolerance import Yardstick, assert_argmax, assert_close_to_oracle, yardstick
from .registry import check
from .subject import (
    Case,
    Subject,
    apart,
    arguments,
    ask,
    assert_same_bits,
    differentiate,
    gradient_noise,
    gradients,
    leaves_of,
)


def has_empty_rows(call: CallCase) -> bool:
    return bool((~call.attended.any(-1)).any())


def hides_something(call: CallCase) -> bool:
    """Some query does not attend to some key that another one does."""
    return bool((~call.attended).any() and call.attended.any())


@check(2, applies=has_empty_rows, wants=["lse"])
def empty_rows_are_zero(subject: Subject, case: Case) -> None:
    """A query with nothing to attend to gets exactly 0 and lse −inf."""
    answer = ask(subject, case, lse=True)
    empty = as_called(~case.call.attended.any(-1), case.call.dims)
    assert not bool(answer.out[empty].ne(0).any()), f"{case.backend}: an empty row is {answer.out[empty][0].tolist()}"
    if answer.lse is not None:
        assert bool((answer.lse[empty] == -math.inf).all()), f"{case.backend}: an empty row's lse is not −inf"


@check(2, applies=has_empty_rows, wants=["grad"])
def empty_rows_have_zero_gradient(subject: Subject, case: Case) -> None:
    """A query with nothing to attend to has gradient 0 and sends none to keys, values, bias and sink."""
    call = case.call
    empty = as_called(~call.attended.any(-1), call.dims)
    for name, grad in gradients(subject, case).items():
        assert not bool(grad.isnan().any()), f"{case.backend}: the gradient of {name} is NaN"
        if name == "query":
            assert not bool(grad[empty].ne(0).any()), f"{case.backend}: an empty row has a gradient"
    only_empty = torch.where(empty[..., None], 1.0, 0.0).to(call.torch_dtype)
    only_empty = only_empty.expand(*call.query.shape[:-1], call.width_v)
    for name, grad in gradients(subject, case, only_empty).items():
        assert not bool(grad.ne(0).any()), f"{case.backend}: an empty row sends a gradient to {name}"


@check(3, applies=hides_something, wants=["lse"])
def masked_numbers_cannot_matter(subject: Subject, case: Case) -> None:
    """NaN, ±inf and 1e30 in what nobody attends to leave every bit of out and lse as it was."""
    call = case.call
    poisoned = _poisoned(call)
    clean, dirty = ask(subject, case, lse=True), ask(subject, case, lse=True, **poisoned)
    assert_same_bits(dirty.out, clean.out, f"{case.backend}: out with poison behind the mask")
    assert_same_bits(dirty.lse, clean.lse, f"{case.backend}: lse with poison behind the mask")


@check(3, applies=hides_something, wants=["grad"])
def masked_numbers_get_no_gradient(subject: Subject, case: Case) -> None:
    """With poison behind the mask, gradients there are exactly 0 and the others are what they were."""
    call = case.call
    poisoned = _poisoned(call)
    clean, dirty = gradients(subject, case), gradients(subject, case, **poisoned)
    unseen = unseen_keys(as_called(call.attended, call.dims), call.heads_kv)
    for name in ("key", "value"):
        assert not bool(dirty[name][unseen].ne(0).any()), f"{case.backend}: a masked {name} has a gradient"
    for name, grad in dirty.items():
        lost = clean[name].isfinite() & ~grad.isfinite()
        assert not bool(lost.any()), f"{case.backend}: the gradient of {name} is not finite"
        tolerance = 64 * torch.finfo(grad.dtype).eps * float(clean[name].abs().max())
        tolerance = max(tolerance, gradient_noise(call, grad.dtype))
        off = apart(grad, clean[name])
        assert off <= tolerance, f"{case.backend}: the gradient of {name} moved by {off:.3g} with the poison"


def _poisoned(call: CallCase) -> dict[str, Any]:
    poisoned = poison_masked(*call.tensors, as_called(call.attended, call.dims))
    return dict(zip(("query", "key", "value"), poisoned, strict=True))


@lru_cache(maxsize=512)
def _injections(call: CallCase) -> list[tuple[str, dict[str, Any], Yardstick]]:
    """NaN in one key, in one number of a value, in one query; for softmax infinities as well."""
    (query, key, value), made = call.tensors, []
    j = _telling_key(call)
    for name, tensor, column, number in (
        ("key", key, slice(None), math.nan),
        ("value", value, 0, math.nan),
        ("value", value, -1, math.inf),
        ("key", key, 0, math.inf),
    ):
        if number == math.inf and (call.kind != "softmax" or not call.width_v):
            continue
        changed = tensor.clone()
        changed[..., j, column] = number
        made.append((f"{number} in {name} {j}", {name: changed}))
    changed = query.clone()
    changed[..., call.len_q // 2, :] = math.nan
    made.append(("NaN in a query", {"query": changed}))
    return [(what, changed, _measured(call, changed)) for what, changed in made]


def _measured(call: CallCase, changed: dict[str, Any]) -> Yardstick:
    tensors, mask = _tensors(call, changed), as_called(call.attended, call.dims)
    gold = oracle(*tensors, similarity=call.built_similarity, mask=mask, bias=call.built_bias)
    return yardstick(*tensors, gold, call.built_similarity, call.built_bias)


def _tensors(call: CallCase, changed: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = ({**call.kwargs, **changed}[name] for name in ("query", "key", "value"))
    return query, key, value


def _telling_key(call: CallCase) -> int:
    """The key with the most even split between queries that attend to it and those that do not."""
    share = call.attended.double().mean(dim=(0, 1, 2))
    return int((share - 0.5).abs().argmin())


@check(3, applies=lambda call: 0 < call.attended.numel() <= 800 and call.width_v > 0)
def attended_nan_is_seen(subject: Subject, case: Case) -> None:
    """NaN reaches exactly the rows (for values: the columns too) that attend to it; infinities as they should."""
    for what, changed, measure in _injections(case.call):
        out = ask(subject, case, **changed).out
        try:
            if case.call.kind == "argmax":
                assert_argmax(out, *_tensors(case.call, changed), measure.gold, backend=case.backend)
            else:
                assert_close_to_oracle(out, measure, backend=case.backend, bound=subject.bound(case.backend))
        except AssertionError as broken:
            raise AssertionError(f"with {what}: {broken}") from broken


@check(3, applies=hides_something, wants=["lse"])
def the_unattended_does_not_change_a_bit(subject: Subject, case: Case) -> None:
    """Other keys and values where a query may not look, the future among them, leave that query's bits alone."""
    call = case.call
    clean = ask(subject, case, lse=True)
    j = _telling_key(call)
    key, value = call.key.clone(), call.value.clone()
    key[..., j, :] = -1.5 * key[..., j, :] + 0.25
    value[..., j, :] = 3.0 * value[..., j, :] - 1.0
    changed = ask(subject, case, lse=True, key=key, value=value)
    blind = as_called(~call.attended[..., j], call.dims)
    assert_same_bits(changed.out[blind], clean.out[blind], f"{case.backend}: queries that do not see key {j}")
    if clean.lse is not None and changed.lse is not None:
        assert_same_bits(
            changed.lse[blind], clean.lse[blind], f"{case.backend}: lse of queries that do not see key {j}"
        )


def _is_small(call: CallCase) -> bool:
    return call.dtype == "float64" and call.attended.numel() <= 1500 and bool(call.attended.any())


@check(3, applies=lambda call: _is_small(call) and hides_something(call), wants=["grad"])
def nothing_leaks(subject: Subject, case: Case) -> None:
    """∂out_i/∂key_j and ∂out_i/∂value_j are exactly 0 where the mask says so, and ∂out_i/∂query_j for j ≠ i."""
    call = case.call
    leaves = leaves_of(call)
    out = ask(subject, case, **arguments(call, leaves)).out
    attended = as_called(call.attended, call.dims)
    for i in sorted({0, call.len_q // 2, call.len_q - 1}):
        cotangent = torch.zeros_like(out)
        cotangent[..., i, :] = 1.0
        grads = differentiate(out, leaves, cotangent)
        blind = unseen_keys(attended[..., i : i + 1, :], call.heads_kv)
        for name in ("key", "value"):
            assert not bool(grads[name][blind].ne(0).any()), f"{case.backend}: query {i} leaks from a masked {name}"
        others = [row for row in range(call.len_q) if row != i]
        assert not bool(grads["query"][..., others, :].ne(0).any()), f"{case.backend}: query {i} depends on others"
        seen = call.gold.weights.detach()[..., i, :].ne(0).any()
        assert not bool(seen) or bool(grads["value"].ne(0).any()), f"{case.backend}: query {i} has no gradient at all"
