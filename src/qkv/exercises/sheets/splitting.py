"""Split a document into questions, their parts and their options."""

from __future__ import annotations

from dataclasses import dataclass

from ...documents import Document
from ..record import Span


@dataclass(frozen=True)
class Choice:
    """One option of a question: its label ("A", or its number where none is printed) and its text."""

    label: str
    text: str
    span: Span


@dataclass(frozen=True)
class Question:
    """A question or a part of one, as printed.

    `label` is the whole label: "13.4", "A(b)", "6(b)(ii)", "Test 2", or "" for a text without labels. `title` is its
    heading, if it has one. `text` is what the question itself says: without its label, its parts and its options, but
    with what follows the parts. `pieces` are the spans of the document that `text` joins with blank lines. `context`
    is what it may refer to: set-ups, tables and listings before it, and for a part also the text of its question.
    `span` is the whole question in the document, with label and parts.
    """

    label: str
    text: str
    span: Span
    title: str = ""
    context: str = ""
    parts: tuple[Question, ...] = ()
    options: tuple[Choice, ...] = ()
    pieces: tuple[Span, ...] = ()

    def locate(self, span: Span) -> Span:
        """A span of `text` as a span of the document."""
        start = 0
        for begin, end in self.pieces:
            if span[0] < start + end - begin:
                return begin + span[0] - start, min(begin + span[1] - start, end)
            start += end - begin + 2
        return self.span

    def leaves(self) -> list[Question]:
        """The parts that have no parts, in order; the question itself if it has none."""
        return [leaf for part in self.parts for leaf in part.leaves()] or [self]


def split(document: Document) -> list[Question]:
    """The questions of a document, in order; a text without labels is one question with the label ""."""
    raise NotImplementedError
