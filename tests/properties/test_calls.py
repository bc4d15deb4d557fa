"""Random calls: every backend that accepts a call agrees with the oracle.

`make test` draws the same 100 calls every time; `python -m campaigns calls` draws over 100,000 new ones.
"""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qkv.testing import CallCase, Spec
from qkv.testing.contract import Check, checks
from qkv.testing.strategies import calls
from tests.helpers.call_properties import (
    auto_is_the_backend_that_explain_names,
    can_be_held_to,
    every_backend_agrees_with_the_oracle,
    the_promise_holds,
    weights_agree_with_the_oracle,
)


@given(calls())
def test_every_backend_agrees_with_the_oracle(call: CallCase) -> None:
    every_backend_agrees_with_the_oracle(call)


@pytest.mark.slow
@given(calls())
def test_auto_is_the_backend_that_explain_names(call: CallCase) -> None:
    auto_is_the_backend_that_explain_names(call)


@pytest.mark.slow
@given(calls(kinds=["softmax"]))
def test_weights_agree_with_the_oracle(call: CallCase) -> None:
    weights_agree_with_the_oracle(call)


# Ties and poison are a matter of single checks, which make their own.
@pytest.mark.slow
@given(calls(values=["gaussian"]), st.sampled_from(checks()))
def test_every_promise_holds_for_any_call(call: CallCase, check: Check) -> None:
    assume(can_be_held_to(call, check))
    the_promise_holds(call, check)


@pytest.mark.parametrize("dims", [2, 4])
def test_sums_of_similarities_below_the_smallest_normal_number(dims: int) -> None:
    """Found by the campaign of calls: there rounding is absolute, in the oracle as in the backends."""
    similarity = Spec("feature_map", map="positive_random", normalize=True)
    call = CallCase(len_q=33, len_k=33, width=1, width_v=1, dims=dims, dtype="float64", similarity=similarity,
                    values="large")  # fmt: skip
    assert "linear" in every_backend_agrees_with_the_oracle(call)
    piece = call.error_bounds.parts["out"]
    assert bool((piece.condition > 1e9 * piece.magnitude).any())
    assert bool((piece.condition < 100 * piece.magnitude).any())  # and nothing is given away where sums are normal


def test_gradients_of_one_key_whose_similarity_is_close_to_zero() -> None:
    """Found by the campaign of calls: what cancels is divided by a sum of similarities that may be small."""
    call = CallCase(len_q=33, len_k=1, width=1, width_v=1, dims=2, dtype="float64",
                    similarity=Spec("polynomial", degree=1, offset=1.0))  # fmt: skip
    (check,) = (each for each in checks() if each.name == "gradients_agree_with_oracle")
    assert "linear" in the_promise_holds(call, check)
