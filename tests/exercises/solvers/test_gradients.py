"""Gradients by hand against differences of the loss."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from qkv.exercises import Asked, CannotSolve, Convention, Definition, Exercise, Given, Structure, solve
from qkv.exercises.solving import answer
from qkv.maths import compare

RANDOM = np.random.default_rng(3)
SHAPES = {"query": (2, 3), "key": (5, 3), "value": (5, 2)}
NUMBERS = {role: RANDOM.integers(-2, 3, shape) for role, shape in SHAPES.items()}
UPSTREAM = RANDOM.integers(-2, 3, (2, 2))
SCALE = {"scale": Convention(value="sqrt")}


def solved(quantity, object="", structure=None, definitions=(), **roles):  # noqa: A002
    givens = [Given(symbol=role, role=role, value=np.array(value).tolist()) for role, value in roles.items()]
    record = Exercise(givens=givens, conventions=SCALE, structure=structure or Structure(),
                      definitions=[Definition(text=text) for text in definitions])  # fmt: skip
    return answer(record, Asked(quantity=quantity, object=object))


def loss(query, key, value, allowed=True):
    scores = query @ key.T / np.sqrt(3)
    powers = np.where(allowed, np.exp(scores), 0)
    return float((powers / powers.sum(-1, keepdims=True) @ value * UPSTREAM).sum())


def difference(role, allowed=True, step=1e-5):
    found = np.zeros(SHAPES[role])
    for place in np.ndindex(found.shape):
        sides = []
        for sign in (1, -1):
            numbers = {name: array.astype(float) for name, array in NUMBERS.items()}
            numbers[role][place] += sign * step
            sides.append(loss(**numbers, allowed=allowed))
        found[place] = (sides[0] - sides[1]) / (2 * step)
    return found


@pytest.mark.parametrize("role", ["query", "key", "value"])
@pytest.mark.parametrize("mask", ["none", "padding(3)"])
def test_attention(role, mask):
    found = solved("gradient", role[0].upper(), Structure(mask=mask), upstream=UPSTREAM, **NUMBERS)
    allowed = True if mask == "none" else np.arange(5) < 3
    assert np.allclose(np.array(found.value, float), difference(role, allowed), atol=1e-8)
    assert found.derivation.holds
    assert compare(found.text, found.text, found.symbols)


def test_weights_of_projections_and_tokens():
    tokens = RANDOM.integers(-2, 3, (3, 2))
    weights = {f"{role}_weight": RANDOM.integers(-1, 2, (2, 3)) for role in ("query", "key", "value")}
    upstream = RANDOM.integers(-2, 3, (3, 3))

    def total(tokens, query_weight, key_weight, value_weight):
        scores = tokens @ query_weight @ (tokens @ key_weight).T / np.sqrt(3)
        powers = np.exp(scores)
        return (powers / powers.sum(-1, keepdims=True) @ tokens @ value_weight * upstream).sum()

    everything = {"tokens": tokens, **weights}
    for name, object in (("tokens", "X"), ("query_weight", "W_Q"), ("value_weight", "W_V")):  # noqa: A001
        found = solved("gradient", object, upstream=upstream, **everything)
        for place in np.ndindex(everything[name].shape):
            sides = []
            for sign in (1, -1):
                moved = {key: value.astype(float) for key, value in everything.items()}
                moved[name][place] += sign * 1e-5
                sides.append(total(**moved))
            assert np.isclose(np.array(found.value, float)[place], (sides[0] - sides[1]) / 2e-5, atol=1e-7)
        assert found.derivation.holds


def test_sum_of_outputs_and_missing_upstream():
    ones = solved("gradient", "V", upstream=np.ones((2, 2), int), **NUMBERS)
    assert solved("gradient", "V", definitions=[r"L = \sum_{ij} O_{ij}"], **NUMBERS).text == ones.text
    with pytest.raises(CannotSolve, match="gradient of the loss"):
        solved("gradient", "V", **NUMBERS)


def test_jacobian_and_softmax_backward():
    scores = [1, 3, 0, 2, 1]
    matrix = solved("jacobian", scores=scores)
    assert matrix.derivation.holds
    assert np.allclose(np.array(matrix.value).sum(0), 0)
    upstream = [1, 0, -2, 1, 3]
    backward = solved("gradient", "scores", scores=scores, upstream=upstream)
    assert np.allclose(np.array(matrix.value) @ upstream, backward.value)
    assert backward.derivation.holds
    halved = solved("jacobian", scores=[2 * each for each in scores], temperature=2)
    assert np.allclose(np.array(halved.value), np.array(matrix.value) / 2)
    assert halved.derivation.holds
    exact = solved("jacobian", weights=["1/2", "1/4", "1/4"])
    assert exact.value[0] == (Fraction(1, 4), Fraction(-1, 8), Fraction(-1, 8))


@pytest.mark.parametrize(
    ("object", "text"),
    [
        ("", "diag(a) - a a^T"),
        ("a_i/s_j", r"a_i (\delta_{ij} - a_j)"),
        ("a_1/s_2", "-a_1 a_2"),
        ("a_1/s_1", "a_1 - a_1^2"),
    ],
)
def test_formulas(object, text):  # noqa: A002
    found = solved("jacobian", object)
    assert compare(found.text, text, found.symbols)


def test_derivations_of_scores_with_rational_weights_hold():
    scores = ["ln 2", "ln 3", "ln 8"]
    for found in (solved("jacobian", scores=scores), solved("gradient", "scores", scores=scores, upstream=[1, -2, 3])):
        assert found.derivation.holds
        assert "ln" not in found.text
    assert solved("jacobian", scores=scores).value[0][0] == Fraction(2 * 11, 13**2)


@pytest.mark.parametrize("name", ["V", "Q", "K"])
def test_weights_alone_give_no_gradient_but_that_of_the_scores(name):
    givens = [Given(role="weights", value=[[0.5, 0.5]]), Given(role="upstream", value=[[1, 0]])]
    refused = solve(Exercise(givens=givens, asked=[Asked(quantity="gradient", object=name)])).parts[0]
    assert refused.refusal is not None
    assert refused.refusal.code == "missing"
