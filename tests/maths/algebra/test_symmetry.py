"""A covariance is symmetric, whether or not what it is the covariance of occurs."""

from __future__ import annotations

import pytest

from qkv.maths.bounds import holds
from qkv.maths.verdict import compare

LAWS = ("N(mu, Sigma)", "(mu, Sigma)", "N(mu, s^2 Sigma)", "N(mu, Sigma/2)")
SYMBOLS = {
    "mu": "vector[d]",
    "Sigma": "matrix[d,d]",
    "B": "matrix[d,d]",
    "u": "vector[d]",
    "v": "vector[d]",
    "s": "positive",
}
TURNED = [
    (r"\Sigma", r"\Sigma^T"),
    (r"u^T\Sigma v", r"v^T\Sigma u"),
    (r"(\Sigma u)_i", r"\sum_j \Sigma_{ji} u_j"),
    (r"\operatorname{tr}(B\Sigma)", r"\operatorname{tr}(B^T\Sigma)"),
    (r"\max(u^T\Sigma v, \|u\|)", r"\max(\|u\|, v^T\Sigma u)"),
]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("gold", "answer"), TURNED)
def test_a_covariance_may_be_turned_over(gold, answer, law):
    symbols = {**SYMBOLS, "q": f"random vector[d] ~ {law}"}
    assert compare(gold, answer, symbols).evidence == "proved"
    assert not compare(gold, answer, SYMBOLS)
    assert not compare(gold.replace(r"\Sigma", "C"), answer.replace(r"\Sigma", "C"), {**symbols, "C": "matrix[d,d]"})


def test_points_are_symmetric_too():
    symbols = {**SYMBOLS, "q": "random vector[d] ~ N(mu, Sigma)"}
    wrong = compare(r"u^T\Sigma v", r"2 v^T\Sigma u", symbols).counterexample
    assert wrong is not None
    assert wrong.point["Sigma"] == tuple(zip(*wrong.point["Sigma"], strict=True))
    assert holds(r"u^T\Sigma u", ">=", "0", symbols)
    assert not holds(r"u^T\Sigma u", ">=", "0", SYMBOLS)
    assert compare(r"|u^T\Sigma^3 u|", r"u^T\Sigma^3 u", symbols).kind == "equal"


def test_a_factor_of_a_covariance_is_any_matrix():
    symbols = {**SYMBOLS, "q": "random vector[d] ~ N(mu, B B^T)"}
    assert compare("Var(u^T q)", "u^T B B^T u", symbols)
    assert compare("Var(u^T q)", "u^T B B u", symbols).kind == "different"
    assert compare("u^T B^T v", "v^T B^T u", symbols).kind != "equal"
    between = {**symbols, "q": r"random vector[d] ~ (mu, B \Sigma B^T + I)"}
    assert compare("Var(u^T q)", r"u^T B\Sigma B^T u + u^T u", between)
    assert compare("Var(u^T q)", r"u^T B\Sigma B^T u + s u^T u", between).kind == "different"
