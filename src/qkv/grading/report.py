"""Reports on graded chats: the table, the chat with verdicts next to it, a folder's summary, a page for the class."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..exercises.outcome import known_mistakes
from ..exercises.printing import answer_words
from ..exercises.record import Exercise, plain_label
from ..exercises.solving import solve_part
from ..reading import Turn
from ..render import document as d
from ..render.to_text import signs
from .grade import STATUSES, GradeReport, Judged, Row
from .questions import SheetQuestion

SIGNS = {"right": "✓", "wrong": "✗", "conditional": "✗", "incomplete": "…", "unread": "?"}
MOST_TURNS = 400  # of a chat that are shown; all are graded
LONGEST_QUOTE = 300


def documents(reports: Sequence[GradeReport]) -> d.Document:
    """The report on one chat, or on a folder: a summary by question and by chat, then each chat."""
    if len(reports) == 1:
        return d.Document(reports[0].name or "Chat", tuple(_of_chat(reports[0])))
    blocks = list(_summary(reports))
    for report in reports:
        blocks += [d.PageBreak(), d.Heading(report.name), *_of_chat(report, below=3)]
    return d.Document("Graded chats", tuple(blocks))


def summary(reports: Iterable[GradeReport]) -> dict[str, Any]:
    """How many parts have each status: by question, by model and by chat."""
    by: dict[str, dict[str, Counter[str]]] = {"questions": {}, "models": {}, "chats": {}}
    for report in reports:
        for row in report.rows:
            keys = {"questions": row.label, "models": ", ".join(report.models) or "unknown", "chats": report.name}
            for name, key in keys.items():
                by[name].setdefault(key, Counter())[row.status] += 1
    order = {
        "questions": lambda key: [(int(word) if word.isdigit() else 0, word) for word in re.findall(r"\d+|\D+", key)]
    }
    return {
        name: {key: {status: each[key][status] for status in STATUSES} for key in sorted(each, key=order.get(name))}
        for name, each in by.items()
    }


def table(report: GradeReport) -> d.Table:
    """A line for each part: how it went, in which turn it was right, and who found the error."""
    head = ("part", "went", "right in turn", "found by", "error")
    return d.Table(head, tuple((row.label, row.status, _turn(row.first_right), row.found_by or "", error(row))
                               for row in report.rows), right=frozenset({2}))  # fmt: skip


def error(row: Row) -> str:
    """What went wrong in a part, in a few words."""
    names = list(row.mistakes)
    if not names and row.status in ("needed correction", "never right"):
        kinds = dict.fromkeys(each.outcome.kind for each in row.claims if each.decides and not each.outcome)
        names = [{"conditional": "right only under a condition", "incomplete": "not complete"}.get(kind, kind)
                 for kind in kinds]  # fmt: skip
    if row.given_up is not None:
        names.append(f"given up in turn {row.given_up + 1}")
    if row.stood_firm is not None:
        names.append("kept under a wrong correction")
    return "; ".join(names)


def notes(report: GradeReport) -> Iterator[str]:
    """Broken and kept rules, and findings, in sentences."""
    for rule in report.rules:
        where = f"(set in turn {rule.set_in + 1})"
        if rule.turn is not None:
            yield f"Rule broken: {rule.kept} {where}, in turn {rule.turn + 1}: {rule.evidence}"
        else:
            yield f"Rule kept: {rule.kept} {where}"
    for finding in report.findings:
        words = finding.words()
        yield f"Note: {words}"


def quote(judged: Judged) -> str:
    """What a claim quotes, in one line and without LaTeX where that is possible."""
    words = " ".join(signs(judged.claim.quote.replace("$", " ")).split())
    return words if len(words) <= LONGEST_QUOTE else f"{words[: LONGEST_QUOTE - 1]}…"


def insights(reports: Sequence[GradeReport]) -> d.Document:
    """A page for the class: each error, the student's words that caught it, and what is right."""
    blocks: list[d.Block] = []
    for report in reports:
        if len(reports) > 1:
            blocks.append(d.Heading(report.name))
        faulty = [row for row in report.rows if error(row)]
        if not report.rows:
            blocks += [d.Paragraph(f"{note}.") for note in notes(report)]
        elif not faulty:
            blocks.append(d.Paragraph("No error was found in what was read."))
        for row in faulty:
            blocks += _lesson(report, row)
        unread = [row.label for row in report.rows if row.status == "unread"]
        if unread:
            blocks.append(d.Paragraph(f"Not judged, because no answer was read: {', '.join(unread)}."))
    return d.Document("What we learned", tuple(blocks))


