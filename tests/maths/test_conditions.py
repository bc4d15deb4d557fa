"""Answers that would be right under a condition, and those that no condition helps."""

from __future__ import annotations

import pytest

from qkv.maths.verdict import compare

SYMBOLS = {
    "mu": "vector[d]",
    "mu_q": "vector[d]",
    "mu_k": "vector[d]",
    "gamma": "scalar",
    "sigma": "positive",
    "d": "natural",
}


@pytest.mark.parametrize(
    ("gold", "answer", "named"),
    [
        (r"\mu^T\mu", r"d\mu^2", "μ = m·1"),
        (r"\mu^T\mu", r"(\mathbf 1^T\mu)^2/d", "μ = m·1"),
        (r"\mu^T\mu", r"d\mu_1^2", "μ = m·1"),
        (r"d\sigma^4 + 2\sigma^2\mu^T\mu", r"d\sigma^4 + 2 d\sigma^2\mu^2", "μ = m·1"),
        (r"\mu_q^T\mu_k", r"d\mu_q\mu_k", "μ"),
        (r"|\gamma|\sqrt d", r"\gamma\sqrt d", "γ ≥ 0"),
        (r"|\gamma|\sqrt d", r"-\gamma\sqrt d", "γ ≤ 0"),
    ],
)
def test_the_condition_is_named(gold, answer, named):
    verdict = compare(gold, answer, SYMBOLS)
    assert verdict.kind == "conditional"
    assert verdict.condition is not None
    assert named in verdict.condition
    assert verdict.condition in verdict.reason
    assert not verdict


def test_the_sentence_of_a_vector_read_as_a_number():
    verdict = compare(r"\mu^T\mu", r"d\mu^2", SYMBOLS)
    assert "with μ = (1, 2) the right value is 5 and no scalar μ is meant" in verdict.reason


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        (r"\mu^T\mu", r"\mu^2", "ill-typed"),
        (r"\mu^T\mu", r"2d\mu^2", "ill-typed"),
        (r"d", r"d\sigma^4", "different"),
        (r"\sigma^2 d", r"\sigma^2 d + \mu^T\mu", "different"),
        (r"\sigma d", r"d\sigma + \mu - \mu^2", "ill-typed"),
        (r"\gamma^2", r"\gamma", "different"),
        (r"\mu_1", r"\mu_2", "different"),
        (r"\mu_i(\delta_{ij} - \mu_j)", r"\mu_i(\delta_{ij} - \mu_i)", "different"),
    ],
)
def test_no_condition_where_none_helps(gold, answer, kind):
    assert compare(gold, answer, SYMBOLS).kind == kind


def test_a_letter_that_is_taken_is_not_used_again():
    verdict = compare(r"m\mu^T\mu", r"m d\mu^2", {**SYMBOLS, "m": "scalar"})
    assert verdict.kind == "conditional"
    assert verdict.condition is not None
    assert "μ = m·1" not in verdict.condition


def test_a_random_name_keeps_its_law_when_its_mean_is_reread():
    symbols = {**SYMBOLS, "q": "random vector[d] ~ N(mu, sigma^2 I)", "k": "random vector[d] ~ N(mu, sigma^2 I)"}
    assert compare(r"E[q^T k]", r"d\mu^2", symbols).kind == "conditional"
