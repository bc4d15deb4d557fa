"""docs/trust.md, assembled from sections; one whose input is not there is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import records
from .rows import Row
from .subjects import Subject
from .table import Found, counts
from .verdict import CRASH, MARKS, NONE, RIGHT, WRONG

PAGE = Path("docs/trust.md")
LEGEND = ((RIGHT, "right"), (WRONG, "wrong"), (CRASH, "crash or hang"), (NONE, "not offered, and not counted"))


@dataclass(frozen=True)
class Facts:
    """What one run found, for the sections to write about."""

    rows: dict[int, Row]
    subjects: list[Subject]
    found: Found
    about: dict[str, Any]


def opening(facts: Facts) -> str:
    return """# Trust

This page is written by `make trust`, which measures the table of faults and the conformance again; the records of
campaigns and mutants are those of `make soak` and `make mutation`. Nothing here is typed by hand."""


def faults(facts: Facts) -> str:
    """The table, row by row."""
    names = [subject.name for subject in facts.subjects]
    totals = counts(facts.found)
    lines = [
        "## 52 bad inputs and faults",
        "",
        "Each row is put to qkv and, where it has a meaning there, to other libraries, in the same run; every subject",
        "runs in a process of its own, so that a crash or a hang is counted. The judge is an oracle in float64, one",
        "query at a time (`qkv.testing.oracle`), or, where an input has no meaning, whether it is refused with an",
        "exception. qkv is held to it in every softmax backend, and its refusals have to be errors of its own;",
        "transformers in its sdpa and its eager function, MultiheadAttention with and without weights. Of the others",
        "any exception counts as a refusal, and a documented convention is not held against a library unless the row",
        "is about it.",
        "",
        " · ".join(f"{MARKS[kind]} {said}" for kind, said in LEGEND),
        "",
        "| | fault | " + " | ".join(names) + " |",
        "| ---: | --- |" + " :-: |" * len(names),
    ]
    for number, row in facts.rows.items():
        marks = (MARKS[facts.found[name][number]["verdict"]] for name in names)
        lines.append(f"| {number} | {row.title} | " + " | ".join(marks) + " |")
    for kind in (RIGHT, WRONG, CRASH):
        lines.append(f"| | **{kind}** | " + " | ".join(str(totals[name][kind]) for name in names) + " |")
    return "\n".join(lines)


def evidence(facts: Facts) -> str:
    """A line for everything that was wrong or crashed."""
    lines = ["### What was seen", ""]
    for subject in facts.subjects:
        bad = {number: told for number, told in facts.found[subject.name].items() if told["verdict"] in (WRONG, CRASH)}
        if bad:
            lines += [f"**{subject.name}**", ""]
            lines += [
                f"- {number}, {facts.rows[number].title}: {MARKS[told['verdict']]} {_plain(told['seen'])}"
                for number, told in sorted(bad.items())
            ]
            lines.append("")
    if len(lines) == 2:
        lines.append("Nothing was wrong.")
    return "\n".join(lines).rstrip()


def setting(facts: Facts) -> str:
    """Versions and the machine."""
    lines = ["### Versions and machine", ""]
    lines += [f"- {name}: {versions}" for name, versions in facts.about["versions"].items()]
    machine = facts.about["machine"]
    lines.append(
        f"- Python {machine['python']}; {machine['cpu']}, {machine['torch_isa']}, one thread where no row says more"
    )
    return "\n".join(lines)


SECTIONS: list[Callable[[Facts], str | None]] = [opening, faults, evidence, setting, *records.SECTIONS]


def _plain(text: str) -> str:
    """Words of a library, so that Markdown takes none of their signs."""
    for sign in "\\`*_<>|[]":
        text = text.replace(sign, f"\\{sign}")
    return text


def assembled(facts: Facts) -> str:
    written = [section(facts) for section in SECTIONS]
    return "\n\n".join(text for text in written if text) + "\n"


def write(rows: dict[int, Row], subjects: list[Subject], found: Found, about: dict[str, Any]) -> None:
    PAGE.write_text(assembled(Facts(rows, subjects, found, about)), encoding="utf-8")
