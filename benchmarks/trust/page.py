"""Writes docs/trust.md from sections; a section without input is left out."""

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
LEGEND = ((RIGHT, "right"), (WRONG, "wrong"), (CRASH, "crash or hang"), (NONE, "not offered, not counted"))


@dataclass(frozen=True)
class Facts:
    """The results of one run."""

    rows: dict[int, Row]
    subjects: list[Subject]
    found: Found
    about: dict[str, Any]


def opening(facts: Facts) -> str:
    return """# Trust

This page is written by `make trust`, which runs the table of faults and the conformance cases
again; the records of campaigns and mutants are those of `make soak` and `make mutation`."""


def faults(facts: Facts) -> str:
    """The table, row by row."""
    names = [subject.name for subject in facts.subjects]
    totals = counts(facts.found)
    lines = [
        "## 52 bad inputs and faults",
        "",
        "Each row runs on qkv and, if it applies to them, on other libraries, in the same run and each in a",
        "separate process, so that a crash or a hang is counted. An answer is compared with a float64 oracle",
        "that computes one query at a time (`qkv.testing.oracle`); an input without meaning has to be refused",
        "with an exception. qkv has to pass with every softmax backend, and its refusals have to be qkv's",
        "error types; transformers has to pass with its sdpa and eager functions, MultiheadAttention with and",
        "without weights. For the other libraries any exception counts as a refusal, and a documented",
        "convention counts as right unless the row is about it.",
        "",
        " · ".join(f"{MARKS[kind]} {meaning}" for kind, meaning in LEGEND),
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
    """An entry for every wrong answer and every crash."""
    lines = ["### What went wrong", ""]
    for subject in facts.subjects:
        bad = {
            number: result
            for number, result in facts.found[subject.name].items()
            if result["verdict"] in (WRONG, CRASH)
        }
        if bad:
            lines += [f"**{subject.name}**", ""]
            for number, result in sorted(bad.items()):
                entry = f"{number}, {facts.rows[number].title}: {MARKS[result['verdict']]} {_plain(result['seen'])}"
                lines += records.wrapped(entry, "- ")
            lines.append("")
    if len(lines) == 2:
        lines.append("Nothing was wrong.")
    return "\n".join(lines).rstrip()


def setting(facts: Facts) -> str:
    """Versions and the machine."""
    lines = ["### Versions and machine", ""]
    lines += [f"- {name}: {versions}" for name, versions in facts.about["versions"].items()]
    machine = facts.about["machine"]
    about = f"Python {machine['python']}; {machine['cpu']}, {machine['torch_isa']}"
    lines.append(f"- {about}, one thread unless a row says otherwise")
    return "\n".join(lines)


SECTIONS: list[Callable[[Facts], str | None]] = [opening, faults, evidence, setting, *records.SECTIONS]


def _plain(text: str) -> str:
    """A message of a library, with the signs of Markdown escaped."""
    for sign in "\\`*_<>|[]":
        text = text.replace(sign, f"\\{sign}")
    return text


def assembled(facts: Facts) -> str:
    written = [section(facts) for section in SECTIONS]
    return "\n\n".join(text for text in written if text) + "\n"


def write(rows: dict[int, Row], subjects: list[Subject], found: Found, about: dict[str, Any]) -> None:
    PAGE.write_text(assembled(Facts(rows, subjects, found, about)), encoding="utf-8")
