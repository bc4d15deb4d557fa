"""Sinusoidal and rotary positions on numbers."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np

from ...maths.values import arithmetic as arith
from .. import exact
from ..exact import Array
from ..findings import CannotSolve, Finding
from ..record import Asked, Exercise
from ..solving import Also, Answer, solver
from ..values import bare, read, scalar, stacked, whole
from .answers import MOST_SHOWN, answered, joined_items, settled, worked

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
    given, named = exercise.given("position"), [int(each) for each in re.findall(r"\d+", asked.object)]
    dimensions = list(range(width))
    positions: Any = read(given, exercise) if given is not None and given.value is not None else None
    if positions is None and asked.row is not None:
        positions = exact.array(asked.row)
    if len(named) == 2 and re.search(r"[A-Za-z]\w*[_({]", asked.object):
        positions, dimensions = exact.array(named[0]), [named[1]]
    elif named:
        dimensions = named
    if max(dimensions) >= width:
        raise CannotSolve("misfit", what=f"dimension {max(dimensions)}", why=f"there are {width}, counted from 0")
    if positions is None:
        length = whole(exercise, "length")
        if length is None:
            raise CannotSolve("missing", needs="a position or a length")
        positions = exact.array(list(range(length))) if length <= 100_000 else np.arange(length, dtype=float)
    rows = positions.reshape(-1)
    if rows.size * len(dimensions) > 2_000_000:
        raise CannotSolve(
            "too_large", what="the encoding", size=f"{rows.size * len(dimensions)} entries", most=2_000_000
        )
    rough = rows.size * len(dimensions) > _MOST_DECIMALS
    if rough:
        columns = [sinusoid(exact.floats(rows), each, width, float(base), swapped=swapped) for each in dimensions]
        values = np.stack(columns, axis=-1)
    else:
        entries = (sinusoid(row, each, width, base, swapped=swapped) for row in rows for each in dimensions)
        values = exact.filled(entries, (rows.size, len(dimensions)))
    dtype = exercise.given("dtype")
    if dtype is not None and str(dtype.value).lower() in ("float16", "fp16", "half"):
        values = exact.floats(values).astype(np.float16).astype(float)
    texts = None
    if values.size <= MOST_SHOWN and not swapped:
        texts = exact.filled((_entry_text(row, each, width, base) for row in rows for each in dimensions), values.shape)
    if positions.ndim == 0 and named:
        items = {}
        for place, dimension in enumerate(dimensions):
            shown = (texts[0, place],) if texts is not None else ()
            step = worked(f"dimension {dimension}", *shown, values=exact.array(values[0, place]), exercise=exercise)
            items[f"p_{dimension}"] = answered(values[0, place], exercise, [step])
        return joined_items(items)
    kept = (0,) if positions.ndim == 0 else (slice(None), 0) if len(dimensions) == 1 else ()
    shown = (exact.written(texts[kept], number=str),) if texts is not None else ()
    reason = "sine at even dimensions, cosine at odd ones"
    step = worked("encoding", *shown, values=values[kept], exercise=exercise, reason=reason)
    return answered(values[kept], exercise, [step])


@solver("sinusoidal", ("width|head_width",))
@settled()
def sinusoidal(exercise: Exercise, asked: Asked) -> Answer:
    """Sinusoidal positional encoding."""
    return encoding(exercise, asked)


def _angles(position: Any, width: int, base: Any, theta: Any) -> list[Any]:
    if theta is not None and width == 2:
        return [arith.multiply(position, theta)]
    return [arith.divide(position, arith.power(base, Fraction(2 * i, width))) for i in range(width // 2)]


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


def _positions(exercise: Exercise, count: int) -> list[Any]:
    """The position of each vector: given apart, as a list, one for all, or 0, 1, 2 ..."""
    givens = [given for given in exercise.of_role("position") if given.value is not None]
    found = [each for given in givens for each in read(given, exercise).reshape(-1)]
    if not found and (count > 1 or exercise.given("position") is not None):
        raise CannotSolve("missing", needs="the positions")
    return found * count if len(found) == 1 else found


@solver("rotary", ("vector|query|key|tokens|input",))
@settled()
def rotary(exercise: Exercise, asked: Asked) -> Answer:
    """Vectors rotated by their positions, or the score of a rotated query and key."""
    names = [role for role in ("query", "key") if stacked(exercise, role) is not None] or ["vector"]
    parts = [stacked(exercise, name) for name in names]
    if names == ["vector"]:
        parts = [
            next(
                (each for role in ("vector", "input", "tokens") if (each := stacked(exercise, role)) is not None), None
            )
        ]
    rows = [row for part in parts if part is not None for row in np.atleast_2d(part)]
    if not rows:
        raise CannotSolve("missing", needs="a vector")
    width = len(rows[0])
    if width % 2 or any(len(row) != width for row in rows) or len(rows) * width > 10_000:
        raise CannotSolve("misfit", what="the vectors", why="their width must be even, the same and small")
    angle = next((given for given in exercise.givens if bare(given.symbol) in ("theta", r"\theta", "θ")), None)
    theta = read(angle, exercise).reshape(())[()] if angle is not None and angle.value is not None else None
    lacks = not any(given.value is not None for given in exercise.of_role("position"))
    places = [Fraction(1)] if lacks and theta is not None and len(rows) == 1 else _positions(exercise, len(rows))
    if len(places) != len(rows):
        raise CannotSolve("misfit", what="the positions", why=f"there are {len(places)} for {len(rows)} vectors")
    base = scalar(exercise, "base", Fraction(10_000))
    angles = [_angles(place, width, base, theta) for place in places]
    halves = bool(re.search(r"half|halves|rotate_half", f"{asked.object} {asked.text} {exercise.text}".lower()))
    results = [
        [rotated(row, turn, halves=each) for row, turn in zip(rows, angles, strict=True)]
        for each in (halves, not halves)
    ]
    steps = _rotary_steps(rows, angles, results[0], exercise) if width == 2 or not halves else []
    answers = []
    for turned in results:
        if "score" in asked.object.lower():
            if len(turned) != 2:
                raise CannotSolve("missing", needs="one query and one key")
            score = exact.times(turned[0][None], turned[1][:, None])[0, 0]
            text = f"{exact.expression(turned[0])}^T {exact.expression(turned[1])}"
            more = [*steps, worked("score", text, values=exact.array(score), exercise=exercise)]
            answers.append(answered(score, exercise, more))
        elif len(names) == 2 and len(turned) == 2:
            answers.append(
                joined_items({"q": answered(turned[0], exercise, steps), "k": answered(turned[1], exercise)})
            )
        else:
            single = len(turned) == 1 and parts[0] is not None and parts[0].ndim == 1
            answers.append(answered(turned[0] if single else np.stack(turned), exercise, steps))
    if width == 2 or halves or answers[0].text == answers[1].text:
        return answers[0]
    words = {"convention": "which entries are rotated together", "value": "neighbours (2i, 2i + 1)"}
    other = Also(answers[1].text, answers[1].value, "pairs (i, i + d/2) of the two halves", answers[1].symbols)
    return Answer(**{**vars(answers[0]), "also": (other,), "assumed": (Finding("assumed", words),)})


def _rotary_steps(rows: list[Array], angles: list[list[Any]], results: list[Array], exercise: Exercise) -> list[Any]:
    steps = []
    for row, turns, result in zip(rows, angles, results, strict=True):
        for pair, turn in enumerate(turns if len(rows) * len(row) <= MOST_SHOWN else []):
            text = exact.shown(turn)
            matrix = f"[[\\cos({text}), -\\sin({text})], [\\sin({text}), \\cos({text})]]"
            part = slice(2 * pair, 2 * pair + 2)
            steps.append(worked("a pair turned by its angle", f"{matrix} {exact.expression(row[part])}",
                                values=result[part], exercise=exercise))  # fmt: skip
    return steps
