"""Points to try: the same ones every time, simple values first, then a fixed mixture of sizes, signs and magnitudes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from itertools import islice, product
from math import prod
from typing import Any

from qkv.maths import tree as t
from qkv.maths.sizes import names_in, size_value, whole_size
from qkv.maths.symmetry import symmetric
from qkv.maths.values import arithmetic as arith
from qkv.maths.values.arithmetic import DIGITS, ONE, ZERO, PlainNumber, Scalar, Undefined, decimal, digits, multiply
from qkv.maths.values.evaluate import evaluate, evaluate_with_error

SCALARS = (2, 3, 5, 7, 4, 6)
FEW_MAGNITUDES = tuple(Fraction(value) for value in ("1", "2", "3", "1/2", "5", "7"))
MANY_MAGNITUDES = tuple(Fraction(value) for value in ("1/10", "1/2", "1", "2", "3", "7", "10", "100"))
NATURALS = (1, 2, 3, 4, 5, 7, 10, 20, 50, 100)
SCALES = tuple(Fraction(value) for value in ("1", "1/10", "1", "10", "1/2", "100"))
SMALL_SCALES = tuple(Fraction(value) for value in ("1", "1/2", "1/10", "1/4", "1/10"))
PATTERNED_ATTEMPTS = 8
# Which of three indices of one size are equal: every pattern of coincidence, then all different again.
COINCIDENCES = ((0, 1, 2), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2, 1, 0))
MOST_ENTRIES = 4_096
CORNERS = {"scalar": (0, 1, -1), "nonnegative": (0, 1), "positive": (1,), "natural": (1, 2)}
SMALL_SIZES = (1, 2, 3, 5, 6, 7, 8)


def hashed(attempt: int, name: str, what: str) -> int:
    """A hash of attempt, name and purpose."""
    return int.from_bytes(blake2b(f"{attempt} {name} {what}".encode(), digest_size=6).digest(), "big")


def choose(choices: Sequence[Any], attempt: int, name: str, what: str) -> Any:
    return choices[hashed(attempt, name, what) % len(choices)]


def draw_scalar(
    kind: str, name: str, attempt: int, place: int, constants: Sequence[Fraction], positive: bool
) -> Fraction:
    """The `place`-th number at an attempt; the first attempts give three numbers every pattern of signs."""
    if attempt == 0:
        return Fraction(SCALARS[place % len(SCALARS)])
    late = attempt > PATTERNED_ATTEMPTS
    size: Fraction = choose(MANY_MAGNITUDES if late else FEW_MAGNITUDES, attempt, name, "size")
    if constants and late and (attempt + place) % 3 == 0:
        size = near_constant(constants, attempt) or size
    if kind != "positive" and late and (attempt + 5 * place) % 12 == 0:
        return ZERO
    if kind != "scalar" or positive or (late and attempt % 3 == 2):
        return size
    below = hashed(attempt, name, "sign") % 2 if late or place > 2 else (attempt - 1) >> place & 1
    return -size if below else size


def near_constant(constants: Sequence[Fraction], attempt: int) -> Fraction:
    """A number beyond, below, at or near a literal, at which a kink may be; consecutive attempts take every one."""
    way, which = divmod(attempt // 3, len(constants))
    number = constants[which]
    return abs((2 * number, number / 2, number + 1, number - 1, number, number * number)[way % 6])


def draw_natural(name: str, attempt: int, least: int, constants: Sequence[Fraction]) -> int:
    """A natural that is not the size of an axis, so that it may be large."""
    whole_constants = [number for number in constants if number.denominator == 1]
    if whole_constants and attempt > PATTERNED_ATTEMPTS and hashed(attempt, name, "constant") % 3 == 0:
        return max(1, int(near_constant(whole_constants, attempt)))
    return choose(NATURALS, attempt, name, "size") if attempt > 1 else least


def index_places(names: Sequence[str], attempt: int, length: int) -> dict[str, int]:
    """Values for indices of one size: all different, all equal, and every pattern between."""
    found = {}
    shift = attempt // len(COINCIDENCES)
    for number, name in enumerate(names):
        if number < 3 and attempt < 3 * len(COINCIDENCES):
            found[name] = (COINCIDENCES[attempt % len(COINCIDENCES)][number] + shift) % length + 1
        else:
            found[name] = hashed(attempt, name, "place") % length + 1
    return found


def draw_array(
    shape: tuple[int, ...],
    draw: random.Random,
    *,
    ordered: bool = False,
    positive: bool = False,
    simple: bool = False,
    tied: bool = False,
    scale: Fraction = ONE,
) -> Any:
    """Entries that differ as far as possible: 1, 2, 3, … if `ordered`, else drawn; all times `scale`.

    `simple`: small entries that are easy to follow by hand, some of them equal; `tied`: some equal, of both signs.
    """
    total = entry_count(shape)
    if ordered:
        flat = list(range(1, total + 1))
    elif tied:
        flat = draw.choices((-2, 1, 3), k=total)
    elif simple:
        flat = [1, *draw.choices((0, 1, 2, 3), k=total - 1)] if total else []
    else:
        low, high = (1, max(6, total + 1)) if positive else (-max(4, total // 2), max(5, total // 2 + 1))
        choices = [k for k in range(low, high) if k]
        flat = draw.sample(choices, total) if total <= len(choices) else draw.choices(choices, k=total)
    return as_nested(iter([Fraction(entry) * scale for entry in flat]), shape)


def entry_count(shape: tuple[int, ...]) -> int:
    """The number of entries of an array; Unevaluable if there are too many."""
    total = prod(shape)
    if total > MOST_ENTRIES:
        raise arith.Unevaluable("it has too many entries to try points")
    arith.spend(total)
    return total


def as_nested(flat: Iterator[Any], shape: tuple[int, ...]) -> Any:
    return tuple(as_nested(flat, shape[1:]) for _ in range(shape[0])) if shape else next(flat)


def filled_array(value: Any, shape: t.Shape, sizes: Mapping[str, int]) -> Any:
    lengths_of = tuple(whole_size(size, sizes) for size in shape)
    total = entry_count(lengths_of)
    return as_nested(iter([Fraction(value)] * total), lengths_of)


def definite_matrix(size: int, draw: random.Random, attempt: int, scale: Fraction = ONE) -> Any:
    """A positive definite matrix whose triangular root is whole numbers times `scale`, so that roots stay exact."""
    entry_count((size, size, size))
    low = 0 if attempt == 0 else -2
    lower = [[Fraction(draw.randint(low, 2)) for _ in range(i)] + [Fraction(draw.randint(1, 2))] for i in range(size)]
    if attempt == 0:
        for i in range(1, size):
            lower[i][i - 1] = ONE
    rows = [[entry * scale for entry in row] + [ZERO] * (size - len(row)) for row in lower]
    return tuple(tuple(sum((a * b for a, b in zip(r, s, strict=True)), ZERO) for s in rows) for r in rows)


def random_map(type: t.Type, sizes: Mapping[str, int], seed: int) -> Callable[..., Any]:  # noqa: A002
    """A cubic polynomial with whole coefficients, as a map without special properties; the first ones increase."""
    shape = tuple(whole_size(size, sizes) for size in type.shape)
    total = entry_count(shape)
    signs = (1,) if seed < SIGNED_MAPS else (1, -1)

    def component(number: int, inputs: list[Scalar]) -> Scalar:
        draw = random.Random(1000 * seed + number)
        result: Scalar = Fraction(draw.randint(1, 9) * draw.choice(signs))
        running: Scalar = ONE
        for entry in inputs:
            square = multiply(entry, entry)
            for term in (entry, square, multiply(running, entry), multiply(square, entry)):
                result = arith.add(result, multiply(Fraction(draw.randint(1, 5) * draw.choice(signs)), term))
            running = arith.add(running, multiply(Fraction(draw.randint(1, 3)), entry))
        return result

    known: dict[tuple[Scalar, ...], Any] = {}  # both sides of an equation apply a map to the same exact arguments

    def apply(*arguments: Any) -> Any:
        inputs = list(arith.entries(arguments))
        key = tuple(inputs) if all(isinstance(entry, Fraction) for entry in inputs) else ()
        if key not in known:
            known[key] = as_nested(iter([component(number, inputs) for number in range(total)]), shape)
        return known[key] if key else known.pop(key)

    return apply


SIGNED_MAPS = 7
KINKS = ("max", "min", "abs", "sign", "relu", "argmax", "norm1", "norm_inf", "floor", "ceil")
MOST_CONSTANTS = 6


@dataclass(frozen=True)
class Point:
    """Sizes and values by name, and the number of the attempt."""

    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    attempt: int = 0

    def value(self, node: t.Node, precision: int) -> Any:
        return self.with_error(node, precision)[0]

    def with_error(self, node: t.Node, precision: int) -> tuple[Any, Decimal]:
        return evaluate_with_error(node, self.sizes, self.values, precision=precision)


@dataclass(frozen=True)
class Vocabulary:
    """What needs a value before the trees have one: names, sizes, free indices; and which points suit them.

    `texts` are the sizes of axes and the ranges of sums, `axes` the former, which are at least 1.
    """

    symbols: Mapping[str, t.Symbol]
    sizes: tuple[str, ...]
    texts: tuple[str, ...]
    axes: tuple[str, ...]
    indices: Mapping[str, t.Index]
    least: int
    covariances: frozenset[str]
    outside: frozenset[str]
    kinked: bool = False
    steep: bool = False
    constants: tuple[Fraction, ...] = ()

    def sized(self) -> set[str]:
        """The names on which the size of an axis depends."""
        return {name for text in self.texts for name in names_in(text)}


def vocabulary(*trees: t.Node) -> Vocabulary:
    """The names, sizes and free indices of the trees, through definitions and laws."""
    symbols = t.symbols_of(*trees)
    sizes: dict[str, None] = {}
    texts: dict[str, None] = {}
    axes: dict[str, None] = {}
    least, kinked, steep = 2, False, False

    def size(text: t.Size, axis: bool = True) -> None:
        if isinstance(text, str):
            texts.setdefault(text)
            axes.update({text: None} if axis else {})
            for name in names_in(text):
                sizes.setdefault(name)

    for node in t.walk(*trees):
        for part in node.shape:
            size(part)
        if isinstance(node, t.Index):
            size(node.size, axis=False)
        kinked = kinked or has_kink(node)
        steep = steep or is_steep(node)
        if isinstance(node, t.Part):
            written = [i.value for i in node.indices if isinstance(i, t.Number) and i.value.denominator == 1]
            least = max([least, *(int(value) for value in written if value <= 9)])
        if isinstance(node, t.Symbol):
            if node.type.kind == "natural":
                sizes.setdefault(node.name)
            for shape in (node.type.shape, *node.type.arguments):
                for part in shape:
                    size(part)
    undefined = tuple(name for name in sizes if name not in symbols or symbols[name].type.definition is None)
    free = t.free_indices(*trees)
    covariances = symmetric(symbol.type for symbol in symbols.values()).known
    for index in free.values():
        size(index.size)
    far = tuple(dict.fromkeys(constants_in(*trees)))[:MOST_CONSTANTS] if kinked else ()
    kept = (symbols, undefined, tuple(texts), tuple(axes), free, least, covariances, names_outside(*trees))
    return Vocabulary(*kept, kinked=kinked, steep=steep, constants=far)


def constants_in(*trees: t.Node) -> Iterator[Fraction]:
    """The absolute values of the parts without names, such as 10⁶ as a whole, rounded to fractions."""
    for node in trees:
        if not node.shape and not any(isinstance(n, t.Symbol | t.Index) for n in t.walk(node)):
            try:
                value = next(arith.plain_entries(evaluate(node, {}, {})))
                if isinstance(value, Decimal):
                    value = Fraction(f"{value:.3e}") if abs(value.adjusted()) < 400 else ZERO
                yield from [abs(value)] if value else []
            except (Undefined, arith.Unevaluable):
                continue
        else:
            yield from constants_in(*t.parts_of(node))


def has_kink(node: t.Node) -> bool:
    """Whether a node may have a kink: a maximum, an absolute value, a root of a square, a power that may be one."""
    if isinstance(node, t.Call):
        return node.name in KINKS or node.name == "sqrt"
    if isinstance(node, t.Power) and not node.shape:
        return not isinstance(node.exponent, t.Number) or node.exponent.value.denominator != 1
    return False


def is_steep(node: t.Node) -> bool:
    """Whether a node maps large numbers to numbers with too many digits."""
    if isinstance(node, t.Call):
        return node.name in ("exp", "softmax")
    return isinstance(node, t.Power) and not isinstance(node.exponent, t.Number) and not node.shape


def names_outside(*trees: t.Node) -> frozenset[str]:
    """The names that occur outside of expectations, where a random one needs a value."""
    found: set[str] = set()
    pending = list(trees)
    while pending:
        node = pending.pop()
        if isinstance(node, (t.Expect, t.Covariance)):
            continue
        if isinstance(node, t.Symbol):
            if node.name in found:
                continue
            found.add(node.name)
        pending.extend(t.parts_of(node))
    return frozenset(found)


def points(
    words: Vocabulary, count: int = 40, *, fixed: Mapping[str, Any] | None = None, positive: bool = False
) -> Iterator[Point]:
    """Points to try, simple ones first; `fixed` names keep their values.

    A fixed value is a number, nested tuples, or ("as", name) for the value of another name.
    """

    def drawn() -> Iterator[Point]:
        for attempt in range(2 * count):
            with suppress(Undefined, arith.Unevaluable):
                yield point(words, attempt, fixed or {}, positive)

    return islice(drawn(), count)


def corners(words: Vocabulary) -> Iterator[Point]:
    """Points at 0, 1 and −1 for up to three numbers, then at small sizes that are more than lengths of arrays."""
    kinds = {n: s.type.kind for n, s in words.symbols.items() if s.type.definition is None and not s.type.random}
    free = {n: CORNERS[kind] for n, kind in kinds.items() if kind in CORNERS and n not in words.sized()}
    chosen = [dict(zip(free, values, strict=True)) for values in product(*free.values()) if 0 < len(free) <= 3]
    chosen += [{n: Fraction(5 + 2 * k, 17) for k, n in enumerate(free) if kinds[n] != "natural"}]  # no period has 17
    counted = {n for text in words.texts if text not in words.axes for n in names_in(text)}.union(words.symbols)
    chosen += [{n: value} for n in words.sizes if n in counted for value in SMALL_SIZES]
    for fixed in chosen:
        with suppress(Undefined, arith.Unevaluable):
            yield point(words, 0, fixed)


def point(words: Vocabulary, attempt: int, fixed: Mapping[str, Any], positive: bool = False) -> Point:
    draw = random.Random(attempt)
    sizes = draw_sizes(words, attempt, fixed)
    values: dict[str, Any] = {}
    vectors = numbers = 0
    positive = positive or (attempt > PATTERNED_ATTEMPTS and attempt % 3 == 2)
    pointers: dict[t.Size, list[str]] = {}
    for place, (name, symbol) in enumerate(words.symbols.items()):
        kind = symbol.type.kind
        if symbol.type.definition is not None or name in sizes:
            continue
        if name in fixed and not isinstance(fixed[name], tuple):
            values[name] = filled_array(fixed[name], symbol.type.shape, sizes)
        elif kind == "map":
            values[name] = random_map(symbol.type, sizes, 7 * attempt + place)
        elif kind == "index":
            pointers.setdefault(symbol.type.shape[0] if symbol.type.shape else 2, []).append(name)
        elif name in words.covariances:
            values[name] = definite_matrix(
                whole_size(symbol.shape[0], sizes), draw, attempt, array_scale(words, name, attempt)
            )
        elif symbol.shape:
            shape = tuple(whole_size(size, sizes) for size in symbol.shape)
            first = attempt == 0
            ordered = first and len(shape) == 1 and not vectors
            # The first point is shown in counterexamples, so it is simple; the next has entries that are all different.
            simple = len(shape) == 2 and (first or (words.steep and attempt == 1))
            size = array_scale(words, name, attempt)
            tied = words.kinked and attempt % 7 == 5
            values[name] = draw_array(
                shape, draw, ordered=ordered, positive=first, simple=simple, tied=tied, scale=size
            )
            vectors += len(shape) == 1 and not symbol.type.random
        else:
            values[name] = draw_scalar(kind, name, attempt, numbers if attempt else place, words.constants, positive)
            numbers += 1
    for name, index in words.indices.items():
        pointers.setdefault(index.size, []).append(name)
    for size, names in pointers.items():
        for name, place in index_places(names, attempt, whole_size(size, sizes)).items():
            if name not in values:
                values[name] = Fraction(place)
    for name, value in fixed.items():
        if isinstance(value, tuple) and value[0] == "as" and value[1] in values and name in values:
            values[name] = values[value[1]]
        elif isinstance(value, tuple) and value[0] == "set" and name in words.symbols:
            values[name] = value[1]
    found = Point(sizes, values, attempt)
    return with_defined_sizes(words, found)


def array_scale(words: Vocabulary, name: str, attempt: int) -> Fraction:
    """A factor for the entries of an array, so that some are small and some as large as the literals."""
    if words.steep and attempt > 1:
        return choose(SMALL_SCALES, attempt, name, "scale")
    if not words.kinked or attempt <= PATTERNED_ATTEMPTS:
        return ONE
    return choose((*SCALES, *words.constants), attempt, name, "scale")


def with_defined_sizes(words: Vocabulary, found: Point) -> Point:
    """The point with the sizes that others define; Undefined if a definition leaves its domain."""
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
    for text in words.axes:
        whole_size(text, sizes)
    return replace(found, sizes=sizes)


def draw_sizes(words: Vocabulary, attempt: int, fixed: Mapping[str, Any]) -> dict[str, int]:
    """Sizes for an attempt, different for different names except when equal sizes are tried."""
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
    # At the fifth point all sizes are 1, at later ones a single one of them.
    small = [name for name in words.sizes if name in sized]
    chosen = turn == 4 or (attempt == 7 and len(small) > 1)
    alone = small[attempt // 2 % len(small)] if small and attempt > 4 and chosen else None
    for name in words.sizes:
        if name not in sized:
            sizes[name] = draw_natural(name, attempt, sizes[name], words.constants)
        elif attempt == 4 or name == alone:
            sizes[name] = 1
    for name, value in fixed.items():
        if name in sizes:
            sizes[name] = (
                sizes[value[1]]
                if isinstance(value, tuple) and value[1] in sizes
                else int(value)
                if isinstance(value, (int, Fraction))
                else sizes[name]
            )
    _divide_evenly(words, sizes, fixed)
    defined = {name for name, symbol in words.symbols.items() if symbol.type.definition is not None}
    for text in words.axes:
        if not defined.intersection(names_in(text)):
            whole_size(text, sizes)
    return sizes


def _divide_evenly(words: Vocabulary, sizes: dict[str, int], fixed: Mapping[str, Any]) -> None:
    """Make the first name of a size that is a quotient a multiple of the denominator."""
    for _ in range(3):
        for text in words.texts:
            inside = names_in(text)
            if not all(name in sizes for name in inside):
                continue
            found = size_value(text, sizes)
            if found.denominator != 1 and inside and inside[0] not in fixed:
                sizes[inside[0]] *= found.denominator


ROUGH_ERROR = Decimal("1e-45")
STEADY_GAP, SHRUNK_DIGITS, SPARE_DIGITS = Decimal("1e-6"), 40, 20


def agree_at(place: Point, gold: t.Node, answer: t.Node) -> bool | None:
    """Whether both have the same value at a point; None if the precision does not decide.

    A gap that shrinks with more digits is rounding; one that stays is a difference. The precision must cover the
    largest and the smallest number of the computation.
    """
    precision = DIGITS
    try:
        pairs, error, reached = values_of_both(place, gold, answer, precision)
    except arith.TooNear:
        precision = 8 * DIGITS
        pairs, error, reached = values_of_both(place, gold, answer, precision)
    if error > ROUGH_ERROR:
        return roughly_agree(pairs, error)
    if all(isinstance(a, Fraction) and isinstance(b, Fraction) for a, b in pairs):
        return all(a == b for a, b in pairs)
    gaps = differences(pairs, precision)
    while any(gaps) or reached + SPARE_DIGITS > precision:
        precision = 2 * precision if any(gaps) else max(2 * precision, reached + DIGITS)
        if precision > arith.FINEST:
            return None
        pairs, _, reached = values_of_both(place, gold, answer, precision)
        finer = differences(pairs, precision)
        with digits(DIGITS):
            vanished = [gap_vanishes(before, after) for before, after in zip(gaps, finer, strict=True)]
        if False in vanished:
            return False
        gaps = [Decimal(0) if gone else gap for gap, gone in zip(finer, vanished, strict=True)]
    return True


def values_of_both(
    place: Point, gold: t.Node, answer: t.Node, precision: int
) -> tuple[list[tuple[PlainNumber, PlainNumber]], Decimal, int]:
    with arith.extent() as reached:
        (first, rough), (second, rougher) = place.with_error(gold, precision), place.with_error(answer, precision)
    return (
        list(zip(arith.plain_entries(first), arith.plain_entries(second), strict=True)),
        max(rough, rougher),
        reached[0],
    )


def differences(pairs: list[tuple[PlainNumber, PlainNumber]], precision: int) -> list[Decimal]:
    with digits(precision):
        return [abs(decimal(a) - decimal(b)) for a, b in pairs]


def gap_vanishes(before: Decimal, after: Decimal) -> bool | None:
    """Whether a gap vanishes with more digits (True), stays (False), or neither (None)."""
    if not after or after <= before.scaleb(-SHRUNK_DIGITS):
        return True
    return False if abs(before - after) <= STEADY_GAP * after else None


def roughly_agree(pairs: list[tuple[PlainNumber, PlainNumber]], error: Decimal) -> bool | None:
    """Whether numbers with an error agree (True), differ clearly (False), or neither (None)."""
    with digits(DIGITS):
        gap = max(arith.relative_difference(a, b) for a, b in pairs)
        if gap <= max(10 * error, ROUGH_ERROR) and error < Decimal("1e-6"):
            return True
        return False if gap > max(30 * error, Decimal("1e-4")) else None


def agree_to_digits(a: PlainNumber, b: PlainNumber, count: int) -> bool:
    """Whether two numbers agree to `count` digits."""
    x, y = decimal(a), decimal(b)
    return abs(x - y) <= max(abs(x), abs(y)) * Decimal(10) ** -count
