"""A chat cut into sections: what stands under each label, of which question and part."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..exercises.record import Exercise
from . import speakers
from .chat import Chat, Turn
from .claims import Anchor, Stance
from .questions import Label, Place, Questions, deeper, heading_of, label_of, mentions, pattern, phrases, prompted
from .torn import is_torn
from .units import Unit, divided, units
from .values import asked_in, fits, is_code, is_formula, value_of


@dataclass
class Section:
    """What stands under one label: `blank` names a blank of a listing, `row` says that it is a row of a table."""

    place: Place
    units: list[Unit] = field(default_factory=list)
    head: str = ""
    head_start: int = 0
    first: Unit | None = None
    answer: bool = False
    summary: bool = False
    table: bool = False
    blank: str = ""
    round: int = 0


@dataclass
class _State:
    number: str | None
    section: Section | None = None
    path: tuple[str, ...] = ()
    alias: str = ""
    blank: str = ""
    summary: bool = False
    header: tuple[str, ...] = ()
    round: int = 0


@dataclass(frozen=True)
class Found:
    """A text that was read as an answer, where it stands, and by what."""

    text: str
    start: int
    stop: int
    turn: Turn
    anchor: Anchor
    stance: Stance = "asserted"


class Walk:
    """One pass over the units of a chat: which question and part each belongs to."""

    def __init__(self, questions: Questions, spoken: Sequence[Unit]) -> None:
        self.questions = questions
        self.spoken = spoken
        self.numbers = numbers(questions, spoken)
        self.state = _State(questions.only)
        self.sections: list[Section] = []
        self.replies: list[tuple[Place, Found]] = []
        self.prompt: list[str] = []
        self.recent: list[Place] = []

    def run(self) -> tuple[list[Section], list[tuple[Place, Found]]]:
        last: Turn | None = None
        for at, unit in enumerate(self.spoken):
            if last is not None and unit.turn is not last:
                self._new_turn(last, unit.turn)
            last = unit.turn
            if at in self.numbers:
                self._to_number(self.numbers[at])
            if unit.turn.speaker == "student":
                self.prompt.append(unit.text)
                self._offered(unit)
                continue
            if unit.turn.speaker == "unknown" and at in self.numbers and not heading_of(unit.text, self.questions):
                self.state.round += 1
            if unit.turn.speaker == "unknown" and unit.kind == "line" and pattern("interjection").match(unit.text):
                # A student's prompt in a text without speakers: nothing that follows belongs to the part before.
                self.state.round += 1
                self.state.section, self.state.summary = None, False
                continue
            if speakers.pattern("thinking").match(unit.text):
                self.state.round += 1
                self.prompt = [each.text for each in self.spoken[max(0, at - 5) : at] if each.turn is unit.turn]
                self._reply(at + 1)
                continue
            self._unit(at, unit)
        return self.sections, self.replies

    def _new_turn(self, last: Turn, turn: Turn) -> None:
        if turn.speaker == "student":
            self.prompt = []
        if last.speaker == "student" and turn.speaker == "tutor":
            self.state.round += 1
            self.state.section, self.state.path, self.state.blank, self.state.summary = None, (), "", False
            at = next(at for at, unit in enumerate(self.spoken) if unit.turn is turn)
            own = [unit for unit in self.spoken[at : at + 6] if unit.turn is turn]
            if len(own) <= 3:
                self._reply(at)
            path = self._only_mentioned() if sum(map(len, self.prompt)) < 500 else ()
            if path and self.state.number and (place := self.questions.at(self.state.number, path)):
                # "Are you sure about (b)?": what follows is about (b), until a label says otherwise.
                self._open(Section(place, first=own[0], head_start=own[0].start, round=self.state.round))
                self.state.path = path

    def _only_mentioned(self) -> tuple[str, ...]:
        named = [
            path
            for path in mentions("\n".join(self.prompt))
            if self.state.number and self.questions.at(self.state.number, path)
        ]
        return named[0] if len(named) == 1 else ()

    def _to_number(self, number: str | None) -> None:
        if number != self.state.number:
            self.recent = []
        self.state.number = number
        self.state.section, self.state.path, self.state.alias, self.state.blank = None, (), "", ""
        self.state.summary = False

    def _unit(self, at: int, unit: Unit) -> None:
        state = self.state
        if unit.kind == "head":
            state.header = unit.cells
        if unit.kind == "code" or pattern("option_mark").match(unit.text):
            if state.section and unit.kind == "code":
                state.section.units.append(unit)
            return
        line = unit.cells[0] if unit.kind in ("row", "head") and unit.cells else unit.text
        if unit.kind == "row" and len(unit.cells) > 2 and line.strip().isdigit() and label_of(unit.cells[1]):
            # A column for the question, and one for the part.
            line = line.strip() + re.sub(rf"^{phrases()['lead']}", "", unit.cells[1])
            unit = replace(unit, cells=(line, *unit.cells[2:]))
            state.header = state.header if len(state.header) == len(unit.cells) else state.header[1:]
        plain = re.sub(rf"^{phrases()['lead']}", "", line)
        if unit.kind == "line" and pattern("summary").match(plain) and not label_of(line):
            state.section, state.path, state.blank, state.summary = None, (), "", True
            return
        label = label_of(line) if unit.kind in ("line", "row", "head") else None
        if label is None and unit.kind in ("line", "row"):
            label = self._aliased(line, at)
        elif label is not None and unit.kind == "line" and self._wrapped(at, label):
            label = None
        if label is not None and self._labelled(at, unit, label, line):
            return
        if state.section is None and state.number and (alone := self.questions.at(state.number, ())):
            self._open(Section(alone, first=unit, head_start=unit.start, round=state.round))
        if state.section is not None and not (unit.kind == "line" and self._restated(unit.text, state.section.place)):
            state.section.units.append(unit)

    def _restated(self, text: str, place: Place) -> bool:
        """Whether a line repeats the sheet; an option alone may be the answer."""
        said = pattern("answer_line").match(re.sub(rf"^{phrases()['lead']}", "", text))
        if place.kind == "choice" and value_of(said["rest"] if said else text, place):
            return False
        return self.questions.is_restated(text) and not said

    def _wrapped(self, at: int, label: Label) -> bool:
        """Whether a label only begins a line because a sentence was broken there."""
        if not at or self.spoken[at - 1].turn is not self.spoken[at].turn:
            return False
        before, line = self.spoken[at - 1].text.rstrip(), self.spoken[at].text
        if not line[label.end :].strip():
            return False
        adjacent = self.spoken[at].turn.text[self.spoken[at - 1].stop : self.spoken[at].start].count("\n") < 2
        if not adjacent or self.spoken[at - 1].kind != "line":
            return False
        lower = label.part_word and line.lstrip()[:1].islower() and len(before) > 30
        return not re.search(r"[.:!?;]$", before) and (lower or pattern("unfinished").search(before) is not None)

    def _aliased(self, line: str, at: int) -> Label | None:
        """The name of a blank, "A", alone on a line or in the first cell of a row, in a list of them."""
        name = line.strip().strip("*_: ")
        place = next(
            (each for each in self.questions.places.get(self.state.number or "", ()) if each.asked.object == name), None
        )
        if place is None or len(name) != 1 or place.kind not in ("choice", "blank"):
            return None
        first = min(each.asked.object for each in self.questions.places[place.number] if len(each.asked.object) == 1)
        if name != first and ord(name) != ord(self.state.alias or "\0") + 1:
            return None
        self.state.alias = name
        return Label("", place.path, len(line), False, False, True, False)

    def _labelled(self, at: int, unit: Unit, label: Label, line: str) -> bool:
        """Open the section of a label; False where it is no label of the question that is spoken of."""
        state = self.state
        if label.number and label.number != state.number:
            if not (self.questions.letters(label.number) or label.number in self.questions.places):
                self._to_number(None)
                return True
            self._to_number(label.number)
        if state.number is None:
            return False
        rest, start = line[label.end :], unit.start + label.end
        if unit.kind in ("row", "head"):
            rest = answer_cell(unit.cells, state.header)
            start = unit.start + max(unit.text.find(rest), 0)
        following = self._following(at)
        place, blank = self._place(label, rest.strip() or following)
        if place is None:
            known = label.path[0] in self.questions.letters(state.number)
            state.section, state.path = None, label.path if known else ()
            return known
        table = unit.kind in ("row", "head") or not rest.strip()
        section = Section(place, [], rest, start, unit, label.answer, state.summary, table, blank, state.round)
        asks = rest.strip().endswith("?") and not label.answer
        if asks or (self.questions.is_restated(line) and not value_of(rest, place)):
            section.head, section.table = "", False
        self._open(section)
        state.path, state.blank = place.path if not blank else state.path or place.path, blank
        return True

    def _open(self, section: Section) -> None:
        self.state.section = section
        self.sections.append(section)
        if section.place not in self.recent:
            self.recent.append(section.place)

    def _following(self, at: int) -> str:
        after = self.spoken[at + 1] if at + 1 < len(self.spoken) else None
        return after.plain if after is not None and after.turn is self.spoken[at].turn and after.kind == "line" else ""

    def _place(self, label: Label, text: str) -> tuple[Place | None, str]:
        """The part of a label, and the blank of a listing where the label names one."""
        state, questions = self.state, self.questions
        number = state.number or ""
        letters = questions.letters(number)
        current = state.path or (state.section.place.path if state.section else ())
        path = deeper(label.path, letters, current)
        place = questions.at(number, path)
        parts = questions.places.get(number, ())
        holder = next((each for each in parts if each.blanks and path[0] in each.blanks), None)
        below = [
            each for each in parts if each.kind in ("blank", "choice") and each.path[1:] == path and path != ("i",)
        ]
        if (holder or below) and not label.part_word and not label.answer and len(path) == 1:
            code = is_code(text, holder.exercise if holder else below[0].exercise)
            if label.blank_word or code:
                return (holder, path[0]) if holder else (below[0], "")
        if place is not None and place.blanks and path == place.path:
            return None, ""  # the heading of a list of blanks
        return place, ""

    def _offered(self, unit: Unit) -> None:
        """What a student says the answer to a part is: it is the student's, in a turn of the student's."""
        for found in pattern("offers").finditer(unit.text) if unit.kind == "line" and self.state.number else ():
            path = tuple(step.lower() for step in (found["round"] or found["bare"], found["low"]) if step)
            place = self.questions.at(self.state.number or "", path)
            if place and is_formula(found["rest"], 0) and (text := value_of(found["rest"], place)):
                start, stop = unit.start + found.start("rest"), unit.start + found.end("rest")
                stance = "asked" if found["end"] == "?" else "asserted"
                self.replies.append((place, Found(text, start, stop, unit.turn, "answer", stance)))

    def _of_number(self) -> list[Place]:
        return [place for place in self.recent if place.number == self.state.number]

    def _reply(self, at: int) -> None:
        """A turn that is nothing but a formula answers the part that the prompt before it names."""
        if at >= len(self.spoken) or self.state.number is None:
            return
        unit = self.spoken[at]
        after = self.spoken[at + 1] if at + 1 < len(self.spoken) and self.spoken[at + 1].turn is unit.turn else None
        stands = unit.kind in ("line", "display") and not label_of(unit.text) and is_formula(unit.plain, 0)
        if not stands or is_torn(unit.plain, "", after.text if after else ""):
            return
        prompt = "\n".join(self.prompt)
        named = [place for path in mentions(prompt) if (place := self.questions.at(self.state.number, path))]
        fitting = [place for place in named if fits(unit.plain, place)]
        if not fitting:
            ranked = {place: asked_in(prompt, place) for place in self._of_number() if fits(unit.plain, place)}
            fitting = [place for place, rank in ranked.items() if rank and rank == max(ranked.values())]
        if len({place.path for place in fitting}) == 1 and (text := value_of(unit.plain, fitting[0])):
            self.replies.append((fitting[0], Found(text, unit.start, unit.stop, unit.turn, "answer")))


def spoken_units(chat: Chat) -> list[Unit]:
    """The units of all turns that are no notes, in order."""
    spoken = (turn for turn in chat.turns if turn.speaker != "note")
    return [each for turn in spoken for unit in units(turn) for each in divided(unit)]


def speaking_of(chat: Chat, exercises: Mapping[str, Exercise]) -> dict[str, Chat]:
    """The chat on each question: without the student's turns on others, whose parts have the same letters.

    Of a line that repeats the sheet only the label is left, for it says nothing about an answer.
    """
    questions, spoken = Questions(exercises), spoken_units(chat)
    changes, number = numbers(questions, spoken), questions.only
    about: dict[int, set[str]] = {}
    texts: dict[int, str] = {}
    for at, unit in enumerate(spoken):
        number, label, turn = changes.get(at, number), label_of(unit.text), unit.turn.index
        named = {place.question for place in questions.places.get(number or "", ())}
        about.setdefault(turn, set()).update(named or exercises)
        kept = (label.end if label else 0) if questions.is_restated(unit.text) else len(unit.text)
        texts[turn] = f"{texts.get(turn, '')}{unit.text[:kept]}\n"
    students = {turn.index: replace(turn, text=texts.get(turn.index, "")) for turn in chat.turns
                if turn.speaker == "student"}  # fmt: skip
    return {name: replace(chat, turns=tuple(students.get(turn.index, turn) for turn in chat.turns
                                            if turn.index not in students or name in about.get(turn.index, (name,))))
            for name in exercises}  # fmt: skip


def numbers(questions: Questions, spoken: Sequence[Unit]) -> dict[int, str | None]:
    """Where the question changes: the unit's index, and the number; None where it cannot be told which one it is."""
    found: dict[int, str | None] = {}
    for at, unit in enumerate(spoken):
        if unit.kind not in ("line", "row"):
            continue
        number = heading_of(unit.text, questions)
        if number is None and unit.turn.speaker != "tutor" and len(unit.text) < 600:
            number = prompted(unit.text, unit.turn.speaker == "student")
        if number == "?" and any(found.get(each) == "?" for each in range(max(0, at - 12), at)):
            continue  # the prompt again, over the break of a page
        if number is not None:
            found[at] = number
    if not found and questions.only is None:
        found[0] = "?"
    marks = sorted(found)
    for at, until in zip(marks, [*marks[1:], len(spoken)] if marks else [], strict=True):
        if found[at] == "?":
            before = [found[each] for each in marks if each < at and found[each] in questions.places]
            order = list(questions.places)
            later = order[order.index(before[-1] or "") + 1 :] if before else order
            text = "\n".join(unit.text for unit in spoken[at:until])
            found[at] = questions.by_content(text, later)
        elif found[at] not in questions.places:
            found[at] = None
    return found


def answer_cell(cells: Sequence[str], header: Sequence[str]) -> str:
    """The cell of a row that holds the answer: by the head of its column, else the second."""
    chosen = [at for at, name in enumerate(header) if at and pattern("answer_column").search(name)
              and not pattern("other_column").search(name) and at < len(cells)]  # fmt: skip
    at = chosen[0] if chosen else 1
    return cells[at] if at < len(cells) else ""
