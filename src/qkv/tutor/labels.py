"""A tutor's turn cut into its parts: headings, labels, lists and labels within a line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_ROMAN = "viii|vii|vi|iv|iii|ii|i|v"
_WORD = r"(?:sub-?part|part|answer|solution|question|problem|exercise|blank|claim|item|q)s?"
_LABEL = re.compile(
    r"[\s>#*_•|–-]*"
    r"(?P<word>(?:(?:final|corrected|revised|updated|correct|new|for|answer|solution|regarding|on|as|to|of|in)\s+){0,3}"
    rf"(?:{_WORD}\b|q(?=\d))(?:\s+(?:to|for|of))?(?:\s+part)?\s*:?\s*)?"
    r"(?P<number>\d{1,2}(?=\s*[.,:-]?\s*(?:part\s*)?\(?[a-zA-Z]\b))?(?P<gap>\s*[.,:-]?\s*(?:part\s+)?)"
    r"(?:\((?P<round>[a-zA-Z])(?=\)|[.,-]?\s?(?:[ivx]{1,4}|\d)\))\)?|(?P<half>[a-zA-Z])(?=\)|\d\))\)?|(?P<dotted>[a-zA-Z])(?=[.:]\**(?:\s|$)|\.(?:[ivx]{1,4})\b[:.)])|(?P<bare>[a-zA-Z])\b"
    r"|\((?P<digit>\d)\)|(?P<plain>\d)\b)"
    rf"(?:\s*[.,-]?\s*\((?P<roman>{_ROMAN})\)|[.,-]?(?P<tight>{_ROMAN})\b\)?|[ ](?P<apart>{_ROMAN})(?=[:.)](?:\s|$))"
    r"|[.,-]?(?P<count>[1-8])\))?"
    r"(?:\s*(?:-|–|—|to|through|,|and|&)\s*(?:\d{1,2})?\s*\(?(?P<until>[a-zA-Z])\))?"
    r"(?P<end>[\s*_]*(?:[:.)—–]|-(?=\s))?[*_]*)",
    re.IGNORECASE,
)
_ONLY_ROMAN = re.compile(rf"[\s>#*_•|-]*(?:\d{{1,2}}\s*)?(?:sub-?part\s*)?\(?(?P<roman>{_ROMAN})\)(?P<end>[\s*_:.]*)")
_CLOSING = re.compile(
    r"^\s*(?:#{1,6}\s*|\*\*)?\s*(?:summary|final (?:corrected )?answers?|corrected answers?|answers|overall|recap|"
    r"key (?:takeaways?|points?|ideas?)|takeaways?|why this matters|intuition|in summary|to summari[sz]e)\b",
    re.IGNORECASE,
)
_INLINE = re.compile(
    r"(?P<before>^|[\s,;:.>|])(?:\*\*|__)?(?:part\s+)?\(?(?P<letter>(?<=\()[a-z]|i{1,3}|iv)\)(?:\s*\((?P<roman>i{1,3}|iv|v)\))?",
    re.I,
)
_BELOW = re.compile(r"[\s>*_•|-]*\(?([1-8])[.)][*_]*\s")
_COUNTED = re.compile(r"(?:^|(?<=\s))\(?([1-8])[.)]\s")
_REFERS = re.compile(
    r"(?:\b(?:from|in|by|see|using|use|of|to|with|than|as|equation|eq|like|than|both|about|parts?)|\band)\W*$", re.I
)


@dataclass(frozen=True)
class Section:
    """Text under one label: `part` is its plain name ("a", "bii", "" before any), `number` the question's."""

    part: str
    text: str
    number: str = ""
    answer: bool = False
    summary: bool = False
    place: int = 0


@dataclass(frozen=True)
class _Mark:
    start: int
    end: int
    part: str
    number: str = ""
    answer: bool = False
    summary: bool = False


def sections(text: str, parts: Collection[str], *, numbered: bool = False, within: str = "") -> list[Section]:
    """The sections of a text in order; `parts` are the plain names that there are ("a", "bi", …).

    With `numbered`, items 1., 2., 3. are parts a, b, c. `within` is the letter that a bare (i) is of.

    >>> [(each.part, each.text.strip()) for each in sections("Part (a)\\nx = 1\\n**Answer (b):** y", ["a", "b"])]
    [('a', 'x = 1'), ('b', 'y')]
    """
    marks = list(_marks(text, set(parts), numbered, within))
    first = marks[0].start if marks else len(text)
    found = [Section("", text[:first])] if text[:first].strip() else []
    for mark, following in zip(marks, [*marks[1:], None], strict=False):
        end = len(text) if following is None else following.start
        found.append(Section(mark.part, text[mark.end : end], mark.number, mark.answer, mark.summary, mark.start))
    return found


def _marks(text: str, parts: set[str], numbered: bool, within: str) -> Iterator[_Mark]:
    letters = {part[0] for part in parts if part}
    # Where every part is one of (i), (ii), … of a single letter, the letter need not be written.
    alone = next(iter(letters)) if len(letters) == 1 and any(len(part) > 1 for part in parts) else within
    letter, summary, fenced = alone, False, False
    offset = 0
    for line in text.split("\n"):
        start, offset = offset, offset + len(line) + 1
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            continue
        if fenced or not line.strip():
            continue
        head = line[:400]
        closing = _CLOSING.match(head)
        mark = _line_mark(head, start, parts, letters, letter, numbered)
        if mark is not None:
            letter = mark.part[:1]
            yield _Mark(mark.start, mark.end, mark.part, mark.number, mark.answer, summary)
            yield from _inline_marks(line[:4000], start, mark.end - start, parts, mark.part, summary)
        elif closing is not None:
            summary, letter = True, alone
            yield _Mark(start, start, "", summary=True)
            yield from _inline_marks(line[:4000], start, closing.end(), parts, alone, True)
        else:
            found = list(_inline_marks(line[:4000], start, 0, parts, alone, summary))
            if len(found) > 1 or (found and re.search(r"\bfor (?:part )?$", line[: found[0].start - start], re.I)):
                letter = found[-1].part[:1]
                yield from found


