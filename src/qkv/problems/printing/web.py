"""Questions as HTML fragments with LaTeX between \\( and \\), which is what learning platforms show with MathJax."""

from __future__ import annotations

from collections.abc import Iterable

from ...figures.svg import tag
from ...render import document as d
from ...render.steps import blocks as derivation_blocks
from ...render.to_html import escape


def fragment(blocks: Iterable[d.Block]) -> str:
    """
    >>> fragment([d.Paragraph(d.prose("the mean is $d$, not < it", {"d": "natural"}))])
    '<p>the mean is \\\\(d\\\\), not &lt; it</p>'
    """
    return "\n".join(filter(None, map(_block, blocks)))


def inline(words: d.Words) -> str:
    return "".join(map(_piece, d.inlines(words)))


def _latex(maths: d.Maths) -> str | None:
    from ...render.layout import latex_source

    node = maths.tree()
    return None if node is None else escape(latex_source(node, maths.labels))


def _piece(piece: d.Inline) -> str:
    if isinstance(piece, d.Maths):
        source = _latex(piece)
        return rf"\({source}\)" if source is not None else tag("code", escape(piece.text()))
    # A text that holds MathJax's own marks is shown and not set.
    text = escape(piece.text).replace("\\(", "\\&#8288;(").replace("\\[", "\\&#8288;[").replace("$$", "$&#8288;$")
    names = {"strong": "strong", "emphasis": "em", "code": "code"}
    return tag(names[piece.style], text) if piece.style else text


def _block(block: d.Block) -> str:
    match block:
        case d.Heading(words=words):
            return tag("h4", inline(words))
        case d.Paragraph(words=words):
            return tag("p", inline(words))
        case d.Formula(maths=maths, more=()) if (source := _latex(maths)) is not None:
            return tag("p", rf"\[{source}\]")
        case d.Formula():
            return tag("p", ", ".join(map(_piece, block.all)))
        case d.Lines(lines=steps):
            lines = (f"{escape(step.relation)} {inline(step.maths)} {inline(step.reason)}".strip() for step in steps)
            return tag("p", "<br/>".join(lines))
        case d.Derivation():
            return fragment(derivation_blocks(block))
        case d.Items(items=items, ordered=ordered):
            return tag("ol" if ordered else "ul", *(tag("li", inline(item)) for item in items), "")
        case d.Table(header=header, rows=rows):
            head = tag("tr", *(tag("th", inline(cell)) for cell in header))
            body = (tag("tr", *(tag("td", inline(cell)) for cell in row)) for row in rows)
            return tag("table", head, *body)
        case d.Code(text=text):
            return tag("pre", escape(text))
        case d.Note(title=title, blocks=inside):
            return tag("div", tag("p", tag("strong", inline(title))), fragment(inside))
        case d.Figure(caption=caption):
            return tag("p", inline(caption))
        case d.PageBreak() | d.BlankLines():
            return ""
