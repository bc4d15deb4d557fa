"""Values and points as text."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from qkv.maths.comparison.counterexample import (
    Counterexample,
    differ_only_in_zeros,
    either_text,
    json_value,
    number_text,
    value_text,
    versus_text,
)
from qkv.maths.parsing.parse import parse
from qkv.maths.values.points import Point, vocabulary

TINY = Fraction(1, 10**30)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Fraction(3), "3"),
        (Fraction(-3, 2), "−3/2"),
        (Fraction(2**39), str(2**39)),
        (Fraction(10**30), "1.00000e+30"),
        (Fraction(1, 10**30), "1e−30"),
        (Fraction(10**24 + 1, 3 * 10**24), "0.333333"),
        (Decimal(2).sqrt(), "1.41421"),
        (Decimal("-0.000001234567"), "−0.00000123457"),
        (Decimal("0.5"), "1/2"),
        (Decimal("0.25"), "1/4"),
        (Decimal(3), "3"),
        (Decimal(0), "0"),
        (Decimal("0.001"), "1/1000"),
        (Decimal("0.0005"), "0.0005"),
        (Decimal("1e13"), "1e+13"),
        ("as it is", "as it is"),
    ],
)
def test_numbers(value: object, shown: str) -> None:
    assert number_text(value) == shown


def test_numbers_with_more_digits() -> None:
    root = Decimal(2).sqrt()
    assert number_text(root, 12) == "1.41421356237"
    assert number_text(root, 3) == "1.41"
    assert number_text(Decimal("0.5"), 60) == "0.5"
    assert number_text(Fraction(10**30 + 1), 31) == str(10**30 + 1)


def test_vectors_and_matrices() -> None:
    assert value_text((Fraction(1), Fraction(3, 2))) == "(1, 3/2)"
    assert value_text(((Fraction(1), Fraction(2)), (Fraction(3), Fraction(4)))) == "[(1, 2), (3, 4)]"
    assert value_text(()) == "()"
    assert value_text(tuple(map(Fraction, range(1, 13)))) == "(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)"
    assert value_text(tuple(map(Fraction, range(1, 14)))) == "(1, 2, 3, …, 13)"
    assert value_text((Decimal(2).sqrt(),), 4) == "(1.414)"
    assert json_value((Fraction(1, 2), (Fraction(-1),))) == ["1/2", ["−1"]]
    assert either_text([Fraction(1), Fraction(-1), Fraction(1)]) == "1 or −1"


@pytest.mark.parametrize(
    ("gold", "answer", "shown"),
    [
        (Fraction(1), Fraction(2), "1 against 2"),
        (Fraction(50), Fraction(5), "50 against 5"),
        (Decimal("1e13"), Decimal("1e130"), "1e+13 against 1e+130"),
        (Fraction(1), Decimal("1.00000000001"), "1 against 1.00000000001"),
        (Decimal("1.4142"), Decimal("1.4143"), "1.4142 against 1.4143"),
        (Fraction(3), 3 + TINY, "3 against 3.00000, which differ by 1e−30"),
        (3 + TINY, Fraction(3), "3.00000 against 3, which differ by 1e−30"),
        (Fraction(1), Decimal("1") + Decimal("1e-27"), "1 against 1.00000, which differ by 1e−27"),
        (Decimal("2") + Decimal("3e-26"), Decimal("2"), "2.00000 against 2, which differ by 3e−26"),
        (Fraction(1), Decimal("1"), "1 against 1"),
        (Fraction(1), "1", "1 against 1"),
        ("1.0", Fraction(1), "1.0 against 1"),
        ("0.5", "0.50", "0.5 against 0.50"),
        ((Fraction(1),), (Fraction(2),), "(1) against (2)"),
        ((Fraction(1), Fraction(2)), (Fraction(1), Fraction(2)), "(1, 2) against (1, 2)"),
    ],
)
def test_two_values_with_as_many_digits_as_it_takes(gold: object, answer: object, shown: str) -> None:
    assert versus_text(gold, answer) == shown


def test_eighteen_digits_are_shown_before_a_difference_is() -> None:
    third = Decimal(1) / Decimal(3)
    assert versus_text(third, third + Decimal("1e-9")) == "0.333333333333 against 0.333333334333"
    assert versus_text(third, third + Decimal("1e-16")) == "0.333333333333333333 against 0.333333333333333433"
    assert "which differ by" in versus_text(Decimal(2).sqrt(), Decimal(2).sqrt() + Decimal("1e-22"))


def test_zeros_after_the_point_do_not_matter() -> None:
    assert differ_only_in_zeros("1", "1.00000")
    assert differ_only_in_zeros("1.50", "1.5")
    assert not differ_only_in_zeros("1.5", "1.51")
    assert not differ_only_in_zeros("1", "2")


def test_zeros_before_the_point_and_of_an_exponent_matter() -> None:
    assert not differ_only_in_zeros("50", "5")
    assert not differ_only_in_zeros("100.0", "1.0")
    assert not differ_only_in_zeros("1e+3", "1e+30")
    assert not differ_only_in_zeros("1/50", "1/5")
    assert differ_only_in_zeros("1.00000e+30", "1e+30")
    assert differ_only_in_zeros("50.00", "50")


def test_a_point_is_told_in_full() -> None:
    node = parse("g(x) + d mu_1 u_i", {"g": "map scalar -> scalar", "x": "scalar", "mu": "vector[d]", "u": "vector[d]"})
    words = vocabulary(node)
    values = {"x": Fraction(3), "mu": (Fraction(1), Fraction(2)), "u": (Fraction(0), Fraction(5)), "i": Fraction(2)}
    values["g"] = abs
    found = Counterexample.at(Point({"d": 2}, values), words, Fraction(7), Fraction(8))
    assert found.where == "d = 2, x = 3, μ = (1, 2), u = (0, 5), i = 2, for some g"
    assert str(found) == f"{found.where}: 7 against 8"
    assert found.point["d"] == 2
    assert "g" not in found.point
    assert found.as_dict() == {
        "point": {"d": "2", "x": "3", "mu": ["1", "2"], "u": ["0", "5"], "i": "2"},
        "gold": "7",
        "answer": "8",
        "text": str(found),
    }


def test_without_names_there_are_only_values() -> None:
    assert str(Counterexample({}, Fraction(1), Fraction(2))) == "1 against 2"
    assert str(Counterexample({"x": Fraction(1)}, Fraction(1), Fraction(2))) == "x = 1: 1 against 2"
    assert Counterexample({"x": Fraction(1)}, 1, 2, "for some f").where == "x = 1, for some f"


def test_what_is_averaged_over_has_no_value() -> None:
    node = parse("E[q] + x", {"q": "random scalar ~ N(0, 1)", "x": "scalar"})
    found = Counterexample.at(Point({}, {"q": Fraction(1), "x": Fraction(2)}), vocabulary(node), 1, 2)
    assert dict(found.point) == {"x": Fraction(2)}
