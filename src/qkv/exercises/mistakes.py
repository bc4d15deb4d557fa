"""Known mistakes as transformations of a record or of an answer: gold and planted mistakes come from one solver.

A module of solvers or a family adds its own with `@mistake("name")`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import wraps
from typing import Any

import numpy as np

from . import exact
from .findings import CannotSolve
from .masks import index_base
from .record import Asked, Exercise
from .solving import Answer, answer
from .values import digits

Mistake = Callable[[Exercise, Asked], Answer | None]
MISTAKES: dict[str, Mistake] = {}


def mistake(*names: str, quantities: tuple[str, ...] = ()) -> Callable[[Mistake], Mistake]:
    """Register a mistake under its names; None where it does not apply, cannot be solved or equals the right answer.

    A name may have several, for different quantities: the first that applies is taken.
    """

    def register(function: Mistake) -> Mistake:
        @wraps(function)
        def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
            if "+" in asked.quantity:
                return _in_one(wrong, exercise, asked)
            if quantities and asked.quantity not in quantities:
                return None
            try:
                with exact.arith.digits():
                    settled = asked.model_copy(update={"changes": ()}) if asked.changes else asked
                    found = function(exercise.with_changes(asked), settled)
                return None if found is None or found.text == answer(exercise, asked).text else found
            except (CannotSolve, ArithmeticError):
                return None

        for name in names:
            MISTAKES[name] = _first(MISTAKES[name], wrong) if name in MISTAKES else wrong
        return wrong

    return register


def _first(one: Mistake, other: Mistake) -> Mistake:
    return lambda exercise, asked: one(exercise, asked) or other(exercise, asked)


def _in_one(wrong: Mistake, exercise: Exercise, asked: Asked) -> Answer | None:
    """A mistake in one of several quantities that a question asks for; the others are right."""
    right = answer(exercise, asked)
    names = dict(zip(right.items, asked.quantity.split("+"), strict=True))
    found = {word: wrong(exercise, asked.model_copy(update={"quantity": name})) for word, name in names.items()}
    if not any(found.values()):
        return None
    return Answer.joined({word: found[word] or item for word, item in right.items.items()}, form=right.form)


def _turned_into(found: Answer, values: Any, exercise: Exercise) -> Answer:
    """The answer with other numbers."""
    array = exact.array(values)
    return replace(found, text=exact.written(array, digits(exercise)), value=exact.nested(array), items={}, also=())


@mistake("query and key swapped")
def _swapped(exercise: Exercise, asked: Asked) -> Answer:
    names = {"query": "key", "key": "query", "query_weight": "key_weight", "key_weight": "query_weight"}
    givens = tuple(given.model_copy(update={"role": names.get(given.role, given.role)}) for given in exercise.givens)
    return answer(exercise.model_copy(update={"givens": givens}), asked)


@mistake("softmax over the wrong axis", quantities=("softmax", "weights", "output"))
def _wrong_axis(exercise: Exercise, asked: Asked) -> Answer | None:
    from .attending import attention

    found = attention(_with_scale(exercise, asked), asked, with_values=asked.quantity == "output")
    if found.scores.ndim != 2 or (found.one_query and found.direct):
        return None
    allowed = np.broadcast_to(found.allowed, found.scores.shape)
    weights = exact.transposed(exact.softmax(exact.transposed(found.scores), exact.transposed(allowed)))
    result = weights if found.value is None else exact.times(weights, found.value)
    row = 0 if found.one_query else None if asked.row is None else asked.row - index_base(exercise)
    return _turned_into(answer(exercise, asked), result if row is None else result[row], exercise)


def _with_scale(exercise: Exercise, asked: Asked) -> Exercise:
    from .solvers.attention import scale_choice

    choice = scale_choice(exercise, asked)
    return exercise if choice is None else choice.taken


@mistake("scores used as weights", quantities=("weights", "output"))
def _unweighted(exercise: Exercise, asked: Asked) -> Answer:
    record = _with_scale(exercise, asked).changed(structure={"similarity": "linear"}, normaliser="none")
    return answer(record, asked)


@mistake("softmax average for argmax", quantities=("argmax",))
def _averaged(exercise: Exercise, asked: Asked) -> Answer:
    scale = exercise.convention("scale", "none")
    record = exercise.changed(structure={"similarity": "softmax"}, scale=scale)
    return answer(record, asked.model_copy(update={"quantity": "output"}))


def _lookup(pick: Callable[[Any, int, int], Any]) -> Mistake:
    """The right answer of argmax for one query, with what is picked in place of its value."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        from .attending import attention

        found = attention(exercise.changed(structure={"similarity": "argmax"}), asked)
        if asked.row is not None and found.query.shape[-2] > 1:
            found = found.of("token", asked.row - index_base(exercise))
        if found.weights.shape[:-1] != (1,):
            return None
        values = pick(found, int(np.argmax(found.weights[0] == 1)), index_base(exercise))
        return None if values is None else _turned_into(answer(exercise, asked), values, exercise)

    return wrong


