"""Answers on kernelised attention: a feature map, the rewritten equation, and costs in time and space."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import comb, factorial, prod

from ...maths import compare
from ..judging.answers import Value, from_verdict, unreadable
from ..judging.prose import Ideas
from ..outcome import Outcome, joined

MOST_READ = 3_000  # characters in which costs are looked for
_COMPONENT = re.compile(
    r"\\?[a-zA-Z]_\s*\{?\s*(\d|[a-zA-Z](?:\s*[-+]\s*\d+)?)\s*\}?(?:\s*\^\s*\{?\s*(\d)\s*\}?)?"
    r"|(?<![\w\\])[a-z](\d)(?:\s*\^\s*(\d))?"
)
Profile = dict[tuple[int, ...], Fraction]  # how a feature's exponents look, to the weight that it has in the kernel


@dataclass(frozen=True)
class Condition(Ideas):
    """What keeps a denominator from vanishing; "not negative" alone is half of it."""

    def check(self, answer: str) -> Outcome:
        outcome = super().check(answer)
        if outcome.kind == "unread" and re.search(r"non-?\s?negative|\\geq?\b|≥|>=", answer, re.IGNORECASE):
            return Outcome("incomplete", "not negative is not enough: for some query every similarity may still be 0")
        return outcome


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
        given = rate_in(answer)
        verdict = compare(self.gold, given, self.symbols)
        if verdict.kind == "equal":
            return from_verdict(verdict)
        for condition, gold, types, said in self.assumed:
            if compare(gold or self.gold, given, types or self.symbols).kind == "equal":
                if re.search(said, answer, re.IGNORECASE):
                    return Outcome("right", f"right, as it is said that {condition}")
                return Outcome("conditional", f"right only if {condition}", condition=condition, verdict=verdict)
        return from_verdict(verdict)

    def same(self, wrong: str, answer: str) -> bool:
        return compare(rate_in(wrong), rate_in(answer), self.symbols).kind == "equal"


def rate_in(text: str) -> str:
    """The first O(…), Θ(…) or Ω(…) of a text, as O(…); the whole text as one where there is none.

    >>> rate_in(r"$\\mathcal{O}(N^2(D+M))$ (to keep the weights)"), rate_in("N^2 D")
    ('O(N^2(D+M))', 'O(N^2 D)')
    """
    plain = re.sub(r"\\(?:left|right|big[lr]?)(?![a-z])|\\[,;!]", " ", text)
    found = re.search(r"(?:\\mathcal\s*\{?\s*O\s*\}?|\\?(?<![A-Za-z])(?:O|Theta|Omega)|[ΘΩ𝒪])\s*\(", plain)
    if found is None:
        return f"O({plain.strip(' $.;,')})"
    depth = 0
    for at in range(found.end() - 1, len(plain)):
        depth += {"(": 1, ")": -1}.get(plain[at], 0)
        if depth == 0:
            return f"O({plain[found.end() : at]})"
    return f"O({plain[found.end() :].strip(' $.;,')})"


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
        words = {"time": r"time|comput\w*|flops?|operations", "space": r"space|memory|storage"}
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
        plain = re.sub(r"_\{?\s*([a-z])\s*(?:\\cdot|·|,\s*:|:)\s*\}?", r"_\1", answer.partition("=")[2] or answer)
        verdict = compare(self.gold, plain, self.symbols)
        for gold, text in ((f"({self.gold})^T", plain), (f"({self.gold})^T", answer), (self.gold, answer)):
            if verdict.kind != "equal" and (other := compare(gold, text, self.symbols)).kind == "equal":
                verdict = other
        return from_verdict(verdict)


@dataclass(frozen=True)
class FeatureMap:
    """Any φ with φ(q)ᵀφ(k) = (qᵀk + constant)²: a list for one width, a pattern with dots, or vec(qqᵀ) and the like."""

    constant: int
    shown: str
    letter: str = "q"

    @property
    def text(self) -> str:
        return self.shown

    @property
    def wanted(self) -> Profile:
        """Exponents of a feature to what its squared coefficients must add up to."""
        both = {(2,): Fraction(1), (1, 1): Fraction(2)}
        return both | ({(1,): Fraction(2 * self.constant), (): Fraction(self.constant**2)} if self.constant else {})

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        if "=" in answer and (whole := re.split(r"=", answer)[-1]).strip():
            answer = whole if re.search(r"[\[(,]|vec|otimes|⊗", whole) else answer
        found = profile(answer)
        if found is None:
            return Outcome("unread", "no list of features could be read; write them as [q_1^2, …, q_D^2, …]")
        names = {(2,): "squares", (1, 1): "mixed products", (1,): "components", (): "the constant"}
        faults = []
        for kind, weight in self.wanted.items():
            if kind not in found:
                faults.append(f"{names[kind]} are missing" if kind else "the constant is missing")
            elif found[kind] != weight:
                faults.append(f"{names[kind]} add {found[kind]} to the product where {weight} is wanted")
        extra = [names.get(kind, f"products of degree {sum(kind)}") for kind in found if kind not in self.wanted]
        faults += [f"{name} do not belong there" for name in extra]
        if faults:
            return Outcome("wrong", "; ".join(faults))
        return Outcome("right", "the product of the features of two vectors is the kernel")

    def same(self, wrong: str, answer: str) -> bool:
        found = profile(answer)
        return found is not None and found == profile(wrong)


def profile(answer: str) -> Profile | None:
    """What a feature map gives to each kind of monomial; None where it cannot be read."""
    text = re.sub(r"\\(?:left|right|mathbf|boldsymbol|bm|big[lr]?|text|mathrm|operatorname)(?![a-zA-Z])", " ", answer)
    text = re.sub(r"\{\s*(vec|flatten)\s*\}", r"\1", re.sub(r"\\[,;:!]", " ", text))
    text = text.replace("$", " ").replace("√", r"\sqrt").replace("…", ",…,").replace(r"\otimes", "⊗")
    text = re.sub(r"\\[lcd]?dots[cb]?|\.\.\.", ",…,", text)
    text = text.translate(str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")).replace("²", "^2")
    found: Profile = {}
    outer = (
        r"(?:vec|flatten|flat)\s*[({]?\s*\\?([a-z])\s*\1\s*\^?\s*\{?\s*(?:T|\\top|ᵀ)\s*\}?\s*[)}]?|\b([a-z])\s*⊗\s*\2"
    )
    if re.search(outer, text):
        found = {(2,): Fraction(1), (1, 1): Fraction(2)}
        text = re.sub(outer, " ", text)
    pieces = [piece for piece in re.split(r"[,;&\n]|\\\\", text) if piece.strip(" []()\\{}^T.|")]
    marks: dict[tuple[int, ...], set[Fraction]] = {}
    exact: dict[tuple[tuple[str, int], ...], Fraction] = {}
    dotted = any("…" in piece for piece in pieces)
    for piece in pieces:
        if "…" in piece:
            continue
        one = _monomial(piece)
        if one is None:
            continue
        weight, powers = one
        marks.setdefault(tuple(sorted(powers.values(), reverse=True)), set()).add(weight)
        named = tuple(sorted(powers.items()))
        exact[named] = exact.get(named, Fraction(0)) + weight
    lettered = any(not index.isdigit() for named in exact for index, _ in named if index)
    if not exact:
        return found or None
    if not dotted and not lettered and not found:
        return _concrete(exact)
    for kind, weights in marks.items():
        if len(weights) > 1:
            return None
        twice = kind == (1, 1) and _both_orders(text)
        found[kind] = found.get(kind, Fraction(0)) + weights.pop() * (2 if twice else 1)
    return found


def _both_orders(text: str) -> bool:
    """Whether a pattern lists every pair twice, as q_1 q_2 and q_2 q_1."""
    pairs = re.findall(r"_\{?([\dA-Za-z])\}?\s*\\?[a-z]_\{?([\dA-Za-z])\}?", text)
    swapped = any((b, a) in pairs for a, b in pairs if a != b)
    return swapped or re.search(r"all (?:ordered )?pairs|[ij], ?[ij] ?= ?1", text) is not None


def _concrete(exact: Mapping[tuple[tuple[str, int], ...], Fraction]) -> Profile | None:
    """The profile of a full list for one width; None where a kind is not there for every component alike."""
    width = len({index for named in exact for index, _ in named if index})
    found: Profile = {}
    for kind in {tuple(sorted((power for index, power in named), reverse=True)) for named in exact}:
        weights = [w for named, w in exact.items() if tuple(sorted((p for _, p in named), reverse=True)) == kind]
        if kind and len(weights) != _monomials(kind, width):
            return None
        if len(set(weights)) > 1:
            return None
        found[kind] = weights[0]
    return found


def _monomials(kind: tuple[int, ...], width: int) -> int:
    """How many monomials of `width` variables have these exponents."""
    repeats = prod(factorial(kind.count(power)) for power in set(kind))
    return comb(width, len(kind)) * factorial(len(kind)) // repeats


def _monomial(piece: str) -> tuple[Fraction, dict[str, int]] | None:
    """The squared coefficient and the power of each component: "\\sqrt{2} q_1 q_2" is 2 and {1: 1, 2: 1}."""
    weight = Fraction(1)
    rest = piece
    for root in re.finditer(r"\\?sqrt\s*[({]?\s*(\d+)\s*[)}]?", rest):
        weight *= int(root[1])
    rest = re.sub(r"\\?sqrt\s*[({]?\s*\d+\s*[)}]?", " ", rest)
    powers: dict[str, int] = {}
    for found in _COMPONENT.finditer(rest):
        index, power = (found[1], found[2]) if found[1] else (found[3], found[4])
        powers[index] = powers.get(index, 0) + int(power or 1)
    rest = _COMPONENT.sub(" ", rest)
    if not powers and (whole := re.fullmatch(r"[\s\[\](){}]*\\?([a-z])(?:\s*\^\s*\{?T\}?)?[\s\[\](){}]*", rest)):
        return weight, {f"{whole[1]}": 1}
    number = re.search(r"\d+", rest)
    if number is not None:
        weight *= int(number[0]) ** 2
    elif not powers:
        return None
    return weight, powers
