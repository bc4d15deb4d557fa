"""Points to try: sizes that differ from name to name, small numbers of both signs, the same ones every time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import prod
from typing import Any

from .arithmetic import ONE, ZERO, Scalar, Undefined, Unevaluable, add, multiply
from .arrays import entries
from .exact import evaluate, evaluate_with_error
from .sizes import measure, names_in, whole
from .substitution import beneath, free_indices, symbols_of, walk
from .tree import Covariance, Expect, Index, Node, Number, Part, Shape, Size, Symbol, Type

SCALARS = (2, 3, 5, 7, 4, 6)
MOST_ENTRIES = 4_096


@dataclass(frozen=True)
class Point:
    """Sizes and values by name; `tilt` chooses the laws where only mean and covariance are known."""

    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    tilt: int = 0

    def value(self, node: Node, precision: int) -> Any:
        return self.with_error(node, precision)[0]

    def with_error(self, node: Node, precision: int) -> tuple[Any, Decimal]:
        return evaluate_with_error(node, self.sizes, self.values, precision=precision, tilt=self.tilt)


@dataclass(frozen=True)
class Vocabulary:
    """What needs a value before some trees have one."""

    symbols: Mapping[str, Symbol]
    sizes: tuple[str, ...]
    texts: tuple[str, ...]
    indices: Mapping[str, Index]
    least: int
    covariances: frozenset[str]
    outside: frozenset[str]


def vocabulary(*trees: Node) -> Vocabulary:
    """The names, sizes and free indices of the trees, through definitions and laws."""
    symbols = symbols_of(*trees)
    sizes: dict[str, None] = {}
    texts: dict[str, None] = {}
    covariances: set[str] = set()
    least = 2

    def size(text: Size) -> None:
        if isinstance(text, str):
            texts.setdefault(text)
            for name in names_in(text):
                sizes.setdefault(name)

    for node in walk(*trees):
        for part in node.shape:
            size(part)
        if isinstance(node, Index):
            size(node.size)
        if isinstance(node, Part):
            written = [i.value for i in node.indices if isinstance(i, Number) and i.value.denominator == 1]
            least = max([least, *(int(value) for value in written if value <= 9)])
        if isinstance(node, Symbol):
            if node.type.kind == "natural":
                sizes.setdefault(node.name)
            for shape in (node.type.shape, *node.type.arguments):
                for part in shape:
                    size(part)
            if node.type.law is not None:
                within = symbols_of(node.type.law.covariance)
                covariances.update(name for name, symbol in within.items() if symbol.type.kind == "matrix")
    undefined = tuple(name for name in sizes if name not in symbols or symbols[name].type.definition is None)
    free = free_indices(*trees)
    return Vocabulary(symbols, undefined, tuple(texts), free, least, frozenset(covariances), outside(*trees))


def outside(*trees: Node) -> frozenset[str]:
    """The names that stand somewhere outside of expectations, where a random one needs a value."""
    found: set[str] = set()
    waiting = list(trees)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (Expect, Covariance)):
            continue
        if isinstance(node, Symbol):
            if node.name in found:
                continue
            found.add(node.name)
        waiting.extend(beneath(node))
    return frozenset(found)


def points(
    words: Vocabulary, count: int = 40, *, fixed: Mapping[str, Any] | None = None, positive: bool = False
) -> Iterator[Point]:
    """Points at which the names may be tried, simple ones first; what is `fixed` keeps its value.

    A fixed value is a number, nested tuples, or ("as", name) for the value that another name has.
    """
    for attempt in range(count):
        try:
            yield point(words, attempt, fixed or {}, positive)
        except (Undefined, Unevaluable):
            continue


def point(words: Vocabulary, attempt: int, fixed: Mapping[str, Any], positive: bool = False) -> Point:
    draw = random.Random(attempt)
    sizes = lengths(words, attempt, fixed)
    values: dict[str, Any] = {}
    vectors = 0
    for place, (name, symbol) in enumerate(words.symbols.items()):
        kind = symbol.type.kind
        if symbol.type.definition is not None or name in sizes:
            continue
        if name in fixed and not isinstance(fixed[name], tuple):
            values[name] = filled(fixed[name], symbol.type.shape, sizes)
        elif kind == "map":
            values[name] = some_map(symbol.type, sizes, 7 * attempt + place)
        elif kind == "index":
            length = whole(symbol.type.shape[0], sizes) if symbol.type.shape else 2
            values[name] = Fraction(draw.randint(1, length))
        elif name in words.covariances:
            values[name] = definite(whole(symbol.shape[0], sizes), draw, attempt)
        elif symbol.shape:
            shape = tuple(whole(size, sizes) for size in symbol.shape)
            first = attempt == 0
            values[name] = array(shape, draw, ordered=first and len(shape) == 1 and not vectors, positive=first)
            vectors += len(shape) == 1 and not symbol.type.random
        else:
            values[name] = scalar(kind, draw, attempt, place, positive)
    for place, (name, index) in enumerate(words.indices.items()):
        length = whole(index.size, sizes)
        values[name] = Fraction((place + attempt) % length + 1 if attempt < 4 else draw.randint(1, length))
    for name, value in fixed.items():
        if isinstance(value, tuple) and value[0] == "as" and value[1] in values and name in values:
            values[name] = values[value[1]]
        elif isinstance(value, tuple) and value[0] == "set" and name in words.symbols:
            values[name] = value[1]
    found = Point(sizes, values, attempt)
    return settled(words, found)


def settled(words: Vocabulary, found: Point) -> Point:
    """The point with the sizes that are defined by others; Undefined where a definition leaves its domain."""
    sizes = dict(found.sizes)
    for name, symbol in words.symbols.items():
        kind = symbol.type.kind
        if symbol.type.definition is None or kind not in ("positive", "nonnegative", "natural"):
            continue
        value = evaluate(symbol.type.definition, sizes, found.values)
        if value < 0 or (value == 0 and kind != "nonnegative"):
            raise Undefined(f"{name} leaves its domain")
        if kind == "natural":
            if not isinstance(value, Fraction) or value.denominator != 1:
                raise Undefined(f"{name} is not whole")
            sizes[name] = int(value)
    for text in words.texts:
        whole(text, sizes)
    return replace(found, sizes=sizes)


def lengths(words: Vocabulary, attempt: int, fixed: Mapping[str, Any]) -> dict[str, int]:
    """Sizes for an attempt, different for different names except where that is what is tried."""
    count = len(words.sizes)
    base = [words.least + k for k in range(count)]
    turn = attempt % 5
    if turn in (1, 4):
        base = [*base[1:], *base[:1]] if count != 1 else [words.least + turn]
    elif turn == 2:
        base = [b + 1 for b in reversed(base)]
    elif turn == 3:
        base = [words.least + (attempt // 5) % 2] * count
    sizes = dict(zip(words.sizes, base, strict=True))
    for name, value in fixed.items():
        if name in sizes:
            sizes[name] = (
                sizes[value[1]] if isinstance(value, tuple) and value[1] in sizes else _whole(value, sizes, name)
            )
    _divide_evenly(words, sizes, fixed)
    defined = {name for name, symbol in words.symbols.items() if symbol.type.definition is not None}
    for text in words.texts:
        if not defined.intersection(names_in(text)):
            whole(text, sizes)
    return sizes


def _whole(value: Any, sizes: Mapping[str, int], name: str) -> int:
    return int(value) if isinstance(value, (int, Fraction)) else sizes[name]


def _divide_evenly(words: Vocabulary, sizes: dict[str, int], fixed: Mapping[str, Any]) -> None:
    """Where a size is a quotient, its first name is made a multiple of what it is divided by."""
    for _ in range(3):
        for text in words.texts:
            inside = names_in(text)
            if not all(name in sizes for name in inside):
                continue
            found = measure(text, sizes)
            if found.denominator != 1 and inside[0] not in fixed:
                sizes[inside[0]] *= found.denominator


def scalar(kind: str, draw: random.Random, attempt: int, place: int, positive: bool) -> Fraction:
    if attempt == 0:
        return Fraction(SCALARS[place % len(SCALARS)])
    size = Fraction(draw.choice((1, 2, 3, 4, 5, 7)), draw.choice((1, 1, 1, 2, 3)))
    if kind == "nonnegative" and attempt % 7 == 5:
        return ZERO
    if kind == "scalar" and not positive and (attempt + place) % 2:
        return -size
    return size


def array(shape: tuple[int, ...], draw: random.Random, *, ordered: bool, positive: bool) -> Any:
    """Entries that differ as far as they can: 1, 2, 3 and so on where `ordered`, else drawn."""
    total = volume(shape)
    if ordered:
        flat = list(range(1, total + 1))
    else:
        low, high = (1, max(6, total + 1)) if positive else (-max(4, total // 2), max(5, total // 2 + 1))
        choices = [k for k in range(low, high) if k]
        flat = draw.sample(choices, total) if total <= len(choices) else draw.choices(choices, k=total)
    return shaped(iter([Fraction(entry) for entry in flat]), shape)


def volume(shape: tuple[int, ...]) -> int:
    """The number of entries; Unevaluable where a point should not be written out."""
    total = prod(shape)
    if total > MOST_ENTRIES:
        raise Unevaluable("it has too many entries to try points")
    return total


def shaped(flat: Iterator[Any], shape: tuple[int, ...]) -> Any:
    return tuple(shaped(flat, shape[1:]) for _ in range(shape[0])) if shape else next(flat)


def filled(value: Any, shape: Shape, sizes: Mapping[str, int]) -> Any:
    lengths_of = tuple(whole(size, sizes) for size in shape)
    total = volume(lengths_of)
    return shaped(iter([Fraction(value)] * total), lengths_of)


def definite(size: int, draw: random.Random, attempt: int) -> Any:
    """A symmetric matrix with a triangular square root in whole numbers."""
    volume((size, size, size))
    low = 0 if attempt == 0 else -2
    lower = [[Fraction(draw.randint(low, 2)) for _ in range(i)] + [Fraction(draw.randint(1, 2))] for i in range(size)]
    if attempt == 0:
        for i in range(1, size):
            lower[i][i - 1] = ONE
    rows = [row + [ZERO] * (size - len(row)) for row in lower]
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
