"""Exact arithmetic on arrays: fractions where numbers stay rational, decimals of sixty digits for roots and
exponentials, floats for arrays that are too large for either; and the same numbers as one would type them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from ..maths.values import arithmetic as arith

Array: TypeAlias = Any  # a NumPy array of objects (fractions and decimals) or of floats

DIGITS = 5  # significant digits of what is rounded at the end
SHOWN = 12  # significant digits of decimals inside a derivation
MOST_EXACT = 4_000  # entries of an exact array
MOST_PRODUCTS = 60_000  # products of numbers in an exact matrix product
MOST_WRITTEN_OUT = 100  # entries of an array inside a derivation
NOISE = Decimal("1e-50")  # how far sums are exact
TINY = Decimal("1e-300")  # what is smaller is written as 0
MOST_TYPED = 3_000  # entries that are typed one by one

precise = arith.digits()  # a decorator: compute decimals to sixty digits inside


def array(nested: Any) -> Array:
    """Nested numbers as an array; whole numbers become fractions, and all become floats where one is."""
    found = nested if isinstance(nested, np.ndarray) else np.array(nested, dtype=object)
    if found.dtype.kind == "f" or any(isinstance(each, float) for each in found.flat):
        return floats(found)
    return each(lambda entry: Fraction(int(entry)) if isinstance(entry, int | np.bool_ | np.integer) else entry, found)


def filled(numbers: Iterable[Any], shape: tuple[int, ...]) -> Array:
    """An exact array of numbers in their order."""
    found = np.empty(math.prod(shape), dtype=object)
    for place, number in enumerate(numbers):
        found[place] = number
    return found.reshape(shape)


def each(function: Callable[[Any], Any], values: Array) -> Array:
    """A function of every entry."""
    return filled(map(function, values.flat), values.shape)


def is_float(values: Array) -> bool:
    return values.dtype != object


def is_rational(values: Array) -> bool:
    return not is_float(values) and all(isinstance(entry, Fraction) for entry in values.flat)


def floats(values: Array) -> Array:
    return np.asarray(values, dtype=float)


def _entrywise(exact: Callable[..., Any], rough: Callable[..., Array]) -> Callable[[Any, Any], Array]:
    exactly = np.frompyfunc(exact, 2, 1)

    def apply(left: Any, right: Any) -> Array:
        first, second = array(left), array(right)
        if is_float(first) or is_float(second):
            return rough(floats(first), floats(second))
        return np.asarray(exactly(first, second), dtype=object)

    return apply


def _add(left: Any, right: Any) -> Any:
    """The sum; what is left of decimals that cancel is noise."""
    found = arith.add(left, right)
    cancelled = isinstance(found, Decimal) and abs(found) < abs(arith.decimal(left)) * NOISE
    return Fraction(0) if cancelled else found


plus = _entrywise(_add, np.add)
minus = _entrywise(lambda left, right: _add(left, arith.negative(right)), np.subtract)
product = _entrywise(arith.multiply, np.multiply)
over = _entrywise(arith.divide, np.divide)
power = _entrywise(arith.power, np.power)


def function(name: str, values: Array) -> Array:
    """exp, log, sqrt, sin, cos or relu of every entry."""
    if is_float(values):
        return np.maximum(values, 0) if name == "relu" else getattr(np, name)(values)
    return each(lambda entry: arith.function(name, entry), values)


def total(values: Array, axes: tuple[int, ...] = (-1,), *, keepdims: bool = True) -> Array:
    """The sum over axes."""
    if is_float(values):
        return values.sum(axis=axes, keepdims=keepdims)
    for axis in sorted((axis % values.ndim for axis in axes), reverse=True):
        values = np.asarray(np.frompyfunc(_add, 2, 1).reduce(values, axis=axis, keepdims=keepdims), dtype=object)
    return values


def transposed(values: Array) -> Array:
    return np.swapaxes(values, -1, -2)


def times(left: Array, right: Array) -> Array:
    """The product of matrices over the last two axes; exact unless it takes too long.

    >>> nested(times(array([[1, 2]]), array([[3], [4]])))
    ((11,),)
    """
    leading = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    work = math.prod(leading) * left.shape[-2] * left.shape[-1] * right.shape[-1]
    if is_float(left) or is_float(right) or work > MOST_PRODUCTS:
        return floats(left) @ floats(right)
    return total(product(left[..., :, :, None], right[..., None, :, :]), (-2,), keepdims=False)


@dataclass(frozen=True)
class Scale:
    """What a dot product is multiplied by: `factor` over the square root of `under`."""

    factor: Any = Fraction(1)
    under: int = 1

    @classmethod
    def by_root(cls, width: int) -> Scale:
        """One over the square root of a width, exact where the root is whole."""
        root = math.isqrt(width)
        return cls(Fraction(1, root)) if root * root == width else cls(Fraction(1), width)

    @property
    def plain(self) -> bool:
        return self.factor == 1 and self.under == 1

    def apply(self, products: Array) -> Array:
        root = arith.function("sqrt", Fraction(self.under))
        return products if self.plain else product(products, over(self.factor, root))

    def text(self, dot: Any, number: Callable[[Any], str] | None = None) -> str:
        r"""A scaled dot product as one would type it.

        >>> Scale.by_root(4).text(Fraction(6)), Scale.by_root(3).text(Fraction(6))
        ('3', '6/\\sqrt{3}')
        """
        scaled = arith.multiply(dot, self.factor)
        value = (number or typed)(scaled)
        if self.under == 1 or value == "0":
            return value
        if number is None and not (isinstance(scaled, Fraction) and _exactly(scaled)):
            return typed(self.apply(array(dot))[()])  # over the root, a rounded number would pass for an exact one
        return rf"({value})/\sqrt{{{self.under}}}" if "/" in value else rf"{value}/\sqrt{{{self.under}}}"


def softmax(scores: Array, allowed: Array = True) -> Array:
    """The weights of scores over the last axis; a row with nothing to attend to gets zeros, equal scores fractions.

    >>> nested(softmax(array([2, 2, 2])))
    (Fraction(1, 3), Fraction(1, 3), Fraction(1, 3))
    """
    kept = masked(scores, allowed, scores.min())
    below = minus(kept, kept.max(-1, keepdims=True))
    if is_float(scores):
        return shares(masked(np.exp(below), allowed))
    powers = each(lambda entry: arith.decimal(entry).exp() if entry else Fraction(1), below)
    weights = shares(masked(powers, allowed))
    # Scores such as log 2 have rational weights; those of different rational scores never are.
    return weights if is_rational(kept) else each(recognised, weights)


def recognised(value: Any) -> Any:
    """The simple fraction that a decimal is to fifty digits, or the decimal."""
    near = Fraction(value).limit_denominator(10_000)
    return near if near and abs(Fraction(value) / near - 1) < Fraction(1, 10**50) else value


def shares(similarities: Array) -> Array:
    """Each similarity over the sum of its row; where that sum is 0 the weights are 0."""
    below = total(similarities)
    return over(similarities, masked(below, np.asarray(below != 0, dtype=bool), Fraction(1)))


def masked(values: Array, allowed: Array, otherwise: Any = Fraction(0)) -> Array:
    """The values where `allowed`, and another number elsewhere."""
    return np.where(allowed, values, float(otherwise) if is_float(values) else otherwise)


def hardest(scores: Array, allowed: Array) -> Array:
    """All weight on the largest allowed score, the first among equals."""
    best = masked(scores, allowed, -math.inf).argmax(-1)[..., None]
    return array((np.arange(scores.shape[-1]) == best) & allowed)


def nested(values: Array) -> Any:
    """An array as nested tuples: whole numbers, fractions, and floats for what is not rational."""
    if np.ndim(values):
        return tuple(map(nested, values))
    value = np.asarray(values)[()]
    if not isinstance(value, Fraction):
        return float(value)
    return int(value) if value.denominator == 1 else value


def typed(value: Any, digits: int | None = None) -> str:
    """A number as one would type it: exactly where that is short; `digits` rounds whatever is not whole.

    >>> typed(Fraction(1, 3)), typed(Fraction(37, 1000)), typed(Fraction(1, 3), 2), typed(Decimal("0.123456"))
    ('1/3', '0.037', '0.33', '0.12346')
    """
    exactly = _exactly(value, digits) if isinstance(value, Fraction) else ""
    return exactly or rounded(value, digits or DIGITS)


def _exactly(value: Fraction, digits: int | None = None) -> str:
    """A fraction in full where that is short: as a decimal where it ends and looks better (3/10, but not 3/16)."""
    if value.denominator == 1:
        return str(value)
    found = arith.decimal(value)
    ends = Fraction(found) == value and len(found.as_tuple().digits) <= (digits or 8)
    if ends and (digits or value.denominator % 10 == 0 or value.denominator > 100):
        return f"{found:f}"
    return str(value) if digits is None and value.denominator <= 1000 else ""


def shown(value: Any) -> str:
    """A number inside a derivation: a fraction in full, a decimal to twelve digits."""
    return _exactly(value) or str(value) if isinstance(value, Fraction) else rounded(value, SHOWN)


def rounded(value: Any, digits: int = DIGITS, *, whole: bool = True) -> str:
    """A number to so many significant digits, as one would type it.

    >>> rounded(Decimal("-7.940656")), rounded(Decimal("6.8973e-13"), 3), rounded(Decimal(0)), rounded(Decimal(4))
    ('-7.9407', '6.90*10^{-13}', '0', '4')
    """
    value = arith.decimal(value) if isinstance(value, Fraction) else Decimal(value)
    if abs(value) < TINY:
        return "0"
    with localcontext(Context(prec=arith.DIGITS - 8)):
        value = +value  # without the noise of the last digits
        if whole and value == value.to_integral_value() and abs(value) < 10**digits:
            return str(int(value))
        kept = Context(digits).plus(value)
        kept = kept.quantize(Decimal(1).scaleb(kept.adjusted() - digits + 1))
        if -5 <= kept.adjusted() < digits - 1:
            return f"{kept:f}"
        return f"{kept.scaleb(-kept.adjusted()):f}*10^{{{kept.adjusted()}}}"


def written(values: Array, digits: int | None = None, number: Callable[[Any], str] | None = None) -> str:
    """An array as one would type it: "3", "(1, 2)", "[[1, 0], [0, 1]]".

    >>> written(array([1, 2])), written(array([[1, 0]])), written(array([5]))
    ('(1, 2)', '[[1, 0]]', '5')
    """
    if values.size > MOST_TYPED:
        values, number = floats(values), lambda entry: f"{entry:.{digits or DIGITS}g}"

    def lists(part: Any) -> str:
        if np.ndim(part):
            return f"[{', '.join(map(lists, part))}]"
        return number(part) if number else typed(part, digits)

    text = lists(values if values.ndim else values[()])
    if values.ndim != 1 or not values.size:
        return text
    return f"({text[1:-1]})" if len(values) > 1 else text[1:-1]


def expression(values: Array) -> str:
    """An array inside a derivation, with its numbers in full; an ellipsis for one that is too large to be shown."""
    text = written(values, number=shown) if values.size <= MOST_WRITTEN_OUT else "…"
    return f"({text})" if values.size == 1 and text[0] != "[" and ("/" in text or text[0] == "-") else text


def result(values: Array) -> str:
    """An array at the end of a derivation: a decimal has all its digits, for a whole one may be rounded."""
    return written(
        values, number=lambda entry: typed(entry) if isinstance(entry, Fraction) else rounded(entry, whole=False)
    )
