"""Typst markup, and PDF through typst. Text is passed as strings, which typst never interprets as markup."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from types import ModuleType

from ..errors import MissingExtra, OptionError, complaint
from . import document as d
from . import layout as b
from .escapes import line
from .escapes import typst as quoted
from .layout import boxes, relation, with_sizes
from .steps import blocks as derivation_blocks
from .to_text import drawn

_START = """\
#set document(title: {title})
#set page(paper: "a4", margin: 2.2cm, numbering: "1")
#set text(font: "Libertinus Serif", size: 10.5pt, lang: "en")
#set par(justify: false)
#set table(stroke: none, inset: (x: 5pt, y: 4pt), align: left + horizon)
#show heading: set block(above: 1.4em, below: 0.8em)
#let proved(it) = text(fill: rgb("#1a6b34"), it)
#let tested(it) = text(fill: rgb("#7a5200"), it)
#let refuted(it) = text(fill: rgb("#b3261e"), weight: "bold", it)
#let soft(it) = text(fill: rgb("#535a63"), size: 0.92em, it)
#let whole(it) = { set par(leading: 0.45em); it }
#let fitted(it) = layout(area => {
  let wide = measure(it).width
  if wide > area.width { scale(100% * (area.width / wide), reflow: true, whole(box(it))) } else { whole(it) }
})
#let aside(colour, it) = block(stroke: (left: 2.5pt + rgb(colour)), inset: (left: 10pt, y: 4pt), width: 100%, it)
#let notes(it) = { set text(size: 0.9em); set par(spacing: 0.6em); it }
#text(size: 1.6em, weight: "bold", {title})
"""
_BREAKS = frozenset("=+−±≤≥≈<>≠")
_EDGES = {"note": "#767d86", "correction": "#7a5200", "refuted": "#b3261e"}
_PLAIN_SIGNS = frozenset("=+−≤≥≠≈·×⊙±∈→<>")
_SHORT = 32  # signs of a formula that leaves the width to reasons
_DELIMITERS = frozenset("()[]|‖")


def markup(document: d.Document) -> str:
    """
    >>> '#"a #b";' in markup(d.Document("Report", (d.Paragraph("a #b"),)))
    True
    """
    start = _START.replace("{title}", quoted(line(document.title)))
    return f"{start}\n{_blocks(document.blocks)}\n"


def pdf(document: d.Document) -> bytes:
    """The document as PDF; the same bytes on every machine, as only typst's fonts and no date are used."""
    return compiled(markup(document), "pdf")


def compiled(source: str, kind: str = "pdf") -> bytes:
    """Compile typst markup; `kind` is "pdf", or "png" for one page."""
    # An empty root folder: no markup can read a file.
    with tempfile.TemporaryDirectory(prefix="qkv-") as nothing:
        made = compiler().compile(
            source.encode(),
            root=nothing,
            format=kind,
            ignore_system_fonts=True,
            timestamp=0,
            package_path=nothing,
            package_cache_path=nothing,
        )
    if not isinstance(made, bytes):
        raise OptionError(complaint("kind", f"{kind} of several pages", "pdf"))
    return made


def figure_pdf(svg: str) -> bytes:
    """A chart as a PDF of the chart's size, for LaTeX."""
    return compiled(f"#set page(width: auto, height: auto, margin: 0pt)\n#{_image(svg)}\n")


def compiler() -> ModuleType:
    try:
        import typst
    except ImportError:
        raise MissingExtra("a PDF", "typst", "pdf") from None
    return typst


