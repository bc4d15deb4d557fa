"""Answers that were worked out with rounded numbers: right within what the rounding of their own decimals allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from ...errors import MathsError
from ...maths.tree import Node, Number, Relation

MOST = 24  # decimals of an expression that are looked at
COARSEST = Fraction(1, 20)  # how much their rounding may matter, against the largest entry


def within_own_rounding(gold: str, answer: str, symbols: Mapping[str, str]) -> bool:
    """Whether an expression with decimals in it has the right value as far as these were rounded.

    Only members that compute something are looked at: what is merely written down is held to the digits that it shows.

    >>> symbols = {"a": "vector[2] = softmax((0, 2))"}
    >>> within_own_rounding("16 a_1 + 8 a_2", "0.119*16 + 0.881*8", symbols)
    True
    >>> within_own_rounding("16 a_1 + 8 a_2", "0.129*16 + 0.881*8", symbols)
    False
    """
    from ...maths import compare, parse
    from ...maths.comparison.rounding import is_numeric

    try:
        right = parse(gold, symbols)
        given = parse(answer, symbols, expected=right.shape)
    except MathsError:
        return False
    members = given.members if isinstance(given, Relation) else (given,)
    for place, member in enumerate(members):
        if is_numeric(member) and member.shape == right.shape and _agrees(right, member):
            rest = answer.replace(r"\approx", "=").replace("≈", "=").split("=")
            # What follows in the chain has to follow from it.
            return place == len(members) - 1 or (
                len(rest) == len(members) and bool(compare(rest[place], rest[-1], symbols))
            )
    return False


def _agrees(right: Node, given: Node) -> bool:
    from ...maths.comparison.rounding import written_numbers, written_units
    from ...maths.tree import walk
    from ...maths.values.arithmetic import Undefined, Unevaluable

    decimals = list({n: None for n in walk(given) if isinstance(n, Number) and n.unit is not None})
    if not 0 < len(decimals) <= MOST or any(written_units(given) or ()):
        return False
    try:
        wanted = [reading.value for reading in written_numbers(right)]
        found = [reading.value for reading in written_numbers(given)]
        slack = [Fraction(0)] * len(found)
        for each in decimals:
            moved = written_numbers(_moved(given, each))
            slack = [sofar + abs(new.value - old) for sofar, new, old in zip(slack, moved, found, strict=True)]
    except (Undefined, Unevaluable):
        return False
    largest = max(map(abs, wanted))
    return all(
        abs(a - b) <= allowed + largest / 10**9 and allowed <= COARSEST * largest
        for a, b, allowed in zip(wanted, found, slack, strict=True)
    )


def _moved(node: Node, decimal: Number) -> Node:
    from ...maths.tree import rebuilt

    if node == decimal and decimal.unit is not None:
        return replace(decimal, value=decimal.value + decimal.unit / 2)
    return rebuilt(node, lambda child: _moved(child, decimal))
