"""Answers on the moments of a score: a mean or a variance worked out, and the number to divide by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...maths import compare
from ..judging.answers import Value, unreadable
from ..outcome import Outcome

_ASKED = re.compile(r"\\?(?:mathbb|operatorname|mathrm|text)?\s*\{?\b(?:E|Var|Cov)\}?\s*(?:\\left)?\s*[\[({]")
_SQUARED = re.compile(r"\s*\$*\s*\w+\s*(?:\^\s*\{?2\}?|²)\s*=(.+)$", re.DOTALL)
_REMARK = re.compile(r"(?<!_)(?<!_\{)\\text\s*\{[^{}]*\}|\((?=[^()]*[a-z]{4})[^()$\\=]*\)|\\q?quad.*$", re.DOTALL)


def end_of_chain(text: str) -> str:
    """What stands behind the last equals sign that is in no bracket.

    >>> end_of_chain("E[z] = \\\\sum_{i=1}^d m = d m")
    ' d m'
    """
    depth, start = 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "=" and depth <= 0 and text[at - 1 : at] not in ("<", ">", "!"):
            start = at + 1
    return text[start:]


@dataclass(frozen=True)
class Moment(Value):
    """A mean or a variance that is to be worked out: an E or a Var left standing is no answer yet.

    `misread` are the types under which a known mistake was written down, where they are not those of the question.
    """

    misread: Mapping[str, str] = field(default_factory=dict, hash=False)

    def check(self, answer: str) -> Outcome:
        outcome = super().check(answer)
        if not outcome and (bare := _REMARK.sub(" ", answer)) != answer and (second := super().check(bare)):
            outcome = second
        if outcome and _ASKED.search(end_of_chain(answer)):
            return Outcome("incomplete", "an expectation or a variance still stands there: work it out")
        return outcome

    def same(self, wrong: str, answer: str) -> bool:
        texts = dict.fromkeys((answer, _REMARK.sub(" ", answer)))
        readings = [types for types in (self.symbols, self.misread) if types]
        return any(compare(wrong, text, types).kind == "equal" for text in texts for types in readings)


@dataclass(frozen=True)
class Divisor(Moment):
    """The positive number to divide by. Both roots give the variance; the positive one is meant."""

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        if re.search(r"\\pm|±|\+\s*/\s*-|\+-|plus or minus", answer):
            return self._both_roots(answer)
        outcome = super().check(answer)
        if outcome:
            return outcome
        if self.same(f"-({self.gold})", answer):
            return Outcome(
                "wrong", "the variance is right, but a negative divisor turns the order of the keys round: take the "
                "positive root", verdict=outcome.verdict,
            )  # fmt: skip
        squared = _SQUARED.match(answer)
        if squared and "=" not in squared[1] and self.same(f"({self.gold})^2", squared[1].strip(" $.")):
            return Outcome("incomplete", "that is the square of the divisor: take the positive root")
        return outcome

    def same(self, wrong: str, answer: str) -> bool:
        # "s^2 = d" does not say that s is d.
        return not _SQUARED.match(answer) and super().same(wrong, answer)

    def _both_roots(self, answer: str) -> Outcome:
        positive = re.sub(r"\\pm|±|\+\s*/\s*-|\+-|plus or minus", "", answer)
        pieces = [
            piece
            for piece in re.split(r"[,;\n]|\.\s|\b(?:so|hence|thus|and|take|choose|or)\b|\$", positive)
            if piece.strip()
        ]
        fits = [piece for piece in pieces if "=" in piece or len(piece) < 40]
        if not any(super(Divisor, self).check(piece.strip()) for piece in fits):
            return super().check(positive.strip())
        if (
            re.search(r"\bpositive\b|> ?0", answer)
            or len([1 for piece in fits if super(Divisor, self).check(piece)]) > 1
        ):
            return Outcome("right", "both roots give this variance; the positive one, which is named, is meant")
        return Outcome("incomplete", "both roots give this variance: say which one is meant (the positive one)")
