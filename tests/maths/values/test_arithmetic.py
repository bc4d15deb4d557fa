"""Scalars of every kind, and arrays and functions against Python and numpy."""

from __future__ import annotations

import math
import operator
from decimal import Decimal, DivisionByZero, InvalidOperation, Overflow
from fractions import Fraction

import numpy as np
import pytest

from qkv.maths.values import arithmetic
from qkv.maths.values.arithmetic import (
    HALF,
    ONE,
    ZERO,
    Dual,
    NotPolynomial,
    Polynomial,
    TooNear,
    Undefined,
    Unevaluable,
    add,
    arctangent_of_inverse,
    argmax,
    as_duals,
    as_exact,
    as_polynomial,
    axes_of,
    componentwise,
    constant_value,
    contract,
    decimal,
    determinant,
    digits,
    divide,
    dot_product,
    entries,
    extent,
    extreme,
    fraction,
    function,
    holds,
    is_vanishing,
    matrix_inverse,
    matrix_power,
    matrix_product,
    maximum,
    multiply,
    narrow,
    negative,
    plain_entries,
    plain_number,
    power,
    relative_difference,
    scale_product,
    seed_dual,
    sign,
    softmax,
    subtract,
    swap_axes,
    transpose,
    whole_root,
)

A, B = ("q", 0), ("q", 1)


X, Y = Polynomial({((A, 1),): ONE}), Polynomial({((B, 1),): ONE})


TWO, THREE = Fraction(2), Fraction(3)


@pytest.fixture(autouse=True)
def sixty_digits():
    with digits():
        yield


def test_polynomials_are_added_and_multiplied() -> None:
    assert add(X, X) == Polynomial({((A, 1),): TWO})
    assert add(X, ONE) == Polynomial({((A, 1),): ONE, (): ONE})
    assert add(ONE, X) == add(X, ONE)
    assert subtract(X, X) == Polynomial({})
    assert multiply(X, X) == Polynomial({((A, 2),): ONE})
    assert multiply(X, Y) == multiply(Y, X) == Polynomial({((A, 1), (B, 1)): ONE})
    assert multiply(add(X, Y), subtract(X, Y)) == Polynomial({((A, 2),): ONE, ((B, 2),): -ONE})
    assert multiply(X, ZERO) == Polynomial({})
    assert multiply(THREE, X) == Polynomial({((A, 1),): THREE})
    assert negative(X) == Polynomial({((A, 1),): -ONE})
    assert divide(X, TWO) == Polynomial({((A, 1),): HALF})
    assert divide(X, Decimal(4)) == Polynomial({((A, 1),): Decimal("0.25")})
    assert power(add(X, ONE), TWO) == Polynomial({((A, 2),): ONE, ((A, 1),): TWO, (): ONE})
    assert power(X, ZERO) == ONE
    assert as_polynomial(X) is X
    assert as_polynomial(ZERO) == Polynomial({})
    assert as_polynomial(TWO) == Polynomial({(): TWO})


def test_what_is_no_polynomial() -> None:
    for fault in (
        lambda: divide(ONE, X),
        lambda: power(X, HALF),
        lambda: power(X, -ONE),
        lambda: power(X, Decimal(2)),
        lambda: power(TWO, X),
        lambda: sign(X),
        lambda: function("exp", multiply(X, X)),
        lambda: function("abs", multiply(X, X)),
        lambda: function("abs", function("exp", X)),
        lambda: function("sin", X),
    ):
        with pytest.raises(NotPolynomial):
            fault()
    with pytest.raises(Unevaluable, match="too high an order"):
        power(X, Fraction(13))
    assert power(X, Fraction(12)) == Polynomial({((A, 12),): ONE})


def test_how_many_terms_a_product_may_have(monkeypatch) -> None:
    monkeypatch.setattr(arithmetic, "MOST_TERMS", 4)
    assert len(multiply(add(X, Y), add(X, ONE)).terms) == 4  # pyright: ignore
    with pytest.raises(Unevaluable, match="too many terms"):
        multiply(add(X, Y), add(add(X, Y), ONE))


