"""Each piece of the evidence on argmax can fail."""

from fractions import Fraction

import pytest

import qkv
from qkv.theory.argmax import _gradients, _radius, _rate, _tied, _worked_by_qkv, scores_of


@pytest.fixture(scope="module")
def claim(made):
    return made("argmax")


def test_another_answer_to_the_example_is_refuted():
    assert _worked_by_qkv(lambda q, k, v: [0.0, -1.0, 4.0])[1].kind == "refuted"


def test_weights_that_are_too_flat_or_too_sharp_leave_the_rate():
    assert [e.kind for e in _rate(0)] == ["tested", "tested", "tested"]
    assert [e.kind for e in _rate(0, sharpness=0.5)] == ["tested", "refuted", "refuted"]
    assert [e.kind for e in _rate(0, sharpness=2.0)] == ["refuted", "tested", "tested"]


def test_softmax_has_gradients_at_queries():
    kinds = [e.kind for e in _gradients(0, similarity=qkv.Softmax())]
    assert kinds == ["refuted", "refuted", "refuted"]


def test_taking_the_last_of_a_tie_is_refuted():
    def last(query, keys, values):
        best = max(keys)
        return values[len(keys) - 1 - keys[::-1].index(best)]

    assert _tied(last)[0].kind == "refuted"


def test_the_radius_is_exact():
    assert _radius(Fraction(1, 10**9))[0].kind == "proved"
    assert _radius(Fraction(0))[0].kind == "refuted"


def test_scores_are_exact():
    assert scores_of((Fraction(1, 3), 2), ((3, 1), (0, 5))) == [3, 10]


def test_figure(claim):
    assert "temperature" in claim.figure()
