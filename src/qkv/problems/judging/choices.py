"""Answers that choose among options: by label, by number, or in the option's own words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise

from ..outcome import Outcome, joined
from .answers import unreadable
from .doubts import flatly_denied, held

SHORT = 80  # characters of an answer that is only a list
MOST = 100  # names in one answer that are looked at
ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")

# Words that may stand beside bare labels in an answer that is nothing but labels.
_FILLING = re.compile(
    r"and|or|the|answers?|is|are|options?|choices?|only|just|correct|right|it|they|so|both|number|part|final|"
    r"statements?|select(?:ed)?|i'd|i'll|say|pick|choose|would"
)
_NOT_AFTER = (
    r"\b(?:not|(?:all|them) but|except|excluding|without|neither|nor|unlike|other than|instead of|rather than)\b"
)
_NOT_BEHIND = (
    r"^\W*(?:(?:and|or|nor|,|is|are|does|do|it)\W+){0,3}"
    r"(?:not\b|no\b|wrong|false|incorrect|excluded|irrelevant|out\b|n't|never|doesn|isn|aren|don't|✗|✘|❌)"
)
_AGAIN = r"(?<!all )(?<!them )\b(?:but(?! not)|only|instead(?! of)|yes)\b|[.;\n]"


@dataclass(frozen=True)
class Option:
    """One option: `why` says why it is right or why it is not; `also` are regular expressions for other wordings.

    `pieces` are wordings for a part of what it names: such a part alone does not choose it wholly.
    """

    label: str
    text: str
    right: bool
    why: str
    also: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """One option of several, or with `several` every one that applies.

    >>> which = Choice((Option("i", "itself", True, "it is there"), Option("ii", "others", False, "they are not"),
    ...                 Option("iii", "neighbours", True, "the mean has them")), several=True)
    >>> which.check("(i) and (iii)").kind, which.check("i, ii").reason
    ('right', '(ii) does not belong: they are not; (iii) is missing: the mean has them')
    >>> sorted(which.chosen("all but (ii)") or ())
    ['i', 'iii']
    """

    options: tuple[Option, ...]
    several: bool = False

    @property
    def text(self) -> str:
        return ", ".join(f"({option.label})" for option in self.options if option.right) or "none"

    @property
    def right(self) -> frozenset[str]:
        return frozenset(option.label for option in self.options if option.right)

    def check(self, answer: str) -> Outcome:
        for nothing in (unreadable(answer, prose=True), flatly_denied(answer)):
            if nothing is not None:
                return nothing
        chosen = self.chosen(answer)
        if chosen is None:
            labels = ", ".join(f"({option.label})" for option in self.options)
            return Outcome("unread", f"none of the options could be found in the answer; they are {labels}")
        if not self.several and len(chosen) > 1:
            given = ", ".join(f"({option.label})" for option in self.options if option.label in chosen)
            return Outcome("wrong", f"one option is asked for, and {given} are given")
        faults = [
            f"({option.label}) does not belong: {option.why}"
            if option.label in chosen
            else f"({option.label}) is missing: {option.why}"
            for option in self.options
            if (option.label in chosen) != option.right and (self.several or option.label in chosen or not chosen)
        ]
        return Outcome("wrong", "; ".join(faults)) if faults else Outcome("right", self._praise())

    def same(self, wrong: str, answer: str) -> bool:
        planted = self.chosen(wrong)
        return planted is not None and planted == self.chosen(answer)

    def chosen(self, answer: str) -> frozenset[str] | None:
        """The labels that an answer chooses; None where it chooses nothing that can be read."""
        text = folded(held(answer, prose=True))
        found = self._whole(text) or self._labelled(text) or self._worded(text)
        if found:
            return frozenset(found)
        if re.search(r"\b(?:none|nothing)\b", text):
            return frozenset()
        if re.search(r"^\W*(?:all|every|each)\b|\ball (?:of them|of the above|\w+ of them|the options)\b", text):
            return frozenset(option.label for option in self.options)
        return None

    def _praise(self) -> str:
        return "; ".join(f"({option.label}): {option.why}" for option in self.options if option.right) or "none applies"

    def _whole(self, text: str) -> set[str]:
        """An answer that is one option's text, or nothing but labels."""
        wanted = squashed(text)
        for option in self.options:
            if wanted == squashed(option.text):
                return {option.label}
        words = [word for word in re.split(r"[\s,;/&+.:()\[\]{}=\"`]+", text) if word and not _FILLING.fullmatch(word)]
        names = self._names()
        if words and all(word in names for word in words):
            return {names[word] for word in words}
        return set()

    def _names(self) -> dict[str, str]:
        """Every short name of an option: its label, its number, its ordinal."""
        names = {ORDINALS[place]: option.label for place, option in enumerate(self.options[: len(ORDINALS)])}
        names |= {str(place): option.label for place, option in enumerate(self.options, 1)}
        return names | {option.label.lower(): option.label for option in self.options}

    def _labelled(self, text: str) -> set[str]:
        """Labels in brackets, or after "option", that the text does not deny."""
        names = self._names()
        short = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
        signs = rf"\(\s*({short})\s*\)|(?<![\w(])({short})\)|\[({short})\]|\b(?:option|choice|answer is)\s+({short})\b"
        signs += rf"|\b(?:the )?({'|'.join(ORDINALS)}) (?:option|choice|one|answer|line|alternative)\b"
        places = [
            (found.start(), found.end(), names[next(group for group in found.groups() if group)])
            for found in re.finditer(signs, text)
        ]
        return self._kept(text, places)

    def _worded(self, text: str) -> set[str]:
        """The options' own words, the longest first so that none is found within another."""
        places: list[tuple[int, int, str]] = []
        wordings = [
            (wording, option.label)
            for option in self.options
            for wording in (*option.also, _as_pattern(option.text))
            if wording
        ]
        for wording, label in sorted(wordings, key=lambda pair: -len(pair[0])):
            for found in re.finditer(wording, text):
                if all(found.end() <= start or found.start() >= end for start, end, _ in places):
                    places.append((found.start(), found.end(), label))
        return self._kept(text, sorted(places))

    def _kept(self, text: str, places: list[tuple[int, int, str]]) -> set[str]:
        """The labels at `places` that are not denied; "all but" and "except" deny those that follow."""
        kept: set[str] = set()
        denied: set[str] = set()
        for place, (start, end, label) in enumerate(places):
            before = text[:start]
            since = max((found.end() for found in re.finditer(_AGAIN, before)), default=0)
            gap = text[end : places[place + 1][0]] if place + 1 < len(places) else text[end:]
            if re.search(_NOT_AFTER, before[since:]) or re.search(_NOT_BEHIND, _listed(gap, text, places, place)):
                denied.add(label)
            else:
                kept.add(label)
        if not kept and denied and re.search(r"\b(?:all|every\w*)\b(?: \w+){0,3} (?:but|except)\b", text):
            return {option.label for option in self.options} - denied
        return kept - denied if kept - denied else kept


