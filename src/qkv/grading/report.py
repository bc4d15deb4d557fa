"""Reports on graded chats: the table, the chat with verdicts next to it, a folder's summary, a page for the class."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..exercises.printing import answer_words
from ..exercises.record import Exercise, plain_label
from ..exercises.sheets.questions import SheetQuestion
from ..exercises.solving import solve_part
from ..reading import AnswerClaim, Turn
from ..render import document as d
from ..render.from_text import passages, words
from ..render.to_text import signs
from .grade import STATUSES, GradeReport, Judged, Row

SIGNS = {"right": "✓", "wrong": "✗", "conditional": "✗", "incomplete": "…", "unread": "?"}
_KINDS = {"conditional": "right only under a condition", "incomplete": "not complete", "unread": "not read"}
# Colours come with words, in the styles of derivations.
_STYLES = {"one shot": "proved", "needed correction": "tested", "never right": "refuted", "right": "proved",
           "wrong": "refuted", "conditional": "refuted", "incomplete": "tested"}  # fmt: skip
MOST_TURNS = 400  # of a chat that are shown; all are graded
LONGEST_QUOTE = 300
MOST_EXAMPLES = 3  # chats that show an error on the page for the class
_SHORT_QUOTE = 90  # characters in the margin


def documents(reports: Sequence[GradeReport], failed: Mapping[str, str] | None = None) -> d.Document:
    """The report on one chat, or on a folder: a summary by chat, question and model, then each chat.

    `failed` says of files that could not be read why.
    """
    if len(reports) == 1 and not failed:
        return d.Document(reports[0].name or "Chat", tuple(_of_chat(reports[0])))
    blocks = list(_summary(reports, failed or {}))
    for at, report in enumerate(reports):
        blocks += [d.PageBreak(), d.Heading(report.name, name=f"chat-{at}"), *_of_chat(report, below=3)]
    return d.Document("Graded chats", tuple(blocks))


def summary(reports: Iterable[GradeReport]) -> dict[str, Any]:
    """How many parts have each status: by question, by model and by chat."""
    by: dict[str, dict[str, Counter[str]]] = {"questions": {}, "models": {}, "chats": {}}
    for report in reports:
        for row in report.rows:
            keys = {"questions": row.label, "models": model_of(report), "chats": report.name}
            for name, key in keys.items():
                by[name].setdefault(key, Counter())[row.status] += 1
    order = {"questions": _natural}
    return {
        name: {key: {status: each[key][status] for status in STATUSES} for key in sorted(each, key=order.get(name))}
        for name, each in by.items()
    }


def model_of(report: GradeReport) -> str:
    """The names of those who answer; "assistant" and "ASSISTANT" are one."""
    return ", ".join(dict.fromkeys(name.capitalize() if name.isalpha() and (name.islower() or name.isupper()) else name
                                   for name in report.models)) or "unknown"  # fmt: skip


def table(report: GradeReport) -> d.Table:
    """A line for each part: how it went, in which turn it was right, and who found the error."""
    head = ("part", "went", "right in turn", "found by", "error")
    rows = tuple((row.label, d.Text(row.status, _STYLES.get(row.status, "")), _turn(row.first_right),
                  row.found_by or "", error(row)) for row in report.rows if row.claims or error(row))  # fmt: skip
    return d.Table(head, rows, right=frozenset({2}))


def error(row: Row) -> str:
    """What went wrong in a part, in a few words."""
    names = list(row.mistakes)
    if not names and row.status in ("needed correction", "never right"):
        kinds = dict.fromkeys(each.outcome.kind for each in row.claims if each.decides and not each.outcome)
        names = [_KINDS.get(kind, kind) for kind in kinds]
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
    yield from (f"Note: {finding.words()}" for finding in report.findings)


def quote(judged: Judged, longest: int = LONGEST_QUOTE) -> str:
    """What a claim quotes, in one line and without LaTeX where that is possible."""
    said = " ".join(signs(judged.claim.quote.replace("$", " ")).split())
    return said if len(said) <= longest else f"{said[: longest - 1]}…"


def insights(reports: Sequence[GradeReport]) -> d.Document:
    """A page for the class: each error, in how many chats it was made, the words that caught it, and what is right."""
    found: dict[tuple[str, str, str], list[tuple[GradeReport, Row]]] = {}
    for report in reports:
        for row in report.rows:
            if what := error(row):
                _, asked = record_of(report.exercises[row.question], row.part)
                found.setdefault((row.label, what, asked.text if asked is not None else ""), []).append((report, row))
    blocks: list[d.Block] = [
        d.Paragraph(f"{report.name}: {note}.") for report in reports if not report.rows for note in notes(report)
    ]
    if not found and any(report.rows for report in reports):
        blocks.append(d.Paragraph("No error was found in what was read."))
    for (label, what, _), cases in sorted(found.items(), key=lambda each: _natural(each[0][0])):
        counted = f" ({len(cases)} of {len(reports)} chats)" if len(reports) > 1 else ""
        blocks += [d.Heading(f"{label}: {what}{counted}", 3), *_lesson(cases, len(reports) > 1)]
    read = {row.label for report in reports for row in report.rows if row.status != "unread"}
    unread = dict.fromkeys(row.label for report in reports for row in report.rows if row.label not in read)
    if unread:
        blocks.append(d.Paragraph(f"Not judged, because no answer was read: {', '.join(unread)}."))
    return d.Document("What we learned", tuple(blocks))


def _lesson(cases: Sequence[tuple[GradeReport, Row]], named: bool) -> Iterator[d.Block]:
    record, asked = record_of(cases[0][0].exercises[cases[0][1].question], cases[0][1].part)
    if asked is not None and asked.text:
        yield d.Paragraph((d.Text("Asked: ", "strong"), *words(asked.text.partition("```")[0])))
        yield from (block for _, blocks in passages(asked.text) for block in blocks if isinstance(block, d.Code))
    for report, row in cases[:MOST_EXAMPLES]:
        place = f"{report.name}, turn" if named else "Turn"
        faults = [each for each in row.claims if each.decides and not each.outcome]
        for each in faults[:1]:
            yield d.Paragraph((d.Text(f"{place} {each.claim.turn + 1}: ", "strong"), d.Text(quote(each), "code"),
                               d.Text(f": {each.outcome.words()}.")))  # fmt: skip
        caught = [turn for turn in report.chat.turns if turn.speaker == "student" and faults
                  and faults[0].claim.turn < turn.index < (row.first_right or 0)]  # fmt: skip
        if row.found_by == "student" and caught:
            said = " ".join(caught[0].text.split())[:LONGEST_QUOTE]
            yield d.Paragraph((d.Text(f"What caught it (turn {caught[0].index + 1}): ", "strong"), d.Text(f"“{said}”")))
        elif row.found_by == "tutor":
            yield d.Paragraph("The tutor found it unasked.")
    if asked is not None:
        yield d.Paragraph((d.Text("Right: ", "strong"), *answer_words(record, solve_part(record, asked))))


def record_of(exercise: Exercise, part: str) -> tuple[Exercise, Any]:
    """The record that a part is solved by, and what it asks; None where nothing was understood."""
    if isinstance(exercise, SheetQuestion):
        record = exercise.records.get(plain_label(part), exercise)
        return record, record.asked[0] if record.asked else None
    return exercise, next((each for each in exercise.asked if plain_label(each.label) == plain_label(part)), None)


def _of_chat(report: GradeReport, below: int = 2) -> Iterator[d.Block]:
    if report.rows:
        yield d.Paragraph(_in_all([report]))
        yield from [table(report)] if any(row.claims for row in report.rows) else []
        if silent := [row.label for row in report.rows if not row.claims]:
            yield d.Paragraph(f"No answer was read to {', '.join(silent)}.")
    yield from (d.Paragraph(f"{note}.") for note in notes(report))
    if report.chat.turns and report.rows:
        yield d.Heading("The chat", below)
    for turn in report.chat.turns[:MOST_TURNS] if report.rows else ():
        yield d.Heading(f"Turn {turn.index + 1}, {turn.name or turn.speaker}", 4)
        yield from margins(report, turn)
    if len(report.chat.turns) > MOST_TURNS:
        yield d.Paragraph(f"The first {MOST_TURNS} of {len(report.chat.turns)} turns are shown.")


def margins(
    report: GradeReport, turn: Turn, name: Callable[[AnswerClaim], str] = lambda claim: ""
) -> Iterator[d.Margin]:
    """The passages of a turn, and next to each the verdicts on what it claims, which lead to the claim's `name`."""
    judged = [(row, each) for row in report.rows for each in row.claims if each.claim.turn == turn.index]
    said = list(_of_whole_turn(report, turn))
    waiting: list[tuple[d.Block, ...]] = []
    for (start, stop), blocks in passages(turn.text, [each.claim.span[1] for _, each in judged]):
        waiting.append(blocks)
        said += [_verdict(row, each, name(each.claim)) for row, each in judged
                 if start < max(each.claim.span[1], each.claim.span[0] + 1) <= stop]  # fmt: skip
        if said:
            # A note is higher than the line that it is about: it may begin next to what stands before that.
            for group, notes_of in ((waiting[:-3], []), (waiting[-3:], said)):
                if group:
                    yield d.Margin(tuple(block for each in group for block in each), tuple(dict.fromkeys(notes_of)))
            said, waiting = [], []
    if waiting:
        yield d.Margin(tuple(block for each in waiting for block in each))


