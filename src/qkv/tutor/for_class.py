"""A page for the class: each error of a conversation, the question that caught it, and the right line."""

from __future__ import annotations

from collections.abc import Iterator

from ..problems.misconceptions import MISCONCEPTIONS
from ..problems.printing.documents import answered, worked
from ..problems.problem import Part, Problem, plain_name
from ..render import document as d
from .ledger import Error, Ledger, Row
from .questions import Question

LONGEST_QUOTE = 600  # characters of a student's words


def insights(ledger: Ledger) -> d.Document:
    """What a class can learn from a conversation: errors, what caught them, and what is right."""
    blocks: list[d.Block] = []
    rows = tuple((each["problem"], each["title"] or each["family"], each["status"]) for each in ledger.problems())
    if rows:
        blocks.append(d.Table(("problem", "about", "went"), rows))
    wrong = [row for row in ledger.rows if row.errors]
    if not ledger.rows:
        blocks.append(d.Paragraph("No question of the bank was recognised, so nothing was judged."))
    elif not wrong:
        blocks.append(d.Paragraph("No error was found in what could be read."))
    for row in wrong:
        blocks += _of_row(ledger, row)
    unread = [f"{row.problem} {row.part}" for row in ledger.rows if row.status == "unread"]
    if unread:
        blocks.append(d.Paragraph(f"Not judged, because no claim could be read: {', '.join(unread)}."))
    return d.Document(f"What we learned: {ledger.title}" if ledger.title else "What we learned", tuple(blocks))


def _of_row(ledger: Ledger, row: Row) -> Iterator[d.Block]:
    found = _part(ledger, row)
    yield d.Heading(f"Problem {row.problem}, part {row.part}")
    if found is not None:
        problem, part = found
        yield d.Paragraph(
            (d.Text("Asked: ", "strong"), *d.prose(part.ask.split("\n\n")[0], part.symbols or problem.symbols))
        )
    for error in row.errors:
        yield from _of_error(ledger, row, error, found)
    if found is not None:
        problem, part = found
        yield d.Paragraph((d.Text("The right line: ", "strong"), *answered(problem, part)))
        steps = part.steps()
        if steps:
            yield from worked(steps[-1], {**problem.symbols, **part.symbols, **steps[-1].symbols})
        if part.explanation:
            yield d.Paragraph((d.Text("Why: ", "strong"), *d.prose(part.explanation, part.symbols or problem.symbols)))


def _of_error(ledger: Ledger, row: Row, error: Error, found: tuple[Problem, Part] | None) -> Iterator[d.Block]:
    kinds = {"given up": "A right answer was given up", "wrong reason": "Right, for a wrong reason", "false line":
             "Right, with a line that is false", "incomplete": "Not complete"}  # fmt: skip
    said = kinds.get(error.kind, "The error")
    symbols = found[1].symbols or found[0].symbols if found else {}
    named = error.name if error.name in MISCONCEPTIONS else ""
    yield d.Paragraph(
        (
            d.Text(f"{said} (turn {error.turn}): ", "strong"),
            d.Maths(error.claim, symbols) if _short(error) else d.Text(error.claim),
        )
    )
    if named:
        known = MISCONCEPTIONS[named]
        yield d.Paragraph((d.Text(f"{named}: ", "emphasis"), d.Text(f"{known.believed} {known.right}")))
    else:
        yield d.Paragraph(error.what)
    caught = next((each for each in row.objections if each.turn > error.turn), None)
    if error.found_by == "student" and caught is not None:
        words = " ".join(caught.text.split())
        words = words if len(words) <= LONGEST_QUOTE else words[: LONGEST_QUOTE - 1] + "…"
        yield d.Paragraph((d.Text(f"What caught it (turn {caught.turn}): ", "strong"), d.Text(f"“{words}”")))
    elif error.found_by == "tutor":
        yield d.Paragraph("The tutor found it unasked.")
    elif named:
        yield d.Paragraph(f"Nobody caught it. A question that would have: {MISCONCEPTIONS[named].question}")
    else:
        yield d.Paragraph("Nobody caught it.")


def _short(error: Error) -> bool:
    return len(error.claim) < 200 and error.kind != "wrong reason"


def _part(ledger: Ledger, row: Row) -> tuple[Problem, Part] | None:
    question: Question | None = next((each for each in ledger.questions if each.name == row.problem), None)
    if question is None or question.problem is None:
        return None
    part = question.parts.get(plain_name(row.part))
    return None if part is None else (question.problem, part)
