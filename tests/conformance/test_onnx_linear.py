"""ONNX's cases of LinearAttention: those without gates pass, the others are listed with the reason."""

from benchmarks.conformance.cases import base_cases
from benchmarks.conformance.linear import OUTSIDE
from benchmarks.conformance.outcomes import PASSED, REFUSED, of_linear

PASSING = {"linear_attention_linear", "linear_attention_linear_t1_no_past"}
# The update rule of the others. A listed case that passes fails, too.
RULES = {
    "linear_attention_gated": "gated",
    "linear_attention_gated_per_head_decay": "gated",
    "linear_attention_delta": "delta",
    "linear_attention_gated_delta": "gated_delta",
    "linear_attention_gated_delta_beta_scalar": "gated_delta",
    "linear_attention_gated_delta_gqa": "gated_delta",
    "linear_attention_gated_delta_mqa": "gated_delta",
    "linear_attention_decode_step": "gated_delta",
    "linear_attention_prefill_with_past": "gated_delta",
    "linear_attention_no_past_explicit_zeros": "gated_delta",
    "linear_attention_explicit_scale": "gated_delta",
    "linear_attention_fp16": "gated_delta",
}


def test_cases_without_gates_pass_and_the_others_are_refused() -> None:
    outcomes = of_linear()
    assert {o.name for o in outcomes if o.kind == PASSED} == PASSING
    refused = {o.name: o.detail for o in outcomes if o.kind == REFUSED}
    assert refused == {name: OUTSIDE[rule] for name, rule in RULES.items()}
    assert len(outcomes) == len(PASSING) + len(RULES) == 14


def test_refused_cases_have_decay_or_beta() -> None:
    for case in base_cases("LinearAttention"):
        assert (case.name in PASSING) == (not {"decay", "beta"} & set(case.inputs))
