"""Moments of scores against laws that are enumerated, and the readings of a mean."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from qkv.exercises import CannotSolve, Exercise, Given, solve
from qkv.exercises.solvers.moments import read_law
from qkv.maths import compare

LAWS = {
    "rademacher": ((-1, 1), None),
    "mean 1/2 and variance 1/4": ((0, 1), None),
}


def solved(quantity: str, *givens: Given, target: str = "", **fields):
    asked = [{"quantity": quantity, "object": target}]
    return solve(
        Exercise.from_plain({"givens": [given.model_dump() for given in givens], "asked": asked, **fields})
    ).parts[0]


def ask(quantity: str, *givens: Given, target: str = "", **fields):
    part = solved(quantity, *givens, target=target, **fields)
    assert part.answer is not None, part.refusal
    assert part.answer.derivation.holds
    return part.answer


def law(symbol: str, text: str, **fields) -> Given:
    return Given(symbol=symbol, role="law", law=text, **fields)


def enumerated(one: tuple[int, ...], other: tuple[int, ...], width: int) -> tuple[Fraction, Fraction]:
    scores = [
        sum(a * b for a, b in zip(q, k, strict=True))
        for q in itertools.product(one, repeat=width)
        for k in itertools.product(other, repeat=width)
    ]
    mean = Fraction(sum(scores), len(scores))
    return mean, Fraction(sum(s * s for s in scores), len(scores)) - mean**2


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("one", LAWS)
@pytest.mark.parametrize("other", LAWS)
def test_moments_of_discrete_laws(one: str, other: str, width: int):
    mean, variance = enumerated(LAWS[one][0], LAWS[other][0], width)
    givens = (law("q", one), law("k", other), Given(symbol="d", role="head_width", value=width))
    assert ask("mean", *givens).value == mean
    assert ask("variance", *givens).value == variance


def test_an_open_mean_is_a_vector_and_the_other_reading_is_named():
    found = ask("variance", law("q, k", "normal(mu, sigma^2 I)"))
    assert compare("d sigma^4 + 2 sigma^2 mu^T mu", found.text, found.symbols).evidence == "proved"
    assert found.also[0].convention
    assert found.assumed
    assert (
        compare("d sigma^4 + 2 d sigma^2 mu^2", found.also[0].text, dict(found.also[0].symbols or {})).kind == "equal"
    )


@pytest.mark.parametrize("shape", [(), None])
def test_a_declared_mean_has_one_reading(shape):
    text = "normal(mu, sigma^2 I)" if shape == () else "normal(mu 1, sigma^2 I)"
    givens = [law("q, k", text, shape=("D_k",))]
    if shape == ():
        givens.append(Given(symbol="mu", role="other", shape=()))
    found = ask("mean", *givens)
    assert found.text == "D_k mu^2"
    assert not found.also
    vector = ask("mean", law("q, k", "normal(mu, sigma^2 I)"), Given(symbol="mu", role="other", shape=("d",)))
    assert vector.text == "mu^T mu"
    assert not vector.also


@pytest.mark.parametrize("target", ["q^T k", "score", "<q, k>", "q^T k / s"])
def test_the_divisor_is_the_root_of_the_width(target: str):
    width = Given(symbol="d_h", role="head_width")
    found = ask("scale_for_variance", law("", "iid, mean 0 and standard deviation 1"), width, target=target)
    assert found.text == "sqrt(d_h)"


def test_target_variances_and_factors():
    givens = (law("q, k", "mean 0 variance 3"), Given(symbol="d", role="head_width", value=20))
    assert ask("scale_for_variance", *givens, Given(role="target_variance", value=5)).value == 6
    assert ask(
        "scale_for_variance", *givens, Given(role="target_variance", value=5), target="factor"
    ).value == Fraction(1, 6)
    variance = ask("variance", *givens, target="q^T k / 6")
    assert variance.value == 5


@pytest.mark.parametrize(
    ("target", "mean", "variance"),
    [
        ("q_i k_i", "mu_i^2", "sigma^4 + 2 sigma^2 mu_i^2"),
        ("‖q‖^2", "d sigma^2 + mu^T mu", "2 d sigma^4 + 4 sigma^2 mu^T mu"),
    ],
)
def test_one_term_and_the_squared_length(target: str, mean: str, variance: str):
    for quantity, text in (("mean", mean), ("variance", variance)):
        found = ask(quantity, law("q, k", "normal(mu, sigma^2 I)"), target=target)
        assert compare(text, found.text, {**found.symbols, "i": "index[d]"}).kind == "equal"


@pytest.mark.parametrize(
    ("givens", "code"),
    [
        ((), "missing"),
        ((law("q", "normal(0, 1)"),), "missing"),
        ((law("q, k", "normal(0, sigma)"),), "unsettled"),
        ((law("q, k", "some heavy-tailed law"),), "not_understood"),
    ],
)
def test_what_is_missing_is_said(givens, code):
    part = solved("variance", *givens, target="q^T k")
    assert part.answer is None
    assert part.refusal is not None
    assert part.refusal.code == code


def test_laws_as_they_are_written():
    assert read_law("N(0, σ² I)").spread == "sigma^2 I"
    assert read_law("uniform(0, 6)").mean == "3"
    assert read_law("uniform over signs") == read_law("rademacher")
    assert read_law("bernoulli(0.2)").spread == "4/25"
    with pytest.raises(CannotSolve):
        read_law("normal(1, 2, 3)")
