"""A document as clean text: what each block is, and where each piece stood in the source."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Span: TypeAlias = tuple[int, int]
BlockKind: TypeAlias = Literal["paragraph", "heading", "code", "table", "formula", "item"]


@dataclass(frozen=True)
class Block:
    """A block of a document: its kind and its span in the text.

    `level` is a heading's (1 to 6) or the depth of a list item (from 0). `label` is the printed label of a list item
    ("1.", "(a)", "-"); the text has it too. `rows` are the cells of a table, the head first.
    """

    kind: BlockKind
    span: Span
    level: int = 0
    label: str = ""
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Edit:
    """One pass of replacements: between two marks the text was moved as it is."""

    new: tuple[int, ...]
    old: tuple[int, ...]

    def back(self, place: int, end: bool = False) -> int:
        """The place before the pass; within a text that was put in, the beginning or the end of what it replaced."""
        at = bisect_right(self.new, place) - 1
        # Marks alternate: kept, replaced, kept, …
        return self.old[at] + place - self.new[at] if at % 2 == 0 else self.old[at + 1] - 1 if end else self.old[at]

    def forth(self, place: int) -> int:
        """The place after the pass."""
        at = bisect_right(self.old, place) - 1
        moved = self.new[at] + place - self.old[at]
        return min(moved, self.new[at + 1]) if at + 1 < len(self.new) else moved


def span_before(edits: Sequence[Edit], span: Span) -> Span:
    """Where a span of a text stood before passes."""
    start, last = span[0], max(span[0], span[1] - 1)
    for edit in reversed(edits):
        start, last = edit.back(start), edit.back(last, end=True)
    return start, max(start, last + 1) if span[1] > span[0] else start


@dataclass
class Draft:
    """A text under cleaning: every pass is remembered, so that places can be mapped back."""

    text: str
    edits: list[Edit] = field(default_factory=list)

    def substitute(self, pattern: re.Pattern[str], new: str | Callable[[re.Match[str]], str | None]) -> None:
        """Replace every match of `pattern`; a function may return None to keep a match."""
        found: list[tuple[int, int, str]] = []
        for match in pattern.finditer(self.text):
            put = match.expand(new) if isinstance(new, str) else new(match)
            if put is None or put == match.group():
                continue
            kept = match.group().rfind(put) if put else -1
            if kept < 0:
                found.append((match.start(), match.end(), put))
            else:  # what stays has its own place: "**words**"
                start = match.start() + kept
                found += [(match.start(), start, ""), (start + len(put), match.end(), "")]
        self.replace(found)

    def replace(self, changes: Iterable[tuple[int, int, str]]) -> None:
        """Replace spans, in order and apart, by texts."""
        pieces: list[str] = []
        new, old = [0], [0]
        done = length = 0
        for start, stop, put in changes:
            if start == stop and not put:
                continue
            pieces += (self.text[done:start], put)
            length += start - done
            new.append(length)
            old.append(start)
            length += len(put)
            new.append(length)
            old.append(stop)
            done = stop
        if len(new) > 1:
            pieces.append(self.text[done:])
            self.text = "".join(pieces)
            self.edits.append(Edit(tuple(new), tuple(old)))


@dataclass(frozen=True)
class Document:
    """A document that was read: `text` is clean, `source` is the text of the file before cleaning.

    In the text, code stands between lines of three backticks, formulas between dollar signs as they were written,
    tables with "|" between cells; marks of headings and of emphasis are gone. `places` are where pages, cells or
    paragraphs of the source begin, with their names.
    """

    name: str
    kind: str
    text: str
    source: str
    blocks: tuple[Block, ...] = ()
    edits: tuple[Edit, ...] = field(default=(), repr=False)
    places: tuple[tuple[int, str], ...] = ()

    def source_span(self, span: Span) -> Span:
        """Where a span of the text stood in the source."""
        return span_before(self.edits, span)

    def place(self, offset: int) -> str:
        """Where an offset of the text is in the source, in words: "page 3", "cell 2" or "line 17"."""
        start = self.source_span((offset, offset + 1))[0]
        at = bisect_right([begin for begin, _ in self.places], start) - 1
        return self.places[at][1] if at >= 0 else f"line {self.source.count(chr(10), 0, start) + 1}"
