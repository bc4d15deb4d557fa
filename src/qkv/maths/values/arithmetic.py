"""Numbers and arrays for evaluation: exact fractions, and decimals of sixty digits for roots and logarithms.

Two more kinds of scalars: `Polynomial` in independent variables of mean 0 (inside an expectation), and `Dual`, a number
and its derivative. If both occur, a dual number has polynomials inside. Vectors and matrices are nested tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DivisionByZero, InvalidOperation, Overflow, localcontext
from decimal import getcontext as context
from fractions import Fraction
from functools import lru_cache, reduce
from math import ceil, factorial, floor, isqrt
from typing import Any, TypeAlias

DIGITS, FINEST = 60, 1_500
MOST_BITS = 40_000
BITS_PER_UNIT = 1_000
LONGEST_ROOT = 2_000
LARGEST_EXPONENT = 2_000
MOST_TERMS = 6_000
ENTRYWISE = frozenset(["exp", "log", "relu", "abs", "sign", "sqrt", "floor", "ceil", "factorial", "sin", "cos", "tan"])
SPECIAL_LIMIT = 10**40
LARGEST_FACTORIAL = 200

ZERO, ONE, HALF = Fraction(0), Fraction(1), Fraction(1, 2)


class Undefined(ArithmeticError):
    """No value at this point: a division by zero, a logarithm of a nonpositive number, an index out of range."""


class TooNear(Undefined):
    """A number so near to zero that its sign is not known at this precision."""


class Unevaluable(ArithmeticError):
    """Cannot be evaluated at any point."""


class NotPolynomial(ArithmeticError):
    """A random name occurs in something that is not a polynomial."""


@dataclass(frozen=True)
class Polynomial:
    """A sum of coefficients times monomials; a monomial is a sorted tuple of (variable, power)."""

    terms: dict[tuple[tuple[tuple[str, int], int], ...], PlainNumber]


@dataclass(frozen=True)
class Dual:
    """value + slope·ε with ε² = 0; `level` separates the ε of nested derivatives."""

    level: int
    value: Scalar
    slope: Scalar


class Form(str):
    """In place of a variable: exp or the absolute value of a linear form, constant + Σ coefficient · variable."""

    kind: str
    constant: PlainNumber
    slopes: dict[tuple[str, int], PlainNumber]


PlainNumber: TypeAlias = Fraction | Decimal
Scalar: TypeAlias = PlainNumber | Polynomial | Dual


_effort: ContextVar[list[int] | None] = ContextVar("effort", default=None)


@contextmanager
def effort(units: int | None) -> Iterator[None]:
    """Limit the products of numbers inside to `units`, and to what an outer limit has left; None is no limit."""
    outer = _effort.get()
    start = units if units is None or outer is None else min(units, max(outer[0], 0))
    own = None if start is None else [start]
    token = _effort.set(own)
    try:
        yield
    finally:
        _effort.reset(token)
        if outer is not None and own is not None and start is not None:
            outer[0] -= start - own[0]


def spend(units: int = 1) -> None:
    """Count `units` of work; Unevaluable if the limit is exceeded."""
    left = _effort.get()
    if left is not None:
        left[0] -= units
        if left[0] < 0:
            raise Unevaluable("it takes too much work to try")


@contextmanager
def digits(count: int = DIGITS) -> Iterator[None]:
    """Compute decimals to `count` digits inside; overflow and invalid operations raise."""
    traps = [InvalidOperation, DivisionByZero, Overflow]
    with localcontext(Context(prec=count, Emax=min(MAX_EMAX, 10**9), Emin=max(MIN_EMIN, -(10**9)), traps=traps)):
        yield


_extent: ContextVar[list[int] | None] = ContextVar("extent", default=None)


@contextmanager
def extent() -> Iterator[list[int]]:
    """A list of one number: the largest |exponent| of a decimal computed inside."""
    token = _extent.set(met := [0])
    try:
        yield met
    finally:
        _extent.reset(token)


def note_extent(number: Decimal) -> Decimal:
    met = _extent.get()
    if met is not None and number:
        met[0] = max(met[0], abs(number.adjusted()))
    return number


def not_zero(number: Decimal) -> Decimal:
    """A power or an exponential; Unevaluable if it is too small to be told from zero."""
    if not number:
        raise Unevaluable("a number that is too close to zero")
    return number


def decimal(number: PlainNumber) -> Decimal:
    if isinstance(number, Decimal):
        return number
    return note_extent(Decimal(number.numerator) / Decimal(number.denominator))


def fraction(number: PlainNumber) -> Fraction:
    """A number as a fraction; Undefined if its exponent is too large."""
    if isinstance(number, Decimal) and number and abs(number.adjusted()) > LARGEST_EXPONENT:
        raise Undefined("a number that is too large or too small")
    return Fraction(number)


def narrow(number: Fraction) -> PlainNumber:
    """Round a fraction that has too many bits to a decimal."""
    bits = number.numerator.bit_length() + number.denominator.bit_length()
    spend(1 + bits // BITS_PER_UNIT)
    return decimal(number) if bits > MOST_BITS else number


def as_polynomial(number: Scalar) -> Polynomial:
    if isinstance(number, Polynomial):
        return number
    assert not isinstance(number, Dual)
    return Polynomial({(): number} if number else {})


def plain_number(number: Scalar) -> PlainNumber | None:
    """The plain number of a scalar: of a constant polynomial its value, None for other polynomials and duals."""
    if isinstance(number, Polynomial):
        return number.terms.get((), ZERO) if not number.terms or list(number.terms) == [()] else None
    return None if isinstance(number, Dual) else number


def as_duals(a: Scalar, b: Scalar) -> tuple[int, Dual, Dual]:
    """Two numbers, at least one dual, as duals of the higher level."""
    level = max(x.level for x in (a, b) if isinstance(x, Dual))
    first, second = (x if isinstance(x, Dual) and x.level == level else Dual(level, x, ZERO) for x in (a, b))
    return level, first, second


def add(a: Scalar, b: Scalar) -> Scalar:
    spend()
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a + b
    if isinstance(a, Dual) or isinstance(b, Dual):
        level, x, y = as_duals(a, b)
        return Dual(level, add(x.value, y.value), add(x.slope, y.slope))
    if isinstance(a, Polynomial) or isinstance(b, Polynomial):
        terms = dict(as_polynomial(a).terms)
        for monomial, coefficient in as_polynomial(b).terms.items():
            total = _plus(terms.pop(monomial, ZERO), coefficient)
            if total:
                terms[monomial] = total
        return Polynomial(terms)
    return decimal(a) + decimal(b)


def _plus(a: PlainNumber, b: PlainNumber) -> PlainNumber:
    return a + b if isinstance(a, Fraction) and isinstance(b, Fraction) else decimal(a) + decimal(b)


def _times(a: PlainNumber, b: PlainNumber) -> PlainNumber:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return narrow(a * b)
    spend(2)
    return ZERO if not a or not b else decimal(a) * decimal(b)


def multiply(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, Dual) or isinstance(b, Dual):
        spend(4)
        level, x, y = as_duals(a, b)
        return Dual(level, multiply(x.value, y.value), add(multiply(x.value, y.slope), multiply(x.slope, y.value)))
    if isinstance(a, Polynomial) or isinstance(b, Polynomial):
        left, right = as_polynomial(a).terms, as_polynomial(b).terms
        if len(left) * len(right) > MOST_TERMS:
            raise Unevaluable("the expectation has too many terms")
        spend(2 * len(left) * len(right))
        terms: dict[tuple[tuple[tuple[str, int], int], ...], PlainNumber] = {}
        for first, c in left.items():
            for second, k in right.items():
                powers = dict(first)
                for variable, power in second:
                    powers[variable] = powers.get(variable, 0) + power
                monomial = tuple(sorted(powers.items()))
                terms[monomial] = _plus(terms.get(monomial, ZERO), _times(c, k))
        return Polynomial({monomial: c for monomial, c in terms.items() if c})
    return _times(a, b)


def linear_form(kind: str, x: Polynomial) -> Polynomial:
    """exp or the absolute value of a polynomial of degree 1, as a variable; NotPolynomial for others."""
    slopes = {monomial[0][0]: c for monomial, c in x.terms.items() if monomial}
    degree = max(sum(order for _, order in monomial) for monomial in x.terms)
    if degree > 1 or any(isinstance(name, Form) for name, _ in slopes):
        raise NotPolynomial
    form = Form(f"{kind} {sorted(x.terms.items(), key=repr)}")
    form.kind, form.constant, form.slopes = kind, x.terms.get((), ZERO), slopes
    return Polynomial({(((form, 0), 1),): ONE})


def negative(a: Scalar) -> Scalar:
    return multiply(Fraction(-1), a)


def subtract(a: Scalar, b: Scalar) -> Scalar:
    return add(a, negative(b))


def divide(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(b, Dual) or isinstance(a, Dual):
        level, x, y = as_duals(a, b)
        value = divide(x.value, y.value)
        return Dual(level, value, divide(subtract(x.slope, multiply(value, y.slope)), y.value))
    bottom = plain_number(b)
    if bottom is None:
        raise NotPolynomial
    if not bottom:
        raise Undefined("division by zero")
    if isinstance(a, Fraction) and isinstance(bottom, Fraction):
        return narrow(a / bottom)
    if isinstance(a, (Fraction, Decimal)):
        spend(2)
        return note_extent(decimal(a) / decimal(bottom)) if a else ZERO  # rounded once: x/x is exactly 1
    return multiply(a, ONE / bottom if isinstance(bottom, Fraction) else Decimal(1) / bottom)


def is_vanishing(number: PlainNumber) -> bool:
    """Whether a decimal is so small that it may be zero up to rounding."""
    return isinstance(number, Decimal) and bool(number) and abs(number) < Decimal(10) ** (10 - context().prec)


def sign(number: Scalar) -> int:
    """-1, 0 or 1; of a dual number by its value."""
    if isinstance(number, Dual):
        return sign(number.value)
    plain = plain_number(number)
    if plain is None:
        raise NotPolynomial
    if is_vanishing(plain):
        raise TooNear("too near to zero to have a sign")
    return (plain > 0) - (plain < 0)


def whole_root(number: int, degree: int) -> int | None:
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
    """base to the power exponent; exact for whole exponents and roots of perfect powers; x^0 is 1."""
    if isinstance(exponent, Dual):
        return function("exp", multiply(exponent, function("log", base)))
    by = plain_number(exponent)
    if by is None:
        raise NotPolynomial
    if isinstance(base, Dual):
        slope = multiply(multiply(by, power(base.value, subtract(by, ONE))), base.slope) if by else ZERO
        return Dual(base.level, power(base.value, by), slope)
    known = plain_number(base)
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


def _number_power(base: PlainNumber, exponent: PlainNumber) -> PlainNumber:
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
            top, bottom = whole_root(abs(base.numerator), degree), whole_root(base.denominator, degree)
            if top is not None and bottom is not None:
                exact = Fraction(top if base > 0 else -top, bottom)
                if (top.bit_length() + bottom.bit_length()) * abs(whole) <= MOST_BITS:
                    return exact**whole
                return note_extent(not_zero(decimal(exact) ** whole))
        if degree == 1:
            return note_extent(not_zero(decimal(base) ** whole))
        if degree == 2 and abs(whole) < 64:
            return note_extent(not_zero(decimal(base).sqrt() ** whole))
    if base < 0:
        raise Undefined("a root of a negative number")
    return note_extent(not_zero((decimal(exponent) * decimal(base).ln()).exp()))


def function(name: str, x: Scalar) -> Scalar:
    """exp, log, sqrt, abs, relu or sign of a number."""
    if name == "sqrt":
        return power(x, HALF)
    if isinstance(x, Polynomial) and plain_number(x) is None:
        if name == "relu":
            return multiply(HALF, add(x, linear_form("abs", x)))
        if name in ("exp", "abs"):
            return linear_form(name, x)
    if name in ("floor", "ceil", "factorial"):
        return step_function(name, x)
    if name in ("abs", "relu", "sign"):
        side = sign(x)
        if isinstance(x, Dual) and side == 0 and name != "sign":
            raise Undefined("no derivative at zero")
        if name == "sign":
            return Fraction(side)
        return multiply(Fraction(side if name == "abs" else max(side, 0)), x)
    if isinstance(x, Dual):
        value = function(name, x.value)
        if name in ("sin", "cos", "tan"):
            return Dual(x.level, value, multiply(trigonometric_slope(name, x.value, value), x.slope))
        return Dual(x.level, value, multiply(value, x.slope) if name == "exp" else divide(x.slope, x.value))
    number = plain_number(x)
    if number is None:
        raise NotPolynomial
    spend(10)
    if name == "exp":
        spend((context().prec // DIGITS) ** 2 * 10 - 10)
        return note_extent(not_zero(decimal(number).exp())) if number else ONE
    if name == "log":
        if number <= 0:
            raise Undefined("a logarithm of what is not positive")
        return decimal(number).ln() if number != 1 else ZERO
    if name in ("sin", "cos", "tan"):
        found = special(name, number) if number else Fraction(name == "cos")
        if name == "tan" and found and decimal(found).adjusted() > context().prec - 10:
            raise Undefined("a tangent where the cosine is zero")
        return ZERO if abs(number) > 1 and is_vanishing(found) else found  # at a multiple of π/2
    raise Unevaluable(f"{name} has no value here")


@lru_cache(maxsize=4096)
def _special(name: str, x: str, count: int) -> Decimal:
    import mpmath

    with mpmath.workdps(count + 20 + len(x.split("e")[0])):
        return Decimal(str(mpmath.nstr(getattr(mpmath, name)(mpmath.mpf(x)), count + 10)))


def special(name: str, x: PlainNumber) -> Decimal:
    """A function of mpmath, rounded to the digits of the context; of a number below 10⁴⁰, to keep the period."""
    if abs(x) > SPECIAL_LIMIT:
        raise Undefined("a number that is too large")
    return +_special(name, str(decimal(x)).lower(), context().prec)


def trigonometric_slope(name: str, x: Scalar, value: Scalar) -> Scalar:
    if name == "tan":
        return add(ONE, multiply(value, value))
    return function("cos", x) if name == "sin" else negative(function("sin", x))


def step_function(name: str, x: Scalar) -> Fraction:
    """floor, ceil, or the factorial of a small natural; a step has no derivative, between two steps it is 0."""
    number = plain_number(x.value if isinstance(x, Dual) else x)
    if number is None:
        raise NotPolynomial
    near = round(fraction(number))
    if is_vanishing(number - near):
        raise TooNear("too near to a whole number to be rounded")
    if isinstance(x, Dual) and (number == near or name == "factorial"):
        raise Undefined("no derivative of a step")
    if name != "factorial":
        return Fraction(floor(number) if name == "floor" else ceil(number))
    if number < 0 or number != near:
        raise Undefined("a factorial of what is not natural")
    if number > LARGEST_FACTORIAL:
        raise Unevaluable("a factorial that is too large")
    return Fraction(factorial(near))


def maximum(a: Scalar, b: Scalar) -> Scalar:
    apart = subtract(a, b)
    if isinstance(apart, Polynomial) and plain_number(apart) is None:
        return multiply(HALF, add(add(a, b), linear_form("abs", apart)))
    if isinstance(apart, Dual) and sign(apart) == 0 and apart.slope:
        raise Undefined("no derivative where two are equal")
    return a if sign(apart) >= 0 else b


def componentwise(change: Callable[..., Scalar], *arrays: Any) -> Any:
    """`change` applied to the entries at equal positions."""
    if not isinstance(arrays[0], tuple):
        return change(*arrays)
    return tuple(componentwise(change, *parts) for parts in zip(*arrays, strict=True))


def entries(array: Any) -> Iterator[Scalar]:
    """The numbers of nested tuples, row by row.

    >>> list(entries(((1, 2), (3, 4))))
    [1, 2, 3, 4]
    """
    if isinstance(array, tuple):
        for part in array:
            yield from entries(part)
    else:
        yield array


def plain_entries(array: Any) -> Iterator[PlainNumber]:
    """`entries` that are plain numbers; Unevaluable for a polynomial or a dual number."""
    for entry in entries(array):
        if isinstance(entry, Polynomial | Dual):
            raise Unevaluable("a value that is not a plain number")
        yield entry


def dot_product(left: tuple[Scalar, ...], right: tuple[Scalar, ...]) -> Scalar:
    total: Scalar = ZERO
    for a, b in zip(left, right, strict=True):
        total = add(total, multiply(a, b))
    return total


def matrix_product(left: Any, right: Any, count: Callable[[int], None]) -> Any:
    """The product of two matrices; calls `count` with the number of multiplications."""
    columns = tuple(zip(*right, strict=True))
    count(len(left) * len(columns) * len(right))
    return tuple(tuple(dot_product(row, column) for column in columns) for row in left)


def contract(left: Any, right: Any, dimensions: int, count: Callable[[int], None]) -> Any:
    """Matrix times matrix, matrix times vector, or row times vector, with `dimensions` axes."""
    count(len(left) * len(right))
    result: Any
    if not isinstance(left[0], tuple):
        result = dot_product(left, right)
    elif isinstance(right[0], tuple):
        result = matrix_product(left, right, count)
    else:
        result = tuple(dot_product(row, right) for row in left)
    while dimensions < axes_of(result):
        result = result[0] if len(result) == 1 else tuple(part[0] for part in result)
    return result


def axes_of(array: Any) -> int:
    return 1 + axes_of(array[0]) if isinstance(array, tuple) else 0


def transpose(array: Any, before: int, after: int) -> Any:
    if before == 1:
        return (array,)
    if before == 2 and after == 1:
        return array[0]
    return tuple(zip(*array, strict=True)) if before == 2 else array


def eliminate(matrix: Any, extra: Any, count: Callable[[int], None]) -> tuple[list[list[Scalar]], Scalar]:
    """Gauss-Jordan elimination on the rows of `matrix` extended by those of `extra`; also the determinant."""
    size = len(matrix)
    rows = [list(left) + list(right) for left, right in zip(matrix, extra, strict=True)]
    determinant: Scalar = ONE
    for place in range(size):
        pivot = next((i for i in range(place, size) if sign(rows[i][place])), None)
        if pivot is None:
            return rows, ZERO
        if pivot != place:
            rows[place], rows[pivot] = rows[pivot], rows[place]
            determinant = negative(determinant)
        top = rows[place][place]
        determinant = multiply(determinant, top)
        rows[place] = [divide(entry, top) for entry in rows[place]]
        for i in range(size):
            if i != place:
                factor = rows[i][place]
                count(size)
                rows[i] = [subtract(a, multiply(factor, b)) for a, b in zip(rows[i], rows[place], strict=True)]
    return rows, determinant


def matrix_inverse(matrix: Any, count: Callable[[int], None]) -> Any:
    size = len(matrix)
    identity = [[ONE if i == j else ZERO for j in range(size)] for i in range(size)]
    rows, scale = eliminate(matrix, identity, count)
    if not isinstance(scale, type(ONE)) or scale:
        return tuple(tuple(row[size:]) for row in rows)
    raise Undefined("a matrix without an inverse")


def determinant(matrix: Any, count: Callable[[int], None]) -> Scalar:
    return eliminate(matrix, [[] for _ in matrix], count)[1]


def matrix_power(base: Any, exponent: Any, count: Callable[[int], None]) -> Any:
    """A square matrix to a whole power."""
    if not isinstance(exponent, Fraction) or exponent.denominator != 1 or abs(exponent) > 64:
        raise Unevaluable("a matrix to a power that is not a small whole number")
    if exponent < 0:
        base = matrix_inverse(base, count)
    result = tuple(tuple(Fraction(i == j) for j in range(len(base))) for i in range(len(base)))
    for _ in range(abs(int(exponent))):
        result = matrix_product(result, base, count)
    return result


def scale_product(factors: list[Any]) -> Any:
    """The product of scalars and at most one array."""
    number: Scalar = ONE
    array = None
    for factor in factors:
        if not isinstance(factor, tuple):
            number = multiply(number, factor)
        elif array is None:
            array = factor
        else:
            raise Unevaluable("a product of two arrays")
    return number if array is None else componentwise(lambda x: multiply(number, x), array)


def as_exact(value: Any) -> Any:
    """Numbers as Fractions, sequences as tuples; decimals and functions as they are."""
    if isinstance(value, (int, str)):
        return Fraction(value)
    return tuple(map(as_exact, value)) if isinstance(value, (tuple, list)) else value


def relative_difference(a: Scalar, b: Scalar) -> Decimal:
    """The relative difference of two numbers."""
    if isinstance(a, Dual | Polynomial) or isinstance(b, Dual | Polynomial):
        raise Unevaluable("a derivative of an expectation that is not a polynomial")
    x, y = decimal(a), decimal(b)
    return abs(x - y) / max(abs(x), abs(y)) if x != y else Decimal(0)


def seed_dual(array: Any, path: tuple[int, ...], level: int) -> Any:
    if not path:
        return Dual(level, array, ONE)
    return tuple(seed_dual(part, path[1:], level) if i == path[0] else part for i, part in enumerate(array))


def swap_axes(array: Any, inner: int, outer: int) -> Any:
    """Nested tuples with the `inner` axes moved before the `outer` ones."""

    def pick(array: Any, place: int, levels: int) -> Any:
        return tuple(pick(part, place, levels - 1) for part in array) if levels else array[place]

    if not outer or not inner or axes_of(array) != inner + outer:
        return array
    first = reduce(lambda part, _: part[0], range(outer), array)
    parts = [pick(array, i, outer) for i in range(len(first))]
    return tuple(swap_axes(part, inner - 1, outer) for part in parts)


HOLDS = {"<": (-1,), "<=": (-1, 0), "≤": (-1, 0), ">": (1,), ">=": (0, 1), "≥": (0, 1), "=": (0,), "==": (0,)}


def holds(relation: str, a: Any, b: Any) -> bool:
    return sign(subtract(a, b)) in HOLDS.get(relation, (-1, 1))


def softmax(x: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    weights = [function("exp", entry) for entry in x]
    whole_weight: Scalar = ZERO
    for weight in weights:
        whole_weight = add(whole_weight, weight)
    return tuple(divide(weight, whole_weight) for weight in weights)


def argmax(x: tuple[Scalar, ...]) -> Fraction:
    best = 0
    for place in range(1, len(x)):
        if sign(subtract(x[place], x[best])) > 0:
            best = place
    return Fraction(best + 1)


def extreme(numbers: list[Scalar], which: str) -> Scalar:
    best = numbers[0]
    for number in numbers[1:]:
        best = maximum(best, number) if which == "max" else negative(maximum(negative(best), negative(number)))
    return best


def constant_value(name: str) -> Decimal:
    if name == "e":
        return Decimal(1).exp()
    if name == "pi":
        # Machin: π = 16 arctan(1/5) − 4 arctan(1/239)
        return 16 * arctangent_of_inverse(5, context().prec) - 4 * arctangent_of_inverse(239, context().prec)
    raise Undefined("infinity is not a number")


@lru_cache(maxsize=64)
def arctangent_of_inverse(whole: int, precision: int) -> Decimal:
    terms = range(precision + 10)
    return sum(((-1) ** k * Decimal(whole) ** (-2 * k - 1) / (2 * k + 1) for k in terms), Decimal(0))
