"""The document model of reports, sheets and pages, which writers turn into output formats.

Text is unescaped: every writer escapes it for its format. Mathematics is a typed tree, or a text with the symbols to
parse it with; a text that cannot be parsed is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias
from xml.etree import ElementTree

from ..derivation import Derivation
from ..errors import MathsError, OptionError, OptionTypeError, ShapeError, complaint
from ..maths.tree import Node, Relation, Shape, children

STYLES = ("", "strong", "emphasis", "code", "proved", "tested", "refuted")
DEEPEST = 120  # levels of a tree that is drawn; a deeper one is shown as text


@dataclass(frozen=True)
class Text:
    """Words; `style` is one of `STYLES`. In a web page they lead to the heading of the name `leads_to`."""

    text: str
    style: str = ""
    leads_to: str = ""

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            wanted = f"{', '.join(map(repr, STYLES[:-1]))} or {STYLES[-1]!r}"
            raise OptionError(complaint("style", repr(self.style), wanted))


@dataclass(frozen=True)
class Maths:
    """A typed tree, or a text that `qkv.maths` parses with `symbols`; `expected` is the shape of a bare 0, 1 or I.

    With `labels` the sizes of matrices are written below them.
    """

    source: Node | str
    symbols: Mapping[str, str] = field(default_factory=dict, hash=False)
    expected: Shape | None = None
    labels: bool = False

    def tree(self) -> Node | None:
        """The typed tree, or None where the text is shown as it is."""
        node = self.source if isinstance(self.source, Node) else _read(self.source, self.symbols, self.expected)
        return node if node is not None and _shallow(node) else None

    def text(self) -> str:
        """The text that is shown where there is no tree."""
        return self.source if isinstance(self.source, str) else "…"


Inline: TypeAlias = Text | Maths
Words: TypeAlias = str | Inline | Sequence[Inline]


def inlines(words: Words) -> tuple[Inline, ...]:
    """Words as a tuple of pieces.

    >>> [each.text for each in inlines("plain")]
    ['plain']
    """
    if isinstance(words, str):
        return (Text(words),) if words else ()
    return (words,) if isinstance(words, Text | Maths) else tuple(words)


def prose(text: str, *symbols: Mapping[str, str]) -> tuple[Inline, ...]:
    """Words with mathematics between dollar signs and code between backticks; an unpaired sign stays as it is.

    A formula is read with the first of the `symbols` that reads all of it.

    >>> [type(piece).__name__ for piece in prose("the mean is $d$, see `mu`", {"d": "natural"})]
    ['Text', 'Maths', 'Text', 'Text']
    """
    pieces: list[Inline] = []
    done = 0
    # Pandoc's rule: no space inside the dollars and no digit after them, so that prices stay text.
    for found in re.finditer(r"\$(?=\S)([^$\n]*[^$\s])\$(?!\d)|`([^`\n]+)`", text):
        if found.start() > done:
            pieces.append(Text(text[done : found.start()]))
        maths, code = found.groups()
        pieces.append(Text(code, "code") if maths is None else _formula(maths, symbols or ({},)))
        done = found.end()
    if done < len(text):
        pieces.append(Text(text[done:]))
    return tuple(pieces)


def _formula(text: str, symbols: Sequence[Mapping[str, str]]) -> Inline:
    readings = [Maths(text, each) for each in symbols]
    outside = text
    while (shorter := re.sub(r"\{[^{}]*\}", "", outside)) != outside:
        outside = shorter
    # Of s = 2 with an undeclared s only the 2 is read: such a formula is shown as it was written.
    trees = [reading.tree() for reading in readings]
    whole = [tree is not None and ("=" not in outside or isinstance(tree, Relation)) for tree in trees]
    if any(whole):
        return readings[whole.index(True)]
    return readings[0] if trees[0] is None else Text(text, "code")


@dataclass(frozen=True)
class Heading:
    words: Words
    level: int = 2
    name: str = ""

    def __post_init__(self) -> None:
        if not 2 <= self.level <= 4:
            raise OptionError(complaint("level", self.level, "2, 3 or 4 (the title has level 1)"))


@dataclass(frozen=True)
class Paragraph:
    words: Words


@dataclass(frozen=True)
class Formula:
    """Displayed mathematics; `more` formulas are placed next to it where they fit."""

    maths: Maths
    more: tuple[Maths, ...] = ()

    @property
    def all(self) -> tuple[Maths, ...]:
        return (self.maths, *self.more)


@dataclass(frozen=True)
class Line:
    """A line of a derivation as it is shown: `relation` relates it to the line before ("" begins a chain); `verdict`
    is "proved", "tested", another word for a line that does not follow, or ""; `remark` says why it does not."""

    maths: Maths
    reason: Words = ""
    relation: str = "="
    verdict: str = ""
    remark: str = ""

    @property
    def stands(self) -> bool:
        return self.verdict in ("", "proved", "tested")


@dataclass(frozen=True)
class Lines:
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    """A table; the columns in `right` (from 0) are aligned to the right."""

    header: tuple[Words, ...]
    rows: tuple[tuple[Words, ...], ...]
    caption: Words = ""
    right: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ShapeError(complaint("rows", f"{len(row)} cells", f"{len(self.header)}, as the header has"))


@dataclass(frozen=True)
class Figure:
    """A chart of `qkv.figures`: the text of an <svg> element."""

    svg: str
    caption: Words = ""

    def __post_init__(self) -> None:
        try:
            root = ElementTree.fromstring(self.svg).tag
        except ElementTree.ParseError as error:
            raise OptionError(complaint("svg", f"a text that is not XML ({error})", "an <svg> element")) from None
        if root != "{http://www.w3.org/2000/svg}svg" or not self.svg.startswith("<svg"):
            hint = "qkv.figures.chart returns one"
            raise OptionError(complaint("svg", f"a text that starts {self.svg[:20]!r}", "an <svg> element", hint))


@dataclass(frozen=True)
class Items:
    items: tuple[Words, ...]
    ordered: bool = False


@dataclass(frozen=True)
class Code:
    text: str
    language: str = ""


@dataclass(frozen=True)
class Note:
    """A box with a title: `kind` is "note", "correction" or "refuted"."""

    title: Words
    blocks: tuple[Block, ...]
    kind: str = "note"

    def __post_init__(self) -> None:
        if self.kind not in ("note", "correction", "refuted"):
            raise OptionError(complaint("kind", repr(self.kind), "'note', 'correction' or 'refuted'"))
        if any(isinstance(block, Note | PageBreak) for block in self.blocks):
            raise OptionTypeError(complaint("blocks", "a Note or a PageBreak within a Note", "other blocks"))


@dataclass(frozen=True)
class Margin:
    """Blocks with `notes` in the margin next to them; below them where a format has no margin."""

    blocks: tuple[Block, ...]
    notes: tuple[Words, ...] = ()


@dataclass(frozen=True)
class PageBreak:
    pass


@dataclass(frozen=True)
class BlankLines:
    """Empty lines to write on by hand; not shown in a terminal."""

    lines: int

    def __post_init__(self) -> None:
        if not 1 <= self.lines <= 60:
            raise OptionError(complaint("lines", self.lines, "from 1 to 60, a full page"))


Block: TypeAlias = (
    Heading
    | Paragraph
    | Formula
    | Derivation
    | Lines
    | Table
    | Figure
    | Items
    | Code
    | Note
    | Margin
    | PageBreak
    | BlankLines
)


@dataclass(frozen=True)
class Document:
    title: str
    blocks: tuple[Block, ...]

    def figures(self) -> tuple[Figure, ...]:
        """Every figure in reading order, in which writers number their files."""
        return tuple(_figures(self.blocks))


def _figures(blocks: Iterable[Block]) -> Iterable[Figure]:
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Note | Margin):
            yield from _figures(block.blocks)


def _read(text: str, symbols: Mapping[str, str], expected: Shape | None) -> Node | None:
    return _parse_cached(text, tuple(symbols.items()), expected)


# Cached, as a document is written more than once, and a sheet again with its key.
@lru_cache(maxsize=4096)
def _parse_cached(text: str, symbols: tuple[tuple[str, str], ...], expected: Shape | None) -> Node | None:
    from ..maths import parse

    try:
        return parse(text, dict(symbols), expected=expected)
    except (MathsError, OptionError):
        return None


def _shallow(node: Node) -> bool:
    """Whether writers may recurse into the tree; checked level by level, without recursion."""
    level: list[Node] = [node]
    for _ in range(DEEPEST):
        level = [child for each in level for child in children(each)]
        if not level:
            return True
    return False
