"""The explicit reader: claims from anchored places alone, by labels, boxes, tables, summaries and last equations.

What is torn, restated from the sheet, quoted or told of another problem is no claim. A place at which an answer stands
that cannot be read gives a claim without text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..exercises.forms.statement import closing, squeezed
from ..exercises.record import Exercise
from .chat import Chat
from .claims import Anchor, AnswerClaim
from .questions import Place, Questions, pattern, phrases
from .sections import Found, Section, Walk, answer_cell, spoken_units
from .torn import balanced, is_fragment, is_torn, over_lines
from .units import Unit
from .values import GROUP, array_in, has_other_names, is_class, is_formula, listings, options, value_of

_INLINE = re.compile(r"(?:\$([^$\n]+=[^$\n]+)\$|\\\(((?:(?!\\\)).)+=(?:(?!\\\)).)+)\\\))[\s.,;]*$")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
MOST_QUOTED = 6_000  # characters of a section in words


class ExplicitReader:
    """The default reader: offline, deterministic, and silent where it is not sure.

    >>> from qkv.grading import from_sheet
    >>> from qkv.reading import read_chat
    >>> questions = from_sheet("2. A layer has width 96 and 8 heads. What is the width of a head?")
    >>> chat = read_chat("Student: Problem 2. What is the width?\\n\\nTutor: Answer: 12")
    >>> [claim] = ExplicitReader().read(chat, questions)
    >>> claim.question, claim.claim
    ('2', '12')
    """

    def read(self, chat: Chat, exercises: Mapping[str, Exercise]) -> list[AnswerClaim]:
        """The claims of a chat, in the order of its text.

        Args:
            chat: What `read_chat` gives.
            exercises: The questions by their numbers, or by any label.
        """
        if not exercises:
            return []
        questions = Questions(exercises)
        sections, replies = Walk(questions, spoken_units(chat)).run()
        claims: list[AnswerClaim] = []
        for run in _runs(sections):
            for found in _claims(run):
                claims.append(_claim(run[0].place, found))
        claims = _without_steps(claims) + [_claim(place, found) for place, found in replies]
        texts = {turn.index: turn.text for turn in chat.turns}
        claims = [
            each.model_copy(update={"anchor": "none"}) if _is_reserved(texts[each.turn], each.span) else each
            for each in claims
        ]
        order = sorted(range(len(claims)), key=lambda at: (claims[at].turn, claims[at].span, at))
        return [claims[at] for at in order]


def _is_reserved(text: str, span: tuple[int, int]) -> bool:
    """Whether a claim's line, what leads to it or the head of its table tells of a mistake, a case or a check.

    >>> _is_reserved("Common mistakes:\\n\\n(a) d^2", (17, 24)), _is_reserved("Hence\\n\\n(a) d^2", (7, 14))
    (True, False)
    """
    begin = text.rfind("\n", 0, span[0]) + 1
    line, _, _ = text[begin:].partition("\n")
    line = text[begin : max(span[1], begin + len(line))]
    above = [each for each in text[:begin].splitlines()[-20:] if each.strip()]
    if line.lstrip().startswith("|"):
        head = next((each for each in above if each.lstrip().startswith("|")), "")
        return bool(pattern("reserved_head").search(head))
    lead = next((each for each in reversed(above) if not re.match(phrases()["item"], each)), "")
    # The sentence before is another one; a line that is not at its end goes on here.
    lead = "" if re.search(r"[.!?]\W*$", lead) else lead
    lead += above[-1] if above and re.search(r"[a-z,:]\s*$", above[-1]) else ""
    after = text[begin + len(line) :].lstrip()[:80]
    return bool(pattern("reserved").search(f"{lead}\n{line}") or pattern("refused").match(after))


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


def _claim(place: Place, found: Found) -> AnswerClaim:
    quote = found.turn.text[found.start : found.stop]
    return AnswerClaim(question=place.question, part=place.part, claim=found.text, quote=quote, turn=found.turn.index,
                       span=(found.start, found.stop), stance=found.stance, anchor=found.anchor)  # fmt: skip


def _runs(sections: Sequence[Section]) -> Iterator[list[Section]]:
    """Sections each alone, and the blanks of one listing together while their letters rise."""
    runs: dict[int, list[Section]] = {}
    explained: dict[tuple[int, int, int], list[Section]] = {}
    for section in sections:
        if section.place.kind == "words":
            # What is explained under one label twice in a turn is one explanation.
            explained.setdefault((id(section.place), section.round, _turn(section)), []).append(section)
            continue
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
    yield from explained.values()


def _turn(section: Section) -> int:
    return section.first.turn.index if section.first else -1


def _claims(run: Sequence[Section]) -> list[Found]:
    """The claims of a section, or of the blanks of one listing."""
    section = run[0]
    if section.place.asked.quantity == "not_understood":
        return []
    if section.place.kind == "blanks":
        return _blanks(run)
    if section.place.kind == "words":
        found = [each for part in run for each in _words(part)]
        text = _unwrapped("\n".join(each.text for each in found))
        return [replace(found[0], text=text, stop=found[-1].stop)] if found else []
    reader = {"pieces": _pieces, "proof": _proof}.get(section.place.kind, _single)
    found = [_with_stance(each, section) for each in reader(section)]
    return [replace(each, anchor="none") if has_other_names(each.text, section.place) else each for each in found]


def _with_stance(found: Found, section: Section) -> Found:
    line = found.turn.text[found.turn.text.rfind("\n", 0, found.start) + 1 : found.stop]
    if found.stance != "asserted" or section.place.kind in ("words", "proof"):
        return found
    before = found.turn.text[: found.turn.text.rfind("\n", 0, found.start) + 1].rstrip().rpartition("\n")[2]
    line = f"{before} {line}" if before.endswith(":") else line
    lead = line[: max(0, len(line) - len(found.turn.text[found.start : found.stop]))]
    if pattern("earlier").search(line):
        return replace(found, stance="quoted")
    if line.rstrip().endswith("?"):
        return replace(found, stance="asked")
    return replace(found, stance="denied") if pattern("denied").search(lead) else found


def _blanks(run: Sequence[Section]) -> list[Found]:
    """The blanks of a listing as one claim: "a = d_model", a line for each."""
    read: list[tuple[str, Found]] = []
    listing = listings(run[0].place.exercise)
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
    return [Found(text, read[0][1].start, read[-1][1].stop, read[0][1].turn, anchor)]


def _words(section: Section) -> list[Found]:
    """An explanation: everything under the label, with lines that were wrapped as one."""
    own, prose = explanation(section.units, section.head)
    if len(re.findall(r"[A-Za-z]{3,}", prose)) < 5 or section.first is None:
        return []
    stops = [unit.stop for unit in own if unit.turn is section.first.turn]
    return [Found(prose, section.head_start, max([section.first.stop, *stops]), section.first.turn, "label")]


def explanation(units: Sequence[Unit], head: str = "") -> tuple[list[Unit], str]:
    """What an explanation says in words: the lines that count, and their text, with lines that were wrapped as one."""
    own = [unit for unit in units if unit.kind != "code" and not is_fragment(unit.text)]
    if len(units) - len(own) > 2:
        # Where formulas are torn, they also stand out of order: only the sentences tell.
        own = [unit for unit in own if not is_formula(unit.text)]
    own = _without_contrast(own)
    prose = _unwrapped("\n".join([head, *(unit.text for unit in own)]).strip()[:MOST_QUOTED])
    # Words in bold may be printed twice.
    return own, re.sub(r"\b(\w+(?: \w+){0,7}) \1\b", r"\1", pattern("hint").sub(" ", prose))


def _unwrapped(text: str) -> str:
    return re.sub(r"(?<=[A-Za-z,’'”)-])\n(?=[a-z(“])", " ", text)


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


def _proof(section: Section) -> list[Found]:
    """A derivation is read whole; it may confirm."""
    return [replace(each, anchor="none") for each in _words(section)]


def _pieces(section: Section) -> list[Found]:
    """The pieces of an answer, each on a line that begins with its name: "Time: O(n)", "Space: O(1)"."""
    found: dict[str, Found | None] = {}
    lines = _without_contrast(_lines(section))
    names = {name: phrases()["pieces"].get(name, re.escape(name)) for name in section.place.pieces}
    for unit in lines:
        tied = [re.search(rf"(?<![A-Za-z]){each}\s*[:=]", unit.text, re.IGNORECASE) for each in names.values()]
        if all(tied) and is_formula(unit.text, 0) and not is_torn(unit.text):
            return [Found(unit.plain, unit.start, unit.stop, unit.turn, _anchor(section, "label"))]
    for name in section.place.pieces:
        label = re.compile(
            rf"^{phrases()['lead']}(?:the |so |(?P<total>total |overall |final ))*{names[name]}\s*(?:is|[:=→])?\s*",
            re.IGNORECASE,
        )
        for at, unit in enumerate(lines):
            text = f"{unit.cells[0]}: {answer_cell(unit.cells, ())}" if unit.kind == "row" and unit.cells else unit.text
            mark = label.match(text)
            if mark is None or (
                mark.end() < len(text.strip())
                and not re.search(r"[:=→]\s*$|\bis\s*$", mark.group())
                and not is_class(text[mark.end() :].strip())
            ):
                continue
            value, before = _piece_value(section, lines, at, text[mark.end() :], unit), found.get(name)
            # Of two answers, the total counts; else one of them is of something else.
            same = value is not None and before is not None and value.text == before.text
            found[name] = value if name not in found or same or mark["total"] else None
    read = [(name, each) for name, each in found.items() if each is not None]
    if not read or len(read) < len(found):
        return [_unread(section)] if found else []
    if not all(each.turn is read[0][1].turn for _, each in read):
        return []
    text = "; ".join(f"{name} = {each.text}" for name, each in read)
    start, stop = min(each.start for _, each in read), max(each.stop for _, each in read)
    return [Found(text, start, stop, read[0][1].turn, _anchor(section, "label"))]


def _piece_value(section: Section, lines: Sequence[Unit], at: int, rest: str, unit: Unit) -> Found | None:
    """What stands behind a name: on the line, in a box below it, or alone on the next line."""
    rest = rest.strip()
    around = [lines[place].text if 0 <= place < len(lines) else "" for place in (at - 1, at + 1)]
    if rest and is_formula(rest) and not is_torn(rest, "", around[1]):
        value = value_of(rest, section.place)
        return Found(value, unit.start, unit.stop, unit.turn, "label") if value else None
    for later in lines[at + 1 : at + 6]:
        if box := _boxed(later.text):
            return Found(box, later.start, later.stop, later.turn, "box")
        if any(
            re.match(rf"^{phrases()['lead']}(?:total |overall )?{each}\s*[:=]", later.text, re.IGNORECASE)
            for each in phrases()["pieces"].values()
        ):
            break
    if not rest and at + 1 < len(lines):
        after = lines[at + 2].text if at + 2 < len(lines) else ""
        if (
            is_formula(lines[at + 1].plain)
            and not is_torn(lines[at + 1].plain, "", after)
            and (value := value_of(lines[at + 1].plain, section.place))
        ):
            return Found(value, lines[at + 1].start, lines[at + 1].stop, unit.turn, "label")
    return None


def _unread(section: Section, anchor: Anchor = "label") -> Found:
    """An answer that stands there and could not be read."""
    first = section.first or section.units[0]
    return Found("", first.start, first.stop, first.turn, anchor)


def _anchor(section: Section, anchor: Anchor) -> Anchor:
    if section.summary or anchor != "label":
        return "summary" if section.summary else anchor
    return "table" if section.table else "answer" if section.answer else anchor


def _lines(section: Section) -> list[Unit]:
    """The units of a section, with what stands behind the label as the first."""
    head = []
    if section.head.strip() and section.first is not None:
        head = [Unit(section.first.turn, section.head_start, section.first.stop, section.head)]
    return [*head, *(unit for unit in section.units if unit.kind != "code")]


def _single(section: Section) -> list[Found]:
    """One answer: said to be one, in a box, behind the label, alone on a line, or the last equation."""
    for attempt in (_said, _in_box, _behind_label, _alone, _last_equation):
        found = attempt(section)
        if found is not None:
            return [found] if found.text or found.anchor != "none" else []
    return []


def _said(section: Section) -> Found | None:
    """ "Answer: …" below a label, "Answer (a): …", or the line after it."""
    lines = _lines(section)
    if section.answer and lines:
        return _taken(section, lines, 0, lines[0].text, "answer")
    for at in range(len(lines) - 1, -1, -1):
        mark = pattern("answer_line").match(re.sub(rf"^{phrases()['lead']}", "", lines[at].text))
        if mark:
            if not mark["rest"].strip() and at + 1 == len(lines):
                return _unread(section, "answer")
            rest = mark["rest"].strip() or lines[at + 1].text
            return _taken(section, lines, at if mark["rest"].strip() else at + 1, rest, "answer")
    return _unread(section, "answer") if section.answer else None


def _taken(section: Section, lines: Sequence[Unit], at: int, text: str, anchor: Anchor) -> Found:
    """The answer that a line gives; no text where it cannot be read."""
    unit, text = _joined(lines, at, text)
    after = lines[at + 1].text if at + 1 < len(lines) and lines[at + 1].stop > unit.stop else ""
    value = None
    if box := _boxed(text):
        value = box
    elif section.place.kind == "array":
        if (
            not GROUP.search(re.sub(r"\\[ ,;:!]", " ", text))
            and at + 1 < len(lines)
            and lines[at + 1].turn is unit.turn
        ):
            unit, text = _joined(lines, at + 1, lines[at + 1].text)
        text = re.sub(r"\\[ ,;:!]", " ", text)
        # Several arrays are an answer where each has its name.
        several = len({match.group() for match in GROUP.finditer(text)}) > 1 and is_formula(text, 0)
        value = text.strip() if several else array_in(text)
    elif not is_torn(text, "", after if unit.kind == "line" else ""):
        value = value_of(text, section.place)
    return Found(value or "", unit.start, unit.stop, unit.turn, anchor)


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


def _in_box(section: Section) -> Found | None:
    for unit in reversed(_lines(section)):
        if box := _boxed(unit.text):
            return Found(box, unit.start, unit.stop, unit.turn, "box")
    return None


def _boxed(text: str) -> str:
    """What the last box of a text holds."""
    found = list(_BOX.finditer(text))
    end = closing(text, found[-1].end() - 1) if found else -1
    return text[found[-1].end() : end].strip() if end > 0 else ""


def _behind_label(section: Section) -> Found | None:
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
    if section.place.kind == "class":
        text = re.sub(phrases()["class_name"], "", text.strip(), flags=re.IGNORECASE)
    if section.place.kind == "array" and sum(GROUP.search(each.text) is not None for each in lines) > 1:
        return None  # steps that lead to the last one
    if section.place.kind in ("choice", "blank", "blanks"):
        listed = options(section.place) and not section.head.strip() and len(_offered(section)) > 1
        value = None if listed else value_of(text, section.place)
    else:
        value = value_of(text, section.place) if is_formula(text, 0) and not is_torn(text, "", after) else None
        step = section.place.kind == "formula" and not section.head and len(lines) > 1 and not section.summary
        value = None if value and step and "=" not in value else value
    return Found(value, unit.start, unit.stop, unit.turn, _anchor(section, "label")) if value else None


def _offered(section: Section) -> set[str]:
    """The options that stand alone on lines of a section."""
    return {value for unit in _lines(section)[:8] if (value := value_of(unit.text, section.place))}


def _alone(section: Section) -> Found | None:
    """One of the options, or the only growth class, alone on a line."""
    lines = _lines(section)
    found: dict[str, Found] = {}
    for at, unit in enumerate(lines):
        if found and pattern("equivalently").match(unit.plain):
            break  # the same in other words
        joined, text = _joined(lines, at, re.sub(phrases()["arrow"], "", unit.text))
        text = re.sub(phrases()["arrow"], "", text).strip()
        if section.place.kind in ("choice", "blank"):
            value = value_of(text, section.place) if options(section.place) else None
        elif section.place.kind == "class" and is_class(text) and not re.match(r"[A-Za-z\s]{2,}[:=]", text):
            around = [lines[place].text if 0 <= place < len(lines) else "" for place in (at - 1, at + 1)]
            value = None if is_torn(text, *around) else value_of(text, section.place)
        else:
            value = None
        if value:
            found.setdefault(
                squeezed(value), Found(value, joined.start, joined.stop, joined.turn, _anchor(section, "label"))
            )
    return next(iter(found.values())) if len(found) == 1 and not _retracted(section) else None


def _retracted(section: Section) -> bool:
    return any(pattern("retracts").search(unit.text) for unit in _lines(section))


def _last_equation(section: Section) -> Found | None:
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
        if inline := _INLINE.search(unit.plain):
            # A sentence that ends with a formula: "so $s = \\sqrt d$."
            text = next(each for each in inline.groups() if each)
            if pattern("supposed").search(unit.plain) or pattern("denied").search(unit.plain):
                return _unread(section, "equation")
        below = [each.text for each in lines[at + 1 : at + 4]]
        if unit.kind == "line" and (found := over_lines(text, below)):
            return Found(found[0], unit.start, lines[at + found[1]].stop, unit.turn, "equation")
        if section.place.kind == "array" and not GROUP.search(text):
            continue
        if (
            "=" not in text
            or not is_formula(text, int(unit.turn.speaker == "tutor"))
            or (unit.kind == "line" and is_fragment(text))
        ):
            continue
        if pattern("supposed").search(f"{before if before.rstrip().endswith((':', ',')) else ''} {text}"):
            return _unread(section, "equation")
        led = unit.kind == "display" or not torn or pattern("introduces").search(before.strip())
        whole_line = unit.kind == "display" or not is_torn(
            text, before if not pattern("introduces").search(before.strip()) else "", after
        )
        value = value_of(text, section.place) if led and whole_line else None
        return Found(value, unit.start, unit.stop, unit.turn, "equation") if value else _unread(section, "equation")
    return _unread(section, "equation") if torn > 2 else None
