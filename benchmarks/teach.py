"""The bank at length, labelled answers and labelled chats.

Every variant is solved and its solution judged by the checker; every known mistake is planted and has to be seen by
name. The labelled answers (`tests/exercises/labelled`) and the chats (`tests/grading/first`, `second`) were written
without sight of the code. A chat is graded on the questions that stand in it, or on the bank's; an unread row is no
fault, an accusation of what was right or a pass of what was wrong is one.

`python -m benchmarks teach`; `--quick` takes 50 variants.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from qkv.exercises import bank
from qkv.exercises.checking import check
from tests.helpers import labelled_chats

from .bank import SHEETS, tried
from .decode import bar
from .harness import report

VARIANTS = 1000
ANSWERS = Path("tests/exercises/labelled")


def run() -> None:
    many = 50 if "--quick" in sys.argv else VARIANTS
    names = bank.names()
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(tried, names, [many] * len(names)))
    columns = ["family", "answers right", "mistakes seen", "kinds", "ms a variant"]
    rows = [
        [
            each.family,
            f"{each.right:,} of {each.questions:,}",
            f"{each.named:,} of {each.planted:,}",
            str(each.kinds),
            f"{1e3 * each.seconds / max(1, each.variants):.0f}",
        ]
        for each in found
    ]
    report("teach-variants", f"{many} variants of every family", columns, rows, [asdict(each) for each in found])
    for each in found:
        for failure in each.failures[:5]:
            print(f"  {each.family}: {failure}")
    (right, of), chats = labelled_answers(), labelled_chats.counted(bank=True)
    figures = [
        bar("solutions right, share", sum(f.right for f in found) / sum(f.questions for f in found), ".4f", least=1.0),
        bar("mistakes seen, share", sum(f.named for f in found) / sum(f.planted for f in found), ".4f", least=1.0),
        [f"labelled answers as labelled, of {of}", str(right), "", ""],
        [f"rows of chats right, of {chats['rows']}", str(chats["right"]), "", ""],
        ["rows of chats unread", str(chats["unread"]), "", ""],
        bar("false accusations", chats["false accusations"], ".0f", most=0),
        bar("wrong answers passed", chats["passed"], ".0f", most=0),
        bar(f"{SHEETS} sheets and keys as PDF, s", sheet_seconds(), ".1f", most=60.0),
    ]
    report("teach", "Figures", ["figure", "value", "bar", ""], figures, [])


def labelled_answers() -> tuple[int, int]:
    """How many labelled answers are judged as labelled, of how many."""
    right = of = 0
    for path in sorted(ANSWERS.glob("*.toml")):
        exercise = bank.named(path.stem)
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["answer"]:
            if entry["part"] not in exercise.labels:
                continue  # a part that the bank divides otherwise
            of += 1
            right += check(exercise, entry["part"], entry["answer"]).kind == entry["kind"]
    return right, of


def sheet_seconds() -> float:
    """How long the command takes for sheets with keys, as a process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "qkv", "solve", "by-hand", "--copies", str(SHEETS), "--out", folder]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start
