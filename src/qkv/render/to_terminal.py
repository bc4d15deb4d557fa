"""A document in a terminal, through rich; mathematics as Unicode text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import document as d
from .escapes import clean, line
from .layout import SIGNS

COLOURS = {"proved": "green", "tested": "yellow", "refuted": "bold red"}
_STYLES = {"": "", "strong": "bold", "emphasis": "italic", "code": "cyan"}


def show(document: d.Document, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.print(Text(line(document.title), style="bold"), highlight=False)
    for block in document.blocks:
        for part in _block(block):
            console.print(part, highlight=False)


def inline(words: d.Words) -> Text:
    """
    >>> inline("[bold]as it is[/]").plain
    '[bold]as it is[/]'
    """
    whole = Text()
    for piece in d.inlines(words):
        if isinstance(piece, d.Maths):
            whole.append(plain(piece))
        else:
            whole.append(line(piece.text), _STYLES[piece.style])
    return whole


def plain(maths: d.Maths) -> str:
    from ..maths.writing import plain as written

    node = maths.tree()
    return line(maths.text()) if node is None else written(node)


def verdict(step: d.Step) -> Text:
    return Text(line(step.verdict), COLOURS[step.verdict if step.stands else "refuted"] if step.verdict else "")


def derivation(block: d.Derivation) -> Table:
    """A line each: the relation, the formula, why, and what became of it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold", ratio=3)
    grid.add_column(overflow="fold", ratio=2)
    grid.add_column(overflow="fold", min_width=8)
    for place, step in enumerate(block.steps):
        if place and not step.relation:
            grid.add_row()
        reason = inline(step.reason)
        reason.stylize("dim")
        sign = SIGNS.get(step.relation, step.relation)
        grid.add_row(Text(line(sign)), inline(step.maths), reason, verdict(step))
        if step.remark:
            grid.add_row("", Text(line(step.remark), COLOURS["refuted"]))
    return grid


def _block(block: d.Block) -> Iterator[RenderableType]:
    match block:
        case d.Heading(words=words):
            heading = inline(words)
            heading.stylize("bold")
            yield ""
            yield heading
        case d.Paragraph(words=words):
            yield inline(words)
        case d.Formula(maths=maths):
            yield Padding(Text(plain(maths)), (0, 0, 0, 4))
        case d.Derivation():
            yield Padding(derivation(block), (0, 0, 0, 2))
        case d.Table():
            yield table(block)
        case d.Figure(caption=caption):
            yield Text.assemble("(figure) ", inline(caption))
        case d.Items(items=items, ordered=ordered):
            yield listed(items, ordered)
        case d.Code(text=text):
            yield Padding(Text(clean(text), "cyan"), (0, 0, 0, 4))
        case d.Note(title=title, blocks=blocks):
            heading = inline(title)
            heading.stylize("bold")
            yield heading
            for inside in blocks:
                for part in _block(inside):
                    yield Padding(part, (0, 0, 0, 2))
        case d.PageBreak():
            yield ""


def listed(items: Iterable[d.Words], ordered: bool = False) -> Table:
    grid = Table.grid(padding=(0, 1))
    for place, item in enumerate(items, 1):
        grid.add_row(f"{place}." if ordered else "-", inline(item))
    return grid


def table(block: d.Table) -> Table:
    made = Table(title=inline(block.caption) if block.caption else None, title_justify="left", box=None, pad_edge=False)
    for place, cell in enumerate(block.header):
        made.add_column(inline(cell), justify="right" if place in block.right else "left", overflow="fold")
    for row in block.rows:
        made.add_row(*map(inline, row))
    return made