def test_the_number_that_a_polynomial_is() -> None:
    assert plain_number(Polynomial({})) == 0
    assert plain_number(Polynomial({(): THREE})) == 3
    assert plain_number(X) is None
    assert plain_number(add(X, ONE)) is None
    assert plain_number(TWO) == 2
    assert plain_number(Dual(1, ONE, ONE)) is None


def dual(value: Fraction | int, slope: Fraction | int = 1, level: int = 1) -> Dual:
    return Dual(level, Fraction(value), Fraction(slope))


@pytest.mark.parametrize(
    ("found", "value", "slope"),
    [
        (lambda: add(dual(3), TWO), 5, 1),
        (lambda: add(TWO, dual(3)), 5, 1),
        (lambda: add(dual(3), dual(3)), 6, 2),
        (lambda: subtract(TWO, dual(3)), -1, -1),
        (lambda: multiply(dual(3), dual(3)), 9, 6),
        (lambda: multiply(TWO, dual(3)), 6, 2),
        (lambda: multiply(dual(3, 2), dual(5, 7)), 15, 31),
        (lambda: divide(ONE, dual(2)), Fraction(1, 2), Fraction(-1, 4)),
        (lambda: divide(dual(3), TWO), Fraction(3, 2), Fraction(1, 2)),
        (lambda: divide(dual(3, 2), dual(5, 7)), Fraction(3, 5), Fraction(-11, 25)),
        (lambda: power(dual(3), TWO), 9, 6),
        (lambda: power(dual(3), Fraction(5)), 243, 405),
        (lambda: power(dual(4), HALF), 2, Fraction(1, 4)),
        (lambda: power(dual(2), -ONE), Fraction(1, 2), Fraction(-1, 4)),
        (lambda: power(dual(3), ZERO), 1, 0),
        (lambda: power(dual(0), ONE), 0, 1),
        (lambda: function("abs", dual(-3)), 3, -1),
        (lambda: function("abs", dual(3)), 3, 1),
        (lambda: function("relu", dual(3)), 3, 1),
        (lambda: function("relu", dual(-3)), 0, 0),
        (lambda: function("sqrt", dual(9)), 3, Fraction(1, 6)),
        (lambda: function("exp", dual(0)), 1, 1),
        (lambda: function("log", dual(1)), 0, 1),
        (lambda: maximum(dual(3), TWO), 3, 1),
        (lambda: maximum(ONE, dual(3)), 3, 1),
        (lambda: maximum(dual(3), dual(3)), 3, 1),
    ],
)
def test_slopes(found, value, slope) -> None:
    assert found() == Dual(1, Fraction(value), Fraction(slope))


def test_slopes_of_functions_that_are_irrational() -> None:
    exponential, logarithm = function("exp", dual(2, 3)), function("log", dual(2, 3))
    with digits():
        e = Decimal(2).exp()
        assert isinstance(exponential, Dual)
        assert exponential.value == e
        assert exponential.slope == e * 3
        assert isinstance(logarithm, Dual)
        assert logarithm.slope == Fraction(3, 2)
        grown = power(TWO, dual(3))  # 2^x has the slope 2^x log 2
        assert isinstance(grown, Dual)
        assert abs(grown.slope - 8 * Decimal(2).ln()) < Decimal("1e-50")  # pyright: ignore
        both = power(dual(3), dual(2))  # x^y with slopes 1 each: y x^(y-1) + x^y log x
        assert isinstance(both, Dual)
        assert abs(both.slope - (6 + 9 * Decimal(3).ln())) < Decimal("1e-50")  # pyright: ignore


def test_slopes_of_slopes_are_kept_apart() -> None:
    inner, outer = dual(3, 1, 2), dual(3, 1, 1)
    level, first, second = as_duals(inner, outer)
    assert (level, first, second) == (2, inner, Dual(2, outer, ZERO))
    assert as_duals(ONE, outer) == (1, Dual(1, ONE, ZERO), outer)
    twice = multiply(Dual(2, outer, ONE), Dual(2, outer, ONE))  # x² at 3 + ε₁ + ε₂
    assert isinstance(twice, Dual)
    assert twice.level == 2
    assert twice.slope == dual(6, 2, 1)


def test_what_has_no_slope() -> None:
    for name in ("abs", "relu"):
        with pytest.raises(Undefined, match="no derivative at zero"):
            function(name, dual(0))
    assert function("sign", dual(0)) == 0
    assert function("sign", dual(-4)) == -1


