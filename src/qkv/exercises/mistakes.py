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
from .record import Asked, Convention, Exercise
from .solving import Answer, answer
from .values import digits

Mistake = Callable[[Exercise, Asked], Answer | None]
MISTAKES: dict[str, Mistake] = {}
_SOFT = ("softmax", "weights", "output")
_NORMS = ("layer_norm", "rms_norm", "batch_norm", "group_norm")


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
                    found = function(exercise.with_changes(asked), asked.model_copy(update={"changes": ()}))
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
    items = {word: found[word] or item for word, item in right.items.items()}
    text = "; ".join(f"{word} = {item.text}" for word, item in items.items())
    return replace(right, text=text, value=tuple(item.value for item in items.values()), items=items)


def _changed(
    exercise: Exercise, *, without: tuple[str, ...] = (), structure: dict[str, Any] | None = None, **said: Any
) -> Exercise:
    """The record without some roles, with another structure and with conventions said."""
    conventions = {**exercise.conventions, **{name: Convention(value=value) for name, value in said.items()}}
    givens = tuple(given for given in exercise.givens if given.role not in without)
    other = exercise.structure.model_copy(update=structure or {})
    return exercise.model_copy(update={"givens": givens, "structure": other, "conventions": conventions})


def _turned_into(found: Answer, values: Any, exercise: Exercise) -> Answer:
    """The answer with other numbers."""
    array = exact.array(values)
    return replace(found, text=exact.written(array, digits(exercise)), value=exact.nested(array), items={}, also=())


@mistake("query and key swapped")
def _swapped(exercise: Exercise, asked: Asked) -> Answer:
    names = {"query": "key", "key": "query", "query_weight": "key_weight", "key_weight": "query_weight"}
    givens = tuple(given.model_copy(update={"role": names.get(given.role, given.role)}) for given in exercise.givens)
    return answer(exercise.model_copy(update={"givens": givens}), asked)


@mistake("softmax over the wrong axis", quantities=_SOFT)
def _wrong_axis(exercise: Exercise, asked: Asked) -> Answer | None:
    from .attending import attention
    from .solvers.attention import given_scores

    right = answer(exercise, asked)
    row = asked.row
    if asked.quantity == "softmax" or not exercise.of_role("query", "tokens"):
        scores, allowed = given_scores(exercise, asked.model_copy(update={"row": None}))
        values = None
    else:
        found = attention(_with_scale(exercise, asked), asked, with_values=asked.quantity == "output")
        scores, allowed = found.scores, np.broadcast_to(found.allowed, found.scores.shape)
        values = found.value
    if scores.ndim != 2:
        return None
    weights = exact.transposed(exact.softmax(exact.transposed(scores), exact.transposed(allowed)))
    result = weights if values is None else exact.times(weights, values)
    return _turned_into(right, result if row is None else result[row - index_base(exercise)], exercise)


def _with_scale(exercise: Exercise, asked: Asked) -> Exercise:
    from .solvers.attention import scale_choice

    choice = scale_choice(exercise, asked)
    return exercise if choice is None else choice.taken


@mistake("scaling where none is asked")
def _scaled(exercise: Exercise, asked: Asked) -> Answer:
    return answer(_changed(exercise, without=("scale",), scale="sqrt"), asked)


@mistake("scaling left out", "no scaling")
def _unscaled(exercise: Exercise, asked: Asked) -> Answer:
    return answer(_changed(exercise, without=("scale",), scale="none"), asked)


@mistake("scores used as weights", quantities=("weights", "output"))
def _scores_as_weights(exercise: Exercise, asked: Asked) -> Answer:
    record = _with_scale(exercise, asked)
    return answer(_changed(record, structure={"similarity": "linear"}, normaliser="none"), asked)


@mistake("mask left out", "mask forgotten")
def _unmasked(exercise: Exercise, asked: Asked) -> Answer:
    return answer(_changed(exercise, without=("mask",), structure={"mask": "none"}), asked)


