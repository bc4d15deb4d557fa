"""Prose as plain text, for places where nothing but text is shown; rich is not loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from . import document as d
from .escapes import GREEK, line

_BELOW = dict(zip("0123456789aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))
_INDEX = "[0-9aehijklmnoprstuvx]"
_INDICES = rf"(?:[0-9]+|{_INDEX})(?:,(?:[0-9]+|{_INDEX}))*"
_COMMANDS = {
    **dict.fromkeys(("dots", "ldots", "cdots"), "..."), **dict.fromkeys(("left", "right"), ""),
    "cdot": "·", "times": "×", "top": "T", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠",
    "approx": "≈", "sum": "∑", "infty": "∞", "in": "∈", "to": "→",
}  # fmt: skip
_ABOVE = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(maths: d.Maths) -> str:
    """A formula on one line, in Unicode."""
    from ..maths.writing import plain as written

    node = maths.tree()
    return line(maths.text()) if node is None else written(node)


def signs(text: str) -> str:
    r"""LaTeX that could not be read as mathematics, with plain signs for its commands; what is not known stays.

    >>> signs(r"\phi(q) = [q_1^2, \dots, \sqrt{2} q_{D-1} q_D, 1]")
    'φ(q) = [q₁², ..., √2 q_{D-1} q_D, 1]'
    """
    text = re.sub(r"\\sqrt\s*\{([^{}]{1,40})\}", lambda f: f"√{f[1]}" if f[1].isalnum() else f"√({f[1]})", text)
    text = re.sub(r"\\(?:mathbf|mathrm|text)\s*\{([^{}]{1,40})\}", r"\1", text)
    text = re.sub(r"\\([A-Za-z]+)(?![A-Za-z])", lambda f: GREEK.get(f[1], _COMMANDS.get(f[1], f[0])), text)
    text = re.sub(r"\^\{?([0-9]+)\}?", lambda f: f[1].translate(_ABOVE), text)
    text = re.sub(r"\^\{?T\}?", "ᵀ", text)
    return pretty(text)


def pretty(text: str) -> str:
    """Indices as small signs below the line, where there are such, and very small numbers with a power of ten.

    >>> pretty("z_{3,1} = q_3ᵀk_1, W_Q, x_{i+1}, d_k2, 0.000000000000690")
    'z₃,₁ = q₃ᵀk₁, W_Q, x_{i+1}, d_k2, 6.90×10⁻¹³'
    """
    text = re.sub(rf"_(?:\{{({_INDICES})\}}|([0-9]+|{_INDEX})(?![A-Za-z0-9_{{]))", _lower, text)
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
