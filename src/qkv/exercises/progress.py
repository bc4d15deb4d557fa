"""What a learner got right and wrong, stored in the user's data folder: a file is written whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "qkv practice 1"
ENDINGS = ("at once", "after tries", "skipped", "shown")  # how a question may end
_LARGEST = 10_000_000  # bytes; no practice fills more


def path() -> Path:
    """practice.json in the data folder of this platform; XDG_DATA_HOME names another."""
    if given := os.environ.get("XDG_DATA_HOME"):
        return Path(given) / "qkv" / "practice.json"
    home = Path.home()
    folders = {"darwin": home / "Library" / "Application Support", "win32": Path(os.environ.get("APPDATA") or home)}
    return folders.get(sys.platform, home / ".local" / "share") / "qkv" / "practice.json"


@dataclass
class Record:
    """One part of one exercise over all its variants: how its questions ended, and how the last one did."""

    ended: Counter[str] = field(default_factory=Counter)
    mistakes: Counter[str] = field(default_factory=Counter)
    last: str = ""

    @property
    def need(self) -> float:
        """How much it needs practice: most where the last try went wrong, least where it went well."""
        if not self.last:
            return 1.0
        return 0.2 if self.last == "at once" else 3.0 if self.last in ("skipped", "shown") else 2.0

    def note(self, ended: str, mistakes: Counter[str]) -> None:
        self.ended[ended] += 1
        self.mistakes += mistakes
        self.last = ended


@dataclass
class Progress:
    """Records by "exercise/part"."""

    records: dict[str, Record] = field(default_factory=dict)

    def record(self, exercise: str, part: str) -> Record:
        return self.records.setdefault(f"{exercise}/{part}", Record())

    def need(self, exercise: str, part: str) -> float:
        return self.records.get(f"{exercise}/{part}", Record()).need

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "parts": {
                name: {"ended": dict(record.ended), "mistakes": dict(record.mistakes), "last": record.last}
                for name, record in sorted(self.records.items())
            },
        }


def load(place: Path | None = None) -> tuple[Progress, str]:
    """What is stored, and a sentence for the user where something is wrong; a file that cannot be read is set aside."""
    place = place or path()
    try:
        if not place.exists():
            return Progress(), ""
        if place.stat().st_size > _LARGEST:
            return Progress(), _set_aside(place, "it is too large")
        return _read(json.loads(place.read_text(encoding="utf-8"))), ""
    except OSError as error:
        return Progress(), f"the progress in {place} cannot be read ({error.strerror}); this session starts without it"
    except (ValueError, RecursionError):
        return Progress(), _set_aside(place, "it holds something else")


def save(added: Progress, place: Path | None = None) -> str:
    """Add a session to what is stored; a sentence for the user where that fails.

    What is stored is read again first: another session may have written in between.
    """
    place = place or path()
    kept, said = load(place)
    if said and place.exists():
        return said
    for name, record in added.records.items():
        if record.last:
            whole = kept.records.setdefault(name, Record())
            whole.ended += record.ended
            whole.mistakes += record.mistakes
            whole.last = record.last
    from ..render.saving import write

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write({place: (json.dumps(kept.as_dict(), indent=1, ensure_ascii=False) + "\n").encode()})
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


def _read(found: Any) -> Progress:
    """Raises ValueError for anything that this program did not write."""
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("parts"), dict):
        raise ValueError("another format")
    progress = Progress()
    for name, each in found["parts"].items():
        if not isinstance(each, dict) or not isinstance(each.get("last"), str):
            raise ValueError("a record of another form")
        progress.records[name] = Record(_counts(each.get("ended")), _counts(each.get("mistakes")), each["last"])
    return progress


def _counts(found: Any) -> Counter[str]:
    if not isinstance(found, dict) or not all(type(count) is int and count >= 0 for count in found.values()):
        raise ValueError("no counts")
    return Counter(found)


def _set_aside(place: Path, why: str) -> str:
    for number in range(1, 1000):
        other = place.with_name(f"{place.name}.set-aside-{number}")
        if not other.exists():
            try:
                place.rename(other)
            except OSError as error:
                return f"{place} is not a progress file of qkv: {why}, and it cannot be set aside ({error.strerror})"
            return f"{place} is not a progress file of qkv: {why}. It is kept as {other.name}"
    return f"{place} is not a progress file of qkv: {why}"
