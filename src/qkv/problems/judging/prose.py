"""Answers in words: which ideas an explanation holds, which it denies, and what is said to belong where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ..outcome import Outcome
from .answers import unreadable
from .doubts import flatly_denied, held, told
from .wording import denied, normalised, sentences

GAP = "…"


@dataclass(frozen=True)
class Idea:
    """Something that an explanation should (or should not) say; one of `patterns` is enough.

    Patterns are regular expressions over `normalised` text, case ignored; "…" in one stands for at most eight words of
    the same sentence. What is denied does not count: "not zero" does not say "zero". A pattern that itself names a
    negation ("not differentiable") is taken with it. `why` says the idea in a sentence.
    """

    name: str
    patterns: tuple[str, ...]
    why: str = ""

    def said(self, text: str) -> bool:
        """Whether the text says it."""
        return any(_says(pattern, sentence) for sentence in sentences(text) for pattern in self.patterns)

    def opposed(self, text: str) -> bool:
        """Whether the text says that it is not so."""
        return any(_denies(pattern, sentence) for sentence in sentences(text) for pattern in self.patterns)


@dataclass(frozen=True)
class Ideas:
    """An explanation in words: right where every one of `ideas` is there (or `least` of them) and none of `against`.

    An idea that is denied, and said nowhere else, is as wrong as one of `against`. What `partly` holds is true and not
    enough: an answer that has nothing else is incomplete. `shown` is a model answer. What says nothing of the matter
    is unread: it may be right in words not foreseen.

    >>> vanishing = Ideas((Idea("gradients vanish", ("gradients? … (?:vanish|zero)",), "The gradients vanish."),))
    >>> vanishing.check("so the gradient is almost zero").kind, vanishing.check("The gradient isn't zero.").kind
    ('right', 'wrong')
    """

    ideas: tuple[Idea, ...]
    against: tuple[Idea, ...] = ()
    shown: str = ""
    least: int = 0
    partly: tuple[Idea, ...] = ()

    @property
    def text(self) -> str:
        return self.shown or " ".join(idea.why or idea.name for idea in self.ideas)

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer, prose=True)) is not None:
            return nothing
        if not told(answer):
            return Outcome("unread", "these are words beside each other: write a sentence")
        answer = held(answer, prose=True)
        found, faults = self.read(answer)
        if faults:
            return Outcome("wrong", "; ".join(fault.why or f"it says: {fault.name}" for fault in faults))
        wanted = self.least or len(self.ideas)
        if len(found) >= wanted and (nothing := flatly_denied(answer)) is not None:
            return nothing
        if len(found) >= wanted:
            return Outcome("right", "it says " + _listed(idea.name for idea in found) if found else "nothing is wrong")
        missing = _listed(idea.name for idea in self.ideas if idea not in found)
        every = (*self.ideas, *self.partly)
        if opposed := [idea for idea in every if idea not in found and not idea.said(answer) and idea.opposed(answer)]:
            return Outcome("wrong", "it says the opposite: " + " ".join(idea.why or idea.name for idea in opposed))
        found = (*found, *(idea for idea in self.partly if idea.said(answer)))
        if not found:
            return Outcome("unread", f"nothing was found of what is asked: {missing}")
        return Outcome("incomplete", f"it says {_listed(idea.name for idea in found)}; missing: {missing}")

    def read(self, answer: str) -> tuple[tuple[Idea, ...], tuple[Idea, ...]]:
        """The ideas that the text has, and those it should not have."""
        answer = held(answer, prose=True)
        return (
            tuple(idea for idea in self.ideas if idea.said(answer)),
            tuple(idea for idea in self.against if idea.said(answer)),
        )

    def same(self, wrong: str, answer: str) -> bool:
        if normalised(wrong) == normalised(answer):
            return True
        believed, given = self.read(wrong)[1], self.read(answer)[1]
        return bool(believed) and set(believed) <= set(given)


def _listed(names) -> str:
    """Names with commas and an "and".

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = [*names] or [""]
    return f"{', '.join(most)} and {last}" if most else last


@lru_cache(maxsize=2048)
def compiled(pattern: str) -> tuple[re.Pattern[str], bool]:
    """The expression of a pattern, and whether it names a negation itself."""
    gap = r"(?:[^\s]*\s+(?:[^\s.;!?]+\s+){0,8}?)"
    body = re.sub(rf"\s*{GAP}\s*", lambda _: gap, pattern.replace(r"\…", GAP))
    own = re.search(r"\b(?:not|no|never|none|nothing|without|neither|nor)\b", pattern) is not None
    return re.compile(rf"(?<!\w)(?:{body})", re.IGNORECASE), own


def _says(pattern: str, sentence: str) -> bool:
    expression, own = compiled(pattern)
    return any(not denied(sentence, *found.span(), own) for found in expression.finditer(sentence))


def _denies(pattern: str, sentence: str) -> bool:
    expression, own = compiled(pattern)
    return any(denied(sentence, *found.span(), own) for found in expression.finditer(sentence))
