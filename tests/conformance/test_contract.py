"""Every promise, held against every form, over the contract's cases; and exactly what each form refuses."""

from collections.abc import Callable

import pytest
import torch

from qkv.errors import FormRefused
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


# Words of the reason for every combination that a form may refuse. A form that refuses more, or less, fails.
REFUSED: dict[str, Callable[[CallCase, Wants], str | None]] = {
    "dense": refused_by_dense,
    "streaming": refused_by_streaming,
    "linear": refused_by_linear,
    "hard": refused_by_hard,
    "decode": refused_by_decode,
}


def expected_refusal(form: str, check: Check, call: CallCase) -> str | None:
    if not check.refusable:
        return None
    reasons = (REFUSED[form](made, check.wants) for made in (call, *check.also(call)))
    return next((reason for reason in reasons if reason is not None), None)


def test_every_form_says_what_it_refuses() -> None:
    assert set(SUBJECT.forms) == set(REFUSED)


@pytest.mark.parametrize("wants", [(), ("lse",), ("weights",), ("grad",)], ids=lambda w: "+".join(w) or "out")
@pytest.mark.parametrize("form", sorted(REFUSED))
def test_a_form_refuses_what_the_table_says_and_nothing_else(form: str, wants: tuple[str, ...]) -> None:
    for call in CASES:
        given = leaves_of(call) if "grad" in wants else {}
        given.pop("sink", None)
        try:
            ask(SUBJECT, Case(form, call), lse="lse" in wants, weights="weights" in wants, **given)
            found = ""
        except FormRefused as refusal:
            found = "; ".join(refusal.reasons)
        expected = REFUSED[form](call, frozenset(wants))
        if expected is None:
            assert not found, f"{form} refuses {call!r}: {found}"
        else:
            assert expected in found, f"{form} should refuse {call!r} for {expected!r}, but: {found or 'it ran'}"


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
@pytest.mark.parametrize("form", sorted(REFUSED))
def test_promise(form: str, check: Check) -> None:
    report = run(SUBJECT, CASES, forms=[form], only=[check.name])
    report.raise_for_failures()
    expected = {
        call: reason for call in CASES if check.applies(call) and (reason := expected_refusal(form, check, call))
    }
    assert {one.case.call for one in report.refusals} == set(expected)
    for one in report.refusals:
        assert expected[one.case.call] in one.detail
    passed = len(report.of("passed"))
    assert passed or len(expected) == len(report.outcomes), f"{check.name} ran on no case with {form}"


def test_no_form_gets_away_with_refusing() -> None:
    """Each form runs each dtype, decode all but float64, and the forms together run every case."""
    ran: dict[str, set[str]] = {form: set() for form in REFUSED}
    for call in CASES:
        able = [form for form in REFUSED if REFUSED[form](call, frozenset()) is None]
        assert len(able) >= 2, f"only {able} answers {call!r}: there is nothing to compare it with"
        for form in able:
            ran[form].add(call.dtype)
    assert {form: len(dtypes) for form, dtypes in ran.items()} == dict.fromkeys(ran, 4) | {"decode": 3}


def test_cases_know_their_dtypes() -> None:
    assert {call.torch_dtype for call in CASES} == {torch.float64, torch.float32, torch.bfloat16, torch.float16}
