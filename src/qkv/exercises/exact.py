"""Exact arithmetic on arrays: fractions where numbers stay rational, decimals of sixty digits for roots and
exponentials, floats for arrays that are too large for either; and the same numbers as one would type them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

from ..maths.values import arithmetic as arith

Number: TypeAlias = Fraction | Decimal | float
Array: TypeAlias = Any  # a NumPy array of objects (fractions and decimals) or of floats
P = ParamSpec("P")
R = TypeVar("R")

DIGITS = 5  # significant digits of what is rounded at the end
SHOWN = 12  # significant digits of decimals inside a derivation
MOST_EXACT = 4_000  # entries of an exact array
MOST_PRODUCTS = 60_000  # products of numbers in an exact matrix product
MOST_WRITTEN_OUT = 100  # entries of an array inside a derivation
NOISE = Decimal("1e-50")  # how far sums are exact
TINY = Decimal("1e-300")  # what is smaller is written as 0
MOST_TYPED = 3_000  # entries that are typed one by one


def precise(function: Callable[P, R]) -> Callable[P, R]:
    """Compute decimals to sixty digits inside."""

    @wraps(function)
    def inside(*args: P.args, **options: P.kwargs) -> R:
        with arith.digits():
            return function(*args, **options)

    return inside


def array(nested: Any) -> Array:
    """Nested numbers as an array; whole numbers become fractions, and all become floats where one is."""
    if isinstance(nested, np.ndarray | np.floating):
        return np.asarray(nested)
    flat = np.array(nested, dtype=object)
    if any(isinstance(each, float) for each in flat.flat):
        return floats(flat)
    return filled((Fraction(each) if isinstance(each, int) else each for each in flat.flat), flat.shape)


def filled(numbers: Iterable[Any], shape: tuple[int, ...]) -> Array:
    """An exact array of numbers in their order."""
    found = np.empty(math.prod(shape), dtype=object)
    for place, number in enumerate(numbers):
        found[place] = number
    return found.reshape(shape)


def is_float(values: Array) -> bool:
    return values.dtype != object


def is_rational(values: Array) -> bool:
    return not is_float(values) and all(isinstance(each, Fraction) for each in values.flat)


def floats(values: Array) -> Array:
    return values if is_float(values) else np.array([float(each) for each in values.flat]).reshape(values.shape)


def _entrywise(
    exact: Callable[..., Any], rough: Callable[[Array, Array], Array]
) -> Callable[[Array | Number, Array | Number], Array]:
    each = np.frompyfunc(exact, 2, 1)

    def apply(left: Array | Number, right: Array | Number) -> Array:
        first, second = array(left), array(right)
        if is_float(first) or is_float(second):
            return rough(floats(first), floats(second))
        return np.asarray(each(first, second), dtype=object)

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
    return filled((arith.function(name, each) for each in values.flat), values.shape)


def sigmoid(values: Array) -> Array:
    return over(Fraction(1), plus(Fraction(1), function("exp", minus(Fraction(0), values))))


def total(values: Array, axes: tuple[int, ...] | int = -1, *, keepdims: bool = True) -> Array:
    """The sum over axes."""
    if is_float(values):
        return values.sum(axis=axes, keepdims=keepdims)
    add = np.frompyfunc(_add, 2, 1)
    for axis in sorted({axis % values.ndim for axis in ((axes,) if isinstance(axes, int) else axes)}, reverse=True):
        values = np.asarray(add.reduce(values, axis=axis, keepdims=keepdims), dtype=object)
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
    return total(product(left[..., :, :, None], right[..., None, :, :]), -2, keepdims=False)


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
        factor = (
            self.factor if self.under == 1 else arith.divide(self.factor, arith.function("sqrt", Fraction(self.under)))
        )
        return products if self.plain else product(products, factor)

    def text(self, dot: Any, number: Callable[[Any], str] | None = None) -> str:
        r"""A scaled dot product as one would type it.

        >>> Scale.by_root(4).text(Fraction(6)), Scale.by_root(3).text(Fraction(6))
        ('3', '6/\\sqrt{3}')
        """
        scaled = arith.multiply(dot, self.factor)
        value = (number or typed)(scaled)
        if self.under == 1 or value == "0":
            return value
        if number is None and not (isinstance(scaled, Fraction) and _is_short(scaled)):
            return typed(self.apply(array(dot))[()])  # over the root, a rounded number would pass for an exact one
        return rf"({value})/\sqrt{{{self.under}}}" if "/" in value else rf"{value}/\sqrt{{{self.under}}}"


def softmax(scores: Array, allowed: Array | None = None) -> Array:
    """The weights of scores over the last axis; a row with nothing to attend to gets zeros, equal scores fractions.

    >>> nested(softmax(array([2, 2, 2])))
    (Fraction(1, 3), Fraction(1, 3), Fraction(1, 3))
    """
    allowed = np.broadcast_to(True if allowed is None else allowed, scores.shape)
    if is_float(scores):
        kept = np.where(allowed, scores, -np.inf)
        largest = kept.max(-1, keepdims=True)
        powers = np.where(allowed, np.exp(kept - np.where(np.isfinite(largest), largest, 0)), 0.0)
        below = powers.sum(-1, keepdims=True)
        return powers / np.where(below > 0, below, 1)
    return _by_rows(_softmax, scores, allowed)


def _by_rows(row: Callable[[list[Any], list[bool]], list[Any]], values: Array, allowed: Array) -> Array:
    found = np.empty(values.shape, dtype=object)
    for place in np.ndindex(values.shape[:-1]):
        found[place] = row(list(values[place]), list(allowed[place]))
    return found


def _softmax(row: list[Any], allowed: list[bool]) -> list[Any]:
    kept = [score for score, may in zip(row, allowed, strict=True) if may]
    if all(score == kept[0] for score in kept):
        return [Fraction(int(may), max(len(kept), 1)) for may in allowed]
    largest = max(kept)
    powers = [arith.decimal(arith.subtract(each, largest)).exp() for each in kept]  # pyright: ignore[reportArgumentType]
    below = sum(powers, Decimal(0))
    shares = iter([power / below for power in powers])
    weights = [next(shares) if may else Fraction(0) for may in allowed]
    # Scores such as log 2 have rational weights; those of different rational scores never are.
    return weights if all(isinstance(each, Fraction) for each in kept) else [recognised(each) for each in weights]


def recognised(value: Any) -> Any:
    """The simple fraction that a decimal is to fifty digits, or the decimal."""
    near = Fraction(value).limit_denominator(10_000)
    return near if near and abs(Fraction(value) / near - 1) < Fraction(1, 10**50) else value


def logsumexp(scores: Array) -> Array:
    """log of the sum of exponentials over the last axis, which is kept."""
    largest = scores.max(-1, keepdims=True)
    return plus(largest, function("log", total(function("exp", minus(scores, largest)))))


def shares(similarities: Array) -> Array:
    """Each similarity over the sum of its row; where that sum is 0 the weights are 0."""
    below = total(similarities)
    return over(similarities, masked(below, np.asarray(below != 0, dtype=bool), Fraction(1)))


def masked(values: Array, allowed: Array, otherwise: Fraction = Fraction(0)) -> Array:
    """The values where `allowed`, and another number elsewhere."""
    allowed = np.broadcast_to(allowed, values.shape)
    if is_float(values):
        return np.where(allowed, values, float(otherwise))
    return filled((v if may else otherwise for v, may in zip(values.flat, allowed.flat, strict=True)), values.shape)


def hardest(scores: Array, allowed: Array) -> Array:
    """All weight on the largest allowed score, the first among equals."""

    def row(values: list[Any], may: list[bool]) -> list[Any]:
        places = [place for place, seen in enumerate(may) if seen]
        best = max(places, key=lambda place: values[place], default=None)
        return [Fraction(int(place == best)) for place in range(len(values))]

    return _by_rows(row, scores, np.broadcast_to(allowed, scores.shape))


def nested(values: Array) -> Any:
    """An array as nested tuples: whole numbers, fractions, and floats for what is not rational."""
    if is_float(values):
        return _tuples(values.tolist())
    return _tuples(filled(map(_simple, values.flat), values.shape).tolist())


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _simple(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    return int(value) if value.denominator == 1 else value


def typed(value: Any, digits: int | None = None) -> str:
    """A number as one would type it: exactly where that is short; `digits` rounds whatever is not whole.

    >>> typed(Fraction(1, 3)), typed(Fraction(37, 1000)), typed(Fraction(1, 3), 2), typed(Decimal("0.123456"))
    ('1/3', '0.037', '0.33', '0.12346')
    """
    if not isinstance(value, Fraction):
        return rounded(Decimal(value), digits or DIGITS)
    if value.denominator == 1:
        return str(value)
    text = _terminating(value)
    if text and len(text.strip("-0.")) <= (digits or 8) + 1 and (digits or _decimal_style(value)):
        return text
    short = digits is None and value.denominator <= 1000
    return str(value) if short else rounded(arith.decimal(value), digits or DIGITS)


def _is_short(value: Fraction) -> bool:
    """Whether a fraction is typed exactly."""
    return value.denominator <= 1000 or (bool(text := _terminating(value)) and len(text.strip("-0.")) <= 9)


def shown(value: Any) -> str:
    """A number inside a derivation: a fraction in full, a decimal to twelve digits."""
    if not isinstance(value, Fraction):
        return rounded(Decimal(value), SHOWN)
    text = _terminating(value) if _decimal_style(value) else ""
    return text if text and len(text) < SHOWN else str(value)


def _decimal_style(value: Fraction) -> bool:
    """Whether a fraction looks better as a decimal: 3/10, but not 3/16."""
    return value.denominator % 10 == 0 or value.denominator > 100


def _terminating(value: Fraction) -> str:
    """A fraction as a decimal that ends, or nothing."""
    found = arith.decimal(value)
    return f"{found:f}" if Fraction(found) == value and len(found.as_tuple().digits) <= SHOWN else ""


def rounded(value: Decimal, digits: int = DIGITS, *, whole: bool = True) -> str:
    """A number to so many significant digits, as one would type it.

    >>> rounded(Decimal("-7.940656")), rounded(Decimal("6.8973e-13"), 3), rounded(Decimal(0)), rounded(Decimal(4))
    ('-7.9407', '6.90*10^{-13}', '0', '4')
    """
    if abs(value := Decimal(value)) < TINY:
        return "0"
    with localcontext(Context(prec=arith.DIGITS - 8)):
        value = +value  # without the noise of the last digits
        if whole and value == value.to_integral_value() and abs(value) < 10**digits:
            return str(int(value))
        kept = Context(digits).plus(value)
        kept = kept.quantize(Decimal(1).scaleb(kept.adjusted() - digits + 1))
        places = digits - 1 - kept.adjusted()
        if -5 <= kept.adjusted() < digits + 3 and places > 0:
            return f"{kept:f}"
        return f"{kept.scaleb(-kept.adjusted()):f}*10^{{{kept.adjusted()}}}"


def written(values: Array, digits: int | None = None, number: Callable[[Any], str] | None = None) -> str:
    """An array as one would type it: "3", "(1, 2)", "[[1, 0], [0, 1]]".

    >>> written(array([1, 2])), written(array([[1, 0]])), written(array([5]))
    ('(1, 2)', '[[1, 0]]', '5')
    """
    if values.size > MOST_TYPED:
        texts = [f"{each:.{digits or DIGITS}g}" for each in floats(values).flat]
    else:
        texts = [(number or (lambda each: typed(each, digits)))(each) for each in values.flat]
    if values.ndim == 1 and len(texts) > 1:
        return f"({', '.join(texts)})"
    if values.ndim <= 1 and texts:
        return texts[0]

    def lists(part: Sequence[str], shape: tuple[int, ...]) -> str:
        if not shape:
            return part[0]
        step = len(part) // shape[0] if shape[0] else 0
        return f"[{', '.join(lists(part[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0]))}]"

    return lists(texts, values.shape)


def expression(values: Array) -> str:
    """An array inside a derivation, with its numbers in full; an ellipsis for one that is too large to be shown."""
    text = written(values, number=shown) if values.size <= MOST_WRITTEN_OUT else "…"
    return f"({text})" if values.size == 1 and text[0] != "[" and ("/" in text or text[0] == "-") else text


def result(values: Array) -> str:
    """An array at the end of a derivation: a decimal has all its digits, for a whole one may be rounded."""
    return written(
        values, number=lambda each: typed(each) if isinstance(each, Fraction) else rounded(each, whole=False)
    )
