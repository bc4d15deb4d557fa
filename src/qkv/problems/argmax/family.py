"""Argmax attention: the value of the best key, by hand, and what that does to training."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache, cached_property

from ...render.document import Block, Formula, Maths, Paragraph, prose
from ..exact import Matrix, Vector, decimal, dot, exact, listed, matrix, mixed, rounded, softmax, vector, written_out
from ..judging.answers import Value
from ..problem import Misconception, Part, Problem, Step
from .answers import Found
from .reading import read_question
from .training import KINDS, training_part

NAME = "argmax"

QUERY = exact(((1, 1, 2),))[0]
KEYS = exact(((1, 2, 0), (0, 3, 4), (5, 0, 0), (0, 0, 1)))
VALUES = exact(((2, 0, 1), (1, 4, 3), (0, -1, 4), (1, 0, -1)))

SIMILARITIES = ("dot", "distance")
_TRIES = 4000

FOLLOW_UPS = (
    "By how much may the query move before another key is chosen?",
    "What would softmax attention return on the same numbers, and at which temperature do the two nearly agree?",
    "What should be returned when two keys have the same score?",
)


@dataclass(frozen=True)
class Lookup:
    """One query with keys and values as rows; `similarity` is "dot", or "distance" for the nearest key."""

    query: Vector
    keys: Matrix
    values: Matrix
    similarity: str = "dot"

    @cached_property
    def scores(self) -> Vector:
        if self.similarity == "dot":
            return tuple(dot(self.query, key) for key in self.keys)
        gaps = [tuple(a - b for a, b in zip(self.query, key, strict=True)) for key in self.keys]
        return tuple(-dot(gap, gap) for gap in gaps)

    @property
    def best(self) -> int:
        """The place of the best key, from 1: the first of them where several are."""
        return self.scores.index(max(self.scores)) + 1

    @property
    def tied(self) -> bool:
        return self.scores.count(max(self.scores)) > 1

    @property
    def output(self) -> Vector:
        return self.values[self.best - 1]

    @cached_property
    def symbols(self) -> dict[str, str]:
        n, wide, out = len(self.keys), len(self.query), len(self.values[0])
        if min(n, wide, out) < 2:
            return {}
        return {
            "q": f"vector[{wide}] = {vector(self.query)}",
            "K": f"matrix[{n},{wide}] = {matrix(self.keys)}",
            "V": f"matrix[{n},{out}] = {matrix(self.values)}",
            "k": f"matrix[{n},{wide}] = K",
            "v": f"matrix[{n},{out}] = V",
            "s": f"vector[{n}] = {vector(self.scores)}",
        }


def make(seed: int | None) -> Problem:
    """The question of the documents, or the variant of a seed."""
    if seed is None:
        return built(Lookup(QUERY, KEYS, VALUES), None, "training", ("003 2",))
    shapes = _structures()
    shape = shapes[seed % len(shapes)]
    draw = random.Random(f"{NAME}:{seed}")
    for _ in range(_TRIES):
        given = _drawn(draw, shape)
        if given is not None:
            return built(given, seed, shape[-2], ("003 2",), shape, rows=shape[-1])
    raise AssertionError(f"no friendly numbers for seed {seed}")


PROBLEMS = {NAME: make}


def built(
    given: Lookup,
    seed: int | None,
    kind: str,
    sources: tuple[str, ...] = (),
    structure: tuple[object, ...] = (),
    *,
    rows: bool = False,
) -> Problem:
    """The problem of a lookup; `rows` shows keys and values as matrices."""
    return Problem(
        name=NAME,
        title="Argmax attention",
        statement=statement(given, rows=rows),
        parts=(lookup_part(given), training_part(kind)),
        make=make,
        seed=seed,
        structure=structure or (len(given.keys), len(given.query), len(given.values[0])),
        symbols=given.symbols,
        sources=sources,
        follow_ups=FOLLOW_UPS,
    )


def statement(given: Lookup, *, rows: bool = False) -> tuple[Block, ...]:
    """What is given, in words and formulas."""
    names = given.symbols
    score = (
        "the dot product $q^T k_j$" if given.similarity == "dot" else r"minus the squared distance, $-\|q - k_j\|^2$"
    )
    words = (
        "Argmax attention returns the value of the key with the largest score, and of the first such key where several "
        f"have it. The score of key $j$ is {score}. The query is"
    )
    blocks: list[Block] = [Paragraph(prose(words, names)), Formula(Maths(f"q = {vector(given.query)}", names))]
    if rows:
        blocks.append(Paragraph(prose("and the keys and values are the rows of", names)))
        blocks += [
            Formula(Maths(f"K = {matrix(given.keys)}", names)),
            Formula(Maths(f"V = {matrix(given.values)}", names)),
        ]
        return tuple(blocks)
    blocks.append(Paragraph(prose("and the keys and values are", names)))
    for n, (key, value) in enumerate(zip(given.keys, given.values, strict=True), 1):
        blocks.append(Formula(Maths(f"k_{n} = {vector(key)}", names)))
        blocks.append(Formula(Maths(f"v_{n} = {vector(value)}", names)))
    return tuple(blocks)


def lookup_part(given: Lookup) -> Part:
    """Part a: scores, the best key, its value."""
    n = len(given.keys)
    places = {f"s_{place}": Value(str(score), given.symbols) for place, score in enumerate(given.scores, 1)}
    answer = Found(Value(vector(given.output), given.symbols), given.best, Value(vector(given.scores)), places)
    best = given.best
    first = written_out(given.query, given.keys[0]) if given.similarity == "dot" else _gap_text(given, 0)
    return Part(
        name="a",
        ask="Perform argmax attention: give the scores, the index that is chosen and the output.",
        answer=answer,
        steps=lambda: tuple(_steps(given)),
        hints=(
            "One score for each key; the values play no part until the very end.",
            f"Compute the {n} scores, find the largest, and look up the value with the same number.",
            f"The first score is ${first}$; the largest of all is ${max(given.scores)}$. Which value stands there?",
        ),
        points=2,
        misconceptions=_mistaken(given),
        symbols=given.symbols,
        cues=(
            r"perform arg\s?max|arg\s?max attention (?:with|on|output)",
            r"output\s*\}?\s*(?:=|is)|(?:returns?|chosen) (?:the )?value",
            r"(?<![A-Za-z])s\}?_\{?[1-9]\}?\s*=",
        ),
        explanation=f"Key {best} has the largest score, {max(given.scores)}, so its value {vector(given.output)} is "
        "the output.",
    )


def _gap_text(given: Lookup, place: int) -> str:
    pairs = zip(given.query, given.keys[place], strict=True)
    terms = " + ".join(f"({a} - {f'({b})' if b < 0 else b})^2" for a, b in pairs)
    return f"-({terms})"


def _steps(given: Lookup) -> Iterable[Step]:
    for place, (key, score) in enumerate(zip(given.keys, given.scores, strict=True), 1):
        if given.similarity == "dot":
            chain = (f"q^T k_{place}", written_out(given.query, key), str(score))
            why = "The query times the key, entry by entry."
        else:
            chain = (rf"-\|q - k_{place}\|^2", _gap_text(given, place - 1), str(score))
            why = "The squares of the differences, added up; the sign makes the nearest key the best."
        yield Step(f"The score of key {place}", why, chain, score, given.symbols)
    others = ", ".join(str(score) for place, score in enumerate(given.scores, 1) if place != given.best)
    why = f"{max(given.scores)} against {others}"
    why += "; where the largest appears twice, the first is taken." if given.tied else "."
    yield Step("The best key", why, ("argmax(s)", str(given.best)) if not given.tied else (), given.best, given.symbols)
    chain = (f"v_{given.best}", vector(given.output))
    yield Step("The output", "The value with the same number, as it is.", chain, given.output, given.symbols)


def _mistaken(given: Lookup) -> tuple[Misconception, ...]:
    order = sorted(range(len(given.keys)), key=lambda place: (-given.scores[place], place))
    average = mixed(softmax([decimal(score) for score in given.scores]), given.values)
    found = [("index for value", str(given.best)), ("score for value", str(max(given.scores)))]
    second = given.values[order[1]] if len(order) > 1 else given.output
    if second != given.output:
        found.insert(0, ("second best taken", vector(second)))
    if any(abs(a - decimal(b)) > Decimal("0.00001") for a, b in zip(average, given.output, strict=True)):
        found.append(("softmax average for argmax", listed([rounded(entry) for entry in average])))
    key = given.keys[given.best - 1]
    if len(key) == len(given.output) and key != given.output:
        found.append(("key for value", vector(key)))
    return tuple(Misconception(name, text) for name, text in found)


@cache
def _structures() -> list[tuple]:
    """Every kind of variant, shuffled once: sizes, which key is best, the score, ties, the question on training."""
    found = [
        (n, wide, out, best, similarity, tied, kind, rows)
        for n, wide, out in itertools.product((3, 4, 5), (2, 3, 4), (2, 3, 4))
        for best in range(1, n + 1)
        for similarity, tied, kind, rows in itertools.product(SIMILARITIES, (False, True), KINDS, (False, True))
        if not (tied and best == n)
    ]
    random.Random(f"{NAME} structures").shuffle(found)
    return found


def _drawn(draw: random.Random, shape: tuple) -> Lookup | None:
    """Small whole numbers, or None where they are not friendly."""
    n, wide, out, best, similarity, tied = shape[:6]

    def row(width: int, low: int, high: int) -> Vector:
        return tuple(Fraction(draw.choice([0, *range(low, high + 1)])) for _ in range(width))

    query = row(wide, -1, 3)
    keys, values = tuple(row(wide, -2, 5) for _ in range(n)), tuple(row(out, -2, 5) for _ in range(n))
    given = Lookup(query, keys, values, similarity)
    distinct = len({*given.scores}) >= n - tied and len(set(values)) == n and not set(keys) & set(values)
    if given.best != best or given.tied != tied or not distinct or not any(query) or len(set(keys)) < n:
        return None
    top = sorted({*given.scores}, reverse=True)
    # The softmax average must not round to the value itself, nor the score be the index.
    if not tied and top[0] - top[1] > 8:
        return None
    return given if top[0] != best else None


def recognised(text: str) -> tuple[float, Problem] | None:
    """Whether a text asks this, and the problem with the text's own numbers and only what it asks."""
    found = read_question(text)
    if found is None:
        return None
    if found.keys is None or found.query is None or found.values is None:
        whole = make(None)
        return found.confidence, replace(whole, parts=whole.parts[1:])
    whole = built(Lookup(found.query, found.keys, found.values, found.similarity), None, "training", ("003 2",))
    return found.confidence, whole if found.on_training else replace(whole, parts=whole.parts[:1])
