"""Sinusoidal and rotary positions on numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ...maths.values import arithmetic as arith
from .. import exact
from ..exact import Array
from ..findings import CannotSolve, Finding
from ..record import Asked, Exercise
from ..solving import Also, Answer, solver
from ..values import bare, first_of, read, scalar, whole
from .answers import MOST_SHOWN, answered, joined_items, settled, worked

_REASON = "sine at even dimensions, cosine at odd ones"
_MOST = 2_000_000  # entries of an encoding
_MOST_DECIMALS = 400  # entries that are computed to sixty digits


def sinusoid(position: Any, dimension: int, width: int, base: Any, *, swapped: bool = False) -> Any:
    """One entry of the encoding: a sine at even dimensions and a cosine at odd ones; of an array with a float base."""
    name = "sin" if (dimension % 2 == 0) != swapped else "cos"
    power = Fraction(dimension - dimension % 2, width)
    if isinstance(base, float):
        return exact.function(name, position / base ** float(power))
    return arith.function(name, arith.divide(position, arith.power(base, power)))


def _entry_text(position: Any, dimension: int, width: int, base: Any) -> str:
    name, even = "cos" if dimension % 2 else "sin", dimension - dimension % 2
    return f"\\{name}({exact.shown(position)}/{exact.shown(base)}^{{{even}/{width}}})"


def encoding(exercise: Exercise, asked: Asked, *, swapped: bool = False) -> Answer:
    """The encoding of one position, of several, or of some dimensions."""
    width = whole(exercise, "width") or whole(exercise, "head_width")
    if not width:
        raise CannotSolve("missing", needs="the width")
    base = scalar(exercise, "base", Fraction(10_000))
    named, positions = [int(each) for each in re.findall(r"\d+", asked.object)], first_of(exercise, "position")
    dimensions = named or list(range(width))
    if len(named) == 2 and re.search(r"[A-Za-z]\w*[_({]", asked.object):
        positions, dimensions = exact.array(named[0]), named[1:]
    elif positions is None and asked.row is not None:
        positions = exact.array(asked.row)
    if max(dimensions) >= width:
        raise CannotSolve("misfit", what=f"dimension {max(dimensions)}", why=f"there are {width}, counted from 0")
    length = whole(exercise, "length") if positions is None else positions.size
    if length is None:
        raise CannotSolve("missing", needs="a position or a length")
    size = length * len(dimensions)
    if size > _MOST:
        raise CannotSolve("too_large", what="the encoding", size=f"{size} entries", most=_MOST)
    positions = exact.array(list(range(length))) if positions is None else positions
    rows = positions.reshape(-1)
    if size > _MOST_DECIMALS:
        columns = [sinusoid(exact.floats(rows), each, width, float(base), swapped=swapped) for each in dimensions]
        values = np.stack(columns, axis=-1)
    else:
        entries = (sinusoid(row, each, width, base, swapped=swapped) for row in rows for each in dimensions)
        values = exact.filled(entries, (length, len(dimensions)))
    dtype = exercise.given("dtype")
    if dtype is not None and str(dtype.value).lower() in ("float16", "fp16", "half"):
        values = exact.floats(values).astype(np.float16).astype(float)
    small = [(row, each) for row in rows for each in dimensions] if size <= MOST_SHOWN and not swapped else []
    texts = exact.filled((_entry_text(*pair, width, base) for pair in small), values.shape) if small else None

    def part(title: str, kept: Any) -> Answer:
        shown = (exact.written(exact.array(texts[kept]), number=str),) if texts is not None else ()
        found = exact.array(values[kept])
        return answered(found, exercise, [worked(title, *shown, values=found, reason=_REASON)])

    if positions.ndim == 0 and named:
        items = {f"p_{each}": part(f"dimension {each}", (0, place)) for place, each in enumerate(dimensions)}
        return joined_items(items)
    return part("encoding", (0,) if positions.ndim == 0 else (slice(None), 0) if len(dimensions) == 1 else ())


@solver("sinusoidal", ("width|head_width",))
@settled()
def sinusoidal(exercise: Exercise, asked: Asked) -> Answer:
    """Sinusoidal positional encoding."""
    return encoding(exercise, asked)


def rotated(vector: Array, angles: list[Any], *, halves: bool = False) -> Array:
    """Each pair of entries turned by its angle: neighbours, or one from each half."""
    width = len(vector)
    found = np.empty(width, dtype=object)
    for place, angle in enumerate(angles):
        first, second = (place, place + width // 2) if halves else (2 * place, 2 * place + 1)
        cosine, sine = arith.function("cos", angle), arith.function("sin", angle)
        a, b = vector[first], vector[second]
        found[first] = arith.subtract(arith.multiply(a, cosine), arith.multiply(b, sine))
        found[second] = arith.add(arith.multiply(a, sine), arith.multiply(b, cosine))
    return found


def _turns(exercise: Exercise, count: int, width: int) -> list[list[Any]]:
    """The angles of each vector: positions given apart, as a list or one for all, times the frequencies."""
    givens = [given for given in exercise.of_role("position") if given.value is not None]
    angle = next((given for given in exercise.givens if bare(given.symbol) in ("theta", r"\theta", "θ")), None)
    theta = read(angle, exercise).reshape(())[()] if angle is not None and angle.value is not None else None
    places = [each for given in givens for each in read(given, exercise).reshape(-1)]
    if not places and (theta is None or count > 1):
        raise CannotSolve("missing", needs="the positions")
    places = (places or [Fraction(1)]) * (count if len(places) == 1 else 1)
    if len(places) != count:
        raise CannotSolve("misfit", what="the positions", why=f"there are {len(places)} for {count} vectors")
    if theta is not None and width == 2:
        return [[arith.multiply(place, theta)] for place in places]
    base = scalar(exercise, "base", Fraction(10_000))
    below = [arith.power(base, Fraction(2 * i, width)) for i in range(width // 2)]
    return [[arith.divide(place, each) for each in below] for place in places]


@solver("rotary", ("vector|query|key|tokens|input",))
@settled()
def rotary(exercise: Exercise, asked: Asked) -> Answer:
    """Vectors rotated by their positions, or the score of a rotated query and key."""
    query, key = first_of(exercise, "query"), first_of(exercise, "key")
    single = first_of(exercise, "vector", "input", "tokens") if query is None and key is None else None
    parts = [part for part in (query, key, single) if part is not None]
    rows = [row for part in parts for row in np.atleast_2d(part)]
    width = len(rows[0])
    if width % 2 or any(len(row) != width for row in rows) or len(rows) * width > 10_000:
        raise CannotSolve("misfit", what="the vectors", why="their width must be even, the same and small")
    turns = _turns(exercise, len(rows), width)

    def solved(halves: bool) -> Answer:
        turned = [rotated(row, turn, halves=halves) for row, turn in zip(rows, turns, strict=True)]
        steps = [] if halves else _rotary_steps(rows, turns, turned)
        if "score" in asked.object.lower():
            if len(turned) != 2:
                raise CannotSolve("missing", needs="one query and one key")
            score = exact.array(exact.times(turned[0][None], turned[1][:, None])[0, 0])
            text = f"{exact.expression(turned[0])}^T {exact.expression(turned[1])}"
            return answered(score, exercise, [*steps, worked("score", text, values=score)])
        if len(parts) == len(turned) == 2:
            return joined_items({"q": answered(turned[0], exercise, steps), "k": answered(turned[1], exercise)})
        return answered(turned[0] if parts[0].ndim == 1 else np.stack(turned), exercise, steps)

    halves = "half" in f"{asked.object} {asked.text} {exercise.text}".lower() and width > 2
    found, other = solved(halves), solved(not halves)
    if halves or width == 2 or found.text == other.text:
        return found
    words = {"convention": "which entries are rotated together", "value": "neighbours (2i, 2i + 1)"}
    also = Also(other.text, other.value, "pairs (i, i + d/2) of the two halves", other.symbols or None)
    return replace(found, also=(also,), assumed=(Finding("assumed", words),))


def _rotary_steps(rows: list[Array], turns: list[list[Any]], results: list[Array]) -> list[Any]:
    steps = []
    for row, angles, result in zip(rows, turns, results, strict=True):
        for pair, angle in enumerate(angles if len(rows) * len(row) <= MOST_SHOWN else []):
            text, part = exact.shown(angle), slice(2 * pair, 2 * pair + 2)
            matrix = rf"[[\cos({text}), -\sin({text})], [\sin({text}), \cos({text})]]"
            text = f"{matrix} {exact.expression(row[part])}"
            steps.append(worked("a pair turned by its angle", text, values=result[part]))
    return steps