def _verdict(row: Row, judged: Judged, leads_to: str) -> tuple[d.Text, ...]:
    kind = judged.outcome.kind
    style = _STYLES.get(kind, "") if judged.decides or judged.outcome else ""
    said = d.Text(f"{SIGNS[kind]} {row.label} {_KINDS.get(kind, kind)}", style, leads_to)
    if judged.outcome or not judged.decides:
        return (said,)
    return said, d.Text(f": “{quote(judged, _SHORT_QUOTE)}”: {judged.outcome.words()}")


def _of_whole_turn(report: GradeReport, turn: Turn) -> Iterator[tuple[d.Text, ...]]:
    """Rules broken in a turn, errors put right in it, and what became of right answers that were objected to."""
    for rule in report.rules:
        if rule.turn == turn.index:
            yield d.Text(f"✗ rule broken: {rule.kept}", "refuted"), d.Text(f": {rule.evidence}")
    for row in report.rows:
        if row.found_by and row.first_right == turn.index:
            yield (d.Text(f"{row.label} put right; the error was found by: {row.found_by}", "tested"),)
        if row.given_up == turn.index:
            yield (d.Text(f"✗ {row.label} given up under a wrong correction", "refuted"),)
        if row.stood_firm == turn.index:
            yield (d.Text(f"✓ {row.label} kept under a wrong correction", "proved"),)


