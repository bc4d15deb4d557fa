"""From the typed tree back to text that reads as the same tree: `latex`, and `plain` in Unicode."""

from __future__ import annotations

from qkv.maths.in_latex import Latex
from qkv.maths.in_unicode import Plain
from qkv.maths.text.shaping import plain_shape
from qkv.maths.tree import Node

__all__ = ["latex", "plain", "plain_shape"]


def latex(node: Node) -> str:
    """The tree in LaTeX.

    >>> from qkv.maths.reading import parse
    >>> latex(parse("mu'mu/sqrt(d)", {"mu'": "scalar", "mu": "vector[d]"}))
    "\\\\frac{\\\\mu' \\\\mu}{\\\\sqrt{d}}"
    """
    return Latex().whole(node)


def plain(node: Node) -> str:
    """The tree in Unicode text.

    >>> from qkv.maths.reading import parse
    >>> plain(parse(r"d\\sigma^4 + 2\\sigma^2\\|\\mu\\|^2", {"mu": "vector[d]", "sigma": "positive"}))
    'd σ⁴ + 2σ²‖μ‖²'
    """
    return Plain().whole(node)
