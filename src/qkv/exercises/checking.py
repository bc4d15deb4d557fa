"""Check an answer to a question of an exercise: solve it, judge the text by the form, and name known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from ..errors import OptionTypeError, QkvError, complaint
from . import rubrics
from .findings import CannotSolve, Finding
from .forms.blanks import judge_blank
from .forms.choices import judge_choice
from .forms.items import entries_named, judge_items, rows_of
from .forms.proofs import judge_proof
from .forms.values import Context, judge_array, judge_shape, judge_value
from .outcome import Outcome, unread
from .record import Asked, Exercise
from .solving import Answer, answer

MOST_MISTAKES = 40  # known mistakes that are tried where a question names none

Judge = Callable[[Answer, str, Context], Outcome]
JUDGES: dict[str, Judge] = {
    "number": judge_value,
    "formula": judge_value,
    "class": judge_value,
    "vector": judge_array,
    "matrix": judge_array,
    "tensor": judge_array,
    "shape": judge_shape,
    "choice": judge_choice,
    "blank": judge_blank,
    "code": judge_blank,
    "proof": judge_proof,
}


def check(exercise: Exercise, label: str, text: str, *, gold: Answer | None = None) -> Outcome:
    """Whether `text` answers a question of an exercise.

    Args:
        exercise: the record.
        label: the question's label; "" for an exercise with one question.
        text: the answer.
        gold: the right answer, where it is known already.

    Returns:
        The outcome: "wrong" only where the text was read as a whole and is refuted.

    Raises:
        OptionError: for a label that the exercise does not have.

    >>> from qkv.exercises import Asked, Exercise, Given
    >>> scores = Exercise(givens=[Given(role="scores", value=[0, 0])], asked=[Asked(quantity="softmax")])
    >>> check(scores, "", "(1/2, 1/2)").kind, check(scores, "", "(1, 0)").kind, check(scores, "", "no idea").kind
    ('right', 'wrong', 'unread')
    """
    if not isinstance(text, str):
        raise OptionTypeError(complaint("answer", repr(text), "a text"))
    asked = exercise.only(label).asked[0] if label or len(exercise.asked) != 1 else exercise.asked[0]
    if asked.rubric:
        return rubrics.rubric(asked.rubric).judge(text)
    try:
        found = answer(exercise, asked) if gold is None else gold
        if found.form == "words":
            return rubrics.rubric(rubrics.chosen(asked.quantity, asked.object, found.text)).judge(text)
    except CannotSolve as refusal:
        return unread("unsolved", why=refusal.finding.words())
    context = Context(exercise.with_changes(asked), asked)
    outcome = judge(found, text, context)
    return outcome if outcome else _with_mistakes(outcome, found, text, context)


def judge(gold: Answer, text: str, context: Context) -> Outcome:
    """An answer by its form; several objects piece by piece, a matrix also by its rows."""
    if gold.items:
        whole = gold.items.get("output") if context.asked.quantity == "argmax" else None
        alone = judge(whole, text, context) if whole is not None else unread("missing_piece", name="output")
        return alone if alone else judge_items(gold.items, text, context, judge)
    if not context.name and (named := entries_named(gold, text, context)):
        return judge_items(named, text, context, judge)
    outcome = JUDGES.get(gold.form, judge_value)(gold, text, context)
    name = context.asked.object or "Y"
    if outcome.kind == "unread" and not context.name and rows_of(name, gold, context):
        rows = judge_items({name: gold}, text, context, judge)
        return rows if rows.kind != "unread" else outcome
    return outcome


def _with_mistakes(outcome: Outcome, gold: Answer, text: str, context: Context) -> Outcome:
    """The outcome with the known mistakes whose answer this is; such an answer was read, and is wrong."""
    if any(code in ("hedged", "denied", "several", "no_answer") for code in outcome.codes):
        return outcome
    names = []
    for name, planted in _planted(context.exercise, context.asked):
        # A mistake that gives the right answer, or one that nobody can tell from it, shows nothing.
        if judge(planted, text, context) and not judge(gold, planted.text, context):
            names.append(name)
    if names and outcome.kind == "unread" and context.asked.mistakes:
        outcome = replace(
            outcome, kind="wrong", findings=(Finding("different", {"given": text.strip(), "right": gold.text}),)
        )
    return replace(outcome, mistakes=tuple(names))


def _planted(exercise: Exercise, asked: Asked) -> Iterator[tuple[str, Answer]]:
    """Known mistakes, each with the wrong answer that it leads to."""
    from .mistakes import MISTAKES

    named = asked.mistakes or tuple(islice(MISTAKES, MOST_MISTAKES))
    for name in named:
        try:
            planted = MISTAKES[name](exercise, asked) if name in MISTAKES else None
        except (QkvError, ArithmeticError, LookupError, TypeError, ValueError):
            continue  # it does not apply to these givens
        if planted is not None:
            yield name, planted
