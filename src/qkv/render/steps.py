"""A derivation as the blocks that writers show: paragraphs for words, a formula for a short chain, lines for others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..derivation import describe
from ..maths.tree import Relation
from . import document as d
from .layout import boxes, has_matrix, in_columns

WIDEST = 72  # signs of a chain that stands on one line

Shown: TypeAlias = d.Paragraph | d.Formula | d.Lines


def blocks(derivation: d.Derivation) -> list[Shown]:
    """Paragraphs, formulas and lines that show a derivation in every writer.

    >>> from qkv.derivation import chain
    >>> [type(block).__name__ for block in blocks(d.Derivation(chain("the score", "1 + 1", "2", reason="added")))]
    ['Paragraph', 'Formula']
    """
    made: list[Shown] = []
    for block in (each for chain in _chains(derivation) for each in _chain(chain)):
        if made and isinstance(block, d.Lines) and isinstance(made[-1], d.Lines):
            made[-1] = d.Lines((*made[-1].lines, *block.lines))
        else:
            made.append(block)
    return made


def lines(derivation: d.Derivation) -> list[d.Line]:
    """The lines of a derivation, without titles and words."""
    return [line for chain in _chains(derivation) for line in chain.lines]


@dataclass(frozen=True)
class _Chain:
    """The words before a run of lines, and the lines."""

    title: tuple[d.Inline, ...]
    words: tuple[d.Inline, ...]
    lines: tuple[d.Line, ...]


def _chains(derivation: d.Derivation) -> Iterator[_Chain]:
    checks = derivation.checks if derivation.shown else (None,) * len(derivation.steps)
    run, last = _Chain((), (), ()), None
    for (step, before, symbols), check in zip(derivation.readings(), checks, strict=True):
        known = symbols, *derivation.all_symbols()
        title, reason = d.prose(step.title, *known), d.prose(step.reason, *known)
        if not step.text or (not before and (run.lines or title)):
            yield run
            run = _Chain(title, () if step.text else reason, ())
        if not step.text:
            continue
        maths = d.Maths(step.text, symbols, last.shape if before and last is not None else None)
        tree = maths.tree()
        if before and tree is not None and tree == last and not derivation.shown:
            continue  # it repeats the line before
        last = tree
        # What has no decimals was not rounded: 2/√2 stands for itself.
        relation = step.relation.replace("~", "≈" if "." in step.text else "=") if before else ""
        verdict, remark = ("", "") if check is None else describe(check)
        run = replace(run, lines=(*run.lines, d.Line(maths, reason, relation, verdict, remark)))
    yield run


def _chain(chain: _Chain) -> Iterator[Shown]:
    words, lines = chain.words, chain.lines
    if lines and not words and not any(line.verdict for line in lines) and not any(line.reason for line in lines[:-1]):
        # The only reason stands with the title, which leaves the width to the formulas.
        words, lines = d.inlines(lines[-1].reason), (*lines[:-1], replace(lines[-1], reason=""))
    title = [*_sentence(chain.title, "." if words or not lines else ":", "strong")]
    if title or words:
        yield d.Paragraph((*title, *([d.Text(" ")] if title and words else []), *_sentence(words, ".")))
    if lines:
        bare = not any(line.reason or line.verdict for line in lines)
        yield _on_one_line(lines) if bare else d.Lines(lines)


def _on_one_line(lines: Sequence[d.Line]) -> d.Formula | d.Lines:
    """The chain as one formula where it is short enough; written vectors are columns next to matrices."""
    from .to_text import drawn

    nodes = [node for line in lines if (node := line.maths.tree()) is not None]
    if len(nodes) < len(lines) or lines[0].relation:  # a text, or what continues after words
        return d.Lines(tuple(lines))
    if any(map(has_matrix, nodes)):
        nodes = [in_columns(node) for node in nodes]
    whole = Relation((), tuple(nodes), tuple(line.relation for line in lines[1:])) if len(nodes) > 1 else nodes[0]
    if drawn(boxes(whole)).width <= WIDEST:
        return d.Formula(d.Maths(whole))
    shown = zip(lines, nodes, strict=True)
    return d.Lines(tuple(replace(line, maths=d.Maths(node)) for line, node in shown))


def _sentence(words: Sequence[d.Inline], end: str, style: str = "") -> Iterator[d.Inline]:
    """Words with a capital letter and a stop; a name such as q_2 keeps its letter."""
    for place, piece in enumerate(words):
        if not isinstance(piece, d.Text) or piece.style:
            yield piece
            continue
        text = piece.text
        if not place and re.match(r"(a|[a-z]{2,})\b", text):
            text = text[0].upper() + text[1:]
        last = place == len(words) - 1
        yield d.Text(text if not last or text.rstrip().endswith((".", ":", "?", "!")) else text.rstrip() + end, style)
    if words and (not isinstance(words[-1], d.Text) or words[-1].style):
        yield d.Text(end, style)
