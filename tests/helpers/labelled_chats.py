"""Chats with labels, written without sight of the reader and the grader."""

from __future__ import annotations

import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

from qkv.exercises.record import plain_label
from qkv.grading import GradeReport, from_bank, from_chat, grade
from qkv.reading import read_chat

FOLDERS = tuple(Path(__file__).parents[1] / "grading" / name for name in ("first", "second"))
ACCUSED = ("needed correction", "never right")
# Questions that are the bank's, whatever words the student puts them in: as --exercise names them.
BANK = {
    "02-scaling-plain.txt": ("2=scaling",),
    "03-no-speakers.md": ("1=scaling-scalar",),
    "04-decoding-headings.md": ("4=decoding",),
    "07-heads-html.json": ("2=heads",),
    "08-norms-senders.json": ("3=norms",),
    "10-lists-plain.txt": ("1=scaling",),
    "11-decoding-kernels-cut.md": ("1=decoding",),
    "12-all-right.md": ("2=heads", "3=norms"),
    "02-blog.md": ("3=kernels",),
    "03-content-parts.json": ("2=decoding",),
    "04-sender-export.json": ("1=scaling", "3=norms"),
    "05-interleaved.md": ("5=heads",),
}
RULES = {"code": "code", "answered before asked": "early", "no derivation": "derivation", "not short": "short"}


def chats() -> list[dict]:
    """The labels of every chat, with its path."""
    return [
        each | {"path": folder / each["file"]}
        for folder in FOLDERS
        for each in tomllib.loads((folder / "labels.toml").read_text(encoding="utf-8"))["transcript"]
    ]


@cache
def graded(path: Path, bank: bool = False) -> GradeReport:
    """A chat graded once: on the questions that stand in it, or with those of the bank in their place."""
    chat = read_chat(path)
    return grade(chat, from_chat(chat) | from_bank(BANK.get(path.name, ())) if bank else None)


def compared(label: dict, bank: bool = False) -> list[tuple[str, str, str]]:
    """(part, labelled status, found status) for each labelled row; "unread" where there is no such row.

    A question without a number is labelled by a word; in a report it is numbered by its place.
    """
    report = graded(label["path"], bank)
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


def counted(bank: bool = False) -> Counter[str]:
    """How many of the labelled rows come out right, unread, and wrong in either way."""
    counts: Counter[str] = Counter()
    for label in chats():
        for _, labelled, found in compared(label, bank):
            counts["rows"] += 1
            counts["right"] += labelled == found
            counts["unread"] += found == "unread" != labelled
            counts["false accusations"] += false_accusation(labelled, found)
            counts["passed"] += passed(labelled, found)
    return counts
