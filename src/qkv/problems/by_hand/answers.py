"""The answer to a weighted sum of values: numbers are asked, as a row or as a column."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...maths import Verdict
from ..judging.answers import Value, from_verdict
from ..judging.sentences import claims
from ..outcome import Outcome
from ..reading.literals import ENVIRONMENT, split_outside

_ROW = re.compile(r"(?:\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?)?")
_LETTERS = re.compile(r"\\sum|Σ|∑|(?<![A-Za-z\\])(?:\\mathbf\s*\{?\s*)?a\s*\}?\s*[_₀-₉]")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_ONE_ENTRY = re.compile(rf"\b({'|'.join(_ORDINALS)})\s+(?:component|entry|coordinate|element)\b", re.IGNORECASE)


@dataclass(frozen=True)
class WeightedSum(Value):
    """A vector of numbers: a sum with its weights still in letters is not worked out yet."""

    def compared(self, answer: str) -> Verdict:
        return super().compared(_as_columns(answer))

    def check(self, answer: str) -> Outcome:
        outcome = super().check(answer)
        if outcome and _LETTERS.search(split_outside(self.stated(answer).replace(r"\approx", "="), "=≈")[-1]):
            return Outcome("incomplete", "the sum is right; put in the numbers")
        if outcome.kind == "unread" and (entry := _ONE_ENTRY.search(answer)):
            return self._one_entry(answer, _ORDINALS.index(entry[1].lower()) + 1, outcome)
        return outcome

    def _one_entry(self, answer: str, place: int, outcome: Outcome) -> Outcome:
        for said in claims(answer, self.symbols):
            verdict = Value(f"({self.gold})_{{{place}}}", self.symbols).compared(said.text)
            if verdict.kind == "equal":
                return Outcome("incomplete", f"entry {place} is right; the others are missing", verdict=verdict)
            if verdict.kind == "different":
                return from_verdict(verdict)
        return outcome


def _as_columns(text: str) -> str:
    r"""Matrices of one row written as lists: the question does not care which way a vector stands.

    >>> _as_columns(r"\begin{bmatrix} 1 & 2 \end{bmatrix}^\top")
    '(1, 2)'
    """
    found = ENVIRONMENT.search(text)
    if found is None or "&" not in found[1] or r"\\" in found[1].strip().removesuffix(r"\\"):
        return text
    turned = _ROW.match(text, found.end())
    cells = ", ".join(cell.strip() for cell in found[1].strip().removesuffix(r"\\").split("&"))
    return f"{text[: found.start()]}({cells}){_as_columns(text[turned.end() if turned else found.end() :])}"
