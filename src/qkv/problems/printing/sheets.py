"""Sheets as a course hands them out: a line for the name, points, room to write; and their keys."""

from __future__ import annotations

from collections.abc import Sequence

from ...render import document as d
from ..judging.choices import Choice
from ..problem import Part, Problem
from .documents import answer_note, labelled, question

TITLE = "Attention: exercise sheet"
_LINE = "_" * 34


def sheet_document(
    problems: Sequence[Problem], *, key: bool = False, title: str = TITLE, copy: int | None = None
) -> d.Document:
    """A sheet of problems, or with `key` the same with the answers in the place of the room to write.

    `copy` is printed, so that a sheet finds its key.
    """
    number = "" if copy is None else f"Copy {copy:03d}"
    total = sum(part.points for problem in problems for part in problem.parts)
    blocks: list[d.Block] = []
    if key:
        blocks.append(d.Paragraph(" · ".join(filter(None, (number, f"{total} points in all")))))
    else:
        blocks.append(d.Paragraph(" · ".join(filter(None, (f"Name: {_LINE}", f"Points: ______ / {total}", number)))))
    for place, problem in enumerate(problems, 1):
        points = sum(part.points for part in problem.parts)
        blocks.append(d.Heading(f"{place}. {problem.title} ({points} points)"))
        blocks += labelled(problem.statement)
        for part in problem.parts:
            blocks += question(problem, part)
            blocks.append(answer_note(problem, part) if key else d.BlankLines(room_for(part)))
    return d.Document(f"{title}: key" if key else title, tuple(blocks))


def room_for(part: Part) -> int:
    """Lines to write on: a choice needs none to speak of, a calculation two for each step."""
    if isinstance(part.answer, Choice):
        return 2
    return min(14, max(3, 2 * len(part.steps())))
