"""ONNX's cases of LinearAttention: every update rule."""

from collections import Counter

from benchmarks.conformance.cases import base_cases
from benchmarks.conformance.outcomes import PASSED, of_linear


def test_all_cases_pass() -> None:
    outcomes = of_linear()
    assert {o.name: o.detail for o in outcomes if o.kind != PASSED} == {}
    assert len(outcomes) == 14


def test_every_update_rule_has_a_case() -> None:
    rules = Counter(case.attributes["update_rule"].decode() for case in base_cases("LinearAttention"))
    assert rules == {"linear": 2, "gated": 2, "delta": 1, "gated_delta": 9}
