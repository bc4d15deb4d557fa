"""Parts of a text as messages show them: in Unicode, whatever they were typed in, and before all sizes are known."""

from __future__ import annotations

from qkv.maths.in_latex import ATOM, RAISED_UP
from qkv.maths.in_unicode import Plain
from qkv.maths.text.shaping import Unknown, depth, known
from qkv.maths.tree import Node, Size, Special, Sum

LONGEST = 80
_DEEPEST = 40


class _Said(Plain):
    """A size that nothing has said yet is left out."""

    def size(self, size: Size) -> str:
        return super().size(known(size))

    def _special(self, node: Special) -> tuple[str, int]:
        shape = tuple(known(size) for size in node.shape)
        if any(isinstance(size, Unknown) for size in shape):
            return self.special(node.name), RAISED_UP
        return super()._special(Special(shape, node.name))

    def _sum(self, node: Sum) -> tuple[str, int]:
        if not any(isinstance(known(index.size), Unknown) for index in node.indices):
            return super()._sum(node)
        named = ", ".join(self.name(index.name) for index in node.indices)
        pairs = ", ".join(f"{self.at(a, 0)} {self.signs[op]} {self.at(b, 0)}" for op, a, b in node.conditions)
        return f"{self.big[node.product]}{self.lower(pairs or named)} {self.at(node.body, 1)}", 1


def named(name: str) -> str:
    """A name as people write it.

    >>> named("mu_q"), named("d_model")
    ('μ_q', 'd_model')
    """
    return Plain().name(name)


def said(node: Node) -> str:
    """All of a tree, to be typed in again; "" where it is too deep to be worth it."""
    return "" if depth(node, _DEEPEST) > _DEEPEST else _Said().whole(node)


def raised(base: Node, exponent: Node) -> str:
    """base^exponent, also where that makes no sense."""
    if max(depth(base, _DEEPEST), depth(exponent, _DEEPEST)) > _DEEPEST:
        return ""
    above = said(exponent)
    return f"{_Said().at(base, ATOM)}^{above if len(above) == 1 else f'{{{above}}}'}"


def beside(left: Node, right: Node) -> str:
    """left and right next to each other, also where they have no product."""
    if max(depth(left, _DEEPEST), depth(right, _DEEPEST)) > _DEEPEST:
        return ""
    writer = _Said()
    return writer.beside(writer.left(left), writer.at(right, RAISED_UP))


def several(count: int | str, what: str) -> str:
    """How many there are of something, of which one has no s.

    >>> several(1, "argument"), several("d", "component")
    ('1 argument', 'd components')
    """
    return f"{count} {what}" if str(count) == "1" else f"{count} {what}s"


def shortened(text: str) -> str:
    """Cut to what a sentence can hold."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"
