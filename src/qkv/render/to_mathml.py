"""MathML Core from a typed tree."""

from __future__ import annotations

from ..figures.svg import escape, tag
from ..maths.tree import Node
from . import boxes as b
from .layout import boxes
from .sized import labelled


def mathml(node: Node, *, block: bool = False, labels: bool = False) -> str:
    """A <math> element; `block` sets it on a line of its own, `labels` sets sizes beneath matrices.

    >>> from qkv.maths.tree import Symbol, Type
    >>> mathml(Symbol((), "mu", Type("scalar")))
    '<math><mi>μ</mi></math>'
    """
    inside = written(boxes(labelled(node) if labels else node))
    return tag("math", inside, display="block") if block else tag("math", inside)


def written(box: b.Box) -> str:
    match box:
        case b.Letter(text=text, upright=upright):
            return tag("mi", escape(text), mathvariant="normal") if upright else tag("mi", escape(text))
        case b.Word(text=text):
            return tag("mi", escape(text))
        case b.Numeral(text=text):
            return tag("mn", escape(text))
        case b.Sign(text=text, place=place):
            return tag("mo", escape(text)) if place == "infix" else tag("mo", escape(text), form=place)
        case b.Row(parts=parts):
            return tag("mrow", *map(written, parts))
        case b.Scripts():
            return _scripts(box)
        case b.Over(top=top, bottom=bottom):
            return tag("mfrac", written(top), written(bottom))
        case b.Root(body=body):
            return tag("msqrt", written(body))
        case b.Fence(left=left, body=body, right=right):
            opening = tag("mo", escape(left), form="prefix", fence="true", stretchy="true")
            closing = tag("mo", escape(right), form="postfix", fence="true", stretchy="true")
            # Only a mathematics font has brackets that grow: a style sheet draws them where it knows the class.
            drawn = {"class": "brackets"} if (left, right) == ("[", "]") and isinstance(body, b.Grid) else {}
            return tag("mrow", opening, written(body), closing, **drawn)
        case b.Big(sign=sign, below=below, above=above):
            name, over = ("munder", "") if above is None else ("munderover", written(above))
            return tag(name, tag("mo", sign, movablelimits="true", largeop="true"), written(below), over)
        case b.Grid(rows=rows):
            return tag("mtable", *(tag("mtr", *(tag("mtd", written(cell)) for cell in row)) for row in rows))
        case b.Under(body=body, label=label):
            return tag("munder", written(body), tag("mstyle", written(label), scriptlevel="1"))


def _scripts(box: b.Scripts) -> str:
    base = written(box.base)
    if box.below is not None and box.above is not None:
        return tag("msubsup", base, written(box.below), written(box.above))
    if box.below is not None:
        return tag("msub", base, written(box.below))
    return tag("msup", base, written(box.above)) if box.above is not None else base
