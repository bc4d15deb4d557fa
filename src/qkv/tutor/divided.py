"""Answers whose parts are told by order alone: numbers for letters, formulas one below the other, names of cases."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from .formulas import formulas
from .labels import Section, sections

if TYPE_CHECKING:
    from .questions import Question

_CAPITAL = re.compile(r"^([ \t>*_-]*(?:blank[ \t]+)?)([A-H])(?=[*_]*[ \t]*[:.)=])", re.MULTILINE | re.IGNORECASE)
_ANSWER = re.compile(r"^[ \t>*_]*(?:final )?answer[*_]*\\?:[*_]*", re.MULTILINE | re.IGNORECASE)
_NUMBER = re.compile(r"^[ \t>#*_-]*(\d{1,2})[.)]", re.MULTILINE)
_CASE = re.compile(r"(?:^|(?<=[.;]\s)|(?<=\n))[ \t*_-]*([A-Z][\w -]{0,30}?)[*_]*:[*_]*\s")


def unlabelled_sections(question: Question, text: str) -> list[Section]:
    """The sections of a turn in which no part is named: by numbers, by capitals, or one formula a line."""
    letters = sorted({name[0] for name in question.parts})
    counted = [int(each) for each in _NUMBER.findall(text)]
    if question.numbered or (len(letters) > 1 and counted == list(range(1, len(letters) + 1))):
        found = sections(text, question.labels(), numbered=True)
        if any(each.part for each in found):
            return found
    capitals = [each[2].lower() for each in _CAPITAL.finditer(text)]
    if len(capitals) > 1 and capitals == sorted(set(capitals)) and set(capitals) <= set(letters):
        return sections(_CAPITAL.sub(lambda each: f"({each[2].lower()}) ", text), question.labels())
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if len(lines) == len(question.parts) > 1 and all(_is_formula(line) for line in lines):
        return [Section(name, line) for name, line in zip(question.parts, lines, strict=True)]
    return []


def _is_formula(line: str) -> bool:
    """Whether a line is a formula and nothing else."""
    found = formulas(line)
    return len(found) == 1 and found[0].start == 0 and not line[found[0].end :].strip(" .,;")


def without_restating(section: Section, statement: str) -> Section:
    """A section that repeats its question before "Answer:", from there on."""
    answer = _ANSWER.search(section.text)
    if answer is None or section.answer:
        return section
    before = _squeezed(section.text[: answer.start()])[:60]
    restated = len(before) > 15 and before in _squeezed(statement)
    return replace(section, text=section.text[answer.end() :], answer=True) if restated else section


def _squeezed(text: str) -> str:
    return re.sub(r"[\s\\*_>$]+", "", text).lstrip(":.)")


def named_piece(question: Question, name: str, section: Section) -> Section:
    """The piece of a letter's section for one of its (i), (ii), …: where as many cases are named as there are."""
    group = [each for each in question.parts if each[0] == name[0]]
    cases = list(_CASE.finditer(section.text))
    if len(group) < 2 or len(cases) != len(group):
        return section
    place = group.index(name)
    end = cases[place + 1].start() if place + 1 < len(cases) else len(section.text)
    return replace(section, part=name, text=section.text[cases[place].start() : end])
