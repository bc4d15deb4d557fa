"""Numbers that evaluation is done in: exact fractions first, sixty digits where a root or a logarithm needs them.

Above them two kinds of numbers that carry more: `Polynomial` in independent variables of mean 0 (inside an
expectation) and `Dual`, a number and its derivative. Where they meet, a dual number has polynomials inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DivisionByZero, InvalidOperation, Overflow, localcontext
from decimal import getcontext as context
from fractions import Fraction
from math import isqrt
from typing import TypeAlias

DIGITS, FINEST = 60, 1_500
BITS = 40_000
LONG = 1_000
LONGEST_ROOT = 2_000
LARGEST = 2_000
TERMS = 6_000

ZERO, ONE, HALF = Fraction(0), Fraction(1), Fraction(1, 2)


class Undefined(ArithmeticError):
    """No value at this point: a division by zero, a logarithm of what is not positive, an index out of range."""


class TooNear(Undefined):
    """A number so near to zero that at these digits it has no sign."""


class Unevaluable(ArithmeticError):
    """There is no way to a value, at this point or another."""


class NotPolynomial(ArithmeticError):
    """Something random went into what is no polynomial."""


@dataclass(frozen=True)
class Polynomial:
    """A sum of coefficients times monomials; a monomial is a sorted tuple of (variable, power)."""

    terms: dict[tuple[tuple[tuple[str, int], int], ...], Number]


@dataclass(frozen=True)
class Dual:
    """value + slope·ε with ε² = 0; `level` tells the ε of one derivative from that of another around it."""

    level: int
    value: Scalar
    slope: Scalar


Number: TypeAlias = Fraction | Decimal
Scalar: TypeAlias = Number | Polynomial | Dual


_effort: ContextVar[list[int] | None] = ContextVar("effort", default=None)


@contextmanager
def effort(units: int | None) -> Iterator[None]:
    """At most so many products of numbers inside, and no more than are left outside; None is as many as it takes."""
    outer = _effort.get()
    start = units if units is None or outer is None else min(units, max(outer[0], 0))
    mine = None if start is None else [start]
    token = _effort.set(mine)
    try:
        yield
    finally:
        _effort.reset(token)
        if outer is not None and mine is not None and start is not None:
            outer[0] -= start - mine[0]


def spend(units: int = 1) -> None:
    """Take from the effort that is left, if it is counted; Unevaluable where there is none."""
    left = _effort.get()
    if left is not None:
        left[0] -= units
        if left[0] < 0:
            raise Unevaluable("it takes too much work to try")


@contextmanager
def digits(count: int = DIGITS) -> Iterator[None]:
    """Decimals are computed to `count` digits inside, and what overflows or has no value is an error."""
    traps = [InvalidOperation, DivisionByZero, Overflow]
    with localcontext(Context(prec=count, Emax=min(MAX_EMAX, 10**9), Emin=max(MIN_EMIN, -(10**9)), traps=traps)):
        yield


_extent: ContextVar[list[int] | None] = ContextVar("extent", default=None)


@contextmanager
def extent() -> Iterator[list[int]]:
    """A list of one number: how many digits lie between 1 and the largest or smallest decimal that was met inside."""
    token = _extent.set(met := [0])
    try:
        yield met
    finally:
        _extent.reset(token)


def meet(number: Decimal) -> Decimal:
    met = _extent.get()
    if met is not None and number:
        met[0] = max(met[0], abs(number.adjusted()))
    return number


def decimal(number: Number) -> Decimal:
    if isinstance(number, Decimal):
        return number
    return meet(Decimal(number.numerator) / Decimal(number.denominator))


def fraction(number: Number) -> Fraction:
    """The fraction that a number is to the digits that it has; Undefined where that would be too long to write."""
    if isinstance(number, Decimal) and number and abs(number.adjusted()) > LARGEST:
        raise Undefined("a number that is too large or too small")
    return Fraction(number)


def narrow(number: Fraction) -> Number:
    """A fraction that has grown too long to go on with exactly is rounded."""
    bits = number.numerator.bit_length() + number.denominator.bit_length()
    spend(1 + bits // LONG)
    return decimal(number) if bits > BITS else number


def lifted(number: Scalar) -> Polynomial:
    if isinstance(number, Polynomial):
        return number
    assert not isinstance(number, Dual)
    return Polynomial({(): number} if number else {})


def constant(number: Scalar) -> Number | None:
    """The number that a polynomial without variables is, None for others."""
    if isinstance(number, Polynomial):
        return number.terms.get((), ZERO) if not number.terms or list(number.terms) == [()] else None
    return None if isinstance(number, Dual) else number


def levels(a: Scalar, b: Scalar) -> tuple[int, Dual, Dual]:
    """Two numbers, one of them dual, as duals of the outer level of the two."""
    level = max(x.level for x in (a, b) if isinstance(x, Dual))
    first, second = (x if isinstance(x, Dual) and x.level == level else Dual(level, x, ZERO) for x in (a, b))
    return level, first, second


def add(a: Scalar, b: Scalar) -> Scalar:
    spend()
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a + b
    if isinstance(a, Dual) or isinstance(b, Dual):
        level, x, y = levels(a, b)
        return Dual(level, add(x.value, y.value), add(x.slope, y.slope))
    if isinstance(a, Polynomial) or isinstance(b, Polynomial):
        terms = dict(lifted(a).terms)
        for monomial, coefficient in lifted(b).terms.items():
            total = _plus(terms.pop(monomial, ZERO), coefficient)
            if total:
                terms[monomial] = total
        return Polynomial(terms)
    return decimal(a) + decimal(b)


def _plus(a: Number, b: Number) -> Number:
    return a + b if isinstance(a, Fraction) and isinstance(b, Fraction) else decimal(a) + decimal(b)


def _times(a: Number, b: Number) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return narrow(a * b)
    spend(2)
    return ZERO if not a or not b else decimal(a) * decimal(b)


def multiply(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, Dual) or isinstance(b, Dual):
        spend(4)
        level, x, y = levels(a, b)
        return Dual(level, multiply(x.value, y.value), add(multiply(x.value, y.slope), multiply(x.slope, y.value)))
    if isinstance(a, Polynomial) or isinstance(b, Polynomial):
        left, right = lifted(a).terms, lifted(b).terms
        if len(left) * len(right) > TERMS:
            raise Unevaluable("the expectation has too many terms")
        spend(2 * len(left) * len(right))
        terms: dict[tuple[tuple[tuple[str, int], int], ...], Number] = {}
        for first, c in left.items():
            for second, k in right.items():
                powers = dict(first)
                for variable, power in second:
                    powers[variable] = powers.get(variable, 0) + power
                monomial = tuple(sorted(powers.items()))
                terms[monomial] = _plus(terms.get(monomial, ZERO), _times(c, k))
        return Polynomial({monomial: c for monomial, c in terms.items() if c})
    return _times(a, b)


def negative(a: Scalar) -> Scalar:
    return multiply(Fraction(-1), a)


def subtract(a: Scalar, b: Scalar) -> Scalar:
    return add(a, negative(b))


def divide(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(b, Dual) or isinstance(a, Dual):
        level, x, y = levels(a, b)
        value = divide(x.value, y.value)
        return Dual(level, value, divide(subtract(x.slope, multiply(value, y.slope)), y.value))
    bottom = constant(b)
    if bottom is None:
        raise NotPolynomial
    if not bottom:
        raise Undefined("division by zero")
    if isinstance(a, Fraction) and isinstance(bottom, Fraction):
        return narrow(a / bottom)
    return multiply(a, ONE / bottom if isinstance(bottom, Fraction) else Decimal(1) / bottom)


def vanishing(number: Number) -> bool:
    """Whether a decimal is so small that it may be what rounding left of zero."""
    return isinstance(number, Decimal) and bool(number) and abs(number) < Decimal(10) ** (10 - context().prec)


def sign(number: Scalar) -> int:
    """-1, 0 or 1; of a dual number by its value."""
    if isinstance(number, Dual):
        return sign(number.value)
    plain = constant(number)
    if plain is None:
        raise NotPolynomial
    if vanishing(plain):
        raise TooNear("too near to zero to have a sign")
    return (plain > 0) - (plain < 0)


def root(number: int, degree: int) -> int | None:
    """The whole `degree`-th root of a whole number >= 0, None where there is none."""
    if number < 2 or degree == 1:
        return number
    if degree == 2:
        square = isqrt(number)
        return square if square * square == number else None
    if number.bit_length() > LONGEST_ROOT:
        return None
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= number else (low, middle - 1)
    return low if low**degree == number else None


def power(base: Scalar, exponent: Scalar) -> Scalar:
    """base to exponent, exact for whole exponents and for roots of perfect powers; x^0 is 1."""
    if isinstance(exponent, Dual):
        return function("exp", multiply(exponent, function("log", base)))
    by = constant(exponent)
    if by is None:
        raise NotPolynomial
    if isinstance(base, Dual):
        slope = multiply(multiply(by, power(base.value, subtract(by, ONE))), base.slope) if by else ZERO
        return Dual(base.level, power(base.value, by), slope)
    known = constant(base)
    if known is not None:
        return _number_power(known, by)
    if not isinstance(by, Fraction) or by.denominator != 1 or by < 0:
        raise NotPolynomial
    if by > 12:
        raise Unevaluable("the expectation has too high an order")
    result: Scalar = ONE
    for _ in range(int(by)):
        result = multiply(result, base)
    return result


def _number_power(base: Number, exponent: Number) -> Number:
    spend(4)
    if not exponent:
        return ONE
    if not base:
        if exponent > 0:
            return ZERO
        raise Undefined("zero to a power that is not positive")
    if isinstance(exponent, Fraction):
        degree, whole = exponent.denominator, exponent.numerator
        if base < 0 and degree > 1:
            if degree % 2 == 0:
                raise Undefined("a root of a negative number")
            turned = _number_power(-base, exponent)
            return -turned if whole % 2 else turned
        if isinstance(base, Fraction) and degree < 64:
            top, bottom = root(abs(base.numerator), degree), root(base.denominator, degree)
            if top is not None and bottom is not None:
                exact = Fraction(top if base > 0 else -top, bottom)
                if (top.bit_length() + bottom.bit_length()) * abs(whole) <= BITS:
                    return exact**whole
                return meet(decimal(exact) ** whole)
        if degree == 1:
            return meet(decimal(base) ** whole)
        if degree == 2 and abs(whole) < 64:
            return meet(decimal(base).sqrt() ** whole)
    if base < 0:
        raise Undefined("a root of a negative number")
    return meet((decimal(exponent) * decimal(base).ln()).exp())


def function(name: str, x: Scalar) -> Scalar:
    """exp, log, sqrt, abs, relu or sign of a number."""
    if name == "sqrt":
        return power(x, HALF)
    if name in ("abs", "relu", "sign"):
        side = sign(x)
        if isinstance(x, Dual) and side == 0 and name != "sign":
            raise Undefined("no derivative at zero")
        if name == "sign":
            return Fraction(side)
        return multiply(Fraction(side if name == "abs" else max(side, 0)), x)
    if isinstance(x, Dual):
        value = function(name, x.value)
        return Dual(x.level, value, multiply(value, x.slope) if name == "exp" else divide(x.slope, x.value))
    number = constant(x)
    if number is None:
        raise NotPolynomial
    spend(10)
    if name == "exp":
        spend((context().prec // DIGITS) ** 2 * 10 - 10)
        return meet(decimal(number).exp()) if number else ONE
    if name == "log":
        if number <= 0:
            raise Undefined("a logarithm of what is not positive")
        return decimal(number).ln() if number != 1 else ZERO
    raise Unevaluable(f"{name} has no value here")


def larger(a: Scalar, b: Scalar) -> Scalar:
    return a if sign(subtract(a, b)) >= 0 else b
