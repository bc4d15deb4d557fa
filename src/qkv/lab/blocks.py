"""Documents of qkv.render, and formulas, as pieces of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..maths import parse
from ..render import Block, mathml
from ..render.to_html import fragment


def blocks_html(blocks: Iterable[Block]) -> str:
    """Blocks of a document as HTML with MathML; what they hold is escaped already."""
    return fragment(blocks)


def formula(text: str, symbols: Mapping[str, str], *, block: bool = False) -> str:
    """
    >>> formula("d mu^2", {"d": "natural", "mu": "scalar"}).startswith("<math>")
    True
    """
    return mathml(parse(text, dict(symbols)), block=block)
