"""Answers on kernelised attention: a feature map, the rewritten equation, and costs in time and space."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...maths import Verdict, compare, equal
from ..judging.answers import Value, from_verdict, unreadable
from ..judging.assumed import conditions_in
from ..judging.counts import added
from ..judging.doubts import held
from ..judging.prose import Idea, Ideas
from ..judging.wording import normalised
from ..outcome import Outcome, joined

MOST_READ = 3_000  # characters in which costs are looked for


@dataclass(frozen=True)
class Condition(Ideas):
    """What keeps a denominator from vanishing; "not negative" alone is half of it.

    `instead` are other conditions: wrong where they stand in the place of the right one, no fault beside it.
    """

    instead: tuple[Idea, ...] = ()

    def check(self, answer: str) -> Outcome:
        outcome = super().check(answer)
        said = normalised(answer)
        if outcome and _OF_VALUES.search(said) and not _OF_SIMILARITY.search(said):
            return Outcome("wrong", "the values may be any vectors: the condition is one on the similarity")
        if outcome.kind == "incomplete" and "already" in outcome.reason:
            return Outcome("incomplete", outcome.reason.partition("; missing")[0])
        if outcome and _SOME_POSITIVE.search(said) and not _NONE_NEGATIVE.search(said):
            return Outcome("incomplete", "one positive similarity is not enough: negative ones may cancel it")
        if outcome or outcome.reason.startswith("there is no answer"):
            return outcome
        if any(idea.said(answer) for idea in self.partly) and outcome.kind != "incomplete":
            return Outcome("incomplete", f"it says only {self.partly[0].name}")
        if outcome.kind != "unread":
            return outcome
        others = [idea for idea in self.instead if idea.said(answer)]
        # "At least 0 and at most 1" is half of the condition, and a bound beside it.
        if others and not (_AT_LEAST.search(said) and {idea.name for idea in others} == {"another property"}):
            return Outcome("wrong", "; ".join(idea.why for idea in others))
        if _NONE_NEGATIVE.search(said) or others:
            return Outcome("incomplete", "not negative is not enough: for some query every similarity may still be 0")
        return outcome


_OF_VALUES = re.compile(r"\bv(?:_\w+)?\b|\bvalue (?:vectors?|matri\w+)\b")
_OF_SIMILARITY = re.compile(r"\bsim\b|similarit|kernel|denominator|\bsums?\b|weights?|scores?|\bit\b|\bq|\bk|phi|exp")
_NONE_NEGATIVE = re.compile(
    r"nonnegativ|is at least (?:0|zero)|\b(?:not|never|none|no)\b(?: \w+){0,3} negative|positive or (?:0|zero)|"
    r"greater than or equal to (?:0|zero)|\bsquared?\b"
)
_AT_LEAST = re.compile(r"\bat least (?:0|zero)\b")
_SOME_POSITIVE = re.compile(
    r"(?:at least one|for some)(?: \w+){0,5} (?:positive|is greater than)|"
    r"(?:positive|greater than (?:0|zero)) for (?:at least one|some)"
)


@dataclass(frozen=True)
class Growth(Value):
    """A rate of growth, as O, Θ or a count; `assumed` are conditions under which other rates are right.

    Each has the condition in words, the types that hold under it (or a rate of its own) and the pattern by which an
    answer says that it assumes it.
    """

    assumed: tuple[tuple[str, str, Mapping[str, str], str], ...] = field(default=(), hash=False)

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        given = rate_in(added(answer))
        verdict = compare(self.gold, given, self.symbols)
        if verdict.kind == "equal":
            return from_verdict(verdict)
        for condition, gold, types, said in self.assumed:
            if equal(gold or self.gold, given, types or self.symbols):
                if re.search(said, answer, re.IGNORECASE):
                    return Outcome("right", f"right, as it is said that {condition}")
                return Outcome("conditional", f"right only if {condition}", condition=condition, verdict=verdict)
        for condition, types in conditions_in(answer, self.symbols):
            if equal(self.gold, given, types):
                return Outcome("conditional", f"right only if {condition}", condition=condition, verdict=verdict)
        return from_verdict(verdict)

    def same(self, wrong: str, answer: str) -> bool:
        return equal(rate_in(wrong), rate_in(answer), self.symbols)


def rate_in(text: str) -> str:
    """The first O(…), Θ(…) or Ω(…) of a text, as O(…); the whole text as one where there is none.

    Of "O(NCM) = O(ND^3)" it is the last.

    >>> rate_in(r"$\\mathcal{O}(N^2(D+M))$ (to keep the weights)"), rate_in("N^2 D")
    ('O(N^2(D+M))', 'O(N^2 D)')
    """
    plain = re.sub(r"\\(?:left|right|big[lr]?)(?![a-z])|\\[,;!]", " ", text)
    found = _RATE.search(plain)
    if found is None:
        return f"O({plain.strip(' $.;,')})"
    rate = ""
    while found is not None:
        end = _closing(plain, found.end())
        rate = f"O({plain[found.end() : end]})" if end < len(plain) else f"O({plain[found.end() :].strip(' $.;,')})"
        found = re.match(rf"\)[\s$]*=[\s$]*{_RATE.pattern}", plain[end:])
        plain = plain[end:]
    return rate


_RATE = re.compile(r"(?:\\mathcal\s*\{?\s*O\s*\}?|\\?(?<![A-Za-z])(?:O|Theta|Omega)|[ΘΩ𝒪])\s*\(")


def _closing(text: str, start: int) -> int:
    """Where the bracket that was opened before `start` is closed, or the end."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


