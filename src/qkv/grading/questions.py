"""The questions that a chat is graded on: of a sheet, of the bank, or as the student put them in the chat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..documents import read_document
from ..errors import OptionError, QkvError, complaint
from ..exercises import bank
from ..exercises.checking import check
from ..exercises.findings import CannotSolve
from ..exercises.outcome import Outcome, unread
from ..exercises.record import Exercise, plain_label
from ..exercises.sheets.questions import NOT_UNDERSTOOD, SheetQuestion, grouped, named_asked
from ..exercises.sheets.reading import read_sheet, solved
from ..exercises.solving import Answer, answer
from ..reading import Chat
from .phrases import pattern

_STAND_IN = "97"  # the number of a question while it is read, which no part of it has


def from_sheet(source: str | Path) -> dict[str, Exercise]:
    """The questions of a sheet by their numbers; parts that were not understood are kept, so that they have a row.

    Args:
        source: The path of a document as a `Path`, or a text.

    Returns:
        The exercises by their numbers.

    Raises:
        OptionError: no question is understood.

    >>> list(from_sheet("2. A layer has width 96 and 8 heads. What is the width of a head?"))
    ['2']
    """
    found = grouped(read_sheet(source))
    if not any(_understood(each) for each in found.values()):
        raise OptionError(complaint("sheet", "a text without a question that is understood", "a sheet of exercises"))
    printed = read_document(source).text if isinstance(source, Path) else source
    return {name: each.model_copy(update={"printed": printed}) for name, each in found.items()}


def from_bank(names: Iterable[str]) -> dict[str, Exercise]:
    """Exercises of the bank by question: "4=decoding", "4=decoding:7" for a variant, or a file of a record.

    Args:
        names: NUMBER=NAME, NUMBER=NAME:SEED or NUMBER=FILE.

    Returns:
        The exercises by the numbers of the questions.

    Raises:
        OptionError: another form, or an unknown name.

    >>> list(from_bank(["4=decoding"]))
    ['4']
    """
    found: dict[str, Exercise] = {}
    for each in names:
        number, sign, name = (word.strip() for word in each.partition("="))
        if not sign or not number or not name:
            raise OptionError(complaint("exercise", repr(each), "NUMBER=NAME", "for example 4=decoding"))
        family, _, seed = name.partition(":")
        if Path(name).suffix in (".toml", ".json"):
            found[number] = Exercise.load(name)
        else:
            found[number] = bank.named(family, int(seed) if seed.isdigit() else None)
    return found


def from_chat(chat: Chat) -> dict[str, Exercise]:
    """The questions that the student's turns put, by the numbers of headings and prompts.

    A question without a number is called by its place among the questions, or by its turn where others have numbers.

    Args:
        chat: What `qkv.reading.read_chat` returns.

    Returns:
        The exercises by their numbers.

    >>> from qkv.reading import read_chat
    >>> chat = "Student: Problem 2. A layer has width 96 and 8 heads. What is the width of a head?\\n\\nTutor: 12"
    >>> list(from_chat(read_chat(chat)))
    ['2']
    """
    drafts: list[_Draft] = []
    current: _Draft | None = None
    before = ""
    for turn in chat.turns:
        for number, text in _numbered(turn.text, _trailing_number(before)) if turn.speaker == "student" else ():
            labels = list(pattern("part").finditer(text))
            known = next((each for each in drafts if number and each.number == number), None)
            if known is None and (number or labels) and not (current and not number and current.continues(labels)):
                current = _Draft(number, turn.index, [text])
                drafts.append(current)
            elif (current := known or current) is not None and current.continues(labels):
                current.pieces.append(text[labels[0].start() :])
            if current is not None and labels:
                current.last = labels[-1]["letter"].lower()
        before = turn.text if turn.speaker != "note" else before
    numbered = any(each.number for each in drafts)
    found: dict[str, Exercise] = {}
    for draft in drafts:
        number = draft.number or (f"turn {draft.turn + 1}" if numbered else str(len(found) + 1))
        text = pattern("bullet").sub("", pattern("setup").sub("", "\n\n".join(draft.pieces)))
        text = _without_number(text, number)
        # Below a number, the parts of a question are told from other lists. A line more keeps a text from being a path.
        exercise = grouped(read_sheet(f"Problem {_STAND_IN}.\n\n{text}\n"), _STAND_IN)[_STAND_IN]
        # Where a question has parts, the set-up asks for nothing.
        parts = tuple(asked for asked in exercise.asked if asked.label) or exercise.asked
        exercise = exercise.model_copy(update={"asked": parts})
        if _understood(exercise):
            title = exercise.title or next(iter(pattern("title").findall(text)), "")
            printed = {"label": number, "title": title, "printed": text}
            found.setdefault(number, exercise.model_copy(update=printed))
    return found


@dataclass
class _Draft:
    """The text of one question as it is put, maybe over several turns; `last` is the letter of its last part."""

    number: str
    turn: int
    pieces: list[str]
    last: str = ""

    def continues(self, labels: Sequence[re.Match[str]]) -> bool:
        """Whether a turn that begins with these labels goes on with the next part."""
        return bool(labels) and bool(self.last) and ord(labels[0]["letter"].lower()) == ord(self.last) + 1


def judge(exercise: Exercise, part: str, claim: str) -> Outcome:
    """Whether a claim answers a part; one that says the same in several ways is right where each of them is."""
    try:
        outcome = _judge(exercise, part, claim)
    except QkvError as error:  # a record that was read from a sheet may contradict itself
        return unread("unsolved", why=str(error))
    # A name that the question does not have may stand for one that it has; what is right when rounded, or by another
    # convention, may be meant so.
    named = _names_of(outcome.condition or "") <= _known_names(exercise)
    unsure = not named or bool({"rounding", "unit", "convention_condition"} & {*outcome.codes})
    if (outcome.kind == "conditional" and unsure) or (outcome.kind == "wrong" and pattern("coarse").match(claim)):
        return replace(outcome, kind="unread")
    if "several" not in outcome.codes:
        return outcome
    ways = [way.strip(" ,;()") for way in pattern("other_ways").split(claim)]
    said = [_judge(exercise, part, way) for way in ways if way.count("(") == way.count(")")]
    return said[0] if len(said) == len(ways) > 1 and all(said) else outcome


def _judge(exercise: Exercise, part: str, claim: str) -> Outcome:
    record = exercise.records.get(plain_label(part)) if isinstance(exercise, SheetQuestion) else exercise
    if record is None or not record.asked:
        return unread("unsolved", why="the question was not understood")
    if not isinstance(exercise, SheetQuestion):
        return check(record, part, claim)
    for each in () if record.asked[0].rubric else record.asked:
        # What the sheet's reader would not answer is not judged either.
        if (refusal := solved(record, each, exercise.told.get(plain_label(part), "")).refusal) is not None:
            return unread("unsolved", why=refusal.words())
    if len(record.asked) == 1:
        outcome = check(record, "", claim)
        # Of a question that was read from a text, another size may be another question: one row instead of all.
        return replace(outcome, kind="unread") if outcome.codes == ("sizes",) else outcome
    try:
        items = {name: answer(record, asked) for name, asked in named_asked(record.asked).items()}
    except CannotSolve as refusal:
        return unread("unsolved", why=refusal.finding.words())
    gold = Answer("; ".join(f"{name} = {item.text}" for name, item in items.items()), items=items)
    return check(record.model_copy(update={"asked": record.asked[:1]}), "", claim, gold=gold)


def _names_of(text: str) -> set[str]:
    """The names in a condition that two names agree: "D_k = d", "D_k means d"."""
    found = re.fullmatch(r"\s*([A-Za-z]\w*)\s*(?:=|means)\s*([A-Za-z]\w*)\s*", text)
    return set(found.groups()) if found else set()


def _known_names(exercise: Exercise) -> set[str]:
    """Every word that an exercise writes, names among them."""
    records = [exercise, *(exercise.records.values() if isinstance(exercise, SheetQuestion) else ())]
    found = [each.text for record in records for each in (record, *record.asked, *record.definitions)]
    found += [given.symbol for record in records for given in record.givens]
    return {name for text in found for name in re.findall(r"[A-Za-z]\w*", text.replace("{", "").replace("}", ""))}


def _understood(exercise: Exercise) -> bool:
    return any(asked.quantity != NOT_UNDERSTOOD for asked in exercise.asked)


def _numbered(text: str, number: str) -> list[tuple[str, str]]:
    """A student's turn cut where it names another question: (number, text), "" where no number is said."""
    marks = [mark for mark in pattern("number").finditer(text) if text[: mark.start()].count("```") % 2 == 0]
    if not marks and (prompt := pattern("prompt").match(text)):
        marks = [prompt]
    if not marks:
        return [(number, text)]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    first = [(number, text[: marks[0].start()])] if number and text[: marks[0].start()].strip() else []
    return first + [(mark["number"], text[mark.end() : end]) for mark, end in zip(marks, ends, strict=True)]


def _without_number(text: str, number: str) -> str:
    """A text without a line's label that repeats the number of the question, unless a list goes on from there."""
    goes_on = number.isdigit() and re.search(rf"^\s*{int(number) + 1}[.)]\s", text, re.MULTILINE)
    return text if goes_on else re.sub(rf"^\s*{re.escape(number)}[.)]\s+", "", text, count=1, flags=re.MULTILINE)


def _trailing_number(text: str) -> str:
    """The number of a heading at the end of the turn before, below which the student's turn begins."""
    lines = [line for line in text.strip().splitlines() if line.strip(" -*_")]
    found = pattern("heading").fullmatch(lines[-1]) if len(lines) > 1 else None
    return found["number"] if found else ""
