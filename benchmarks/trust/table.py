"""The results: counts for each subject, a table of 80 columns, and the files in build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .rows import Row
from .subjects import Subject
from .verdict import CRASH, MARKS, NONE, RIGHT, WRONG

COUNTS, DETAILS = Path("build/trust.json"), Path("build/trust-rows.json")
COLUMN, TITLE = 5, 44

# {subject: {row: {"verdict", "seen"}}}
Found = dict[str, dict[int, dict[str, Any]]]


def counts(found: Found) -> dict[str, dict[str, int]]:
    """{"right", "wrong", "crash"} of each subject; rows that it does not offer are not counted."""
    return {
        name: {kind: sum(result["verdict"] == kind for result in by_row.values()) for kind in (RIGHT, WRONG, CRASH)}
        for name, by_row in found.items()
    }


def printed(rows: list[Row], subjects: list[Subject], found: Found) -> str:
    lines = [heading(subjects), "-" * (TITLE + 3 + COLUMN * len(subjects))]
    lines += [line(row, subjects, found) for row in rows]
    lines.append(lines[1])
    totals = counts(found)
    for kind in (RIGHT, WRONG, CRASH):
        cells = "".join(str(totals[subject.name][kind]).rjust(COLUMN) for subject in subjects)
        lines.append(f"   {kind:<{TITLE}}{cells}")
    lines.append(
        f"{MARKS[RIGHT]} right   {MARKS[WRONG]} wrong   {MARKS[CRASH]} crash or hang   {MARKS[NONE]} not offered"
    )
    return "\n".join(lines)


def heading(subjects: list[Subject]) -> str:
    return " " * (TITLE + 3) + "".join(subject.short.rjust(COLUMN) for subject in subjects)


def line(row: Row, subjects: list[Subject], found: Found) -> str:
    marks = "".join(MARKS[found[subject.name][row.number]["verdict"]].rjust(COLUMN) for subject in subjects)
    return f"{row.number:2} {row.title:<{TITLE}}{marks}"


def write(found: Found, about: dict[str, Any]) -> None:
    COUNTS.parent.mkdir(parents=True, exist_ok=True)
    COUNTS.write_text(json.dumps(counts(found), indent=2) + "\n", encoding="utf-8")
    details = {name: {str(row): result for row, result in sorted(by_row.items())} for name, by_row in found.items()}
    text = json.dumps({"about": about, "rows": details}, indent=2, ensure_ascii=False)
    DETAILS.write_text(text + "\n", encoding="utf-8")


def read() -> tuple[Found, dict[str, Any]]:
    """The results of the last complete run."""
    last = json.loads(DETAILS.read_text(encoding="utf-8"))
    found = {name: {int(row): one for row, one in rows.items()} for name, rows in last["rows"].items()}
    return found, last["about"]
