"""What would make a wrong answer right: a vector whose components are all the same, or the sign of a number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from qkv.errors import MathsError, OptionError
from qkv.maths.counterexample import pretty, written
from qkv.maths.extents import names_in
from qkv.maths.substitution import free_indices, names, substitute, symbols_of, walk
from qkv.maths.tree import Multiply, Node, Number, Order, Part, PlusMinus, Relation, Special, Symbol, Type
from qkv.maths.trial import decide, slow, tried
from qkv.maths.values.agreeing import agree_at
from qkv.maths.values.arithmetic import DIGITS, Undefined, Unevaluable, effort, spend
from qkv.maths.values.points import Point, Vocabulary, points, settled, vocabulary

if TYPE_CHECKING:
    from qkv.maths.verdict import Verdict

LETTERS = ("m", "c", "t", "a", "b", "u", "w", "s")
MOST_VECTORS, MOST_SPECIAL = 5, 24
NOTING = 8_000  # products for a remark that a verdict can do without
WORK = 6_000
OUTSIDE = 24


def plain_vectors(*nodes: Node) -> dict[str, Symbol]:
    """The vectors that are free to be anything: not random, not defined."""
    found = symbols_of(*nodes).items()
    return {name: s for name, s in found if s.type.kind == "vector" and not s.type.random and s.type.definition is None}


def constant_vector(symbol: Symbol, scalar: Symbol) -> Node:
    return Multiply(symbol.shape, (scalar, Special(symbol.shape, "ones")))


def fresh(taken: set[str]) -> Iterator[str]:
    return (
        letter for letter in itertools.chain(LETTERS, (f"m_{k}" for k in itertools.count(1))) if letter not in taken
    )


def groups(vectors: Mapping[str, Symbol]) -> Iterator[tuple[str, ...]]:
    """One vector at a time, then all of them together."""
    for name in vectors:
        yield (name,)
    if 1 < len(vectors) <= MOST_VECTORS:
        yield tuple(vectors)


def reread(gold: Node, answer: str, symbols: Mapping[str, str], found: Verdict) -> Verdict | None:
    """An answer that makes no sense with a vector, read with a number in its place; None where that is wrong too."""
    from qkv.maths.reading import parse
    from qkv.maths.verdict import meant

    right = meant(gold)
    if isinstance(right, (Order, PlusMinus)) or (isinstance(gold, Relation) and gold.signs[-1] not in ("=", "≈")):
        return None
    vectors = plain_vectors(right)
    for group in groups(dict(itertools.islice(vectors.items(), MOST_VECTORS))):
        declared = dict(symbols)
        for name in group:
            declared[name] = "scalar"
            for size in vectors[name].shape:
                for dimension in names_in(size):
                    declared.setdefault(dimension, "natural")
        try:
            given = meant(parse(answer, declared, expected=right.shape, free=free_indices(right)))
        except (MathsError, OptionError):
            continue
        if given.shape != right.shape or isinstance(given, (Order, PlusMinus)) or not set(group) <= names(given):
            continue
        scalars = {name: Symbol((), name, Type("scalar")) for name in group}
        swapped = substitute(right, {name: constant_vector(vectors[name], scalars[name]) for name in group})
        if decide(swapped, given, work=WORK).equal and not degenerate(given, group):
            return conditional(group, vectors, right, given, found)
    return None


def conditional(
    group: tuple[str, ...], vectors: Mapping[str, Symbol], right: Node, given: Node, found: Verdict
) -> Verdict:
    """The verdict on an answer that was read with numbers in the place of these vectors."""
    taken = names(right, given) | {size for s in vectors.values() for part in s.shape for size in names_in(part)}
    letters = dict(zip(group, fresh(taken), strict=False))
    common = said(substitute(given, {name: Symbol((), letter, Type("scalar")) for name, letter in letters.items()}))
    shown = {name: pretty(vectors[name]) for name in group}
    where = ", ".join(f"{shown[name]} = {letters[name]}·1" for name in group)
    text = f"every component of {' and of '.join(shown.values())} is the same ({where}, then both are {common})"
    meaning = " or ".join(f"scalar {name}" for name in shown.values())
    value = example(right)
    reason = f"equal only if {text}" + (f"; with {value} and no {meaning} is meant" if value else "")
    return replace(found, kind="conditional", evidence="refuted", reason=reason, condition=text)


def said(node: Node) -> str:
    from qkv.maths.writing import plain

    return plain(node)


def example(gold: Node) -> str:
    """The right value at a simple point: "μ = (1, 2) the right value is 5"."""
    words = vocabulary(gold)
    for place in points(words, 3):
        try:
            value = place.value(gold, DIGITS)
        except (Undefined, Unevaluable):
            continue
        parts = [
            f"{pretty(symbol)} = {written(place.values[name])}"
            for name, symbol in words.symbols.items()
            if name in place.values and not symbol.type.random and matters(gold, place, name, value)
        ]
        if parts:
            return f"{', '.join(parts)} the right value is {written(value)}"
    return ""


def matters(gold: Node, place: Point, name: str, value: Any) -> bool:
    """Whether the value at a point is another one where `name` has other values."""
    now = place.values[name]
    if callable(now):
        return False
    try:
        return replace(place, values={**place.values, name: doubled(now)}).value(gold, DIGITS) != value
    except (Undefined, Unevaluable):
        return True


def doubled(value: Any) -> Any:
    return tuple(map(doubled, value)) if isinstance(value, tuple) else 2 * value + 1


def condition(gold: Node, answer: Node, wrong: Verdict) -> Verdict | None:
    """The condition that makes a wrong answer of the right shape right, None where there is none."""
    if slow(gold, answer):
        return None
    vectors = {name: s for name, s in plain_vectors(gold, answer).items() if name not in pointed_at(gold)}
    used, answered = names(gold), names(answer)
    words = vocabulary(gold, answer)
    for group in groups(dict(itertools.islice(vectors.items(), MOST_VECTORS))):
        equal = dict.fromkeys(group, 3)
        if not set(group) <= used or not tried(gold, answer, fixed=equal, enough=2, witness=False).equal:
            continue
        letters = dict(zip(group, fresh(names(gold, answer)), strict=False))
        scalars = {name: Symbol((), letter, Type("scalar")) for name, letter in letters.items()}
        constants = {name: constant_vector(vectors[name], scalars[name]) for name in group}
        try:
            first, second = substitute(gold, constants), substitute(answer, constants)
        except ValueError:
            continue
        mentioned = [letter for name, letter in letters.items() if name in answered]

        def varied(place: Point, group: tuple[str, ...] = group) -> Point | None:
            return place if any(len(set(place.values[name])) > 1 for name in group) else None

        if decide(first, second, work=WORK).equal and not degenerate(first, mentioned):
            shown = [pretty(vectors[name]) for name in group]
            where = ", ".join(f"{name} = {letter}·1" for name, letter in zip(shown, letters.values(), strict=True))
            text = f"every component of {' and of '.join(shown)} is the same ({where})"
            reason = said_of(text, necessary(gold, answer, words, varied), wrong)
            return replace(wrong, kind="conditional", condition=text, reason=reason)
    return sign_condition(gold, answer, wrong)


def pointed_at(gold: Node) -> set[str]:
    """The names of which the gold picks out a component by a free index: another index is a wrong one, no condition."""
    free = free_indices(gold)
    found: set[str] = set()
    for node in walk(gold):
        if isinstance(node, Part) and free.keys() & free_indices(*filter(None, node.indices)):
            found |= names(node.body)
    return found


def degenerate(common: Node, scalars: Iterable[str]) -> bool:
    """Whether the value that both sides take at constant vectors does not even depend on one of the constants.

    softmax(s) and softmax(2s) are uniform at every constant s: that says nothing of how s goes into them.
    """
    others = fresh(names(common))
    changed = [substitute(common, {name: Symbol((), next(others), Type("scalar"))}) for name in scalars]
    return any(tried(common, other, witness=False).equal for other in changed)


def sign_condition(gold: Node, answer: Node, wrong: Verdict) -> Verdict | None:
    """The same for a number that is right with one sign and wrong with the other."""
    words = vocabulary(gold, answer)
    for name, symbol in symbols_of(gold, answer).items():
        if symbol.type.kind != "scalar" or symbol.type.random or symbol.type.definition is not None:
            continue
        positive = Symbol((), name, Type("nonnegative"))
        for sign, value in (("≥", positive), ("≤", Multiply((), (Number((), Fraction(-1)), positive)))):
            probe = {name: Fraction(3 if sign == "≥" else -3)}
            if tried(gold, answer, fixed=probe, enough=2, witness=False).equal is not True:
                continue
            try:
                first, second = substitute(gold, {name: value}), substitute(answer, {name: value})
            except ValueError:
                continue

            def turned(place: Point, name: str = name, wanted: int = -1 if sign == "≥" else 1) -> Point | None:
                values = place.values
                if any(isinstance(value, Fraction) and not value for value in values.values()):
                    return None
                return replace(place, values={**values, name: wanted * abs(values[name])})

            if decide(first, second, work=WORK).equal:
                text = f"{pretty(symbol)} {sign} 0"
                if not necessary(gold, answer, words, turned):
                    return replace(wrong, reason=said_of(text, False, wrong))
                return replace(wrong, kind="conditional", condition=text, reason=said_of(text, True, wrong))
    return None


def necessary(gold: Node, answer: Node, words: Vocabulary, outside: Callable[[Point], Point | None]) -> bool:
    """Whether the two differ at every point that can be tried where a condition does not hold."""
    for place in points(words, OUTSIDE):
        try:
            beyond = outside(place)
            if beyond is not None and agree_at(settled(words, beyond), gold, answer):
                return False
        except (Undefined, Unevaluable):
            continue
    return True


def said_of(text: str, only: bool, wrong: Verdict) -> str:
    if only:
        return f"equal only if {text}; not the same in general: {wrong.counterexample}"
    return f"equal if {text}, not in general: {wrong.counterexample}"


def special(gold: Node, answer: Node) -> str | None:
    """A special value at which a wrong answer happens to be right, in words: "σ = 1"."""
    if slow(gold, answer):
        return None
    words = vocabulary(gold, answer)
    shown = {name: pretty(symbol) for name, symbol in words.symbols.items()}
    with effort(NOTING), suppress(Unevaluable):
        for text, fixed in itertools.islice(special_values(words, shown), MOST_SPECIAL):
            if tried(gold, answer, fixed=fixed, witness=False).equal:
                spend(0)  # where the effort ran out, a point at which the two differ may be among those left untried
                return text
    return None


def special_values(words: Any, shown: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    free = {name: s for name, s in words.symbols.items() if s.type.definition is None and not s.type.random}
    numbers = {name: s.type.kind for name, s in free.items() if s.type.kind in ("scalar", "positive", "nonnegative")}
    for name in numbers:
        yield f"{shown[name]} = 1", {name: Fraction(1)}
    for name in words.sizes:
        yield f"{shown.get(name, name)} = 1", {name: 1}
    for a, b in itertools.combinations(words.sizes, 2):
        yield f"{shown.get(a, a)} = {shown.get(b, b)}", {b: ("as", a)}
    vectors = [name for name, symbol in free.items() if symbol.type.kind in ("vector", "matrix")]
    for a, b in itertools.combinations(vectors, 2):
        if free[a].shape == free[b].shape:
            yield f"{shown[a]} = {shown[b]}", {b: ("as", a)}
    for name, symbol in free.items():
        if symbol.type.kind == "vector" or numbers.get(name, "positive") != "positive":
            yield f"{shown[name]} = 0", {name: Fraction(0)}
