"""Feature maps of a quadratic kernel as people write them: lists, patterns with dots, vec(xxᵀ), or in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb, factorial, prod
from typing import NamedTuple

from ...maths import compare
from ..judging.answers import unreadable
from ..outcome import Outcome

MOST_READ = 6_000  # characters in which features are looked for
_COMPONENT = re.compile(
    r"\\?[a-zA-Z]_\s*\{?\s*(\d|[a-zA-Z](?:\s*[-+]\s*\d+)?)\s*\}?(?:\s*\^\s*\{?\s*(\d)\s*\}?)?"
    r"|(?<![\w\\])[a-z](\d)(?:\s*\^\s*(\d))?"
)
_TOP = r"\^?\s*\{?\s*(?:T|\\top|\\intercal|ᵀ)\s*\}?"
_VECTOR = r"(?:\\?(?:tilde|bar|hat|overline|widetilde)\s*\{?\s*[a-z]\s*\}?|[a-z][̃̄']?)"
_OUTER = re.compile(rf"(?:vec|flatten|flat)\s*[({{\[]?\s*({_VECTOR})\s*\1\s*{_TOP}\s*[)}}\]]?|({_VECTOR})\s*⊗\s*\2")
_WORDED_COUNT = re.compile(
    r"\b(?:has|have|having|with|are|gives?|needs?|contains?|dimension(?: of| is)?|of)\s+(?:(?P<about>about |roughly |"
    r"approximately |around |some |~ ?|≈ ?|\\approx ?|\\sim ?)|only |in total |exactly )?"
    r"(?P<count>[0-9A-Z(\\][^.;,]{0,40}?)\s*(?:-dimensional|(?:entries|features|components|dimensions|monomials)\b)"
)
_NUMBER = re.compile(r"[\s\[\](){}.:]*(?:and\s+)?(?:(?:a|an|the)\s+)?(?:constants?|bias|"
r"number)?\s*(?:terms?|features?|of)?\s*"
                     r"(\d+)[\s\[\](){}.^T\\]*")  # fmt: skip
NAMES = {(2,): "squares", (1, 1): "mixed products", (1,): "components", (): "the constant"}

Profile = dict[tuple[int, ...], Fraction]  # how a feature's exponents look, to the weight that it has in the kernel


class Read(NamedTuple):
    """A map that was read; `width` is the one width that a list without dots is for."""

    profile: Profile
    width: int | None = None


@dataclass(frozen=True)
class FeatureMap:
    """Any φ with φ(q)ᵀφ(k) = (qᵀk + constant)²: a list for one width, a pattern with dots, vec(qqᵀ), or words.

    `either` takes the maps of both constants, 0 and 1, where the question leaves the constant open.
    """

    constant: int
    shown: str
    letter: str = "q"
    width: str = "D"
    either: bool = False

    @property
    def text(self) -> str:
        return self.shown

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        found = read_map(answer)
        if found is None:
            return self._without_list(answer)
        other = 1 - self.constant
        if found.profile == wanted(other) and (self.either or names_constant(answer, other)):
            condition = f"the constant of the kernel is {other}"
            if not self.either:
                return Outcome("conditional", f"right only if {condition}", condition=condition)
        elif faults := self._faults(found.profile):
            return Outcome("wrong", "; ".join(faults))
        if found.width is not None:
            condition = f"{self.width} = {found.width}"
            return Outcome("conditional", f"right only if {condition}: write it for any width", condition=condition)
        return Outcome("right", "the product of the features of two vectors is the kernel")

    def _faults(self, found: Profile) -> list[str]:
        right = wanted(self.constant)
        faults = []
        for kind, weight in right.items():
            if kind not in found:
                faults.append(f"{NAMES[kind]} are missing" if kind else "the constant is missing")
            elif found[kind] != weight:
                faults.append(f"{NAMES[kind]} add {found[kind]} to the product where {weight} is wanted")
        extra = [NAMES.get(kind, f"products of degree {sum(kind)}") for kind in found if kind not in right]
        return faults + [f"{name} do not belong there" for name in extra]

    def _without_list(self, answer: str) -> Outcome:
        """A text without features: their number alone, a formula that is no list, or nothing."""
        d = self.width
        counted = _WORDED_COUNT.search(re.sub(r"[$]|\\(?:left|right)", "", answer)[:MOST_READ])
        if counted is not None:
            right = (rf"({d}+1)({d}+2)/2", f"{d}^2 + {d} + 1", f"({d}+1)^2") if self.constant else ()
            right += () if self.constant and not self.either else (f"{d}({d}+1)/2", f"{d}^2")
            right += (f"{d}^2/2", f"{d}^2") if counted["about"] else ()
            same = (compare(each, counted["count"], {d: "natural"}).kind for each in right)
            if any(kind == "equal" for kind in same) or re.match(r"\\?(?:mathcal|O|Theta)", counted["count"]):
                return Outcome("incomplete", "that is how many features there are; write down which")
            return Outcome("wrong", "that is not how many features there are: every pair of components is one")
        end = answer.rpartition("=")[2].strip(" $.")
        words = re.sub(r"\\[a-zA-Z]+|\b(?:sqrt|vec)\b", " ", end)
        if "=" in answer and re.search(r"\b[a-z]\b", words) and not re.search(r"[A-Za-z]{3,}", words):
            return Outcome(
                "wrong", "a feature map gives a list of features: products of components, each with its factor"
            )
        return Outcome("unread", "no list of features could be read; write them as [q_1^2, …, q_D^2, …]")

    def same(self, wrong: str, answer: str) -> bool:
        found, planted = read_map(answer), read_map(wrong)
        return found is not None and planted is not None and found.profile == planted.profile


def wanted(constant: int) -> Profile:
    """Exponents of a feature to what its squared coefficients must add up to."""
    both = {(2,): Fraction(1), (1, 1): Fraction(2)}
    return both | ({(1,): Fraction(2 * constant), (): Fraction(constant**2)} if constant else {})


def no_mixed_products(answer: str) -> bool:
    """Whether a map has features of single components only, so that there are about as many as components."""
    found = read_map(answer)
    return found is not None and (1, 1) not in found.profile and bool({(2,), (1,)} & set(found.profile))


def profile(answer: str) -> Profile | None:
    """What a feature map gives to each kind of monomial; None where it cannot be read."""
    found = read_map(answer)
    return None if found is None else found.profile


def read_map(answer: str) -> Read | None:
    """The map of a text: the last of its lists that is for every width, else one for a single width, else its words."""
    text = _plain(answer[:MOST_READ])
    if (lifted := _lifted(text)) is not None:
        return Read(lifted)
    # What the map is called, and an equation that is to be met, are no features.
    text = re.sub(rf"\\?(?:phi|φ|ϕ)\s*\(\s*{_VECTOR}\s*\)\s*{_TOP}?", " ", text)
    read = [found for listed in _lists(text) if (found := _read_list(listed, text)) is not None]
    general = [found for found in read if found.width is None]
    if general or read:
        return (general or read)[-1]
    if "=" in text and re.search(r"[\[(,]|vec|⊗", end := text.rpartition("=")[2]):
        text = end
    return _read_list(_without_remarks(text), text)


def _plain(answer: str) -> str:
    """A text with one writing for roots, dots, powers and ranges of indices."""
    text = re.sub(
        r"\\(?:left|right|mathbf|boldsymbol|bm|big[lr]?|Big[lr]?|text|mathrm|operatorname)(?![a-zA-Z])", " ", answer
    )
    text = re.sub(r"\{\s*(vec|flatten)\s*\}", r"\1", re.sub(r"(?<!\\)\\[,;:! ]", " ", text))
    text = re.sub(r"\\q?quad(?![a-zA-Z])|\\(?:begin|end)\s*\{[a-z]*\}", " ", text)
    text = text.replace("$", " ").replace("−", "-").replace("√", r"\sqrt ").replace("·", " ").replace(r"\cdot", " ")
    text = text.replace(r"\otimes", "⊗").translate(str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")).replace("²", "^2")
    text = re.sub(r"(?<![A-Za-z\\_^])([a-z])([0-9])(?=\^|\s|,|\))", r"\1_\2", text)
    text = re.sub(r"\\[lcd]?dots[cb]?|\.\.\.|…", ",…,", text)
    i, j, upto = r"\(?\s*i\s*", r"\s*j\b\s*\)?", r"(?:\s*=\s*1(?:[\s,…]*[A-Za-z]\b)?)?"
    lead = (
        r"(?:\b(?:for|with|where|over)\s+)?(?:\b(?:all|every|each|"
        r"any)\s+)?(?:(?:ordered\s+)?(?:pairs?|indices)\s+(?:of\s+)?)?"
    )
    text = re.sub(rf"{lead}(?:1\s*(?:≤|\\leq?|<=)\s*)?{i}(?:≤|\\leq?(?![a-z])|<=){j}", " ⟨upto⟩ ", text)
    text = re.sub(rf"{lead}(?:1\s*(?:≤|\\leq?|<=)\s*)?{i}(?:<|\\lt(?![a-z])){j}", " ⟨less⟩ ", text)
    text = re.sub(rf"{lead}{i}(?:≠|!=|\\neq?(?![a-z])){j}", " ⟨differ⟩ ", text)
    text = re.sub(rf"_\s*\{{\s*i\s*,\s*j\b{upto}\s*\}}|{lead}\(?\b{i},{j}{upto}", " ⟨all⟩ ", text)
    return re.sub(r"(?:≤|\\leq?(?![a-z])|<=)\s*[A-Z]\b", " ", text)


def _lifted(text: str) -> Profile | None:
    """vec(x̃ x̃ᵀ) of a longer vector x̃ = (1, x): the kernel of x̃ squared."""
    outer = _OUTER.search(text)
    if outer is None:
        return None
    name = re.escape(outer[1] or outer[2])
    given = re.search(rf"{name}\s*(?::=|=)\s*([(\[].*?[)\]])", text[: outer.start()] + " ; " + text[outer.end() :])
    parts = _read_list(given[1], given[1]) if given else None
    if parts is None or set(parts.profile) - {(1,), ()}:
        return None
    one, constant = parts.profile.get((1,), Fraction(0)), parts.profile.get((), Fraction(0))
    found = {(2,): one**2, (1, 1): 2 * one**2, (1,): 2 * one * constant, (): constant**2}
    return {kind: weight for kind, weight in found.items() if weight}


def _lists(text: str) -> list[str]:
    """Lists in brackets with components or an outer product in them, in the order of the text."""
    found: list[str] = []
    opened: list[int] = []
    for place, sign in enumerate(text):
        if sign in "([":
            opened.append(place)
        elif sign in ")]" and opened:
            start = opened.pop()
            inside = text[start + 1 : place]
            features = _COMPONENT.search(inside) or _OUTER.search(inside)
            if not opened and features and re.search(r"[,;&]|\\\\", inside):
                found.append(inside + _range_behind(text, place))
    return found


def _range_behind(text: str, place: int) -> str:
    behind = re.match(r"[\s)\]]*(⟨\w+⟩)", text[place + 1 :])
    return f" {behind[1]} " if behind else ""


def _without_remarks(text: str) -> str:
    """Words as a list: remarks on how many there are taken out, "and" as a comma."""
    text = re.sub(r"\([^()]*\b(?:entries|features|of them|terms|pairs|components)\b[^()]*\)", " ", text)
    text = re.sub(
        r",?\s*\b(?:which|so|it|that|this|the feature map|there)\b[^.,;]*\b(?:entries|features|dimensions)\b", " ", text
    )
    return re.sub(
        r"\band\b|\bplus\b|\bconcatenated with\b|\bappended (?:to|with)\b|\btogether with\b|\balong with\b|(?<=\w)\.\s",
        ",",
        text,
    )


def _read_list(listed: str, text: str) -> Read | None:
    found: Profile = {}
    if _OUTER.search(listed):
        found = {(2,): Fraction(1), (1, 1): Fraction(2)}
        listed = _OUTER.sub(" ", listed)
    pieces = [piece for piece in re.split(r"[,;&\n]|\\\\", listed) if piece.strip(" []()\\{}^T.|")]
    marks: dict[tuple[int, ...], set[Fraction]] = {}
    exact: dict[tuple[tuple[str, int], ...], Fraction] = {}
    dotted = any("…" in piece for piece in pieces)
    for piece in pieces:
        one = None if "…" in piece else _monomial(piece)
        if one is None:
            continue
        weight, powers = one
        kind = tuple(sorted(powers.values(), reverse=True))
        for each, times in _meant(kind, piece).items():
            marks.setdefault(each, set()).add(weight * times)
        named = tuple(sorted(powers.items()))
        exact[named] = exact.get(named, Fraction(0)) + weight
    if not exact:
        return Read(found) if found else None
    lettered = any(not index.isdigit() for named in exact for index, _ in named if index)
    if not dotted and not lettered and not found:
        return _concrete(exact)
    twice = not re.search(r"⟨\w+⟩", listed) and _both_orders(listed, text)
    for kind, weights in marks.items():
        if len(weights) > 1:
            return None
        weight = weights.pop()
        found[kind] = found.get(kind, Fraction(0)) + weight * (2 if twice and kind == (1, 1) else 1)
    return Read(found)


def _meant(kind: tuple[int, ...], piece: str) -> dict[tuple[int, ...], int]:
    """The kinds that x_i x_j stands for, over the pairs that the piece names, and how often each comes."""
    over = re.search(r"⟨(\w+)⟩", piece)
    if kind != (1, 1) or over is None:
        return {kind: 1}
    return {
        "all": {(2,): 1, (1, 1): 2},
        "upto": {(2,): 1, (1, 1): 1},
        "differ": {(1, 1): 2},
        "less": {(1, 1): 1},
    }[over[1]]


def _both_orders(listed: str, text: str) -> bool:
    """Whether a pattern lists every pair twice, as q_1 q_2 and q_2 q_1."""
    pairs = re.findall(r"_\s*\{?([\dA-Za-z])\}?\s*\\?[a-z]_\s*\{?([\dA-Za-z])\}?", listed)
    swapped = any((b, a) in pairs for a, b in pairs if a != b)
    squares = any(a == b for a, b in pairs) and not re.search(r"\^\s*\{?2", listed) and r"\sqrt" not in _mixed(listed)
    said = re.search(
        r"\b(?:all|every|each)\b[^.;]{0,20}\b(?:ordered|pairs)|\bordered pairs|"
        r"\b[A-Z]\^\{?2\}? (?:ordered |pairs|products)",
        text,
    )
    return swapped or squares or said is not None


def _mixed(listed: str) -> str:
    """The pieces of a list that are products of two components."""
    return " ".join(piece for piece in listed.split(",") if len(_COMPONENT.findall(piece)) == 2)


def _concrete(exact: Mapping[tuple[tuple[str, int], ...], Fraction]) -> Read | None:
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
    return Read(found, width) if width else None


def _monomials(kind: tuple[int, ...], width: int) -> int:
    """How many monomials of `width` variables have these exponents."""
    repeats = prod(factorial(kind.count(power)) for power in set(kind))
    return comb(width, len(kind)) * factorial(len(kind)) // repeats


def _monomial(piece: str) -> tuple[Fraction, dict[str, int]] | None:
    """The squared coefficient and the power of each component: "\\sqrt{2} q_1 q_2" is 2 and {1: 1, 2: 1}."""
    weight = Fraction(1)
    rest = re.sub(r"⟨\w+⟩", " ", piece)
    root = r"\\?sqrt\s*[({]?\s*(\d+)\s*[)}]?"
    for found in re.finditer(root, rest):
        weight *= int(found[1])
    rest = re.sub(root, " ", rest)
    powers: dict[str, int] = {}
    for found in _COMPONENT.finditer(rest):
        index, power = (found[1], found[2]) if found[1] else (found[3], found[4])
        powers[index] = powers.get(index, 0) + int(power or 1)
    rest = _COMPONENT.sub(" ", rest)
    if not powers:
        rest = rest.rpartition(":")[2]
        if whole := re.fullmatch(rf"[\s\[\](){{}}]*\\?([a-z])(?:\s*{_TOP})?[\s\[\](){{}}]*(?:{_TOP})?\s*", rest):
            return weight, {f"{whole[1]}": 1}
        number = _NUMBER.fullmatch(rest)
        return (weight * int(number[1]) ** 2, {}) if number else None
    if number := re.search(r"(?<![\w^])\d+(?![\w^])", rest):
        weight *= int(number[0]) ** 2
    return weight, powers


def names_constant(answer: str, constant: int) -> bool:
    """Whether a text says itself that the kernel has this constant."""
    none = (
        r"constant[^.;]{0,30}(?:left out|dropped|omitted|zero|0\b|ignored)|(?:without|no) (?:the |"
        r"a )?constant|c\s*=\s*0"
    )
    return (
        re.search(none if constant == 0 else r"c\s*=\s*1|constant[^.;]{0,20}\b1\b", answer, re.IGNORECASE) is not None
    )
