"""Names as people type them: case, spaces, signs and an owner before a slash do not matter where one is meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from ..errors import OptionError, complaint

MOST_SHOWN = 80  # letters of a name that an error repeats
# What checkpoints add to the name of a model without changing its sizes.
_ADDED = re.compile(r"(instruct|chat|base|hf|it|pt|uncased|cased)$")


def resolve(argument: str, given: str, known: Iterable[str], what: str, hint: str = "") -> str:
    """The one known name that is meant; otherwise an error with the nearest.

    >>> known = ["gpt-2", "gpt-2-xl", "llama-3-8b"]
    >>> resolve("model", "GPT2", known, "a model"), resolve("model", "meta-llama/Meta-Llama-3-8B", known, "a model")
    ('gpt-2', 'llama-3-8b')
    """
    names = {_squashed(name): name for name in known}
    for reading in _readings(given):
        if reading in names:
            return names[reading]
    beginning = {
        name for reading in _readings(given) for key, name in names.items() if reading and key.startswith(reading)
    }
    if len(beginning) == 1:
        return beginning.pop()
    near = sorted(beginning)[:6] or _nearest(given, names)
    nearest = f"the nearest names are {', '.join(near)}" if near else ""
    shown = repr(given if len(given) <= MOST_SHOWN else f"{given[:MOST_SHOWN]}…")
    raise OptionError(complaint(argument, shown, what, "; ".join(filter(None, (nearest, hint)))))


def _nearest(given: str, names: dict[str, str]) -> list[str]:
    found = [key for reading in _readings(given) for key in difflib.get_close_matches(reading, names, n=3, cutoff=0.5)]
    return [names[key] for key in dict.fromkeys(found)][:3]


def _readings(given: str) -> list[str]:
    """What was typed; without the owner; without the owner's name before the name; without what checkpoints add."""
    whole = _squashed(given)
    last = _squashed(given.rstrip("/").rpartition("/")[2])
    readings = [whole, last, last.removeprefix("meta")]
    for reading in list(readings):
        while (shorter := _ADDED.sub("", reading)) != reading and shorter:
            readings.append(shorter)
            reading = shorter
    return list(dict.fromkeys(readings))


def _squashed(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.casefold())
