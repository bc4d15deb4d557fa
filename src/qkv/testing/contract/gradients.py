"""Promises about gradients: the oracle's own, and what finite differences say."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..cases import CallCase, as_called
from ..oracle import oracle
from ..plain import arithmetic, plain_dense
from .registry import check
from .subject import (
    Case,
    Subject,
    apart,
    arguments,
    ask,
    cotangent_like,
    differentiate,
    gradient_noise,
    gradients,
    leaves_of,
)


def _modest(call: CallCase) -> bool:
    return 0 < call.attended.numel() <= 6000


@check(5, applies=_modest, wants=["grad"])
def gradients_agree_with_oracle(subject: Subject, case: Case) -> None:
    """Gradients of query, key, value, bias and sink are the oracle's, as closely as a plain computation's.

    The error may be four times that of the plain dense computation in the same dtype, the backend's bound in
    eps of the tensor's largest gradient, or the noise of terms that cancel, whichever is largest.
    """
    call = case.call
    found = gradients(subject, case)
    if call.kind == "argmax":
        for name in ("query", "key"):
            assert not bool(found[name].ne(0).any()), f"{case.backend}: argmax sends a gradient to {name}"
        found = {"value": found["value"]}
    right = _oracle_gradients(call)
    plain = _plain_gradients(call)
    inner = torch.finfo(arithmetic(call.torch_dtype)).eps
    bound = max(16.0, subject.bound(case.backend)[arithmetic(call.torch_dtype)])
    noise = gradient_noise(call, arithmetic(call.torch_dtype), case.backend)
    for name, grad in found.items():
        gold = right[name]
        size = float(gold.abs().max())
        error = apart(grad, gold)
        outer = torch.finfo(grad.dtype).eps * max(1.0, subject.bound(case.backend)[call.torch_dtype])
        allowed = max(4 * apart(plain[name], gold), bound * inner * size, noise) + outer * size
        assert error <= allowed, (
            f"{case.backend}: the gradient of {name} in {call.dtype} is off by {error:.3g}, allowed {allowed:.3g} "
            f"for gradients up to {size:.3g}"
        )


@check(2, wants=["grad"])
def zero_gradients_are_there(subject: Subject, case: Case) -> None:
    """A gradient that is zero is a tensor of zeros and not missing: every input is part of the graph."""
    leaves = leaves_of(case.call)
    out = ask(subject, case, **arguments(case.call, leaves)).out
    assert out.requires_grad, f"{case.backend}: out is not part of the graph"
    differentiate(out, leaves, torch.ones_like(out), missing=False)


@lru_cache(maxsize=512)
def _oracle_gradients(call: CallCase) -> dict[str, Tensor]:
    leaves = leaves_of(call, torch.float64)
    given = arguments(call, leaves)
    mask, similarity = as_called(call.attended, call.dims), given.pop("similarity", call.built_similarity)
    query, key, value = given.pop("query"), given.pop("key"), given.pop("value")
    out = oracle(query, key, value, similarity=similarity, mask=mask, **given).out
    return differentiate(out, leaves, cotangent_like(out.to(call.torch_dtype)).double())


@lru_cache(maxsize=512)
def _plain_gradients(call: CallCase) -> dict[str, Tensor]:
    leaves = leaves_of(call)
    given = arguments(call, leaves)
    similarity = given.pop("similarity", call.built_similarity)
    attended = as_called(call.attended, call.dims)
    out = plain_dense(given["query"], given["key"], given["value"], attended, similarity, given.get("bias")).out
    return differentiate(out, leaves, cotangent_like(out))


def _tiny(call: CallCase) -> bool:
    return call.dtype == "float64" and 0 < call.attended.numel() <= 700


@check(5, applies=_tiny, wants=["grad"])
def gradcheck(subject: Subject, case: Case) -> None:
    """Finite differences in float64 give the same gradients; lse has one too."""
    call = case.call
    leaves = leaves_of(call)
    if call.kind == "argmax":
        # A step function of queries and keys: finite differences would jump.
        leaves = {"value": leaves["value"]}
    names = list(leaves)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, tensors, strict=True))
        answer = ask(subject, case, lse=True, **arguments(call, given))
        # An empty row's lse is −inf, whatever the inputs are: no difference to measure.
        return (answer.out,) if answer.lse is None else (answer.out, torch.where(answer.lse.isinf(), 0.0, answer.lse))

    assert torch.autograd.gradcheck(run, tuple(leaves.values()), fast_mode=True, atol=1e-6, rtol=1e-4), case.backend
