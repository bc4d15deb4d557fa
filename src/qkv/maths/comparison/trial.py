"""Whether two trees are equal: by proof if the normal forms agree, else by trying points.

Where a large number is only a size, a small one is tried in its place: 4096 entries as a few.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

from qkv.maths import tree as t
from qkv.maths.comparison.counterexample import Counterexample, either_text
from qkv.maths.comparison.domains import condition_at, domain_difference, has_value, is_allowed
from qkv.maths.values.arithmetic import DIGITS, FINEST, TooNear, Undefined, Unevaluable, effort, plain_entries
from qkv.maths.values.points import Point, Vocabulary, agree_at, corners, points, vocabulary, with_defined_sizes

if TYPE_CHECKING:
    from qkv.maths.certificate import Certificate

LARGEST_KEPT = 8
LARGEST_SHRUNK = 16
HARMLESS_NUMBERS = frozenset({Fraction(0), Fraction(1), Fraction(2), Fraction(1, 2)})


@dataclass(frozen=True)
class Shrunk:
    """Two trees with small sizes in place of large ones, and the mapping of sizes."""

    gold: t.Node
    answer: t.Node
    sizes: Mapping[int, int]

    def __str__(self) -> str:
        return " and ".join(f"{small} in place of {large}" for large, small in self.sizes.items())


def shrink(gold: t.Node, answer: t.Node, step: int = 0) -> Shrunk | None:
    """The trees with every large size made small; None if there is none, or if it also occurs as a number.

    Sizes keep their order and their parity, on which a value may depend; another `step` gives other sizes.
    """
    found: set[int] = set()
    numbers: set[int] = set()
    subscripts: set[int] = set()
    if not sizes_are_hidden(gold, answer):
        return None
    for node in t.walk(gold, answer):
        if isinstance(node, t.Number):
            numbers |= {abs(node.value.numerator), node.value.denominator}
        if isinstance(node, t.Part):
            subscripts |= {int(index.value) for index in node.indices if isinstance(index, t.Number)}
        if isinstance(node, t.Written):
            numbers |= {size for size in node.shape if isinstance(size, int)}
        if isinstance(node, t.Sum):
            numbers |= {index.size for index in counted_indices(node) if isinstance(index.size, int)}
        for size in sizes_of(node):
            if isinstance(size, int):
                found.add(size)
            else:
                numbers |= {int(digits) for digits in re.findall(r"(?<![\w'])\d+", size)}
    large = sorted(size for size in found if size > LARGEST_KEPT and size not in numbers)
    # Above every size and subscript that stays, so that no subscript leaves its range.
    least = max([2 + 2 * step, *subscripts, *(size for size in found | numbers if size <= LARGEST_KEPT)])
    chosen: dict[int, int] = {}
    for size in large:
        least += 1 + (least + 1 - size) % 2
        while least in found | numbers:
            least += 2
        chosen[size] = least
    if not chosen or least > LARGEST_SHRUNK:
        return None
    return Shrunk(with_sizes(gold, chosen), with_sizes(answer, chosen), chosen)


def sizes_are_hidden(*trees: t.Node) -> bool:
    """Whether no literal can be the result of a size, as 55 may be a sum to 10.

    In polynomials of the entries alone a size has no such result, and any number is allowed.
    """
    if all(is_polynomial(node) for node in t.walk(*trees)):
        return True
    subscripts = {id(index) for node in t.walk(*trees) if isinstance(node, t.Part) for index in node.indices}
    return all(
        abs(n.value) in HARMLESS_NUMBERS for n in t.walk(*trees) if isinstance(n, t.Number) and id(n) not in subscripts
    )


def is_polynomial(node: t.Node) -> bool:
    match node:
        case t.Call(name=name):
            return name in ("trace", "sum", "norm", "norm_F")
        case t.Special():
            return node.name == "zeros" or not node.shape
        case t.Power(exponent=t.Number(value=value)):
            return value > 0
        case t.Sum():
            return not node.product and not counted_indices(node)
    plain = t.Number | t.Symbol | t.Index | t.Part | t.Add | t.Multiply | t.Divide
    return isinstance(node, plain | t.Contract | t.Outer | t.Hadamard | t.Transpose | t.Delta)


def counted_indices(node: t.Sum) -> list[t.Index]:
    """The indices of a sum whose count or value matters: those that occur outside subscripts."""
    inside = list(t.walk(node.body, *(side for _, a, b in node.conditions for side in (a, b))))
    subscripts = [index for n in inside if isinstance(n, t.Part) for index in n.indices]
    subscripts += [side for n in inside if isinstance(n, t.Delta) for side in (n.left, n.right)]
    as_subscript = {index.name for index in subscripts if isinstance(index, t.Index)}
    places = {id(index) for index in subscripts}
    bare = {n.name for n in inside if isinstance(n, t.Index) and id(n) not in places}
    return [index for index in node.indices if index.name in bare or index.name not in as_subscript]


def sizes_of(node: t.Node) -> tuple[t.Size, ...]:
    sizes = node.shape
    if isinstance(node, t.Index):
        sizes += (node.size,)
    named = node if isinstance(node, t.Symbol) else node.map if isinstance(node, t.Call) else None
    if named is not None:
        sizes += (*named.type.shape, *(size for shape in named.type.arguments for size in shape))
    return sizes


def with_sizes(tree: t.Node, sizes: Mapping[int, int]) -> t.Node:
    """`tree` with other sizes, in the types of its names too."""
    resized_types: dict[str, t.Type] = {}

    def shape_of(shape: t.Shape) -> t.Shape:
        return tuple(sizes.get(size, size) if isinstance(size, int) else size for size in shape)

    def type_of(name: str, type: t.Type) -> t.Type:  # noqa: A002
        if name not in resized_types:
            law, definition = type.law, type.definition
            resized_types[name] = replace(
                type,
                shape=shape_of(type.shape),
                arguments=tuple(map(shape_of, type.arguments)),
                law=None if law is None else t.Law(change(law.mean), change(law.covariance), law.normal),
                definition=None if definition is None else change(definition),
            )
        return resized_types[name]

    def change(node: t.Node) -> t.Node:
        changed = replace(t.rebuilt(node, change), shape=shape_of(node.shape))
        if isinstance(changed, t.Symbol):
            return replace(changed, type=type_of(changed.name, changed.type))
        if isinstance(changed, t.Call) and changed.map is not None:
            named = change(changed.map)
            return replace(changed, map=named) if isinstance(named, t.Symbol) else changed
        if isinstance(changed, t.Index):
            return replace(changed, size=shape_of((changed.size,))[0])
        if isinstance(changed, t.Sum):
            kept = tuple(index for index in map(change, changed.indices) if isinstance(index, t.Index))
            return replace(changed, indices=kept)
        return changed

    return change(tree)


ENOUGH_POINTS, ENOUGH_SIZES, MOST_POINTS = 10, 3, 50
ENOUGH_KINKED, FEWEST_KINKED, MOST_KINKED = 60, 30, 90
SIMPLIFY_EFFORT, TRY_EFFORT, CORNER_EFFORT = 30_000, 60_000, 5_000
# Factors for the value of a random name, to see whether a root of it can have a negative argument.
ROOT_FACTORS = tuple(sign * size for size in (Fraction(1), Fraction(1000), Fraction(1, 1000)) for sign in (1, -1))


@dataclass(frozen=True)
class Outcome:
    """The outcome of proof and trial; `equal` is None if neither decided, and `why` is the reason.

    `small` has the trees that were tried in place of large ones. `valued`: both had a value at some point, or could
    not be evaluated at all. `condition`: the two are equal where both have a value, which is only under this condition.
    """

    equal: bool | None
    evidence: str | None = None
    counterexample: Counterexample | None = None
    why: str = ""
    small: Shrunk | None = None
    valued: bool = False
    condition: str | None = None
    certificate: Certificate | None = field(default=None, compare=False, repr=False)


def decide(gold: t.Node, answer: t.Node) -> Outcome:
    """Try two points, which is cheaper than a proof that must fail; then prove, then try more points.

    Two that are equal must also have a value in the same places.
    """
    small = shrink(gold, answer)
    tried = (gold, answer) if small is None else (small.gold, small.answer)
    outcome = prove_or_try(gold, answer, tried, small)
    if outcome.equal is None and domain_difference(*tried) is not None:
        # Too few points at which both have a value: those with positive vectors may be enough.
        vectors = [s for s in t.symbols_of(*tried).values() if s.type.kind == "vector" and s.type.definition is None]
        squares = {s.name: t.Hadamard(s.shape, s, s) for s in vectors if not s.type.random}
        with suppress(ValueError):
            outcome = try_points(*(t.substitute(side, squares) for side in tried)) if squares else outcome
    if not outcome.equal:
        return outcome
    if has_inverse(*tried) and not valued_beyond_one(*tried):
        return Outcome(None, why="an inverse has no value at any point that was tried with sizes of 2 or more")
    condition = domain_difference(*tried)
    if condition is not None:
        return Outcome(None, why=f"one of them has no value unless {condition}", condition=condition)
    corner = try_corners(*tried) if outcome.evidence == "tested" and not has_inverse(*tried) else None
    return outcome if corner is None else with_sizes_noted(corner, small)


def try_corners(gold: t.Node, answer: t.Node) -> Outcome | None:
    """The outcome at a corner at which the two differ in value or in having one; None if there is none."""
    words = vocabulary(gold, answer)
    for place in filter(is_allowed, corners(words)):
        with suppress(Undefined, Unevaluable), effort(CORNER_EFFORT):
            valued = [has_value(place, side) for side in (gold, answer)]
            if valued == [True, True] and agree_at(place, gold, answer) is False:
                return Outcome(False, "refuted", simple_counterexample(words, place, gold, answer), valued=True)
            if {True, False} == set(valued):
                condition = condition_at(place, gold if valued[1] else answer)
                shown = Counterexample.at(place, words, *("a value" if one else "no value" for one in valued))
                return Outcome(None if condition else False, "refuted", shown, valued=True, condition=condition)
    return None


def prove_or_try(gold: t.Node, answer: t.Node, tried: tuple[t.Node, t.Node], small: Shrunk | None) -> Outcome:
    """The outcome wherever both have a value; `tried` are the trees of which points are tried."""
    from qkv.maths.certificate import prove

    valued = is_slow(gold, answer) and not may_be_undefined(gold, answer)
    if not is_slow(gold, answer):
        quick = try_points(*tried, most=2)
        if quick.equal is False:
            return with_sizes_noted(quick, small)
        valued = quick.valued
    certificate = prove(gold, answer)
    if certificate is not None:
        # A tree without a value anywhere is not equal to anything, even if the algebra cancels.
        if averages_negative_root(*tried):
            return Outcome(None, why="an expectation of a root of what may be negative")
        if valued or try_points(*tried, enough=1).valued:
            return Outcome(True, "proved", certificate=certificate)
        return Outcome(None, why="neither of them has a value at any point that was tried")
    other = None if small is None else shrink(gold, answer, step=1)
    pairs = [tried] if other is None else [tried, (other.gold, other.answer)]
    outcomes = []
    for pair in pairs:
        with effort(TRY_EFFORT):
            outcomes.append(try_points(*pair))
    for outcome, where in zip(outcomes, (small, other), strict=False):
        if not outcome.equal:
            return with_sizes_noted(outcome, where)
    return with_sizes_noted(outcomes[0], small)


def has_inverse(*nodes: t.Node) -> bool:
    """Whether there is the inverse of a matrix."""
    powers = [n.exponent for n in t.walk(*nodes) if isinstance(n, t.Power) and n.shape]
    return any(not isinstance(exponent, t.Number) or exponent.value < 0 for exponent in powers)


def valued_beyond_one(gold: t.Node, answer: t.Node) -> bool:
    """Whether both have a value at some point at which no size is 1."""
    places = [place for place in points(vocabulary(gold, answer), 12) if all(s > 1 for s in place.sizes.values())]
    return any(has_value(place, gold) and has_value(place, answer) for place in places)


def differ(gold: t.Node, answer: t.Node) -> bool:
    """Whether the two differ at some tried point."""
    small = shrink(gold, answer)
    pair = (gold, answer) if small is None else (small.gold, small.answer)
    return try_points(*pair, simplify=False).equal is False


def with_sizes_noted(outcome: Outcome, small: Shrunk | None) -> Outcome:
    """The outcome with a note on the sizes that were tried in place of others."""
    if small is None:
        return outcome
    point = outcome.counterexample
    if point is not None:
        note = ", ".join(part for part in (point.note, f"with {small}") if part)
        outcome = replace(outcome, counterexample=replace(point, note=note))
    return replace(outcome, small=small)


def try_points(
    gold: t.Node,
    answer: t.Node,
    *,
    fixed: Mapping[str, Any] | None = None,
    enough: int | None = None,
    most: int | None = None,
    simplify: bool = True,
) -> Outcome:
    """Try points until the two differ at one or agree at enough; `simplify`: make the counterexample simple."""
    words = vocabulary(gold, answer)

    def agree(place: Point) -> bool | None:
        return agree_at(place, gold, answer)

    def shown(place: Point) -> Counterexample | None:
        return simple_counterexample(words, place, gold, answer) if simplify else None

    return try_with(words, agree, shown, fixed=fixed, enough=enough, most=most)


def try_as_sets(golds: Sequence[t.Node], answers: Sequence[t.Node]) -> Outcome:
    """Compare two pairs of values as sets, point by point."""
    words = vocabulary(*golds, *answers)

    def agree(place: Point) -> bool | None:
        straight = [agree_at(place, a, b) for a, b in zip(golds, answers, strict=True)]
        crossed = [agree_at(place, a, b) for a, b in zip(golds, reversed(answers), strict=True)]
        if all(straight) or all(crossed):
            return True
        return False if False in straight and False in crossed else None

    def shown(place: Point) -> Counterexample:
        values = [either_text([place.value(node, DIGITS) for node in nodes]) for nodes in (golds, answers)]
        return Counterexample.at(place, words, *values)

    return try_with(words, agree, shown)


def try_with(
    words: Vocabulary,
    agree: Callable[[Point], bool | None],
    shown: Callable[[Point], Counterexample | None],
    *,
    fixed: Mapping[str, Any] | None = None,
    enough: int | None = None,
    most: int | None = None,
) -> Outcome:
    """Evaluate `agree` at points until it is False, or True often enough."""
    enough = enough or (ENOUGH_KINKED if words.kinked and (words.symbols or words.indices) else ENOUGH_POINTS)
    most = most or (MOST_KINKED if words.kinked else MOST_POINTS)
    agreed, sizes, why, valued, unevaluable = 0, set(), "", False, 0
    constant = not words.symbols and not words.indices and not words.sizes
    for place in points(words, most, fixed=fixed):
        try:
            verdict = agree(place)
        except (Undefined, Unevaluable) as problem:
            why = str(problem)
            unevaluable += isinstance(problem, Unevaluable)
            if unevaluable > 7 and not agreed:
                break
            continue
        valued = True
        if verdict is None:
            why = "the digits that qkv computes with do not tell the two apart"
            unevaluable += 1
            continue
        if not verdict:
            return Outcome(False, "refuted", shown(place), valued=True)
        agreed += 1
        sizes.add(tuple(place.sizes.items()))
        if constant or (agreed >= enough and (len(sizes) >= ENOUGH_SIZES or fixed or not words.sizes)):
            break
    # The two may differ where they cannot be evaluated, so at least half of the points must be.
    varied = len(sizes) >= ENOUGH_SIZES or fixed or not words.sizes
    fewest = min(enough, FEWEST_KINKED if words.kinked else ENOUGH_POINTS)
    if agreed and (constant or (agreed >= max(fewest, unevaluable) and varied)):
        return Outcome(True, "tested", valued=True)
    why = why or "there are too few points at which both have a value"
    return Outcome(None, why=why, valued=valued or unevaluable > 0)


def is_slow(*nodes: t.Node) -> bool:
    """Whether an expectation needs a grid, so that each trial is slow."""
    bodies = [below for n in t.walk(*nodes) if isinstance(n, (t.Expect, t.Covariance)) for below in t.children(n)]
    squared = {id(n.base) for n in t.walk(*bodies) if isinstance(n, t.Power) and whole_power(n, 2)}
    smooth = ("trace", "sum", "diag")
    found = (n for n in t.walk(*bodies) if isinstance(n, t.Call) and n.name not in smooth)
    return any(not (n.name in ("norm", "norm_F") and id(n) in squared) for n in found)


def averages_negative_root(*nodes: t.Node) -> bool:
    """Whether an expectation has a root whose argument can be negative: (√x)² is x only where √x has a value."""
    bodies = [below for n in t.walk(*nodes) if isinstance(n, (t.Expect, t.Covariance)) for below in t.children(n)]
    calls = [n.arguments[0] for n in t.walk(*bodies) if isinstance(n, t.Call) and n.name == "sqrt"]
    powers = [n.base for n in t.walk(*bodies) if isinstance(n, t.Power) and not n.shape and _even_root(n.exponent)]
    return any(map(_can_be_negative, calls + powers))


def _even_root(exponent: t.Node) -> bool:
    return isinstance(exponent, t.Number) and exponent.value.denominator % 2 == 0


def _can_be_negative(inside: t.Node) -> bool:
    """Whether at every point some values of the normal names make it negative."""
    words = vocabulary(inside)
    free = [name for name, symbol in words.symbols.items() if symbol.type.law is not None and symbol.type.law.normal]
    seen = False
    for place in points(words, 8 if free else 0):
        found = False
        for factors in product(ROOT_FACTORS, repeat=len(free[:2])):
            moved = {name: scaled_value(place.values[name], by) for name, by in zip(free, factors, strict=False)}
            try:
                value = Point(place.sizes, {**place.values, **moved}).value(inside, DIGITS)
            except (Undefined, Unevaluable):
                continue
            found = found or any(entry < 0 for entry in plain_entries(value))
            seen = True
        if not found:
            return False
    return seen


def scaled_value(value: Any, by: Fraction) -> Any:
    return tuple(scaled_value(part, by) for part in value) if isinstance(value, tuple) else value * by


def whole_power(node: t.Power, step: int = 1) -> bool:
    """Whether the exponent is a positive multiple of `step`."""
    exponent = node.exponent
    return isinstance(exponent, t.Number) and exponent.value > 0 and exponent.value % step == 0


def may_be_undefined(*nodes: t.Node) -> bool:
    """Whether there is a division, a root or a logarithm, so that there may be no value."""
    return any(
        isinstance(n, t.Divide)
        or (isinstance(n, t.Power) and not whole_power(n))
        or (isinstance(n, t.Call) and n.name == "log")
        for n in t.walk(*nodes)
    )


def simple_counterexample(words: Vocabulary, place: Point, gold: t.Node, answer: t.Node) -> Counterexample:
    """A counterexample at a simpler point, found one name at a time, at which the two still differ."""
    best = place
    if not is_slow(gold, answer):
        with effort(SIMPLIFY_EFFORT):
            best = simplified(words, place, gold, answer)
    with effort(None):
        return Counterexample.at(best, words, *differing_values(best, gold, answer))


def differing_values(place: Point, gold: t.Node, answer: t.Node) -> list[Any]:
    """Both values at a point, with as many digits as it takes to see that they differ."""
    values: list[Any] = []
    for precision in (DIGITS, 8 * DIGITS, FINEST):
        try:
            values = [place.value(side, precision) for side in (gold, answer)]
        except TooNear:
            continue
        if values[0] != values[1]:
            break
    return values


def simplified(words: Vocabulary, best: Point, gold: t.Node, answer: t.Node) -> Point:
    for simpler in simplifications(words, best):
        changed = simpler(best)
        if changed is None:
            continue
        try:
            changed = with_defined_sizes(words, changed)
            if agree_at(changed, gold, answer) is False:
                best = changed
        except (Undefined, Unevaluable):
            continue
    return best


def simplifications(words: Vocabulary, place: Point) -> Iterator[Callable[[Point], Point | None]]:
    """Ways to make a point simpler: all sizes 2, or the sizes and values of the first point; then scalars 1 or 2."""
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
                yield lambda p, name=name, value=value: _with_size(p, name, value)
    for name, symbol in words.symbols.items():
        if name in place.values and not symbol.shape and symbol.type.kind != "map":
            for value in (1, -1, 2) if symbol.type.kind == "scalar" else (1, 2):
                yield lambda p, name=name, value=value: _simpler_scalar(p, name, Fraction(value))


def _with(place: Point, name: str, value: Any) -> Point | None:
    return None if place.values.get(name) == value else replace(place, values={**place.values, name: value})


def _with_size(place: Point, name: str, value: int) -> Point | None:
    return replace(place, sizes={**place.sizes, name: value}) if value < place.sizes[name] else None


def _simpler_scalar(place: Point, name: str, value: Fraction) -> Point | None:
    now = place.values[name]
    plain = isinstance(now, Fraction) and now.denominator == 1 and (now == 2 or (now < 0 and value > 0 and now == -1))
    return None if plain or now == value or now == 1 else replace(place, values={**place.values, name: value})
