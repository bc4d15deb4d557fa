"""Exact arithmetic: fractions stay fractions, and numbers are written so that they are read back."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from qkv.exercises import exact
from qkv.maths import compare

fractions = some.fractions(min_value=-50, max_value=50, max_denominator=40)


@settings(max_examples=40, deadline=None)
@given(some.lists(fractions, min_size=6, max_size=6), some.lists(fractions, min_size=6, max_size=6))
def test_products_are_exact(left, right):
    first, second = (np.array(each, dtype=object).reshape(shape) for each, shape in ((left, (2, 3)), (right, (3, 2))))
    assert np.all(exact.times(first, second) == first @ second)


def test_products_of_mixed_numbers():
    mixed = exact.filled([Fraction(1, 2), Decimal("0.1"), Fraction(1), Fraction(3)], (2, 2))
    found = exact.times(mixed, exact.array([[2], [4]]))
    assert found[1, 0] == 14
    assert isinstance(found[1, 0], Fraction)
    assert found[0, 0] == Decimal("1.4")


def test_stacks_are_broadcast():
    left, right = np.arange(30).reshape(5, 3, 2), np.arange(14).reshape(2, 7)
    found = exact.times(exact.array(left.tolist()), exact.array(right.tolist()))
    assert np.array_equal(exact.floats(found), left @ right)


@settings(max_examples=60, deadline=None)
@given(fractions)
def test_numbers_are_read_back(value):
    assert compare(exact.typed(value), str(value), {})
    assert compare(exact.shown(value), str(value), {}).evidence == "proved"


@settings(max_examples=60, deadline=None)
@given(some.decimals(min_value=-(10**9), max_value=10**9, allow_nan=False, places=12), some.integers(1, 8))
def test_rounding_keeps_so_many_digits(value, digits):
    text = exact.rounded(value, digits).replace("*10^{", "e").replace("}", "")
    if value:
        assert abs(Decimal(text) - value) <= abs(value) * Decimal(10) ** (1 - digits)
    else:
        assert text == "0"


@pytest.mark.parametrize(("value", "text"), [("0.999999", "1.0000"), ("9.99999", "10.000"), ("0.099999999", "0.10000")])
def test_rounding_up_adds_no_digit(value, text):
    assert exact.rounded(Decimal(value)) == text


@exact.precise
def test_softmax_of_rational_and_masked_scores():
    rows = exact.array([[1, 1, 5], [0, 2, 4]])
    found = exact.softmax(rows, np.array([[True, True, False], [False, False, False]]))
    assert exact.nested(found) == ((Fraction(1, 2), Fraction(1, 2), 0), (0, 0, 0))
    whole = exact.softmax(rows)
    assert np.allclose(exact.floats(whole), exact.softmax(exact.floats(rows)))
    assert all(abs(sum(row) - 1) < Decimal("1e-50") for row in whole)


def test_large_arrays_become_floats():
    wide = exact.filled([Fraction(1, 3)] * 2000, (20, 100))
    assert not exact.is_float(exact.times(wide, exact.transposed(wide)))
    tall = exact.filled([Fraction(1, 3)] * 4000, (400, 10))
    assert exact.is_float(exact.times(tall, exact.transposed(tall)))


@exact.precise
def test_what_cancels_is_zero():
    root = exact.function("sqrt", exact.array([2]))[0]
    row, column = exact.filled([root, Fraction(1)], (1, 2)), exact.filled([root, Fraction(-2)], (2, 1))
    assert exact.written(exact.times(row, column)) == "[[0]]"


def test_a_rounded_product_does_not_pass_for_an_exact_root():
    scale = exact.Scale.by_root(3)
    assert scale.text(Fraction(53729, 18000)) == exact.rounded(Decimal(53729) / 18000 / Decimal(3).sqrt())
    assert scale.text(Fraction(1, 2)) == r"(1/2)/\sqrt{3}"