def _line_mark(head: str, start: int, parts: set[str], letters: set[str], letter: str, numbered: bool) -> _Mark | None:
    """The label that a line begins with."""
    roman = _ONLY_ROMAN.match(head)
    if roman is not None and roman["roman"].lower() not in letters | parts and letter:
        name = letter + roman["roman"].lower()
        if name in parts:
            return _Mark(start, start + roman.end(), name)
    found = _LABEL.match(head)
    if found is not None:
        sign = found["round"] or found["half"] or found["dotted"] or found["bare"]
        digit = found["digit"] or found["plain"]
        name = sign.lower() if sign else "abcdefghi"[int(digit) - 1] if digit and digit != "0" else ""
        below = (found["roman"] or found["tight"] or found["apart"] or "").lower()
        below = _ROMANS[int(found["count"]) - 1] if found["count"] else below
        if below and name + below not in parts:
            # "(a) (i) and (iii)": what follows the letter is an option that is chosen.
            group = next(each for each in ("roman", "tight", "apart", "count") if found[each])
            head = head[: found.start(group)].rstrip("( .,-") + ")" * (head[found.end("round") :][:1] == ")")
            found = _LABEL.match(head)
            below = ""
        if found is not None and name in letters and _is_label(found, head, numbered):
            if found["until"] and found["until"].lower() in letters and not below:
                # A label of several parts: what follows has labels of its own.
                return _Mark(start, start + found.end(), "", found["number"] or "")
            word = (found["word"] or "").lower()
            return _Mark(start, start + found.end(), name + below, found["number"] or "", "answer" in word)
    below = _BELOW.match(head) if letter and letter + "i" in parts and not numbered else None
    if below is not None and (name := letter + _ROMANS[int(below[1]) - 1]) in parts:
        return _Mark(start, start + below.end(), name)
    item = re.match(r"\s*(?:#{1,6}\s*)?(?:\*\*)?(\d)[.)]\s", head) if numbered else None
    if item is not None and "1" <= item[1] <= "9" and "abcdefghi"[int(item[1]) - 1] in letters:
        return _Mark(start, start + item.end(), "abcdefghi"[int(item[1]) - 1])
    return None


def _is_label(found: re.Match[str], head: str, numbered: bool) -> bool:
    """Whether what looks like a label is one: a bare letter or digit needs a word, a number or a mark beside it."""
    word = (found["word"] or "").strip().lower()
    lead = head[: found.start("word") if found["word"] else found.start("gap")]
    if word and not re.search(
        r"(?:sub-?part|part|answer|solution|question|problem|exercise|blank|claim|item|q)s?", word
    ):
        return False
    if re.match(r"(?:in|as|of|to|on)\b", word) and not found["end"].strip():
        return False
    if found["round"] or found["half"]:
        return not re.match(r"\s*(?:(?:is|was|but|we|above|below)\b|and \(?[a-h]\b)", head[found.end() :]) or bool(word)
    if found["dotted"]:
        return found["dotted"].islower() or bool(word) or "*" in lead or "#" in lead or "-" in lead
    if found["bare"]:
        if found["number"]:
            return (not found["gap"].strip() and found["gap"] == "") or "part" in found["gap"].lower()
        return bool(word) and (found["bare"].lower() != "a" or bool(found["end"].strip()) or _ends(head, found))
    digit = found["digit"] or found["plain"]
    return bool(digit) and bool(re.search(r"part", word)) and numbered


def _ends(head: str, found: re.Match[str]) -> bool:
    return not head[found.end() :].strip(" *_#")


def _inline_marks(line: str, start: int, after: int, parts: set[str], last: str, summary: bool) -> Iterator[_Mark]:
    """Labels within a line, in rising order: "(a) x, (b) y and (c) z", or "(i) x; (ii) y" of one letter."""
    letters = {part[0] for part in parts if part}
    counted = list(_COUNTED.finditer(line, after)) if last and last[0] + "i" in parts and len(last) == 1 else []
    if len(counted) > 1 and [int(each[1]) for each in counted] == list(range(1, len(counted) + 1)):
        # "(b) 1. x 2. y": numbers for (i), (ii) within the line.
        for each in counted:
            if (name := last[0] + _ROMANS[int(each[1]) - 1]) in parts:
                yield _Mark(start + each.start(), start + each.end(), name, summary=summary)
        return
    for found in _INLINE.finditer(line, after):
        name = found["letter"].lower() + (found["roman"] or "").lower()
        if name in _ROMANS and last and last[0] + name in parts:
            name = last[0] + name
        before = line[max(0, found.start() - 14) : found.start() + 1]
        joined = last and re.search(r"\band\W*$", before) and not re.search(r"\bparts?\b", before)
        if name[0] not in letters or _rank(name) <= _rank(last) or (_REFERS.search(before) and not joined):
            continue
        end = found.end()
        if len(name) > 1 and name not in parts:
            # "(b) (i), (ii)": what follows the letter is an option that is chosen.
            name, end = name[0], found.end("letter") + 1
        if end >= len(line.rstrip()):
            continue
        last = name
        yield _Mark(start + found.start("letter") - 1, start + end, name, summary=summary)


_ROMANS = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii")


def _rank(name: str) -> tuple[str, int]:
    return name[:1], _ROMANS.index(name[1:]) + 1 if name[1:] in _ROMANS else 0
