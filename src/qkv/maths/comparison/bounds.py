"""`holds`: inequalities tried at many points, ordinary ones and extreme ones at which a bound is likely to fail."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import prod
from typing import Any

from qkv.errors import MathsError, OptionError, OptionTypeError, complaint
from qkv.maths.comparison.counterexample import Counterexample, value_text
from qkv.maths.comparison.trial import scaled_value, shrink
from qkv.maths.comparison.verdict import Verdict, check_arguments, final_value, refusal, same_shape, shape_mismatch
from qkv.maths.parsing.parse import parse
from qkv.maths.sizes import names_in
from qkv.maths.symmetry import declared_symmetric
from qkv.maths.tree import Node, Order, PlusMinus, Symbol
from qkv.maths.values.arithmetic import DIGITS, Undefined, Unevaluable, decimal, digits, entries, plain_entries
from qkv.maths.values.points import Point, Vocabulary, point, points, vocabulary, with_defined_sizes

POINTS, FEWEST, CORNERS = 240, 30, 125
EXTREMES = (1, 2, 3, 10, 100)
LENGTHS = (1, 2, 3, 6)
EXTENTS = (1, 7, 8, 12)
RESIZED = (Fraction(1, 400), Fraction(1), Fraction(900))  # squares, so that the roots of a covariance stay exact
RELATIONS = {"<=": "≤", ">=": "≥", "<": "<", ">": ">"}


def holds(
    left: str, relation: str, right: str, symbols: Mapping[str, str], *, attained: Mapping[str, Any] | None = None
) -> Verdict:
    """Test an inequality at many points; vectors and matrices are compared entry by entry.

    Args:
        left: The left side, as LaTeX or Unicode mathematics.
        relation: "<=", ">=", "<" or ">".
        right: The right side.
        symbols: Names and their types.
        attained: A point at which both sides must be equal: for each name a whole number, a fraction as text, or a
            sequence of these. Sizes follow from the values.

    Returns:
        A `Verdict` of kind "equal" if the inequality holds at all points that were tried.

    Raises:
        OptionTypeError: If `left` or `right` is not text, or `attained` has other values.
        OptionError: If `relation`, `symbols` or `attained` are malformed.

    >>> bool(holds("2 a b", "<=", "a^2 + b^2", {"a": "scalar", "b": "scalar"}, attained={"a": 3, "b": 3}))
    True
    """
    check_arguments(left, right, symbols)
    if relation not in RELATIONS:
        raise OptionError(complaint("relation", repr(relation), "one of <=, >=, < and >"))
    from qkv.maths.types import declare

    with declared_symmetric(declare(symbols).types.values()):
        return check_bound(left, relation, right, symbols, attained)


def check_bound(
    left: str, relation: str, right: str, symbols: Mapping[str, str], attained: Mapping[str, Any] | None
) -> Verdict:
    """`holds` with arguments that were checked."""
    found = Verdict("equal", None, "", gold=left, answer=right)
    try:
        first = final_value(parse(left, symbols))
    except MathsError as error:
        return refusal(error, found, "the left side is refused: ")
    try:
        second = final_value(parse(right, symbols, expected=first.shape))
    except MathsError as error:
        return refusal(error, found)
    if any(isinstance(side, (Order, PlusMinus)) for side in (first, second)):
        return replace(found, kind="ill-typed", reason="growth and ± have no order; write two values")
    if not same_shape(first, second):
        return replace(found, kind="different", evidence="refuted", reason=shape_mismatch(first, second))
    small = shrink(first, second)
    tried = (first, second) if small is None else (small.gold, small.answer)
    verdict = check_at_points(tried[0], relation, tried[1], vocabulary(*tried), found)
    if small is not None and verdict.evidence is not None:
        verdict = replace(verdict, reason=f"{verdict.reason}, with {small}")
    if verdict and attained is not None:
        return check_attained(first, second, vocabulary(first, second), attained, verdict)
    return verdict


def check_at_points(first: Node, relation: str, second: Node, words: Vocabulary, found: Verdict) -> Verdict:
    tried, why = 0, "there are too few points at which both have a value"
    for place in trial_points(words):
        try:
            a, b = place.value(first, DIGITS), place.value(second, DIGITS)
            fine = is_ordered(a, relation, b)
        except Undefined:
            continue
        except Unevaluable as problem:
            why = str(problem)
            if not tried and place.attempt > 8:
                break
            continue
        if not fine:
            where = simplest_failure(first, relation, second, words, place)
            return found.different(f"the bound fails: {where}, which is not {RELATIONS[relation]}", where)
        tried += 1
    if tried >= (FEWEST if words.symbols or words.indices else 1):
        return replace(found, evidence="tested", reason=f"it holds at all of {tried} points, extreme ones among them")
    return found.unread(f"qkv cannot test the bound: {why}")


def is_ordered(a: Any, relation: str, b: Any) -> bool:
    """Whether the relation holds for all entries, with a tolerance for decimals."""
    with digits(DIGITS):
        for x, y in zip(plain_entries(a), plain_entries(b), strict=True):
            low, high = (x, y) if relation[0] == "<" else (y, x)
            if isinstance(low, Fraction) and isinstance(high, Fraction):
                fine = low < high or (low == high and relation[-1] == "=")
            else:
                gap = decimal(high) - decimal(low)
                tolerance = Decimal(10) ** -40 * max(abs(decimal(low)), abs(decimal(high)), Decimal(1))
                fine = gap >= -tolerance if relation[-1] == "=" else gap > tolerance
            if not fine:
                return False
    return True


def simplest_failure(first: Node, relation: str, second: Node, words: Vocabulary, place: Point) -> Counterexample:
    """A counterexample to a bound, with each number made as small as possible in turn."""

    def fails(point: Point) -> bool:
        try:
            settled_point = with_defined_sizes(words, point)
            return not is_ordered(settled_point.value(first, DIGITS), relation, settled_point.value(second, DIGITS))
        except (Undefined, Unevaluable):
            return False

    sized = {name for text in words.texts for name in names_in(text)}
    for name in (*words.sizes, *free_scalars(words)):
        kept = place.sizes if name in place.sizes else place.values
        if name in sized or name not in kept:
            continue
        for value in EXTREMES:
            if value >= abs(kept[name]):
                break
            changed = {**kept, name: value if kept is place.sizes else Fraction(value)}
            smaller = replace(place, sizes=changed) if kept is place.sizes else replace(place, values=changed)
            if fails(smaller):
                place = smaller
                break
    place = with_defined_sizes(words, place)
    return Counterexample.at(place, words, place.value(first, DIGITS), place.value(second, DIGITS))


def trial_points(words: Vocabulary) -> Iterator[Point]:
    """Ordinary points, each followed by an extreme variant; then larger sizes; then large numbers with small ones."""
    count = POINTS // 2 if words.symbols or words.indices else 1
    for place in points(words, count):
        yield place
        changed = {
            name: extreme_value(value, words.symbols[name], place.attempt) for name, value in array_values(words, place)
        }
        changed |= {name: rescaled(place.values[name], place.attempt) for name in words.covariances & set(place.values)}
        if changed:
            try:
                yield with_defined_sizes(words, replace(place, values={**place.values, **changed}))
            except (Undefined, Unevaluable):
                continue
    yield from larger_sizes(words)
    yield from corners(words)


def larger_sizes(words: Vocabulary) -> Iterator[Point]:
    """Points with sizes 1 and larger: as drawn, with equal components, and with only one nonzero component."""
    sized = [name for name in words.sizes if name in words.sized()]
    for length in EXTENTS if sized else ():
        try:
            place = point(words, 0, dict.fromkeys(sized, length))
        except (Undefined, Unevaluable):
            continue
        yield place
        for mode in (0, 3):
            changed = {
                name: extreme_value(value, words.symbols[name], mode) for name, value in array_values(words, place)
            }
            changed = {name: value for name, value in changed.items() if words.symbols[name].shape}
            try:
                yield with_defined_sizes(words, replace(place, values={**place.values, **changed}))
            except (Undefined, Unevaluable):
                continue


def corners(words: Vocabulary) -> Iterator[Point]:
    """Points with small and large scalars and naturals together: all combinations, or some if there are many.

    Lengths of vectors stay short.
    """
    sized = {name for text in words.texts for name in names_in(text)}
    choices: dict[str, list[Fraction]] = {}
    for name in words.sizes:
        choices[name] = [Fraction(value) for value in (LENGTHS if name in sized else EXTREMES)]
    for name, symbol in free_scalars(words).items():
        values = [Fraction(value) for value in EXTREMES]
        values += [1 / value for value in values[-2:]]
        if symbol.type.kind == "scalar":
            values += [-value for value in values]
        choices[name] = values if symbol.type.kind == "positive" else [*values, Fraction(0)]
    if not choices:
        return
    if prod(map(len, choices.values())) <= CORNERS:
        drawn = itertools.product(*choices.values())
    else:
        draw = random.Random(len(choices))
        drawn = (tuple(map(draw.choice, choices.values())) for _ in range(CORNERS))
    for attempt, chosen in enumerate(drawn):
        try:
            yield point(words, attempt, dict(zip(choices, chosen, strict=True)))
        except (Undefined, Unevaluable):
            continue


def free_scalars(words: Vocabulary) -> dict[str, Symbol]:
    """The scalars that are neither defined nor averaged over."""
    kinds = ("scalar", "positive", "nonnegative")
    free = {name: s for name, s in words.symbols.items() if s.type.kind in kinds and s.type.definition is None}
    return {name: s for name, s in free.items() if not s.type.random or name in words.outside}


def array_values(words: Vocabulary, place: Point) -> list[tuple[str, Any]]:
    return [
        (name, place.values[name])
        for name, symbol in words.symbols.items()
        if name in place.values and name not in words.covariances and symbol.type.kind not in ("map", "index")
    ]


def rescaled(covariance: Any, attempt: int) -> Any:
    """A covariance multiplied as a whole, because changing single entries may make it indefinite."""
    return scaled_value(covariance, RESIZED[attempt % len(RESIZED)])


def extreme_value(value: Any, symbol: Symbol, attempt: int) -> Any:
    """An extreme variant of a value: equal components, zeros, one large, all small; a scalar very large or small."""
    mode = attempt % 5
    if not isinstance(value, tuple):
        factor = (Fraction(40), Fraction(1, 40), Fraction(1), Fraction(0), Fraction(-7))[mode]
        if factor <= 0 and symbol.type.kind != "scalar":
            factor = Fraction(1, 1000) if symbol.type.kind == "positive" else abs(factor)
        return value * factor
    flat = list(entries(value))
    count = iter(range(len(flat)))

    def changed(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(changed, part))
        place = next(count)
        return (
            flat[0],
            part if place != attempt % len(flat) else part * 30,
            part / 20,
            Fraction(0) if place != attempt % len(flat) else part,
            Fraction(0) if attempt % 2 else flat[place // 2],
        )[mode]

    return changed(value)


def check_attained(
    first: Node, second: Node, words: Vocabulary, attained: Mapping[str, Any], found: Verdict
) -> Verdict:
    """The verdict with a check that both sides are equal at the point `attained`."""
    place = attained_point(words, attained)
    try:
        a, b = place.value(first, DIGITS), place.value(second, DIGITS)
    except (Undefined, Unevaluable) as problem:
        return found.different(f"the point at which the bound should be attained gives no value: {problem}")
    point = Counterexample.at(place, words, a, b)
    with digits(DIGITS):
        pairs = [(decimal(x), decimal(y)) for x, y in zip(plain_entries(a), plain_entries(b), strict=True)]
        different = any(abs(x - y) > Decimal(10) ** -30 * max(abs(x), abs(y), Decimal(1)) for x, y in pairs)
    if different:
        return found.different(f"the bound holds where it was tried but is not attained: {point}", point)
    where = str(point).rsplit(":", 1)[0]
    return replace(found, reason=f"{found.reason}, and both are {value_text(a)} at {where}")


def attained_point(words: Vocabulary, attained: Mapping[str, Any]) -> Point:
    """The point that the caller gave, with the sizes that follow from its values."""
    if not isinstance(attained, Mapping):
        raise OptionTypeError(complaint("attained", f"a {type(attained).__name__}", "a mapping of names to values"))
    values = {name: exact_value(name, value) for name, value in attained.items()}
    sizes = {name: int(values[name]) for name in words.sizes if isinstance(values.get(name), Fraction)}
    for name, symbol in words.symbols.items():
        if name in values:
            part = values[name]
            for size in symbol.shape:
                if not isinstance(part, tuple):
                    raise OptionError(complaint(f"attained[{name!r}]", value_text(part), f"{len(symbol.shape)} axes"))
                if isinstance(size, str) and sizes.setdefault(size, len(part)) != len(part):
                    raise OptionError(complaint(f"attained[{name!r}]", f"{len(part)} for {size}", str(sizes[size])))
                part = part[0]
    needed = {n: s for n, s in words.symbols.items() if s.type.definition is None and not s.type.random}
    missing = [name for name in (*needed, *words.indices) if name not in values and name not in sizes]
    missing += [name for name in words.sizes if name not in sizes and name not in missing]
    if missing:
        raise OptionError(complaint("attained", f"no value for {', '.join(missing)}", "a value for every name"))
    kept = {name: value for name, value in values.items() if name not in sizes}
    try:
        return with_defined_sizes(words, Point(sizes, kept))
    except Undefined as problem:
        raise OptionError(complaint("attained", str(problem), "a point where every name is in its domain")) from problem


def exact_value(name: str, value: Any) -> Any:
    """Whole numbers, fractions as text and sequences of them, as Fractions."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(exact_value(name, part) for part in value)
    if isinstance(value, bool) or not isinstance(value, (int, str, Fraction)):
        given = f"a {type(value).__name__}"
        raise OptionTypeError(complaint(f"attained[{name!r}]", given, 'whole numbers or fractions such as "1/2"'))
    try:
        return Fraction(value)
    except (ValueError, ZeroDivisionError) as error:
        raise OptionError(complaint(f"attained[{name!r}]", repr(value), 'a number such as "1/2"')) from error
