"""Where a tree has a value: what its divisions, roots and logarithms need, and where two trees differ in that.

An inverse matrix that is written is taken to exist, so that it needs nothing here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from qkv.maths import tree as t
from qkv.maths.printing import plain
from qkv.maths.sizes import size_node, whole_size
from qkv.maths.values.arithmetic import (
    DIGITS,
    TooNear,
    Undefined,
    Unevaluable,
    effort,
    entries,
    plain_entries,
    whole_root,
)
from qkv.maths.values.points import Point, Vocabulary, point, points, vocabulary

PROBES = tuple(tuple(Fraction(sign * k) for k in (1, 2, 3, 4)) for sign in (1, -1))
MOST_PLACES, MOST_COMBINATIONS, STARTS = 24, 64, 3
DOMAIN_EFFORT = 20_000
HALF_PI = Fraction("1.5707963267948966192313216916397514420985846996875529104874722961539082031431")
SIGNS = {
    "≠": lambda number: number != 0 and (isinstance(number, Fraction) or number.adjusted() > -50),
    "≥": lambda number: number >= 0,
    ">": lambda number: number > 0,
}
KINDS = {"positive": SIGNS[">"], "nonnegative": SIGNS["≥"], "natural": lambda n: n >= 1 and n.denominator == 1}


# What the definitions of the declared names need: those names have values.
_ASSUMED: ContextVar[tuple[Need, ...]] = ContextVar("assumed", default=())


@contextmanager
def assuming(types: Iterable[t.Type]) -> Iterator[None]:
    """Take it inside that the definitions of these types have values: z = x/σ says that σ is not 0."""
    defined = [kind.definition for kind in types if kind.definition is not None]
    token = _ASSUMED.set(tuple(need for definition in defined for need in needs(definition)))
    try:
        yield
    finally:
        _ASSUMED.reset(token)


@dataclass(frozen=True)
class Need:
    """What a tree needs to have a value: `node` in relation to 0, for all values of the bound `indices`."""

    sign: str
    node: t.Node
    indices: tuple[t.Index, ...] = ()

    def fails_at(self, place: Point) -> bool:
        """Whether the need is not met at a point; False where that cannot be evaluated."""
        try:
            ranges = [range(1, whole_size(index.size, place.sizes) + 1) for index in self.indices]
            for chosen in itertools.islice(itertools.product(*ranges), MOST_COMBINATIONS):
                bound = {index.name: Fraction(value) for index, value in zip(self.indices, chosen, strict=True)}
                value = replace(place, values={**place.values, **bound}).value(self.node, DIGITS)
                if not all(map(SIGNS[self.sign], plain_entries(value))):
                    return True
        except (Undefined, Unevaluable):
            pass
        return False


def needs(node: t.Node) -> list[Need]:
    """What the parts of a tree need, definitions included; inside expectations, where no random name matters."""
    found: dict[Need, None] = {}

    def visit(node: t.Node, bound: tuple[t.Index, ...], averaged: bool = False) -> None:
        for sign, inside in _needs_here(node):
            drawn = averaged and any(symbol.type.random for symbol in t.symbols_of(inside).values())
            if not is_positive(inside) and not drawn:
                free = t.free_indices(inside)
                found.setdefault(Need(sign, inside, tuple(index for index in bound if index.name in free)))
        if isinstance(node, t.Sum):
            bound = (*bound, *node.indices)
        if isinstance(node, t.Symbol):
            below = () if node.type.definition is None else (node.type.definition,)
        else:
            below = t.children(node)
        for child in below:
            visit(child, bound, averaged or isinstance(node, t.Expect | t.Covariance))

    visit(node, ())
    return list(found)


def _needs_here(node: t.Node) -> Iterator[tuple[str, t.Node]]:
    match node:
        case t.Divide(bottom=bottom):
            yield "≠", bottom
        case t.Call(name="sqrt", arguments=(inside,)):
            yield "≥", inside
        case t.Call(name="log", arguments=(inside,)):
            yield ">", inside
        case t.Power(base=base, exponent=t.Number(value=value)) if not base.shape:
            if value.denominator % 2 == 0:
                yield "≥", base
            if value < 0:
                yield "≠", base
        case t.Power(base=base, exponent=exponent) if not base.shape and not _is_whole(exponent):
            yield "≥", base
            yield "≠", base
        case t.Call(name="tan", arguments=(inside,)):
            yield "≠", t.Call(inside.shape, "cos", (inside,))
        case t.Part(body=body, indices=indices):
            for index, size in zip(indices, body.shape, strict=False):
                if isinstance(index, t.Number) and isinstance(size, str) and index.value > 1:
                    yield "≥", t.Add((), (size_node(size), t.Number((), -index.value)))
        case t.Derivative(body=body):
            for kink in (n for n in t.walk(body) if isinstance(n, t.Call)):
                if kink.name in ("abs", "relu"):
                    yield "≠", kink.arguments[0]
                elif kink.name in ("max", "min") and len(kink.arguments) == 2:
                    minus = t.Multiply((), (t.Number((), Fraction(-1)), kink.arguments[1]))
                    yield "≠", t.Add((), (kink.arguments[0], minus))


def _is_whole(node: t.Node) -> bool:
    """Whether a node is a natural for certain."""
    match node:
        case t.Symbol(type=t.Type(kind="natural")) | t.Index():
            return True
        case t.Number(value=value):
            return value.denominator == 1 and value >= 0
        case t.Add(terms=many) | t.Multiply(factors=many):
            return all(map(_is_whole, many))
    return False


def is_positive(node: t.Node) -> bool:
    """Whether a scalar is positive for certain, by its signs alone."""
    match node:
        case t.Number(value=value):
            return value > 0
        case t.Constant() | t.Index() | t.Call(name="exp"):
            return True
        case t.Symbol(type=kind):
            return kind.kind in ("positive", "natural") or (
                kind.definition is not None and is_positive(kind.definition)
            )
        case t.Add(terms=many):
            return any(map(is_positive, many)) and all(is_positive(one) or _is_square(one) for one in many)
        case t.Multiply(factors=many):
            return all(map(is_positive, many))
        case t.Divide(top=a, bottom=b):
            return is_positive(a) and is_positive(b)
        case t.Power(base=base) if not base.shape:
            return is_positive(base)
        case t.Call(name="sqrt" | "abs", arguments=(inside,)):
            return is_positive(inside)
        case t.Sum(body=body, conditions=()):
            return is_positive(body)
    return False


def _is_square(node: t.Node) -> bool:
    """Whether a scalar is at least 0 for certain: an even power, an absolute value, a norm."""
    match node:
        case t.Power(exponent=t.Number(value=value)):
            return value > 0 and value.numerator % 2 == 0
        case t.Multiply(factors=many):
            return all(is_positive(one) or _is_square(one) for one in many)
        case t.Call(name=name):
            return name in ("abs", "norm", "norm1", "norm_F", "norm_inf", "relu")
    return False


def movable(words: Vocabulary) -> list[str]:
    """The names that a point may give another value: sizes, numbers, vectors and matrices that are not defined."""
    free = [n for n, s in words.symbols.items() if s.type.definition is None and s.type.kind not in ("map", "index")]
    kept = [n for n in free if n not in words.covariances and (not words.symbols[n].type.random or n in words.outside)]
    return [*kept, *(name for name in words.sizes if name not in free)]


def moved(words: Vocabulary, attempt: int, fixed: Mapping[str, Any], name: str, value: Fraction) -> dict[str, Any]:
    """The fixed values with another one for `name`; of an array, for its first entry. Undefined outside its domain."""
    symbol = words.symbols.get(name)
    kind = "natural" if symbol is None else symbol.type.kind
    if kind in KINDS and not KINDS[kind](value):
        raise Undefined(f"{name} leaves its domain")
    if symbol is None or not symbol.shape:
        return {**fixed, name: value}
    array = point(words, attempt, fixed).values[name]
    now: Any = next(entries(array))
    return {**fixed, name: ("set", with_first(array, value - now))}


def with_first(array: Any, more: Any) -> Any:
    """An array with `more` added to its first entry."""
    return (with_first(array[0], more), *array[1:]) if isinstance(array, tuple) else array + more


def zeros(
    words: Vocabulary, node: t.Node, attempt: int, fixed: Mapping[str, Any], indices: tuple[t.Index, ...] = ()
) -> Iterator[tuple[dict[str, Any], str]]:
    """Values to fix, and the name that was moved, so that a node is 0: solved as a quadratic, or with zeros."""
    bound = {index.name: Fraction(1) for index in indices}

    def value_at(chosen: Mapping[str, Any]) -> list[Any]:
        place = point(words, attempt, chosen)
        return list(plain_entries(replace(place, values={**place.values, **bound}).value(node, DIGITS)))

    for name in movable(words):
        if name in fixed:
            continue
        if words.symbols.get(name) is not None and words.symbols[name].shape:
            try:
                blank = {**fixed, name: Fraction(0)}
                if not any(value_at(blank)):
                    yield blank, name
            except (Undefined, Unevaluable):
                pass
        roots: dict[Fraction, None] = {}
        for probes in PROBES:
            try:
                samples = [value_at(moved(words, attempt, fixed, name, probe)) for probe in probes]
            except (Undefined, Unevaluable):
                continue
            roots |= dict.fromkeys(_roots([sample[0] for sample in samples], probes[0]))
        for root in roots:
            try:
                chosen = moved(words, attempt, fixed, name, root)
                if not any(value_at(chosen)):
                    yield chosen, name
            except (Undefined, Unevaluable):
                continue


def _roots(samples: list[Any], step: Fraction) -> list[Fraction]:
    """The rational zeros of the quadratic with these values at 1, 2, 3 and 4 steps; none if it is not one."""
    if not all(isinstance(sample, Fraction) for sample in samples):
        return []
    first, second, third, fourth = samples
    a = (third - 2 * second + first) / 2
    b = second - first - 3 * a
    c = first - a - b
    if fourth != 16 * a + 4 * b + c or not (a or b):
        return []
    if not a:
        return [-c / b * step]
    inside = b * b - 4 * a * c
    top, bottom = whole_root(abs(inside.numerator), 2), whole_root(inside.denominator, 2)
    if inside < 0 or top is None or bottom is None:
        return []
    return [step * (-b + sign * Fraction(top, bottom)) / (2 * a) for sign in ((1, -1) if top else (1,))]


def places_that_fail(words: Vocabulary, need: Need) -> Iterator[Point]:
    """Points at which a need may not be met: zeros of its node, then ordinary points."""
    node = need.node
    if isinstance(node, t.Call) and node.name == "cos":
        node = t.Add(node.shape, (*node.arguments, t.Number((), -HALF_PI)))
    for attempt in range(STARTS):
        for chosen, _ in zeros(words, node, attempt, {}, need.indices):
            try:
                yield point(words, attempt, chosen)
            except (Undefined, Unevaluable):
                continue
    yield from points(words, MOST_PLACES)


def has_value(place: Point, node: t.Node) -> bool | None:
    """Whether a tree has a value at a point; None if that cannot be evaluated."""
    try:
        list(entries(place.value(node, DIGITS)))
    except (TooNear, Unevaluable):
        return None
    except Undefined:
        return False
    return True


def domain_difference(gold: t.Node, answer: t.Node) -> str | None:
    """The condition under which both have a value where one has none and the other has; None if there is none."""
    first, second = ([need for need in needs(node) if need not in _ASSUMED.get()] for node in (gold, answer))
    extra = [(need, gold, answer) for need in first if need not in second]
    extra += [(need, answer, gold) for need in second if need not in first]
    if not extra:
        return None
    words = vocabulary(gold, answer)
    found: list[Need] = []
    for need, own, other in extra:
        with effort(DOMAIN_EFFORT):
            for place in places_that_fail(words, need):
                if (
                    is_allowed(place)
                    and need.fails_at(place)
                    and has_value(place, own) is False
                    and has_value(place, other)
                ):
                    found.append(need)
                    break
    return condition_text(found) if found else None


def is_allowed(place: Point) -> bool:
    """Whether the declared names have values at a point."""
    return not any(assumed.fails_at(place) for assumed in _ASSUMED.get())


def condition_at(place: Point, node: t.Node) -> str | None:
    """The condition that a tree without a value at a point does not meet there; None if none is known."""
    failing = [need for need in needs(node) if need.fails_at(place)]
    return condition_text(failing) if failing else None


def condition_text(found: list[Need]) -> str:
    """The needs as text, each number once: x ≥ 0 and x ≠ 0 are x > 0."""
    texts: dict[str, tuple[set[str], str]] = {}
    for need in found:
        sign, node = simplified_need(need.sign, need.node)
        for_all = " for every " + " and ".join(index.name for index in need.indices) if need.indices else ""
        if node.shape:
            for_all = " in every entry"
        shown, limit = plain(node), "0"
        match node:
            case t.Add(terms=(first, t.Number(value=value, unit=None))):
                shown, limit = plain(first), plain(t.Number((), -value))
        texts.setdefault(shown, (set(), f"{limit}{for_all}"))[0].add(sign)
    signs = ((shown, next(iter(signs)) if len(signs) == 1 else ">", limit) for shown, (signs, limit) in texts.items())
    return " and ".join(map(" ".join, signs))


def simplified_need(sign: str, node: t.Node) -> tuple[str, t.Node]:
    """The need of a simpler node: x² > 0 and |x| ≠ 0 are x ≠ 0, −x > 0 is x < 0."""
    minus = {"≥": "≤", ">": "<", "≤": "≥", "<": ">", "≠": "≠"}
    match node:
        case t.Call(name="norm" | "norm1" | "norm_F" | "norm_inf") if sign == ">":
            return "≠", node
        case t.Call(name="abs", arguments=(inside,)) if sign in "≠>":
            return simplified_need("≠", inside)
        case t.Call(name="sqrt", arguments=(inside,)) if sign in "≠>":
            return simplified_need(sign, inside)
        case t.Power(base=base, exponent=t.Number(value=value)) if not base.shape and value.denominator == 1 and value:
            if value % 2 == 0 and sign in "≠>":
                return simplified_need("≠", base)
            if value % 2:
                return simplified_need(sign, base)
        case t.Multiply(factors=(t.Number(value=value), *rest)) if value and rest:
            inside = rest[0] if len(rest) == 1 else replace(node, factors=tuple(rest))
            return simplified_need(sign if value > 0 else minus[sign], inside)
        case t.Divide(top=top, bottom=bottom) if is_positive(bottom):
            return simplified_need(sign, top)
    return sign, node
