"""Any call at all: every form that accepts it agrees with the oracle.

`make test` draws the same 100 calls every time; `python -m campaigns calls` draws over 100,000 new ones.
"""

from call_properties import (
    auto_is_the_form_that_explain_names,
    can_be_held_to,
    every_form_agrees_with_the_oracle,
    the_promise_holds,
    weights_agree_with_the_oracle,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from qkv.testing import CallCase
from qkv.testing.contract import Check, checks
from qkv.testing.strategies import calls


@given(calls())
def test_every_form_agrees_with_the_oracle(call: CallCase) -> None:
    every_form_agrees_with_the_oracle(call)


@given(calls())
def test_auto_is_the_form_that_explain_names(call: CallCase) -> None:
    auto_is_the_form_that_explain_names(call)


@given(calls(kinds=["softmax"]))
def test_weights_agree_with_the_oracle(call: CallCase) -> None:
    weights_agree_with_the_oracle(call)


# Ties and poison are a matter of single checks, which make their own.
@given(calls(values=["gaussian"]), st.sampled_from(checks()))
def test_every_promise_holds_for_any_call(call: CallCase, check: Check) -> None:
    assume(can_be_held_to(call, check))
    the_promise_holds(call, check)