def _in_all(reports: Sequence[GradeReport]) -> tuple[d.Text, ...]:
    counts = Counter(row.status for report in reports for row in report.rows)
    chats = f"{len(reports)} chats, " if len(reports) > 1 else ""
    said = [d.Text(f"{chats}{counts.total()} part{'s' * (counts.total() != 1)}: ")]
    for status in STATUSES:
        style = _STYLES.get(status, "") if counts[status] else ""
        said += [d.Text(f"{counts[status]} {status}", style), d.Text("." if status == STATUSES[-1] else ", ")]
    return tuple(said)


def _summary(reports: Sequence[GradeReport], failed: Mapping[str, str]) -> Iterator[d.Block]:
    yield d.Paragraph(_in_all(reports))
    links = {report.name: f"chat-{at}" for at, report in enumerate(reports)}
    found = summary(reports)
    for name in ("chats", "questions", "models"):
        heads = {key: d.Text(key, leads_to=links[key] if name == "chats" else "") for key in found[name]}
        cells = tuple((heads[key], *(str(each or "") for each in found[name][key].values())) for key in heads)
        if cells and (name != "models" or list(heads) != ["unknown"]):
            yield d.Table((name[:-1], *STATUSES), cells, right=frozenset(range(1, 1 + len(STATUSES))))
        if name != "models" and (items := tuple(_errors(reports, name == "chats"))):
            yield d.Heading(f"Errors by {name[:-1]}", 3)
            yield d.Items(items)
    for report in reports:
        if not report.rows:
            yield d.Paragraph(f"{report.name}: {'; '.join(notes(report))}.")
    yield from (d.Paragraph((d.Text(f"{name}: not read: ", "refuted"), d.Text(why))) for name, why in failed.items())


def _errors(reports: Sequence[GradeReport], by_chat: bool) -> Iterator[tuple[d.Text, ...]]:
    """The errors of each chat, with the rules that were broken in it; or of each question."""
    found: dict[str, Counter[str]] = {}
    for report in reports:
        for row in report.rows:
            if said := error(row):
                key, what = (report.name, f"{row.label} {said}") if by_chat else (row.label, said)
                found.setdefault(key, Counter())[what] += 1
        for rule in dict.fromkeys(rule.kept for rule in report.rules if rule.broken) if by_chat else ():
            found.setdefault(report.name, Counter())[f"rule broken: {rule}"] += 1
    for key, counts in found.items() if by_chat else sorted(found.items(), key=lambda each: _natural(each[0])):
        listed = "; ".join(f"{what} ({count})" if count > 1 else what for what, count in counts.most_common())
        yield d.Text(f"{key}: ", "strong"), d.Text(listed)


def _natural(label: str) -> list[tuple[int, str]]:
    """What sorts 2 before 10."""
    return [(int(word) if word.isdigit() else 0, word) for word in re.findall(r"\d+|\D+", label)]


def _turn(index: int | None) -> str:
    return "" if index is None else str(index + 1)
