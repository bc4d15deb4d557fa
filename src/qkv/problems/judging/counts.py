"""Answers that count: a whole number with its unit, and rates of growth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, pairwise

from ...maths import compare, equal
from ..outcome import Outcome
from .answers import LONGEST, Value, from_verdict, unreadable
from .assumed import conditions_in
from .doubts import held, unsettled

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
        answer = held(answer)
        verdicts = [compare(str(self.number), reading, {}) for reading in self._read(answer)]
        return from_verdict(next((each for each in verdicts if each.kind != "unreadable"), verdicts[0]))

    def same(self, wrong: str, answer: str) -> bool:
        return equal(self._read(wrong)[0], self._read(answer)[0], {})

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
        if (nothing := unreadable(answer)) is not None:
            return nothing
        answer = summed(held(answer))
        outcome = super().check(answer)
        for shorter in self.formulas(answer) if outcome.kind == "unread" else ():
            second = super().check(shorter)
            if second.kind != "unread":
                return second
        return outcome

    def same(self, wrong: str, answer: str) -> bool:
        return any(super(InWords, self).same(wrong, each) for each in (answer, *self.formulas(answer)))

    def formulas(self, answer: str) -> list[str]:
        """What of a sentence may be the formula: between dollars, the last first, or without the words around it."""
        between = re.findall(r"\$([^$]{1,400})\$", answer[:LONGEST])
        bare = re.sub(r"(?<![\\A-Za-z_{])[A-Za-z]{3,}(?![A-Za-z({])", " ", answer[:LONGEST]).strip(" .,:;")
        return [*between[::-1][:4], bare]


def summed(text: str) -> str:
    r"""A text with the sums of the binomial theorem as the powers that they are.

    >>> summed(r"\sum_{i=0}^{n}\binom{n}{i}k^i")
    '(1 + k)^{n}'
    """
    pattern = r"\\sum_\{(\w)=0\}\^\{?(\w)\}?\s*\\binom\{\2\}\{\1\}\s*(\w)\^\{?\1\}?"
    return re.sub(pattern, lambda found: f"(1 + {found[3]})^{{{found[2]}}}", text)


_RATE = re.compile(
    r"(?:\\mathcal\s*\{?\s*O\s*\}?|\\Theta|Θ|(?<![A-Za-z])O|𝒪)\s*(?:\\!)?\s*(?:\\left|\\big+l?)?\s*\(", re.IGNORECASE
)
_TOTAL = r"(?:total|overall|altogether|therefore|thus|hence|boxed|answer|sum|in all)[^.;]{0,60}$"
_ENDS = r"(?:\bi\.e\.|\bthat is|\bwhich (?:is|gives|makes)|\bso\b|\bgiving\b|\bor simply\b)[^.;]{0,25}$"
_DENIED = (
    r"(?:\bnot|\binstead of|\brather than|\bversus|\bvs\.?|\bthan(?: the)?|\bno longer|"
    r"\bwithout)\W*(?:just |an? |the )?\W*$"
)
# What says that a rate is one term of several: "the projections cost …", "I did not get to the attention".
_ONE_TERM = re.compile(
    r"\b(?:projections?|cached?|keys and values|kv|weights|activations|scores?|softmax|weighted sums?|attention itself|"
    r"lookups?)\b[^.;=]{0,30}\b(?:costs?|takes?|needs?|contributes?|adds?|gives?|(?:is|are) read)\b|"
    r"\b(?:not (?:get|got) to|rest|not yet|only the first|still missing|left out)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Rate(InWords):
    """A rate of growth; of several in a sentence the total is meant, else the first. O and Θ show the same mistake.

    A rate that is right under a condition which the answer names is conditional; one that the answer itself calls a
    part of the cost, and that is no more than the whole, incomplete.
    """

    def check(self, answer: str) -> Outcome:
        doubts = (unreadable(answer, prose=True), unsettled(answer), _factored(answer), self._several_rates(answer))
        for nothing in doubts:
            if nothing is not None:
                return nothing
        given = self.formulas(answer)
        outcome = super().check(given[0] if given else answer)
        if outcome.kind not in ("wrong", "unread"):
            return outcome
        growth = [_as_o(text) for text in given or re.findall(r"\$([^$]{1,400})\$", answer[:LONGEST])[:1]]
        for condition, types in conditions_in(answer, self.symbols) if growth else ():
            if equal(_as_o(self.gold), growth[0], types):
                return Outcome("conditional", f"right only if {condition}", condition=condition)
        if growth and _ONE_TERM.search(answer) and self._below(growth[0]):
            return Outcome("incomplete", "that is one term of the cost; add the others")
        return outcome

    def _several_rates(self, answer: str) -> Outcome | None:
        """Rates of which a text does not say which it means, where they differ: of two kinds of attention, or bare."""
        found = rates_in(held(answer))
        kinds = {name for name, pattern in _ATTENTIONS.items() if re.search(pattern, answer, re.IGNORECASE)}
        bare = re.fullmatch(r"[\s,;$]*(?:or)?[\s,;$]*", "".join(_between(found, held(answer)))) is not None
        if len(found) != 2 or not (bare or len(kinds) == 2):
            return None
        text = held(answer)
        one, two = (_as_o(text[start:end]) for start, end in found)
        if re.search(_DENIED, text[max(0, found[1][0] - 40) : found[1][0]]) or compare(one, two, self.symbols):
            return None
        if _as_o(self.gold) and {compare(_as_o(self.gold), each, self.symbols).kind for each in (one, two)} >= {
            "equal"
        }:
            return Outcome("unread", "it gives two rates that differ: write the one that is asked for")
        return None

    def _below(self, growth: str) -> bool:
        """Whether a rate is no more than the right one."""
        both = f"O({_as_o(self.gold)[2:-1]} + {growth[2:-1]})"
        return equal(_as_o(self.gold), both, self.symbols)

    def same(self, wrong: str, answer: str) -> bool:
        one, two = (_as_o((self.formulas(each) or [each])[0]) for each in (wrong, answer))
        return equal(one, two, self.symbols)

    def formulas(self, answer: str) -> list[str]:
        answer = added(held(answer))
        found = rates_in(answer)
        kept = [(start, end) for start, end in found if not re.search(_DENIED, answer[max(0, start - 40) : start])]
        for sign in (_TOTAL, _ENDS):
            led = [(s, e) for s, e in kept if re.search(sign, answer[max(0, s - 90) : s].lower())]
            if led:
                kept = led[-1:]
        # "O(NCM) = O(ND^3)" is one rate, written out.
        chain = [
            (s, e) for s, e in found if kept and s > kept[0][1] and re.fullmatch(r"\W*=\W*", answer[kept[0][1] : s])
        ]
        return [answer[start:end] for start, end in (kept[:1] if not chain else chain[:1])]


def rates_in(text: str) -> list[tuple[int, int]]:
    """Where the rates of a text stand."""
    places = islice(_RATE.finditer(text[:LONGEST]), MOST)
    found = [(each.start(), _closed(text, each.end())) for each in places]
    return [(start, end) for start, end in found if end]


def added(text: str) -> str:
    """A text whose sums of rates are written as one, and terms that are said to be parts of a cost as their sum.

    >>> added("O(n) + O(d)"), added("O(n) for the projections and O(d) for attention")
    ('O(n + d)', 'O(n + d)')
    """
    found = rates_in(text)
    for (_, end), (begin, stop) in reversed([*pairwise(found)]):
        between = text[end:begin]
        parted = len(found) == 2 and _PARTS_OF.fullmatch(between) and _PART.match(text, stop)
        if re.fullmatch(r"[\s$]*\+[\s$]*", between) or parted:
            inner = text[begin:stop]
            more = inner[inner.index("(") + 1 :] if "left" not in inner else ""
            behind = _PART.sub("", text[stop:], 1) if parted else text[stop:]
            text = f"{text[: end - 1]} + {more}{behind}" if more else text
    return text


_PART = re.compile(
    r"[\s$,]*(?:for|from|in|to (?:do|compute)) (?:the |all )?(?:(?:attention|dot|weighted|value|query|key|output)\s)*"
    r"(?:projections?|attention|scores?|softmax|sums?|products?|lookups?|cache|weights|logits)\b[.\s]*",
    re.IGNORECASE,
)
_PARTS_OF = re.compile(rf"{_PART.pattern}[\s,;]*(?:and|plus|\+|,|;)[\s$]*", re.IGNORECASE)
_ATTENTIONS = {"heads": r"\bMHA\b|multi-?\s?head", "query": r"\bMQA\b|multi-?\s?query", "group": r"\bGQA\b|grouped"}
_FACTOR = r"(?:\\(?:cdot|times)|[*/·×])"


def _factored(answer: str) -> Outcome | None:
    """The outcome of a rate with a factor beside its O, which nobody can tell from one within."""
    text = held(answer)
    for start, end in rates_in(text):
        before, after = text[max(0, start - 30) : start], text[end : end + 30]
        led = re.search(
            rf"(?:[\w)}}]\s*{_FACTOR}|(?:^|[=$:,;])\s*(?:[A-Za-z0-9]|\\frac\{{[^{{}}]*\}}\{{[^{{}}]*\}}))[\s$]*$",
            before,
        )
        if led or re.match(rf"\s*{_FACTOR}\s*[\w\\({{]", after):
            return Outcome("unread", "a factor stands beside the rate: write it within")
    return None


def _between(found: list[tuple[int, int]], text: str) -> list[str]:
    return [text[one[1] : two[0]] for one, two in pairwise(found)]


def _as_o(text: str) -> str:
    """A rate, or a count, as O(…)."""
    opened = _RATE.search(text)
    if opened is None:
        return f"O({text.strip(' $.,;')})"
    end = _closed(text, opened.end())
    return f"O({text[opened.end() : end - 1]})" if end else text


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
