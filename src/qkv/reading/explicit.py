"""The explicit reader: claims from anchored places alone, by labels, boxes, tables, summaries and last equations.

What is torn, restated from the sheet, quoted or told of another problem is no claim. A place at which an answer stands
that cannot be read gives a claim without text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..exercises.forms.statement import closing, squeezed
from ..exercises.record import Exercise
from . import speakers
from .chat import Chat, Turn
from .claims import Anchor, AnswerClaim, Stance
from .questions import Label, Place, Questions, deeper, heading_of, label_of, mentions, pattern, phrases, prompted
from .torn import balanced, is_fragment, is_torn, norm_over_lines, whole
from .units import Unit, units

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_CLASS = re.compile(
    r"^(?:[A-Za-z\s]{0,30}[:=]\s*)?(?:\\?(?:mathcal|Theta|operatorname)?\s*\{?\s*[OΘ𝒪]\s*\}?)\s*(?:\\left)?\(.*\)\s*[.,]?$"
)
_CODE = re.compile(r"[\w.]+(?:\(.*\))?|[\w.\s*/+-]{1,40}|\[[^\[\]]*\]|-?\d+|[\w.]*\(?[\"'][\w,\s]+->\s*\w*[\"'].*")
_GROUP = re.compile(
    r"\[[^\[\]\n]+\](?:\s*(?:ᵀ|\^\{?(?:T|\\top)\}?))?|\\begin\{[bpv]matrix\}.*?\\end\{[bpv]matrix\}(?:\^\{?(?:T|\\top)\}?)?"
)
MOST_QUOTED = 6_000  # characters of a section in words


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
class _Found:
    """A text that was read as an answer, where it stands, and by what."""

    text: str
    start: int
    stop: int
    turn: Turn
    anchor: Anchor
    stance: Stance = "asserted"


class ExplicitReader:
    """The default reader: offline, deterministic, and silent where it is not sure."""

    def read(self, chat: Chat, exercises: Mapping[str, Exercise]) -> list[AnswerClaim]:
        """The claims of a chat, in the order of its text.

        Args:
            chat: What `read_chat` gives.
            exercises: The questions by their numbers, or by any label.
        """
        if not exercises:
            return []
        questions = Questions(exercises)
        spoken = [unit for turn in chat.turns if turn.speaker != "note" for unit in units(turn)]
        sections, replies = _Walk(questions, spoken).run()
        claims: list[AnswerClaim] = []
        for run in _runs(sections):
            for found in _claims(run):
                claims.append(_claim(run[0].place, found))
        claims = _without_steps(claims) + [_claim(place, found) for place, found in replies]
        order = sorted(range(len(claims)), key=lambda at: (claims[at].turn, claims[at].span, at))
        return [claims[at] for at in order]


def _without_steps(claims: Sequence[AnswerClaim]) -> list[AnswerClaim]:
    """Claims without the equations that a turn leads to its answer with."""
    final = {
        (each.question, each.part, each.turn): each.span
        for each in claims
        if each.anchor in ("answer", "box", "table", "summary")
    }

    def is_step(claim: AnswerClaim) -> bool:
        answer = final.get((claim.question, claim.part, claim.turn))
        return claim.anchor == "equation" and answer is not None and claim.span[0] < answer[0] < claim.span[1] + 3000

    return [claim for claim in claims if not is_step(claim)]


def _claim(place: Place, found: _Found) -> AnswerClaim:
    quote = found.turn.text[found.start : found.stop]
    return AnswerClaim(question=place.question, part=place.part, claim=found.text, quote=quote, turn=found.turn.index,
                       span=(found.start, found.stop), stance=found.stance, anchor=found.anchor)  # fmt: skip


class _Walk:
    """One pass over the units of a chat: which question and part each belongs to."""

    def __init__(self, questions: Questions, spoken: Sequence[Unit]) -> None:
        self.questions = questions
        self.spoken = spoken
        self.numbers = _numbers(questions, spoken)
        self.state = _State(questions.only)
        self.sections: list[Section] = []
        self.replies: list[tuple[Place, _Found]] = []
        self.prompt: list[str] = []
        self.recent: list[Place] = []

    def run(self) -> tuple[list[Section], list[tuple[Place, _Found]]]:
        last: Turn | None = None
        for at, unit in enumerate(self.spoken):
            if last is not None and unit.turn is not last:
                self._new_turn(last, unit.turn)
            last = unit.turn
            if at in self.numbers:
                self._to_number(self.numbers[at])
            if unit.turn.speaker == "student":
                self.prompt.append(unit.text)
                continue
            if unit.turn.speaker == "unknown" and at in self.numbers and not heading_of(unit.text, self.questions):
                self.state.round += 1
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
        whole_question = self.questions.at(number, ()) if number else None
        if whole_question:
            self.state.section = None

    def _unit(self, at: int, unit: Unit) -> None:
        state = self.state
        if unit.kind == "head":
            state.header = unit.cells
        if unit.kind == "code" or pattern("option_mark").match(unit.text):
            if state.section and unit.kind == "code":
                state.section.units.append(unit)
            return
        line = unit.cells[0] if unit.kind in ("row", "head") and unit.cells else unit.text
        if (
            pattern("summary").match(re.sub(rf"^{phrases()['lead']}", "", line))
            and unit.kind == "line"
            and not label_of(line)
        ):
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
        return self.questions.is_restated(text) and not (place.kind == "choice" and _value(text, place))

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
            rest = _answer_cell(unit.cells, state.header)
            start = unit.start + max(unit.text.find(rest), 0)
        following = self._following(at)
        place, blank = self._place(label, rest.strip() or following)
        if place is None:
            known = label.path[0] in self.questions.letters(state.number)
            state.section, state.path = None, label.path if known else ()
            return known
        section = Section(
            place,
            [],
            rest,
            start,
            unit,
            label.answer,
            state.summary,
            unit.kind in ("row", "head") or not rest.strip(),
            blank,
            state.round,
        )
        if self.questions.is_restated(line) or (rest.strip().endswith("?") and not label.answer):
            section.head = ""
            section.table = False
        self._open(section)
        state.path, state.blank = label.path if not blank else state.path or place.path, blank
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
            code = _is_code(text, holder.exercise if holder else below[0].exercise)
            if label.blank_word or code:
                return (holder, path[0]) if holder else (below[0], "")
        if place is not None and place.blanks and path == place.path:
            return None, ""  # the heading of a list of blanks
        return place, ""

    def _of_number(self) -> list[Place]:
        return [place for place in self.recent if place.number == self.state.number]

    def _reply(self, at: int) -> None:
        """A turn that is nothing but a formula answers the part that the prompt before it names."""
        if at >= len(self.spoken) or self.state.number is None:
            return
        unit = self.spoken[at]
        after = self.spoken[at + 1] if at + 1 < len(self.spoken) and self.spoken[at + 1].turn is unit.turn else None
        if (
            unit.kind not in ("line", "display")
            or not _is_formula(unit.plain)
            or is_torn(unit.plain, "", after.text if after else "")
        ):
            return
        prompt = "\n".join(self.prompt)
        named = [place for path in mentions(prompt) if (place := self.questions.at(self.state.number, path))]
        fitting = [place for place in named if _fits(unit.plain, place)]
        if not fitting:
            ranked = {place: _asked_in(prompt, place) for place in self._of_number() if _fits(unit.plain, place)}
            fitting = [place for place, rank in ranked.items() if rank and rank == max(ranked.values())]
        if len({place.path for place in fitting}) == 1 and (text := _value(unit.plain, fitting[0])):
            self.replies.append((fitting[0], _Found(text, unit.start, unit.stop, unit.turn, "answer")))


def _numbers(questions: Questions, spoken: Sequence[Unit]) -> dict[int, str | None]:
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


def _answer_cell(cells: Sequence[str], header: Sequence[str]) -> str:
    """The cell of a row that holds the answer: by the head of its column, else the second."""
    chosen = [at for at, name in enumerate(header) if at and pattern("answer_column").search(name)
              and not pattern("other_column").search(name) and at < len(cells)]  # fmt: skip
    at = chosen[0] if chosen else 1
    return cells[at] if at < len(cells) else ""


def _runs(sections: Sequence[Section]) -> Iterator[list[Section]]:
    """Sections each alone, and the blanks of one listing together while their letters rise."""
    runs: dict[int, list[Section]] = {}
    for section in sections:
        if not section.blank:
            yield [section]
            continue
        key = id(section.place)
        run = runs.get(key)
        same = run and section.blank >= run[-1].blank and (section.round, section.summary, _turn(section)) == (
            run[-1].round, run[-1].summary, _turn(run[-1]))  # fmt: skip
        if run and same:
            run.append(section)
            continue
        if run:
            yield run
        runs[key] = [section]
    yield from runs.values()


def _turn(section: Section) -> int:
    return section.first.turn.index if section.first else -1


def _claims(run: Sequence[Section]) -> list[_Found]:
    """The claims of a section, or of the blanks of one listing."""
    section = run[0]
    if section.place.asked.quantity == "not_understood":
        return []
    if section.place.kind == "blanks":
        return _blanks(run)
    reader = {"words": _words, "pieces": _pieces, "proof": _proof}.get(section.place.kind, _single)
    return [_with_stance(each, section) for each in reader(section)]


def _with_stance(found: _Found, section: Section) -> _Found:
    line = found.turn.text[found.turn.text.rfind("\n", 0, found.start) + 1 : found.stop]
    if found.stance != "asserted" or section.place.kind in ("words", "proof"):
        return found
    lead = line[: max(0, len(line) - len(found.turn.text[found.start : found.stop]))]
    if pattern("earlier").search(line):
        return replace(found, stance="quoted")
    if line.rstrip().endswith("?"):
        return replace(found, stance="asked")
    return replace(found, stance="denied") if pattern("denied").search(lead) else found


def _blanks(run: Sequence[Section]) -> list[_Found]:
    """The blanks of a listing as one claim: "a = d_model", a line for each."""
    read: list[tuple[str, _Found]] = []
    listing = _listings(run[0].place.exercise)
    for section in run:
        for found in _single(section)[:1]:
            if re.search(rf"self\._*\s*\(?{section.blank}\)?_", listing):
                found = replace(found, text=found.text.removeprefix("self."))
            if found.text and (section.blank, found.text) not in [(blank, each.text) for blank, each in read]:
                read.append((section.blank, found))
    if len(read) < 2:
        return []
    anchor: Anchor = "summary" if run[0].summary else "table"
    text = "\n".join(f"{blank} = {found.text}" for blank, found in read)
    return [_Found(text, read[0][1].start, read[-1][1].stop, read[0][1].turn, anchor)]


def _words(section: Section) -> list[_Found]:
    """An explanation: everything under the label."""
    own = _without_contrast([unit for unit in section.units if unit.kind != "code"])
    texts = [section.head, *(unit.text for unit in own)]
    prose = "\n".join(texts).strip()[:MOST_QUOTED]
    if len(re.findall(r"[A-Za-z]{3,}", prose)) < 5 or section.first is None:
        return []
    stops = [unit.stop for unit in own if unit.turn is section.first.turn]
    return [_Found(prose, section.head_start, max([section.first.stop, *stops]), section.first.turn, "label")]


def _without_contrast(lines: Sequence[Unit]) -> list[Unit]:
    """Lines without what is told for comparison: below a heading that says so, up to the next heading."""
    kept, other = [], False
    for unit in lines:
        plain = re.sub(r"^\W*(?:\w\.\s+)?", "", unit.text).strip()
        if pattern("contrast").match(plain):
            other = True
        elif other and re.fullmatch(r"\S+(?: \S+){0,4}:", plain):
            other = False
        if not other:
            kept.append(unit)
    return kept


def _proof(section: Section) -> list[_Found]:
    """A derivation is read whole; it may confirm."""
    return [replace(each, anchor="none") for each in _words(section)]


def _pieces(section: Section) -> list[_Found]:
    """The pieces of an answer, each on a line that begins with its name: "Time: O(n)", "Space: O(1)"."""
    found: dict[str, _Found | None] = {}
    lines = _lines(section)
    for name in section.place.pieces:
        expression = phrases()["pieces"].get(name, re.escape(name))
        label = re.compile(
            rf"^{phrases()['lead']}(?:the |total |overall |final |so )*{expression}\s*(?:is|[:=→])?\s*", re.IGNORECASE
        )
        for at, unit in enumerate(lines):
            text = (
                f"{unit.cells[0]}: {_answer_cell(unit.cells, ())}" if unit.kind == "row" and unit.cells else unit.text
            )
            mark = label.match(text)
            if mark is None or (
                mark.end() < len(text.strip())
                and not re.search(r"[:=→]\s*$|\bis\s*$", mark.group())
                and not _CLASS.match(text[mark.end() :].strip())
            ):
                continue
            found[name] = _piece_value(section, lines, at, text[mark.end() :], unit)
    read = [(name, each) for name, each in found.items() if each is not None]
    if not read or len(read) < len(found):
        return [_unread(section)] if found else []
    if not all(each.turn is read[0][1].turn for _, each in read):
        return []
    text = "; ".join(f"{name} = {each.text}" for name, each in read)
    start, stop = min(each.start for _, each in read), max(each.stop for _, each in read)
    return [_Found(text, start, stop, read[0][1].turn, _anchor(section, "label"))]


def _piece_value(section: Section, lines: Sequence[Unit], at: int, rest: str, unit: Unit) -> _Found | None:
    """What stands behind a name: on the line, in a box below it, or alone on the next line."""
    rest = rest.strip()
    around = [lines[place].text if 0 <= place < len(lines) else "" for place in (at - 1, at + 1)]
    if rest and _is_formula(rest) and not is_torn(rest, "", around[1]):
        value = _value(rest, section.place)
        return _Found(value, unit.start, unit.stop, unit.turn, "label") if value else None
    for later in lines[at + 1 : at + 6]:
        if box := _boxed(later.text):
            return _Found(box, later.start, later.stop, later.turn, "box")
        if any(
            re.match(rf"^{phrases()['lead']}(?:total |overall )?{each}\s*[:=]", later.text, re.IGNORECASE)
            for each in phrases()["pieces"].values()
        ):
            break
    if not rest and at + 1 < len(lines):
        after = lines[at + 2].text if at + 2 < len(lines) else ""
        if (
            _is_formula(lines[at + 1].plain)
            and not is_torn(lines[at + 1].plain, "", after)
            and (value := _value(lines[at + 1].plain, section.place))
        ):
            return _Found(value, lines[at + 1].start, lines[at + 1].stop, unit.turn, "label")
    return None


def _unread(section: Section, anchor: Anchor = "label") -> _Found:
    """An answer that stands there and could not be read."""
    first = section.first or section.units[0]
    return _Found("", first.start, first.stop, first.turn, anchor)


def _anchor(section: Section, anchor: Anchor) -> Anchor:
    return (
        "summary"
        if section.summary
        else "table"
        if section.table and anchor == "label"
        else "answer"
        if section.answer and anchor == "label"
        else anchor
    )


def _lines(section: Section) -> list[Unit]:
    """The units of a section, with what stands behind the label as the first."""
    head = []
    if section.head.strip() and section.first is not None:
        head = [Unit(section.first.turn, section.head_start, section.first.stop, section.head)]
    return [*head, *(unit for unit in section.units if unit.kind != "code")]


def _single(section: Section) -> list[_Found]:
    """One answer: said to be one, in a box, behind the label, alone on a line, or the last equation."""
    for attempt in (_said, _in_box, _behind_label, _alone, _last_equation):
        found = attempt(section)
        if found is not None:
            return [found] if found.text or found.anchor != "none" else []
    return []


def _said(section: Section) -> _Found | None:
    """ "Answer: …" below a label, "Answer (a): …", or the line after it."""
    lines = _lines(section)
    if section.answer and lines:
        return _taken(section, lines, 0, lines[0].text, "answer")
    for at in range(len(lines) - 1, -1, -1):
        mark = pattern("answer_line").match(re.sub(rf"^{phrases()['lead']}", "", lines[at].text))
        if mark:
            if mark["rest"].strip():
                return _taken(section, lines, at, mark["rest"], "answer")
            return (
                _taken(section, lines, at + 1, lines[at + 1].text, "answer")
                if at + 1 < len(lines)
                else _unread(section, "answer")
            )
    return _unread(section, "answer") if section.answer else None


def _taken(section: Section, lines: Sequence[Unit], at: int, text: str, anchor: Anchor) -> _Found:
    """The answer that a line gives; no text where it cannot be read."""
    unit, text = _joined(lines, at, text)
    after = lines[at + 1].text if at + 1 < len(lines) and lines[at + 1].stop > unit.stop else ""
    value = None
    if box := _boxed(text):
        value = box
    elif section.place.kind == "array":
        groups = [
            match.group()
            for each in lines[at : at + 2]
            for match in _GROUP.finditer(each.text if each is not lines[at] else text)
        ]
        value = groups[0] if len(set(groups)) == 1 else None
        if value and not _is_formula(text) and lines[at].turn is unit.turn:
            unit = next(each for each in lines[at : at + 2] if value in each.text)
    elif not is_torn(text, "", after if unit.kind == "line" else ""):
        value = _value(text, section.place)
    return _Found(value or "", unit.start, unit.stop, unit.turn, anchor)


def _joined(lines: Sequence[Unit], at: int, text: str) -> tuple[Unit, str]:
    """A line with those that follow while its brackets are open."""
    unit = lines[at]
    for later in lines[at + 1 : at + 4]:
        if balanced(text) or later.kind != "line" or "(" not in text or later.turn is not unit.turn:
            break
        glue = "" if text.rstrip().endswith("-") else " "
        text = text.rstrip() + glue + later.plain
        unit = replace(unit, stop=later.stop)
    return (unit, text) if balanced(text) else (lines[at], lines[at].text if at else text)


def _in_box(section: Section) -> _Found | None:
    for unit in reversed(_lines(section)):
        if box := _boxed(unit.text):
            return _Found(box, unit.start, unit.stop, unit.turn, "box")
    return None


def _boxed(text: str) -> str:
    """What the last box of a text holds."""
    found = list(_BOX.finditer(text))
    end = closing(text, found[-1].end() - 1) if found else -1
    return text[found[-1].end() : end].strip() if end > 0 else ""


def _behind_label(section: Section) -> _Found | None:
    """ "(a) d_model", "(b) = √d"; in a table or a list of labels, the line below the label."""
    lines = _lines(section)
    if not lines:
        return None
    short = section.place.kind in ("choice", "blank", "blanks") or section.table
    if section.head.strip():
        unit, text = _joined(lines, 0, section.head)
        after = lines[1].text if len(lines) > 1 else ""
    elif short and section.first is not None and lines[0].turn is section.first.turn:
        unit, text = _joined(lines, 0, lines[0].text)
        after = lines[1].text if len(lines) > 1 and lines[1].start >= unit.stop else ""
    else:
        return None
    if section.place.kind in ("choice", "blank", "blanks"):
        value = _value(text, section.place)
    else:
        value = _value(text, section.place) if _is_formula(text) and not is_torn(text, "", after) else None
        value = None if value and section.place.kind == "formula" and not section.head and "=" not in value else value
    return _Found(value, unit.start, unit.stop, unit.turn, _anchor(section, "label")) if value else None


def _alone(section: Section) -> _Found | None:
    """One of the options, or the only growth class, alone on a line."""
    lines = _lines(section)
    found: dict[str, _Found] = {}
    for at, unit in enumerate(lines):
        joined, text = _joined(lines, at, re.sub(phrases()["arrow"], "", unit.text))
        text = re.sub(phrases()["arrow"], "", text).strip()
        if section.place.kind in ("choice", "blank"):
            value = _value(text, section.place) if _options(section.place) else None
        elif section.place.kind == "class" and _CLASS.match(text) and not re.match(r"[A-Za-z\s]{2,}[:=]", text):
            around = [lines[place].text if 0 <= place < len(lines) else "" for place in (at - 1, at + 1)]
            value = None if is_torn(text, *around) else _value(text, section.place)
        else:
            value = None
        if value:
            found.setdefault(
                squeezed(value), _Found(value, joined.start, joined.stop, joined.turn, _anchor(section, "label"))
            )
    return next(iter(found.values())) if len(found) == 1 and not _retracted(section) else None


def _retracted(section: Section) -> bool:
    return any(pattern("retracts").search(unit.text) for unit in _lines(section))


def _last_equation(section: Section) -> _Found | None:
    """The last equation under a label, if it is whole and led in as a result."""
    if section.place.kind not in ("formula", "class", "array") or _retracted(section):
        return None
    lines = _lines(section)
    aside = next(
        (at for at, unit in enumerate(lines) if at and unit.kind == "line" and pattern("aside").match(unit.plain)),
        len(lines),
    )
    torn = sum(is_fragment(unit.text) for unit in lines[:aside] if unit.kind == "line")
    for at in range(aside - 1, -1, -1):
        unit = lines[at]
        before, after = (lines[place].text if 0 <= place < len(lines) else "" for place in (at - 1, at + 1))
        text = re.split(r"⇒|⟹|=>|\\implies|\\Rightarrow|∴|\\therefore", unit.plain)[-1].strip()
        if unit.kind == "line" and (norm := norm_over_lines(text, after)):
            return _Found(norm, unit.start, lines[at + 1].stop, unit.turn, "equation")
        if section.place.kind == "array" and not _GROUP.search(text):
            continue
        if "=" not in text or not _is_formula(text) or (unit.kind == "line" and is_fragment(text)):
            continue
        led = unit.kind == "display" or not torn or pattern("introduces").search(before.strip())
        whole_line = unit.kind == "display" or not is_torn(
            text, before if not pattern("introduces").search(before.strip()) else "", after
        )
        value = _value(text, section.place) if led and whole_line else None
        return _Found(value, unit.start, unit.stop, unit.turn, "equation") if value else _unread(section, "equation")
    return _unread(section, "equation") if torn > 2 else None


def _is_formula(text: str) -> bool:
    """Whether a line is a formula, with a word or two of mathematics at most."""
    text = re.sub(phrases()["arrow"], "", text.strip())
    text = re.sub(r"\\(?:text|mathrm|operatorname|mathbf)\s*\{([^{}]*)\}", r" \1 ", text)
    words = list(re.findall(r"[A-Za-z]{3,}", re.sub(r"[\"'][^\"']*[\"']|\w+_\w+|\w+\.\w+", " ", text)))
    known = set(phrases()["formula_words"])
    plain = [
        word
        for word in words
        if word.lower() not in known and word not in known and not re.fullmatch(r"[A-Z]{2,4}|[bdnhkqvDNMO]{2,6}", word)
    ]
    return (
        len(plain) <= 1
        and len(text) < 600
        and bool(re.search(r"[=\\^²√()\[\]\d]|^\$|^\w{1,3}$", text))
        and not text.endswith("?")
    )


def _is_code(text: str, exercise: Exercise) -> bool:
    """Whether a text is what may stand in a blank of a listing."""
    text = _named(re.sub(phrases()["given_away"], "", text.strip("` *$")), exercise)
    text = re.sub(phrases()["alternative"], "", text, flags=re.IGNORECASE).strip(" `=:")
    return (
        bool(text)
        and _CODE.fullmatch(text) is not None
        and len(re.findall(r"[A-Za-z_]\w{2,}", text)) <= 3
        and not re.search(r"[a-z]{2,} [a-z]{2,}", text)
    )


def _listings(exercise: Exercise) -> str:
    """The listings of an exercise, and its text."""
    records = [exercise, *getattr(exercise, "records", {}).values()]
    given = [str(each.value) for record in records for each in record.givens if each.role == "listing"]
    return "\n".join([*dict.fromkeys(given), exercise.text])


def _named(text: str, exercise: Exercise) -> str:
    """A text with the names of the listings as they are there: "d model" for d_model."""
    names = set(re.findall(r"\b[A-Za-z]+(?:_[A-Za-z0-9]+)+\b", _listings(exercise)))
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![\w]){name.replace('_', ' ')}(?!\w)", name, text)
    return text


def _options(place: Place) -> dict[str, str]:
    return {squeezed(option.text).removeprefix("torch"): option.text for option in place.asked.options}


def _value(text: str, place: Place) -> str | None:
    """The answer that a text is, as the checker reads it; None where it is none, or has more than one reading."""
    text = re.sub(phrases()["arrow"], "", text.strip())
    text = re.sub(phrases()["given_away"], "", text, flags=re.IGNORECASE).strip().strip("`").rstrip(" .,;")
    text = re.sub(r"^(?:=|:|is\b)\s*", "", text).strip()
    if not text or text.endswith("?"):
        return None
    if place.kind in ("choice", "blank", "blanks"):
        return _chosen(text, place)
    if place.kind == "class" and not re.search(r"[OΘ𝒪]|\\Theta", text):
        return None
    if place.kind != "array" and not _is_formula(text):
        return None
    names = frozenset(given.symbol for given in place.exercise.givens if given.symbol)
    return whole(text, names)


def _chosen(text: str, place: Place) -> str | None:
    """One of the options, its label, or a piece of code."""
    text = _named(text, place.exercise).strip("` ")
    options = _options(place)
    text = re.sub(r"^[A-Z]\s*=\s*", "", text) if re.match(r"^[A-Z]\s*=\s*[^=]", text) and place.asked.object else text
    if options:
        chosen = options.get(squeezed(text).removeprefix("torch"))
        label = re.fullmatch(
            r"(?:option|choice)?\s*\(?([A-Za-z]{1,4}|\d)\)?(?:(?:\s*,|\s+and)\s*\(?[A-Za-z]{1,4}\)?)*",
            text,
            re.IGNORECASE,
        )
        if (
            chosen is None
            and label
            and any(option.label.lower() == label[1].lower() for option in place.asked.options)
            and not label[1].isdigit()
        ):
            return text
        return chosen
    text = re.sub(phrases()["alternative"], "", text, flags=re.IGNORECASE).strip(" `")
    if not _is_code(text, place.exercise):
        return None
    return text


def _fits(text: str, place: Place) -> bool:
    """Whether a formula has the form of the answer to a part."""
    if place.kind == "class":
        return _CLASS.match(text) is not None
    if place.kind == "choice":
        return squeezed(_named(text, place.exercise)).removeprefix("torch") in _options(place)
    if place.kind == "array":
        return _GROUP.search(text) is not None
    return place.kind == "formula" and not _CLASS.match(text)


def _asked_in(prompt: str, place: Place) -> int:
    """How long a name of the quantity of a part stands in a prompt; 0 for none."""
    from ..exercises.forms.statement import phrases as forms

    names = [name for name in forms()["names"].get(place.asked.quantity, ()) if len(name) > 5]
    found = [re.search(rf"\b{name}\b", prompt, re.IGNORECASE) for name in names]
    return max((len(each.group()) for each in found if each), default=0)
