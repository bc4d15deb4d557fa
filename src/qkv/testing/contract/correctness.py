"""Promises about results: values, shapes, gradients, refusals and errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from qkv.errors import BackendRefused, QkvError

from ..call_case import CallCase
from ..oracle import attended_pairs, oracle
from ..tolerance import Answer, assert_argmax, assert_close_to_oracle, compute_dtype, naive_attention
from .subject import (
    BackendCase,
    Subject,
    arguments,
    assert_same_bits,
    check,
    cotangent_like,
    differentiate,
    gradient_noise,
    gradients,
    leaves_of,
    max_difference,
    run_case,
)


def assert_close(subject: Subject, case: BackendCase, answer: Answer) -> None:
    """Check that every part of an answer is within the backend's bound of the oracle's answer."""
    call = case.call
    claims: dict[str, Any] = {"backend": case.backend, "bound": subject.bound(case.backend)}
    if call.kind == "argmax":
        assert_argmax(answer.out, *call.tensors, call.gold, backend=case.backend)
        return
    for part, found in answer._asdict().items():
        if found is not None:
            assert_close_to_oracle(found, call.error_bounds, part=part, **claims)


@check(5)
def out_agrees_with_oracle(subject: Subject, case: BackendCase) -> None:
    """out equals the oracle's within the bound that the backend publishes."""
    assert_close(subject, case, run_case(subject, case))


@check(5, applies=lambda call: call.kind == "softmax", wants=["lse"])
def lse_agrees_with_oracle(subject: Subject, case: BackendCase) -> None:
    """lse is log Σ_j exp(logit_j), sink included, and requesting it does not change out."""
    assert_close(subject, case, run_case(subject, case, lse=True))


@check(5, wants=["weights"])
def weights_agree_with_oracle(subject: Subject, case: BackendCase) -> None:
    """weights equal the oracle's; argmax has a single 1 at the key whose value it returns."""
    answer, gold = run_case(subject, case, weights=True), case.call.gold
    assert answer.weights is not None
    assert answer.weights.shape == gold.weights.shape, f"weights have shape {tuple(answer.weights.shape)}"
    assert answer.weights.dtype is case.call.torch_dtype, f"weights are {answer.weights.dtype}"
    assert_close(subject, case, answer)
    outside = answer.weights.masked_fill(gold.attended, 0.0)
    assert not bool(outside.ne(0).any()), f"{case.backend}: weights outside the mask are not exactly 0"


@check(5, wants=["lse"])
def results_have_their_kind(subject: Subject, case: BackendCase) -> None:
    """out has the query's dtype and (..., len_q, width_v); lse (..., len_q) in the arithmetic's dtype."""
    call = case.call
    alone, answer = run_case(subject, case), run_case(subject, case, lse=True)
    wanted = (*call.query.shape[:-1], call.width_v)
    for out in (alone.out, answer.out):
        assert tuple(out.shape) == wanted, f"{case.backend}: out has shape {tuple(out.shape)} instead of {wanted}"
        assert out.dtype is call.torch_dtype, f"{case.backend}: out is {out.dtype} instead of {call.torch_dtype}"
        assert not out.requires_grad, f"{case.backend}: out requires a gradient, but no input does"
    if answer.lse is not None:
        inner = compute_dtype(call.torch_dtype)
        assert answer.lse.shape == call.query.shape[:-1], f"{case.backend}: lse has shape {tuple(answer.lse.shape)}"
        assert answer.lse.dtype is inner, f"{case.backend}: lse is {answer.lse.dtype} instead of {inner}"


@check(6, applies=lambda call: call.attended.numel() <= 1500, wants=["grad"])
def inputs_stay_as_they_are(subject: Subject, case: BackendCase) -> None:
    """Neither the call nor its backward pass writes to query, key, value, bias or the mask."""
    call = case.call
    leaves = leaves_of(call)
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    allowed = call.attended.clone()
    out = run_case(subject, case, **arguments(call, leaves)).out
    differentiate(out, leaves, torch.ones_like(out))
    for name, leaf in leaves.items():
        assert_same_bits(leaf.detach(), before[name], f"{case.backend}: {name} after the call")
    bias = call.by_definition(call.built_similarity, call.built_bias)["bias"]
    now = attended_pairs(call.built_mask, bias, call.extent)
    now = now if call.state is None else now.tril()
    assert torch.equal(now, allowed), f"{case.backend}: the mask changed"


