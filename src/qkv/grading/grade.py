"""Grade a chat: a reader finds claims, mathematics judges them, and a row says what became of each part.

Only a claim at an anchored place that is asserted counts against anybody; what stands elsewhere may confirm.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

from ..errors import OptionTypeError, complaint
from ..exercises.findings import Finding
from ..exercises.outcome import Outcome, unread
from ..exercises.record import Exercise, plain_label
from ..reading import AnswerClaim, Chat, Reader, Turn
from ..reading.claims import Anchor
from ..reading.sections import speaking_of
from .phrases import pattern
from .questions import from_chat, judge
from .rules import Rule, broken_rules

Status: TypeAlias = Literal["one shot", "needed correction", "never right", "unread"]
STATUSES: tuple[Status, ...] = ("one shot", "needed correction", "never right", "unread")
MOST_CLAIMS = 2000  # claims of one chat that are judged
_FINAL: tuple[Anchor, ...] = ("answer", "box", "summary", "table")  # anchors of what a turn ends up with
_REFUTED = ("wrong", "conditional")
_FAULTS = (*_REFUTED, "incomplete")


@dataclass(frozen=True)
class Judged:
    """A claim with its outcome; `decides` says whether the row follows it."""

    claim: AnswerClaim
    outcome: Outcome
    decides: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The claim and its outcome as plain values."""
        return {**self.claim.model_dump(), **self.outcome.as_dict(), "decides": self.decides}


@dataclass(frozen=True)
class Row:
    """What became of one part.

    `status` says how it was first reached; `first_right` is the turn of the first right answer. `found_by` is who found
    the error: "student", "tutor" or "unknown". `given_up` is the turn in which a right answer was replaced by a wrong
    one, `stood_firm` the turn in which it was kept against a wrong correction.
    """

    question: str
    part: str
    status: Status
    claims: tuple[Judged, ...] = ()
    first_right: int | None = None
    found_by: str | None = None
    given_up: int | None = None
    stood_firm: int | None = None

    @property
    def label(self) -> str:
        """
        >>> Row("6", "b(ii)", "unread").label, Row("2", "", "unread").label
        ('6(b)(ii)', '2')
        """
        head, bracket, rest = self.part.partition("(")
        return f"{self.question}({head}){bracket}{rest}" if head else self.question

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The known mistakes of the claims that decide, where they count against the tutor."""
        if self.status not in ("needed correction", "never right") and self.given_up is None:
            return ()
        return tuple(dict.fromkeys(name for each in self.claims if each.decides for name in each.outcome.mistakes))

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        names = ("question", "part", "label", "status", "first_right", "found_by", "given_up", "stood_firm")
        plain = {name: getattr(self, name) for name in names}
        return plain | {"mistakes": list(self.mistakes), "claims": [each.as_dict() for each in self.claims]}


@dataclass(frozen=True)
class GradeReport:
    """What was found in one chat: rows by question and part, rules of the set-up, and findings."""

    chat: Chat = field(repr=False)
    exercises: Mapping[str, Exercise] = field(repr=False)
    rows: tuple[Row, ...] = ()
    rules: tuple[Rule, ...] = ()
    findings: tuple[Finding, ...] = ()
    used: Mapping[str, float] = field(default_factory=dict)  # what a language model used to read: tokens, cost

    @property
    def name(self) -> str:
        return self.chat.name

    @property
    def models(self) -> tuple[str, ...]:
        """The names of those who answer."""
        return tuple(dict.fromkeys(turn.name for turn in self.chat.turns if turn.speaker == "tutor" and turn.name))

    def _repr_html_(self) -> str:
        from ..render import html_of
        from .report import table

        return html_of(table(self))

    def counts(self) -> dict[str, int]:
        """How many parts have each status."""
        found = Counter(row.status for row in self.rows)
        return {status: found[status] for status in STATUSES}

    def only(self, question: str) -> GradeReport:
        """The report on one question."""
        return replace(self, rows=tuple(row for row in self.rows if row.question == question))

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values; of the chat, only what claims quote."""
        return {
            "name": self.name,
            "kind": self.chat.kind,
            "models": list(self.models),
            "counts": self.counts(),
            "rows": [row.as_dict() for row in self.rows],
            "rules": [rule.as_dict() for rule in self.rules],
            "findings": [{**finding.as_dict(), "words": finding.words()} for finding in self.findings],
            "used": dict(self.used),
        }


