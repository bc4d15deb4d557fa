"""Which problems there are, by name, and which of them a text asks."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from ..cost.lookup import match_name
from ..errors import OptionError, OptionTypeError, complaint
from .problem import Problem, checked_seed

# Problem to the package of its family, in the order of teaching: loading one loads no other.
_HOME = {
    "by-hand": "by_hand",
    "scaling": "scaling",
    "scaling-scalar": "scaling",
    "argmax": "argmax",
    "decoding": "decoding",
    "kernels": "kernels",
    "saturation": "saturation",
    "heads": "heads",
    "norms": "norms",
}


# The questions of the source documents by their numbers.
_ASKED = {
    "000-1": "scaling",
    "002-1": "by-hand",
    "002-2": "scaling-scalar",
    "003-1": "scaling",
    "003-2": "argmax",
    "003-4": "decoding",
    "003-6": "kernels",
    "004-1": "saturation",
    "004-2": "heads",
    "004-3": "norms",
}


@dataclass(frozen=True)
class Match:
    """A problem that a text asks, with the text's own numbers and symbols; `score` is how sure that is, up to 1."""

    problem: Problem
    score: float


def names() -> tuple[str, ...]:
    """The names of all problems, in the order of teaching."""
    return tuple(_HOME)


def named(name: str, seed: int | None = None) -> Problem:
    """One problem: as the documents ask it, or the variant of a seed; "003-2" finds it by the document's question.

    >>> named("003-2").name
    'argmax'
    """
    wanted, hint = "a problem of the bank", f"there are {', '.join(_HOME)}"
    if not isinstance(name, str):
        raise OptionTypeError(complaint("problem", repr(name), wanted, hint))
    # A letter or two begin too many names, and nothing before a stroke may be dropped: they may be meant for a part.
    if "/" in name or len(name.strip()) < 3:
        raise OptionError(complaint("problem", repr(name), wanted, hint))
    found = match_name("problem", name, (*_HOME, *_ASKED), wanted, hint)
    found = _ASKED.get(found, found)
    return _family(_HOME[found]).PROBLEMS[found](checked_seed(seed))


def bank() -> dict[str, Problem]:
    """Name to problem, as the documents ask them."""
    return {name: named(name) for name in _HOME}


def recognise(text: str) -> list[Match]:
    """The problems that a text may be asking, the surest first; empty when none fits."""
    if not isinstance(text, str):
        raise OptionTypeError(complaint("text", repr(text), "a question as text"))
    found = (_family(home).recognised(text) for home in dict.fromkeys(_HOME.values()))
    matches = [Match(problem, score) for score, problem in filter(None, found)]
    return sorted(matches, key=lambda match: -match.score)


def _family(home: str) -> ModuleType:
    return import_module(f".{home}.family", __package__)
