"""Answers that count: a whole number with its unit, and rates of growth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from ...maths import compare
from ..outcome import Outcome
from .answers import LONGEST, Value, from_verdict, unreadable

MOST = 100  # rates in one answer that are looked at

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_BYTES = re.compile(r"(?<![a-z])(ki|mi|gi|ti|k|m|g|t|kilo|mega|giga|kibi|mebi|gibi)?(?:b|bytes?)(?![a-z])")


@dataclass(frozen=True)
class Count:
    """A whole number, of `unit` (bytes, positions, FLOP a byte …): "1,048,576 bytes", "2^20", "1 MiB", "2·8·65536".

    >>> Count(2**20, "bytes").check("1,048,576 bytes").kind, Count(2**20, "bytes").check("1 MiB").kind
    ('right', 'right')
    >>> Count(2**20, "bytes").check("1 MB").kind, Count(7, "positions").check("2 + 5 = 7 positions").kind
    ('wrong', 'right')
    """

    number: int
    unit: str = ""

    @property
    def text(self) -> str:
        return str(self.number)

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        verdicts = [compare(str(self.number), reading, {}) for reading in self._read(answer)]
        return from_verdict(next((each for each in verdicts if each.kind != "unreadable"), verdicts[0]))

    def same(self, wrong: str, answer: str) -> bool:
        return compare(self._read(wrong)[0], self._read(answer)[0], {}).kind == "equal"

    def _read(self, answer: str) -> list[str]:
        """What may be the number, as mathematics: what is said last comes first."""
        text = re.sub(r"\\(?:text|mathrm|textbf|mathbf|boxed)\s*\{([^{}]*)\}", r" \1 ", answer.replace("**", " "))
        text = re.sub(r"(?<=\d)(?:\{,\}|,|\\,|_|\u202f|\u00a0)(?=\d{3}(?!\d))", "", text).replace("$", " ").strip()
        factor = 1
        if self.unit == "bytes" and (found := _BYTES.search(text.lower())):
            prefix = found[1] or ""
            long = {"kilo": "k", "mega": "m", "giga": "g", "kibi": "ki", "mebi": "mi", "gibi": "gi"}
            prefix = long.get(prefix, prefix)
            factor = _BINARY.get(prefix) or _PREFIXES[prefix]
            text = text[: found.start()]
        # Words around the number: "it sees 6 keys", "the answer is 12".
        numbers = re.sub(r"(?<![\\A-Za-z])[A-Za-z][A-Za-z'-]+(?![A-Za-z({])", " ", text)
        last = [piece for piece in re.split(r"[=≈:;?]|\.\s", numbers) if re.search(r"\d", piece)]
        readings = [piece.strip(" .,") for piece in reversed(last[-4:])] or [text]
        return [f"({reading}) \\cdot {factor}" if factor != 1 else reading for reading in readings]


@dataclass(frozen=True)
class InWords(Value):
    """A formula that may stand in a sentence: "the reach is $(k + 1)^n$ positions"."""

    def check(self, answer: str) -> Outcome:
        outcome = super().check(answer)
        for shorter in self.readings(answer) if outcome.kind == "unread" else ():
            second = super().check(shorter)
            if second.kind != "unread":
                return second
        return outcome

    def same(self, wrong: str, answer: str) -> bool:
        return any(super(InWords, self).same(wrong, each) for each in (answer, *self.readings(answer)))

    def readings(self, answer: str) -> list[str]:
        """What of a sentence may be the formula: between dollars, the last first, or without the words around it."""
        between = re.findall(r"\$([^$]{1,400})\$", answer[:LONGEST])
        bare = re.sub(r"(?<![\\A-Za-z_{])[A-Za-z]{3,}(?![A-Za-z({])", " ", answer[:LONGEST]).strip(" .,:;")
        return [*between[::-1][:4], bare]


_RATE = re.compile(
    r"(?:\\mathcal\s*\{?\s*O\s*\}?|\\Theta|Θ|(?<![A-Za-z])O|𝒪)\s*(?:\\left|\\big+l?)?\s*\(", re.IGNORECASE
)


@dataclass(frozen=True)
class Rate(InWords):
    """A rate of growth; of several in a sentence the total is meant, else the first. O and Θ show the same mistake."""

    def same(self, wrong: str, answer: str) -> bool:
        texts = [self.readings(each)[0] if self.readings(each) else each for each in (wrong, answer)]
        one, two = (re.sub(r"\\Theta|Θ", "O", text) for text in texts)
        return compare(one, two, self.symbols).kind == "equal"

    def readings(self, answer: str) -> list[str]:
        places = islice(_RATE.finditer(answer[:LONGEST]), MOST)
        found = [(each.start(), _closed(answer, each.end())) for each in places]
        found = [(start, end) for start, end in found if end]
        total = r"(?:total|overall|altogether|therefore|thus|hence|boxed|answer|sum)[^.;]{0,60}$"
        led = [(start, end) for start, end in found if re.search(total, answer[max(0, start - 90) : start].lower())]
        return [answer[start:end] for start, end in (led[-1:] or found[:1])]


def _closed(text: str, start: int) -> int:
    """Where the bracket that was opened before `start` is closed; 0 where it is not."""
    depth = 1
    for place in range(start, min(len(text), start + 400)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place + 1
    return 0


def rate(growth: str, symbols: Mapping[str, str] | None = None, sign: str = "O") -> Rate:
    """A rate of growth that may be given as O or as Θ (the bank's own answer has `sign`), or as a count that has it.

    >>> cost = rate("b d^2 + b n d", dict.fromkeys("bdn", "natural"))
    >>> cost.check(r"\\Theta(bd(d + n))").kind, cost.check("O(bnd)").kind
    ('right', 'wrong')
    """
    first, second = (f"O({growth})", rf"\Theta({growth})")[:: 1 if sign == "O" else -1]
    return Rate(first, symbols or {}, also=(second,))
