"""Any call at all: every form that accepts it agrees with the oracle.

`make test` draws the same 100 calls every time; `make soak` draws thousands of new ones.
"""

from hypothesis import assume, given
from hypothesis import strategies as st

from qkv import attention, explain
from qkv.errors import FormRefused
from qkv.testing import CallCase, assert_argmax, assert_close_to_oracle
from qkv.testing.contract import Case, Check, Subject, checks, run
from qkv.testing.contract.accuracy import close
from qkv.testing.contract.subject import ask, assert_same_bits
from qkv.testing.strategies import calls

SUBJECT = Subject.of_qkv()


@given(calls())
def test_every_form_agrees_with_the_oracle(call: CallCase) -> None:
    ran = []
    for form in SUBJECT.forms:
        try:
            answer = ask(SUBJECT, Case(form, call), lse=True)
        except FormRefused:
            continue
        ran.append(form)
        close(SUBJECT, Case(form, call), answer)
    assert "dense" in ran


@given(calls())
def test_auto_is_the_form_that_explain_names(call: CallCase) -> None:
    chosen = explain(**call.kwargs).form
    out = attention(**call.kwargs)
    assert_same_bits(out, attention(**call.kwargs, form=chosen), f"auto and {chosen}")  # pyright: ignore
    if call.kind == "argmax":
        assert_argmax(out, *call.tensors, call.gold, form="auto")  # pyright: ignore
    else:
        bound = SUBJECT.bound(chosen)
        assert_close_to_oracle(out, call.measure, form=f"auto ({chosen})", bound=bound)  # pyright: ignore


@given(calls(kinds=["softmax"]))
def test_weights_agree_with_the_oracle(call: CallCase) -> None:
    close(SUBJECT, Case("dense", call), ask(SUBJECT, Case("dense", call), lse=True, weights=True))


# Ties and poison are a matter of single checks, which make their own.
@given(calls(values=["gaussian"]), st.sampled_from(checks()))
def test_every_promise_holds_for_any_call(call: CallCase, check: Check) -> None:
    assume(0 < call.attended.numel() <= 3000 and check.applies(call))
    run(SUBJECT, [call], only=[check.name]).raise_for_failures()
