"""Data files of this package, and look-up of their names: case, spaces, punctuation and an owner do not matter."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from ..errors import OptionError, complaint

MAX_SHOWN = 80  # characters of a name that an error repeats
# Suffixes of checkpoint names that do not change the model's sizes.
_SUFFIX = re.compile(r"(instruct|chat|base|hf|it|pt|uncased|cased)$")


def match_name(argument: str, given: str, known: Iterable[str], what: str, hint: str = "") -> str:
    """The known name that `given` stands for; OptionError with the nearest names if there is not exactly one.

    >>> known = ["gpt-2", "gpt-2-xl", "llama-3-8b"]
    >>> match_name("model", "GPT2", known, "a model")
    'gpt-2'
    >>> match_name("model", "meta-llama/Meta-Llama-3-8B", known, "a model")
    'llama-3-8b'
    """
    names = {_normalized(name): name for name in known}
    for form in _forms_of(given):
        if form in names:
            return names[form]
    prefixed = {name for form in _forms_of(given) for key, name in names.items() if form and key.startswith(form)}
    if len(prefixed) == 1:
        return prefixed.pop()
    near = sorted(prefixed)[:6] or _nearest(given, names)
    nearest = f"the nearest names are {', '.join(near)}" if near else ""
    shown = repr(given if len(given) <= MAX_SHOWN else f"{given[:MAX_SHOWN]}…")
    raise OptionError(complaint(argument, shown, what, "; ".join(filter(None, (nearest, hint)))))


def _nearest(given: str, names: dict[str, str]) -> list[str]:
    found = [key for form in _forms_of(given) for key in difflib.get_close_matches(form, names, n=3, cutoff=0.5)]
    return [names[key] for key in dict.fromkeys(found)][:3]


def _forms_of(given: str) -> list[str]:
    """Normalized forms to try: as typed, without the owner, without a "meta" prefix, without checkpoint suffixes."""
    whole = _normalized(given)
    last = _normalized(given.rstrip("/").rpartition("/")[2])
    forms = [whole, last, last.removeprefix("meta")]
    for form in list(forms):
        while (shorter := _SUFFIX.sub("", form)) != form and shorter:
            forms.append(shorter)
            form = shorter
    return list(dict.fromkeys(forms))


def _normalized(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.casefold())


@cache
def read_data(name: str) -> dict[str, Any]:
    """A .toml file of this folder, read once. Do not modify the result."""
    return tomllib.loads(files("qkv.cost").joinpath(name).read_text(encoding="utf-8"))
