"""The question which number scores have to be divided by, as it is asked beside those on the softmax."""

from __future__ import annotations

from ..problem import Part
from ..scaling.law import Law, Spread
from ..scaling.parts import divisor_part
from .parts import Names


def scale_part(at: Names, name: str) -> Part:
    """What to divide scores by for a variance of 1."""
    spread = Spread("equal", r"\sigma")
    letter = next(letter for letter in ("c", "r", "u") if letter not in (at.q, at.k, at.width, at.scores))
    law = Law(width=at.width, q=at.q, k=at.k, spread_q=spread, spread_k=spread, divisor=letter)
    return divisor_part(law, name, {"sigma": str(at.deviation)})
