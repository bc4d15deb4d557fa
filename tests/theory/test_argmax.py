"""The claim on argmax holds line by line, and each piece of its evidence can fail."""

from fractions import Fraction

import pytest

import qkv
from qkv.theory.argmax import _gradients, _radius, _tied, _worked_by_qkv, argmax, scores_of


@pytest.fixture(scope="module")
def claim():
    return argmax()


def test_every_line_follows(claim):
    failing = [
        (line.text, str(check))
        for line, check in zip(claim.derivation, claim.checks, strict=True)
        if check is not None and check.kind != "equal"
    ]
    assert failing == []


def test_its_evidence_holds(claim):
    assert [e for e in claim.evidence if not e.holds] == []


def test_another_answer_to_the_example_is_refuted():
    assert _worked_by_qkv(lambda q, k, v: [0.0, -1.0, 4.0])[1].kind == "refuted"


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
