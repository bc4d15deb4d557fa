"""Solve an exercise: each question goes to the solver of its quantity, which says what it needs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from decimal import getcontext
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, TypeVar

from ..derivation import Derivation
from .findings import CannotSolve, Finding
from .record import LOOKED_AT, Asked, Exercise


@dataclass(frozen=True)
class Also:
    """Another answer: under `convention` (named in words), or another way to write the same where it is empty."""

    text: str
    value: Any = None
    convention: str = ""
    symbols: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to one question.

    `value` is exact where numbers allow: an int, a Fraction, a float, nested tuples of them, a text for a formula, a
    class or a shape, labels for a choice. `text` is the same as one would type it, in the notation of `qkv.maths` with
    the types `symbols`: a check accepts it. `items` are the answers of a question that asks for several objects, by
    their names. `also` are the answers under other usual conventions. `assumed` are the findings on what was assumed.
    """

    text: str = ""
    value: Any = None
    form: str = "number"
    unit: str = ""
    symbols: Mapping[str, str] = field(default_factory=dict, hash=False)
    items: Mapping[str, Answer] = field(default_factory=dict, hash=False)
    also: tuple[Also, ...] = ()
    assumed: tuple[Finding, ...] = ()
    derivation: Derivation = field(default_factory=Derivation)

    @classmethod
    def joined(cls, items: Mapping[str, Answer], equals: str = " = ", between: str = "; ", **fields: Any) -> Answer:
        """One answer for several objects, by their names."""
        each = items.values()
        found = {
            "symbols": {name: kind for item in each for name, kind in item.symbols.items()},
            "assumed": tuple(dict.fromkeys(finding for item in each for finding in item.assumed)),
            "derivation": sum((item.derivation for item in each), Derivation()),
        }
        text = between.join(f"{name}{equals}{item.text}" for name, item in items.items())
        return cls(text, tuple(item.value for item in each), items=items, **(found | fields))

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "text": self.text,
            "value": plain(self.value),
            "form": self.form,
            "unit": self.unit,
            "items": {name: item.as_dict() for name, item in self.items.items()},
            "also": [{"text": each.text, "convention": each.convention} for each in self.also],
            "assumed": [finding.words() for finding in self.assumed],
            "steps": [
                {"title": step.title, "text": step.text, "relation": step.relation, "reason": step.reason}
                for step in self.derivation.steps
            ],
        }


@dataclass(frozen=True)
class Solved:
    """A question with its answer, or with the finding that says why there is none."""

    asked: Asked
    answer: Answer | None = None
    refusal: Finding | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "label": self.asked.label,
            "quantity": self.asked.quantity,
            "object": self.asked.object,
            "answer": None if self.answer is None else self.answer.as_dict(),
            "refusal": None if self.refusal is None else {**self.refusal.as_dict(), "words": self.refusal.words()},
        }


@dataclass(frozen=True)
class Solution:
    """An exercise with each of its questions solved or refused."""

    exercise: Exercise
    parts: tuple[Solved, ...]

    def __getitem__(self, label: str) -> Solved:
        wanted = self.exercise.only(label).asked[0]
        return next(part for part in self.parts if part.asked is wanted or part.asked == wanted)

    @property
    def solved(self) -> bool:
        return all(part.answer is not None for part in self.parts)

    def _repr_html_(self) -> str:
        from ..render import html_of
        from .printing import solution_document

        return html_of(*solution_document(self).blocks)

    def as_dict(self) -> dict[str, Any]:
        return {"label": self.exercise.label, "parts": [part.as_dict() for part in self.parts]}


Solve = Callable[[Exercise, Asked], Answer]
SOLVERS: dict[str, tuple[Solve, tuple[tuple[str, ...], ...], bool]] = {}


def solver(quantity: str, *needs: Sequence[str], changed: bool = True) -> Callable[[Solve], Solve]:
    """Register the solver of a quantity; `needs` are alternatives, each the roles that must be given.

    A solver sees the record as the question changes it; with `changed=False`, as it was, to compare the two.
    """

    def register(function: Solve) -> Solve:
        SOLVERS[quantity] = function, tuple(tuple(each) for each in needs), changed
        return function

    return register


@cache
def quantities() -> dict[str, dict[str, str]]:
    """Every quantity that may be asked: the module that solves it, the usual form, and what its fields mean."""
    return tomllib.loads(files("qkv.exercises").joinpath("quantities.toml").read_text(encoding="utf-8"))