@check(5, applies=lambda call: call.kind == "argmax", extra_calls=lambda call: (call.replace(values="integers"),))
def ties_go_to_the_lowest_index(subject: Subject, case: BackendCase) -> None:
    """Among keys with exactly equal scores argmax takes the first; small integers are exact in every dtype."""
    tied = case.call.replace(values="integers")
    answer = run_case(subject, BackendCase(case.backend, tied))
    assert_same_bits(answer.out.double(), tied.gold.out, f"{case.backend}: argmax with ties")


def _vanishing(call: CallCase) -> bool:
    name = call.similarity.options.get("map") if call.similarity is not None else None
    return call.kind == "feature_map" and name in ("relu", "identity", "squared") and call.len_q > 0


@check(2, applies=_vanishing)
def a_zero_sum_gives_a_zero_row(subject: Subject, case: BackendCase) -> None:
    """Where Σ_j sim is exactly 0 the row is exactly 0, without an epsilon, and other rows do not change."""
    query = case.call.query.clone()
    query[..., 0, :] = 0.0
    before, after = run_case(subject, case), run_case(subject, case, query=query)
    assert not bool(after.out[..., 0, :].ne(0).any()), f"{case.backend}: a row whose similarities are all 0 is not 0"
    assert_same_bits(after.out[..., 1:, :], before.out[..., 1:, :], f"{case.backend}: the other rows")


def _moderate_size(call: CallCase) -> bool:
    return 0 < call.attended.numel() <= 6000


@check(5, applies=_moderate_size, wants=["grad"])
def gradients_agree_with_oracle(subject: Subject, case: BackendCase) -> None:
    """Gradients of query, key, value, bias and sink equal the oracle's, about as closely as the naive computation's.

    A zero gradient is a tensor of zeros and not missing: every input is part of the graph.
    The error may be four times that of the naive computation in the same dtype, the backend's bound in
    eps of the tensor's largest gradient, or the noise of terms that cancel, whichever is largest.
    """
    call = case.call
    found = gradients(subject, case, missing=False)
    if call.kind == "argmax":
        for name in ("query", "key"):
            assert not bool(found[name].ne(0).any()), f"{case.backend}: argmax has a gradient for {name}"
        found = {"value": found["value"]}
    plain, bounds, inner = _naive_gradients(call), subject.bound(case.backend), compute_dtype(call.torch_dtype)
    noise = gradient_noise(call, inner, case.backend)
    for name, grad in found.items():
        gold = oracle_gradients(call)[name]
        error, size = max_difference(grad, gold), float(gold.abs().max())
        rounding = max(16.0, bounds[inner]) * torch.finfo(inner).eps * size
        outer = torch.finfo(grad.dtype).eps * max(1.0, bounds[call.torch_dtype]) * size
        allowed = max(4 * max_difference(plain[name], gold), rounding, noise) + outer
        assert error <= allowed, (
            f"{case.backend}: the gradient of {name} in {call.dtype} is off by {error:.3g}, allowed {allowed:.3g} "
            f"for gradients up to {size:.3g}"
        )


@lru_cache(maxsize=512)
def oracle_gradients(call: CallCase) -> dict[str, Tensor]:
    return _gradients_by(call, torch.float64, partial(oracle, mask=call.keep))


@lru_cache(maxsize=512)
def _naive_gradients(call: CallCase) -> dict[str, Tensor]:
    return _gradients_by(call, None, partial(naive_attention, attended=call.keep))


def _gradients_by(call: CallCase, dtype: torch.dtype | None, compute: Callable[..., Any]) -> dict[str, Tensor]:
    leaves = leaves_of(call, dtype)
    given = {"similarity": call.built_similarity} | arguments(call, leaves)
    inner = torch.float64 if dtype is torch.float64 else compute_dtype(call.torch_dtype)
    given |= call.by_definition(given["similarity"], given.get("bias", call.built_bias), inner)
    out = compute(**given).out
    return differentiate(out, leaves, cotangent_like(out.to(call.torch_dtype)).to(out.dtype))


