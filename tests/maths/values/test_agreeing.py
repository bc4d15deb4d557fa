"""Differences that no fixed number of digits shows, and noise that looks like one."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.values.arithmetic import PlainNumber
from qkv.maths.values.points import (
    Point,
    agree_at,
    agree_to_digits,
    differences,
    gap_vanishes,
    relative_gap,
    roughly_agree,
)

SYMBOLS = {"x": "scalar", "y": "positive"}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("e^{-200}", "0"),
        ("e^{-1000}", "e^{-2000}"),
        ("1 + e^{-200} x", "1"),
        ("e^{1000}", "e^{1000} + 1"),
        ("(1 + 10^{-20})^{1/2}", "1 + 10^{-20}/2"),
        (r"\max(e^{-200}, 0)", "0"),
    ],
)
def test_what_stays_with_more_digits_is_a_difference(gold, answer):
    verdict = compare(gold, answer, SYMBOLS)
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\max(\sqrt{2y} - \sqrt 2\sqrt y, -1)", "0"),
        (r"|\log(y^2) - 2\log y| + 1", "1"),
        (r"\max(e^{-200 x^2}, 0)", "e^{-200 x^2}"),
    ],
)
def test_what_shrinks_with_more_digits_is_none(gold, answer):
    assert compare(gold, answer, SYMBOLS).kind != "different"


def test_where_digits_run_out_nothing_is_said():
    verdict = compare("e^{100000}", "e^{100000} + 1", {})
    assert (verdict.kind, verdict.evidence) == ("unreadable", None)
    assert "digits" in verdict.reason


def test_values_that_look_the_same_are_told_apart():
    assert "which differ by 1.00" in compare("e^{1000}", "e^{1000} + 1", {}).reason
    assert "1 against 1.00000000000001" in compare("1", "1 + 10^{-14} \\cdot \\sqrt{1}", {}).reason.replace(
        "100000000000001/100000000000000", "1.00000000000001"
    )


def pairs(*numbers: str) -> list[tuple[PlainNumber, PlainNumber]]:
    """Numbers that are exact or not, two and two."""
    exact = [Fraction(one) if "." not in one else Decimal(one) for one in numbers]
    return list(zip(exact[::2], exact[1::2], strict=True))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("1", "0", True),
        ("1e-10", "1e-50", True),
        ("1e-10", "1.1e-50", None),
        ("1e-10", "1e-10", False),
        ("1", "1.0000009", False),
        ("1", "1.000002", None),
        ("1.0000009", "1", False),
        ("1", "0.5", None),
    ],
)
def test_a_difference_stays_or_vanishes(before, after, found) -> None:
    assert gap_vanishes(Decimal(before), Decimal(after)) is found


@pytest.mark.parametrize(
    ("numbers", "error", "found"),
    [
        (("1", "1"), "1e-20", True),
        (("1.0", "1.00000000000000000009"), "1e-20", True),
        (("1.0", "1.0000000000000000002"), "1e-20", None),
        (("1", "2"), "1e-20", False),
        (("1.0", "1.00005"), "1e-20", None),
        (("1.0", "1.0002"), "1e-20", False),
        (("1.0", "1.0002"), "1e-5", None),
        (("1", "1"), "1e-6", None),
        (("1", "1"), "9e-7", True),
        (("1", "1", "1", "2"), "1e-20", False),
        (("1.0", "1.05"), "1e-3", False),
        (("1.0", "1.02"), "1e-3", None),
    ],
)
def test_what_is_only_known_roughly(numbers, error, found) -> None:
    assert roughly_agree(pairs(*numbers), Decimal(error)) is found


def test_relative_differences_and_digits() -> None:
    assert relative_gap(Fraction(3), Fraction(4)) == Decimal("0.25")
    assert relative_gap(Fraction(-4), Fraction(4)) == 2
    assert relative_gap(Fraction(0), Fraction(0)) == 0
    assert differences(pairs("1", "3", "2.5", "2"), 60) == [2, Decimal("0.5")]
    assert agree_to_digits(Decimal("1.0000"), Decimal("1.0001"), 4)
    assert not agree_to_digits(Decimal("1.0000"), Decimal("1.0001"), 5)
    assert agree_to_digits(Fraction(-1000), Fraction(-1001), 3)
    assert not agree_to_digits(Fraction(1000), Fraction(-1000), 3)


@pytest.mark.parametrize(
    ("gold", "answer", "found"),
    [
        ("x", "x", True),
        ("x", "x + 1", False),
        (r"\sqrt{x}^2", "x", True),
        (r"\sqrt{x}", "1.4142135623730951", False),
        (r"e^{x}", r"e^{x} + 10^{-70}", False),
        (r"e^{10000} - e^{10000}", "0", None),
        ("e^{100000}", "e^{100000} + 1", None),
        ("(x, 1)", "(x, 2)", False),
        ("(1, x)", "(1, x)", True),
        (r"\max(\sqrt 2 - 1.41421356, 0)", r"\sqrt 2 - 1.41421356", True),
    ],
)
def test_two_values_at_a_point(gold, answer, found) -> None:
    place = Point({}, {"x": Fraction(2)})
    trees = [parse(text, {"x": "scalar"}) for text in (gold, answer)]
    assert agree_at(place, *trees) is found


def test_a_zero_that_no_digits_show() -> None:
    place = Point({}, {"x": Fraction(2)})
    tree = parse(r"e^{10000} - e^{10000} + x", {"x": "scalar"})
    assert agree_at(place, tree, parse("x", {"x": "scalar"})) is not False