def _listed(gap: str, text: str, places: list[tuple[int, int, str]], place: int) -> str:
    """What follows a label; for one of a list, "(ii) and (iv) are not", what follows the list."""
    while re.fullmatch(r"[\s,;&]*(?:and|or|nor)?[\s,]*", gap) and place + 1 < len(places):
        place += 1
        gap = text[places[place][1] : places[place + 1][0]] if place + 1 < len(places) else text[places[place][1] :]
    # A "not" right before the next label is said of that one.
    return re.sub(r"\b(?:not|nor|except)(?: on| of| in)?\W*$", "", gap) if place + 1 < len(places) else gap


@dataclass(frozen=True)
class Leading:
    """Which of several things leads (is the bottleneck, dominates): in words, where the others may be named beside it.

    An answer that names one thing means it; of several it means the one that is said to lead, else the first. `case`
    are patterns for the case that is asked about and for the other one: a text that speaks of both is read only where
    it speaks of the first.

    >>> dear = Leading((Option("A", "projections", True, "the width is squared", (r"projections?",)),
    ...                 Option("B", "scores", False, "the length is short", (r"scores?",))))
    >>> dear.check("Projections dominate, the scores are cheap.").kind, dear.check("the attention scores").kind
    ('right', 'wrong')
    """

    options: tuple[Option, ...]
    case: tuple[str, str] = ("", "")

    @property
    def text(self) -> str:
        return next(option.text for option in self.options if option.right)

    def check(self, answer: str) -> Outcome:
        for nothing in (unreadable(answer, prose=True), flatly_denied(answer)):
            if nothing is not None:
                return nothing
        if _OPEN.search(folded(answer)) and len({option.label for _, _, option in self._kept(answer)}) > 1:
            return Outcome("unread", "it leaves open which of the two leads")
        if self._joined(answer):
            return Outcome("wrong", "one of them leads, and several are named")
        option = self.meant(answer)
        if option is None:
            return Outcome("unread", f"nothing was found of {' or '.join(option.text for option in self.options)}")
        if option.right and self._in_part(option, self._meant_case(folded(answer))):
            return Outcome("incomplete", f"that is a part of it; all of it is {option.text}")
        return Outcome("right" if option.right else "wrong", f"{option.text}: {option.why}")

    @staticmethod
    def _in_part(option: Option, text: str) -> bool:
        """Whether a text names one piece of an option and nothing else of it."""
        named = [piece for piece in option.pieces if re.search(piece, text)]
        whole = re.sub("|".join(option.pieces), " ", text) if option.pieces else text
        return len(named) == 1 and not any(re.search(wording, whole) for wording in option.also)

    def _meant_case(self, text: str) -> str:
        """What of a text is about the case that is asked about."""
        own, other = self.case
        if not own or not re.search(other, text):
            return text
        kept, speaks = [], True
        for piece in re.split(r"(?<=[.;\n])\s*|\b(?=while\b|whereas\b|but\b|and for\b|and when\b)", text):
            here, there = re.search(own, piece), re.search(other, piece)
            speaks = here is not None if bool(here) != bool(there) else speaks
            kept += [piece] if speaks else []
        return " ".join(kept)

    def same(self, wrong: str, answer: str) -> bool:
        planted = self.meant(wrong)
        return planted is not None and planted == self.meant(answer)

    def meant(self, answer: str) -> Option | None:
        """The option that an answer says to lead."""
        text, kept = self._meant_case(folded(held(answer))), self._kept(answer)
        led = [option for start, end, option in kept if re.search(_LEADS_BEHIND, text[end : end + 70])]
        led += [option for start, end, option in kept if re.search(_LEADS_BEFORE, text[max(0, start - 70) : start])]
        found = led or [option for _, _, option in kept]
        return found[0] if found else None

    def _kept(self, answer: str) -> list[tuple[int, int, Option]]:
        """Where the options are named and not belittled, in the order of the text."""
        text = self._meant_case(folded(held(answer)))
        places = [
            (found.start(), found.end(), option)
            for option in self.options
            for wording in (*option.also, *option.pieces, _as_pattern(option.text))
            if wording
            for found in re.finditer(wording, text)
        ]
        return sorted((place for place in places if not _belittled(text, *place[:2])), key=lambda place: place[:2])

    def _joined(self, answer: str) -> bool:
        """Whether a short answer names two options with nothing but an "and" between them."""
        kept = self._kept(answer)
        text = self._meant_case(folded(held(answer)))
        return len(text) <= SHORT and any(
            one[2] is not two[2]
            and re.fullmatch(r",? (?:and|as well as|plus)(?: also)?(?: (?:of|the|in))* ", text[one[1] : two[0]])
            for one, two in pairwise(kept)
        )


