"""Markdown for GitHub and notebooks, with mathematics between dollars; and Jupyter notebooks."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..figures.theme import standalone
from . import document as d
from .escapes import clean, line, markdown_code
from .escapes import markdown as escape
from .layout import relation
from .steps import blocks as derivation_blocks
from .to_latex import aligned, source


def markdown(document: d.Document, files: Sequence[str] = ()) -> str:
    """`files` are the names of the figures' files, in order; without them the figures are embedded.

    >>> print(markdown(d.Document("Report", (d.Paragraph("2 * 3"),))))
    # Report
    <BLANKLINE>
    2 \\* 3
    <BLANKLINE>
    """
    places = iter(files or [_within(figure.svg) for figure in document.figures()])
    parts = [f"# {escape(document.title)}", *_blocks(document.blocks, places)]
    return "\n\n".join(parts) + "\n"


def inline(words: d.Words) -> str:
    return "".join(map(_piece, d.inlines(words)))


def _within(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(standalone(svg).encode()).decode()}"


def _piece(piece: d.Inline) -> str:
    if isinstance(piece, d.Maths):
        text = source(piece)
        return f"${text}$" if text is not None else markdown_code(piece.text())
    if piece.style == "code":
        return markdown_code(piece.text)
    mark, text = {"strong": "**", "emphasis": "*", "refuted": "**"}.get(piece.style, ""), line(piece.text)
    inside = text.strip()
    if not mark or not inside:
        return escape(text)
    # A mark next to a space is not a mark: spaces at the ends go outside.
    return text.replace(inside, f"{mark}{escape(inside)}{mark}")


def _cell(words: d.Words) -> str:
    """Words in a table cell: bars are escaped, in code too."""
    return re.sub(r"(?<!\\)\|", r"\\|", inline(words))


def _blocks(blocks: Iterable[d.Block], places: Iterable[str]) -> list[str]:
    return [_block(block, places) for block in blocks]


def _block(block: d.Block, places: Iterable[str]) -> str:
    match block:
        case d.Heading(words=words, level=level):
            return f"{'#' * level} {inline(words)}"
        case d.Paragraph(words=words):
            return inline(words)
        case d.Formula():
            sources = [source(maths) for maths in block.all]
            if None in sources:
                return " ".join(map(inline, block.all))
            inside = r" \qquad ".join(filter(None, sources))
            return f"$$\n{inside}\n$$"
        case d.Derivation():
            return "\n\n".join(_blocks(derivation_blocks(block), places))
        case d.Lines(lines=lines) if (chain := aligned(lines)) is not None:
            return f"$$\n{chain}\n$$"
        case d.Lines(lines=lines):
            return _lines(lines)
        case d.Table(header=header, rows=rows, caption=caption, right=right):
            whole = _table([_cell(cell) for cell in header], [[_cell(cell) for cell in row] for row in rows], right)
            return f"**{inline(caption)}**\n\n{whole}" if caption else whole
        case d.Figure(caption=caption):
            return f"![{inline(caption) or 'figure'}]({next(iter(places))})"
        case d.Items(items=items, ordered=ordered):
            return "\n".join(f"{f'{n}.' if ordered else '-'} {inline(item)}" for n, item in enumerate(items, 1))
        case d.Code(text=text, language=language):
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            return f"{fence}{re.sub(r'[^a-z0-9+-]', '', language.lower())}\n{clean(text)}\n{fence}"
        case d.Note(title=title, blocks=inside):
            whole = "\n\n".join([f"**{inline(title).strip()}**", *_blocks(inside, places)])
            return "\n".join(f"> {each}".rstrip() for each in whole.split("\n"))
        case d.Margin(blocks=inside, notes=notes):
            said = "\n>\n".join(f"> {inline(note)}" for note in notes)
            return "\n\n".join([*_blocks(inside, places), *([said] if notes else [])])
        case d.PageBreak():
            return "---"
        case d.BlankLines(lines=lines):
            return "\n".join(["<br>"] * lines)


def _lines(lines: Sequence[d.Line]) -> str:
    """A table of the lines, without empty columns."""
    names, rows = ("", "line", "reason", "verdict"), [_line(each) for each in lines]
    used = [place for place in range(4) if place < 2 or any(row[place] for row in rows)]
    return _table([names[place] for place in used], [[row[place] for place in used] for row in rows])


def _line(step: d.Line) -> list[str]:
    verdict = escape(step.verdict) if step.stands else f"**{escape(step.verdict)}**"
    text = f"{verdict} {escape(step.remark)}".strip()
    return [escape(relation(step.relation).text), _cell(step.maths), _cell(step.reason), text]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset()) -> str:
    rule = ["---:" if place in right else "---" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(line(cell) for cell in row)} |" for row in (header, rule, *rows))


def notebook(document: d.Document) -> str:
    """The text of an .ipynb file, format 4.5; the same document gives the same text.

    >>> json.loads(notebook(d.Document("Report", (d.Code("1 + 1", "python"),))))["cells"][1]["source"]
    ['1 + 1']
    """
    cells = [_notebook_cell(place, kind, text) for place, (kind, text) in enumerate(_notebook_cells(document))]
    language = {"name": "python"}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": language},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _notebook_cells(document: d.Document) -> Iterator[tuple[str, str]]:
    """A cell for each section; Python code at the top level gets its own cells."""
    title: str | None = document.title
    section: list[d.Block] = []
    for block in document.blocks:
        code = isinstance(block, d.Code) and block.language == "python"
        if code or isinstance(block, d.Heading):
            if section or title is not None:
                yield "markdown", _section_markdown(title, section)
            title, section = None, []
        if isinstance(block, d.Code) and code:
            yield "code", clean(block.text)
        elif not isinstance(block, d.PageBreak):
            section.append(block)
    if section or title is not None:
        yield "markdown", _section_markdown(title, section)


def _section_markdown(title: str | None, blocks: Iterable[d.Block]) -> str:

    text = markdown(d.Document(title or "", tuple(blocks))).strip()
    return text if title is not None else text.removeprefix("#").strip()


def _notebook_cell(place: int, kind: str, text: str) -> dict[str, Any]:
    made: dict[str, Any] = {"cell_type": kind, "id": f"cell-{place}", "metadata": {}}
    if kind == "code":
        made |= {"execution_count": None, "outputs": []}
    lines = text.splitlines(keepends=True)
    return {**made, "source": lines}
