"""Promises about the numbers: right, in the right shape, and consistent with each other."""

from __future__ import annotations

import math

import torch

from ..cases import CallCase
from ..oracle import attended_pairs
from ..plain import arithmetic
from ..tolerance import Budget, assert_argmax, assert_close_to_oracle, ulp
from .registry import check
from .subject import Answer, Case, Subject, arguments, ask, assert_same_bits, differentiate, leaves_of

# No allowance for what the plain dense computation does: these compare results with each other.
_NO_SLACK = Budget(0.0, 0.0)


def _softmax(call: CallCase) -> bool:
    return call.kind == "softmax"


def close(subject: Subject, case: Case, answer: Answer, call: CallCase | None = None) -> None:
    """Every part of an answer is within the backend's bound of what the oracle says of `call`."""
    call = case.call if call is None else call
    if call.kind == "argmax":
        assert_argmax(answer.out, *call.tensors, call.gold, backend=case.backend)
    else:
        assert_close_to_oracle(answer.out, call.measure, backend=case.backend, bound=subject.bound(case.backend))
    for part in ("lse", "weights"):
        found = getattr(answer, part)
        if found is not None and not (part == "weights" and call.kind == "argmax"):
            assert_close_to_oracle(
                found, call.measure, backend=case.backend, bound=subject.bound(case.backend), part=part
            )


@check(5)
def out_agrees_with_oracle(subject: Subject, case: Case) -> None:
    """out is the oracle's, within the bound that the backend publishes."""
    close(subject, case, ask(subject, case))


@check(5, applies=_softmax, wants=["lse"])
def lse_agrees_with_oracle(subject: Subject, case: Case) -> None:
    """lse is log Σ_j exp(logit_j), sink included, and asking for it does not change out."""
    answer = ask(subject, case, lse=True)
    close(subject, case, answer)


@check(5, wants=["weights"])
def weights_agree_with_oracle(subject: Subject, case: Case) -> None:
    """weights are the oracle's; argmax has a single 1 at the key whose value it returns."""
    answer, gold = ask(subject, case, weights=True), case.call.gold
    assert answer.weights is not None
    assert answer.weights.shape == gold.weights.shape, f"weights have shape {tuple(answer.weights.shape)}"
    assert answer.weights.dtype is case.call.torch_dtype, f"weights are {answer.weights.dtype}"
    close(subject, case, answer)
    stray = answer.weights.masked_fill(gold.attended, 0.0)
    assert not bool(stray.ne(0).any()), f"{case.backend}: weights outside the mask are not exactly 0"