def _lookup(exercise: Exercise, asked: Asked, pick: Callable[[Any, int], Any]) -> Answer | None:
    """The right answer of argmax for one query, with what is picked in place of its value."""
    from .attending import attention

    record = _changed(exercise, structure={"similarity": "argmax"})
    found = attention(record, asked)
    if asked.row is not None and found.query.shape[-2] > 1:
        found = found.of("token", asked.row - index_base(exercise))
    if found.weights.shape[:-1] != (1,):
        return None
    values = pick(found, int(np.argmax(found.weights[0] == 1)))
    return None if values is None else _turned_into(answer(exercise, asked), values, exercise)


@mistake("second best taken", quantities=("argmax",))
def _second(exercise: Exercise, asked: Asked) -> Answer | None:
    def pick(found: Any, best: int) -> Any:
        allowed = np.broadcast_to(found.allowed, found.scores.shape).copy()
        allowed[0, best] = False
        return exact.times(exact.hardest(found.scores, allowed), found.values)[0] if allowed.any() else None

    return _lookup(exercise, asked, pick)


@mistake("index for value", quantities=("argmax",))
def _index(exercise: Exercise, asked: Asked) -> Answer | None:
    return _lookup(exercise, asked, lambda _, best: best + index_base(exercise))


@mistake("score for value", quantities=("argmax",))
def _score(exercise: Exercise, asked: Asked) -> Answer | None:
    return _lookup(exercise, asked, lambda found, best: found.scores[0, best])


@mistake("key for value", quantities=("argmax",))
def _key(exercise: Exercise, asked: Asked) -> Answer | None:
    return _lookup(exercise, asked, lambda found, best: found.key[best])


@mistake("softmax average for argmax", quantities=("argmax",))
def _average(exercise: Exercise, asked: Asked) -> Answer:
    scale = exercise.convention("scale", "none")
    record = _changed(exercise, structure={"similarity": "softmax"}, scale=scale)
    return answer(record, asked.model_copy(update={"quantity": "output"}))


def _of_answer(change: Callable[[exact.Array], Any]) -> Mistake:
    """A mistake that changes the numbers of the right answer."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        right = answer(exercise, asked)
        if isinstance(right.value, str):
            return None
        values = change(exact.array(right.value))
        return None if values is None else _turned_into(right, values, exercise)

    return wrong


mistake("rows and columns mixed up")(_of_answer(lambda values: exact.transposed(values) if values.ndim == 2 else None))
mistake("sign turned")(_of_answer(lambda values: exact.minus(exact.array(0), values)))
mistake("only the diagonal", quantities=("jacobian",))(
    _of_answer(lambda values: exact.masked(values, np.eye(len(values), dtype=bool)) if values.ndim == 2 else None)
)
mistake("standard deviation for variance", quantities=("norm_statistics",))(
    _of_answer(
        lambda values: exact.array([values[0], exact.function("sqrt", values[1:])[0]]) if values.shape == (2,) else None
    )
)


@mistake("sine and cosine swapped", quantities=("sinusoidal",))
def _cosine_first(exercise: Exercise, asked: Asked) -> Answer:
    from .solvers.positions import encoding

    return encoding(exercise, asked, swapped=True)


def _of_norm(change: Callable[[Any], Any]) -> Mistake:
    """A mistake that changes what a norm computes with."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer:
        from .solvers.norms import norm

        found = change(norm(exercise, asked))
        return _turned_into(answer(exercise, asked), found.back(found.output), exercise)

    return wrong


def _unbiased(found: Any) -> Any:
    count = found.values.shape[-1]
    return replace(found, variance=exact.product(found.variance, Fraction(count, count - 1)))


for _name, _change in {
    "epsilon left out": lambda found: replace(found, epsilon=Fraction(0)),
    "unbiased variance": _unbiased,
    "divided by the variance in a norm": lambda found: replace(
        found, variance=exact.power(found.variance, Fraction(2))
    ),
    "scale left out": lambda found: replace(found, gamma=exact.array(1)),
    "shift left out": lambda found: replace(found, beta=exact.array(0)),
    "mean not taken off": lambda found: replace(found, mean=exact.array(0)),
}.items():
    mistake(_name, quantities=_NORMS)(_of_norm(_change))

from . import formula_mistakes, mistakes_sizes, mistakes_symbols  # noqa: E402, F401 - they register mistakes that are not on numbers
