"""A document as clean text: what each block is, and where each piece stood in the source."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ..errors import OptionError, complaint
from .patterns import Table

Span: TypeAlias = tuple[int, int]
BlockKind: TypeAlias = Literal["paragraph", "heading", "code", "table", "formula", "item"]
TABLE = Table("qkv.documents", "patterns.toml")
ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii", "xiii", "xiv", "xv", "xvi", "xvii",
         "xviii", "xix", "xx")  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A block of a document: its kind, its span in the text, and the level of a heading (1 to 6)."""

    kind: BlockKind
    span: Span
    level: int = 0


class Draft:
    """A text under cleaning, which knows where each of its characters begins and ends in the source."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.begins = array("q", range(len(text) + 1))
        self.ends = array("q", range(1, len(text) + 1))

    def back(self, span: Span) -> Span:
        """Where a span of the text stood in the source; of a text that was put in, what it replaced."""
        begin = self.begins[span[0]]
        return begin, self.ends[span[1] - 1] if span[1] > span[0] else begin

    def substitute(self, pattern: re.Pattern[str], new: str | Callable[[re.Match[str]], str | None]) -> None:
        """Replace every match of `pattern`; a function may return None to keep a match."""
        changes: list[tuple[int, int, str]] = []
        for match in pattern.finditer(self.text):
            put = new if isinstance(new, str) else new(match)
            kept = match.group().rfind(put) if put else -1
            if kept >= 0 and put:  # what stays has its own place: "**words**"
                start = match.start() + kept
                changes += [(match.start(), start, ""), (start + len(put), match.end(), "")]
            elif put is not None:
                changes.append((*match.span(), put))
        self.replace(changes)

    def replace(self, changes: Iterable[tuple[int, int, str]]) -> None:
        """Replace spans, in order and apart, by texts."""
        pieces: list[str] = []
        begins, ends, done = array("q"), array("q"), 0
        for start, stop, put in [*changes, (len(self.text), len(self.text), "")]:
            begin, end = self.back((start, stop))
            pieces += (self.text[done:start], put)
            begins += self.begins[done:start] + array("q", [begin]) * len(put)
            ends += self.ends[done:start] + array("q", [end]) * len(put)
            done = stop
        begins.append(self.begins[-1])
        self.text, self.begins, self.ends = "".join(pieces), begins, ends


@dataclass(frozen=True)
class Document:
    """A document that was read: `text` is clean, `source` is the text of the file before cleaning.

    In the text, code stands between lines of three backticks, formulas between dollar signs as they were written,
    tables with "|" between cells; marks of headings and of emphasis are gone.
    """

    name: str
    kind: str
    source: str
    draft: Draft = field(repr=False)
    blocks: tuple[Block, ...] = ()

    @property
    def text(self) -> str:
        return self.draft.text

    def source_span(self, span: Span) -> Span:
        """Where a span of the text stood in the source."""
        return self.draft.back(span)


def counted(number: int, kind: str) -> str:
    """A number as a list prints it.

    >>> counted(4, "a"), counted(4, "I"), counted(4, "1")
    ('d', 'IV', '4')
    """
    signs = {"a": "abcdefghijklmnopqrstuvwxyz", "i": ROMAN}.get(kind.lower())
    shown = signs[(number - 1) % len(signs)] if signs else str(number)
    return shown.upper() if kind.isupper() else shown


def unreadable(what: str, expected: str, hint: str = "") -> OptionError:
    """The error of a file that is not read."""
    return OptionError(complaint("file", what, expected, hint))
