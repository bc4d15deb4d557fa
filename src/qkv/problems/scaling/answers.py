"""Answers on the moments of a score: a mean or a variance worked out, and the number to divide by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...maths import Verdict, equal
from ..judging.answers import Value, squeezed
from ..outcome import Outcome

_ASKED = re.compile(r"\\?(?:mathbb|operatorname|mathrm|text)?\s*\{?\b(?:E|Var|Cov)\}?\s*(?:\\left)?\s*[\[({]")
_BOTH = re.compile(r"\\pm|±|\+\s*/\s*-|\+-|\bplus or minus\b")
_ONES = re.compile(r"\\(?:mathbf|boldsymbol|bm|mathbb|vec)\s*(?:\{\s*1\s*\}|1)(?!\s*_)|𝟏(?!\s*_)|𝟙(?!\s*_)")
_WHOLE_WIDTH = re.compile(
    r"(?<![A-Za-z\\])[dDnN]_?(?:\{\s*\\(?:text|mathrm|textrm|mathit|operatorname)\s*\{\s*NAME\s*\}\s*\}|\{\s*NAME\s*\}"
    r"|\\(?:text|mathrm)\s*\{\s*NAME\s*\}|NAME)(?![A-Za-z])".replace("NAME", "(?:model|emb(?:d|ed|edding)?|hidden)")
)
_ALL_EQUAL = re.compile(
    r"\b(?:every|each|all(?: of)?(?: the| its)?)\s+(?:component|entr(?:y|ie)|coordinate|element)s?\b[^.;]{0,30}?"
    r"(?:\bequals?|\bis|\bare|=)(?: to| the same(?: number)?| equal to)*\s*\$?([A-Za-z])\b\$?",
    re.IGNORECASE,
)

WHOLE_WIDTH = "d_model"  # the name under which a model's width is declared where the question has only a head's


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
    `width` is the size of a vector of ones whose size is not written; `means` are the names of vector means.
    """

    misread: Mapping[str, str] = field(default_factory=dict, hash=False)
    width: str = ""
    means: tuple[str, ...] = ()

    def check(self, answer: str) -> Outcome:
        outcome = super().check(answer)
        if outcome and _ASKED.search(end_of_chain(self.stated(answer))):
            return Outcome("incomplete", "an expectation or a variance still stands there: work it out")
        if outcome.kind == "unread" and self.means:
            return self._if_all_equal(answer, outcome)
        return outcome

    def _if_all_equal(self, answer: str, outcome: Outcome) -> Outcome:
        """ "d m^2 if every component of the mean is m" is right under its own condition."""
        named = _ALL_EQUAL.search(answer)
        if named is None or named[1] in self.symbols:
            return outcome
        equal = dict.fromkeys(self.means, f"vector[{self.width}] = {named[1]} 1_{{{self.width}}}")
        supposed = replace(self, symbols={**self.symbols, named[1]: "scalar", **equal}, means=())
        if not supposed.check(answer):
            return outcome
        condition = f"every component of the mean is {named[1]}"
        return Outcome("conditional", f"right only if {condition}", condition=condition)

    def compared(self, answer: str) -> Verdict:
        text = _WHOLE_WIDTH.sub(WHOLE_WIDTH, answer) if WHOLE_WIDTH in self.symbols else answer
        return super().compared(_ONES.sub(f"1_{{{self.width}}}", text) if self.width else text)

    def same(self, wrong: str, answer: str) -> bool:
        given = self.stated(answer)
        if squeezed(wrong) == squeezed(given):
            return True
        given = _WHOLE_WIDTH.sub(WHOLE_WIDTH, given) if WHOLE_WIDTH in self.symbols else given
        readings = [types for types in (self.symbols, self.misread) if types]
        texts = dict.fromkeys((given, end_of_chain(given)))
        return any(equal(wrong, text, types) for text in texts for types in readings)


@dataclass(frozen=True)
class Divisor(Moment):
    """The positive number to divide by. Both roots give the variance; the positive one is meant."""

    def check(self, answer: str) -> Outcome:
        if _BOTH.search(answer) and (outcome := self.check(_BOTH.sub(" ", answer))):
            return replace(outcome, reason="both roots give this variance; the positive one is meant")
        outcome = super().check(answer)
        if outcome or outcome.kind == "unread":
            return outcome
        if self._unsolved(answer):
            return Outcome("incomplete", f"that is an equation for {self.unknown}: solve it for the positive root")
        if self.same(f"-({self.gold})", answer):
            return Outcome(
                "wrong", "the variance is right, but a negative divisor turns the order of the keys round: take the "
                "positive root", verdict=outcome.verdict,
            )  # fmt: skip
        return outcome

    def same(self, wrong: str, answer: str) -> bool:
        # "s^2 = d" does not say that s is d.
        return not self._unsolved(answer) and super().same(wrong, answer)

    def _unsolved(self, answer: str) -> bool:
        """Whether the answer is an equation that the right divisor solves, and no more."""
        left, tied, right = self.stated(answer).partition("=")
        name = re.escape(self.unknown)
        if not tied or squeezed(left) == squeezed(self.unknown) or not re.search(rf"(?<![A-Za-z\\]){name}\b", left):
            return False
        kind = self.symbols.get(self.unknown, "positive").partition(" = ")[0]
        solved = {**self.symbols, self.unknown: f"{kind} = {self.gold}"}
        return equal(left, right, solved)
