"""What a tutor's reply gives as its answers, where it was asked to write "Answer (a): ..." for each part."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ..problems.outcome import Outcome
from ..problems.problem import Part, plain_name

LONGEST = 200_000  # characters of a reply that are read: its end, where answers stand

# "Answer (a): 5" with what models put around it: **bold**, a bullet, \textbf{...}, "Final answer to part a:".
# Every repeat is bounded: a reply may be anything, and must be read in a time that grows with its length.
_MARK = re.compile(
    r"(?:^|[;,|.](?=\s))(?P<before>[ \t>*_#`$\-–•|]{0,20}(?:\\text(?:bf|rm)?\{)?)[ \t]{0,4}(?:final )?answers?\b"
    r"(?: (?:to|for|of|the|part|question)){0,4} ?(?P<name>[^\n:=]{0,20}?)[:=][ \t]{0,8}[*_`]{0,3}",
    re.IGNORECASE | re.MULTILINE,
)
_THOUGHTS_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)


class Given(NamedTuple):
    """An answer as it stands in a reply: the line that begins it, and the paragraph that the line begins."""

    line: str
    paragraph: str


def answers(reply: str, names: Iterable[str]) -> dict[str, Given]:
    """Part to what the reply gives for it; where it does so twice the later one counts.

    >>> answers("First q = 2.\\n\\n**Answer (a):** $2$\\nAnswer b: 3, 4", ["a", "b"])
    {'a': Given(line='$2$', paragraph='$2$'), 'b': Given(line='3, 4', paragraph='3, 4')}
    """
    wanted = {plain_name(name): name for name in names}
    text = _FENCE.sub("", _THOUGHTS_END.split(reply[-LONGEST:].replace("\r\n", "\n"))[-1])
    marks = list(_MARK.finditer(text))
    found: dict[str, Given] = {}
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=False):
        name = wanted.get(plain_name(mark["name"]))
        if name is None:
            continue
        body = text[mark.end() : end]
        if "{" in mark["before"]:
            body = body.replace("}", "", 1)  # the brace that \textbf{ opened
        # A blank line ends an answer; one before it is room that the reply left.
        paragraph = re.split(r"\n[ \t]*\n", body.strip(), maxsplit=1)[0].strip()
        if paragraph:
            found[name] = Given(paragraph.split("\n", 1)[0].strip(), paragraph)
    return found


def judged(part: Part, given: Given | None) -> tuple[str, Outcome]:
    """The answer that counts, and its outcome: of the line, or of the paragraph where that says more."""
    if given is None:
        return "", Outcome("unread", f"no line begins with {marker(part.name)!r}")
    outcome = part.check(given.line)
    if outcome or given.paragraph == given.line:
        return given.line, outcome
    whole = part.check(given.paragraph)
    # A line cut from its paragraph may be half an answer; a remark below the line may make the paragraph unreadable.
    better = bool(whole) or (outcome.kind in ("unread", "incomplete") and whole.kind != "unread")
    return (given.paragraph, whole) if better else (given.line, outcome)


def label(name: str) -> str:
    """
    >>> label("a"), label("b(i)")
    ('(a)', 'b(i)')
    """
    return f"({name})" if name.isalnum() else name


def marker(name: str) -> str:
    """How a line begins that answers a part.

    >>> marker("a")
    'Answer (a):'
    """
    return f"Answer {label(name)}:"
