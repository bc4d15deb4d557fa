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
    ExactMoments,
    MomentStep,
    enumerate_moments,
    moments,
    monte_carlo,
    sample_moments,
)
from qkv.maths.values.evaluate import evaluate

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
    assert enumerate_moments(lambda q: q[0], q=third) == ExactMoments(Fraction(1, 3), Fraction(2, 9))
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


ASKED, LINEAR, MEANS = "what is asked", "linearity of expectation", "the means"
INDEPENDENT = "linearity, and independence of what is multiplied"
LEFT, DEVIATIONS = "what is left when the mean is taken away", "every vector as its mean and a deviation"
DEFINITION = "definition of variance"
APART = "linearity; between two parts a deviation of mean zero is independent of the rest"
COVARIANCE = "definition of covariance, and independence of what is multiplied"
DERIVATIONS = {
    "x y": [
        ("", r"\mathbb{E}[x y]", ASKED),
        ("=", r"\mathbb{E}[x] \mathbb{E}[y]", INDEPENDENT),
        ("=", r"\mu_{x} \mu_{y}", MEANS),
        ("", r"x y - \mu_{x} \mu_{y}", LEFT),
        ("=", r"\mu_{y} (x - \mu_{x}) + \mu_{x} (y - \mu_{y}) + (x - \mu_{x}) (y - \mu_{y})", DEVIATIONS),
        ("", r"\operatorname{Var}(x y)", ASKED),
        ("=", r"\mathbb{E}[(x y - \mu_{x} \mu_{y})^{2}]", DEFINITION),
        (
            "=",
            (
                r"\mathbb{E}[(\mu_{y} (x - \mu_{x}))^{2}] + \mathbb{E}[(\mu_{x} (y - \mu_{y}))^{2}]"
                r" + \mathbb{E}[((x - \mu_{x}) (y - \mu_{y}))^{2}]"
            ),
            APART,
        ),
        ("=", r"v_{x} v_{y} + \mu_{y}^{2} v_{x} + \mu_{x}^{2} v_{y}", COVARIANCE),
    ],
    "a^T q + c": [
        ("", r"\mathbb{E}[a^\top q + c]", ASKED),
        ("=", r"c + \mathbb{E}[a^\top q]", LINEAR),
        ("=", r"c + a^\top \mathbb{E}[q]", LINEAR),
        ("=", r"c + a^\top \mu_{q}", MEANS),
        ("", r"(a^\top q + c) - (c + a^\top \mu_{q})", LEFT),
        ("=", r"a^\top (q - \mu_{q})", DEVIATIONS),
        ("", r"\operatorname{Var}(a^\top q + c)", ASKED),
        ("=", r"\mathbb{E}[((a^\top q + c) - (c + a^\top \mu_{q}))^{2}]", DEFINITION),
        ("=", r"\mathbb{E}[(a^\top (q - \mu_{q}))^{2}]", APART),
        ("=", r"a^\top (\Sigma_{q} a)", COVARIANCE),
    ],
    "x": [
        ("", r"\mathbb{E}[x]", ASKED),
        ("=", r"\mu_{x}", MEANS),
        ("", r"\operatorname{Var}(x)", ASKED),
        ("=", r"\mathbb{E}[(x - \mu_{x})^{2}]", DEFINITION),
        ("=", "v_{x}", COVARIANCE),
    ],
    "c": [
        ("", r"\mathbb{E}[c]", ASKED),
        ("=", "c", LINEAR),
        ("", "c - c", LEFT),
        ("=", "0", DEVIATIONS),
        ("", r"\operatorname{Var}(c)", ASKED),
        ("=", r"\mathbb{E}[(c - c)^{2}]", DEFINITION),
        ("=", "0", APART),
    ],
}


@pytest.mark.parametrize("expression", DERIVATIONS)
def test_derivations_line_by_line(expression):
    found = moments(expression, FRIENDS)
    assert [(step.relation, step.text, step.reason) for step in found.steps] == DERIVATIONS[expression]
    ends = [line for line, after in pairwise([*DERIVATIONS[expression], ("", "", "")]) if not after[0]]
    assert (found.mean, found.variance) == (ends[0][1], ends[-1][1])


