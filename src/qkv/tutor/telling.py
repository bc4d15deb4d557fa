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
LONGEST_FORMULA = 150  # characters of a claim that is rewritten


def error_name(error: Error) -> str:
    """A known mistake by its name; what has none is wrong."""
    said = error.name if error.name in MISCONCEPTIONS or len(error.name) < 48 else "wrong"
    return {"wrong reason": f"right for a wrong reason: {said}", "false line": "a displayed line is false"}.get(
        error.kind, said
    )


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