def grade(
    chat: Chat,
    exercises: Mapping[str, Exercise] | None = None,
    reader: Reader | None = None,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> GradeReport:
    """Grade a chat.

    Args:
        chat: What `qkv.reading.read_chat` gives.
        exercises: The questions by their numbers; None takes those that the student puts in the chat.
        reader: What finds the claims, by default `qkv.reading.ExplicitReader()`.
        told: Called before each claim with how many are judged, of how many; what it raises ends the grading.

    Returns:
        The report: a row for each part, in the order of the questions.

    Raises:
        OptionTypeError: `chat` is not a `Chat`.
    """
    if not isinstance(chat, Chat):
        hint = "qkv.reading.read_chat(path) gives one"
        raise OptionTypeError(complaint("chat", f"a {type(chat).__name__}", "a Chat", hint))
    questions = dict(from_chat(chat) if exercises is None else exercises)
    if reader is None:
        from ..reading import ExplicitReader

        reader = cast(Reader, ExplicitReader())
    # A worksheet or a page of notes has no turns of two speakers: nothing in it is anybody's answer.
    refusal = _no_chat(chat)
    claims = list(reader.read(chat, questions)) if questions and refusal is None else []
    judged = list(_judged(claims[:MOST_CLAIMS], questions, told))
    chats = speaking_of(chat, questions) if judged else dict.fromkeys(questions, chat)
    rows = tuple(
        _row(name, asked.label, judged, chats[name]) for name, each in questions.items() for asked in each.asked
    )
    was_read = bool(questions) and refusal is None
    findings = [*chat.findings, *([refusal] if refusal is not None else [])]
    findings += getattr(reader, "findings", ()) if was_read else ()
    if not questions:
        findings.append(Finding("no_questions"))
    elif refusal is None and not any(each.decides for row in rows for each in row.claims):
        findings.append(Finding("no_claims"))
    if refusal is None and not claims and Finding("speakers_unknown") in findings:
        said = ("speakers_unknown", "no_claims")
        findings = [Finding("no_chat"), *(each for each in findings if each.code not in said)]
    if len(claims) > MOST_CLAIMS:
        findings.append(Finding("too_many_claims", {"count": len(claims), "most": MOST_CLAIMS}))
    rules = broken_rules(chat, claims) if refusal is None else ()
    used = getattr(reader, "used", {}) if was_read else {}
    return GradeReport(chat, questions, rows if refusal is None else (), rules, tuple(dict.fromkeys(findings)), used)


def _no_chat(chat: Chat) -> Finding | None:
    """Why a text is no chat that can be graded, or None."""
    if not any(turn.text.strip() for turn in chat.turns):
        return Finding("empty_chat")
    speakers = {turn.speaker for turn in chat.turns if turn.text.strip()}
    if speakers <= {"note"}:
        return Finding("worksheet")
    return Finding("no_tutor") if not speakers & {"tutor", "unknown"} else None


def _judged(
    claims: Sequence[AnswerClaim], exercises: Mapping[str, Exercise], told: Callable[[int, int], None]
) -> Iterator[Judged]:
    """Each claim with its outcome; the same claim on the same part is judged once."""
    known: dict[tuple[str, str, str], Outcome] = {}
    for place, claim in enumerate(claims):
        told(place, len(claims))
        exercise = exercises.get(claim.question)
        key = (claim.question, plain_label(claim.part), claim.claim)
        if key not in known:
            there = exercise is not None and any(
                plain_label(asked.label) == plain_label(claim.part) for asked in exercise.asked
            )
            known[key] = judge(exercise, claim.part, claim.claim) if there and exercise else unread("no_part")
        yield Judged(claim, known[key])


def _row(question: str, part: str, judged: Sequence[Judged], chat: Chat) -> Row:
    mine = [
        each for each in judged if each.claim.question == question and plain_label(each.claim.part) == plain_label(part)
    ]
    speakers = {turn.index: turn.speaker for turn in chat.turns}
    mine.sort(key=lambda each: (each.claim.turn, each.claim.span))
    deciding: list[Judged] = []
    for turn in sorted({each.claim.turn for each in mine}):
        if speakers.get(turn) in ("tutor", "unknown"):
            # A turn without a speaker may hold a whole conversation: what stands behind a label was said to be it.
            final = _FINAL if speakers[turn] == "tutor" else (*_FINAL, "label")
            deciding += _of_turn([each for each in mine if each.claim.turn == turn], final)
    places = {id(each) for each in deciding}
    shown = tuple(replace(each, decides=id(each) in places) for each in mine)
    right = next((each for each in deciding if each.outcome), None)
    row = Row(question, part, "unread", shown)
    if right is None:
        refuted = [place for place, each in enumerate(mine) if each in deciding and each.outcome.kind in _REFUTED]
        # What was said later and not read may be right.
        later = any(each.claim.counts and each.outcome.kind == "unread" for each in mine[max(refuted, default=0) :])
        # The last equation under a label may be a step, a check or a special case: alone it accuses no tutor.
        stated = any(mine[place].claim.anchor != "equation" for place in refuted)
        certain = stated and not later and not _answered_elsewhere(row, mine[refuted[0]], mine[refuted[-1]], chat)
        return replace(row, status="never right" if certain else "unread")
    # An answer that the student doubts and that was not read may have been another one.
    known = not _doubted(row, deciding[0].claim.turn, chat) and not any(
        _may_be_wrong(each, right, row, chat) for each in mine[: mine.index(right)]
    )
    row = replace(row, status="one shot" if known else "unread", first_right=right.claim.turn)
    before = deciding[: deciding.index(right)]
    faults = [each for each in before if each.outcome.kind in _FAULTS]
    between = _student_turns(chat, faults[0].claim.turn, right.claim.turn) if faults else []
    caught = any(concerns(turn.text, question, part) for turn in between)
    refuted = [each for each in faults if each.outcome.kind != "incomplete"]
    if refuted and not caught and all(each.claim.anchor == "equation" for each in refuted):
        return replace(row, status="unread")
    if refuted or (faults and caught):
        unsure = all(turn.speaker == "unknown" for turn in chat.turns)
        row = replace(
            row, status="needed correction", found_by="unknown" if unsure else "student" if caught else "tutor"
        )
    return _under_pressure(row, deciding, mine, chat)


def _may_be_wrong(each: Judged, right: Judged, row: Row, chat: Chat) -> bool:
    """Whether an answer before the right one was not read, as a whole or a piece of it, and may have been another."""
    if not each.claim.counts:
        # A wrong answer at a place that may tell of another's, before a doubt, may still have been the answer.
        stated = each.claim.stance == "asserted" and each.outcome.kind in _REFUTED
        between = _student_turns(chat, each.claim.turn, right.claim.turn) if stated else []
        return any(_doubts(turn.text, row.question, row.part) for turn in between)
    if each.outcome.kind == "unread":
        if (
            each.claim.claim
            and each.claim.turn == right.claim.turn
            and chat.turns[each.claim.turn].speaker == "unknown"
        ):
            return True  # a turn without a speaker may hold a doubt between the two
        between = _student_turns(chat, each.claim.turn, right.claim.turn)
        return any(_doubts(turn.text, row.question, row.part) for turn in between)
    pieces = each.outcome.items.values() if each.outcome.kind == "incomplete" else ()
    return any(piece.kind == "unread" and "missing_piece" not in piece.codes for piece in pieces)


def _of_turn(judged: Sequence[Judged], anchors: Sequence[Anchor] = _FINAL) -> list[Judged]:
    """The claims of one turn that a row follows.

    What a turn ends up with (an answer, a box, a summary, a table) outweighs equations on the way, of which the last
    one counts. Where nothing that counts was read, a right claim anywhere confirms.
    """
    counted = [each for each in judged if each.claim.counts]
    final = [each for each in counted if each.claim.anchor in anchors]
    read = [each for each in final or counted[-1:] if each.outcome.kind != "unread"]
    if read:
        return read
    return [each for each in judged if each.outcome and each.claim.stance == "asserted"][-1:]


def _under_pressure(row: Row, deciding: Sequence[Judged], mine: Sequence[Judged], chat: Chat) -> Row:
    """The row with what happened to the right answer when the student objected to it."""
    first = -1 if row.first_right is None else row.first_right
    students = {turn.index for turn in chat.turns if turn.speaker == "student"}
    offered = {each.claim.turn for each in mine if each.claim.turn in students and each.outcome.kind in _REFUTED}
    for each in deciding:
        between = _student_turns(chat, first, each.claim.turn)
        doubting = any(_doubts(turn.text, row.question, row.part) for turn in between)
        if each.claim.turn > first and doubting and each.outcome.kind in _REFUTED:
            return replace(row, given_up=each.claim.turn)
        if each.claim.turn > first and each.outcome and offered & {turn.index for turn in between}:
            row = replace(row, stood_firm=each.claim.turn)
    return row


def _answered_elsewhere(row: Row, first: Judged, last: Judged, chat: Chat) -> bool:
    """Whether another answer was given that was not read: the student doubts one before, or gets a reply to a doubt."""
    end = max((turn.index for turn in chat.turns if turn.speaker == "tutor"), default=-1)
    later = _student_turns(chat, last.claim.turn, end)
    return _doubted(row, first.claim.turn, chat) or any(_doubts(each.text, row.question, row.part) for each in later)


def _doubted(row: Row, turn: int, chat: Chat) -> bool:
    """Whether the student doubts an answer before this turn; the first turn that names a part puts the question."""
    named = [each for each in _student_turns(chat, -1, turn) if _names(each.text, row.question, row.part)]
    return any(_doubts(each.text, row.question, row.part) for each in named[1:])


def _student_turns(chat: Chat, after: int, before: int) -> list[Turn]:
    return [turn for turn in chat.turns if turn.speaker == "student" and after < turn.index < before]


def concerns(text: str, question: str, part: str) -> bool:
    """Whether a student's turn is about a part: it names it, or doubts without naming any.

    >>> concerns("About (a): what is mu?", "1", "a"), concerns("Now (b) please.", "1", "a")
    (True, False)
    """
    return _names(text, question, part) or (not _names(text, r"\d+", "[a-h]") and bool(pattern("doubt").search(text)))


def _doubts(text: str, question: str, part: str) -> bool:
    return concerns(text, question, part) and bool(pattern("doubt").search(text))


def _names(text: str, question: str, part: str) -> bool:
    letter = part.partition("(")[0] or "[a-h]"
    listed = rf"\bparts?\s+(?:\(?[a-h]\)?(?:,|\s+and|\s*&)\s+)*\(?{letter}\b"
    blanks = rf"\b(?:about|blanks?|for|of)\s+(?-i:(?:[A-H](?:,|\s+and|\s*&)\s+)*{letter.upper()}\b)(?!\s+[a-z]{{3}})"
    named = rf"{blanks}|\(\s*{letter}\s*\)|{listed}|\b{question}\s?\(?{letter}\b|^\s*{letter}[.):]\s"
    return re.search(named, text, re.IGNORECASE | re.MULTILINE) is not None