def solve(exercise: Exercise) -> Solution:
    """Solve every question of an exercise; one that cannot be solved is refused, with what would be needed.

    Args:
        exercise: The exercise, from the bank, from a sheet or made by hand.

    Returns:
        The solution: an answer with its derivation, or findings, for each question.

    >>> from qkv.exercises import Asked, Exercise, Given, solve
    >>> scores = Given(role="scores", value=[0, 0])
    >>> solve(Exercise(givens=[scores], asked=[Asked(quantity="softmax")])).parts[0].answer.text
    '(1/2, 1/2)'
    """
    return Solution(exercise, tuple(solve_part(exercise, asked) for asked in exercise.asked))


def solve_part(exercise: Exercise, asked: Asked) -> Solved:
    """One question of an exercise."""
    try:
        return Solved(asked, answer(exercise, asked))
    except CannotSolve as refusal:
        return Solved(asked, refusal=refusal.finding)


_REMEMBERED: ContextVar[dict[tuple[Any, ...], tuple[Any, ...]] | None] = ContextVar("remembered", default=None)
Made = TypeVar("Made")


@contextmanager
def remembering() -> Iterator[None]:
    """Solve each question, and each known mistake in it, once inside: a check needs the right answer many times."""
    token = _REMEMBERED.set({} if (held := _REMEMBERED.get()) is None else held)
    try:
        yield
    finally:
        _REMEMBERED.reset(token)


def remembered(make: Callable[[], Made], *of: Any) -> Made:
    """What `make` gives for these records and texts; records are told apart by identity, since 1 equals 1.0."""
    held = _REMEMBERED.get()
    if held is None or LOOKED_AT.get() is not None:
        return make()
    key = tuple(each if isinstance(each, str | int) else id(each) for each in of)
    if key not in held:
        held[key] = (make(), of)  # with the records, so that no other gets their identity
    return held[key][0]


def answer(exercise: Exercise, asked: Asked) -> Answer:
    """The answer to one question; CannotSolve says why there is none."""
    return remembered(lambda: _answer(exercise, asked), exercise, asked, getcontext().prec)


def _answer(exercise: Exercise, asked: Asked) -> Answer:
    if "+" in asked.quantity:
        return _together(exercise, asked)
    entry = quantities().get(asked.quantity)
    if entry is None:
        raise CannotSolve("no_solver", quantity=asked.quantity.replace("_", " "))
    import_module(f".solvers.{entry['module']}", __package__)
    if asked.quantity not in SOLVERS:
        raise CannotSolve("no_solver", quantity=asked.quantity.replace("_", " "))
    function, needs, wants_changed = SOLVERS[asked.quantity]
    changed = exercise.with_changes(asked)
    for name, first, second in contradictions(changed):
        raise CannotSolve("contradiction", what=name, first=first, second=second)
    if needs and (missing := _least_missing(changed, needs)):
        raise CannotSolve("missing", needs=" and ".join(missing))
    if (looked_at := LOOKED_AT.get()) is not None:
        looked_at.clear()  # what is only asked for above is not used
    found = function(changed if wants_changed else exercise, asked)
    return replace(found, form=asked.form or found.form)


def _together(exercise: Exercise, asked: Asked) -> Answer:
    """Several quantities of one question, "mean+variance": an item each, by the last word of its name."""
    each = {name.rpartition("_")[2]: name for name in asked.quantity.split("+")}
    items = {word: answer(exercise, asked.model_copy(update={"quantity": name})) for word, name in each.items()}
    return Answer.joined(items)


def contradictions(exercise: Exercise) -> Iterator[tuple[str, Any, Any]]:
    """Symbols that are given two values, with both."""
    seen: dict[tuple[str, str], Any] = {}
    for given in exercise.givens:
        if not given.symbol or given.value is None or given.role in ("listing", "other"):
            continue
        name = (given.symbol, given.role)
        if name in seen and seen[name] != given.value:
            yield given.symbol, seen[name], given.value
        seen.setdefault(name, given.value)


def _least_missing(exercise: Exercise, needs: Sequence[Sequence[str]]) -> list[str]:
    """What the alternative that lacks least still lacks; a role may name others with "|"."""

    def has(role: str) -> bool:
        return any(exercise.given(each) is not None or exercise.size(each) is not None for each in role.split("|"))

    lacking = [[role.replace("_", " ").replace("|", " or ") for role in each if not has(role)] for each in needs]
    return min(lacking, key=len)


def plain(value: Any) -> Any:
    """A value as JSON has it: a fraction that is no whole number becomes a float."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
