"""Inequalities that hold, that fail, and that are not attained."""

from __future__ import annotations

import operator
from decimal import Decimal
from fractions import Fraction

import pytest

from qkv.errors import OptionError, OptionTypeError
from qkv.maths.comparison.bounds import attained_point, exact_value, extreme_value, holds, is_ordered, simplest_failure
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Symbol, Type
from qkv.maths.values.points import Point, vocabulary

SYMBOLS = {"u": "vector[d]", "v": "vector[d]", "d": "natural", "a": "scalar", "s": "positive", "x": "vector[n]"}


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("left", "relation", "right", "kind"),
    [
        (r"\det S", ">=", "1", "different"),
        (r"\mathrm{tr}(S)", ">=", "1", "different"),
        (r"\mathrm{tr}(S)", "<=", "1000", "different"),
        (r"E[q^T q]", ">=", "1", "different"),
        (r"\det S", ">", "0", "equal"),
        (r"\mathrm{tr}(S)^2", ">=", r"\mathrm{tr}(S S)", "equal"),
    ],
)
def test_bounds_are_tried_at_small_and_large_covariances(left, relation, right, kind):
    symbols = {"d": "natural", "S": "matrix[d,d]", "q": "random vector[d] ~ N(0, S)"}
    assert holds(left, relation, right, symbols).kind == kind


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


@pytest.mark.parametrize(
    ("left", "relation", "right", "symbols", "said"),
    [
        ("a", "<=", "7", {"a": "scalar"}, "a = 10: 10 against 7, which is not ≤"),
        ("a", ">", "-50", {"a": "scalar"}, "a = −100: −100 against −50, which is not >"),
        ("N", "<=", "5", {"N": "natural"}, "N = 7: 7 against 5, which is not ≤"),
        ("x + y", "<", "z", {"x": "positive", "y": "positive", "z": "positive"},
         "x = 2, y = 3, z = 1: 5 against 1, which is not <"),
        ("1", "<", "1", {}, "1 against 1, which is not <"),
        ("2", ">=", "3", {}, "2 against 3, which is not ≥"),
        (r"\|u\|", "<=", "0", {"u": "vector[n]"}, "n = 2, u = (1, 2): 2.23607 against 0, which is not ≤"),
    ],
)  # fmt: skip
def test_how_a_bound_fails_is_told_in_small_numbers(left, relation, right, symbols, said):
    verdict = holds(left, relation, right, symbols)
    assert (verdict.kind, verdict.evidence, verdict.reason) == ("different", "refuted", f"the bound fails: {said}")


def test_numbers_are_made_small_one_after_the_other():
    symbols = {"x": "positive", "y": "positive", "z": "positive"}
    left, right = parse("x + y", symbols), parse("z", symbols)
    words = vocabulary(left, right)

    def made_small(relation, *values):
        place = Point({}, dict(zip("xyz", map(Fraction, values), strict=True)))
        return tuple(simplest_failure(left, relation, right, words, place).point.values())

    assert made_small("<", 2, 3, 1) == (1, 1, 1)
    assert made_small("<", 20, 30, 10) == (1, 10, 1)
    assert made_small("<=", 2, 3, 1) == (1, 1, 1)
    assert made_small(">", 2, 3, 5) == (1, 1, 2)
    assert made_small(">=", 2, 3, 500) == (1, 1, 3)


def test_sizes_are_made_small_where_they_are_no_lengths():
    symbols = {"n": "natural", "u": "vector[d]"}
    left, right = parse("n + d", symbols), parse("3 + 0 u^T u", symbols)
    words = vocabulary(left, right)
    place = Point({"n": 50, "d": 7}, {"u": (Fraction(1),) * 7})
    found = simplest_failure(left, "<=", right, words, place)
    assert (found.point["n"], found.point["d"]) == (1, 7)


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (True, OptionTypeError, "a bool"),
        (0.5, OptionTypeError, "a float"),
        (None, OptionTypeError, "a NoneType"),
        ([1, True], OptionTypeError, "a bool"),
        ("1/0", OptionError, "'1/0'"),
        ("one", OptionError, "'one'"),
    ],
)
def test_points_are_whole_numbers_and_fractions(value, error, said):
    with pytest.raises(error, match=rf"attained\['s'\].*{said}"):
        exact_value("s", value)


def test_numbers_of_points():
    assert exact_value("s", "-1/2") == Fraction(-1, 2)
    assert exact_value("s", [1, [2, "3/4"], Fraction(5)]) == (Fraction(1), (Fraction(2), Fraction(3, 4)), Fraction(5))


def point_of(texts, attained, symbols=SYMBOLS):
    return attained_point(vocabulary(*(parse(text, symbols) for text in texts)), attained)


def test_sizes_of_points_are_read_off():
    found = point_of(["u^T v + d"], {"u": [1, 2], "v": ["1/2", 3]})
    assert found == Point({"d": 2}, {"u": (1, 2), "v": (Fraction(1, 2), 3)})
    assert point_of(["d + s"], {"d": 4, "s": 1}) == Point({"d": 4}, {"s": 1})
    matrix = {"A": "matrix[n,m]"}
    assert point_of(["A"], {"A": [[1, 2, 3], [4, 5, 6]]}, matrix).sizes == {"n": 2, "m": 3}
    defined = {"s": "scalar", "p": "positive = s + 1", "m": "natural = 2 d", "u": "vector[d]"}
    assert point_of(["p + m u_1"], {"s": 1, "u": [7, 8, 9]}, defined).sizes == {"d": 3, "m": 6}
    assert point_of(["E[x] + s"], {"s": 1}, {"s": "scalar", "x": "random scalar ~ N(0, 1)"}).values == {"s": 1}


