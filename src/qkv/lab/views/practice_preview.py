"""What was typed as an answer, read back as mathematics: a learner sees how it was understood."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import MathsError
from ...maths import parse
from ...maths.reading import tokens
from ...maths.substitution import free_indices
from ...maths.tree import Shape
from ...maths.types import declare
from ...maths.verdict import meant
from ...problems import Outcome, Part, Problem
from ...problems.discreet import told_less
from ...problems.judging.answers import Value, Values
from ...problems.printing.documents import spoken
from ...render import document as d
from ...render.to_text import plain, pretty

MOST_LINES = 40  # of an answer that are read back
_FORMULA = re.compile(r"[\\^_=+*/]|O\(|\d")  # what words do not have


@dataclass(frozen=True)
class Preview:
    """`kind`: "nothing", "formula", "words" or "unread".

    `reason` says why an answer does not fit the question's symbols; it is drawn all the same where it can be.
    """

    kind: str
    blocks: tuple[d.Block, ...] = ()
    reason: str = ""

    @property
    def text(self) -> str:
        """What was read, on lines of Unicode."""
        return "\n".join(_said(words) for block in self.blocks for words in _words(block))


def preview(problem: Problem, part: Part, answer: str, outcome: Outcome | None) -> Preview:
    """The formula that was judged, where one was; else the answer with its formulas."""
    if outcome is None:
        return Preview("nothing")
    if isinstance(part.answer, Value) and outcome.verdict is not None:
        return _formula(part.answer, outcome.verdict.answer)
    if isinstance(part.answer, Values):
        return _pieces(part.answer, answer, outcome)
    symbols = {**problem.symbols, **part.symbols, **getattr(part.answer, "symbols", {})}
    lines = [_line(line, symbols) for line in answer.splitlines()[:MOST_LINES] if line.strip()]
    drawn = any(isinstance(piece, d.Maths) and piece.tree() is not None for line in lines for piece in line)
    return Preview("formula" if drawn else "words", tuple(map(d.Paragraph, lines)))


def _formula(value: Value, judged: str) -> Preview:
    found = _read(judged, value)
    if isinstance(found, d.Maths):
        return Preview("formula", (d.Formula(found),))
    loosely = spoken(f"${judged.strip()}$", value.symbols)
    if len(loosely) == 1 and isinstance(loosely[0], d.Maths) and loosely[0].tree() is not None:
        if _alike(judged.strip(), value.symbols, loosely[0].symbols):
            return Preview("formula", (d.Formula(loosely[0]),), found)
        return Preview("words", (d.Paragraph((d.Text(judged.strip(), "code"),)),), found)
    return Preview("unread", reason=found)


def _alike(text: str, symbols: Mapping[str, str], loose: Mapping[str, str]) -> bool:
    """Whether a text that was drawn with every letter as a number has the signs that were judged.

    The transpose of a number is not drawn, and a^Ta has another power where T is a name.
    """
    try:
        judged, drawn = (tokens(text, types.types, types.maps) for types in map(declare, (symbols, loose)))
    except MathsError:
        return False
    turned = any(token.type == "TOP" or token == "T" for token in judged)
    return not turned and list(map(str, judged)) == list(map(str, drawn))


def _pieces(values: Values, answer: str, outcome: Outcome) -> Preview:
    lines: list[d.Block] = []
    drawn = False
    for name, text in values.read(answer).items():
        value, item = values.items[name], outcome.items.get(name)
        judged = text if item is None or item.verdict is None else item.verdict.answer
        found = _read(judged, value) if isinstance(value, Value) else text
        drawn = drawn or isinstance(found, d.Maths)
        said = found if isinstance(found, d.Maths) else d.Text(text.strip(), "code")
        lines.append(d.Paragraph((d.Text(f"{pretty(name)} = "), said)))
    if not lines:
        return Preview("unread", reason=f"no piece could be found; write {', '.join(values.items)} each with its value")
    return Preview("formula" if drawn else "words", tuple(lines[:MOST_LINES]))


def _read(text: str, value: Value) -> d.Maths | str:
    """A formula as it is compared with the right one, or why it cannot be."""
    shape, free = _wanted(value)
    try:
        formula = d.Maths(parse(text, value.symbols, expected=shape, free=free))
    except MathsError as error:
        return told_less(error.reason)
    return formula if formula.tree() is not None else "it is too deep to be drawn"


def _wanted(value: Value) -> tuple[Shape | None, tuple[str, ...]]:
    try:
        gold = parse(value.gold, value.symbols)
    except MathsError:
        return None, ()
    wanted = meant(gold)
    return wanted.shape, tuple(free_indices(wanted))


def _line(line: str, symbols: dict[str, str]) -> tuple[d.Inline, ...]:
    whole = d.Maths(line.strip().strip("$").strip(), symbols)
    if "$" not in line.strip().strip("$") and _FORMULA.search(line) and whole.tree() is not None:
        return (whole,)
    return spoken(line, symbols)


def _words(block: d.Block) -> tuple[d.Words, ...]:
    if isinstance(block, d.Formula):
        return block.all
    return (block.words,) if isinstance(block, d.Paragraph) else ()


def _said(words: d.Words) -> str:
    pieces = d.inlines(words)
    return "".join(pretty(plain(piece)) if isinstance(piece, d.Maths) else piece.text for piece in pieces)
