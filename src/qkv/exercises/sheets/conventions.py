"""Conventions and structure that a text settles, by a table of rules in conventions.toml."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from ..record import Convention, Span, Structure
from .asked import pattern, plain, sentences

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {name: number for number, name in enumerate(_WORDS, 1)}


@dataclass(frozen=True)
class Rule:
    """Patterns, and what they settle."""

    when: re.Pattern[str]
    unless: re.Pattern[str] | None
    conventions: dict[str, Any]
    structure: dict[str, Any]


@dataclass
class Settled:
    """What texts settle, with the spans of the words that do in the first of them."""

    conventions: dict[str, Any] = field(default_factory=dict)
    structure: dict[str, Any] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def as_conventions(self) -> dict[Any, Convention]:
        """The conventions, all of them said."""
        return {name: Convention(value=value) for name, value in self.conventions.items()}

    def as_structure(self) -> Structure:
        return Structure(**self.structure)


@cache
def _rules() -> tuple[Rule, ...]:
    data = tomllib.loads(files("qkv.exercises.sheets").joinpath("conventions.toml").read_text(encoding="utf-8"))
    words = data["words"]
    return tuple(
        Rule(
            pattern("|".join(each["when"]), words),
            pattern("|".join(each["unless"]), words) if "unless" in each else None,
            each.get("conventions", {}),
            each.get("structure", {}),
        )
        for each in data["rule"]
    )


def settled(text: str, *contexts: str) -> Settled:
    """What a text settles, and then what the texts that it refers to settle.

    >>> settled("Use causal attention without scaling, and round to three decimal places.").conventions
    {'scale': 'none', 'digits': 6}
    """
    found = Settled()
    for place, each in enumerate((text, *contexts)):
        _read(each, found, place == 0)
    return found


def _read(text: str, found: Settled, own: bool) -> None:
    shown = plain(text)
    named: dict[str, Any] = {}
    for start, end in reversed(list(sentences(shown))):  # what is said later replaces what was said before
        sentence = shown[start:end]
        for rule in _rules():
            match = rule.when.search(sentence)
            if match is None or (rule.unless and rule.unless.search(sentence)):
                continue
            if own:
                found.spans += [
                    (start + each.start(), start + each.end()) for each in rule.when.finditer(sentence) if each.group()
                ]
            for kind, settings in (("conventions", rule.conventions), ("structure", rule.structure)):
                for name, value in settings.items():
                    named.setdefault(f"{kind}.{name}", _value(value, match))
    for name, value in named.items():
        kind, _, name = name.partition(".")
        if value is not None:
            getattr(found, kind).setdefault(name, value)


def _value(value: Any, match: re.Match[str]) -> Any:
    """A value of a rule, with the groups of the match put in."""
    if not isinstance(value, str) or "\\" not in value:
        return value
    groups = [each for each in match.groups() if each is not None]
    number = str(_NUMBERS.get(groups[0].lower(), groups[0])) if groups else "1"
    kind, _, rest = value.replace(r"\1", number).partition(":")
    if not rest:
        return kind
    if kind == "number":
        return int(rest)
    if kind == "bits":
        words = {"four": "4", "eight": "8", "sixteen": "16"}
        return {"4": "int4", "8": "int8", "16": "float16", "32": "float32"}[words.get(rest, rest)]
    # The record counts significant digits: three more than the decimals that a text asks for are enough of them.
    return int(rest) + 3 if kind == "decimals" else int(rest)
