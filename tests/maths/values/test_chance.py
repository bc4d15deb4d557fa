"""Expectations at points: what a grid can give, and what it must not."""

from __future__ import annotations

import pytest

from qkv.maths.verdict import compare

SYMBOLS = {
    "m": "scalar",
    "s": "positive",
    "mu": "vector[d]",
    "g": "random scalar ~ N(0, 1)",
    "h": "random scalar ~ N(m, s^2)",
    "p": "random scalar ~ (m, s^2)",
    "w": "random vector[d] ~ (mu, s^2 I)",
}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("E[|g|]", "0.7937"),
        ("E[|g|]", "0.9"),
        ("E[sign(g) g]", "0.7937"),
        ("E[relu(h)]", "m"),
        ("E[1/g]", "0"),
        ("E[g/h]", "0"),
        ("E[g/h]", "E[g/h]"),
        ("E[p^3]", "m^3 + 3 m s^2"),
        (r"E[\exp(p)]", r"\exp(m + s^2/2)"),
        ("E[(w^T w)^2]", r"(\mu^T\mu + d s^2)^2"),
    ],
)
def test_no_verdict_on_what_has_no_value_or_no_way_to_one(gold, answer):
    verdict = compare(gold, answer, SYMBOLS)
    assert (verdict.kind, verdict.evidence) == ("unreadable", None)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"E[\exp(h)]", r"\exp(m + s^2/2)"),
        ("E[p^2]", "m^2 + s^2"),
        ("E[w^T w]", r"\mu^T\mu + d s^2"),
    ],
)
def test_what_is_smooth_or_of_second_order_is_evaluated(gold, answer):
    assert compare(gold, answer, SYMBOLS)
    assert compare(gold, f"2 ({answer})", SYMBOLS).kind == "different"
