"""Mean and variance of bilinear forms against enumeration, sampling, and the formulas of the documents."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from qkv.errors import OptionError
from qkv.maths import compare, parse
from qkv.maths.moments import (
    ANY_LAW,
    SCALAR_MEAN,
    STANDARD,
    VECTOR_MEAN,
    Discrete,
    Exact,
    enumerate_moments,
    moments,
    monte_carlo,
    sample_moments,
)
from qkv.maths.values.exact import evaluate

FRIENDS = {
    "q": "random vector[d] ~ (mu_q, Sigma_q)",
    "k": "random vector[d] ~ (mu_k, Sigma_k)",
    "r": "random vector[e] ~ (mu_r, Sigma_r)",
    "x": "random scalar ~ (mu_x, v_x)",
    "y": "random scalar ~ (mu_y, v_y)",
    "mu_q": "vector[d]",
    "mu_k": "vector[d]",
    "mu_r": "vector[e]",
    "Sigma_q": "matrix[d,d]",
    "Sigma_k": "matrix[d,d]",
    "Sigma_r": "matrix[e,e]",
    "mu_x": "scalar",
    "mu_y": "scalar",
    "v_x": "nonnegative",
    "v_y": "nonnegative",
    "A": "matrix[d,d]",
    "B": "matrix[d,e]",
    "a": "vector[d]",
    "b": "vector[d]",
    "w": "vector[e]",
    "c": "scalar",
    "t": "positive",
}
SIZES = {"d": 2, "e": 3}
SURE = {
    "A": ((1, -2), (3, 5)),
    "B": ((2, 0, -1), (1, 4, 3)),
    "a": (2, -3),
    "b": (5, 1),
    "w": (1, -1, 2),
    "c": Fraction(-7, 2),
    "t": Fraction(3),
}
LAWS = {
    "q": Discrete([(1, 2), (0, -1), (-3, 1)], [1, 2, 3]),
    "k": Discrete([(0, 1), (4, -2)], [3, 1]),
    "r": Discrete([(1, 0, 2), (0, 1, -1), (-1, -1, 0)]),
    "x": Discrete([(1,), (-2,)], [2, 1]),
    "y": Discrete([(3,), (0,)], [1, 4]),
}
EXPRESSIONS = {
    "q^T k": "qk",
    "k^T q": "qk",
    r"\sum_{i=1}^d q_i k_i": "qk",
    r"c \sum_{i=1}^d q_i": "q",
    "q^T A k": "qk",
    "a^T q + c": "q",
    "q^T A k + b^T q - k^T a + c": "qk",
    r"\frac{q^T k}{t}": "qk",
    "(q + a)^T A (k - b)": "qk",
    "(A q + b)^T k": "qk",
    "2 q^T A k - k^T A q": "qk",
    "q^T B r": "qr",
    "(a^T q)(w^T r)": "qr",
    "q^T k + q^T B r + w^T r": "qkr",
    "x y": "xy",
    "x y + c x - y": "xy",
    "x a^T q": "xq",
    "(c + x)(a^T q + 1)": "xq",
    "(x a)^T q + y": "xqy",
    "c": "",
}


def point(law: Discrete, name: str, at):
    return at[0] if name in "xy" else tuple(at)


def second(law: Discrete, name: str):
    return law.covariance[0][0] if name in "xy" else law.covariance


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_formulas_are_what_enumeration_finds(expression):
    found = moments(expression, FRIENDS)
    names = EXPRESSIONS[expression]
    tree = parse(expression, FRIENDS)

    def score(**points):
        return evaluate(tree, SIZES, SURE | {name: point(LAWS[name], name, at) for name, at in points.items()})

    exact = enumerate_moments(score, **{name: LAWS[name] for name in names})
    values = dict(SURE)
    for name, law in LAWS.items():
        values[f"mu_{name}"] = point(law, name, law.mean)
        values[f"v_{name}" if name in "xy" else f"Sigma_{name}"] = second(law, name)
    assert evaluate(parse(found.mean, FRIENDS), SIZES, values) == exact.mean
    assert evaluate(parse(found.variance, FRIENDS), SIZES, values) == exact.variance


@pytest.mark.parametrize("expression", ["q^T k", "q^T A k + b^T q - k^T a + c", "x a^T q", "q^T B r + w^T r"])
def test_every_step_follows_from_the_one_before(expression):
    steps = moments(expression, FRIENDS).steps
    assert [step.relation for step in steps].count("") == 3  # mean, deviation, variance
    for before, step in pairwise(steps):
        if step.relation == "=":
            verdict = compare(before.text, step.text, FRIENDS)
            assert (verdict.kind, verdict.evidence) == ("equal", "proved"), (before.text, step.text, verdict)


@pytest.mark.parametrize(
    ("symbols", "mean", "variance"),
    [
        (ANY_LAW, r"\mu_q^T \mu_k", r"tr(\Sigma_q \Sigma_k) + \mu_q^T \Sigma_k \mu_q + \mu_k^T \Sigma_q \mu_k"),
        (VECTOR_MEAN, r"\|\mu\|^2", r"d \sigma^4 + 2 \sigma^2 \mu^T \mu"),
        (SCALAR_MEAN, "d m^2", r"d \sigma^4 + 2 d \sigma^2 m^2"),
        (STANDARD, "0", "d"),
    ],
)
def test_documents_are_special_cases(symbols, mean, variance):
    found = moments("q^T k", symbols)
    for ours, theirs in ((found.mean, mean), (found.variance, variance)):
        verdict = compare(theirs, ours, symbols)
        assert (verdict.kind, verdict.evidence) == ("equal", "proved"), (ours, verdict)


def test_special_cases_read_well():
    assert moments("q^T k", STANDARD)[:2] == ("0", "d")
    assert "I" not in moments("q^T k", VECTOR_MEAN).variance


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("q^T q", "q is multiplied by itself"),
        ("(q^T k)(q^T a)", "three random things"),
        ("x y x", "three random things"),
        ("x^2", "not linear"),
        ("exp(a^T q)", "not linear"),
        ("q_1", "not linear"),
        (r"\frac{1}{x}", "not linear"),
        (r"\sum_{i=1}^d q_i k_i a_i", "no dot product"),
        ("q + k", "a scalar"),
    ],
)
def test_what_two_moments_do_not_say_is_refused(expression, says):
    with pytest.raises(OptionError, match=says):
        moments(expression, FRIENDS)


def test_defined_names_are_what_they_stand_for():
    centred = {**VECTOR_MEAN, "mu": "vector[d] = 0", "sigma": "positive = 1"}
    found = moments("q^T k", centred)
    assert compare("d", found.variance, centred).evidence == "proved"
    assert compare("0", found.mean, centred)


def test_deep_expressions_are_refused_not_overflowed():
    deep = "q^T k"
    for _ in range(70):
        deep = f"(c ({deep}) + 1)"
    with pytest.raises((OptionError, ValueError)):
        moments(deep, FRIENDS)


def test_enumeration_is_bounded_and_exact():
    third = Discrete([(0,), (1,)], [2, 1])
    assert enumerate_moments(lambda q: q[0], q=third) == Exact(Fraction(1, 3), Fraction(2, 9))
    many = Discrete([(n,) for n in range(1000)])
    with pytest.raises(OptionError, match="combinations"):
        enumerate_moments(lambda q, k: q[0] * k[0], q=many, k=many)


@pytest.mark.parametrize(("points", "chances"), [([], None), ([(1, 2), (3,)], None), ([(1,)], [-1]), ([(1,)], [0])])
def test_laws_that_are_none_are_refused(points, chances):
    with pytest.raises(OptionError):
        Discrete(points, chances)


def test_sampling_agrees_and_its_intervals_are_honest():
    mean_q, mean_k = np.array([1.0, -2.0, 0.5]), np.array([0.0, 1.0, 3.0])
    root = np.array([[1.0, 0, 0], [0.5, 2.0, 0], [-1.0, 0.3, 0.7]])
    cov_q, cov_k = root @ root.T, np.diag([1.0, 0.25, 4.0])
    variance = np.trace(cov_q @ cov_k) + mean_q @ cov_k @ mean_q + mean_k @ cov_q @ mean_k
    inside = 0
    for seed in range(40):
        found = monte_carlo(
            lambda q, k: (q * k).sum(1),
            samples=2_000,
            seed=seed,
            confidence=0.9,
            q=(mean_q, cov_q),
            k=(mean_k, cov_k),
        )
        low, high = found.variance_interval
        inside += int(low < variance < high)
        inside += int(found.mean_interval[0] < mean_q @ mean_k < found.mean_interval[1])
    assert 60 <= inside <= 79  # of 80 at 0.9 each: 72, with a standard deviation below 4
    with pytest.raises(OptionError, match="confidence"):
        monte_carlo(lambda q: q[:, 0], confidence=1.0, q=([0.0], [[1.0]]))


def test_a_sample_s_moments_by_hand():
    found = sample_moments(np.array([1.0, 2.0, 3.0, 6.0]))
    assert (found.mean, found.variance) == (3.0, pytest.approx(14 / 3))
    assert found.mean_error == pytest.approx(math.sqrt(14 / 3 / 4))
    fourth = (16 + 1 + 0 + 81) / 4
    assert found.variance_error == pytest.approx(math.sqrt((fourth - (14 / 3) ** 2) / 4))