@dataclass(frozen=True)
class Costs:
    """Time and space together; each after its name, or the two in that order.

    `within` are patterns of the words that begin and that end what is meant, where a text has the costs of several.
    """

    items: Mapping[str, Growth] = field(hash=False)
    within: tuple[str, str] = ("", "")

    @property
    def text(self) -> str:
        return "; ".join(f"{name}: {value.text}" for name, value in self.items.items())

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        answer = added(held(answer))
        found = self.read(answer)
        if not found:
            return Outcome("unread", f"no rate could be found; write {' and '.join(self.items)}, each with an O(…)")
        missing = Outcome("unread", "missing")
        # What a text assumes it may say anywhere.
        said = {name: f"{piece} {answer}" for name, piece in found.items()}
        return joined(
            {name: value.check(said[name]) if name in said else missing for name, value in self.items.items()}
        )

    def same(self, wrong: str, answer: str) -> bool:
        expected, found = self.read(wrong), self.read(answer)
        return bool(expected) and all(
            name in found and self.items[name].same(text, found[name]) for name, text in expected.items()
        )

    def read(self, answer: str) -> dict[str, str]:
        """Name to the text of its rate."""
        text = self._meant(answer)[:MOST_READ]
        words = {
            "time": r"time|comput\w*|flops?|operations|work|(?<!memory )(?<!space )(?<!storage )costs?",
            "space": r"space|memory|storage|keep|kept|stored?",
        }
        if len(self.items) == 1:
            plain = re.sub(r"\\(?:left|right|big[lr]?)(?![a-z])", " ", text)
            spoken = _RATE.search(plain) or not re.search(r"(?<!\\)\b[a-z]{3,}", text)
            other = next(pattern for name, pattern in words.items() if name not in self.items)
            return dict.fromkeys(self.items, re.split(rf"\b(?:{other})\s*(?::|=|is\b)", text)[0]) if spoken else {}
        found = self._named_after(text, words)
        if found:
            return found
        for name in self.items:
            others = "|".join(pattern for other, pattern in words.items() if other != name)
            between = rf"(?:(?!\b(?:{others})\b)[^=\n]){{0,60}}?"
            label = rf"\b(?:{words[name]})\b{between}(?:=|:|\bis\b|\bof\b|(?=\$|\\?Theta|O\(|\\mathcal|Θ))"
            if (place := re.search(label, text, re.IGNORECASE)) is not None:
                piece = re.split(rf"\b(?:{others})\b|;|\n\s*\n", text[place.end() :], flags=re.IGNORECASE)[0]
                if piece.strip(" $*:-\n"):
                    found[name] = piece.strip(" *:-\n")
        if found:
            return found
        pieces = re.split(r";|\n|\band\b|,(?![^(]*\))", text)
        rates = [piece for piece in pieces if re.search(r"O\s*\}?\s*\(|Theta|Θ", piece)]
        return dict(zip(self.items, rates, strict=False)) if len(rates) == len(self.items) else {}

    def _named_after(self, text: str, words: Mapping[str, str]) -> dict[str, str]:
        """Rates whose names follow them: "O(N²D) time and O(N²) memory"."""
        found = {}
        for place in re.finditer(r"(?:O\s*\}?|Theta|Θ)\s*\(", text):
            rate = rate_in(text[max(0, place.start() - 12) : place.end() + 200])
            after = text[place.start() :][len(rate) - 1 :]
            for name, pattern in words.items():
                if re.match(
                    rf"[\s)$]*(?:of )?(?:{pattern})\b(?!\s*(?::|=|is|complexity (?:is|:)))", after, re.IGNORECASE
                ):
                    found.setdefault(name, rate)
        return found if set(found) == set(self.items) else {}

    def _meant(self, answer: str) -> str:
        start, stop = self.within
        if start and (found := re.search(start, answer, re.IGNORECASE)):
            answer = answer[found.start() :]
        if stop and (found := re.search(stop, answer, re.IGNORECASE)) and found.start() > 0:
            answer = answer[: found.start()]
        return answer


@dataclass(frozen=True)
class Rewritten(Value):
    """Attention with a feature map; rows and columns are one, and small letters may stand for the rows."""

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        between = [each for each in re.findall(r"\$+([^$]{1,2000})\$+", answer) if re.search(r"V|v|\\sum|Σ", each)]
        texts = between[-3:][::-1] or [answer]
        verdicts = [verdict for text in texts for verdict in self._verdicts(text)]
        best = next((verdict for verdict in verdicts if verdict.kind == "equal"), None)
        if best is None and re.search(r"phi|φ|ϕ", answer) and not re.search(r"\bsum\b|\\sum|[Σ∑]|\bV\b|V_", answer):
            return Outcome("incomplete", "that is the similarity; put it into the sums above and below the fraction")
        return from_verdict(best or next((each for each in verdicts if each.kind != "unreadable"), verdicts[0]))

    def _verdicts(self, text: str) -> Iterator[Verdict]:
        """The text against the right answer, as a column and as a row, its own rows as columns or as rows."""
        plain = re.sub(r"_\{?\s*([a-z])\s*(?:\\cdot|·|,\s*:|:)\s*\}?", r"_\1", text.partition("=")[2] or text)
        turned = f"({self.gold})^T"
        first = compare(self.gold, plain, self.symbols)
        yield first
        if first.kind == "different" and not re.search(r"[Vv]_(?:\{[^{}]*\}|\w)\s*\^", plain):
            return  # it is another vector, and not the same one as a row
        yield compare(turned, plain, self.symbols)
        if plain != text:
            yield compare(turned, text, self.symbols)
            yield compare(self.gold, text, self.symbols)
        rows = re.sub(r"\b([Vv])_(?:\{j\}|j)(?!\s*\^)", r"\1_j^T", plain)
        if rows != plain:
            yield compare(turned, rows, self.symbols)