@pytest.mark.parametrize(
    ("name", "x", "value"),
    [
        ("abs", -3, 3),
        ("abs", 3, 3),
        ("abs", 0, 0),
        ("relu", -3, 0),
        ("relu", 3, 3),
        ("sign", -3, -1),
        ("sign", 0, 0),
        ("sign", 5, 1),
        ("sqrt", 49, 7),
        ("exp", 0, 1),
        ("log", 1, 0),
    ],
)
def test_functions_of_numbers(name, x, value) -> None:
    found = function(name, Fraction(x))
    assert found == value
    assert isinstance(found, Fraction)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda: divide(ONE, ZERO), "division by zero"),
        (lambda: divide(X, ZERO), "division by zero"),
        (lambda: power(ZERO, -ONE), "zero to a power that is not positive"),
        (lambda: power(-ONE, HALF), "a root of a negative number"),
        (lambda: power(Decimal(-2), Decimal("0.3")), "a root of a negative number"),
        (lambda: function("log", ZERO), "a logarithm of what is not positive"),
        (lambda: function("log", -ONE), "a logarithm of what is not positive"),
        (lambda: fraction(Decimal("1e2001")), "too large or too small"),
        (lambda: fraction(Decimal("1e-2001")), "too large or too small"),
    ],
)
def test_what_has_no_value(fault, said) -> None:
    with pytest.raises(Undefined, match=said):
        fault()


def test_functions_that_are_not_known() -> None:
    with pytest.raises(Unevaluable, match="tanh has no value here"):
        function("tanh", ONE)


@pytest.mark.parametrize(
    ("base", "exponent", "value"),
    [
        (2, 10, 1024),
        (2, -2, "1/4"),
        (-2, 3, -8),
        (-2, 2, 4),
        (-8, "1/3", -2),
        (-8, "2/3", 4),
        ("-1/8", "1/3", "-1/2"),
        ("-8/27", "-1/3", "-3/2"),
        (0, 3, 0),
        (0, 0, 1),
        (7, 0, 1),
        ("9/4", "1/2", "3/2"),
        ("9/4", "-3/2", "8/27"),
        (2**63, "1/63", 2),
        (1, "1/63", 1),
        (5, 1, 5),
    ],
)
def test_powers_that_are_exact(base, exponent, value) -> None:
    found = power(Fraction(base), Fraction(exponent))
    assert found == Fraction(value)
    assert isinstance(found, Fraction)


@pytest.mark.parametrize(
    ("base", "exponent"), [("2", "0.5"), ("2", "1.5"), ("3", "-0.5"), ("2.5", "0.3"), ("10", "0.125"), ("7", "2.25")]
)
def test_powers_that_are_not(base, exponent) -> None:
    found = power(Fraction(base), Fraction(exponent))
    assert isinstance(found, Decimal)
    wanted = (Decimal(exponent) * Decimal(base).ln()).exp()
    assert abs(found - wanted) < Decimal("1e-56")


def test_large_powers_and_roots_of_high_degree_are_decimal() -> None:
    assert power(TWO, Fraction(13_000)) == 2**13_000
    assert isinstance(power(TWO, Fraction(39_000)), Decimal)
    assert isinstance(power(TWO, Fraction(13_000)), Fraction)
    assert isinstance(power(Fraction(2**63), Fraction(1, 63)), Fraction)
    high = power(Fraction(2**64), Fraction(1, 64))
    assert isinstance(high, Decimal)
    assert abs(high - 2) < Decimal("1e-55")
    assert power(Decimal(3), TWO) == 9
    assert power(Decimal(4), Fraction(3, 2)) == 8
    assert power(Decimal(4), Fraction(-3, 2)) == Decimal("0.125")


def test_whole_roots() -> None:
    for degree in range(1, 8):
        for number in range(200):
            wanted = next((base for base in range(number + 1) if base**degree == number), None)
            assert whole_root(number, degree) == wanted, (number, degree)
    assert whole_root(3**600, 600) == 3
    assert whole_root(2**1999, 1999) == 2
    assert whole_root(2**2002, 1001) is None  # too long to look for
    assert whole_root(10**1000, 2) == 10**500


