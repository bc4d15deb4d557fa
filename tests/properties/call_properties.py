"""What holds for any call at all, as functions of one call: `make test` draws a few calls, campaigns/calls.py many."""

from qkv import attention, explain
from qkv.errors import FormRefused
from qkv.testing import CallCase, assert_argmax, assert_close_to_oracle
from qkv.testing.contract import Case, Check, Subject, run
from qkv.testing.contract.accuracy import close
from qkv.testing.contract.subject import ask, assert_same_bits

SUBJECT = Subject.of_qkv()


def every_form_agrees_with_the_oracle(call: CallCase) -> list[str]:
    """The forms that took the call."""
    ran = []
    for form in SUBJECT.forms:
        try:
            answer = ask(SUBJECT, Case(form, call), lse=True)
        except FormRefused:
            continue
        ran.append(form)
        close(SUBJECT, Case(form, call), answer)
    assert "dense" in ran
    return ran


def auto_is_the_form_that_explain_names(call: CallCase) -> list[str]:
    """That form."""
    chosen = explain(**call.kwargs).form
    out = attention(**call.kwargs)
    assert_same_bits(out, attention(**call.kwargs, form=chosen), f"auto and {chosen}")  # pyright: ignore
    if call.kind == "argmax":
        assert_argmax(out, *call.tensors, call.gold, form="auto")  # pyright: ignore
    else:
        bound = SUBJECT.bound(chosen)
        assert_close_to_oracle(out, call.measure, form=f"auto ({chosen})", bound=bound)  # pyright: ignore
    return [chosen]


def weights_agree_with_the_oracle(call: CallCase) -> list[str]:
    """The one form that has weights."""
    close(SUBJECT, Case("dense", call), ask(SUBJECT, Case("dense", call), lse=True, weights=True))
    return ["dense"]


def can_be_held_to(call: CallCase, check: Check) -> bool:
    """Whether the check has something to look at, and not so much that one call takes seconds."""
    return 0 < call.attended.numel() <= 3000 and check.applies(call)


def the_promise_holds(call: CallCase, check: Check) -> list[str]:
    """The forms that were held to it."""
    report = run(SUBJECT, [call], only=[check.name])
    report.raise_for_failures()
    return [outcome.case.form for outcome in report.of("passed")]