_OPEN = re.compile(r"\beither\b")
_LEADS_BEHIND = (
    r"^[^.;\n]{0,50}\b(?:dominat(?:e|es|ing)|bottleneck|(?:cost|take)s? (?:the )?most|(?:is|are) "
    r"(?:the )?(?:most|main|dominant))"
)
_LEADS_BEFORE = (
    r"(?:bottleneck|dominated by|dominant|main cost|most expensive|limited by|most of the "
    r"(?:time|work|cost))[^.;\n]{0,45}$"
)


def _belittled(text: str, start: int, end: int) -> bool:
    """Whether what stands there is said not to matter."""
    before, after = text[max(0, start - 40) : start], text[end : end + 60]
    return bool(
        re.search(r"\b(?:not|no|rather than|instead of|over|than|exceeds?|unlike|outweighs?)(?: \w+){0,2} $", before)
        or re.search(r"\bnot (?:(?!but\b)\w+ )*and (?:the )?$", before)
        or re.search(r"^[^.;,\n]{0,30}\b(?:not|negligible|cheap|small(?:er)?|minor|less|little|insignificant)\b", after)
    )


@dataclass(frozen=True)
class Choices:
    """Several choices, each known by words: "layer normalisation: (i), (iii); batch normalisation: (i), (ii)".

    `names` gives a regular expression for each. Without any name the pieces are taken in order.
    """

    items: Mapping[str, Choice] = field(hash=False)
    names: Mapping[str, str] = field(hash=False)

    @property
    def text(self) -> str:
        return "; ".join(f"{name}: {choice.text}" for name, choice in self.items.items())

    def check(self, answer: str) -> Outcome:
        for nothing in (unreadable(answer, prose=True), flatly_denied(answer)):
            if nothing is not None:
                return nothing
        found = self.read(answer)
        if not found:
            return Outcome("unread", f"write which options hold for {' and for '.join(self.items)}, one a line")
        missing = Outcome("unread", "missing")
        return joined({name: choice.check(found[name]) if name in found else missing
                       for name, choice in self.items.items()})  # fmt: skip

    def same(self, wrong: str, answer: str) -> bool:
        expected, found = self.read(wrong), self.read(answer)
        return bool(expected) and all(
            name in found and self.items[name].same(text, found[name]) for name, text in expected.items()
        )

    def read(self, answer: str) -> dict[str, str]:
        """Name to the text that speaks of it: from its name to the next name, the last that chooses something."""
        text = folded(answer)
        places = sorted(
            (found.start(), found.end(), name)
            for name, pattern in self.names.items()
            for found in islice(re.finditer(pattern, text), MOST)
        )
        found: dict[str, str] = {}
        for (_, start, name), (end, _, _) in zip(places, [*places[1:], (len(text), 0, "")], strict=False):
            if self.items[name].chosen(text[start:end]) is not None:
                found[name] = text[start:end]
        if found:
            return found
        pieces = [piece for piece in re.split(r"[;\n]", text) if piece.strip()]
        return dict(zip(self.items, pieces, strict=True)) if len(pieces) == len(self.items) and not places else {}