def test_signs() -> None:
    assert [sign(Fraction(x)) for x in (-3, 0, 2)] == [-1, 0, 1]
    assert sign(Polynomial({})) == 0
    assert sign(dual(-2)) == -1
    assert sign(Decimal("1e-50")) == 1
    assert sign(Decimal("-1e-50")) == -1
    assert sign(Fraction(1, 10**80)) == 1
    with pytest.raises(TooNear):
        sign(Decimal("9e-51"))
    with digits(100):
        assert sign(Decimal("1e-90")) == 1
        with pytest.raises(TooNear):
            sign(Decimal("-9e-91"))
    assert [is_vanishing(x) for x in (Decimal(0), Decimal("1e-55"), Decimal(1), ZERO)] == [False, True, False, False]


def test_what_grows_too_long_is_rounded() -> None:
    exact = Fraction(1, 2**39_990)
    assert narrow(exact) is exact
    rounded = narrow(Fraction(1, 2**40_000))
    assert isinstance(rounded, Decimal)
    assert multiply(Decimal(2), ZERO) == 0
    assert isinstance(multiply(Decimal(2), ZERO), Fraction)
    assert multiply(Decimal(2), THREE) == 6
    assert add(Decimal(2), HALF) == Decimal("2.5")
    assert divide(ONE, Decimal(4)) == Decimal("0.25")
    assert divide(Decimal(1), Fraction(4)) == Decimal("0.25")
    assert decimal(Fraction(1, 8)) == Decimal("0.125")
    assert fraction(Decimal("0.125")) == Fraction(1, 8)
    assert fraction(Decimal("1e2000")) == 10**2000


def test_the_extent_of_decimals_that_were_met() -> None:
    with extent() as met:
        assert met == [0]
        function("exp", Fraction(-100))
        assert met == [44]
        function("exp", Fraction(10))
        assert met == [44]
        with extent() as inside:
            function("exp", Fraction(1000))
        assert inside == [434]
        assert met == [44]
        arithmetic.note_extent(Decimal(0))
        assert met == [44]


@pytest.mark.parametrize(
    ("work", "units"),
    [
        (lambda: add(ONE, ONE), 1),
        (lambda: multiply(TWO, THREE), 1),
        (lambda: multiply(Decimal(2), THREE), 2),
        (lambda: multiply(Fraction(2**999), Fraction(2**999)), 3),
        (lambda: multiply(Fraction(2**998), Fraction(2**999)), 2),
        (lambda: multiply(X, X), 2 + 1),
        (lambda: power(TWO, THREE), 4),
        (lambda: function("log", TWO), 10),
        (lambda: function("exp", TWO), 10),
    ],
)
def test_work_is_counted(work, units) -> None:
    with arithmetic.effort(units):
        work()
    with arithmetic.effort(units - 1), pytest.raises(Unevaluable, match="too much work"):
        work()


def test_more_digits_are_more_work() -> None:
    with digits(480):
        with arithmetic.effort(640):
            function("exp", TWO)
        with arithmetic.effort(639), pytest.raises(Unevaluable, match="too much work"):
            function("exp", TWO)


def test_decimals_reach_far() -> None:
    assert function("exp", Fraction(-(10**7))) > 0  # pyright: ignore
    assert function("exp", Fraction(10**7)) > Decimal("1e4342944")  # pyright: ignore
    with pytest.raises(Overflow):
        function("exp", Fraction(10**10))
    with pytest.raises(InvalidOperation):
        Decimal(0) / Decimal(0)
    with pytest.raises(DivisionByZero):
        Decimal(1) / Decimal(0)


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
            with pytest.raises(Unevaluable, match="not a polynomial"):
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
    with pytest.raises(Undefined, match="infinity is not a number"):
        constant_value("infinity")


def test_the_arctangent_of_an_inverse() -> None:
    with digits():
        for number in (2, 3, 5, 239):
            assert float(arctangent_of_inverse(number, 60)) == pytest.approx(math.atan(1 / number), rel=1e-15)


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
    with pytest.raises(Unevaluable, match="not a small whole number"):
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
        with pytest.raises(Unevaluable, match="not a plain number"):
            list(plain_entries((ONE, entry)))
