"""The committed record: mutants that ran, were detected, and survived with a reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from ..ledger import ROOT, commit, machine, write

RECORD = ROOT / "docs" / "mutation.json"
EQUIVALENT = "equivalent: "  # how the reason of a survivor without effect begins


def interval(killed: int, run: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share in a sample."""
    if run == 0:
        return 0.0, 1.0
    z, share = 1.959964, killed / run
    middle = share + z * z / (2 * run)
    half = z * (share * (1 - share) / run + z * z / (4 * run * run)) ** 0.5
    return (middle - half) / (1 + z * z / run), (middle + half) / (1 + z * z / run)


def _record() -> dict[str, Any]:
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def publish(name: str, made: int, results: Sequence[dict[str, Any]], seed: int) -> None:
    """Write the entry of a target; a survivor that was there before keeps its reason."""
    record = _record()
    known = {
        (old["file"], old["was"], old["now"]): old["why"] for old in record.get(name, {"survivors": []})["survivors"]
    }
    survivors = [
        {key: result[key] for key in ("file", "line", "operator", "was", "now")}
        | {"met": "all tests that execute it" if result["kind"] == "survived" else "the quickest tests"}
        | {"why": known.get((result["file"], result["was"], result["now"]), "")}
        for result in sorted(results, key=lambda result: (result["file"], result["line"], result["now"]))
        if result["kind"] in ("survived", "lived")
    ]
    run, killed = len(results), len(results) - len(survivors)
    equivalent = sum(survivor["why"].startswith(EQUIVALENT) for survivor in survivors)
    whole = run == made
    record[name] = {
        "made": made,
        "run": run,
        "seed": seed,
        "killed": killed,
        "by_timeout": sum(result["kind"] == "timeout" for result in results),
        "rate": round(killed / run, 4),
        "interval": None if whole else [round(end, 4) for end in interval(killed, run)],
        "equivalent": equivalent,
        "rate_without_equivalent": round(killed / (run - equivalent), 4),
        "unexplained": sum(not survivor["why"] for survivor in survivors),
        "commit": commit(),
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "survivors": survivors,
    }
    write(RECORD, record)


def prune() -> None:
    """Leave out the survivors in files that are gone, and count them; rates stay those of the commit in the entry."""
    record = _record()
    for entry in record.values():
        kept = [survivor for survivor in entry["survivors"] if (ROOT / survivor["file"]).exists()]
        entry["gone"] = entry.get("gone", 0) + len(entry["survivors"]) - len(kept)
        entry["survivors"] = kept
    write(RECORD, record)


def table() -> None:
    shown = Table("target", "made", "run", "killed", "rate", "95%", "equivalent", "rate without", "unexplained")
    for name, entry in _record().items():
        ends = entry["interval"]
        shown.add_row(
            name,
            *(f"{entry[key]:,}" for key in ("made", "run", "killed")),
            f"{entry['rate']:.1%}",
            f"{ends[0]:.1%} to {ends[1]:.1%}" if ends else "all",
            str(entry["equivalent"]),
            f"{entry['rate_without_equivalent']:.1%}",
            str(entry["unexplained"]),
        )
    Console().print(shown)