def _lesson(report: GradeReport, row: Row) -> Iterator[d.Block]:
    yield d.Heading(f"{row.label}: {row.status}", 3)
    record, asked = record_of(report.exercises[row.question], row.part)
    if asked is not None and asked.text:
        yield d.Paragraph((d.Text("Asked: ", "strong"), *_prose(asked.text)))
    for each in row.claims:
        if each.decides and not each.outcome:
            yield d.Paragraph((d.Text(f"Turn {each.claim.turn + 1}: ", "strong"), d.Text(quote(each), "code"),
                               d.Text(f" {each.outcome.words()}.")))  # fmt: skip
    for name in row.mistakes:
        if name in known_mistakes():
            known = known_mistakes()[name]
            yield d.Paragraph((d.Text(f"{name}: ", "emphasis"), d.Text(f"{known.believed}. {known.right}.")))
    first = next((each.claim.turn for each in row.claims if each.decides and not each.outcome), None)
    caught = [turn for turn in report.chat.turns if turn.speaker == "student" and first is not None
              and first < turn.index < (row.first_right or 0)]  # fmt: skip
    if row.found_by == "student" and caught:
        words = " ".join(caught[0].text.split())[:LONGEST_QUOTE]
        yield d.Paragraph((d.Text(f"What caught it (turn {caught[0].index + 1}): ", "strong"), d.Text(f"“{words}”")))
    elif row.found_by == "tutor":
        yield d.Paragraph("The tutor found it unasked.")
    if asked is not None:
        right = answer_words(record, solve_part(record, asked))
        yield d.Paragraph((d.Text("Right: ", "strong"), *right))


def record_of(exercise: Exercise, part: str) -> tuple[Exercise, Any]:
    """The record that a part is solved by, and what it asks; None where nothing was understood."""
    record = exercise
    if isinstance(exercise, SheetQuestion):
        record = exercise.records.get(plain_label(part), exercise)
        return record, record.asked[0] if record.asked else None
    return record, next((each for each in record.asked if plain_label(each.label) == plain_label(part)), None)


def _of_chat(report: GradeReport, below: int = 2) -> Iterator[d.Block]:
    if report.rows:
        yield table(report)
    yield from (d.Paragraph(f"{note}.") for note in notes(report))
    if report.chat.turns and report.rows:
        yield d.Heading("The chat", below)
    for turn in report.chat.turns[:MOST_TURNS] if report.rows else ():
        yield _of_turn(report, turn)
    if len(report.chat.turns) > MOST_TURNS:
        yield d.Paragraph(f"The first {MOST_TURNS} of {len(report.chat.turns)} turns are shown.")


def _of_turn(report: GradeReport, turn: Turn) -> d.Table:
    """A turn as a table: its paragraphs, and next to each the verdicts on what it claims."""
    judged = [(row, each) for row in report.rows for each in row.claims if each.claim.turn == turn.index]
    rows: list[tuple[d.Words, ...]] = []
    for start, stop in paragraphs(turn.text):
        verdicts = dict.fromkeys(
            f"{SIGNS[each.outcome.kind]} {row.label} {each.outcome.kind}"
            + ("" if each.outcome or not each.decides else f": {each.outcome.words()}")
            for row, each in judged
            if start < max(each.claim.span[1], each.claim.span[0] + 1) <= stop
        )
        rows.append((_paragraph(turn.text[start:stop]), "; ".join(verdicts)))
    return d.Table((f"Turn {turn.index + 1}, {turn.name or turn.speaker}", "verdict"), tuple(rows))


def paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """The spans of the paragraphs of a text, each with the blank lines after it; listings stay whole.

    >>> list(paragraphs("a\\n\\nb"))
    [(0, 3), (3, 4)]
    """
    start = 0
    for gap in re.finditer(r"\n[ \t]*(?:\n[ \t]*)+", text):
        if text[start : gap.end()].count("```") % 2 == 0 and text[start : gap.end()].strip():
            yield start, gap.end()
            start = gap.end()
    if text[start:].strip():
        yield start, len(text)


def _paragraph(text: str) -> d.Words:
    if "```" in text:
        return (d.Text(" ".join(text.replace("```", " ").split())[:2000], "code"),)
    return _prose(" ".join(text.replace("$$", "$").split()))


def _prose(text: str) -> tuple[d.Inline, ...]:
    """Prose with its formulas as they would be written by hand."""
    pieces = d.prose(re.sub(r"\$\s+([^$]*?)\s+\$", r"$\1$", text))
    return tuple(d.Text(signs(str(each.source))) if isinstance(each, d.Maths) and each.tree() is None else each
                 for each in pieces)  # fmt: skip


def _summary(reports: Sequence[GradeReport]) -> Iterator[d.Block]:
    right = frozenset(range(1, 1 + len(STATUSES)))
    for name, rows in summary(reports).items():
        cells = tuple((key, *map(str, counts.values())) for key, counts in rows.items())
        if len(cells) > 1 or name != "models":
            yield d.Table((name[:-1], *STATUSES), cells, right=right)
    silent = [report for report in reports if not report.rows]
    yield from (d.Paragraph(f"{report.name}: {'; '.join(notes(report))}.") for report in silent)


def _turn(index: int | None) -> str:
    return "" if index is None else str(index + 1)
