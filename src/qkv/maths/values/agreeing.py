"""Whether two trees have one value at a point, where values that are not exact are only known to so many digits."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from qkv.maths.tree import Node
from qkv.maths.values.arithmetic import DIGITS, FINEST, Number, TooNear, decimal, digits, extent
from qkv.maths.values.arrays import plain_entries
from qkv.maths.values.points import Point

ROUGHLY = Decimal("1e-45")
STEADY, SHRUNK, SPARE = Decimal("1e-6"), 40, 20


def agree_at(place: Point, gold: Node, answer: Node) -> bool | None:
    """Whether both have the same value at a point; None where the digits leave it open.

    What shrinks with more digits is what rounding left; what stays is a difference. There are digits enough where they
    go well below the smallest number that was met, and from the largest down to well below 1.
    """
    precision = DIGITS
    try:
        pairs, error, met = both(place, gold, answer, precision)
    except TooNear:
        precision = 8 * DIGITS
        pairs, error, met = both(place, gold, answer, precision)
    if error > ROUGHLY:
        return roughly(pairs, error)
    if all(isinstance(a, Fraction) and isinstance(b, Fraction) for a, b in pairs):
        return all(a == b for a, b in pairs)
    gaps = differences(pairs, precision)
    while any(gaps) or met + SPARE > precision:
        precision = 2 * precision if any(gaps) else max(2 * precision, met + DIGITS)
        if precision > FINEST:
            return None
        pairs, _, met = both(place, gold, answer, precision)
        finer = differences(pairs, precision)
        with digits(DIGITS):
            said = [settled(before, after) for before, after in zip(gaps, finer, strict=True)]
        if False in said:
            return False
        gaps = [Decimal(0) if vanished else gap for gap, vanished in zip(finer, said, strict=True)]
    return True


def both(place: Point, gold: Node, answer: Node, precision: int) -> tuple[list[tuple[Number, Number]], Decimal, int]:
    with extent() as met:
        (first, rough), (second, rougher) = place.with_error(gold, precision), place.with_error(answer, precision)
    return list(zip(plain_entries(first), plain_entries(second), strict=True)), max(rough, rougher), met[0]


def differences(pairs: list[tuple[Number, Number]], precision: int) -> list[Decimal]:
    with digits(precision):
        return [abs(decimal(a) - decimal(b)) for a, b in pairs]


def settled(before: Decimal, after: Decimal) -> bool | None:
    """Whether a difference vanishes with more digits (True), stays (False), or neither as far as can be seen."""
    if not after or after <= before.scaleb(-SHRUNK):
        return True
    return False if abs(before - after) <= STEADY * after else None


def roughly(pairs: list[tuple[Number, Number]], error: Decimal) -> bool | None:
    """Whether numbers that are only known up to an error agree, differ clearly, or neither."""
    with digits(DIGITS):
        gap = max(relative(a, b) for a, b in pairs)
        if gap <= max(10 * error, ROUGHLY) and error < Decimal("1e-6"):
            return True
        return False if gap > max(30 * error, Decimal("1e-4")) else None


def relative(a: Number, b: Number) -> Decimal:
    x, y = decimal(a), decimal(b)
    return abs(x - y) / max(abs(x), abs(y)) if x != y else Decimal(0)


def near(a: Number, b: Number, count: int) -> bool:
    """Whether two numbers agree to `count` digits."""
    x, y = decimal(a), decimal(b)
    return abs(x - y) <= max(abs(x), abs(y)) * Decimal(10) ** -count
