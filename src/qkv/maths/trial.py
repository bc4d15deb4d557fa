"""Whether two trees are the same: by proof where the normal forms agree, by trying points where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .arithmetic import DIGITS, Undefined, Unevaluable, decimal, digits
from .arrays import entries
from .counterexample import Counterexample
from .points import Point, Vocabulary, points, settled, vocabulary
from .substitution import walk
from .tree import Call, Covariance, Expect, Node, children

ENOUGH_POINTS, ENOUGH_SIZES, MOST_POINTS = 8, 3, 40
NEGLIGIBLE = Decimal("1e-45")


@dataclass(frozen=True)
class Outcome:
    """`equal` is None where neither proof nor trial came to an end; `why` says what was in the way."""

    equal: bool | None
    evidence: str | None = None
    counterexample: Counterexample | None = None
    why: str = ""


def decide(gold: Node, answer: Node) -> Outcome:
    """A glance at two points, which is cheaper than a proof that must fail; then proof, then more points."""
    if not slow(gold, answer):
        glance = tried(gold, answer, most=2)
        if glance.equal is False:
            return glance
    if proved(gold, answer):
        return Outcome(True, "proved")
    return tried(gold, answer)


def proved(gold: Node, answer: Node) -> bool:
    """Whether normal forms prove the two the same; not where they grow too large."""
    from .normal import NotNormal, TooLarge, same

    try:
        return same(gold, answer)
    except (TooLarge, NotNormal, RecursionError):
        return False


def tried(
    gold: Node,
    answer: Node,
    *,
    fixed: Mapping[str, Any] | None = None,
    enough: int = ENOUGH_POINTS,
    most: int = MOST_POINTS,
    witness: bool = True,
) -> Outcome:
    """Both at points, until they differ at one or have agreed at enough of them; a `witness` is made simple."""
    words = vocabulary(gold, answer)
    agreed, sizes, why = 0, set(), ""
    for place in points(words, most, fixed=fixed):
        try:
            verdict = agree_at(place, gold, answer)
        except (Undefined, Unevaluable) as problem:
            why = str(problem)
            if isinstance(problem, Unevaluable) and not agreed and place.tilt > 6:
                break
            continue
        if verdict is None:
            continue
        if not verdict:
            return Outcome(False, "refuted", smallest(words, place, gold, answer) if witness else None)
        agreed += 1
        sizes.add(tuple(place.sizes.items()))
        if not words.symbols and not words.indices:
            return Outcome(True, "tested")
        if agreed >= enough and (len(sizes) >= ENOUGH_SIZES or fixed or not words.sizes):
            return Outcome(True, "tested")
    if agreed >= min(enough, 6) and (len(sizes) >= ENOUGH_SIZES or fixed or not words.sizes):
        return Outcome(True, "tested")
    return Outcome(None, why=why or "there are too few points at which both have a value")


def agree_at(place: Point, gold: Node, answer: Node) -> bool | None:
    """Whether both have the same value at a point; None where rounding leaves it open."""
    (first, rough), (second, rougher) = place.with_error(gold, DIGITS), place.with_error(answer, DIGITS)
    pairs = list(zip(entries(first), entries(second), strict=True))
    error = max(rough, rougher)
    if error > NEGLIGIBLE:
        return roughly(pairs, error)
    if all(isinstance(a, Fraction) and isinstance(b, Fraction) for a, b in pairs):
        return all(a == b for a, b in pairs)
    with digits(DIGITS):
        if all(near(a, b, 40) for a, b in pairs):
            return True
    # What is left of a difference of equal things shrinks with more digits; a true difference does not.
    finer = list(zip(entries(place.value(gold, 2 * DIGITS)), entries(place.value(answer, 2 * DIGITS)), strict=True))
    with digits(2 * DIGITS):
        if all(near(a, b, 40) or small(a, b, 80) for a, b in finer):
            return True
        for (a, b), (c, d) in zip(pairs, finer, strict=True):
            if near(a, c, 30) and near(b, d, 30) and not near(c, d, 40):
                return False
        return None


def roughly(pairs: list[tuple[Any, Any]], error: Decimal) -> bool | None:
    """Whether numbers that are only known up to an error agree, differ clearly, or neither."""
    with digits(DIGITS):
        gap = max(relative(a, b) for a, b in pairs)
        if gap <= max(10 * error, NEGLIGIBLE) and error < Decimal("1e-6"):
            return True
        return False if gap > max(30 * error, Decimal("1e-4")) else None


def relative(a: Any, b: Any) -> Decimal:
    x, y = decimal(a), decimal(b)
    return abs(x - y) / max(abs(x), abs(y)) if x != y else Decimal(0)


def near(a: Any, b: Any, count: int) -> bool:
    """Whether two numbers agree to `count` digits."""
    x, y = decimal(a), decimal(b)
    return abs(x - y) <= max(abs(x), abs(y)) * Decimal(10) ** -count


def small(a: Any, b: Any, count: int) -> bool:
    return abs(decimal(a) - decimal(b)) <= Decimal(10) ** -count


def slow(*nodes: Node) -> bool:
    """Whether there are expectations that take a grid of points, so that nothing should be tried without need."""
    bodies = [below for n in walk(*nodes) if isinstance(n, (Expect, Covariance)) for below in children(n)]
    return any(isinstance(n, Call) and n.name not in ("trace", "sum", "diag") for n in walk(*bodies))


def smallest(words: Vocabulary, place: Point, gold: Node, answer: Node) -> Counterexample:
    """The point made simpler, one name at a time, as long as the two still differ there."""
    best = place
    if slow(gold, answer):
        return Counterexample.at(best, words, best.value(gold, DIGITS), best.value(answer, DIGITS))
    for simpler in simplifications(words, place):
        changed = simpler(best)
        if changed is None:
            continue
        try:
            changed = settled(words, changed)
            if agree_at(changed, gold, answer) is False:
                best = changed
        except (Undefined, Unevaluable):
            continue
    return Counterexample.at(best, words, best.value(gold, DIGITS), best.value(answer, DIGITS))


def simplifications(words: Vocabulary, place: Point) -> Iterator[Callable[[Point], Point | None]]:
    """Ways to make a point simpler: the first sizes and values of all, then scalars 1 or 2."""
    first = next(points(words, 1), None)
    if first is not None and first.sizes != place.sizes:
        arrays = {name: value for name, value in first.values.items() if not isinstance(value, Fraction)}
        indices = {name: first.values[name] for name in words.indices}
        yield lambda p: replace(p, sizes=first.sizes, values={**p.values, **arrays, **indices})
    elif first is not None:
        for name in first.values:
            yield lambda p, name=name: _with(p, name, first.values[name])
    for name, symbol in words.symbols.items():
        if name in place.values and not symbol.shape and symbol.type.kind != "map":
            for value in (1, -1, 2) if symbol.type.kind == "scalar" else (1, 2):
                yield lambda p, name=name, value=value: _simpler_scalar(p, name, Fraction(value))


def _with(place: Point, name: str, value: Any) -> Point | None:
    return None if place.values.get(name) == value else replace(place, values={**place.values, name: value})


def _simpler_scalar(place: Point, name: str, value: Fraction) -> Point | None:
    now = place.values[name]
    plain = isinstance(now, Fraction) and now.denominator == 1 and (now == 2 or (now < 0 and value > 0 and now == -1))
    return None if plain or now == value or now == 1 else replace(place, values={**place.values, name: value})
