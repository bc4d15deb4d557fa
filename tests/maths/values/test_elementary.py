"""Functions of numbers and nested tuples, and arrays, against plain Python and numpy."""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from qkv.maths.values.arithmetic import (
    ONE,
    ZERO,
    Dual,
    Polynomial,
    Undefined,
    Unevaluable,
    add,
    arctangent_of_inverse,
    argmax,
    as_exact,
    axes_of,
    componentwise,
    constant_value,
    contract,
    determinant,
    digits,
    dot_product,
    entries,
    extreme,
    holds,
    matrix_inverse,
    matrix_power,
    matrix_product,
    multiply,
    plain_entries,
    relative_difference,
    scale_product,
    seed_dual,
    softmax,
    swap_axes,
    transpose,
)

SIGNS = {
    "<": operator.lt,
    "<=": operator.le,
    "≤": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "≥": operator.ge,
    "!=": operator.ne,
    "≠": operator.ne,
    "=": operator.eq,
    "==": operator.eq,
}


@pytest.mark.parametrize("relation", SIGNS)
def test_relations_hold_where_they_do(relation) -> None:
    for a in range(-1, 2):
        for b in range(-1, 2):
            assert holds(relation, Fraction(a), Fraction(b)) is SIGNS[relation](a, b)


def test_values_are_made_exact() -> None:
    assert as_exact(3) == 3
    assert isinstance(as_exact(3), Fraction)
    assert as_exact("1/3") == Fraction(1, 3)
    assert as_exact([1, [2, "0.5"]]) == (1, (2, Fraction(1, 2)))
    assert as_exact((1,)) == (1,)
    assert as_exact(Decimal(2)) == Decimal(2)
    assert as_exact(math.exp) is math.exp


def test_relative_differences() -> None:
    with digits():
        assert relative_difference(Fraction(3), Fraction(4)) == Decimal("0.25")
        assert relative_difference(Fraction(4), Fraction(3)) == Decimal("0.25")
        assert relative_difference(Fraction(-4), Fraction(4)) == 2
        assert relative_difference(Fraction(-3), Fraction(-4)) == Decimal("0.25")
        assert relative_difference(ZERO, ZERO) == 0
        assert relative_difference(ZERO, Fraction(5)) == 1
    for other in (Dual(1, ONE, ONE), Polynomial({})):
        for pair in ((ONE, other), (other, ONE)):
            with pytest.raises(Unevaluable, match="no polynomial"):
                relative_difference(*pair)


def test_a_seed_is_put_where_it_belongs() -> None:
    assert seed_dual(ONE, (), 3) == Dual(3, ONE, ONE)
    assert seed_dual((ONE, ZERO), (1,), 1) == (ONE, Dual(1, ZERO, ONE))
    assert seed_dual(((1, 2), (3, 4)), (1, 0), 2) == ((1, 2), (Dual(2, 3, ONE), 4))  # pyright: ignore


def test_axes_are_turned() -> None:
    rows = ((1, 2), (3, 4), (5, 6))
    assert swap_axes(rows, 1, 1) == ((1, 3, 5), (2, 4, 6))
    assert swap_axes(rows, 2, 0) is rows
    assert swap_axes(rows, 0, 2) is rows
    assert swap_axes((1, 2), 1, 1) == (1, 2)
    cube = np.arange(24).reshape(2, 3, 4)
    nested = tuple(tuple(tuple(map(int, row)) for row in plane) for plane in cube)
    for inner in (1, 2):
        order = [*range(3 - inner, 3), *range(3 - inner)]
        assert np.array_equal(np.array(swap_axes(nested, inner, 3 - inner)), cube.transpose(order))


@pytest.mark.parametrize(
    ("numbers", "place"),
    [((1, 2, 3), 3), ((3, 2, 1), 1), ((1, 3, 3), 2), ((2,), 1), ((-1, -3, -1), 1), ((0, 5, 5, 1), 2)],
)
def test_the_first_place_of_a_maximum(numbers, place) -> None:
    exactly = tuple(map(Fraction, numbers))
    assert argmax(exactly) == place
    assert extreme(list(exactly), "max") == max(numbers)
    assert extreme(list(exactly), "min") == min(numbers)


def test_softmax_is_what_it_is() -> None:
    with digits():
        found = softmax((Fraction(1), Fraction(-2), ZERO))
    weights = [math.exp(x) for x in (1, -2, 0)]
    assert [float(x) for x in found] == pytest.approx([weight / sum(weights) for weight in weights])  # pyright: ignore


@pytest.mark.parametrize("count", [20, 60, 480])
def test_constants_have_all_their_digits(count) -> None:
    with digits(count + 20):
        finer = {name: constant_value(name) for name in ("pi", "e")}
    with digits(count):
        for name, value in finer.items():
            assert abs(constant_value(name) - value) < Decimal(10) ** (3 - count)
    assert str(finer["pi"]).startswith("3.14159265358979323846264338327950288")
    assert str(finer["e"]).startswith("2.71828182845904523536028747135266249")
    with pytest.raises(Undefined, match="infinity is no number"):
        constant_value("infinity")