def maths(node: b.Box) -> str:
    """The boxes of a formula, between typst's dollars.

    >>> maths(b.Scripts(b.Letter("μ"), b.Word("model"), b.Numeral("2")))
    'attach(μ, b: "model", t: 2)'
    """
    match node:
        case b.Letter(text=text):
            return text if len(text) == 1 and (text.isalnum() or text in "∂∞") else quoted(text)
        case b.Word(text=text):
            return quoted(text)
        case b.Numeral(text=text):
            return text if text.isascii() and text.replace(".", "").isdigit() else quoted(text)
        case b.Sign(text=text):
            return _sign(text)
        case b.Row(parts=parts):
            return " ".join(filter(None, _spread(parts)))
        case b.Scripts(base=base, below=below, above=above):
            lower = f", b: {maths(below)}" if below is not None else ""
            upper = f", t: {maths(above)}" if above is not None else ""
            return f"attach({maths(base)}{lower}{upper})"
        case b.Over(top=top, bottom=bottom):
            return f"frac({maths(top)}, {maths(bottom)})"
        case b.Root(body=body):
            return f"sqrt({maths(body)})"
        case b.Fence(left=left, body=body, right=right):
            return f"lr({_delimiter(left)} {maths(body)} {_delimiter(right)})"
        case b.Big(sign=sign, below=below, above=above):
            upper = f", t: {maths(above)}" if above is not None else ""
            return f"attach({sign}, b: {maths(below)}{upper})"
        case b.Grid(rows=rows):
            inside = "; ".join(", ".join(maths(cell) for cell in row) for row in rows)
            return f"mat(delim: #none, {inside})"
        case b.Under(body=body, label=label):
            return f"attach(limits({maths(body)}), b: {maths(label)})"


def _spread(parts: Iterable[b.Box]) -> Iterable[str]:
    """The name of a function is set as an operator, with space before it."""
    parts = list(parts)
    for place, part in enumerate(parts):
        applied = place + 1 < len(parts) and parts[place + 1] == b.Sign(b.APPLY)
        yield f"op({quoted(part.text)})" if applied and isinstance(part, b.Word) else maths(part)


def _sign(text: str) -> str:
    if text in (b.TIMES, b.APPLY):
        return ""
    if text == ",":
        return "\\,"
    if set(text) == {"′"}:
        return " ".join(["prime"] * len(text))
    if text == "⊤":
        return "top"
    return text if text in _PLAIN_SIGNS else quoted(text)


def _delimiter(text: str) -> str:
    return f"\\{text}" if text in _DELIMITERS else quoted(text)


def _formula(source: d.Maths, shape: str = "${}$") -> str:
    node = source.tree()
    if node is not None and source.labels:
        node = with_sizes(node)
    return shape.format(maths(boxes(node))) if node is not None else f"#raw({quoted(line(source.text()))});"


def _in_cell(source: d.Maths, shape: str = "${}$") -> str:
    """Typst breaks a formula at its outermost signs; one without such signs is scaled down to the column."""
    node = source.tree()
    if node is None:
        return _formula(source)
    box = boxes(with_sizes(node) if source.labels else node)
    parts = box.parts if isinstance(box, b.Row) else ()
    breaks = any(isinstance(part, b.Sign) and part.text in _BREAKS for part in parts)
    return f"#{'whole' if breaks else 'fitted'}[{shape.format(maths(box))}]"


def inline(words: d.Words) -> str:
    return "".join(map(_piece, d.inlines(words)))


def _piece(piece: d.Inline) -> str:
    if isinstance(piece, d.Maths):
        return _formula(piece)
    text = quoted(line(piece.text))
    return {
        "": f"#{text};",
        "strong": f"#strong({text});",
        "emphasis": f"#emph({text});",
        "code": f"#raw({text});",
    }.get(piece.style, f"#{piece.style}({text});")


def _blocks(blocks: Iterable[d.Block]) -> str:
    return "\n\n".join(map(_block, blocks))


