"""A document in a terminal, through rich; mathematics as Unicode text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import document as d
from .escapes import clean, line
from .layout import Box, Row, Word, boxes, relation, with_sizes
from .steps import blocks as derivation_blocks
from .to_text import has_grid, plain, pretty, side_by_side

COLOURS = {"proved": "green", "tested": "yellow", "refuted": "bold red"}
_NOTES = {"note": "bold green", "correction": "bold yellow", "refuted": "bold red"}
_STYLES = {"": "", "strong": "bold", "emphasis": "italic", "code": "cyan", **COLOURS}


def show(document: d.Document, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    if document.title:
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


def _inline(words: d.Words) -> Text:
    """The same with Unicode subscripts."""
    return Text.assemble(
        *(pretty(plain(piece)) if isinstance(piece, d.Maths) else inline(piece) for piece in d.inlines(words))
    )


class Drawn:
    """Formulas with matrices, over several lines and next to each other; a chain that is too wide continues below.

    What cannot be broken is `plain` text where the screen is too narrow for its drawing.
    """

    def __init__(self, formulas: Sequence[Box], plain: str) -> None:
        self.formulas, self.plain = formulas, plain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawings = list(side_by_side(self.formulas, options.max_width))
        if any(each.width > options.max_width for each in drawings):
            yield Text(self.plain)
            return
        for place, each in enumerate(drawings):
            for text in ("", *each.lines) if place and not each.flat else each.lines:
                yield Text(text.rstrip(), no_wrap=True, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = max(each.width for each in side_by_side(self.formulas, options.max_width))
        return Measurement(1, min(options.max_width, max(widest, 1)))


def formula(*formulas: d.Maths, displayed: bool = False) -> RenderableType:
    """Matrices are drawn over several lines; other formulas are one line, unless `displayed`."""
    trees = [(maths, maths.tree()) for maths in formulas]
    drawings = [boxes(with_sizes(node) if maths.labels else node) for maths, node in trees if node is not None]
    text = "    ".join(map(plain, formulas))
    if len(drawings) < len(formulas):
        return Text(text)
    return Drawn(drawings, text) if displayed or any(map(has_grid, drawings)) else Text(text)


def verdict(step: d.Line) -> Text:
    return Text(line(step.verdict), COLOURS[step.verdict if step.stands else "refuted"] if step.verdict else "")


def lines(block: d.Lines) -> RenderableType:
    """A row for each line: the relation, the formula, the reason and the verdict."""
    if not any(step.reason or step.verdict or step.remark for step in block.lines):
        return Group(*map(_link, block.lines))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold", ratio=3)
    grid.add_column(overflow="fold", ratio=2)
    grid.add_column(overflow="fold", min_width=8)
    for place, step in enumerate(block.lines):
        if place and not step.relation:
            grid.add_row()
        reason = inline(step.reason)
        reason.stylize("dim")
        grid.add_row(Text(line(relation(step.relation).text)), formula(step.maths), reason, verdict(step))
        if step.remark:
            grid.add_row("", Text(line(step.remark), COLOURS["refuted"]))
    return grid


def _link(step: d.Line) -> RenderableType:
    """A line without a reason and a verdict: the relation before the drawing, aligned with its base."""
    sign = f"{line(relation(step.relation).text):1} "
    node = step.maths.tree()
    text = f"{sign}{plain(step.maths)}"
    if node is None:
        return Text(text)
    box = boxes(with_sizes(node) if step.maths.labels else node)
    return Drawn([Row((Word(sign), box))], text)


def _block(block: d.Block) -> Iterator[RenderableType]:
    match block:
        case d.Heading(words=words, level=level):
            heading = _inline(words)
            heading.stylize("bold" if level > 2 else "bold underline")
            yield ""
            yield heading
        case d.Paragraph(words=words):
            yield _inline(words)
        case d.Formula():
            yield Padding(formula(*block.all, displayed=True), (0, 0, 1, 4), expand=False)
        case d.Derivation():
            for inside in derivation_blocks(block):
                yield from _block(inside)
        case d.Lines():
            reasons = any(step.reason for step in block.lines)
            yield Padding(lines(block), (0, 0, 0 if reasons else 1, 2))
        case d.Table():
            yield table(block)
        case d.Figure(caption=caption):
            yield Text.assemble("(figure) ", _inline(caption))
        case d.Items(items=items, ordered=ordered):
            yield listed(items, ordered)
        case d.Code(text=text):
            yield Padding(Text(clean(text), "cyan"), (0, 0, 0, 4))
        case d.Note(title=title, blocks=blocks, kind=kind):
            heading = _inline(title)
            heading.stylize(_NOTES[kind])
            yield heading
            for inside in blocks:
                for part in _block(inside):
                    yield Padding(part, (0, 0, 0, 2))
        case d.Margin(blocks=blocks, notes=notes):
            for inside in blocks:
                yield from _block(inside)
            for note in notes:
                yield Padding(_inline(note), (0, 0, 0, 4))
        case d.PageBreak() | d.BlankLines():
            yield ""


def listed(items: Iterable[d.Words], ordered: bool = False) -> Table:
    grid = Table.grid(padding=(0, 1))
    for place, item in enumerate(items, 1):
        grid.add_row(f"{place}." if ordered else "-", _inline(item))
    return grid


def table(block: d.Table) -> Table:
    made = Table(
        title=_inline(block.caption) if block.caption else None, title_justify="left", box=None, pad_edge=False
    )
    for place, cell in enumerate(block.header):
        made.add_column(_inline(cell), justify="right" if place in block.right else "left", overflow="fold")
    for row in block.rows:
        made.add_row(*map(_inline, row))
    return made
