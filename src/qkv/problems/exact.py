"""Exact arithmetic by hand: matrices of fractions, scores with a root, softmax to as many digits as are asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction

Vector = tuple[Fraction, ...]
Matrix = tuple[Vector, ...]

DIGITS = 5  # significant digits of what is rounded at the end
_WORKING = 60  # digits that softmax works with


def exact(rows: Sequence[Sequence[Fraction | int]]) -> Matrix:
    """Rows of numbers as a matrix of fractions."""
    return tuple(tuple(Fraction(entry) for entry in row) for row in rows)


def transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


def dot(left: Vector, right: Vector) -> Fraction:
    (first,), below = _whole((left,))
    (second,), under = _whole((right,))
    return Fraction(sum(a * b for a, b in zip(first, second, strict=True)), below * under)


def times(left: Matrix, right: Matrix) -> Matrix:
    """The product of two matrices.

    >>> times(exact([[1, 2]]), exact([[3], [4]]))
    ((Fraction(11, 1),),)
    """
    rows, below = _whole(left)
    columns, under = _whole(transposed(right))
    return tuple(
        tuple(Fraction(sum(a * b for a, b in zip(row, column, strict=True)), below * under) for column in columns)
        for row in rows
    )


def _whole(rows: Matrix) -> tuple[list[list[int]], int]:
    """Whole numbers over one denominator: adding fractions one by one is slow."""
    below = math.lcm(*(entry.denominator for row in rows for entry in row))
    return [[entry.numerator * (below // entry.denominator) for entry in row] for row in rows], below


@dataclass(frozen=True)
class Scale:
    """What a dot product is multiplied by: `factor` over the square root of `under`."""

    factor: Fraction = Fraction(1)
    under: int = 1

    @classmethod
    def by_root(cls, width: int) -> Scale:
        """One over the square root of a width, exact where the root is whole."""
        root = math.isqrt(width)
        return cls(Fraction(1, root)) if root * root == width else cls(Fraction(1), width)

    @property
    def plain(self) -> bool:
        return self.factor == 1 and self.under == 1

    def text(self, product: Fraction) -> str:
        """A scaled dot product as one would type it.

        >>> Scale.by_root(4).text(Fraction(6)), Scale.by_root(3).text(Fraction(6))
        ('3', '6/\\\\sqrt{3}')
        """
        value = number(product * self.factor)
        return value if self.under == 1 or value == "0" else rf"{value}/\sqrt{{{self.under}}}"

    def value(self, product: Fraction) -> Decimal:
        with localcontext(Context(prec=_WORKING)):
            return decimal(product * self.factor) / Decimal(self.under).sqrt()


def decimal(value: Fraction) -> Decimal:
    with localcontext(Context(prec=_WORKING)):
        return Decimal(value.numerator) / Decimal(value.denominator)


def softmax(scores: Sequence[Decimal]) -> tuple[Decimal, ...]:
    """The weights of scores, to about fifty digits.

    >>> [str(weight)[:7] for weight in softmax([Decimal(2), Decimal(8), Decimal(-20)])]
    ['0.00247', '0.99752', '6.89730']
    """
    largest = max(scores)
    with localcontext(Context(prec=_WORKING, Emin=-999999, Emax=999999)):
        powers = [(score - largest).exp() for score in scores]
        total = sum(powers, Decimal(0))
        return tuple(power / total for power in powers)


def mixed(weights: Sequence[Decimal], rows: Matrix) -> tuple[Decimal, ...]:
    """The weighted sum of rows."""
    with localcontext(Context(prec=_WORKING)):
        return tuple(
            sum((weight * decimal(entry) for weight, entry in zip(weights, column, strict=True)), Decimal(0))
            for column in transposed(rows)
        )


def number(value: Fraction | int) -> str:
    """A fraction as one would type it: "3", "-1/2"."""
    return str(value)


def rounded(value: Decimal, digits: int = DIGITS) -> str:
    """A number to so many significant digits, as one would type it.

    >>> rounded(Decimal("-7.940656")), rounded(Decimal("6.8973e-13"), 3), rounded(Decimal(0)), rounded(Decimal(4))
    ('-7.9407', '6.90*10^{-13}', '0', '4')
    """
    if not value:
        return "0"
    with localcontext(Context(prec=_WORKING)):
        if value == value.to_integral_value() and abs(value) < 10**digits:
            return str(value.to_integral_value())
        places = digits - 1 - value.adjusted()
        kept = value.quantize(Decimal(1).scaleb(-places))
        if kept.adjusted() > value.adjusted():  # 9.99999 becomes 10.000, with a digit too many
            kept = kept.quantize(Decimal(1).scaleb(1 - places))
        if -5 <= kept.adjusted() < digits + 3 and places > 0:
            return f"{kept:f}"
        return f"{kept.scaleb(-kept.adjusted()):f}*10^{{{kept.adjusted()}}}"


def listed(entries: Sequence[str]) -> str:
    """A vector as one would type it."""
    return f"({', '.join(entries)})" if len(entries) > 1 else entries[0]


def vector(entries: Sequence[Fraction]) -> str:
    """A vector of fractions as one would type it: "(2, 3, -5)"; a single entry is a number.

    >>> vector(exact([[2, -5]])[0]), vector((Fraction(1, 2),))
    ('(2, -5)', '1/2')
    """
    return listed([number(entry) for entry in entries])


def matrix(rows: Matrix) -> str:
    """A matrix as one would type it: "[[1, 0], [0, 1]]"."""
    return f"[{', '.join('[' + ', '.join(map(number, row)) + ']' for row in rows)}]"


def written_out(left: Vector, right: Vector) -> str:
    r"""A dot product with every term shown.

    >>> written_out(*exact([[1, -2, 8], [-6, 0, 1]]))
    '1 \\cdot (-6) + (-2) \\cdot 0 + 8 \\cdot 1'
    """
    return " + ".join(rf"{_factor(a)} \cdot {_factor(b)}" for a, b in zip(left, right, strict=True))


def _factor(value: Fraction) -> str:
    return f"({value})" if value < 0 or value.denominator != 1 else str(value)