def _block(block: d.Block) -> str:
    match block:
        case d.Heading(words=words, level=level):
            return f"#heading(level: {level - 1})[{inline(words)}]"
        case d.Paragraph(words=words):
            return f"#par[{inline(words)}]"
        case d.Formula(more=()):
            return _formula(block.maths, "$ {} $")
        case d.Formula():
            # Boxes in a paragraph, which breaks where the line is full.
            inside = " #h(2em) ".join(f"#box[{_formula(source, '$ {} $')}]" for source in block.all)
            # Rows of tall matrices need more space than lines of text.
            return f"#align(center)[#set par(leading: 1.5em)\n{inside}]"
        case d.Derivation():
            return _blocks(derivation_blocks(block))
        case d.Lines():
            return _lines(block)
        case d.Table():
            return _table(block)
        case d.Figure(svg=svg, caption=caption):
            titled = f", caption: [{inline(caption)}]" if caption else ""
            return f"#figure({_image(svg, 'width: 100%')}{titled})"
        case d.Items(items=items, ordered=ordered):
            return f"#{'enum' if ordered else 'list'}({''.join(f'[{inline(item)}], ' for item in items)})"
        case d.Code(text=text):
            return f"#raw({quoted(text)}, block: true);"
        case d.Note(title=title, blocks=inside, kind=kind):
            return f'#aside("{_EDGES[kind]}")[#strong[{inline(title)}]\n\n{_blocks(inside)}\n]'
        case d.Margin(blocks=inside, notes=notes):
            said = "".join(f"#par[{inline(note)}]\n" for note in notes)
            return f"#grid(columns: (1fr, 5cm), gutter: 14pt, [{_blocks(inside)}], align(bottom)[#notes[{said}]])"
        case d.PageBreak():
            return "#pagebreak(weak: true)"
        case d.BlankLines(lines=lines):
            return f"#v({1.8 * lines:g}em)"


def _image(svg: str, more: str = "") -> str:
    return f'image(bytes({quoted(svg)}), format: "svg"{f", {more}" if more else ""})'


def _lines(block: d.Lines) -> str:
    rows = []
    for step in block.lines:
        if rows and not step.relation:
            rows.append('table.hline(stroke: 0.4pt + rgb("#e3e6ea")),')
        sign = f"${maths(relation(step.relation))}$" if step.relation else ""
        formula, reason = _in_cell(step.maths, "$display({})$"), f"#soft[{inline(step.reason)}]"
        verdict = (
            f"#{step.verdict if step.stands else 'refuted'}({quoted(line(step.verdict))});" if step.verdict else ""
        )
        rows.append(f"[{sign}], [{formula}], [{reason}], [{verdict}],")
        if step.remark:
            rows.append(f"[], table.cell(colspan: 3)[#{quoted(line(step.remark))};],")
    sides = ", ".join(f"{side} + horizon" for side in ("right", "left", "left", "left"))
    # Without reasons the formulas get the width, and where all are short the reasons stand close to them.
    short = all(_is_short(step.maths) for step in block.lines)
    has_reasons = any(step.reason for step in block.lines)
    widths = f"(auto, {'auto' if short else '1.8fr'}, 1fr, auto)" if has_reasons else "(auto, 1fr, auto, auto)"
    return "\n".join((f"#table(columns: {widths}, align: ({sides}),", *rows, ")"))


def _is_short(formula: d.Maths) -> bool:
    node = formula.tree()
    return node is not None and drawn(boxes(node)).width <= _SHORT


def _cell(words: d.Words) -> str:
    """A table cell; a formula alone is set so that it does not overlap other rows."""
    return f"[{_in_cell(words) if isinstance(words, d.Maths) else inline(words)}], "


def _table(table: d.Table) -> str:
    sides = ", ".join("right" if place in table.right else "left" for place in range(len(table.header)))
    head = "".join(f"[#strong[{inline(cell)}]], " for cell in table.header)
    rows = "\n".join("".join(map(_cell, row)) for row in table.rows)
    caption = f"#strong[{inline(table.caption)}]\n\n" if table.caption else ""
    rule = 'table.hline(stroke: 0.6pt + rgb("#767d86")),'
    start = f"#table(columns: {len(table.header)}, align: ({sides},), {rule}\ntable.header({head}), {rule}"
    return f"{caption}{start}\n{rows}\n{rule})"
