"""What a family of the bank is made of: an exercise with hints and points, words from a data file, and how seeds vary.

A generator draws numbers and sizes, and says what is asked; questions, hints and statements are templates of a TOML
file in which <name> is replaced. Gold answers, steps and planted mistakes come from the solvers.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import gcd, prod
from typing import Any, TypeVar

from pydantic import Field

from ...errors import OptionError, QkvError, complaint
from ..record import Asked, Definition, Exercise, Given, Option, Structure, _Record

HINTS = 3
_TRIES = 4000
Drawn = TypeVar("Drawn")


class Correction(_Record):
    """A number of a printed solution that is wrong: what is printed for part `label`, what is right, and why."""

    label: str
    printed: str
    right: str
    why: str


class BankExercise(Exercise):
    """An exercise of the bank: the record, with hints and points by label, and where it comes from.

    `kind` is what sets a variant apart from others apart from its digits. `symbols` are the types of the names in
    statement and questions, for those who set them as mathematics.
    """

    name: str
    seed: int | None = None
    kind: tuple[str, ...] = ()
    symbols: dict[str, str] = Field(default_factory=dict)
    hints: dict[str, tuple[str, str, str]] = Field(default_factory=dict)
    points: dict[str, int] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()
    corrections: tuple[Correction, ...] = ()
    follow_ups: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The parts, in order."""
        return tuple(asked.label for asked in self.asked)

    @property
    def record(self) -> Exercise:
        """The exercise alone, as it is written to a file."""
        return Exercise(**{name: getattr(self, name) for name in Exercise.model_fields})


@dataclass(frozen=True)
class Question:
    """A part: its label, its entry among the words of the family, the fields of `Asked`, and what fills its words."""

    label: str
    entry: str
    fields: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=dict)


def question(
    label: str, entry: str, quantity: str = "", data: Mapping[str, Any] | None = None, **fields: Any
) -> Question:
    """A part that asks for `quantity`; `fields` are those of `Asked`, before those of the entry among the words."""
    return Question(label, entry, {**fields, "quantity": quantity} if quantity else fields, data or {})


def questions(labels: Iterable[str], entries: Iterable[str], **fields: Mapping[str, Any]) -> list[Question]:
    """A part for each entry among the words; `fields` are those of `Asked` that the words do not have, by the entry."""
    return [question(label, entry, **fields.get(entry, {})) for label, entry in zip(labels, entries, strict=False)]


def given_sizes(**names: str) -> list[Given]:
    """Sizes by their roles, as symbols; a role without a name is left out."""
    return [Given(symbol=name, role=role) for role, name in names.items() if name]  # pyright: ignore[reportArgumentType]


def given_named(**named: tuple[str, Any]) -> list[Given]:
    """Values by their symbols, each with its role."""
    return [Given(symbol=name, role=role, value=value) for name, (role, value) in named.items()]  # pyright: ignore


def given_values(**values: Any) -> tuple[Given, ...]:
    """Values by their roles, without symbols."""
    return tuple(Given(role=role, value=value) for role, value in values.items())  # pyright: ignore[reportArgumentType]


def built(
    name: str,
    seed: int | None,
    words: Mapping[str, Any],
    questions: Sequence[Question],
    *,
    givens: Sequence[Given] = (),
    data: Mapping[str, Any] | None = None,
    structure: Structure | None = None,
    definitions: Sequence[str] = (),
    conventions: Mapping[str, Any] | None = None,
    symbols: Mapping[str, str] | None = None,
    kind: Iterable[Any] = (),
    statement: str = "statement",
) -> BankExercise:
    """The exercise of drawn givens and questions, with its words filled in from `data`."""
    common = dict(data or {})
    asked, hints, points = [], {}, {}
    for each in questions:
        entry, known = words[each.entry], {**common, **each.data}
        asked.append(Asked(label=each.label, text=filled(entry["ask"], known), **_fields(entry, each.fields, known)))
        hints[each.label] = tuple(filled(hint, known) for hint in entry["hints"])
        points[each.label] = entry["points"]
    return BankExercise(
        name=name,
        seed=seed,
        title=words["title"],
        text=filled(words[statement], common),
        givens=tuple(givens),
        structure=structure or Structure(),
        definitions=tuple(Definition(text=text) for text in definitions),
        conventions={name: {"value": value} for name, value in (conventions or {}).items()},  # pyright: ignore
        asked=tuple(asked),
        kind=tuple(map(str, kind)),
        symbols=dict(symbols or {}),
        hints=hints,
        points=points,
        sources=tuple(words.get("sources", ())),
        corrections=tuple(Correction(**each) for each in words.get("corrections", ())) if seed is None else (),
        follow_ups=tuple(filled(each, common) for each in words.get("follow_ups", ())),
    )


