"""The questions that a chat is graded on: of a sheet, of the bank, or as the student put them in the chat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from ..documents import read_document
from ..errors import OptionError, QkvError, complaint
from ..exercises import bank
from ..exercises.checking import check
from ..exercises.findings import CannotSolve
from ..exercises.outcome import Outcome, unread
from ..exercises.record import Asked, Exercise, plain_label
from ..exercises.rubrics import asked_in
from ..exercises.sheets.reading import Reading, read_sheet, solved
from ..exercises.solving import Answer, answer
from ..reading import Chat
from .phrases import pattern

_STAND_IN = "97"  # the number of a question while it is read, which no part of it has
NOT_UNDERSTOOD = "not_understood"  # the quantity of a part that the reader of sheets did not understand
_LABEL = re.compile(
    r"(?:[A-Za-z]{2,}[ #.]*)?(?P<question>\d+(?:\.\d+)*|[A-Z](?![A-Za-z])|)[ .:]*(?P<part>.*)", re.DOTALL
)


class SheetQuestion(Exercise):
    """A question of a sheet with its parts; `records` has the record of each part by its plain label.

    Parts of one question may give other values to the same symbols, so that each is solved by its own record. `told`
    has the texts that they refer to. `printed` is the whole sheet, with hints and notes, which chats repeat.
    """

    records: dict[str, Exercise] = Field(default_factory=dict)
    told: dict[str, str] = Field(default_factory=dict, repr=False)
    printed: str = Field(default="", repr=False)


def from_sheet(source: str | Path) -> dict[str, Exercise]:
    """The questions of a sheet by their numbers; parts that were not understood are kept, so that they have a row."""
    found = grouped(read_sheet(source))
    if not any(_understood(each) for each in found.values()):
        raise OptionError(complaint("sheet", "a text without a question that is understood", "a sheet of exercises"))
    printed = read_document(source).text if isinstance(source, Path) else source
    return {name: each.model_copy(update={"printed": printed}) for name, each in found.items()}


def from_bank(names: Iterable[str]) -> dict[str, Exercise]:
    """Exercises of the bank by question: "4=decoding", "4=decoding:7" for a variant, or a file of a record.

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


def grouped(readings: Sequence[Reading], number: str | None = None) -> dict[str, Exercise]:
    """Readings of questions and parts, as one exercise for each question.

    Args:
        readings: what `read_sheet` gives.
        number: The number of the question, where all readings are parts of one.
    """
    leaves: dict[str, dict[str, Reading]] = {}
    for reading in readings:
        question, part = split_label(reading.exercise.label)
        if number is not None:
            part = ".".join(filter(None, (question.removeprefix(number).lstrip("."), part)))
            question = number
        leaves.setdefault(question, {}).setdefault(part, _explained(reading))
    found = {}
    for place, (question, parts) in enumerate(leaves.items(), 1):
        parts = _lettered(parts)
        label = question or str(place)
        found[label] = _question(label, parts)
    return found


def _explained(reading: Reading) -> Reading:
    """A question that asks for words, with the rubric that is for it."""
    exercise = reading.exercise
    if exercise.asked or not (rubric := asked_in(exercise.text)):
        return reading
    asked = Asked(label=exercise.label, quantity="words", rubric=rubric, text=exercise.text)
    return replace(reading, exercise=exercise.model_copy(update={"asked": (asked,)}))


def judge(exercise: Exercise, part: str, claim: str) -> Outcome:
    """Whether a claim answers a part; one that says the same in several ways is right where each of them is."""
    try:
        outcome = _judge(exercise, part, claim)
    except QkvError as error:  # a record that was read from a sheet may contradict itself
        return unread("unsolved", why=str(error))
    # A name that the question does not have may stand for one that it has; what was rounded, or is so by another convention, may be right.
    unsure = not _names_of(outcome.condition or "") <= _known_names(exercise) or {
        "rounding",
        "unit",
        "convention_condition",
    } & {*outcome.codes}
    if outcome.kind == "conditional" and unsure:
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
        items = {name: answer(record, asked) for name, asked in _named(record.asked).items()}
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


def split_label(label: str) -> tuple[str, str]:
    """The question and the part of a label.

    >>> split_label("6(b)(ii)"), split_label("12.1"), split_label("a"), split_label("Question 3")
    (('6', 'b(ii)'), ('12.1', ''), ('', 'a'), ('3', ''))
    """
    found = _LABEL.fullmatch(label.strip())
    if found is None or (len(label.strip()) > 1 and label.strip().isalpha()):
        return "", label.strip().strip("()")
    part = found["part"].strip()
    first = re.match(r"\((\w+)\)(.*)", part, re.DOTALL)
    return found["question"], f"{first[1]}{first[2]}" if first else part


def _question(label: str, parts: Mapping[str, Reading]) -> SheetQuestion:
    records = {plain_label(part): reading.exercise for part, reading in parts.items()}
    first = next(iter(parts.values())).exercise
    return SheetQuestion(
        label=label,
        title=next((reading.exercise.title for reading in parts.values() if reading.exercise.title), ""),
        text=first.text,
        givens=first.givens,
        definitions=first.definitions,
        structure=first.structure,
        asked=tuple(_part(part, reading) for part, reading in parts.items()),
        records=records,
        told={plain_label(part): reading.told for part, reading in parts.items()},
    )


def _part(label: str, reading: Reading) -> Asked:
    """A part as one question, also where it asks for several things."""
    asked = reading.exercise.asked
    if not asked:
        return Asked(label=label, quantity=NOT_UNDERSTOOD, text=reading.exercise.text, confidence=0)
    quantity = "+".join(dict.fromkeys(each.quantity for each in asked))
    what = ", ".join(dict.fromkeys(each.object for each in asked if each.object))
    return asked[0].model_copy(update={"label": label, "quantity": quantity, "object": what})


def _named(asked: Sequence[Asked]) -> dict[str, Asked]:
    """The things that a part asks for by name: their objects where these differ, else their quantities."""
    apart = len({each.object for each in asked}) == len(asked) and len({each.quantity for each in asked}) == 1
    return {each.object if apart else each.quantity.rpartition("_")[2]: each for each in asked}


def _understood(exercise: Exercise) -> bool:
    return any(asked.quantity != NOT_UNDERSTOOD for asked in exercise.asked)


def _lettered(parts: dict[str, Reading]) -> dict[str, Reading]:
    """Parts 1, 2, 3 as a, b, c where one of them speaks of "part (b)"."""
    numbers = [part for part in parts if part.isdigit()]
    speaks = any(pattern("part_by_letter").search(reading.exercise.text) for reading in parts.values())
    if not numbers or numbers != [str(place) for place in range(1, len(numbers) + 1)] or not speaks:
        return parts
    return {chr(96 + int(part)) if part.isdigit() else part: reading for part, reading in parts.items()}


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
