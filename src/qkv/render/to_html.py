"""A document as one HTML file with MathML, light and dark, for screen and print, without scripts or external files;
and single formulas as MathML."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable

from ..figures.svg import escape as escape_markup
from ..figures.svg import tag
from ..figures.theme import DARK_INK, DARK_PAPER, DARK_RULE, DARK_SOFT, FONT, INK, PAPER, RULE, SOFT, STYLE
from ..maths.tree import Node
from ..notebook import framed
from . import document as d
from . import layout as b
from .escapes import clean
from .layout import boxes, relation, with_sizes
from .steps import blocks as derivation_blocks

_GREEN, _AMBER, _RED = "#1a6b34", "#7a5200", "#b3261e"
_DARK_GREEN, _DARK_AMBER, _DARK_RED = "#7ddc98", "#f2c063", "#ff9d94"
_PAGE = (
    f":root{{color-scheme:light dark}}body{{margin:2rem auto;padding:0 1rem;max-width:60rem;font-family:{FONT};"
    f"line-height:1.5;color:{INK};background:{PAPER}}}"
    "math{font-family:math;font-size:1.08em}h1,h2,h3,h4{line-height:1.25}h2{margin-top:2.5rem}"
    ".scroll{overflow:auto hidden;margin:0 0 1.5rem;padding:.2rem 0}"
    "figure svg{display:block;max-width:100%;height:auto}"
    "figure .qkv-wide{min-width:34rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "caption,figcaption{text-align:left;font-weight:bold;padding:.25rem 0}"
    f"th,td{{padding:.3rem .9rem .3rem 0;text-align:left;vertical-align:baseline;border-bottom:1px solid {RULE}}}"
    ".number{text-align:right}td.number{white-space:nowrap}.derivation td{border-bottom:0}"
    ".derivation .relation{text-align:right;padding-right:.5rem}"
    f".derivation .first:not(:first-child) td{{padding-top:.9rem}}.reason{{color:{SOFT}}}"
    ".heard{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}"
    "pre{overflow-x:auto}code,pre{font-family:ui-monospace,monospace;font-size:.95em;overflow-wrap:anywhere}"
    f"aside{{border-left:.25rem solid {RULE};padding:.1rem 0 .1rem 1rem;margin:0 0 1.5rem}}"
    "aside .title{font-weight:bold}"
    "@media(min-width:48rem){td:first-child>a{white-space:nowrap}}"
    f".margin+h4{{border-top:1px solid {RULE};padding-top:.8rem}}"
    ".margin{display:grid;grid-template-columns:minmax(0,1fr) 17rem;gap:0 1.5rem}.margin p{white-space:pre-line}"
    f".margin p,.margin ul,.margin ol{{margin:.3rem 0 .7rem}}.notes:not(:empty){{border-left:.2rem solid {RULE};"
    "padding-left:.7rem;font-size:.92em;align-self:end}"
    "@media screen and (max-width:48rem){table{font-size:.92em}th,td{padding-right:.4rem}"
    ".margin{grid-template-columns:minmax(0,1fr)}"
    ".notes:not(:empty){margin:0 0 .9rem .5rem}}"
    f".proved{{color:{_GREEN}}}.tested{{color:{_AMBER}}}.refuted{{color:{_RED};font-weight:bold}}"
    f"aside.refuted{{color:inherit;font-weight:inherit;border-color:{_RED}}}aside.correction{{border-color:{_AMBER}}}"
    f"@media screen and (prefers-color-scheme:dark){{body{{color:{DARK_INK};background:{DARK_PAPER}}}"
    f"th,td{{border-color:{DARK_RULE}}}.reason{{color:{DARK_SOFT}}}.proved{{color:{_DARK_GREEN}}}"
    f".tested{{color:{_DARK_AMBER}}}.refuted{{color:{_DARK_RED}}}aside.refuted{{color:inherit;border-color:{_DARK_RED}}}"
    f"aside.correction{{border-color:{_DARK_AMBER}}}}}"
    ".formulas{display:flex;flex-wrap:wrap;gap:.5rem 2.5rem;justify-content:center}"
    # Drawn brackets are as high as the matrix without a mathematics font; screen readers still get the signs.
    ".brackets>mo{font-size:0}.brackets>mtable{border:0 solid;border-width:0 .09em;padding:0 .25em;margin:0 .15em;"
    "background:linear-gradient(currentColor,currentColor) 0 0/.35em .09em no-repeat,"
    "linear-gradient(currentColor,currentColor) 100% 0/.35em .09em no-repeat,"
    "linear-gradient(currentColor,currentColor) 0 100%/.35em .09em no-repeat,"
    "linear-gradient(currentColor,currentColor) 100% 100%/.35em .09em no-repeat}"
    ".break{break-after:page}.blank{height:1.6rem}"
    "@media print{body{margin:0;max-width:none}.scroll{overflow:visible}figure .qkv-wide{min-width:0}"
    "figure,tr,aside{break-inside:avoid}h1,h2,h3,h4{break-after:avoid}h1{font-size:1.4rem}h2{margin-top:1.2rem}}"
)


def html(document: d.Document) -> str:
    """
    >>> html(d.Document("Report", (d.Paragraph("a < b"),))).startswith("<!doctype html>")
    True
    """
    style = STYLE + _PAGE
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    # Only this style sheet is allowed: content of the page cannot load or run anything.
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(document.title)}</title><style>{style}</style>"
    )
    body = tag("main", tag("h1", escape(document.title)), "\n", _Blocks().written(document.blocks))
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def fragment(blocks: Iterable[d.Block]) -> str:
    """Blocks for a page with its own head and style.

    >>> fragment([d.Paragraph("a < b")])
    '<p>a &lt; b</p>'
    """
    return _Blocks().written(blocks)


def html_of(*blocks: d.Block) -> str:
    """Blocks for a notebook, which brings its own style.

    >>> html_of(d.Paragraph("a < b"))[-21:]
    '<p>a &lt; b</p></div>'
    """
    return framed(fragment(blocks))


def escape(text: str) -> str:
    return escape_markup(clean(text))


def inline(words: d.Words) -> str:
    return "".join(map(_piece, d.inlines(words)))


def _piece(piece: d.Inline) -> str:
    if isinstance(piece, d.Maths):
        node = piece.tree()
        return mathml(node, labels=piece.labels) if node is not None else tag("code", escape(piece.text()))
    names = {"strong": "strong", "emphasis": "em", "code": "code"}
    words = escape(piece.text)
    if piece.style:
        name = names.get(piece.style)
        words = tag(name, words) if name else tag("span", words, class_=piece.style)
    return tag("a", words, href=f"#{piece.leads_to}") if piece.leads_to else words


def _formula(maths: d.Maths) -> str:
    node = maths.tree()
    if node is None:
        return tag("p", tag("code", escape(maths.text())))
    return mathml(node, block=True, labels=maths.labels)


class _Blocks:
    """Writes blocks, and numbers figures so that their ids differ."""

    def __init__(self) -> None:
        self.figures = 0

    def written(self, blocks: Iterable[d.Block]) -> str:
        return "\n".join(map(self._block, blocks))

    def _block(self, block: d.Block) -> str:
        match block:
            case d.Heading(words=words, level=level, name=name):
                return tag(f"h{level}", inline(words), **({"id": name} if name else {}))
            case d.Paragraph(words=words):
                return tag("p", inline(words))
            case d.Formula(more=()):
                return tag("div", _formula(block.maths), class_="scroll")
            case d.Formula():
                return tag("div", *map(_formula, block.all), class_="scroll formulas")
            case d.Derivation():
                return self.written(derivation_blocks(block))
            case d.Lines():
                return _lines(block)
            case d.Table():
                return _table(block)
            case d.Figure():
                return self._figure(block)
            case d.Items(items=items, ordered=ordered):
                return tag("ol" if ordered else "ul", *(tag("li", inline(item)) for item in items), "")
            case d.Code(text=text):
                return tag("pre", tag("code", escape(text)))
            case d.Note(title=title, blocks=inside, kind=kind):
                return tag("aside", tag("p", inline(title), class_="title"), self.written(inside), class_=kind)
            case d.Margin(blocks=inside, notes=notes):
                said = tag("div", *(tag("p", inline(note)) for note in notes), "", class_="notes")
                return tag("div", tag("div", self.written(inside)), said, class_="margin")
            case d.PageBreak():
                return '<div class="break"></div>'
            case d.BlankLines(lines=lines):
                return '<div class="blank"></div>' * lines

    def _figure(self, figure: d.Figure) -> str:
        self.figures += 1
        drawn = figure.svg
        if named := re.search(r'aria-labelledby="(qkv-[0-9a-f]+)-title', drawn):
            drawn = drawn.replace(named[1], f"{named[1]}-{self.figures}")
        caption = tag("figcaption", inline(figure.caption)) if figure.caption else ""
        label = f"Figure {self.figures}"
        return tag("figure", drawn, caption, class_="scroll", tabindex="0", aria_label=label)


def _lines(block: d.Lines) -> str:
    rows = []
    # Empty columns are left out.
    reasons, verdicts = any(step.reason for step in block.lines), any(step.verdict for step in block.lines)
    for step in block.lines:
        sign = tag("math", box_mathml(relation(step.relation))) if step.relation else ""
        cells = [tag("td", sign, class_="relation"), tag("td", inline(step.maths))]
        if reasons:
            cells.append(tag("td", inline(step.reason), class_="reason"))
        if verdicts:
            cells.append(tag("td", _verdict(step)))
        rows.append(tag("tr", *cells) if step.relation else tag("tr", *cells, class_="first"))
        if step.remark:
            rows.append(tag("tr", "<td></td>", tag("td", escape(step.remark), colspan=str(1 + reasons + verdicts))))
    names = ["relation", "line", *["reason"] * reasons, *["verdict"] * verdicts]
    header = "".join(tag("th", name, scope="col") for name in names)
    # For screen readers only.
    head = tag("thead", tag("tr", header), class_="heard")
    whole = tag("table", head, tag("tbody", *rows, ""), class_="derivation")
    return tag("div", whole, class_="scroll", tabindex="0", role="group", aria_label="Derivation")


def _verdict(step: d.Line) -> str:
    if not step.verdict:
        return ""
    kind = step.verdict if step.stands else "refuted"
    return tag("span", escape(step.verdict), class_=kind)


def _table(table: d.Table) -> str:
    def cells(name: str, row: Iterable[d.Words], **more: str) -> str:
        made = (
            tag(name, inline(cell), **more, **({"class_": "number"} if place in table.right else {}))
            for place, cell in enumerate(row)
        )
        return tag("tr", *made)

    caption = tag("caption", inline(table.caption)) if table.caption else ""
    head = tag("thead", cells("th", table.header, scope="col"))
    whole = tag("table", caption, head, tag("tbody", *(cells("td", row) for row in table.rows), ""))
    return tag("div", whole, class_="scroll", tabindex="0", role="group", aria_label="Table")


def mathml(node: Node, *, block: bool = False, labels: bool = False) -> str:
    """A <math> element; `block` displays it on its own line, `labels` writes sizes below matrices.

    >>> from qkv.maths.tree import Symbol, Type
    >>> mathml(Symbol((), "mu", Type("scalar")))
    '<math><mi>μ</mi></math>'
    """
    inside = box_mathml(boxes(with_sizes(node) if labels else node))
    return tag("math", inside, display="block") if block else tag("math", inside)


def box_mathml(box: b.Box) -> str:
    match box:
        case b.Letter(text=text, upright=upright):
            return tag("mi", escape_markup(text), mathvariant="normal") if upright else tag("mi", escape_markup(text))
        case b.Word(text=text):
            return tag("mi", escape_markup(text))
        case b.Numeral(text=text):
            return tag("mn", escape_markup(text))
        case b.Sign(text=text, place=place):
            return tag("mo", escape_markup(text)) if place == "infix" else tag("mo", escape_markup(text), form=place)
        case b.Row(parts=parts):
            return tag("mrow", *map(box_mathml, parts))
        case b.Scripts():
            return _scripts_mathml(box)
        case b.Over(top=top, bottom=bottom):
            return tag("mfrac", box_mathml(top), box_mathml(bottom))
        case b.Root(body=body):
            return tag("msqrt", box_mathml(body))
        case b.Fence(left=left, body=body, right=right):
            opening = tag("mo", escape_markup(left), form="prefix", fence="true", stretchy="true")
            closing = tag("mo", escape_markup(right), form="postfix", fence="true", stretchy="true")
            # Only a mathematics font has growing brackets: the style sheet draws those of this class.
            drawn = {"class": "brackets"} if (left, right) == ("[", "]") and isinstance(body, b.Grid) else {}
            return tag("mrow", opening, box_mathml(body), closing, **drawn)
        case b.Big(sign=sign, below=below, above=above):
            name, over = ("munder", "") if above is None else ("munderover", box_mathml(above))
            return tag(name, tag("mo", sign, movablelimits="true", largeop="true"), box_mathml(below), over)
        case b.Grid(rows=rows):
            return tag("mtable", *(tag("mtr", *(tag("mtd", box_mathml(cell)) for cell in row)) for row in rows))
        case b.Under(body=body, label=label):
            return tag("munder", box_mathml(body), tag("mstyle", box_mathml(label), scriptlevel="1"))


def _scripts_mathml(box: b.Scripts) -> str:
    base = box_mathml(box.base)
    if box.below is not None and box.above is not None:
        return tag("msubsup", base, box_mathml(box.below), box_mathml(box.above))
    if box.below is not None:
        return tag("msub", base, box_mathml(box.below))
    return tag("msup", base, box_mathml(box.above)) if box.above is not None else base
