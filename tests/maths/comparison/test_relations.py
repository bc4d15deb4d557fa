"""Equations, inequalities, systems, intervals, sets and quantities."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths import compare
from qkv.maths import tree as t
from qkv.maths.comparison.verdict import Verdict, compare_trees
from qkv.maths.parsing.parse import parse

S = {
    "x": "scalar",
    "y": "scalar",
    "s": "positive",
    "q": "vector[d]",
    "k": "vector[d]",
    "n": "natural",
    "d": "natural",
    "a": "natural",
}
TABLE = [
    (r"q^T k = 0", r"\|q\| = 0", "different"),
    (r"q^T k = 0", "2 k^T q = 0", "equal"),
    ("q - k = 0", "k = q", "equal"),
    ("q = k", "q = 2k", "different"),
    ("x = y", "2x - 2y = 0", "equal"),
    ("x = 3", "2x = 6", "equal"),
    ("x = 3", "y = 3", "different"),
    ("x = 3", "3", "equal"),
    ("3", "x = 3", "equal"),
    ("3", "E = 3", "equal"),
    ("2x = 6", "6", "different"),
    ("6", "2x = 6", "different"),
    ("2x", "x + x = 2x", "equal"),
    (r"s^2 = \frac{1}{n}", "n s^2 = 1", "equal"),
    (r"s = \frac{1}{\sqrt n}", r"\sqrt n s = 1", "equal"),
    ("x/s = 2", "x = 2s", "equal"),
    ("x^2 = 4", "x = 2", "different"),
    ("x^2 = 4", r"x = \pm 2", "equal"),
    ("|x| = 17", "x = 17", "conditional"),
    ("|x| + 1 = 18", "x = 17", "different"),
    ("x > 1", r"x \ge 1.001", "different"),
    ("(x - 1)^2 = 0", "x = 1", "equal"),
    ("x y = 0", "x = 0", "different"),
    ("x = y^2", r"y = \sqrt x", "different"),
    (r"\max(x, 100) = 150", "x = 150", "unreadable"),
    ("x < 1", "-x > -1", "equal"),
    ("x < 1", "1 > x", "equal"),
    ("x < 1", "x > 1", "different"),
    ("x < 1", r"x \le 1", "different"),
    (r"n \ge 2d", r"d \le n/2", "equal"),
    ("n > 1", r"n \ge 2", "equal"),
    ("n > 1", r"n \ge 3", "different"),
    ("2n > 3", "n > 1", "equal"),
    ("x > 1", r"x \ge 2", "different"),
    ("n a > 1", "n > 1/a", "equal"),
    ("0 < x < 1", "1 > x > 0", "equal"),
    ("0 < x < 1", r"0 \le x < 1", "different"),
    ("x^2 < 1", "-1 < x < 1", "equal"),
    (r"x \ne y", r"y - x \ne 0", "equal"),
    (r"x \le y", r"x \le |y|", "conditional"),
    (r"x < \frac13", "x < 0.333", "equal"),
    (r"x < \frac13", "x < 0.334", "different"),
    ("x < 1", "1", "different"),
    ("1", "x < 1", "different"),
]


@pytest.mark.parametrize(("gold", "answer", "kind"), TABLE)
def test_relations_hold_at_the_same_points_or_differ(gold: str, answer: str, kind: str) -> None:
    there, back = compare(gold, answer, S), compare(answer, gold, S)
    assert there.kind == kind, str(there)
    assert back.kind == kind, str(back)
    assert (there.evidence == "proved") == (there.certificate is not None)


def test_a_solution_of_one_alone_is_shown() -> None:
    verdict = compare("x^2 = 4", "x = 2", S)
    assert verdict.counterexample is not None
    assert dict(verdict.counterexample.point) == {"x": -2}
    assert verdict.reason == "not the same equations: at x = −2 only the right one holds"


def judged(gold: t.Node, answer: t.Node) -> Verdict:
    return compare_trees(gold, answer, Verdict("equal", None, ""))


def collection(*texts: str) -> t.Node:
    return t.Collection((), tuple(parse(text, S) for text in texts))


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        (("x = 64", "y = 8"), ("y = 8", "x = 64"), "equal"),
        (("x = 64", "y = 8"), ("x = 64", "y = 4"), "different"),
        (("x = 64", "y = 8"), ("x = 8", "y = 64"), "different"),
        (("x + y = 1", "x - y = 3"), ("x - y = 3", "2x + 2y = 2"), "equal"),
        (("x + y = 1", "x - y = 3"), ("x = 2", "y = -1"), "unreadable"),
        (("x > 0", "x < 1"), ("1 > x", "2x > 0"), "equal"),
        (("1", "2"), ("2", "1"), "equal"),
        (("1", "2"), ("2", "1", "2"), "equal"),
        (("1", "2"), ("1", "3"), "different"),
        (("x", "|y|"), ("y", "x"), "conditional"),
    ],
)
def test_systems_and_sets_have_no_order(gold, answer, kind) -> None:
    assert judged(collection(*gold), collection(*answer)).kind == kind
    assert judged(collection(*answer), collection(*gold)).kind == kind


def test_what_is_missing_or_extra_is_named() -> None:
    both, one = collection("x = 64", "y = 8"), collection("x = 64")
    assert judged(both, one).reason == "the answer does not say what y is"
    assert judged(one, both).reason == "the answer also gives y, which is not asked for"
    assert judged(collection("1", "2"), collection("1")).reason == "the answer misses 2"


def interval(low: str, high: str, brackets: str) -> t.Interval:
    return t.Interval((), parse(low, S), parse(high, S), (brackets[0] == "[", brackets[1] == "]"))


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        (interval("0", "1", "()"), interval("0", "1", "()"), "equal"),
        (interval("0", "1", "()"), interval("0", "1", "[]"), "different"),
        (interval("0", "1", "[)"), interval("0", "2", "[)"), "different"),
        (interval("0", r"\infty", "[)"), interval("0", r"\infty", "[]"), "equal"),
        (interval("0", "n", "[]"), interval("0", "2n - n", "[]"), "equal"),
    ],
)
def test_intervals_have_ends_that_belong_to_them_or_not(gold, answer, kind) -> None:
    inside = t.Relation((), (parse("x", S), gold), ("in",))
    assert judged(gold, answer).kind == judged(inside, answer).kind == judged(answer, inside).kind == kind


def test_a_membership_is_two_inequalities() -> None:
    inside = t.Relation((), (parse("x", S), interval("0", "1", "()")), ("in",))
    assert judged(inside, parse("0 < x < 1", S)).kind == "equal"
    assert (
        judged(parse("0 < x", S), t.Relation((), (parse("x", S), interval("0", r"\infty", "()")), ("in",))).kind
        == "equal"
    )
    assert judged(inside, parse(r"0 < x \le 1", S)).kind == "different"


def quantity(number: str, size: int | Fraction, *units: str) -> t.Node:
    named = [t.Symbol((), f"unit {unit}", t.Type("positive")) for unit in units]
    return t.Multiply((), (parse(number, S), t.Number((), Fraction(size)), *named))


M, MI, GI = 10**6, 2**20, 2**30


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        (quantity("512", MI, "B"), quantity("0.5", GI, "B"), "equal"),
        (quantity("512", MI, "B"), quantity("536870912", 1, "B"), "equal"),
        (quantity("512", MI, "B"), quantity("0.54", 10**9, "B"), "equal"),
        (quantity("512", MI, "B"), quantity("0.55", 10**9, "B"), "different"),
        (quantity("512", MI, "B"), quantity("512", M, "B"), "different"),
        (quantity("3", 1, "s"), quantity("3", 1, "B"), "different"),
        (quantity("3", Fraction(1, 1000), "s"), quantity("3000", Fraction(1, M), "s"), "equal"),
        (quantity("512", M, "B"), parse("512", S), "conditional"),
        (quantity("512", M, "B"), parse("511", S), "different"),
        (quantity("2n", 1, "FLOP"), parse("2n", S), "conditional"),
        (quantity("2n", 1, "FLOP"), parse("3n", S), "different"),
        (quantity("2", 1, "FLOP"), t.Divide((), quantity("2", 1, "FLOP"), quantity("1", 1, "s")), "different"),
    ],
)
def test_quantities_are_compared_in_one_unit(gold, answer, kind) -> None:
    assert judged(gold, answer).kind == judged(answer, gold).kind == kind


def test_the_unit_of_a_bare_number_is_named() -> None:
    assert judged(quantity("512", M, "B"), parse("512", S)).condition == "the answer is in MB"
