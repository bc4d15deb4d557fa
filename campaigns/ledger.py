"""The progress of a campaign, on disk after each batch, and the committed record of finished campaigns."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from qkv.cost.machine import processor_name

ROOT = Path(__file__).parent.parent
STATE = ROOT / "build" / "soak"
# Ledgers of unfinished campaigns, in git: another machine can continue them.
KEPT = ROOT / "campaigns" / "ledgers"
RECORD = ROOT / "docs" / "campaigns.json"


@dataclass
class Ledger:
    """One campaign's counts. `open` are findings whose seed still fails; `mended` failed once and pass now."""

    name: str
    done: int = 0
    batches: int = 0
    seconds: float = 0.0
    next_seed: int = 0
    open: list[dict[str, Any]] = field(default_factory=list)
    mended: list[dict[str, Any]] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, state: Path = STATE, kept: Path = KEPT) -> Ledger:
        for path in (state / f"{name}.json", kept / f"{name}.json"):
            if path.exists():
                return cls(**json.loads(path.read_text(encoding="utf-8")))
        return cls(name)

    def save(self, state: Path = STATE) -> None:
        write(state / f"{self.name}.json", asdict(self))

    def keep(self, goal: int, kept: Path = KEPT) -> None:
        """Write the ledger for another machine, without paths of this one; remove it if the campaign is finished."""
        path = kept / f"{self.name}.json"
        if self.done >= goal and not self.open:
            path.unlink(missing_ok=True)
        elif self.batches or self.open:
            kept.mkdir(parents=True, exist_ok=True)
            findings = {kind: [_in_short(one) for one in getattr(self, kind)] for kind in ("open", "mended")}
            path.write_text(json.dumps(asdict(self) | findings) + "\n", encoding="utf-8")

    def enter(self, finding: dict[str, Any] | None, result: dict[str, Any]) -> None:
        """Add the result of a batch; `finding` is the earlier failure of the same seed, open until the seed passes."""
        self.seconds += result["seconds"]
        if finding is not None:
            self.open.remove(finding)
        if "words" in result:
            self.open.append(result)
            return
        if finding is not None:
            self.mended.append({key: finding[key] for key in ("seed", "count", "words")})
        self.done += result["done"]
        self.batches += 1
        if result["figures"]:
            self.figures.append(result["figures"])

    def worked_at(self, commit: str) -> None:
        if commit not in self.commits:
            self.commits.append(commit)


def write(path: Path, data: object) -> None:
    """Replace the file in one step: a campaign may be stopped at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(path)


def commit() -> str:
    """The commit that is checked out, with a + if files of the package differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout

    return git("rev-parse", "--short=12", "HEAD").strip() + (
        "+" if git("status", "--porcelain", "src", "native") else ""
    )


def machine() -> dict[str, Any]:
    return {
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _in_short(finding: dict[str, Any]) -> dict[str, Any]:
    """A finding for the record: seed, count and the last line of its output, without paths of this machine."""
    lines = [line.strip() for line in finding["words"].replace(str(ROOT), ".").splitlines() if line.strip()]
    return {"seed": finding["seed"], "count": finding["count"], "words": lines[-1][:300] if lines else ""}


def publish(ledger: Ledger, unit: str, about: str, figures: dict[str, Any], record: Path = RECORD) -> None:
    """Write the campaign's entry in the committed record."""
    published = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    published[ledger.name] = {
        "about": about,
        "unit": unit,
        "done": ledger.done,
        "seconds": round(ledger.seconds),
        "open": [_in_short(finding) for finding in ledger.open],
        "mended": [_in_short(finding) for finding in ledger.mended],
        "figures": figures,
        "commits": ledger.commits,
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    write(record, dict(sorted(published.items())))
