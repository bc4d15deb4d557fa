"""Arrays as answers with a derivation, and conventions that are not said: the usual one is taken, the other shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from ...derivation import Derivation, Step, chain
from ..exact import Array, array, expression, is_rational, nested, precise, times, written
from ..exact import result as ended
from ..findings import CannotSolve, Finding
from ..record import Asked, Exercise, shape_of
from ..solving import Also, Answer, Solve
from ..values import digits

MOST_SHOWN = 40  # entries that a step of a derivation writes out
_TYPES = ("scalar", "vector", "matrix")
_FORMS = ("number", "vector", "matrix", "tensor")


def answered(values: Array, exercise: Exercise, steps: Iterable[Iterable[Step]] = (), **fields: Any) -> Answer:
    """The answer that an array is; whole numbers, fractions and floats as nested tuples, and the text."""
    values = array(values)
    fields.setdefault("text", written(values, digits(exercise)))
    fields.setdefault("derivation", Derivation.of(*steps))
    return Answer(value=nested(values), form=_FORMS[min(values.ndim, 3)], **fields)


def worked(title: str, *texts: str, values: Array, reason: str = "", result: str = "") -> tuple[Step, ...]:
    """A chain of expressions that ends in the values; of large arrays only the title and the reason."""
    if values.size > MOST_SHOWN or any("…" in text for text in texts):
        return chain(title, reason=reason)
    steps = chain(title, *texts, result or ended(values), reason=reason)
    return steps if is_rational(values) else (*steps[:-1], replace(steps[-1], relation="~" if texts else ""))


def multiplied(title: str, *factors: Array, reason: str = "") -> tuple[Array, tuple[Step, ...]]:
    """The product of two matrices, and the step that computes it."""
    values = times(*factors)
    return values, worked(title, " ".join(map(expression, factors)), values=values, reason=reason)


def joined_items(items: dict[str, Answer]) -> Answer:
    """One answer for several objects; a single one is the answer."""
    if not items:
        raise CannotSolve("missing", needs="a weight matrix")
    first, *rest = items.values()
    if not rest:
        return first
    symbols = {}
    for name, item in items.items():
        shape = shape_of(item.value)
        while shape and shape[-1] == 1:  # a matrix of one column is a vector
            shape = shape[:-1]
        symbols[name] = f"{_TYPES[len(shape)]}[{', '.join(map(str, shape))}]" if 0 < len(shape) < 3 else "scalar"
    return Answer.joined(items, between=", ", form=first.form, symbols=symbols)


@dataclass(frozen=True)
class Choice:
    """A convention that is not said: its name, the record under the usual one, and under the other one."""

    convention: str
    value: str
    taken: Exercise
    other: Exercise | None = None
    words: str = ""


Chooser = Callable[[Exercise, Asked], Choice | None]


def settled(*choosers: Chooser) -> Callable[[Solve], Solve]:
    """Let a solver see only settled records; where a choice changes the answer, it is said and the other one shown."""

    def settle(exercise: Exercise, asked: Asked) -> tuple[Exercise, list[Choice]]:
        choices = []
        for chooser in choosers:
            if choice := chooser(exercise, asked):
                choices.append(choice)
                exercise = choice.taken
        return exercise, choices

    def decorate(core: Solve) -> Solve:
        @wraps(core)
        @precise
        def solve(exercise: Exercise, asked: Asked) -> Answer:
            main, choices = settle(exercise, asked)
            answer = core(main, asked)
            assumed, also = [], []
            for choice in choices:
                with suppress(CannotSolve):
                    other = choice.other and core(settle(choice.other, asked)[0], asked)
                    if other and other.text == answer.text:
                        continue
                    assumed.append(Finding("assumed", {"convention": choice.convention, "value": choice.value}))
                    if other:
                        also.append(Also(other.text, other.value, choice.words, other.symbols or None))
            return replace(answer, assumed=(*assumed, *answer.assumed), also=(*also, *answer.also))

        return solve

    return decorate
