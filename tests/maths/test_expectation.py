"""Moments: against their closed forms, and against the recurrence of the normal law."""

from __future__ import annotations

import pytest

from qkv.maths.normal import normal, same
from qkv.maths.reading import parse

ANY = {
    "mu_q": "vector[d]", "mu_k": "vector[d]", "Sigma_q": "matrix[d,d]", "Sigma_k": "matrix[d,d]", "A": "matrix[d,d]",
    "q": "random vector[d] ~ (mu_q, Sigma_q)", "k": "random vector[d] ~ (mu_k, Sigma_k)", "c": "scalar",
    "u": "vector[d]", "d": "natural",
}  # fmt: skip
NORMAL = {
    "mu": "vector[d]", "sigma": "positive", "d": "natural", "m": "scalar", "s": "positive", "u": "vector[d]",
    "q": "random vector[d] ~ N(mu, sigma^2 I)", "k": "random vector[d] ~ N(mu, sigma^2 I)",
    "x": "random scalar ~ N(m, s^2)", "y": "random scalar ~ N(0, 1)", "A": "matrix[d,d]",
}  # fmt: skip

PROVED = [
    (ANY, r"E[q^T k]", r"\mu_q^T \mu_k"),
    (ANY, r"E[c q + u]", r"c \mu_q + u"),
    (ANY, r"Cov(q, q)", r"\Sigma_q"),
    (ANY, r"Cov(q, q)", r"\Sigma_q^T"),
    (ANY, r"E[q q^T]", r"\Sigma_q + \mu_q \mu_q^T"),
    (ANY, r"Cov(A q, A q)", r"A \Sigma_q A^T"),
    (ANY, r"Var(u^T q)", r"u^T \Sigma_q u"),
    (ANY, r"E[q^T A q]", r"\operatorname{tr}(A \Sigma_q) + \mu_q^T A \mu_q"),
    (ANY, r"E[\|q\|^2]", r"\operatorname{tr}(\Sigma_q) + \|\mu_q\|^2"),
    (ANY, r"Var(q^T k)", r"\operatorname{tr}(\Sigma_q\Sigma_k) + \mu_q^T\Sigma_k\mu_q + \mu_k^T\Sigma_q\mu_k"),
    (ANY, r"Cov(q^T u, k^T u)", r"0"),
    (ANY, r"E[\exp(u^T q)] E[k]", r"\mu_k E[\exp(q^T u)]"),
    (ANY, r"E[\exp(u^T q) u^T k]", r"u^T\mu_k E[\exp(u^T q)]"),
    (NORMAL, r"E[q^T k]", r"\mu^T \mu"),
    (NORMAL, r"Var(q^T k)", r"d\sigma^4 + 2\sigma^2\mu^T\mu"),
    (NORMAL, r"Var(q^T k / \sqrt{d})", r"\sigma^4 + 2\sigma^2\mu^T\mu/d"),
    (NORMAL, r"E[x^3]", r"m^3 + 3 m s^2"),
    (NORMAL, r"E[y^6]", r"15"),
    (NORMAL, r"Var(x^2)", r"2 s^4 + 4 m^2 s^2"),
    (NORMAL, r"Var(\|q\|^2)", r"2 d \sigma^4 + 4\sigma^2 \mu^T\mu"),
    (NORMAL, r"E[x y]", r"0"),
]  # fmt: skip

UNPROVED = [
    (ANY, r"Var(q^T k)", r"\operatorname{tr}(\Sigma_q\Sigma_k)"),
    (ANY, r"E[q q^T]", r"\Sigma_q"),
    (ANY, r"E[\exp(u^T q)]", r"\exp(u^T \mu_q)"),
    (ANY, r"E[\|q\|]", r"\|\mu_q\|"),
    (ANY, r"E[(u^T q)^3]", r"(u^T \mu_q)^3 + 3 u^T\mu_q u^T\Sigma_q u"),
    (NORMAL, r"Var(q^T k)", r"d\sigma^4"),
    (NORMAL, r"Var(q^T q)", r"d\sigma^4 + 2\sigma^2\mu^T\mu"),
    (NORMAL, r"E[x^2]", r"E[x]^2"),
    (NORMAL, r"E[1/x]", r"1/m"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "left", "right"), PROVED)
def test_moments(names: dict[str, str], left: str, right: str) -> None:
    a = parse(left, names)
    assert same(a, parse(right, names, expected=a.shape))


@pytest.mark.parametrize(("names", "left", "right"), UNPROVED)
def test_wrong_moments_are_not_proved(names: dict[str, str], left: str, right: str) -> None:
    assert not same(parse(left, names), parse(right, names))


@pytest.mark.parametrize("order", range(7))
def test_the_moments_of_a_scalar_follow_the_recurrence_of_a_normal_law(order: int) -> None:
    # E[x^{n+1}] = m E[x^n] + n s² E[x^{n-1}], by parts.
    left = parse(f"E[x^{order + 2}]", NORMAL)
    right = parse(f"m E[x^{order + 1}] + {order + 1} s^2 E[x^{order}]", NORMAL)
    assert same(left, right)
    assert "expect" not in repr(normal(left))
