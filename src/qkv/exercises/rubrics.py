"""Explanations in words, judged by a short rubric: which of its propositions are found. Never "wrong".

A rubric is a TOML file of rubrics/: propositions, each with patterns that state it, and statements that speak against
a right answer and may show a known mistake. In a pattern "…" stands for at most eight words of the same sentence.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from .findings import CannotSolve, Finding
from .forms.statement import LONGEST, phrases
from .outcome import Outcome, unread

_GAP = r"(?:[^\s]*\s+(?:[^\s.;!?]+\s+){0,8}?)"


@dataclass(frozen=True)
class Proposition:
    """What an explanation may say; `negates` are patterns that state its opposite."""

    id: str
    statement: str = ""
    states: Sequence[str] = ()
    negates: Sequence[str] = ()
    required: bool = True
    mistake: str = ""

    def found(self, sentences: tuple[str, ...]) -> bool:
        """Whether a sentence states it and none denies it."""
        denied = {each for pattern in self.states for sentence in sentences for each in _denials(pattern, sentence)}
        opposite = {each for pattern in self.negates for sentence in sentences for each in _denials(pattern, sentence)}
        return denied == {False} and False not in opposite


@dataclass(frozen=True)
class Rubric:
    """The propositions of a question, and statements that do not belong in a right answer."""

    propositions: tuple[Proposition, ...]
    against: tuple[Proposition, ...] = ()

    def judge(self, text: str) -> Outcome:
        """Right where every required proposition is found and nothing speaks against it; else incomplete or unread."""
        if not text.strip() or len(text) > LONGEST:
            return unread("no_answer" if not text.strip() else "too_long", size=len(text), most=LONGEST)
        said = plain_sentences(text)
        found = [each for each in self.propositions if each.found(said)]
        opposed = [each for each in self.against if each.found(said)]
        missing = [each for each in self.propositions if each.required and each not in found]
        mistakes = tuple(dict.fromkeys(each.mistake for each in opposed if each.mistake))
        if not missing and not opposed:
            return Outcome("right", (Finding("said", {"what": _listed(found)}),))
        if not found:
            return Outcome("unread", (Finding("nothing_said", {"missing": _listed(missing)}),), mistakes)
        findings = [Finding("said", {"what": _listed(found)})]
        findings += [Finding("not_said", {"missing": _listed(missing), "count": len(missing)})] if missing else []
        findings += [Finding("against", {"what": _listed(opposed)})] if opposed else []
        return Outcome("incomplete", tuple(findings), mistakes)


def _listed(propositions: list[Proposition]) -> str:
    return "; ".join(each.statement or each.id for each in propositions)


@cache
def names() -> tuple[str, ...]:
    """The names of all rubrics."""
    folder = files("qkv.exercises").joinpath("rubrics")
    return tuple(sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml")))


@cache
def rubric(name: str) -> Rubric:
    """A rubric by its name ("argmax training" or "argmax-training"); CannotSolve where there is none."""
    slug = re.sub(r"[\s_]+", "-", name.strip().lower())
    if slug not in names():
        raise CannotSolve("no_rubric")
    text = files("qkv.exercises").joinpath("rubrics", f"{slug}.toml").read_text(encoding="utf-8")
    data: dict[str, list[dict[str, Any]]] = tomllib.loads(text)
    return Rubric(*(tuple(Proposition(**entry) for entry in data.get(kind, ())) for kind in ("proposition", "against")))


@cache
def _questions() -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """The rubrics that say which question they are for: what its text holds, all of it, and what it must not hold."""
    folder = files("qkv.exercises").joinpath("rubrics")
    texts = {name: folder.joinpath(f"{name}.toml").read_text(encoding="utf-8") for name in names()}
    entries = {name: tomllib.loads(text).get("question") for name, text in texts.items()}
    return {name: (entry["says"], entry.get("unless", ())) for name, entry in entries.items() if entry}


def asked_in(text: str) -> str:
    """The rubric for the explanation that a text asks for; "" where there is none, or more than one.

    >>> asked_in("Argmax replaces softmax. How does this affect our ability to train the model?")
    'argmax-training'
    """
    plain = " ".join(text.lower().split())
    found = [
        name
        for name, (says, unless) in _questions().items()
        if all(re.search(each, plain) for each in says) and not any(re.search(each, plain) for each in unless)
    ]
    return found[0] if len(found) == 1 else ""


def chosen(quantity: str, *texts: str) -> str:
    """The rubric of a quantity; where there are several, the one whose ending one of the texts holds.

    >>> chosen("masks_needed", "an encoder-decoder"), chosen("condition")
    ('masks-needed-encoder-decoder', 'condition')
    """
    slug, words = quantity.replace("_", "-"), " ".join(texts).lower()
    endings = sorted((name[len(slug) + 1 :] for name in names() if name.startswith(f"{slug}-")), key=len, reverse=True)
    fits = next((ending for ending in endings if ending in words or ending.replace("-", " ") in words), "")
    return f"{slug}-{fits}" if fits else slug


def plain_sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text in lower case with signs as words; what is doubted, quoted or taken back is left out.

    >>> plain_sentences("The gradient isn't 0. Maybe it vanishes. It explodes; this is wrong.")
    ('the gradient is not 0.',)
    """
    prose = phrases()["prose"]
    text = unicodedata.normalize("NFKC", text).replace("’", "'")
    # What is quoted is not said, unless it is a word or two.
    text = re.sub(r"[\"“«]([^\"”»]*)[\"”»]", lambda found: found[1] if len(found[1].split()) < 4 else " ", text)
    for sign, word in phrases()["signs"].items():
        text = re.sub(sign, word, text)
    text = re.sub(r"\b(i\.e|e\.g|cf|resp|vs|w\.r\.t|a\.e)\.", lambda found: found[1].replace(".", ""), text.lower())
    kept: list[str] = []
    for piece in re.split(r"(?<=[.!?;])\s+|\n+", re.sub(r"[ \t\xa0]+", " ", text)):
        if re.search(prose["retraction"], piece) and kept:
            kept.pop()
        elif piece.strip() and not re.search(prose["doubts"], piece):
            kept.append(piece.strip())
    return tuple(kept)


@cache
def _compiled(pattern: str) -> tuple[re.Pattern[str], bool]:
    """The expression of a pattern, and whether it has a negation in it."""
    body = re.sub(r"\s*…\s*", lambda _: _GAP, pattern)
    negative = re.search(r"\b(?:not|no|never|none|nothing|without|neither|nor)\b", pattern) is not None
    return re.compile(rf"(?<!\w)(?:{body})", re.IGNORECASE), negative


def _denials(pattern: str, sentence: str) -> list[bool]:
    """For each place where a pattern fits, whether the words around it deny it."""
    expression, negative = _compiled(pattern)
    prose = phrases()["prose"]
    found = []
    for match in expression.finditer(sentence):
        before = re.split(r"[,:;()]|\b(?:but|however|so|then|because|while|whereas)\b", sentence[: match.start()])[-1]
        after = re.split(r"[,:;()]|\b(?:but|because|when|if|while)\b", sentence[match.end() :])[0]
        count = len(re.findall(rf"\b(?:{prose['negation']}\s+(?:{prose['light']}\s+)*|no\s+\w+\s+)$", before))
        count += 0 if negative else len(re.findall(rf"\b{prose['negation']}\b", match[0]))
        count += re.match(prose["taken_back"], after) is not None
        found.append(count % 2 == 1)
    return found
