"""Every promise, checked for every backend on the contract's cases; and exactly what each backend refuses."""

from collections.abc import Callable

import pytest
import torch

from qkv.backends.base import NO_WEIGHTS
from qkv.errors import BackendRefused
from qkv.inputs import NO_STATE_WEIGHTS
from qkv.testing import CallCase, Spec
from qkv.testing.contract import BackendCase, Check, Subject, checks, contract_cases, run
from qkv.testing.contract.subject import arguments, leaves_of, run_case

SUBJECT = Subject.of_qkv()
CASES = contract_cases()
STRENGTH = pytest.mark.parametrize("strength", [1, pytest.param(2, marks=pytest.mark.slow)], ids=["values", "pairs"])
Wants = frozenset[str]


def refused_by_reference(call: CallCase, wants: Wants) -> str | None:
    return None


def refused_by_blockwise(call: CallCase, wants: Wants) -> str | None:
    if call.kind == "argmax":
        return "Argmax has no sum over the keys"
    if call.state is not None:
        return "has no state="
    return NO_WEIGHTS if "weights" in wants else None


def refused_by_sdpa(call: CallCase, wants: Wants) -> str | None:
    if call.kind != "softmax":
        return "flash kernel computes Softmax"
    if call.similarity is not None and "softcap" in call.similarity.options:
        return "flash kernel has no softcap"
    if call.forgets:
        return "flash kernel has no log_decay"
    if call.bias == "function":
        return "not a function of scores"
    return NO_WEIGHTS if "weights" in wants else None


def refused_by_argmax(call: CallCase, wants: Wants) -> str | None:
    if call.kind != "argmax":
        return "only Argmax() has a single best key"
    return NO_WEIGHTS if "weights" in wants else None


def refused_by_native(call: CallCase, wants: Wants) -> str | None:
    if call.kind not in ("softmax", "sigmoid"):
        return "the kernel computes Softmax and Sigmoid"
    if call.dtype == "float64":
        return "the kernel computes in float32"
    if call.bias == "function":
        return "not a function of scores"
    if "weights" in wants:
        return NO_WEIGHTS
    return "the kernel has no derivative" if "grad" in wants else None


def conjuncts(mask: Spec | None) -> list[Spec]:
    """The parts of a mask that are combined by &."""
    if mask is None:
        return []
    return [part for inner in mask.parts for part in conjuncts(inner)] if mask.kind == "and" else [mask]


def refused_by_linear(call: CallCase, wants: Wants) -> str | None:
    if call.kind not in ("polynomial", "feature_map"):
        return "is no product of features"
    kinds = {part.kind for part in conjuncts(call.mask)}
    if "window" in kinds:
        return "a Window drops earlier keys"
    if call.state is not None:
        return None
    if kinds - {"causal", "padding"}:
        return "one state for all queries supports Causal and Padding"
    return NO_WEIGHTS if "weights" in wants else None


# Part of the reason for every combination that a backend may refuse. A backend that refuses more or less fails.
REFUSED: dict[str, Callable[[CallCase, Wants], str | None]] = {
    "reference": refused_by_reference,
    "blockwise": refused_by_blockwise,
    "sdpa": refused_by_sdpa,
    "linear": refused_by_linear,
    "argmax": refused_by_argmax,
    "native": refused_by_native,
}


def refusal_of(backend: str, call: CallCase, wants: Wants) -> str | None:
    """No backend returns the weights of a state."""
    return NO_STATE_WEIGHTS if call.state is not None and "weights" in wants else REFUSED[backend](call, wants)


def expected_refusal(backend: str, check: Check, call: CallCase) -> str | None:
    if not check.refusable:
        return None
    reasons = (refusal_of(backend, made, check.wants) for made in (call, *check.extra_calls(call)))
    return next((reason for reason in reasons if reason is not None), None)


def test_every_backend_is_in_the_table() -> None:
    assert set(SUBJECT.backends) == set(REFUSED)


@STRENGTH
@pytest.mark.parametrize("wants", [(), ("lse",), ("weights",), ("grad",)], ids=lambda w: "+".join(w) or "out")
@pytest.mark.parametrize("backend", sorted(REFUSED))
def test_a_backend_refuses_exactly_what_the_table_says(backend: str, wants: tuple[str, ...], strength: int) -> None:
    for call in contract_cases(strength):
        leaves = leaves_of(call) if "grad" in wants else {}
        leaves.pop("sink", None)
        given = arguments(call, leaves) if "grad" in wants else {}
        try:
            run_case(SUBJECT, BackendCase(backend, call), lse="lse" in wants, weights="weights" in wants, **given)
            found = ""
        except BackendRefused as refusal:
            found = "; ".join(refusal.reasons)
        expected = refusal_of(backend, call, frozenset(wants))
        if expected is None:
            assert not found, f"{backend} refuses {call!r}: {found}"
        else:
            assert expected in found, f"{backend} should refuse {call!r} for {expected!r}, but: {found or 'it ran'}"


@STRENGTH
@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
@pytest.mark.parametrize("backend", sorted(REFUSED))
def test_promise(backend: str, check: Check, strength: int) -> None:
    cases = contract_cases(strength)
    report = run(SUBJECT, cases, backends=[backend], only=[check.name])
    report.raise_for_failures()
    expected = {
        call: reason for call in cases if check.applies(call) and (reason := expected_refusal(backend, check, call))
    }
    assert {one.case.call for one in report.refusals} == set(expected)
    for one in report.refusals:
        assert expected[one.case.call] in one.detail
    passed = len(report.of("passed"))
    ran = passed or len(expected) == len(report.outcomes)
    assert ran or strength == 1, f"{check.name} ran on no case with {backend}"


def test_every_case_runs_on_two_backends() -> None:
    """Each backend runs each dtype (native all but float64)."""
    ran: dict[str, set[str]] = {backend: set() for backend in REFUSED}
    for call in CASES:
        able = [backend for backend in REFUSED if REFUSED[backend](call, frozenset()) is None]
        assert len(able) >= 2, f"only {able} runs {call!r}"
        for backend in able:
            ran[backend].add(call.dtype)
    assert {backend: len(dtypes) for backend, dtypes in ran.items()} == dict.fromkeys(ran, 4) | {"native": 3}


def test_cases_cover_the_dtypes() -> None:
    assert {call.torch_dtype for call in CASES} == {torch.float64, torch.float32, torch.bfloat16, torch.float16}
