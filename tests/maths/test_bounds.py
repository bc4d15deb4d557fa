"""Inequalities: those that hold, those that do not, and those that are not tight where they should be."""

from __future__ import annotations

import operator

import pytest

from qkv.errors import OptionError, OptionTypeError
from qkv.maths.bounds import holds

SYMBOLS = {"u": "vector[d]", "v": "vector[d]", "d": "natural", "a": "scalar", "s": "positive", "x": "vector[n]"}


@pytest.mark.parametrize(
    ("left", "relation", "right", "attained"),
    [
        (r"(u^T v)^2", "<=", r"\|u\|^2\|v\|^2", {"u": [1, 2, 3], "v": [2, 4, 6]}),
        (r"(\mathbf 1^T u)^2", "<=", r"d\,u^T u", {"u": ["1/2", "1/2"]}),
        (r"\|u\|_1", ">=", r"\|u\|", {"u": [3, 0, 0]}),
        (r"a", "<=", r"|a|", {"a": 0}),
        (r"s", ">", "0", None),
        (r"s + 1/s", ">=", "2", {"s": 1}),
        (r"\max(x)", "<=", r"\log \sum_i \exp(x_i)", None),
        (r"1 - 1", "<=", "0", {}),
    ],
)
def test_bounds_that_hold(left, relation, right, attained):
    verdict = holds(left, relation, right, SYMBOLS, attained=attained)
    assert (verdict.kind, verdict.evidence) == ("equal", "tested")
    turned = {"<=": ">=", ">=": "<=", "<": ">", ">": "<"}[relation]
    assert holds(right, turned, left, SYMBOLS, attained=attained).kind == "equal"


@pytest.mark.parametrize(
    ("left", "relation", "right"),
    [
        (r"u^T v", "<=", r"\|u\|^2"),
        (r"(\mathbf 1^T u)^2", "<=", r"u^T u"),
        ("a", "<", "|a|"),
        ("s", "<=", "s^2"),
        ("s", ">=", "s^2"),
        (r"\|u\|", "<=", "100"),
    ],
)
def test_bounds_that_fail_have_a_counterexample(left, relation, right):
    verdict = holds(left, relation, right, SYMBOLS)
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")
    point = verdict.counterexample
    assert point is not None
    compared = {"<=": operator.le, ">=": operator.ge, "<": operator.lt}[relation]
    assert not compared(point.gold, point.answer)


NATURALS = {"N": "natural", "k": "natural", "n": "natural"}


@pytest.mark.parametrize(
    ("left", "relation", "right", "symbols"),
    [
        (r"\min(N,(k+1)^n)", "<=", "k^n", NATURALS),
        ("N", "<=", "10 k n", NATURALS),
        ("k + n", ">=", "N/20", NATURALS),
        ("a", "<=", "50 b", {"a": "positive", "b": "positive"}),
        ("a + b", ">=", "-90", {"a": "scalar", "b": "scalar"}),
        ("N", "<=", "50 + x^T x", {**NATURALS, "x": "vector[n]"}),
    ],
)
def test_numbers_are_tried_large_against_small(left, relation, right, symbols):
    verdict = holds(left, relation, right, symbols)
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")
    assert verdict.counterexample is not None
    compared = {"<=": operator.le, ">=": operator.ge}[relation]
    assert not compared(verdict.counterexample.gold, verdict.counterexample.answer)


def test_the_counterexample_of_a_bound_is_small():
    verdict = holds(r"\min(N,(k+1)^n)", "<=", "k^n", NATURALS)
    assert str(verdict.counterexample) == "N = 2, k = 1, n = 1: 2 against 1"
    assert holds(r"\min(N,k^n)", "<=", "(k+1)^n", NATURALS)


def test_a_bound_that_is_not_attained_where_it_should_be():
    verdict = holds("s", "<=", "s + 1", SYMBOLS, attained={"s": 1})
    assert verdict.kind == "different"
    assert "not attained" in verdict.reason
    assert verdict.counterexample is not None
    assert holds("s", "<=", "s + 1", SYMBOLS)


def test_refusals_and_broken_calls():
    assert holds("u + s", "<=", "s", SYMBOLS).kind == "ill-typed"
    assert holds("s", "<=", "u + s", SYMBOLS).kind == "ill-typed"
    assert holds("u", "<=", "s", SYMBOLS).kind == "different"
    with pytest.raises(OptionError):
        holds("s", "=", "s", SYMBOLS)
    with pytest.raises(OptionError, match="no value for"):
        holds("s", "<=", "s", SYMBOLS, attained={})
    with pytest.raises(OptionTypeError):
        holds("s", "<=", "s", SYMBOLS, attained={"s": 0.5})


@pytest.mark.parametrize(("size", "fails"), [("6", 7), ("11", 12)])
def test_a_bound_that_only_long_vectors_break(size, fails):
    verdict = holds(r"\|u\|_1", "<=", rf"\sqrt{{{size}}}\|u\|", {"u": "vector[d]"})
    assert verdict.counterexample is not None
    assert verdict.counterexample.point["d"] == fails
    assert holds(r"\|u\|_1", "<=", r"\sqrt d\|u\|", {"u": "vector[d]"})
