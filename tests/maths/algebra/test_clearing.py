"""A sum is zero where it is after its denominators are multiplied through."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.algebra.functions import power
from qkv.maths.algebra.monomials import Head, Poly, add, atom, clearing_factor, multiply, number, scale, vanishes

X, Y, Z = (atom(Head("name", name)) for name in "xyz")


def over(*names: Poly, times: int = 1) -> Poly:
    return power(add(*names), -times)


@pytest.mark.parametrize(
    ("poly", "zero"),
    [
        ({}, True),
        (number(1), False),
        (X, False),
        (add(multiply(X, over(X, Y)), multiply(Y, over(X, Y)), number(-1)), True),
        (add(multiply(X, over(X, Y)), multiply(Y, over(X, Y)), number(1)), False),
        (add(multiply(X, X, over(X, Y, times=2)), scale(multiply(Y, Y, over(X, Y, times=2)), -1),
             scale(multiply(X, over(X, Y)), -1), multiply(Y, over(X, Y))), True),
        (add(over(X, Y), over(X, scale(Y, -1)), scale(multiply(X, over(X, Y), over(X, scale(Y, -1))), -2)), True),
        (add(over(X, Y), over(Y, Z), scale(multiply(add(X, Z), over(X, Y), over(Y, Z)), -1)), False),
        (add(over(X, Y), scale(over(Y, Z), -1), multiply(add(X, scale(Z, -1)), over(X, Y), over(Y, Z))), True),
    ],
)  # fmt: skip
def test_denominators_are_cleared(poly: Poly, zero: bool) -> None:
    assert vanishes(poly) is zero


def test_the_denominator_is_the_lowest_power() -> None:
    assert clearing_factor(add(X, Y)) is None
    assert clearing_factor(power(add(X, Y), Fraction(1, 2))) is None
    assert clearing_factor(power(X, -1)) is None
    found = clearing_factor(add(over(X, Y), over(X, Y, times=3), X))
    assert found is not None
    assert found.exponent == 3
    assert found.head.kind == "sum"
    half = clearing_factor(power(add(X, Y), Fraction(-1, 2)))
    assert half is not None
    assert half.exponent == Fraction(1, 2)