def _fields(entry: Mapping[str, Any], fields: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Asked` that the words have, and those of the question; the mistakes of both."""
    found = {name: filled(entry[name], known) for name in ("quantity", "object", "form", "rubric") if name in entry}
    mistakes = tuple(filled(each, known) for each in (*entry.get("mistakes", ()), *fields.get("mistakes", ())))
    return {**found, **fields, "mistakes": mistakes}


@cache
def words_of(file: str) -> dict[str, Any]:
    """The words of a family: a TOML file of this package."""
    return tomllib.loads(files("qkv.exercises.bank").joinpath(f"{file}.toml").read_text(encoding="utf-8"))


def filled(template: str, data: Mapping[str, Any]) -> str:
    """A template with its names replaced.

    >>> filled("$z_{<token>,1} < 3$", {"token": 2})
    '$z_{2,1} < 3$'
    """
    return re.sub(r"<([a-z_]+)>", lambda found: str(data.get(found[1], found[0])), template).strip()


def spread(seed: int, **choices: Sequence[Any]) -> dict[str, Any]:
    """One of each of the choices, so that the first prod(sizes) seeds differ and neighbours have little in common.

    >>> len({tuple(spread(seed, n=(2, 3, 4), mask=("none", "causal")).values()) for seed in range(6)})
    6
    """
    total = prod(map(len, choices.values()))
    stride = round(total * 0.618) or 1
    while gcd(stride, total) != 1:
        stride += 1
    place, found = seed * stride % total, {}
    for name, options in choices.items():
        place, digit = divmod(place, len(options))
        found[name] = options[digit]
    return found


def drawn(name: str, seed: int, attempt: Callable[[random.Random], Drawn | None]) -> Drawn:
    """The first attempt that succeeds (is not None), always the same one for a name and a seed."""
    draw = random.Random(f"{name}:{seed}")
    for _ in range(_TRIES):
        if (found := attempt(draw)) is not None:
            return found
    raise QkvError(f"no numbers fit seed {seed} of {name}")


def rows(draw: random.Random, count: int, width: int, low: int, high: int) -> list[list[int]]:
    """A matrix of small whole numbers, with zeros more often than others."""
    return [[draw.choice((0, *range(low, high + 1))) for _ in range(width)] for _ in range(count)]


def listed(words: Sequence[Any]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b"]), listed("abc")
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(map(str, words[:-1])), str(words[-1]))))


def vector(entries: Sequence[Any]) -> str:
    return f"({', '.join(map(str, entries))})"


def matrix(entries: Sequence[Sequence[Any]]) -> str:
    lines = (", ".join(map(str, row)) for row in entries)
    return f"[{', '.join(f'[{line}]' for line in lines)}]"


def displayed(named: Mapping[str, str]) -> str:
    """Equations as displayed formulas, one a line.

    >>> displayed({"q": "(1, 2)"})
    '$$q = (1, 2)$$'
    """
    return "\n\n".join(f"$${name} = {value}$$" for name, value in named.items())


def numbered(texts: Iterable[str]) -> tuple[Option, ...]:
    """Options with the labels 1, 2, 3 …"""
    return tuple(Option(label=str(place), text=text) for place, text in enumerate(texts, 1))


def letters() -> Iterator[str]:
    return iter("abcdefghijklmn")


def checked_seed(seed: int | None) -> int | None:
    """The seed, if it is one."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        hint = "seeds 0, 1, 2 … all differ"
        raise OptionError(complaint("seed", repr(seed), "a whole number from 0 on, below 2^63", hint))
    return seed