def folded(text: str) -> str:
    """Lower case, one sort of quote, no Markdown stars, no LaTeX that only sets type.

    >>> folded(r"**$x_{i',j}$** where $i' \\ne i$")
    "x_{i',j} where i' != i"
    """
    text = text.translate(_SIGNS).replace(r"^{\prime}", "'").replace(r"^\prime", "'").replace(r"\prime", "'")
    text = re.sub(r"\\(?:ne|neq)\b", "!=", text)
    text = re.sub(rf"\\(?:{_SETTING})\s*\{{([^{{}}]*)\}}", r"\1", text)
    text = re.sub(r"\\(?:boxed|left|right|quad|qquad|,|;|!|\(|\)|\[|\])", " ", text)
    return re.sub(r"[ \t]+", " ", text).strip().lower()


_SETTING = "text|mathrm|mathbf|boldsymbol|textbf|textit|emph|mathit|texttt|operatorname"
_SIGNS = str.maketrans({"’": "'", "′": "'", "‘": "'", "`": " ", "*": None, "$": None, "≠": "!=", "ⅰ": "i", "ⅱ": "ii",
                        "ⅲ": "iii", "ⅳ": "iv", "–": "-", "—": "-", "\u00a0": " "})  # fmt: skip


def squashed(text: str) -> str:
    """A text without the signs that people write differently: spaces, braces, brackets, commas."""
    return re.sub(r"[\s{}()\[\]\\,.;:_]+", "", folded(text))


def _as_pattern(text: str) -> str:
    """A pattern for an option's own words, spaced and bracketed in any way."""
    signs = [re.escape(sign) for sign in squashed(text)]
    if len(signs) < 3:
        return ""
    return r"(?<!\w)" + r"[\s{}()\[\]\\,_]*".join(signs) + r"(?![\w'])"


def labelled(options: Sequence[Option], style: str = "i") -> tuple[Option, ...]:
    """The options with labels in their order: i, ii …, a, b …, A, B … or 1, 2 …

    >>> [option.label for option in labelled([Option("", "yes", True, ""), Option("", "no", False, "")], "A")]
    ['A', 'B']
    """
    labels = {"i": ROMAN, "a": "abcdefgh", "A": "ABCDEFGH", "1": "12345678"}[style]
    return tuple(replace(option, label=label) for option, label in zip(options, labels, strict=False))
