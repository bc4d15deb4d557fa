"""Check an answer to a question of an exercise: solve it, judge the text by the form, and name known mistakes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from ..errors import OptionTypeError, QkvError, complaint
from ..maths.comparison.verdict import unexplained
from . import rubrics
from .findings import CannotSolve
from .forms.blanks import judge_blank
from .forms.choices import judge_choice
from .forms.items import entries_named, judge_items, rows_of
from .forms.maps import judge_attention, judge_map
from .forms.proofs import judge_proof
from .forms.statement import without_question
from .forms.values import Context, Judge, judge_array, judge_shape, judge_value
from .outcome import Outcome, conditional, known_mistakes, right, unread, wrong
from .record import Asked, Exercise
from .solving import Also, Answer, answer, remembered, remembering

MOST_MISTAKES = 200  # known mistakes that are tried where a question names none

JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("number", "formula", "class"), judge_value),
    **dict.fromkeys(("vector", "matrix", "tensor"), judge_array),
    **dict.fromkeys(("blank", "code"), judge_blank),
    "shape": judge_shape,
    "choice": judge_choice,
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
    with remembering():
        return _checked(exercise, asked, text, gold)


def _checked(exercise: Exercise, asked: Asked, text: str, gold: Answer | None) -> Outcome:
    context = Context(exercise.with_changes(asked), asked, replaced=_replaced(exercise, asked))
    try:
        if asked.rubric:
            return rubrics.rubric(asked.rubric).judge(text)
        found = answer(exercise, asked) if gold is None else gold
        if found.form == "words":
            outcome = rubrics.rubric(rubrics.chosen(asked.quantity, asked.object, found.text)).judge(text)
            return outcome if outcome.kind != "unread" or not found.items else judge(found, text, context)
    except CannotSolve as refusal:
        return unread("unsolved", why=refusal.finding.words())
    text = without_question(text, asked.text)
    outcome = judge(found, text, context)
    if outcome or any(code in ("hedged", "denied", "several", "no_answer") for code in outcome.codes):
        return outcome
    names = asked.mistakes or (islice(known_mistakes(), MOST_MISTAKES) if gold is None else ())
    mistaken = {name: each for name in names if (each := planted(exercise, asked, name)) is not None}
    shown = tuple(name for name, each in mistaken.items() if each.text == text.strip())
    with unexplained():
        shown = shown or tuple(name for name, each in mistaken.items() if _shows(each, text, found, context))
    if shown and outcome.kind == "unread" and asked.mistakes:
        outcome = wrong("different", given=text.strip(), right=found.text)  # an answer that a named mistake gives
    return replace(outcome, mistakes=shown)


def _replaced(exercise: Exercise, asked: Asked) -> dict[str, str]:
    """Sizes for which the question takes other ones, each with that one: {"M": "D"} where M is about as large as D."""
    named = {given.role: given.symbol for given in asked.changes if given.symbol and given.value is None}
    pairs = ((given.symbol, named.get(given.role)) for given in exercise.givens if given.value is None)
    kept = {given.symbol for given in exercise.with_changes(asked).givens}
    return {old: new for old, new in pairs if old and new and old not in kept}


def judge(gold: Answer, text: str, context: Context) -> Outcome:
    """An answer by its form; several objects piece by piece, a matrix also by its rows."""
    if gold.items:
        whole = gold.items.get("output") if context.asked.quantity == "argmax" else None
        return (whole and judge(whole, text, context)) or judge_items(gold.items, text, context, judge)
    if context.asked.quantity == "feature_map" and context.asked.object != "count":
        return judge_map(gold, text, context)
    if context.asked.quantity == "kernel_form" and gold.also:
        return judge_attention(gold, text, context, _judged)
    return _judged(gold, text, context)


def _judged(gold: Answer, text: str, context: Context) -> Outcome:
    """An answer that is one formula, array, class or piece of code."""
    if not context.name and (named := entries_named(gold, text, context)):
        return judge_items(named, text, context, judge)
    outcome = JUDGES.get(gold.form, judge_value)(gold, text, context)
    # Another way to write a formula that is refuted is refuted too.
    same = gold.form == "formula" and outcome.kind == "wrong" and outcome.verdict is not None
    for other in () if outcome else (each for each in gold.also if each.convention or not same):
        symbols = other.symbols or gold.symbols
        if judge(replace(gold, text=other.text, value=other.value, symbols=symbols, also=()), text, context):
            return _under(other, bool(gold.assumed))
    name = context.asked.object or "Y"
    if outcome.kind == "unread" and not context.name and rows_of(name, gold, context):
        rows = judge_items({name: gold}, text, context, judge)
        return rows if rows.kind != "unread" else outcome
    return outcome


def _under(other: Also, unsaid: bool) -> Outcome:
    """The outcome of an answer that is right under another convention, which the text may leave open."""
    if other.convention and not unsaid:
        return conditional(other.convention, "convention_condition")
    return right("other_convention", convention=other.convention) if other.convention else right()


def _shows(mistaken: Answer, text: str, gold: Answer, context: Context) -> bool:
    """Whether a text is the answer that a mistake leads to, and that answer can be told from the right one."""
    return bool(judge(mistaken, text, context)) and not judge(gold, mistaken.text, context)


def planted(exercise: Exercise, asked: Asked, name: str) -> Answer | None:
    """The wrong answer that a known mistake leads to, or None where it does not apply."""
    return remembered(lambda: _planted(exercise, asked, name), exercise, asked, name)


def _planted(exercise: Exercise, asked: Asked, name: str) -> Answer | None:
    from .mistakes import MISTAKES

    try:
        return MISTAKES[name](exercise, asked) if name in MISTAKES else None
    except (QkvError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None
