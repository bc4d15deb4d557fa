"""The problem bank at length: a thousand variants of every family, the labelled answers, the transcripts, 200 sheets.

Every variant is solved and its solution judged by the checker; every known mistake is planted and has to be seen by
name; neighbours have to differ in structure. The labelled answers (`tests/problems/labelled`) and the transcripts
(`tests/tutor/transcripts`, `second`) were written by somebody who had not seen the code.

`python -m benchmarks teach`; `--quick` takes 50 variants.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from qkv import problems, tutor

from .decode import bar
from .harness import report

VARIANTS = 1000
SHEETS = 200
ANSWERS = Path("tests/problems/labelled")
TRANSCRIPTS = (Path("tests/tutor/transcripts"), Path("tests/tutor/second"))


@dataclass(frozen=True)
class Variants:
    """What became of a family's variants; `faults` names the first few that fell short."""

    name: str
    variants: int
    answers: int
    right: int
    planted: int
    seen: int
    structures: int
    alike: int
    milliseconds: float
    faults: tuple[str, ...]


def run() -> None:
    many = 50 if "--quick" in sys.argv else VARIANTS
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(family, problems.names(), [many] * len(problems.names())))
    columns = ["family", "answers right", "mistakes seen", "structures", "neighbours alike", "ms a variant"]
    rows = [
        [
            each.name,
            f"{each.right:,} of {each.answers:,}",
            f"{each.seen:,} of {each.planted:,}",
            str(each.structures),
            str(each.alike),
            f"{each.milliseconds:.0f}",
        ]
        for each in found
    ]
    report("teach-variants", f"{many} variants of every family", columns, rows, [asdict(each) for each in found])
    for each in found:
        for fault in each.faults:
            print(f"  {each.name}: {fault}")
    answers, transcripts, sheets = labelled_answers(), labelled_rows(), sheet_seconds()
    figures = [
        bar("solutions right, part", sum(f.right for f in found) / sum(f.answers for f in found), ".4f", least=1.0),
        bar("mistakes seen, part", sum(f.seen for f in found) / sum(f.planted for f in found), ".4f", least=1.0),
        bar("neighbours alike", sum(f.alike for f in found), ".0f", most=0),
        bar(f"labelled answers right, of {answers[1]}", answers[0], ".0f", least=answers[1]),
        bar(f"rows of transcripts right, of {transcripts[1]}", transcripts[0], ".0f", least=transcripts[1]),
        bar(f"{SHEETS} sheets and keys as PDF, s", sheets, ".1f", most=60.0),
    ]
    report("teach", "Figures", ["figure", "value", "bar", ""], figures, [])


def labelled_answers() -> tuple[int, int]:
    """How many labelled answers are judged as labelled, of how many."""
    entries = [
        entry
        for path in sorted(ANSWERS.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["answer"]
    ]
    bank = problems.bank()
    right = sum(bank[entry["problem"]].check(entry["part"], entry["answer"]).kind == entry["kind"] for entry in entries)
    return right, len(entries)


def labelled_rows() -> tuple[int, int]:
    """How many rows of the labelled transcripts have their status and turn, of how many."""
    right = total = 0
    for folder in TRANSCRIPTS:
        for label in tomllib.loads((folder / "labels.toml").read_text(encoding="utf-8"))["transcript"]:
            graded = tutor.grade(tutor.read(folder / label["file"])).as_dict()
            found = {(row["problem"], row["part"]): (row["status"], row["first_right_turn"]) for row in graded["rows"]}
            for row in label["row"]:
                total += 1
                right += found.get((row["problem"], row["part"])) == (row["status"], row.get("first_right_turn"))
    return right, total


def sheet_seconds() -> float:
    """How long the command takes for sheets with keys, as a process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "qkv", "solve", "by-hand", "--copies", str(SHEETS), "--out", folder]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start


def family(name: str, many: int) -> Variants:
    """Solve, judge and compare `many` variants of one family."""
    counts: Counter[str] = Counter()
    faults: list[str] = []
    seconds: list[float] = []
    structures = []
    for seed in range(many):
        start = time.perf_counter()
        problem = problems.named(name, seed)
        solution = problem.solve()
        for solved in solution.parts:
            counts["answers"] += 1
            outcome = problem.check(solved.part.name, solved.answer)
            counts["right"] += bool(outcome)
            if not outcome:
                faults.append(f"seed {seed}, {solved.part.name}: its own answer {solved.answer!r} is {outcome}")
            for known in solved.part.misconceptions:
                counts["planted"] += 1
                seen = solved.part.check(known.planted)
                if known.name in seen.misconceptions and not seen:
                    counts["seen"] += 1
                else:
                    faults.append(f"seed {seed}, {solved.part.name}: {known.name!r} in {known.planted!r} is {seen}")
        seconds.append(time.perf_counter() - start)
        structures.append(problem.structure)
    alike = sum(one == following for one, following in itertools.pairwise(structures))
    middle = 1e3 * statistics.median(seconds)
    return Variants(
        name, many, counts["answers"], counts["right"], counts["planted"], counts["seen"], len(set(structures)), alike,
        middle, tuple(faults[:5]),
    )  # fmt: skip