@check(5, wants=["weights"])
def weights_give_out(subject: Subject, case: Case) -> None:
    """weights @ value is out, up to the rounding of weights and out."""
    call = case.call
    answer = ask(subject, case, weights=True)
    assert answer.weights is not None
    weights, value = answer.weights.double(), call.value.double()
    if call.dims == 4:
        value = value.repeat_interleave(call.heads_q // call.heads_kv, dim=1)
    again, size = weights @ value, weights.abs() @ value.abs()
    part = call.measure.parts["out"]
    bound = subject.bound(case.backend)
    allowed = part.allowed(bound, _NO_SLACK)[..., None] * ulp(part.reach, part.dtype)[..., None]
    allowed = allowed + size * torch.finfo(call.torch_dtype).eps
    worst = float(((again - answer.out.double()).abs() - allowed).nan_to_num(0.0).max()) if again.numel() else 0.0
    assert worst <= 0, f"{case.backend}: out differs from weights @ value by {worst:.3g} more than rounding explains"


@check(5, applies=lambda call: call.normalized, wants=["weights"])
def weights_sum_to_one(subject: Subject, case: Case) -> None:
    """Each row of weights sums to 1 (with a sink: to what the sink leaves), or is empty and all 0."""
    call, gold = case.call, case.call.gold
    answer = ask(subject, case, weights=True)
    assert answer.weights is not None
    wanted = torch.where(gold.attended.any(-1) & gold.weights.ne(0).any(-1), 1.0, 0.0).double()
    if call.similarity is not None and call.similarity.options.get("sink") is not None:
        wanted = gold.weights.sum(-1)
    part = call.measure.parts["weights"]
    allowed = part.allowed(subject.bound(case.backend), _NO_SLACK) * ulp(part.reach, part.dtype)
    allowed = allowed + answer.weights.double().abs().sum(-1) * torch.finfo(call.torch_dtype).eps
    off = (answer.weights.double().sum(-1) - wanted).abs() - allowed * math.sqrt(max(1, call.len_k))
    if off.numel() and float(off.max()) > 0:
        row = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
        total = float(answer.weights[row].double().sum())
        raise AssertionError(f"{case.backend}: weights of row {row} sum to {total!r} instead of {float(wanted[row])!r}")
    empty = ~gold.attended.any(-1)
    assert not bool(answer.weights[empty].ne(0).any()), f"{case.backend}: the weights of an empty row are not 0"


@check(5, wants=["lse"])
def results_have_their_kind(subject: Subject, case: Case) -> None:
    """out has the query's dtype and (..., len_q, width_v); lse (..., len_q) in the arithmetic's dtype."""
    call = case.call
    alone, answer = ask(subject, case), ask(subject, case, lse=True)
    wanted = (*call.query.shape[:-1], call.width_v)
    for out in (alone.out, answer.out):
        assert tuple(out.shape) == wanted, f"{case.backend}: out has shape {tuple(out.shape)} instead of {wanted}"
        assert out.dtype is call.torch_dtype, f"{case.backend}: out is {out.dtype} instead of {call.torch_dtype}"
        assert not out.requires_grad, f"{case.backend}: out requires a gradient that nothing asked for"
    if answer.lse is not None:
        inner = arithmetic(call.torch_dtype)
        assert answer.lse.shape == call.query.shape[:-1], f"{case.backend}: lse has shape {tuple(answer.lse.shape)}"
        assert answer.lse.dtype is inner, f"{case.backend}: lse is {answer.lse.dtype} instead of {inner}"


@check(6, applies=lambda call: call.attended.numel() <= 1500, wants=["grad"])
def inputs_stay_as_they_are(subject: Subject, case: Case) -> None:
    """Neither the call nor its backward pass writes into query, key, value, bias or the mask."""
    call = case.call
    leaves = leaves_of(call)
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    allowed = call.attended.clone()
    out = ask(subject, case, **arguments(call, leaves)).out
    differentiate(out, leaves, torch.ones_like(out))
    for name, leaf in leaves.items():
        assert_same_bits(leaf.detach(), before[name], f"{case.backend}: {name} after the call")
    now = attended_pairs(call.built_mask, call.built_bias, call.extent)
    assert torch.equal(now, allowed), f"{case.backend}: the mask changed"


def _ties(call: CallCase) -> tuple[CallCase, ...]:
    return (call.but(values="integers"),)


@check(5, applies=lambda call: call.kind == "argmax", also=_ties)
def ties_go_to_the_lowest_index(subject: Subject, case: Case) -> None:
    """Among keys with exactly equal scores argmax takes the first; small integers are exact in every dtype."""
    (tied,) = _ties(case.call)
    answer = ask(subject, Case(case.backend, tied))
    assert_same_bits(answer.out.double(), tied.gold.out, f"{case.backend}: argmax with ties")


def _vanishing(call: CallCase) -> bool:
    name = call.similarity.options.get("map") if call.similarity is not None else None
    return call.kind == "feature_map" and name in ("relu", "identity", "squared") and call.len_q > 0


@check(2, applies=_vanishing)
def a_zero_sum_gives_a_zero_row(subject: Subject, case: Case) -> None:
    """Where Σ_j sim is exactly 0 the row is exactly 0, without an epsilon, and other rows are not touched."""
    query = case.call.query.clone()
    query[..., 0, :] = 0.0
    before, after = ask(subject, case), ask(subject, case, query=query)
    assert not bool(after.out[..., 0, :].ne(0).any()), f"{case.backend}: a row without any similarity is not 0"
    assert_same_bits(after.out[..., 1:, :], before.out[..., 1:, :], f"{case.backend}: the other rows")
