"""Decimals are rounded to the digits shown, whole numbers and fractions are exact; quantities have units."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from qkv.maths import tree as t
from qkv.maths.comparison.counterexample import Counterexample, number_text
from qkv.maths.comparison.trial import Outcome, decide
from qkv.maths.tree import Multiply, Node, Number, Transpose, Written, rebuilt, walk
from qkv.maths.values.arithmetic import DIGITS, ONE, ZERO, Undefined, Unevaluable, digits, fraction, plain_entries
from qkv.maths.values.points import Point, agree_to_digits, points, vocabulary

if TYPE_CHECKING:
    from qkv.maths.comparison.relations import Comparison
    from qkv.maths.comparison.verdict import Verdict

PLACES = Fraction(1, 10**45)


@dataclass(frozen=True)
class WrittenNumber:
    """A number as it was written: its value, and half a unit in its last digit (0 if it is exact)."""

    value: Fraction
    slack: Fraction
    exact: bool
    text: str


def is_numeric(node: Node) -> bool:
    """Whether `node` has a value by itself: every name is defined, no index is free."""
    words = vocabulary(node)
    return not words.sizes and not words.indices and all(s.type.definition is not None for s in words.symbols.values())


def has_decimals(*nodes: Node) -> bool:
    return any(isinstance(n, Number) and (n.unit is not None or n.rounded) for n in walk(*nodes))


def unit_of(node: Node) -> Fraction | None:
    """One unit in the last digit of a decimal, with or without a sign; None for anything else."""
    match node:
        case Number(value=value, unit=None, rounded=True):
            return Fraction(1) if value.denominator == 1 else None
        case Number(unit=unit):
            return unit
        case Multiply(factors=(Number(value=value, unit=None), Number() as inner)) if value == -1:
            return unit_of(inner)
    return None


def mark_rounded(node: Node) -> Node:
    """`node` with its decimals marked as rounded, or any number if it is one."""
    if isinstance(node, Number):
        return replace(node, rounded=True)
    return _marked(node)


def _marked(node: Node) -> Node:
    if isinstance(node, Number):
        return replace(node, rounded=node.unit is not None)
    return rebuilt(node, _marked)


def within_rounding(gold: Node, answer: Node) -> bool:
    """Whether moving the decimals after ≈ by half a unit can make the two equal."""
    marks = list({n: None for n in walk(gold, answer) if isinstance(n, Number) and n.rounded and n.unit is not None})
    if not 0 < len(marks) <= 3:
        return False
    agreed = 0
    for place in points(vocabulary(gold, answer), 20):
        gaps: list[list[Fraction]] = []
        try:
            for signs in itertools.product((-1, 1), repeat=len(marks)):
                moved = {m: m.value + (m.unit or ZERO) * sign / 2 for m, sign in zip(marks, signs, strict=True)}
                ends = [plain_entries(place.value(_moved(side, moved), DIGITS)) for side in (gold, answer)]
                gaps.append([fraction(a) - fraction(b) for a, b in zip(*ends, strict=True)])
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


def written_numbers(node: Node) -> list[WrittenNumber]:
    """The entries of a node without free names, row by row."""
    place = next(points(vocabulary(node), 1), None)
    if place is None:
        raise Undefined("a name that leaves its domain")
    found = list(plain_entries(place.value(node, DIGITS)))
    units = written_units(node) or [None] * len(found)
    read = []
    for number_found, unit in zip(found, units, strict=True):
        exact = isinstance(number_found, Fraction)
        value = fraction(number_found)
        read.append(
            WrittenNumber(value, unit / 2 if unit is not None else Fraction(0), exact, _number_text(value, unit))
        )
    return read


def _number_text(value: Fraction, unit: Fraction | None) -> str:
    if unit is None:
        return number_text(
            value if value.denominator < 10**30 else Decimal(value.numerator) / Decimal(value.denominator)
        )
    # Negative for a unit of tens or hundreds.
    places = 0
    while Fraction(10) ** -places > unit:
        places += 1
    while Fraction(10) ** (1 - places) <= unit:
        places -= 1
    with digits(DIGITS):
        exact = Decimal(value.numerator) / Decimal(value.denominator)
        shown = max(1, exact.adjusted() + places + 1) if exact else 1
        small = unit <= 1 and exact.adjusted() >= -6
        return (f"{exact:.{places}f}" if small else f"{exact:.{shown - 1}e}").replace("-", "−")


def written_units(node: Node) -> list[Fraction | None] | None:
    """One unit in the last digit of each literal entry; None if the node is computed, and so exact."""
    match node:
        case Written():
            return list(map(unit_of, node.entries))
        case Transpose():
            inner = written_units(node.body)
            if inner is None or len(node.shape) == 1 or len(node.body.shape) == 1:
                return inner
            width = node.body.shape[1]
            return [unit for column in range(int(width)) for unit in inner[column :: int(width)]]
    return None if node.shape else [unit_of(node)]


def matching_evidence(gold: WrittenNumber, answer: WrittenNumber) -> str | None:
    """ "proved" or "tested" if the two agree in the digits written, else None."""
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
        same = agree_to_digits(gold.value, answer.value, 40)
    return "tested" if same else None


def compare_numbers(gold: Node, answer: Node) -> tuple[Outcome, str] | None:
    """The outcome and the reason for two numeric nodes of one shape, at least one with decimals; None for others."""
    if not (is_numeric(gold) and is_numeric(answer) and has_decimals(gold, answer)):
        return None
    evidence = "proved"
    reasons: list[str] = []
    try:
        left, right = written_numbers(gold), written_numbers(answer)
    except (Undefined, Unevaluable):
        return None
    for place, (first, second) in enumerate(zip(left, right, strict=True)):
        where = f"entry {place + 1}: " if len(left) > 1 else ""
        found = matching_evidence(first, second)
        if found is None:
            differing = Counterexample({}, first.text, second.text)
            return Outcome(False, "refuted", differing), where + _difference_text(first, second)
        if found == "tested":
            evidence = "tested"
            reasons.append(where + _agreement_text(first, second))
    if evidence == "proved":
        return decide(gold, answer), "the numbers are the same"
    return Outcome(True, evidence), reasons[0]


def _more_digits(gold: WrittenNumber, answer: WrittenNumber) -> str:
    """The right value with a few more digits than the answer shows."""
    if gold.value.denominator < 10**9 or not answer.slack:
        return gold.text
    with digits(DIGITS):
        value = Decimal(gold.value.numerator) / Decimal(gold.value.denominator)
        unit = Decimal(answer.slack.numerator) / Decimal(answer.slack.denominator)
        return number_text(value, max(6, value.adjusted() - unit.adjusted() + 2) if value else 6)


def _agreement_text(gold: WrittenNumber, answer: WrittenNumber) -> str:
    if gold.slack and answer.slack:
        return f"{answer.text} and {gold.text} agree in the digits that both show"
    rounded, other = (answer, gold) if answer.slack else (gold, answer)
    return f"{other.text} rounds to {rounded.text}" if rounded.slack else f"{answer.text} to {DIGITS - 20} digits"


def _difference_text(gold: WrittenNumber, answer: WrittenNumber) -> str:
    if gold.text == answer.text or not gold.slack:
        gold = replace(gold, text=_more_digits(gold, answer))
    if answer.slack and not gold.slack:
        return f"the right value is {gold.text}, which does not round to {answer.text}"
    if answer.slack or gold.slack:
        return f"{answer.text} does not agree with {gold.text} in the digits shown"
    return f"the right value is {gold.text}, not {answer.text}"


UNIT = "unit "
THOUSANDS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
BINARY = {f"{prefix}i": 1024 ** (k + 1) for k, prefix in enumerate("KMGTP")}
PARTS = {"m": Fraction(1, 10**3), "µ": Fraction(1, 10**6), "n": Fraction(1, 10**9)}


def has_units(*nodes: Node) -> bool:
    return any(isinstance(n, t.Symbol) and n.name.startswith(UNIT) for n in walk(*nodes))


def without_units(node: Node) -> tuple[dict[str, Fraction], Node]:
    """The powers of the units of a quantity, and its number in them; Unevaluable if it is not one quantity."""
    units = [name for name in t.symbols_of(node) if name.startswith(UNIT)]
    powers: dict[str, Fraction] = {}
    for place in points(vocabulary(node), 2, fixed=dict.fromkeys(units, ONE)):
        for name in units:
            values = [replace(place, values={**place.values, name: Fraction(by)}) for by in (1, 4)]
            first, second = (fraction(next(plain_entries(each.value(node, DIGITS)))) for each in values)
            power = Fraction(round(math.log(second / first, 4) * 4), 4) if first * second > 0 else None
            if power is None or second != first * Fraction(4) ** power or powers.setdefault(name, power) != power:
                raise Unevaluable("a sum of quantities of different kinds")
    number = t.substitute(node, dict.fromkeys(units, Number((), ONE)))
    return {name: power for name, power in powers.items() if power}, folded(number)


def folded(node: Node) -> Node:
    """A product of numbers, at most one of them a decimal, as one number with as many digits; others as they are."""
    numbers = [n for n in walk(node) if isinstance(n, Number)]
    decimals = [n for n in numbers if n.unit is not None]
    inside = all(isinstance(n, Number | t.Multiply | t.Divide | t.Power) for n in walk(node))
    if not inside or len(decimals) > 1 or not all(n.value for n in numbers):
        return node
    value = fraction(next(plain_entries(Point({}, {}).value(node, DIGITS))))
    unit = decimals[0].unit if decimals else None
    scaled = None if unit is None else unit * abs(value / decimals[0].value)
    return Number((), value, scaled, any(n.rounded for n in numbers))


def units_text(powers: dict[str, Fraction]) -> str:
    """The unit as it is written: FLOP/s.

    >>> units_text({"unit FLOP": Fraction(1), "unit s": Fraction(-1)})
    'FLOP/s'
    """
    over, under = ([n.removeprefix(UNIT) for n, power in powers.items() if power * side > 0] for side in (1, -1))
    return "·".join(over) + "".join(f"/{name}" for name in under)


def compare_quantities(gold: Node, answer: Node, found: Verdict, compare_values: Comparison) -> Verdict:
    """The verdict if there are units: numbers in one unit, or a bare number and a quantity."""
    try:
        (wanted, right), (given, mine) = without_units(gold), without_units(answer)
    except (Undefined, Unevaluable) as problem:
        return found.unread(f"qkv cannot compare the units: {problem}")
    if wanted == given:
        return compare_values(right, mine, found)
    if wanted and given:
        return found.different(f"{units_text(wanted)} is expected, not {units_text(given)}")
    powers, whose = (wanted, "the answer") if wanted else (given, "the right one")
    verdicts = []
    for unit, size in usual_units(powers):
        scale = Number((), 1 / Fraction(size))
        sides = [
            folded(t.Multiply(side.shape, (side, scale))) if powers_of else side
            for side, powers_of in ((right, wanted), (mine, given))
        ]
        verdicts.append(compare_values(sides[0], sides[1], found))
        if verdicts[-1]:
            condition = f"{whose} is in {unit}"
            reason = f"equal only if {condition}: {whose} has no unit"
            return found.conditional(reason, condition)
    worst = next((verdict for verdict in verdicts if verdict.kind != "different"), verdicts[0])
    return replace(worst, reason=f"{whose} has no unit, the other is in {units_text(powers)}: {worst.reason}")


def usual_units(powers: dict[str, Fraction]) -> Iterator[tuple[str, Fraction | int]]:
    """The unit with its usual prefixes, and the size of each."""
    text = units_text(powers)
    prefixes: dict[str, Any] = {"": 1} if text.startswith("/") else THOUSANDS
    if text.startswith("B"):
        prefixes = {**THOUSANDS, **BINARY}
    if text == "s":
        prefixes = {"": 1, **PARTS}
    for prefix, size in prefixes.items():
        yield prefix + text, size
    if text.startswith("B"):
        yield "bit" + text[1:], Fraction(1, 8)
