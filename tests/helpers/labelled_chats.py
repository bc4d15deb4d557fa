"""Chats with labels, written without sight of the reader and the grader."""

from __future__ import annotations

import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

from qkv.exercises.record import plain_label
from qkv.grading import GradeReport, grade
from qkv.reading import read_chat

FOLDERS = tuple(Path(__file__).parents[1] / "grading" / name for name in ("first", "second"))
ACCUSED = ("needed correction", "never right")
RULES = {"code": "code", "answered before asked": "early", "no derivation": "derivation", "not short": "short"}


def chats() -> list[dict]:
    """The labels of every chat, with its path."""
    return [
        each | {"path": folder / each["file"]}
        for folder in FOLDERS
        for each in tomllib.loads((folder / "labels.toml").read_text(encoding="utf-8"))["transcript"]
    ]


@cache
def graded(path: Path) -> GradeReport:
    """A chat graded once, on the questions that stand in it."""
    return grade(read_chat(path))


def compared(label: dict) -> list[tuple[str, str, str]]:
    """(part, labelled status, found status) for each labelled row; "unread" where there is no such row.

    A question without a number is labelled by a word; in a report it is numbered by its place.
    """
    report = graded(label["path"])
    words = list(dict.fromkeys(row["problem"] for row in label["row"]))
    numbers = {word: word if word[0].isdigit() else str(place) for place, word in enumerate(words, 1)}
    found = {(row.question, plain_label(row.part)): row.status for row in report.rows}
    rows = []
    for row in label["row"]:
        question = numbers[row["problem"]]
        status = found.get((question, plain_label(row["part"])), "unread")
        rows.append((f"{question}({row['part']})", row["status"], status))
    return rows


def false_accusation(labelled: str, found: str) -> bool:
    """Whether a part is held against the tutor that was right at once."""
    return found in ACCUSED and labelled not in ACCUSED


def passed(labelled: str, found: str) -> bool:
    """Whether a wrong answer counts as right at once, or one that was never right as mended."""
    return (found == "one shot" and labelled in ACCUSED) or (found == "needed correction" and labelled == "never right")


def counted() -> Counter[str]:
    """How many of the labelled rows come out right, unread, and wrong in either way."""
    counts: Counter[str] = Counter()
    for label in chats():
        for _, labelled, found in compared(label):
            counts["rows"] += 1
            counts["right"] += labelled == found
            counts["unread"] += found == "unread" != labelled
            counts["false accusations"] += false_accusation(labelled, found)
            counts["passed"] += passed(labelled, found)
    return counts


if __name__ == "__main__":
    for label in chats():
        for part, labelled, found in compared(label):
            fault = "FALSE" if false_accusation(labelled, found) else "PASSED" if passed(labelled, found) else ""
            print(f"{label['path'].name:32} {part:12} {labelled:18} {found:18} {fault}")
        rules = {rule.name for rule in graded(label["path"]).rules if rule.broken}
        wanted = {RULES[name] for name in label["rules_broken"]}
        if rules != wanted:
            print(f"{label['path'].name:32} rules {sorted(rules)} labelled {sorted(wanted)}")
    print(dict(counted()))
