"""A whole assignment, taken apart into its questions, and which problems of the bank those are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..catalogue import Match, recognise

LONGEST = 1_000_000  # characters that are read
MOST = 200  # questions
LONGEST_TITLE = 60
_WORD = r"(?:problem|question|exercise|task|q)"
_MARKS = r"(?:\*\*|__)?\s*"
_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)[\s#]*$")
# A number with a letter behind it, 2(a) or 2b, is a part and no question.
_NUMBERED = re.compile(
    rf"^{_MARKS}(?:\w+:\s*)?(?:{_WORD}\s*)?(\d{{1,3}})(?![\d(]|[a-z]\b)[.:)]?\s*(?:[-–—]\s+)?(.*)$", re.I
)
_NAMED = re.compile(rf"^ {{0,3}}{_MARKS}{_WORD}\s*(\d{{1,3}})(?![\d(]|[a-z]\b)[.:)]?\s*(.*)$", re.I)
_STRONG = re.compile(r"^ {0,3}(?:\*\*|__)\s*(\d{1,3})[.:)]?\s+(.+?)(?:\*\*|__)\s*$")
_TITLE = re.compile(r"^(\d{1,3})[.)]?\s+([A-Z][^.?!$=\t]{3,80})$")
_LISTED = re.compile(r"^(\d{1,3})[.)]\s+(\S.*)$")


@dataclass(frozen=True)
class Question:
    """A question as it stands in an assignment: its number ("" where it has none), its title and all its text."""

    number: str
    title: str
    text: str

    @property
    def label(self) -> str:
        """
        >>> Question("2", "Scaling", "…").label
        '2 (Scaling)'
        """
        if not self.number:
            return self.title or "the question"
        return f"{self.number} ({self.title})" if self.title else self.number


Start = tuple[int, str, str]  # line, number, title


def questions(text: str) -> tuple[Question, ...]:
    """The questions of an assignment, in order; without numbers or headings all of it is one.

    >>> [each.label for each in questions("# 1 Heads\\n\\nHow many?\\n\\n# 2. Norms\\n\\nOver what?")]
    ['1 (Heads)', '2 (Norms)']
    """
    lines = _lines(text)
    if starts := _starts(lines):
        return _cut(lines, starts)
    return (Question("", "", text.strip()[:LONGEST]),) if text.strip() else ()


def left_off(text: str) -> int:
    """How many questions of an assignment are not read, since it has more than `MOST`."""
    lines = _lines(text)
    starts = _starts(lines)
    found = len(starts) if len(starts) > 1 else len(_lines_like(_LISTED)(lines))
    return max(0, found - MOST)


def recognised(text: str) -> list[tuple[Question, Match | None]]:
    """Every question of an assignment with the problem of the bank that it is, with the question's own numbers.

    A bare list of numbers may be questions or the parts of one: it is taken apart where its items are different
    problems.
    """
    found = [(question, _best(question)) for question in questions(text)]
    if len(found) != 1:
        return found
    lines = _lines(text)
    listed = [(question, _best(question)) for question in _cut(lines, _lines_like(_LISTED)(lines))]
    kinds = {match.problem.name for _, match in listed if match is not None}
    return listed if len(kinds) > 1 else found


def _best(question: Question) -> Match | None:
    matches = recognise(question.text)
    return matches[0] if matches else None


def _lines(text: str) -> list[str]:
    """The lines, with those inside a block of code hidden from the search for headings."""
    return text[:LONGEST].lstrip("\ufeff").splitlines()


def _starts(lines: Sequence[str]) -> list[Start]:
    """Where questions begin, by the first way to mark them that is found."""
    ways = (_headings, _lines_like(_NAMED), _lines_like(_STRONG), _lines_like(_TITLE), _plain_headings)
    return next((starts for way in ways if (starts := way(lines))), [])


def _outside_code(lines: Sequence[str]) -> list[tuple[int, str]]:
    kept, inside = [], False
    for place, line in enumerate(lines):
        if line.lstrip().startswith(("```", "~~~")):
            inside = not inside
        elif not inside:
            kept.append((place, line[:200]))
    return kept


def _cut(lines: Sequence[str], starts: Sequence[Start]) -> tuple[Question, ...]:
    starts = starts[:MOST]
    ends = [line for line, _, _ in starts[1:]] + [len(lines)] * bool(starts)
    return tuple(
        Question(number, _title(title), "\n".join(lines[line:end]).strip())
        for (line, number, title), end in zip(starts, ends, strict=True)
    )


def _title(text: str) -> str:
    text = text.strip().strip("*_:").strip()
    return text if len(text) <= LONGEST_TITLE else f"{text[:LONGEST_TITLE].rstrip()}…"


def _headings(lines: Sequence[str]) -> list[Start]:
    """Numbered headings, of the highest level that has any: those below are parts, or steps of a solution."""
    found = []
    for place, line in _outside_code(lines):
        heading = _HEADING.match(line)
        numbered = _NUMBERED.match(heading[2]) if heading else None
        if heading and numbered:
            found.append((len(heading[1]), place, numbered[1], numbered[2]))
    highest = min((level for level, *_ in found), default=0)
    return [(place, number, title) for level, place, number, title in found if level == highest]


def _plain_headings(lines: Sequence[str]) -> list[Start]:
    """Headings without numbers, of the highest level that has several."""
    found = [
        (len(match[1]), place, match[2]) for place, line in _outside_code(lines) if (match := _HEADING.match(line))
    ]
    for level in sorted({level for level, *_ in found}):
        same = [(place, "", title) for depth, place, title in found if depth == level]
        if len(same) > 1:
            return same
    return []


def _lines_like(pattern: re.Pattern[str]) -> Callable[[Sequence[str]], list[Start]]:
    """Lines of that form whose numbers count upwards."""

    def find(lines: Sequence[str]) -> list[Start]:
        found: list[Start] = []
        for place, line in _outside_code(lines):
            match = pattern.match(line)
            if match and (not found or int(match[1]) > int(found[-1][1])):
                found.append((place, match[1], match[2]))
        return found

    return find