def _finite_difference_size(call: CallCase) -> bool:
    return call.dtype == "float64" and 0 < call.attended.numel() <= 700


@check(5, applies=_finite_difference_size, wants=["grad"])
def gradcheck(subject: Subject, case: BackendCase) -> None:
    """Finite differences in float64 give the same gradients, those of lse too."""
    call = case.call
    leaves = leaves_of(call)
    if call.kind == "argmax":
        # A step function of queries and keys has no finite differences.
        leaves = {"value": leaves["value"]}
    for name, inside in (
        ("log_gate", -0.01),
        ("log_decay", -0.01),
        ("rate", 0.01),
    ):  # a gate of 1 has a derivative from one side only
        if name in leaves:
            leaves[name] = (leaves[name].detach() + inside).requires_grad_()
    names = list(leaves)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, tensors, strict=True))
        answer = run_case(subject, case, lse=True, **arguments(call, given))
        # An empty row's lse is −inf for any inputs: it has no finite differences.
        return (answer.out,) if answer.lse is None else (answer.out, torch.where(answer.lse.isinf(), 0.0, answer.lse))

    assert torch.autograd.gradcheck(run, tuple(leaves.values()), fast_mode=True, atol=1e-6, rtol=1e-4), case.backend


def _raised_error(subject: Subject, case: BackendCase, **wrong: Any) -> QkvError | None:
    """The qkv error of the call; errors of other types propagate and fail the check."""
    try:
        run_case(subject, case, **wrong)
    except QkvError as error:
        return error
    return None


@check(7)
def refusals_have_reasons(subject: Subject, case: BackendCase) -> None:
    """A backend requested by name runs, or the call is refused with reasons."""
    error = _raised_error(subject, case)
    if error is None:
        return
    assert isinstance(error, BackendRefused), f"{case.backend}: neither ran nor was refused: {error}"
    assert error.reasons, f"{case.backend}: refused without a reason"
    told = all(reason.strip() in str(error) for reason in error.reasons)
    assert told, f"{case.backend}: the message leaves out reasons"
    raise error


@check(7, applies=lambda call: call.seed % 20 == 0, refusable=False)
def an_unknown_backend_is_an_error(subject: Subject, case: BackendCase) -> None:
    """An unknown backend raises qkv's error instead of falling back."""
    error = _raised_error(subject, BackendCase("no such backend", case.call))
    assert error is not None, f"{case.backend}: backend='no such backend' ran"
    assert isinstance(error, ValueError), f"{type(error).__name__} is not a ValueError"
    assert "backend" in str(error), f"the message does not name the argument: {error}"


_WRONG_ARGUMENTS: tuple[tuple[str, type[Exception], Callable[[CallCase], dict[str, Any]]], ...] = (
    ("key", ValueError, lambda call: {"key": torch.cat([call.key, call.key], dim=-1)}),
    ("value", ValueError, lambda call: {"value": torch.cat([call.value, call.value], dim=-2)}),
    ("query", TypeError, lambda call: {name: call.kwargs[name].int() for name in ("query", "key", "value")}),
    ("key", TypeError, lambda call: {"key": call.key.to(torch.float64 if call.dtype != "float64" else torch.float32)}),
    ("mask", TypeError, lambda call: {"mask": torch.ones(call.len_q, call.len_k)}),
    ("dropout", ValueError, lambda call: {"dropout": 1.5}),
)


@check(8, applies=lambda call: call.len_k > 0, refusable=False)
def errors_name_the_argument(subject: Subject, case: BackendCase) -> None:
    """Wrong arguments raise qkv's own errors, also ValueError or TypeError, that name the argument."""
    for name, kind, wrong in _WRONG_ARGUMENTS:
        error = _raised_error(subject, case, **wrong(case.call))
        assert error is not None, f"{case.backend}: a wrong {name} was accepted"
        refused = isinstance(error, BackendRefused)
        assert not refused, f"{case.backend}: a wrong {name} is reported as a refusal: {error}"
        assert isinstance(error, kind), f"wrong {name}: {type(error).__name__} is not a {kind.__name__}"
        assert name in str(error), f"wrong {name}: the message does not name it: {error}"
