"""Numbers that people write: a decimal is rounded to the digits shown, whole numbers and fractions are exact."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from .arithmetic import DIGITS, ZERO, Undefined, Unevaluable, digits, fraction
from .arrays import entries
from .counterexample import Counterexample, number
from .exact import evaluate
from .points import points, vocabulary
from .substitution import rebuilt, symbols_of, walk
from .tree import Covariance, Expect, Index, Multiply, Node, Number, Sum, Transpose, Written
from .trial import Outcome, near

PLACES = Fraction(1, 10**45)


@dataclass(frozen=True)
class Reading:
    """A number as it was written: its value, and half a unit of its last digit (0 where it is exact)."""

    value: Fraction
    slack: Fraction
    exact: bool
    text: str


def numeric(node: Node) -> bool:
    """Whether nothing in `node` needs a value: no names, no free indices."""
    return not symbols_of(node) and not any(isinstance(n, (Index, Sum, Expect, Covariance)) for n in walk(node))


def decimals(node: Node) -> bool:
    return any(isinstance(n, Number) and (n.unit is not None or n.rounded) for n in walk(node))


def unit_of(node: Node) -> Fraction | None:
    """One unit of the last digit of a decimal, with or without a sign before it; None for all else."""
    match node:
        case Number(value=value, unit=None, rounded=True):
            return Fraction(1) if value.denominator == 1 else None
        case Number(unit=unit):
            return unit
        case Multiply(factors=(Number(value=value, unit=None), Number() as inner)) if value == -1:
            return unit_of(inner)
    return None


def rounded(node: Node) -> Node:
    """`node` with its decimals, or the number that it is, marked as rounded."""
    if isinstance(node, Number):
        return replace(node, rounded=True)
    return _marked(node)


def _marked(node: Node) -> Node:
    if isinstance(node, Number):
        return replace(node, rounded=node.unit is not None)
    return rebuilt(node, _marked)


def within_rounding(gold: Node, answer: Node) -> bool:
    """Whether decimals that ≈ stood before, moved within half a unit, take one side to both sides of the other."""
    marks = list({n: None for n in walk(gold, answer) if isinstance(n, Number) and n.rounded and n.unit is not None})
    if not 0 < len(marks) <= 3:
        return False
    agreed = 0
    for place in points(vocabulary(gold, answer), 20):
        gaps: list[list[Fraction]] = []
        try:
            for signs in itertools.product((-1, 1), repeat=len(marks)):
                moved = {m: m.value + (m.unit or ZERO) * sign / 2 for m, sign in zip(marks, signs, strict=True)}
                ends = [entries(place.value(_moved(side, moved), DIGITS)) for side in (gold, answer)]
                gaps.append([fraction(a) - fraction(b) for a, b in zip(*ends, strict=True)])  # type: ignore[arg-type]
        except (Undefined, Unevaluable):
            continue
        if any(min(corner) > 0 or max(corner) < 0 for corner in zip(*gaps, strict=True)):
            return False
        agreed += 1
    return agreed >= 6


def _moved(node: Node, moved: dict[Number, Fraction]) -> Node:
    if isinstance(node, Number):
        return replace(node, value=moved[node]) if node in moved else node
    return rebuilt(node, lambda child: _moved(child, moved))


def reading(node: Node) -> Reading:
    """The number that a scalar node without names is."""
    found = evaluate(node, {}, {})
    unit = unit_of(node)
    exact = isinstance(found, Fraction)
    value = fraction(found)
    return Reading(value, unit / 2 if unit is not None else Fraction(0), exact, _text(value, unit))


def _text(value: Fraction, unit: Fraction | None) -> str:
    if unit is None:
        return number(value if value.denominator < 10**30 else Decimal(value.numerator) / Decimal(value.denominator))
    if unit >= Fraction(1, 10**6) and unit <= 1:
        places = 0
        while Fraction(1, 10**places) > unit:
            places += 1
        return f"{float(value):.{places}f}".replace("-", "−")
    with digits(DIGITS):
        return f"{Decimal(value.numerator) / Decimal(value.denominator):.6g}".replace("-", "−")


def scalars(node: Node) -> tuple[Node, ...] | None:
    """The entries of what is written out, or the scalar itself; None where entries cannot be told apart."""
    match node:
        case Written():
            return node.entries
        case Transpose():
            inner = scalars(node.body)
            plain = inner is not None and (len(node.shape) == 1 or len(node.body.shape) == 1)
            return inner if plain else None
    return (node,) if not node.shape else None


def match(gold: Reading, answer: Reading) -> str | None:
    """ "proved" or "tested" where the two are the same number as far as it was written, else None."""
    if gold.value == answer.value and gold.exact and answer.exact:
        return "proved"
    gap = abs(gold.value - answer.value)
    if gold.slack and answer.slack:
        return "tested" if gap < gold.slack + answer.slack else None
    if gold.slack or answer.slack:
        return "tested" if gap <= gold.slack + answer.slack + (0 if gold.exact and answer.exact else PLACES) else None
    if gold.exact and answer.exact:
        return None
    with digits(DIGITS):
        same = near(gold.value, answer.value, 40)
    return "tested" if same else None


def compare_numbers(gold: Node, answer: Node) -> tuple[Outcome, str] | None:
    """What to say of two things that are numbers throughout and of one shape, at least one a decimal."""
    if not (numeric(gold) and numeric(answer) and (decimals(gold) or decimals(answer))):
        return None
    left, right = scalars(gold), scalars(answer)
    if left is None or right is None or len(left) != len(right):
        return None
    evidence = "proved"
    said: list[str] = []
    try:
        readings = [(reading(a), reading(b)) for a, b in zip(left, right, strict=True)]
    except (Undefined, Unevaluable):
        return None
    for place, (first, second) in enumerate(readings):
        where = f"entry {place + 1}: " if len(left) > 1 else ""
        found = match(first, second)
        if found is None:
            away = Counterexample({}, first.text, second.text)
            return Outcome(False, "refuted", away), where + _apart(first, second)
        if found == "tested":
            evidence = "tested"
            said.append(where + _together(first, second))
    return Outcome(True, evidence), said[0] if said else "the numbers are the same"


def _together(gold: Reading, answer: Reading) -> str:
    if gold.slack and answer.slack:
        return f"{answer.text} and {gold.text} agree in the digits that both show"
    rounded, other = (answer, gold) if answer.slack else (gold, answer)
    return f"{other.text} rounds to {rounded.text}" if rounded.slack else f"{answer.text} to {DIGITS - 20} digits"


def _apart(gold: Reading, answer: Reading) -> str:
    if answer.slack and not gold.slack:
        return f"the right value is {gold.text}, which does not round to {answer.text}"
    if answer.slack or gold.slack:
        return f"{answer.text} does not agree with {gold.text} in the digits shown"
    return f"the right value is {gold.text}, not {answer.text}"
