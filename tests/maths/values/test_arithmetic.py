"""Numbers of every kind: exact, decimal, polynomials in random variables, and numbers with a slope."""

from __future__ import annotations

from decimal import Decimal, DivisionByZero, InvalidOperation, Overflow
from fractions import Fraction

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
    as_duals,
    as_polynomial,
    decimal,
    digits,
    divide,
    extent,
    fraction,
    function,
    is_vanishing,
    maximum,
    multiply,
    narrow,
    negative,
    plain_number,
    power,
    sign,
    subtract,
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
        lambda: function("exp", X),
        lambda: function("abs", X),
    ):
        with pytest.raises(NotPolynomial):
            fault()
    with pytest.raises(Unevaluable, match="too high an order"):
        power(X, Fraction(13))
    assert power(X, Fraction(12)) == Polynomial({((A, 12),): ONE})


def test_how_many_terms_a_product_may_have(monkeypatch) -> None:
    monkeypatch.setattr(arithmetic, "TERMS", 4)
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
        (lambda: maximum(dual(3), THREE), 3, 1),
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
