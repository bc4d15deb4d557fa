"""Explanations: what a rubric asks to be said, as the answer."""

from __future__ import annotations

from .. import rubrics
from ..findings import CannotSolve
from ..record import Asked, Exercise
from ..solving import Answer, solver


@solver("words")
def words(exercise: Exercise, asked: Asked) -> Answer:
    """The propositions of the rubric that the question names."""
    if not asked.rubric:
        raise CannotSolve("no_rubric")
    said = [each.statement for each in rubrics.rubric(asked.rubric).propositions if each.statement]
    text = " ".join(f"{each[0].upper()}{each[1:].rstrip('.')}." for each in said)
    return Answer(text, text, "words")
