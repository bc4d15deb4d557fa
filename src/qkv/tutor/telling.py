"""A ledger in words: what terminal and page say alike."""

from __future__ import annotations

from ..problems.misconceptions import MISCONCEPTIONS
from ..problems.problem import plain_name
from ..render import Maths
from ..render.escapes import line
from ..render.to_text import plain, signs
from .ledger import Error, Ledger, Row

# A rule by what keeps it.
RULES = {
    "code": "no code",
    "answered before asked": "wait until asked",
    "no derivation": "show a derivation",
    "not short": "be short",
}
_NAMELESS = {
    "conditional": "right only under a condition",
    "incomplete": "not all of it",
    "false line": "a displayed line is false",
}
LONGEST_FORMULA = 150  # characters of a claim that is rewritten


def error_name(error: Error) -> str:
    """A known mistake by its name; what has none is wrong, or right as far as it goes."""
    if error.kind == "wrong reason":
        return f"right for a wrong reason: {error.name}"
    return error.name if error.name in MISCONCEPTIONS else _NAMELESS.get(error.kind, "wrong")


def formula_of(ledger: Ledger, row: Row, text: str) -> Maths | None:
    """A claim as mathematics, where it is a short formula in the question's symbols."""
    question = next((each for each in ledger.questions if each.name == row.problem), None)
    part = question.parts.get(plain_name(row.part)) if question is not None else None
    if part is None or len(text) > LONGEST_FORMULA:
        return None
    formula = Maths(text, {**getattr(part.answer, "symbols", {}), **part.symbols})
    return formula if formula.tree() is not None else None


def readable(ledger: Ledger, row: Row, text: str) -> str:
    """A formula as it is written by hand; what is too long for one is the claim's own text."""
    if len(text) > LONGEST_FORMULA:
        return text
    formula = formula_of(ledger, row, text)
    return line(signs(text)) if formula is None else plain(formula)