def _second(found: Any, best: int, base: int) -> Any:
    allowed = np.broadcast_to(found.allowed, found.scores.shape).copy()
    allowed[0, best] = False
    return exact.times(exact.hardest(found.scores, allowed), found.values)[0] if allowed.any() else None


for _name, _pick in {
    "second best taken": _second,
    "index for value": lambda found, best, base: best + base,
    "score for value": lambda found, best, base: found.scores[0, best],
    "key for value": lambda found, best, base: found.key[best],
}.items():
    mistake(_name, quantities=("argmax",))(_lookup(_pick))


def _of_answer(change: Callable[[exact.Array], Any]) -> Mistake:
    """A mistake that changes the numbers of the right answer."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        right = answer(exercise, asked)
        cells = np.array(right.value, dtype=object)
        if any(isinstance(each, str | tuple) for each in cells.flat):  # words, or arrays that differ in shape
            return None
        values = change(exact.array(cells))
        return None if values is None else _turned_into(right, values, exercise)

    return wrong


def _deviation(values: exact.Array) -> exact.Array | None:
    return np.append(values[:1], exact.function("sqrt", values[1:])) if values.shape == (2,) else None


mistake("rows and columns mixed up")(_of_answer(lambda values: exact.transposed(values) if values.ndim == 2 else None))
mistake("sign turned")(_of_answer(lambda values: exact.minus(0, values)))
mistake("only the diagonal", quantities=("jacobian",))(
    _of_answer(lambda values: exact.masked(values, np.eye(len(values), dtype=bool)) if values.ndim == 2 else None)
)
mistake("standard deviation for variance", quantities=("norm_statistics",))(_of_answer(_deviation))


@mistake("sine and cosine swapped", quantities=("sinusoidal",))
def _cosine_first(exercise: Exercise, asked: Asked) -> Answer:
    from .solvers.positions import encoding

    return encoding(exercise, asked, swapped=True)


def _of_norm(change: Callable[[Any], dict[str, Any]]) -> Mistake:
    """A mistake that changes what a norm computes with."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer:
        from .solvers.norms import norm

        right = norm(exercise, asked)
        found = replace(right, **change(right))
        return _turned_into(answer(exercise, asked), found.back(found.output), exercise)

    return wrong


def _unbiased(found: Any) -> dict[str, Any]:
    count = found.values.shape[-1]
    return {"variance": exact.product(found.variance, Fraction(count, count - 1))}


for _name, _change in {
    "epsilon left out": lambda found: {"epsilon": Fraction(0)},
    "unbiased variance": _unbiased,
    "divided by the variance in a norm": lambda found: {"variance": exact.power(found.variance, 2)},
    "scale left out": lambda found: {"gamma": exact.array(1)},
    "shift left out": lambda found: {"beta": exact.array(0)},
    "mean not taken off": lambda found: {"mean": exact.array(0)},
}.items():
    mistake(_name, quantities=("layer_norm", "rms_norm", "batch_norm", "group_norm"))(_of_norm(_change))

from . import formula_mistakes  # noqa: E402, F401 - it registers mistakes that are not on numbers
