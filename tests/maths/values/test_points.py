"""Points: the first is simple, and together they leave no sign, no size and no coincidence of indices untried."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.values.points import points, vocabulary

SYMBOLS = {
    "x": "scalar",
    "y": "scalar",
    "z": "scalar",
    "n": "natural",
    "m": "natural",
    "d": "natural",
    "u": "vector[d]",
    "i": "index[d]",
    "j": "index[d]",
    "k": "index[d]",
    "S": "matrix[d,d]",
    "q": "random vector[d] ~ N(u, S)",
}


def places(text: str, count: int = 40):
    return list(points(vocabulary(parse(text, SYMBOLS)), count))


def test_the_first_point_is_simple():
    first = places(r"x + y + u^T u + n")[0]
    assert first.sizes["d"] == 2
    assert first.values["u"] == (1, 2)
    assert (first.values["x"], first.values["y"]) == (2, 3)
    assert places("x + y") == places("x + y")


def test_three_numbers_have_every_pattern_of_signs_among_the_first_nine():
    signs = {tuple(place.values[name] > 0 for name in "xyz") for place in places("x + y + z", 9)}
    assert signs == set(itertools.product((True, False), repeat=3))


def test_magnitudes_zero_and_naturals():
    sizes = {abs(place.values["x"]) for place in places("x + y", 120)}
    assert {Fraction(1, 10), Fraction(1, 2), 1, 2, 3, 7, 10, 100, 0} <= sizes
    naturals = {place.sizes["n"] for place in places("n + m", 60)}
    assert {1, 2, 100} <= naturals
    lengths = {place.sizes["d"] for place in places("u^T u", 40)}
    assert 1 in lengths
    assert max(lengths) < 10


def test_indices_of_one_size_coincide_in_every_way():
    patterns = set()
    for place in places(r"\delta_{ij}\delta_{jk}", 12):
        i, j, k = (place.values[name] for name in "ijk")
        patterns.add((i == j, j == k, i == k))
    assert len(patterns) == 5


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"|x+y|", "x+y"),
        (r"|x+y+z|", "x+y+z"),
        (r"\max(n,2)", "n"),
        (r"|n-2|", "n-2"),
        (r"\min(n,7)", "n"),
        (r"|x+10|", "x+10"),
        (r"\max(x,x^2)", "x^2"),
        (r"\max(x,y,0)", r"\max(x,y)"),
        (r"\max(\|u\|^2,1)", r"\|u\|^2"),
        (r"\min(n,512)", "n"),
        (r"relu(x-100)", "0"),
        (r"\min((m+1)^n,1000000)", "(m+1)^n"),
        (r"Cov(q_i,q_j)", "0"),
        (r"\delta_{ij}\delta_{jk}", "0"),
        (r"\delta_{ij} u_i u_j", "u_i u_j"),
    ],
)
def test_what_holds_only_at_tame_points_is_refuted(gold, answer):
    verdict = compare(gold, answer, SYMBOLS)
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")
    assert verdict.counterexample is not None
    assert compare(gold, answer, {**SYMBOLS, "a": "scalar", "b": "vector[d]"}) == verdict


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\prod_{k=1}^n \max(-1, \det(S S))", r"\prod_{k=1}^n \max(\det(S S), 1)"),
        (r"\max(\det S, 1)", r"\det S"),
        (r"\max(\mathrm{tr}(S), 1)", r"\mathrm{tr}(S)"),
        (r"|\log\det S|", r"\log\det S"),
        (r"\max(E[q^T q], 1)", r"E[q^T q]"),
        (r"\min(\det S, 1000000)", r"\det S"),
    ],
)
def test_what_holds_only_for_covariances_of_ordinary_size_is_refuted(gold, answer):
    symbols = {**SYMBOLS, "q": "random vector[d] ~ N(0, S)"}
    verdict = compare(gold, answer, symbols)
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")
    assert "they agree where" not in verdict.reason


def test_what_has_a_value_only_at_positive_numbers_is_tried_there():
    assert compare(r"\sqrt x\sqrt y", r"\sqrt{xy}", SYMBOLS)
    assert compare(r"\log(xy) + |x|", r"\log x + \log y + |x|", SYMBOLS)
    assert compare(r"\max(\log x, \log y)", r"\log\max(x, y)", SYMBOLS)


def test_a_counterexample_beside_a_written_number_is_brought_back_to_it():
    assert str(compare(r"\min(n,512)", "n", SYMBOLS).counterexample) == "n = 513: 512 against 513"
