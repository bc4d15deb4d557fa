"""Points to try: sizes that differ from name to name, small numbers of both signs, the same ones every time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from qkv.maths.algebra.symmetry import symmetric
from qkv.maths.extents import measure, names_in, whole
from qkv.maths.substitution import beneath, free_indices, symbols_of, walk
from qkv.maths.tree import Call, Covariance, Expect, Index, Node, Number, Part, Power, Size, Symbol
from qkv.maths.values.arithmetic import ONE, Undefined, Unevaluable
from qkv.maths.values.drawing import (
    GENTLE,
    PATTERNED,
    SCALES,
    array,
    chosen,
    definite,
    filled,
    mixed,
    natural,
    places,
    scalar,
    some_map,
)
from qkv.maths.values.exact import evaluate, evaluate_with_error

KINKS = ("max", "min", "abs", "sign", "relu", "argmax", "norm1", "norm_inf")
MOST_CONSTANTS = 6


@dataclass(frozen=True)
class Point:
    """Sizes and values by name, and which attempt at a point this was."""

    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    attempt: int = 0

    def value(self, node: Node, precision: int) -> Any:
        return self.with_error(node, precision)[0]

    def with_error(self, node: Node, precision: int) -> tuple[Any, Decimal]:
        return evaluate_with_error(node, self.sizes, self.values, precision=precision)


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
    kinked: bool = False
    steep: bool = False
    constants: tuple[Fraction, ...] = ()

    def sized(self) -> set[str]:
        """The names on which the size of something hangs."""
        return {name for text in self.texts for name in names_in(text)}


def vocabulary(*trees: Node) -> Vocabulary:
    """The names, sizes and free indices of the trees, through definitions and laws."""
    symbols = symbols_of(*trees)
    sizes: dict[str, None] = {}
    texts: dict[str, None] = {}
    constants: dict[Fraction, None] = {}
    least, kinked, steep = 2, False, False

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
        if isinstance(node, Number) and node.value:
            constants.setdefault(abs(node.value))
        kinked = kinked or has_kink(node)
        steep = steep or is_steep(node)
        if isinstance(node, Part):
            written = [i.value for i in node.indices if isinstance(i, Number) and i.value.denominator == 1]
            least = max([least, *(int(value) for value in written if value <= 9)])
        if isinstance(node, Symbol):
            if node.type.kind == "natural":
                sizes.setdefault(node.name)
            for shape in (node.type.shape, *node.type.arguments):
                for part in shape:
                    size(part)
    undefined = tuple(name for name in sizes if name not in symbols or symbols[name].type.definition is None)
    free = free_indices(*trees)
    covariances = symmetric(symbol.type for symbol in symbols.values()).known
    far = tuple(constants)[:MOST_CONSTANTS] if kinked else ()
    kept = (symbols, undefined, tuple(texts), free, least, covariances, outside(*trees))
    return Vocabulary(*kept, kinked=kinked, steep=steep, constants=far)


def has_kink(node: Node) -> bool:
    """Whether a node may go on by another rule from some value on: a maximum, an absolute value, a root of a square."""
    if isinstance(node, Call):
        return node.name in KINKS or node.name == "sqrt"
    if isinstance(node, Power) and isinstance(node.exponent, Number):
        return node.exponent.value.denominator != 1
    return False


def is_steep(node: Node) -> bool:
    """Whether a node takes what is large to what has too many digits to compute with."""
    if isinstance(node, Call):
        return node.name in ("exp", "softmax")
    return isinstance(node, Power) and not isinstance(node.exponent, Number) and not node.shape


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
    vectors = numbers = 0
    positive = positive or (attempt > PATTERNED and attempt % 3 == 2)
    pointers: dict[Size, list[str]] = {}
    for place, (name, symbol) in enumerate(words.symbols.items()):
        kind = symbol.type.kind
        if symbol.type.definition is not None or name in sizes:
            continue
        if name in fixed and not isinstance(fixed[name], tuple):
            values[name] = filled(fixed[name], symbol.type.shape, sizes)
        elif kind == "map":
            values[name] = some_map(symbol.type, sizes, 7 * attempt + place)
        elif kind == "index":
            pointers.setdefault(symbol.type.shape[0] if symbol.type.shape else 2, []).append(name)
        elif name in words.covariances:
            values[name] = definite(whole(symbol.shape[0], sizes), draw, attempt, scale(words, name, attempt))
        elif symbol.shape:
            shape = tuple(whole(size, sizes) for size in symbol.shape)
            first = attempt == 0
            ordered = first and len(shape) == 1 and not vectors
            # The first point is what a counterexample shows; entries that are all different come with the next.
            simple = len(shape) == 2 and (first or (words.steep and attempt == 1))
            size = scale(words, name, attempt)
            values[name] = array(shape, draw, ordered=ordered, positive=first, simple=simple, scale=size)
            vectors += len(shape) == 1 and not symbol.type.random
        else:
            values[name] = scalar(kind, name, attempt, numbers if attempt else place, words.constants, positive)
            numbers += 1
    for name, index in words.indices.items():
        pointers.setdefault(index.size, []).append(name)
    for size, names in pointers.items():
        for name, place in places(names, attempt, whole(size, sizes)).items():
            if name not in values:
                values[name] = Fraction(place)
    for name, value in fixed.items():
        if isinstance(value, tuple) and value[0] == "as" and value[1] in values and name in values:
            values[name] = values[value[1]]
        elif isinstance(value, tuple) and value[0] == "set" and name in words.symbols:
            values[name] = value[1]
    found = Point(sizes, values, attempt)
    return settled(words, found)


def scale(words: Vocabulary, name: str, attempt: int) -> Fraction:
    """What the entries of an array are multiplied by, so that some are small and some as large as what is written."""
    if words.steep and attempt > 1:
        return chosen(GENTLE, attempt, name, "scale")
    if not words.kinked or attempt <= PATTERNED:
        return ONE
    return chosen((*SCALES, *words.constants), attempt, name, "scale")


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
    if count == 1 and turn != 3:
        base = [words.least + turn]
    elif turn in (1, 4):
        base = [*base[1:], *base[:1]]
    elif turn == 2:
        base = [b + 1 for b in reversed(base)]
    elif turn == 3:
        base = [words.least + (attempt // 5) % 2] * count
    sizes = dict(zip(words.sizes, base, strict=True))
    sized = words.sized()
    for name in words.sizes:
        if name not in sized:
            sizes[name] = natural(name, attempt, sizes[name], words.constants)
        elif turn == 4 and (attempt < 5 or mixed(attempt, name, "size") % 2):
            sizes[name] = 1
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
            if found.denominator != 1 and inside and inside[0] not in fixed:
                sizes[inside[0]] *= found.denominator
