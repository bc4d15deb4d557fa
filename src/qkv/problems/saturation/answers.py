"""Answers on unscaled scores and the softmax: two moments, the Jacobian, its norm, a bound."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...maths import compare
from ..judging.answers import Value, unreadable
from ..judging.doubts import unsettled
from ..outcome import Outcome, joined
from ..scaling.answers import Moment, end_of_chain

_FROM_BELOW = re.compile(r"[\s$`*(]*(?:>|≥|\\g(?:eq?|t|eqslant)(?![a-z])|(?:at least|more than)\b)")
MOST_PIECES = 12  # of an answer that gives the entries case by case
_PIECES = re.compile(r"[;\n]|\$\$|,(?![^(\[]*[)\]])|\band\b|(?<!\s)\.\s|\b(?=else\b|otherwise\b)")
_CASE = re.compile(r"\b(?:for|if|when|where|unless|on|off|otherwise|else)\b|\\(?:text|quad)")
_LED_IN = re.compile(
    r"\s*(?:else|otherwise)\b[\s,:]*|\s*(?:(?:for|if|when|where)\b)?[\s$]*i\s*(?:==?|≠|!=|\\neq?(?![a-z]))\s*j[\s$]*:"
)
_ON = re.compile(r"(?<!unless )(?<!unless \$)\bi\s*==?\s*j\b|\bon the diagonal\b")
_OFF = re.compile(r"\bi\s*(?:≠|!=|\\neq?(?![a-z]))\s*j\b|\boff\b")


@dataclass(frozen=True)
class MeanAndVariance:
    """Two moments, each after its sign or its word: "E[s] = 0 and Var(s) = d"."""

    items: Mapping[str, Moment] = field(hash=False)

    @property
    def text(self) -> str:
        return "; ".join(f"{name} = {value.text}" for name, value in self.items.items())

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        found = self.read(answer)
        if not found:
            return Outcome("unread", "write the mean and the variance, each with its value")
        missing = Outcome("unread", "missing")
        return joined(
            {name: value.check(found[name]) if name in found else missing for name, value in self.items.items()}
        )

    def same(self, wrong: str, answer: str) -> bool:
        expected, found = self.read(wrong), self.read(answer)
        return bool(expected) and all(
            name in found and self.items[name].same(text, found[name]) for name, text in expected.items()
        )

    def read(self, answer: str) -> dict[str, str]:
        """Name to what stands at the end of its chain."""
        signs = {
            "mean": r"\\mathbb\s*\{?\s*E\s*\}?|(?<![A-Za-z\\])E(?=\s*[\[(])|\bmean\b|\bexpect\w*",
            "variance": r"\\(?:operatorname|text|mathrm)\s*\{\s*Var\s*\}|\bVar\b|\bvariance\b",
        }
        # Only a moment at the start of a piece is being given; those inside a chain are steps to it.
        pieces = re.split(r"[;\n]|\$\$|,\s+(?=\S*(?:Var|var))|\band\b|\.\s", answer)
        found: dict[str, str] = {}
        for piece in pieces:
            for name, sign in signs.items():
                if (
                    place := re.match(
                        rf"[\s$*\-\\(]*(?:(?:so|hence|thus|therefore|then),? )?(?:the |"
                        rf"its )?(?:{sign})[^=:]*?(?:=|:|\bis\b|\s(?=0|\$|\\?[a-zA-Z]_))(.+)",
                        piece,
                        re.DOTALL | re.IGNORECASE,
                    )
                ) is not None:
                    said = re.split(r",\s*(?:where|as|because|since|which)\b", place[1])[0]
                    found[name] = end_of_chain(said).strip(" $.,`\n")
        return found


@dataclass(frozen=True)
class Jacobian(Moment):
    """The Jacobian as a matrix, by its entries with i and j, or by those on the diagonal and those off it.

    `diagonal` and `off` are the two kinds of entries; one of them alone is half of the answer.
    """

    entry: str = ""
    diagonal: str = ""
    off: str = ""

    def check(self, answer: str) -> Outcome:
        if (open_ := unsettled(answer)) is not None:
            return open_
        end = end_of_chain(answer)
        if "partial" in end or "∂" in end:
            return Outcome("incomplete", "a derivative still stands there: work it out")
        outcome = super().check(end.strip(" $."))
        if not outcome:
            by_entry = Moment(self.entry, self.symbols).check(end.strip(" $."))
            outcome = by_entry if by_entry else outcome
        by_cases = None if outcome else self._by_cases(answer)
        return outcome if by_cases is None else by_cases

    def _by_cases(self, answer: str) -> Outcome | None:
        """The outcome of an answer that gives the entries case by case; None where it does not."""
        said: set[str] = set()
        for piece in _PIECES.split(answer)[:MOST_PIECES]:
            rest = re.match(r"\s*(?:else|otherwise)\b", piece)
            value = _CASE.split(_LED_IN.sub("", piece, count=1))[0]
            value = end_of_chain(value).strip(" $.,`&\\")
            if (len(value) < 3 and not (rest and value)) or "partial" in value or "∂" in value:
                continue
            golds = {"all": self.gold, "entry": self.entry, "on": self.diagonal, "off": self.off}
            kinds = {name: compare(gold, value, self.symbols).kind for name, gold in golds.items() if gold}
            here = {name for name, kind in kinds.items() if kind == "equal"}
            if (here == {"on"} and _OFF.search(piece)) or (here == {"off"} and _ON.search(piece)):
                return Outcome("wrong", "an entry on the diagonal is given for those off it, or the other way round")
            if not here and set(kinds.values()) & {"different", "conditional"}:
                if said and rest:
                    return Outcome("wrong", f"the entries in the other case are not {value}")
                said.clear()  # what follows from right entries may still be wrong
            said |= here
        if {"all", "entry"} & said or {"on", "off"} <= said:
            return Outcome("right", "every entry is right")
        if said:
            where = "on the diagonal" if "on" in said else "off the diagonal"
            return Outcome("incomplete", f"those are the entries {where}; give the others too")
        return None


@dataclass(frozen=True)
class UpperBound(Value):
    """A bound, after the last sign of a chain of inequalities."""

    def check(self, answer: str) -> Outcome:
        if _FROM_BELOW.match(answer):
            return Outcome("unread", "that bounds it from below: write what it is at most")
        return super().check(re.split(r"\\leq?(?![a-z])|\\lt(?![a-z])|≤|<=?|=", answer)[-1].strip(" $."))


@dataclass(frozen=True)
class Norm(Value):
    """The norm written out: the norm sign itself is no answer."""

    def check(self, answer: str) -> Outcome:
        if (open_ := unsettled(answer)) is not None:
            return open_
        end = end_of_chain(answer)
        if re.search(r"diag|partial|J", end):
            return Outcome("incomplete", "the norm still stands there: write its entries out")
        return super().check(end.strip(" $."))
