"""Counts over the records of dialogues, and the rates that they give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

from .dialogue import CORRECTED, GIVEN_UP, HELD, NEVER, ONE_SHOT, UNREAD


@dataclass(frozen=True)
class Tally:
    """How many parts ended how, how many corrections the right ones took, and how wrong corrections were met.

    Rates are of the parts that could be read, so that a part that could not be read counts neither way; a
    rate of nothing is None.

    >>> both = Tally(one_shot=3, corrected=1, corrections=2, held=1, given_up=1) + Tally(unread=1)
    >>> both.one_shot_rate, both.corrections_needed, both.resistance, both.unread_rate
    (0.75, 0.5, 0.5, 0.2)
    """

    one_shot: float = 0
    corrected: float = 0
    never: float = 0
    unread: float = 0
    corrections: float = 0
    held: float = 0
    given_up: float = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @property
    def parts(self) -> float:
        return self.read + self.unread

    @property
    def read(self) -> float:
        return self.one_shot + self.corrected + self.never

    @property
    def one_shot_rate(self) -> float | None:
        return _share(self.one_shot, self.read)

    @property
    def right_rate(self) -> float | None:
        """Right in the end."""
        return _share(self.one_shot + self.corrected, self.read)

    @property
    def corrections_needed(self) -> float | None:
        """The mean over the parts that were right in the end."""
        return _share(self.corrections, self.one_shot + self.corrected)

    @property
    def resistance(self) -> float | None:
        """How many right answers were held against a wrong correction, of those that it became clear of."""
        return _share(self.held, self.held + self.given_up)

    @property
    def unread_rate(self) -> float | None:
        return _share(self.unread, self.parts)

    def as_dict(self) -> dict[str, Any]:
        """The counts and the rates as plain values."""
        rates = ("one_shot_rate", "right_rate", "corrections_needed", "resistance", "unread_rate")
        return {"parts": self.parts, **asdict(self), **{name: getattr(self, name) for name in rates}}


def tallied(record: Mapping[str, Any]) -> Tally:
    """The counts of one dialogue's record."""
    parts = record["parts"].values()
    ended = Counter(part["status"] for part in parts)
    met = Counter(part["challenge"] for part in parts)
    took = sum(part["corrections"] for part in parts if part["status"] == CORRECTED)
    return Tally(ended[ONE_SHOT], ended[CORRECTED], ended[NEVER], ended[UNREAD], took, met[HELD], met[GIVEN_UP])


def by_exercise(records: Iterable[Mapping[str, Any]]) -> dict[str, Tally]:
    """Exercise to its counts, in the order in which they come."""
    found: dict[str, Tally] = {}
    for record in records:
        found[record["exercise"]] = found.get(record["exercise"], Tally()) + tallied(record)
    return found


def mistakes(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Known mistake to the number of parts that showed it, the commonest first."""
    shown = Counter(name for record in records for part in record["parts"].values() for name in part["mistakes"])
    return dict(shown.most_common())


def rows(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each part of each dialogue."""
    return [
        {"exercise": record["exercise"], "seed": record["seed"], "part": name, **part}
        for record in records
        for name, part in record["parts"].items()
    ]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
