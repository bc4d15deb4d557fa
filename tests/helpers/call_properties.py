"""Properties of any call, as functions of a call; used by test_calls.py and campaigns/calls.py."""

from qkv import attention, explain
from qkv.errors import BackendRefused
from qkv.testing import CallCase, assert_argmax, assert_close_to_oracle
from qkv.testing.contract import BackendCase, Check, Subject, run
from qkv.testing.contract.correctness import assert_close
from qkv.testing.contract.subject import assert_same_bits, run_case

SUBJECT = Subject.of_qkv()


def every_backend_agrees_with_the_oracle(call: CallCase) -> list[str]:
    """Return the backends that accepted the call."""
    ran = []
    for backend in SUBJECT.backends:
        try:
            answer = run_case(SUBJECT, BackendCase(backend, call), lse=True)
        except BackendRefused:
            continue
        ran.append(backend)
        assert_close(SUBJECT, BackendCase(backend, call), answer)
    assert "reference" in ran
    return ran


def auto_is_the_backend_that_explain_names(call: CallCase) -> list[str]:
    """Return that backend."""
    chosen = explain(**call.kwargs).backend
    out = attention(**call.kwargs)
    assert_same_bits(out, attention(**call.kwargs, backend=chosen), f"auto and {chosen}")  # pyright: ignore
    if call.kind == "argmax":
        assert_argmax(out, *call.tensors, call.gold, backend="auto")  # pyright: ignore
    else:
        bound = SUBJECT.bound(chosen)
        assert_close_to_oracle(out, call.error_bounds, backend=f"auto ({chosen})", bound=bound)  # pyright: ignore
    return [chosen]


def weights_agree_with_the_oracle(call: CallCase) -> list[str]:
    """Return the one backend that computes weights."""
    assert_close(
        SUBJECT,
        BackendCase("reference", call),
        run_case(SUBJECT, BackendCase("reference", call), lse=True, weights=True),
    )
    return ["reference"]


def can_be_held_to(call: CallCase, check: Check) -> bool:
    """Whether the check applies to the call, and does not take seconds."""
    return 0 < call.attended.numel() <= 3000 and check.applies(call)


def the_promise_holds(call: CallCase, check: Check) -> list[str]:
    """Return the backends that were checked."""
    report = run(SUBJECT, [call], only=[check.name])
    report.raise_for_failures()
    return [outcome.case.backend for outcome in report.of("passed")]
