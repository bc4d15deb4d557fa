"""What a learner got right and wrong, stored in the user's data folder: a file is written whole or not at all."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter
from pydantic.dataclasses import dataclass

FORMAT = "qkv practice 1"
ENDINGS = ("at once", "after tries", "skipped", "shown")  # how a question may end
_LARGEST = 10_000_000  # bytes; no practice fills more
_STRICT = ConfigDict(strict=True, extra="forbid")
Counts = dict[str, NonNegativeInt]


def path() -> Path:
    """practice.json in the data folder of this platform; XDG_DATA_HOME names another."""
    if given := os.environ.get("XDG_DATA_HOME"):
        return Path(given) / "qkv" / "practice.json"
    home = Path.home()
    folders = {"darwin": home / "Library" / "Application Support", "win32": Path(os.environ.get("APPDATA") or home)}
    return folders.get(sys.platform, home / ".local" / "share") / "qkv" / "practice.json"


@dataclass(config=_STRICT)
class Record:
    """One part of one exercise over all its variants: how its questions ended, and how the last one did."""

    ended: Counts = Field(default_factory=dict)
    mistakes: Counts = Field(default_factory=dict)
    last: str = ""

    @property
    def need(self) -> float:
        """How much it needs practice: most where the last try went wrong, least where it went well."""
        if not self.last:
            return 1.0
        return 0.2 if self.last == "at once" else 3.0 if self.last in ("skipped", "shown") else 2.0

    def note(self, ended: str, mistakes: Counts) -> None:
        self.add(Record({ended: 1}, dict(mistakes), ended))

    def add(self, other: Record) -> None:
        """Add what was practised later."""
        self.ended = dict(Counter(self.ended) + Counter(other.ended))
        self.mistakes = dict(Counter(self.mistakes) + Counter(other.mistakes))
        self.last = other.last


@dataclass(config=_STRICT)
class Progress:
    """Records by "exercise/part"."""

    format: Literal["qkv practice 1"] = FORMAT
    records: dict[str, Record] = Field(default_factory=dict, alias="parts")

    def record(self, exercise: str, part: str) -> Record:
        return self.records.setdefault(f"{exercise}/{part}", Record())

    def need(self, exercise: str, part: str) -> float:
        return self.records.get(f"{exercise}/{part}", Record()).need


_STORED = TypeAdapter(Progress)


def load(place: Path | None = None) -> tuple[Progress, str]:
    """What is stored, and a sentence for the user where something is wrong; a file that cannot be read is set aside."""
    place = place or path()
    try:
        if not place.exists():
            return Progress(), ""
        if place.stat().st_size > _LARGEST:
            return Progress(), _set_aside(place, "it is too large")
        return _STORED.validate_json(place.read_bytes()), ""
    except OSError as error:
        return Progress(), f"the progress in {place} cannot be read ({error.strerror}); this session starts without it"
    except ValueError:
        return Progress(), _set_aside(place, "it holds something else")


def save(added: Progress, place: Path | None = None) -> str:
    """Add a session to what is stored; a sentence for the user where that fails.

    What is stored is read again first: another session may have written in between.
    """
    from ..render.saving import write

    place = place or path()
    kept, said = load(place)
    if said and place.exists():
        return said
    for name, record in added.records.items():
        if record.last:
            kept.records.setdefault(name, Record()).add(record)
    kept.records = dict(sorted(kept.records.items()))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write({place: _STORED.dump_json(kept, indent=1, by_alias=True) + b"\n"})
    except OSError as error:
        return f"the progress cannot be kept in {place} ({error.strerror})"
    return said


def forget(place: Path | None = None) -> str:
    """Remove what is stored, and nothing else; returns what happened, as a sentence."""
    place = place or path()
    _, said = load(place)
    if said:
        return said
    try:
        place.unlink()
    except FileNotFoundError:
        return "there is no progress to forget"
    except OSError as error:
        return f"the progress in {place} cannot be removed ({error.strerror})"
    return "the progress is forgotten"


def _set_aside(place: Path, why: str) -> str:
    said = f"{place} is not a progress file of qkv: {why}"
    names = (place.with_name(f"{place.name}.set-aside-{number}") for number in range(1, 1000))
    if (other := next((each for each in names if not each.exists()), None)) is None:
        return said
    try:
        place.rename(other)
    except OSError as error:
        return f"{said}, and it cannot be set aside ({error.strerror})"
    return f"{said}. It is kept as {other.name}"
