"""Whether two trees are the same: by proof where the normal forms agree, by trying points where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any

from qkv.maths.counterexample import Counterexample, either
from qkv.maths.shrinking import Smaller, smaller
from qkv.maths.substitution import walk
from qkv.maths.tree import Call, Covariance, Divide, Expect, Node, Number, Power, children
from qkv.maths.values.agreeing import agree_at
from qkv.maths.values.arithmetic import DIGITS, FINEST, TooNear, Undefined, Unevaluable, effort
from qkv.maths.values.arrays import plain_entries
from qkv.maths.values.points import Point, Vocabulary, points, settled, vocabulary

ENOUGH_POINTS, ENOUGH_SIZES, MOST_POINTS = 10, 3, 50
ENOUGH_KINKED, MOST_KINKED = 60, 90
SIMPLIFYING, TRYING = 30_000, 60_000
# What the value of something random is multiplied by to see how far a root of it gets.
REACHED = tuple(sign * size for size in (Fraction(1), Fraction(1000), Fraction(1, 1000)) for sign in (1, -1))


@dataclass(frozen=True)
class Outcome:
    """`equal` is None where neither proof nor trial came to an end; `why` says what was in the way.

    `small` has what was tried in place of trees that are too large to try. `valued` says that both had a value
    somewhere, or that evaluation failed for want of a way and not of a value.
    """

    equal: bool | None
    evidence: str | None = None
    counterexample: Counterexample | None = None
    why: str = ""
    small: Smaller | None = None
    valued: bool = False


def decide(gold: Node, answer: Node, *, work: int | None = None) -> Outcome:
    """A glance at two points, which is cheaper than a proof that must fail; then proof, then more points.

    `work` is how much a proof may cost, where that should be less than usual.
    """
    small = smaller(gold, answer)
    tries = [(gold, answer)] if small is None else [(small.gold, small.answer)]
    valued = slow(gold, answer) and not divides(gold, answer)
    if not slow(gold, answer):
        glance = tried(*tries[0], most=2)
        if glance.equal is False:
            return noted(glance, small)
        valued = glance.valued
    if proved(gold, answer, work):
        # What has no value anywhere is equal to nothing, whatever the rules of algebra make of it.
        if averages_a_lost_root(*tries[0]):
            return Outcome(None, why="an expectation of a root of what may be negative")
        if valued or tried(*tries[0], enough=1).valued:
            return Outcome(True, "proved")
        return Outcome(None, why="neither of them has a value at any point that was tried")
    other = None if small is None else smaller(gold, answer, step=1)
    if other is not None:
        tries.append((other.gold, other.answer))
    outcomes = []
    for pair in tries:
        with effort(TRYING):
            outcomes.append(tried(*pair))
    for outcome, where in zip(outcomes, (small, other), strict=False):
        if not outcome.equal:
            return noted(outcome, where)
    return noted(outcomes[0], small)


def differ(gold: Node, answer: Node) -> bool:
    """Whether the two are seen to differ at some point."""
    small = smaller(gold, answer)
    pair = (gold, answer) if small is None else (small.gold, small.answer)
    return tried(*pair, witness=False).equal is False


def noted(outcome: Outcome, small: Smaller | None) -> Outcome:
    """The outcome, with the sizes that were not those that were asked for."""
    if small is None:
        return outcome
    point = outcome.counterexample
    if point is not None:
        note = ", ".join(part for part in (point.note, f"with {small}") if part)
        outcome = replace(outcome, counterexample=replace(point, note=note))
    return replace(outcome, small=small)


def proved(gold: Node, answer: Node, work: int | None = None) -> bool:
    """Whether normal forms prove the two the same; not where they grow too large."""
    from qkv.maths.normal import WORK, NotNormal, TooLarge, same

    try:
        return same(gold, answer, work=work or WORK)
    except (TooLarge, NotNormal, RecursionError):
        return False


def tried(
    gold: Node,
    answer: Node,
    *,
    fixed: Mapping[str, Any] | None = None,
    enough: int | None = None,
    most: int | None = None,
    witness: bool = True,
) -> Outcome:
    """Both at points, until they differ at one or have agreed at enough of them; a `witness` is made simple."""
    words = vocabulary(gold, answer)

    def agree(place: Point) -> bool | None:
        return agree_at(place, gold, answer)

    def shown(place: Point) -> Counterexample | None:
        return smallest(words, place, gold, answer) if witness else None

    return tried_with(words, agree, shown, fixed=fixed, enough=enough, most=most)


def tried_as_sets(golds: Sequence[Node], answers: Sequence[Node]) -> Outcome:
    """Two values against two, which are the same where at each point they are, in either order."""
    words = vocabulary(*golds, *answers)

    def agree(place: Point) -> bool | None:
        straight = [agree_at(place, a, b) for a, b in zip(golds, answers, strict=True)]
        crossed = [agree_at(place, a, b) for a, b in zip(golds, reversed(answers), strict=True)]
        if all(straight) or all(crossed):
            return True
        return False if False in straight and False in crossed else None

    def shown(place: Point) -> Counterexample:
        values = [either([place.value(node, DIGITS) for node in nodes]) for nodes in (golds, answers)]
        return Counterexample.at(place, words, *values)

    return tried_with(words, agree, shown)


def tried_with(
    words: Vocabulary,
    agree: Callable[[Point], bool | None],
    shown: Callable[[Point], Counterexample | None],
    *,
    fixed: Mapping[str, Any] | None = None,
    enough: int | None = None,
    most: int | None = None,
) -> Outcome:
    """`agree` at points until it is False or was True often enough."""
    enough = enough or (ENOUGH_KINKED if words.kinked and (words.symbols or words.indices) else ENOUGH_POINTS)
    most = most or (MOST_KINKED if words.kinked else MOST_POINTS)
    agreed, sizes, why, valued = 0, set(), "", False
    evaluable = True
    for place in points(words, most, fixed=fixed):
        try:
            verdict = agree(place)
        except (Undefined, Unevaluable) as problem:
            why = str(problem)
            if isinstance(problem, Unevaluable):
                evaluable = False
                if not agreed and place.attempt > 6:
                    break
            continue
        valued = True
        if verdict is None:
            why = "the digits that qkv computes with do not tell the two apart"
            continue
        if not verdict:
            return Outcome(False, "refuted", shown(place), valued=True)
        agreed += 1
        sizes.add(tuple(place.sizes.items()))
        if not words.symbols and not words.indices:
            return Outcome(True, "tested", valued=True)
        if agreed >= enough and (len(sizes) >= ENOUGH_SIZES or fixed or not words.sizes):
            return Outcome(True, "tested", valued=True)
    if agreed >= min(enough, 6) and (len(sizes) >= ENOUGH_SIZES or fixed or not words.sizes):
        return Outcome(True, "tested", valued=True)
    why = why or "there are too few points at which both have a value"
    return Outcome(None, why=why, valued=valued or not evaluable)


def slow(*nodes: Node) -> bool:
    """Whether there are expectations that take a grid of points, so that nothing should be tried without need."""
    bodies = [below for n in walk(*nodes) if isinstance(n, (Expect, Covariance)) for below in children(n)]
    squared = {id(n.base) for n in walk(*bodies) if isinstance(n, Power) and whole_power(n, 2)}
    smooth = ("trace", "sum", "diag")
    found = (n for n in walk(*bodies) if isinstance(n, Call) and n.name not in smooth)
    return any(not (n.name in ("norm", "norm_F") and id(n) in squared) for n in found)


def averages_a_lost_root(*nodes: Node) -> bool:
    """Whether a root under an expectation is of what chance makes negative: (√x)² is x only where √x has a value."""
    bodies = [below for n in walk(*nodes) if isinstance(n, (Expect, Covariance)) for below in children(n)]
    calls = [n.arguments[0] for n in walk(*bodies) if isinstance(n, Call) and n.name == "sqrt"]
    powers = [n.base for n in walk(*bodies) if isinstance(n, Power) and not n.shape and _even_root(n.exponent)]
    return any(map(_made_negative, calls + powers))


def _even_root(exponent: Node) -> bool:
    return isinstance(exponent, Number) and exponent.value.denominator % 2 == 0


def _made_negative(inside: Node) -> bool:
    """Whether at every point some values of the normal names, which may be any numbers, make it negative."""
    words = vocabulary(inside)
    free = [name for name, symbol in words.symbols.items() if symbol.type.law is not None and symbol.type.law.normal]
    seen = False
    for place in points(words, 8 if free else 0):
        found = False
        for factors in product(REACHED, repeat=len(free[:2])):
            moved = {name: stretched(place.values[name], by) for name, by in zip(free, factors, strict=False)}
            try:
                value = Point(place.sizes, {**place.values, **moved}).value(inside, DIGITS)
            except (Undefined, Unevaluable):
                continue
            found = found or any(entry < 0 for entry in plain_entries(value))
            seen = True
        if not found:
            return False
    return seen


def stretched(value: Any, by: Fraction) -> Any:
    return tuple(stretched(part, by) for part in value) if isinstance(value, tuple) else value * by


def whole_power(node: Power, step: int = 1) -> bool:
    """Whether the exponent is a positive multiple of `step`, so that the power of a norm may be a polynomial."""
    exponent = node.exponent
    return isinstance(exponent, Number) and exponent.value > 0 and exponent.value % step == 0


def divides(*nodes: Node) -> bool:
    """Whether something is divided by, taken a root or a logarithm of, so that there may be no value."""
    return any(
        isinstance(n, Divide)
        or (isinstance(n, Power) and not whole_power(n))
        or (isinstance(n, Call) and n.name == "log")
        for n in walk(*nodes)
    )


def smallest(words: Vocabulary, place: Point, gold: Node, answer: Node) -> Counterexample:
    """The point made simpler, one name at a time, as long as the two still differ there."""
    best = place
    if not slow(gold, answer):
        with effort(SIMPLIFYING):
            best = simplified(words, place, gold, answer)
    with effort(None):
        return Counterexample.at(best, words, *apart(best, gold, answer))


def apart(place: Point, gold: Node, answer: Node) -> list[Any]:
    """Both values at a point at which they differ, with more digits where it takes them to see it."""
    values: list[Any] = []
    for precision in (DIGITS, 8 * DIGITS, FINEST):
        try:
            values = [place.value(side, precision) for side in (gold, answer)]
        except TooNear:
            continue
        if values[0] != values[1]:
            break
    return values


def simplified(words: Vocabulary, best: Point, gold: Node, answer: Node) -> Point:
    for simpler in simplifications(words, best):
        changed = simpler(best)
        if changed is None:
            continue
        try:
            changed = settled(words, changed)
            if agree_at(changed, gold, answer) is False:
                best = changed
        except (Undefined, Unevaluable):
            continue
    return best


def simplifications(words: Vocabulary, place: Point) -> Iterator[Callable[[Point], Point | None]]:
    """Ways to make a point simpler: every size 2, else the first sizes and values of all; then scalars 1 or 2."""
    sized = words.sized()
    small = next(points(words, 1, fixed={name: 2 for name in words.sizes if name in sized}), None)
    if small is not None and small.sizes != place.sizes:
        yield lambda p: small
    first = next(points(words, 1), None)
    if first is not None and first.sizes != place.sizes:
        arrays = {name: value for name, value in first.values.items() if not isinstance(value, Fraction)}
        indices = {name: first.values[name] for name in words.indices}
        yield (
            lambda p: (
                replace(p, sizes=first.sizes, values={**p.values, **arrays, **indices})
                if p.sizes == place.sizes
                else None
            )
        )
    elif first is not None:
        for name in first.values:
            yield lambda p, name=name: _with(p, name, first.values[name]) if p.sizes == place.sizes else None
    for name in words.sizes:
        for value in sorted({2, 3, *(int(constant) + 1 for constant in words.constants)}):
            if name not in sized and value < place.sizes[name]:
                yield lambda p, name=name, value=value: _shorter(p, name, value)
    for name, symbol in words.symbols.items():
        if name in place.values and not symbol.shape and symbol.type.kind != "map":
            for value in (1, -1, 2) if symbol.type.kind == "scalar" else (1, 2):
                yield lambda p, name=name, value=value: _simpler_scalar(p, name, Fraction(value))


def _with(place: Point, name: str, value: Any) -> Point | None:
    return None if place.values.get(name) == value else replace(place, values={**place.values, name: value})


def _shorter(place: Point, name: str, value: int) -> Point | None:
    return replace(place, sizes={**place.sizes, name: value}) if value < place.sizes[name] else None


def _simpler_scalar(place: Point, name: str, value: Fraction) -> Point | None:
    now = place.values[name]
    plain = isinstance(now, Fraction) and now.denominator == 1 and (now == 2 or (now < 0 and value > 0 and now == -1))
    return None if plain or now == value or now == 1 else replace(place, values={**place.values, name: value})
