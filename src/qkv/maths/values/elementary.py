"""Functions of numbers and nested tuples that evaluation needs beside the ring operations."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

from qkv.maths.values.arithmetic import (
    ONE,
    ZERO,
    Dual,
    Polynomial,
    Scalar,
    Undefined,
    Unevaluable,
    add,
    decimal,
    divide,
    function,
    larger,
    negative,
    sign,
    subtract,
)


def exact(value: Any) -> Any:
    """Numbers as Fractions, sequences as tuples; decimals and functions as they are."""
    if isinstance(value, (int, str)):
        return Fraction(value)
    return tuple(map(exact, value)) if isinstance(value, (tuple, list)) else value


def apart(a: Scalar, b: Scalar) -> Decimal:
    """The relative difference of two numbers."""
    if isinstance(a, Dual | Polynomial) or isinstance(b, Dual | Polynomial):
        raise Unevaluable("a derivative of an expectation that is no polynomial")
    x, y = decimal(a), decimal(b)
    return abs(x - y) / max(abs(x), abs(y)) if x != y else Decimal(0)


def seeded(array: Any, path: tuple[int, ...], level: int) -> Any:
    if not path:
        return Dual(level, array, ONE)
    return tuple(seeded(part, path[1:], level) if i == path[0] else part for i, part in enumerate(array))


def under(array: Any, inner: int, outer: int) -> Any:
    """Nested tuples with `outer` axes before `inner` ones, the other way round."""
    if not outer or not inner:
        return array

    def depth(value: Any) -> int:
        return 1 + depth(value[0]) if isinstance(value, tuple) else 0

    def turned(array: Any, inner: int) -> Any:
        if not inner:
            return array
        return tuple(turned(pick(array, i, outer), inner - 1) for i in range(len(first(array, outer))))

    def first(array: Any, levels: int) -> Any:
        return first(array[0], levels - 1) if levels else array

    def pick(array: Any, place: int, levels: int) -> Any:
        return tuple(pick(part, place, levels - 1) for part in array) if levels else array[place]

    return turned(array, inner) if depth(array) == inner + outer else array


def holds(relation: str, a: Any, b: Any) -> bool:
    side = sign(subtract(a, b))
    return {
        "<": side < 0,
        "<=": side <= 0,
        ">": side > 0,
        ">=": side >= 0,
        "!=": side != 0,
        "=": side == 0,
    }[relation.replace("≠", "!=").replace("≤", "<=").replace("≥", ">=").replace("==", "=")]


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
        best = larger(best, number) if which == "max" else negative(larger(negative(best), negative(number)))
    return best


def constant(name: str) -> Decimal:
    if name == "e":
        return Decimal(1).exp()
    if name == "pi":
        # Machin: π = 16 arctan(1/5) − 4 arctan(1/239)
        return 16 * arctangent(5) - 4 * arctangent(239)
    raise Undefined("infinity is no number")


def arctangent(inverse_of: int) -> Decimal:
    total, term, odd = Decimal(0), Decimal(1) / inverse_of, 1
    while term:
        total += term / odd if odd % 4 == 1 else -term / odd
        term, odd = term / inverse_of**2, odd + 2
        if odd > 1000:
            break
    return decimal(total)
