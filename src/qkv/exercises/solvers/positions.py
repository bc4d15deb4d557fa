"""Sinusoidal and rotary positions on numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from .. import exact
from ..exact import Array
from ..findings import CannotSolve, Finding, refuse
from ..record import Asked, Exercise
from ..solving import Also, Answer, solver
from ..values import bare, first_of, read, scalar, whole
from .answers import MOST_SHOWN, answered, joined_items, settled, worked

_REASON = "sine at even dimensions, cosine at odd ones"
_MOST = 2_000_000  # entries of an encoding
_MOST_DECIMALS = 400  # entries that are computed to sixty digits


def encoding(exercise: Exercise, asked: Asked, *, swapped: bool = False) -> Answer:
    """The encoding of one position, of several, or of some dimensions: sines at even dimensions unless `swapped`."""
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
    refuse(size > _MOST, "too_large", what="the encoding", size=f"{size} entries", most=_MOST)
    positions = exact.array(np.arange(length)) if positions is None else positions
    rows, powers = positions.reshape(-1), exact.array([Fraction(each - each % 2, width) for each in dimensions])
    small = size <= _MOST_DECIMALS
    angles = exact.over(rows[:, None], exact.power(base, powers if small else exact.floats(powers)))
    names = ["cos" if each % 2 != swapped else "sin" for each in dimensions]
    values = np.stack([exact.function(name, angles[:, place]) for place, name in enumerate(names)], -1)
    dtype = exercise.given("dtype")
    if dtype is not None and str(dtype.value).lower() in ("float16", "fp16", "half"):
        values = exact.floats(values).astype(np.float16).astype(float)
    heads = [f"\\{name}(" for name in names]
    tails = [f"/{exact.shown(base)}^{{{each - each % 2}/{width}}})" for each in dimensions]

    def part(title: str, kept: Any) -> Answer:
        found, texts = exact.array(values[kept]), []
        if size <= MOST_SHOWN:
            entries = (
                f"{head}{exact.shown(row)}{tail}" for row in rows for head, tail in zip(heads, tails, strict=True)
            )
            texts = [exact.written(np.asarray(exact.filled(entries, values.shape)[kept]), number=str)]
        return answered(found, exercise, [worked(title, *texts, values=found, reason=_REASON)])

    if positions.ndim == 0 and named:
        items = {f"p_{each}": part(f"dimension {each}", (0, place)) for place, each in enumerate(dimensions)}
        return joined_items(items)
    return part("encoding", (0,) if positions.ndim == 0 else (slice(None), 0) if len(dimensions) == 1 else ())


@solver("sinusoidal", ("width|head_width",))
@settled()
def sinusoidal(exercise: Exercise, asked: Asked) -> Answer:
    """Sinusoidal positional encoding."""
    return encoding(exercise, asked)


def rotated(rows: Array, angles: Array, *, halves: bool = False) -> Array:
    """Each pair of entries of each row turned by its angle: neighbours, or one from each half."""
    first = np.arange(angles.shape[-1]) * (1 if halves else 2)
    second = first + (angles.shape[-1] if halves else 1)
    cosine, sine, found = exact.function("cos", angles), exact.function("sin", angles), np.empty_like(rows)
    a, b = rows[:, first], rows[:, second]
    found[:, first] = exact.minus(exact.product(a, cosine), exact.product(b, sine))
    found[:, second] = exact.plus(exact.product(a, sine), exact.product(b, cosine))
    return found


def _angles(exercise: Exercise, count: int, width: int) -> Array:
    """The angles of each vector: positions given apart, as a list or one for all, times the frequencies."""
    places = [each for given in exercise.of_role("position") if given.value is not None
              for each in read(given, exercise).flat]  # fmt: skip
    thetas = [given for given in exercise.givens if bare(given.symbol) in ("theta", r"\theta", "θ")]
    refuse(not places and (not thetas or count > 1), "missing", needs="the positions")
    places = (places or [Fraction(1)]) * (count if len(places) == 1 else 1)
    refuse(len(places) != count, "misfit", what="the positions", why=f"there are {len(places)} for {count} vectors")
    column = exact.array(places)[:, None]
    if thetas and width == 2:
        return exact.product(column, read(thetas[0], exercise).reshape(()))
    powers = [Fraction(2 * place, width) for place in range(width // 2)]
    return exact.over(column, exact.power(scalar(exercise, "base", Fraction(10_000)), powers))


@solver("rotary", ("vector|query|key|tokens|input",))
@settled()
def rotary(exercise: Exercise, asked: Asked) -> Answer:
    """Vectors rotated by their positions, or the score of a rotated query and key."""
    parts = [part for role in ("query", "key") if (part := first_of(exercise, role)) is not None]
    parts = parts or [first_of(exercise, "vector", "input", "tokens")]
    widths = {np.shape(part)[-1] if np.ndim(part) else 1 for part in parts}
    if len(widths) > 1 or min(widths) % 2 or sum(map(np.size, parts)) > 10_000 or max(map(np.ndim, parts)) > 2:
        raise CannotSolve("misfit", what="the vectors", why="their width must be even, the same and small")
    rows, (width,) = np.concatenate([np.atleast_2d(part) for part in parts]), widths
    angles = _angles(exercise, len(rows), width)

    def solved(halves: bool) -> Answer:
        turned, steps = rotated(rows, angles, halves=halves), []
        for row, turns, result in zip(rows, angles, turned, strict=True):
            for pair, angle in enumerate(turns if rows.size <= MOST_SHOWN and not halves else ()):
                text, kept = exact.shown(angle), slice(2 * pair, 2 * pair + 2)
                matrix = rf"[[\cos({text}), -\sin({text})], [\sin({text}), \cos({text})]]"
                text = f"{matrix} {exact.expression(row[kept])}"
                steps.append(worked("a pair turned by its angle", text, values=result[kept]))
        if "score" in asked.object.lower():
            refuse(len(turned) != 2, "missing", needs="one query and one key")
            score = exact.array(exact.times(turned[:1], turned[1:].T)[0, 0])
            text = f"{exact.expression(turned[0])}^T {exact.expression(turned[1])}"
            return answered(score, exercise, [*steps, worked("score", text, values=score)])
        if len(parts) == len(turned) == 2:
            return joined_items({"q": answered(turned[0], exercise, steps), "k": answered(turned[1], exercise)})
        return answered(turned[0] if np.ndim(parts[0]) == 1 else turned, exercise, steps)

    halves = "half" in f"{asked.object} {asked.text} {exercise.text}".lower() and width > 2
    found = solved(halves)
    if halves or width == 2 or found.text == (other := solved(True)).text:
        return found
    words = {"convention": "which entries are rotated together", "value": "neighbours (2i, 2i + 1)"}
    also = Also(other.text, other.value, "pairs (i, i + d/2) of the two halves", other.symbols or None)
    return replace(found, also=(also,), assumed=(Finding("assumed", words),))
