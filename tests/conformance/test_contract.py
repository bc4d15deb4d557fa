"""Every promise, held against every backend, over the contract's cases; and exactly what each backend refuses."""

from collections.abc import Callable

import pytest
import torch

from qkv.errors import BackendRefused
from qkv.testing import CallCase, Spec
from qkv.testing.contract import Case, Check, Subject, checks, contract_cases, run
from qkv.testing.contract.subject import ask, leaves_of

SUBJECT = Subject.of_qkv()
CASES = contract_cases()
Wants = frozenset[str]


def refused_by_dense(call: CallCase, wants: Wants) -> str | None:
    return None


def refused_by_streaming(call: CallCase, wants: Wants) -> str | None:
    if call.kind == "argmax":
        return "Argmax sums nothing"
    return "return_weights asks for the len_q x len_k matrix" if "weights" in wants else None


def refused_by_hard(call: CallCase, wants: Wants) -> str | None:
    if call.kind != "argmax":
        return "only Argmax() has a single best key"
    return "return_weights asks for the len_q x len_k matrix" if "weights" in wants else None


def refused_by_decode(call: CallCase, wants: Wants) -> str | None:
    if call.kind != "softmax":
        return "the kernel computes Softmax"
    if call.dtype == "float64":
        return "the kernel computes in float32"
    if "weights" in wants:
        return "return_weights asks for the len_q x len_k matrix"
    return "the kernel has no derivative" if "grad" in wants else None


def joined(mask: Spec | None) -> list[Spec]:
    """The masks that & joins."""
    if mask is None:
        return []
    return [part for inner in mask.parts for part in joined(inner)] if mask.kind == "and" else [mask]


def refused_by_linear(call: CallCase, wants: Wants) -> str | None:
    if call.kind not in ("polynomial", "feature_map"):
        return "is no product of features"
    kinds = {part.kind for part in joined(call.mask)}
    if "window" in kinds:
        return "a Window lets go of keys"
    if kinds - {"causal", "padding"}:
        return "one state serves Causal and Padding"
    return "return_weights asks for the len_q x len_k matrix" if "weights" in wants else None


# Words of the reason for every combination that a backend may refuse. A backend that refuses more, or less, fails.
REFUSED: dict[str, Callable[[CallCase, Wants], str | None]] = {
    "reference": refused_by_dense,
    "sdpa": refused_by_streaming,
    "linear": refused_by_linear,
    "argmax": refused_by_hard,
    "native": refused_by_decode,
}


def expected_refusal(backend: str, check: Check, call: CallCase) -> str | None:
    if not check.refusable:
        return None
    reasons = (REFUSED[backend](made, check.wants) for made in (call, *check.also(call)))
    return next((reason for reason in reasons if reason is not None), None)


def test_every_form_says_what_it_refuses() -> None:
    assert set(SUBJECT.backends) == set(REFUSED)


@pytest.mark.parametrize("wants", [(), ("lse",), ("weights",), ("grad",)], ids=lambda w: "+".join(w) or "out")
@pytest.mark.parametrize("backend", sorted(REFUSED))
def test_a_form_refuses_what_the_table_says_and_nothing_else(backend: str, wants: tuple[str, ...]) -> None:
    for call in CASES:
        given = leaves_of(call) if "grad" in wants else {}
        given.pop("sink", None)
        try:
            ask(SUBJECT, Case(backend, call), lse="lse" in wants, weights="weights" in wants, **given)
            found = ""
        except BackendRefused as refusal:
            found = "; ".join(refusal.reasons)
        expected = REFUSED[backend](call, frozenset(wants))
        if expected is None:
            assert not found, f"{backend} refuses {call!r}: {found}"
        else:
            assert expected in found, f"{backend} should refuse {call!r} for {expected!r}, but: {found or 'it ran'}"


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
@pytest.mark.parametrize("backend", sorted(REFUSED))
def test_promise(backend: str, check: Check) -> None:
    report = run(SUBJECT, CASES, backends=[backend], only=[check.name])
    report.raise_for_failures()
    expected = {
        call: reason for call in CASES if check.applies(call) and (reason := expected_refusal(backend, check, call))
    }
    assert {one.case.call for one in report.refusals} == set(expected)
    for one in report.refusals:
        assert expected[one.case.call] in one.detail
    passed = len(report.of("passed"))
    assert passed or len(expected) == len(report.outcomes), f"{check.name} ran on no case with {backend}"


def test_no_form_gets_away_with_refusing() -> None:
    """Each backend runs each dtype, decode all but float64, and the backends together run every case."""
    ran: dict[str, set[str]] = {backend: set() for backend in REFUSED}
    for call in CASES:
        able = [backend for backend in REFUSED if REFUSED[backend](call, frozenset()) is None]
        assert len(able) >= 2, f"only {able} answers {call!r}: there is nothing to compare it with"
        for backend in able:
            ran[backend].add(call.dtype)
    assert {backend: len(dtypes) for backend, dtypes in ran.items()} == dict.fromkeys(ran, 4) | {"native": 3}


def test_cases_know_their_dtypes() -> None:
    assert {call.torch_dtype for call in CASES} == {torch.float64, torch.float32, torch.bfloat16, torch.float16}
