"""The bank: families of exercises, each a generator of records from a seed.

>>> from qkv.exercises import bank
>>> bank.named("argmax").labels
('a', 'b')
>>> bank.variant("argmax", 7).seed
7
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...cost.lookup import match_name
from ...errors import OptionError, OptionTypeError, complaint
from ..record import Exercise, plain_label
from .family import HINTS, BankExercise, Correction, checked_seed

__all__ = ["BankExercise", "Correction", "hint", "named", "names", "read_name", "read_seed", "register", "variant"]

Make = Callable[[int | None], BankExercise]

# Exercise to the module of its family, in the order of teaching: loading one loads no other.
_HOME = {
    "by-hand": "by_hand",
    "scaling": "scaling",
    "scaling-scalar": "scaling",
    "argmax": "argmax",
    "module": "module",
    "values": "values",
    "decoding": "decoding",
    "kernels": "kernels",
    "saturation": "saturation",
    "heads": "heads",
    "norms": "norms",
}
_ADDED: dict[str, Make] = {}


def names() -> tuple[str, ...]:
    """The names of all families, in the order of teaching."""
    return (*_HOME, *_ADDED)


def register(name: str, make: Make) -> None:
    """Add a family: `make` gives the exercise of a seed, and for None the one to begin with."""
    _ADDED[name] = make


def named(name: str, seed: int | None = None) -> BankExercise:
    """One exercise of the bank: as it was first printed, or the variant of a seed.

    Args:
        name: a name of `names()`; a beginning that fits one alone is enough.
        seed: None, or a whole number from 0 on; equal seeds give equal exercises.

    Raises:
        OptionError: for a name or a seed that does not exist.
    """
    wanted, among = "an exercise of the bank", f"there are {', '.join(names())}"
    if not isinstance(name, str):
        raise OptionTypeError(complaint("exercise", repr(name), wanted, among))
    if "/" in name or len(name.strip()) < 3:
        raise OptionError(complaint("exercise", repr(name), wanted, among))
    found = match_name("exercise", name, names(), wanted, among)
    if found in _ADDED:
        return _ADDED[found](checked_seed(seed))
    return import_module(f".{_HOME[found]}", __package__).FAMILIES[found](checked_seed(seed))


def read_seed(text: str) -> int | None:
    """The seed that a text is; None for an empty one.

    Raises:
        OptionError: for a text that is no seed.
    """
    number: Any = int(text) if re.fullmatch(r"-?[0-9]{1,40}", text) else text or None
    return checked_seed(number)


def read_name(text: str) -> BankExercise | None:
    """The exercise that a text such as "decoding" or "decoding:7" names; None for a text that is no name.

    Raises:
        OptionError: for a name or a seed that does not exist.

    >>> read_name("What is d?"), read_name("decoding:7").seed
    (None, 7)
    """
    found = re.fullmatch(r"\s*([a-z]+(?:-[a-z]+)*)(?::([-+\d]\S*))?\s*", text)
    return None if found is None else named(found[1], read_seed(found[2] or ""))


def variant(exercise: str | Exercise, seed: int) -> BankExercise:
    """The variant of a seed: of a name of the bank, or of one of its exercises.

    Args:
        exercise: A name of the bank, or an exercise of it.
        seed: The seed of the numbers.

    Returns:
        The same exercise with other numbers.

    Raises:
        OptionError: an exercise that is not of the bank.

    >>> variant("scaling", 3).seed
    3
    """
    if isinstance(exercise, BankExercise):
        return named(exercise.name, seed)
    if isinstance(exercise, Exercise):
        raise OptionError(complaint("exercise", "one that is not of the bank", "an exercise of the bank, or its name"))
    return named(exercise, seed)


def hint(exercise: BankExercise, label: str, strength: int = 1) -> str:
    """A hint for a part: 1 is the weakest, 3 nearly the answer."""
    if isinstance(strength, bool) or not isinstance(strength, int) or not 1 <= strength <= HINTS:
        raise OptionError(complaint("strength", repr(strength), "1, 2 or 3"))
    wanted = exercise.only(label).asked[0]
    return next(hints for each, hints in exercise.hints.items() if plain_label(each) == plain_label(wanted.label))[
        strength - 1
    ]
