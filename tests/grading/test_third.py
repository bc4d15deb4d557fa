"""Chats in our own words on three sheets, labelled before they were first read: what is right is not accused."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from qkv.exercises.record import plain_label
from qkv.grading import grade
from qkv.grading.questions import from_sheet
from qkv.reading import read_chat

FOLDERS = sorted(path for path in (Path(__file__).parent / "third").iterdir() if path.is_dir())
LEAST_RIGHT = {"alpha": 37, "beta": 44, "gamma": 17}  # of 63, 60 and 65 rows


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_false_accusation_and_nothing_passed(folder):
    asked = from_sheet(folder / "sheet.md")
    labels = tomllib.loads((folder / "labels.toml").read_text(encoding="utf-8"))["row"]
    reports = {name: grade(read_chat(folder / name), asked) for name in {label["chat"] for label in labels}}
    rows = {
        (name, row.question, plain_label(row.part)): row.status for name, each in reports.items() for row in each.rows
    }
    counts: Counter[str] = Counter()
    for label in labels:
        place = (label["chat"], label["question"], plain_label(label["part"]))
        got, truth = rows.get(place, "unread"), label["maths"]
        if got == "unread":
            continue
        assert truth != "none", (place, got)
        assert truth == "conditional" or (got == "one shot") == (truth == "one shot"), (place, got, truth)
        counts["right"] += truth in ("conditional", got)
    print(folder.name, dict(counts))
    assert counts["right"] >= LEAST_RIGHT[folder.name]
