"""Values for names at a point: simple ones at the first, then a fixed mixture of signs and magnitudes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from math import prod
from typing import Any

from qkv.maths.extents import whole
from qkv.maths.tree import Shape, Type
from qkv.maths.values.arithmetic import ONE, ZERO, Scalar, Unevaluable, add, multiply, spend
from qkv.maths.values.arrays import entries

SCALARS = (2, 3, 5, 7, 4, 6)
FEW = tuple(Fraction(value) for value in ("1", "2", "3", "1/2", "5", "7"))
MANY = tuple(Fraction(value) for value in ("1/10", "1/2", "1", "2", "3", "7", "10", "100"))
NATURALS = (1, 2, 3, 4, 5, 7, 10, 20, 50, 100)
SCALES = tuple(Fraction(value) for value in ("1", "1/10", "1", "10", "1/2", "100"))
GENTLE = tuple(Fraction(value) for value in ("1", "1/2", "1/10", "1/4", "1/10"))
PATTERNED = 8
# Which of three indices of one size are the same: every pattern of coincidence, then all apart once more.
COINCIDENCES = ((0, 1, 2), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2, 1, 0))
MOST_ENTRIES = 4_096


def mixed(attempt: int, name: str, what: str) -> int:
    """A number that any change of attempt, name or purpose changes altogether."""
    return int.from_bytes(blake2b(f"{attempt} {name} {what}".encode(), digest_size=6).digest(), "big")


def chosen(choices: Sequence[Any], attempt: int, name: str, what: str) -> Any:
    return choices[mixed(attempt, name, what) % len(choices)]


def scalar(kind: str, name: str, attempt: int, place: int, constants: Sequence[Fraction], positive: bool) -> Fraction:
    """The `place`-th number at an attempt; three of them have every pattern of signs within the first few."""
    if attempt == 0:
        return Fraction(SCALARS[place % len(SCALARS)])
    late = attempt > PATTERNED
    size: Fraction = chosen(MANY if late else FEW, attempt, name, "size")
    if constants and late and mixed(attempt, name, "constant") % 3 == 0:
        size = near_constant(constants, attempt, name) or size
    if kind != "positive" and late and mixed(attempt, name, "zero") % 12 == 0:
        return ZERO
    if kind != "scalar" or positive or (late and attempt % 3 == 2):
        return size
    below = mixed(attempt, name, "sign") % 2 if late or place > 2 else (attempt - 1) >> place & 1
    return -size if below else size


def near_constant(constants: Sequence[Fraction], attempt: int, name: str) -> Fraction:
    """At, beside or beyond a number that was written, where something may turn over."""
    number = chosen(constants, attempt, name, "which")
    return abs(chosen((number - 1, number, number + 1, 2 * number, number * number, number / 2), attempt, name, "near"))


def natural(name: str, attempt: int, least: int, constants: Sequence[Fraction]) -> int:
    """A natural that is the size of nothing, so that it may be large."""
    whole_constants = [number for number in constants if number.denominator == 1]
    if whole_constants and attempt > PATTERNED and mixed(attempt, name, "constant") % 3 == 0:
        return max(1, int(near_constant(whole_constants, attempt, name)))
    return chosen(NATURALS, attempt, name, "size") if attempt > 1 else least


def places(names: Sequence[str], attempt: int, length: int) -> dict[str, int]:
    """Where indices of one size point: apart, together, and in every way between."""
    found = {}
    shift = attempt // len(COINCIDENCES)
    for number, name in enumerate(names):
        if number < 3 and attempt < 3 * len(COINCIDENCES):
            found[name] = (COINCIDENCES[attempt % len(COINCIDENCES)][number] + shift) % length + 1
        else:
            found[name] = mixed(attempt, name, "place") % length + 1
    return found


def array(
    shape: tuple[int, ...],
    draw: random.Random,
    *,
    ordered: bool = False,
    positive: bool = False,
    simple: bool = False,
    scale: Fraction = ONE,
) -> Any:
    """Entries that differ as far as they can: 1, 2, 3 and so on where `ordered`, else drawn; all times `scale`.

    `simple` ones are easy to follow by hand, and some are the same.
    """
    total = volume(shape)
    if ordered:
        flat = list(range(1, total + 1))
    elif simple:
        flat = [1, *draw.choices((0, 1, 2, 3), k=total - 1)] if total else []
    else:
        low, high = (1, max(6, total + 1)) if positive else (-max(4, total // 2), max(5, total // 2 + 1))
        choices = [k for k in range(low, high) if k]
        flat = draw.sample(choices, total) if total <= len(choices) else draw.choices(choices, k=total)
    return shaped(iter([Fraction(entry) * scale for entry in flat]), shape)


def volume(shape: tuple[int, ...]) -> int:
    """The number of entries; Unevaluable where a point should not be written out."""
    total = prod(shape)
    if total > MOST_ENTRIES:
        raise Unevaluable("it has too many entries to try points")
    spend(total)
    return total


def shaped(flat: Iterator[Any], shape: tuple[int, ...]) -> Any:
    return tuple(shaped(flat, shape[1:]) for _ in range(shape[0])) if shape else next(flat)


def filled(value: Any, shape: Shape, sizes: Mapping[str, int]) -> Any:
    lengths_of = tuple(whole(size, sizes) for size in shape)
    total = volume(lengths_of)
    return shaped(iter([Fraction(value)] * total), lengths_of)


def definite(size: int, draw: random.Random, attempt: int, scale: Fraction = ONE) -> Any:
    """A symmetric matrix with a triangular square root in whole numbers times `scale`, so that roots stay exact."""
    volume((size, size, size))
    low = 0 if attempt == 0 else -2
    lower = [[Fraction(draw.randint(low, 2)) for _ in range(i)] + [Fraction(draw.randint(1, 2))] for i in range(size)]
    if attempt == 0:
        for i in range(1, size):
            lower[i][i - 1] = ONE
    rows = [[entry * scale for entry in row] + [ZERO] * (size - len(row)) for row in lower]
    return tuple(tuple(sum((a * b for a, b in zip(r, s, strict=True)), ZERO) for s in rows) for r in rows)


def some_map(type: Type, sizes: Mapping[str, int], seed: int) -> Callable[..., Any]:  # noqa: A002
    """A polynomial of degree three with whole coefficients: a map of which nothing holds that was not declared."""
    shape = tuple(whole(size, sizes) for size in type.shape)
    total = volume(shape)

    def component(number: int, inputs: list[Scalar]) -> Scalar:
        draw = random.Random(1000 * seed + number)
        result: Scalar = Fraction(draw.randint(1, 9))
        running: Scalar = ONE
        for entry in inputs:
            square = multiply(entry, entry)
            for term in (entry, square, multiply(running, entry), multiply(square, entry)):
                result = add(result, multiply(Fraction(draw.randint(1, 5)), term))
            running = add(running, multiply(Fraction(draw.randint(1, 3)), entry))
        return result

    def apply(*arguments: Any) -> Any:
        inputs = list(entries(arguments))
        return shaped(iter([component(number, inputs) for number in range(total)]), shape)

    return apply
