"""Prose as plain text, for places where nothing but text is shown; rich is not loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from . import document as d
from .escapes import line

_BELOW = dict(zip("0123456789aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))
_INDEX = "[0-9aehijklmnoprstuvx]"
_ABOVE = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(maths: d.Maths) -> str:
    """A formula on one line, in Unicode."""
    from ..maths.writing import plain as written

    node = maths.tree()
    return line(maths.text()) if node is None else written(node)


def pretty(text: str) -> str:
    """Indices as small signs below the line, where there are such, and very small numbers with a power of ten.

    >>> pretty("z_{3,1} = q_3ᵀk_1, W_Q, x_{i+1}, d_k2, 0.000000000000690")
    'z₃,₁ = q₃ᵀk₁, W_Q, x_{i+1}, d_k2, 6.90×10⁻¹³'
    """
    text = re.sub(rf"_(?:\{{({_INDEX}(?:,{_INDEX})*)\}}|([0-9]+|{_INDEX})(?![A-Za-z0-9_{{]))", _lower, text)
    return re.sub(r"(?<![\d.])0\.(0{6,})([1-9])(\d*)", _power, text)


def _lower(found: re.Match[str]) -> str:
    return "".join(_BELOW.get(sign, sign) for sign in found[1] or found[2])


def _power(found: re.Match[str]) -> str:
    zeros, first, rest = found.groups()
    power = str(len(zeros) + 1).translate(_ABOVE)
    return f"{first}.{rest}×10⁻{power}" if rest else f"{first}×10⁻{power}"


def in_text(prose: str, symbols: Mapping[str, str] | None = None) -> str:
    """
    >>> in_text("the mean is $mu^T mu$", {"mu": "vector[d]"})
    'the mean is μᵀμ'
    """
    pieces = d.prose(prose, symbols)
    return "".join(pretty(plain(piece)) if isinstance(piece, d.Maths) else piece.text for piece in pieces)