def test_points_that_do_not_fit():
    with pytest.raises(OptionTypeError, match=r"attained.*a list.*a mapping of names to values"):
        point_of(["s"], [1])
    with pytest.raises(OptionError, match=r"attained\['u'\].*1 axes"):
        point_of(["u^T u"], {"u": 1})
    with pytest.raises(OptionError, match=r"attained\['v'\].*3 for d.*2"):
        point_of(["u^T v"], {"u": [1, 2], "v": [1, 2, 3]})
    for attained, missing in (({"u": [1, 2]}, "v"), ({"v": [1]}, "u"), ({}, "u, v, d")):
        with pytest.raises(OptionError, match=f"no value for {missing}"):
            point_of(["u^T v + 0 d"], attained)
    with pytest.raises(OptionError, match="no value for d"):
        point_of(["d"], {})
    with pytest.raises(OptionError, match="no value for i"):
        point_of(["u_i"], {"u": [1, 2]})
    with pytest.raises(OptionError, match="p leaves its domain"):
        point_of(["p"], {"s": -1}, {"s": "scalar", "p": "positive = s"})


def test_a_bound_that_is_attained_says_where():
    verdict = holds("s + 1/s", ">=", "2", SYMBOLS, attained={"s": 1})
    assert verdict.reason.endswith(", and both are 2 at s = 1")
    assert verdict.reason.startswith("it holds at all of ")
    assert holds("1", "<=", "1", {}, attained={}).reason == (
        "it holds at all of 1 points, extreme ones among them, and both are 1 at 1 against 1"
    )
    vectors = holds("u^T v", "<=", r"\|u\| \|v\|", SYMBOLS, attained={"u": [1, 0], "v": ["1/2", 0]})
    assert vectors.reason.endswith(", and both are 1/2 at d = 2, u = (1, 0), v = (1/2, 0)")
    not_there = holds("s + 1/s", ">=", "2", SYMBOLS, attained={"s": 2})
    assert not_there.evidence == "refuted"
    assert "the bound holds where it was tried but is not attained: s = 2: 5/2 against 2" in not_there.reason


def test_what_has_no_order():
    growth = holds("O(d)", "<=", "d", SYMBOLS)
    assert (growth.kind, growth.reason) == ("ill-typed", "growth and ± have no order; write two values")
    assert holds("a", "<=", r"\pm a", SYMBOLS).kind == "ill-typed"
    shapes = holds("u", "<=", "s", SYMBOLS)
    assert (shapes.kind, shapes.evidence) == ("different", "refuted")
    assert holds("u + s", "<=", "s", SYMBOLS).reason.startswith("the left side is refused: ")
    assert "left side" not in holds("s", "<=", "u + s", SYMBOLS).reason
    with pytest.raises(OptionError, match=r"relation.*'='.*one of <=, >=, < and >"):
        holds("s", "=", "s", SYMBOLS)
    nothing = holds(r"\sqrt{-1 - s}", "<=", "0", SYMBOLS)
    assert (nothing.kind, nothing.evidence) == ("unreadable", None)
    assert "there are too few points at which both have a value" in nothing.reason


@pytest.mark.parametrize(
    ("relation", "low", "high", "fine"),
    [
        (relation, low, high, compared(low, high))
        for relation, compared in (("<=", operator.le), (">=", operator.ge), ("<", operator.lt), (">", operator.gt))
        for low in (Fraction(1), Fraction(2))
        for high in (Fraction(1), Fraction(2))
    ],
)
def test_the_order_of_values(relation, low, high, fine):
    assert is_ordered(low, relation, high) is fine
    assert is_ordered(Decimal(int(low)), relation, high) is fine
    assert is_ordered((Fraction(0), low), relation, (Fraction(1) if relation[0] == "<" else Fraction(-1), high)) is fine
    tiny = Decimal(10) ** -45
    assert is_ordered(Decimal(int(low)) + tiny, relation, high) is fine
    assert is_ordered(Decimal(int(low)) - tiny, relation, high) is fine


@pytest.mark.parametrize(
    ("attempt", "vector"),
    [(0, (3, 3, 3)), (1, (3, 150, 7)), (2, ("3/20", "1/4", "7/20")), (3, (3, 0, 0)), (4, (3, 3, 5)), (9, (0, 0, 0))],
)
def test_extremes_of_a_vector(attempt, vector):
    symbol = Symbol(("d",), "u", Type("vector", ("d",)))
    value = tuple(map(Fraction, (3, 5, 7)))
    assert extreme_value(value, symbol, attempt) == tuple(map(Fraction, vector))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("scalar", (240, "3/20", 6, 0, -42)),
        ("positive", (240, "3/20", 6, "6/1000", "6/1000")),
        ("nonnegative", (240, "3/20", 6, 0, 42)),
    ],
)
def test_extremes_of_a_number(kind, values):
    symbol = Symbol((), "x", Type(kind))
    assert [extreme_value(Fraction(6), symbol, attempt) for attempt in range(5)] == list(map(Fraction, values))
