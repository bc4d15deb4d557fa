"""What a lecturer adds to a formula: sizes beneath matrices, and vectors as columns beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..maths import tree as t
from ..maths.in_latex import ATOM, SUM, Latex
from ..maths.substitution import rebuilt


@dataclass(frozen=True)
class Sized(t.Node):
    """A matrix with its size written beneath it; for writers alone, nothing reads it."""

    body: t.Node


def labelled(node: t.Node) -> t.Node:
    """The tree with the size beneath every matrix that stands in a product, a sum or a chain.

    >>> from qkv.maths import parse
    >>> labelled(parse("X W", {"X": "matrix[3,2]", "W": "matrix[2,5]"})).right.shape
    (2, 5)
    """
    if isinstance(node, t.Relation):
        return _labelled_chain(node)
    whole = node.body if isinstance(node, t.Transpose) else node
    if isinstance(whole, t.Symbol | t.Written) and len(whole.shape) == 2 and 1 not in whole.shape:
        return Sized(node.shape, node)
    if isinstance(node, t.Contract | t.Multiply | t.Add | t.Call):
        return rebuilt(node, labelled)
    return node


def _labelled_chain(chain: t.Relation) -> t.Relation:
    """Sizes once: beneath the names of a product and its result, or beneath the numbers that a name stands for."""
    products = [not isinstance(each, t.Symbol) and _names_matrix(each) for each in chain.members]
    last = len(chain.members) - 1
    kept = (
        labelled(each) if product or (isinstance(each, t.Written) and (place == last or not any(products))) else each
        for place, (each, product) in enumerate(zip(chain.members, products, strict=True))
    )
    return replace(chain, members=tuple(kept))


def _names_matrix(node: t.Node) -> bool:
    if isinstance(node, t.Symbol):
        return len(node.shape) == 2
    return any(map(_names_matrix, t.children(node)))


class _Latex(Latex):
    def _sized(self, node: Sized) -> tuple[str, int]:
        high, wide = map(self.size, node.shape)
        return rf"\underset{{{high} \times {wide}}}{{{self.at(node.body, SUM)}}}", ATOM


def latex(node: t.Node, labels: bool) -> str:
    """The tree in LaTeX, with the sizes of matrices beneath them where `labels` is true."""
    return _Latex().whole(labelled(node) if labels else node)


def in_columns(node: t.Node) -> t.Node:
    """The tree with every written vector as a column, and as a row where it is transposed.

    >>> from qkv.maths import parse
    >>> in_columns(parse("[[1, 0], [0, 1]] (2, 3)", {})).right.shape
    (2, 1)
    """
    if isinstance(node, t.Transpose) and isinstance(node.body, t.Written) and len(node.body.shape) == 1:
        return replace(node.body, shape=(1, *node.body.shape))
    if isinstance(node, t.Written) and len(node.shape) == 1:
        return replace(node, shape=(*node.shape, 1))
    return rebuilt(node, in_columns)


def has_matrix(node: t.Node) -> bool:
    """Whether a matrix is written out anywhere in it."""
    level = [node]
    while level:
        if any(isinstance(each, t.Written) and len(each.shape) == 2 for each in level):
            return True
        level = [child for each in level for child in t.children(each)]
    return False