@pytest.mark.parametrize(
    ("expression", "mean", "variance"),
    [
        ("2 x + 3 y", r"2 \mu_{x} + 3 \mu_{y}", "4 v_{x} + 9 v_{y}"),
        ("x - y", r"\mu_{x} - \mu_{y}", "v_{x} + v_{y}"),
        ("c x", r"c \mu_{x}", "c^{2} v_{x}"),
        ("q^T k", r"\mu_{q}^\top \mu_{k}",
         (r"\operatorname{tr}(\Sigma_{q} \Sigma_{k}) + \mu_{k}^\top (\Sigma_{q} \mu_{k})"
         r" + \mu_{q}^\top (\Sigma_{k} \mu_{q})")),
        ("x a^T q", r"\mu_{x} a^\top \mu_{q}",
         r"v_{x} a^\top (\Sigma_{q} a) + (a^\top \mu_{q})^{2} v_{x} + \mu_{x}^{2} a^\top (\Sigma_{q} a)"),
        ("(a^T q) x", r"a^\top \mu_{q} \mu_{x}",
         r"v_{x} a^\top (\Sigma_{q} a) + \mu_{x}^{2} a^\top (\Sigma_{q} a) + (a^\top \mu_{q})^{2} v_{x}"),
    ],
)  # fmt: skip
def test_texts_of_moments(expression, mean, variance):
    assert moments(expression, FRIENDS)[:2] == (mean, variance)


def test_a_step_is_equal_to_the_one_before():
    assert MomentStep("x", "why").relation == "="


def test_nothing_is_left_to_say_where_the_mean_is_zero():
    steps = moments("q^T k", STANDARD).steps
    assert [step.text for step in steps] == [
        r"\mathbb{E}[q^\top k]",
        r"\mathbb{E}[q]^\top \mathbb{E}[k]",
        "0",
        r"\operatorname{Var}(q^\top k)",
        r"\mathbb{E}[(q^\top k)^{2}]",
        "d",
    ]


def test_laws_on_points():
    law = Discrete([(1, 2), (3, 0), (-1, 4)], [1, 2, 1])
    assert law.chances == (Fraction(1, 4), Fraction(1, 2), Fraction(1, 4))
    assert law.mean == (Fraction(3, 2), Fraction(3, 2))
    assert law.covariance == ((Fraction(11, 4), Fraction(-11, 4)), (Fraction(-11, 4), Fraction(11, 4)))
    assert Discrete([(5,)]).chances == (1,)
    assert Discrete([(5,), (7,)], [0, 1]).mean == (7,)
    with pytest.raises(OptionError, match="one for each point"):
        Discrete([(1,), (2,)], [1])
    with pytest.raises(OptionError, match="all of one length"):
        Discrete([])


def test_limits_of_enumeration_and_sampling(monkeypatch):
    monkeypatch.setattr("qkv.maths.moments.MOST_CASES", 6)
    two, three = Discrete([(0,), (2,)]), Discrete([(0,), (3,), (6,)])
    assert enumerate_moments(lambda q, k: q[0] + k[0], q=two, k=three) == ExactMoments(Fraction(4), Fraction(7))
    with pytest.raises(OptionError, match=r"12 combinations.*at most 6"):
        enumerate_moments(lambda q, k, r: 0, q=two, k=three, r=two)
    law = ([0.0], [[1.0]])
    for samples, confidence in ((99, 0.9), (100, 0.0), (100, 1.0)):
        with pytest.raises(OptionError, match=f"samples={samples}, confidence={confidence}"):
            monte_carlo(lambda q: q[:, 0], samples=samples, confidence=confidence, q=law)
    found = monte_carlo(lambda q: q[:, 0], samples=100, confidence=0.5, q=law)
    low, high = found.mean_interval
    assert low + high == pytest.approx(2 * found.mean)
    # Half of a normal law lies within 0.6745 standard deviations.
    assert (high - low) / 2 == pytest.approx(0.67449 * math.sqrt(found.variance / 100), rel=1e-4)
    assert found == monte_carlo(lambda q: q[:, 0], samples=100, confidence=0.5, q=law)
    assert found != monte_carlo(lambda q: q[:, 0], samples=100, seed=1, confidence=0.5, q=law)
    assert sum(found.variance_interval) == pytest.approx(2 * found.variance)