def test_the_arctangent_of_an_inverse() -> None:
    with digits():
        for number in (2, 3, 5, 239):
            assert float(arctangent_of_inverse(number)) == pytest.approx(math.atan(1 / number), rel=1e-15)


MATRICES = [np.array(rows) for rows in ([[2, 1], [1, 3]], [[0, 1], [1, 0]], [[1, 2, 3], [0, 1, 4], [5, 6, 0]], [[7]])]


def nested(array: np.ndarray):
    return tuple(nested(part) for part in array) if array.ndim else Fraction(int(array))


def steps(count: int) -> None:
    assert count > 0


@pytest.mark.parametrize("matrix", MATRICES, ids=str)
def test_matrices_are_what_numpy_says(matrix) -> None:
    size = len(matrix)
    vector = np.arange(1, size + 1)
    exactly = nested(matrix)
    assert matrix_product(exactly, exactly, steps) == nested(matrix @ matrix)
    assert contract(exactly, nested(vector), 1, steps) == nested(matrix @ vector)
    assert contract(nested(vector), nested(vector), 0, steps) == vector @ vector
    assert contract((nested(vector),), nested(vector), 0, steps) == vector @ vector
    assert contract((nested(vector),), exactly, 2, steps) == (nested(vector @ matrix),)
    assert dot_product(nested(vector), nested(vector)) == vector @ vector
    assert determinant(exactly, steps) == round(np.linalg.det(matrix))
    assert matrix_product(matrix_inverse(exactly, steps), exactly, steps) == nested(np.eye(size))
    assert transpose(exactly, 2, 2) == nested(matrix.T)
    for exponent in range(4):
        assert matrix_power(exactly, Fraction(exponent), steps) == nested(np.linalg.matrix_power(matrix, exponent))
    assert matrix_product(matrix_power(exactly, Fraction(-2), steps), nested(matrix @ matrix), steps) == nested(
        np.eye(size)
    )
    assert list(entries(exactly)) == list(matrix.flatten())
    assert axes_of(exactly) == 2


def test_contractions_lose_the_axes_that_they_should() -> None:
    column = ((ONE,), (Fraction(2),))
    assert contract(((ONE, ONE),), column, 0, steps) == 3
    assert contract(((ONE, ONE), (ONE, ZERO)), column, 1, steps) == (3, 1)
    assert contract(((ONE, ONE), (ONE, ZERO)), column, 2, steps) == ((3,), (1,))
    assert axes_of(ONE) == 0
    assert transpose((ONE, ZERO), 1, 2) == ((ONE, ZERO),)
    assert transpose(((ONE, ZERO),), 2, 1) == (ONE, ZERO)
    assert transpose(ONE, 0, 0) == ONE


def test_work_of_products_is_told() -> None:
    told: list[int] = []
    matrix_product(((1, 2, 3), (4, 5, 6)), ((1,), (2,), (3,)), told.append)
    assert told == [2 * 1 * 3]
    told.clear()
    contract(((ONE, ONE), (ONE, ZERO)), (ONE, ONE), 1, told.append)
    assert told == [4]


@pytest.mark.parametrize("exponent", [Fraction(65), Fraction(-65), Fraction(1, 2), Decimal(2)])
def test_powers_of_matrices_that_are_not_computed(exponent) -> None:
    with pytest.raises(Unevaluable, match="no small whole number"):
        matrix_power(((ONE,),), exponent, steps)
    assert matrix_power(((Fraction(2),),), Fraction(64), steps) == ((2**64,),)
    assert matrix_power(((Fraction(2),),), Fraction(-64), steps) == ((Fraction(1, 2**64),),)


def test_what_has_no_inverse() -> None:
    for matrix in (((ONE, ONE), (ONE, ONE)), ((ZERO,),), ((ZERO, ONE), (ZERO, ONE))):
        with pytest.raises(Undefined, match="without an inverse"):
            matrix_inverse(matrix, steps)
        assert determinant(matrix, steps) == 0


def test_slopes_of_an_inverse() -> None:
    found = matrix_inverse(((Dual(1, Fraction(2), ONE),),), steps)
    assert found == ((Dual(1, Fraction(1, 2), Fraction(-1, 4)),),)


def test_products_of_numbers_and_one_array() -> None:
    assert scale_product([Fraction(2), (ONE, Fraction(3)), Fraction(5)]) == (10, 30)
    assert scale_product([Fraction(2), Fraction(3)]) == 6
    assert scale_product([(ONE,)]) == (1,)
    with pytest.raises(Unevaluable, match="two arrays"):
        scale_product([(ONE,), (ONE,)])
    assert componentwise(add, (ONE, (ONE,)), (ONE, (ZERO,))) == (2, (1,))
    assert componentwise(multiply, ONE, Fraction(4)) == 4


def test_entries_that_are_plain_numbers() -> None:
    assert list(plain_entries(((ONE, ZERO), (Decimal(2), ONE)))) == [1, 0, 2, 1]
    for entry in (Polynomial({}), Dual(1, ONE, ONE)):
        with pytest.raises(Unevaluable, match="no plain number"):
            list(plain_entries((ONE, entry)))
