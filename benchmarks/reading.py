"""The explicit reader on real chats: rows that come out as mathematics says, and how long a chat takes.

`python -m benchmarks reading [--field DIR] [--exercise 6=kernels]… [--reader qkv/PATH]`: DIR holds chats/ with
verdicts.json, and sheets/. Nothing of it is stored in the project. With --reader, that language model reads them with
the sheet alone, and nothing else is measured. Chats in our own words, labelled without sight of the reader, are in
tests/grading/third; each folder has its sheet.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from qkv.exercises import Exercise
from qkv.exercises.record import plain_label
from qkv.grading import GradeReport, grade
from qkv.grading.questions import from_bank, from_sheet
from qkv.reading import Reader, read_chat
from qkv.reading.replay import ReplayReader

RECORDINGS = Path(__file__).parent / "recordings"  # claims of a language model under prompts/read.md: spans, no text
OWN = Path(__file__).parents[1] / "tests" / "grading" / "third"
SHEET = "sheets/sheet-homework9.md"
# The bank has the same questions; what it does not have is asked as the sheet says it.
EXERCISES = ("1=scaling", "2=argmax", "4=decoding", "6=kernels")
TARGET = {"right": 45, "false accusations": 0, "wrong passed": 0}


def run(field: str = "", exercises: Sequence[str] = ()) -> dict[str, Any]:
    """Print and return the figures on the development chats; "absent" where they are not there."""
    options = _options(sys.argv[1:])
    own = {} if "--reader" in options else own_chats()
    if own:
        _print("24 chats in our own words", own)
    folder = Path(field or options.get("--field", [""])[0] or "field-data")
    if not (folder / "chats" / "verdicts.json").is_file():
        print("reading: absent (give the folder of chats and sheets with --field)")
        return {"own": own, "field": "absent"}
    asked = from_sheet(folder / SHEET)
    if "--reader" in options:
        from qkv.reading.model import ModelReader

        # On standard error, as each turn takes long.
        told = lambda done, of, used: print(f"turn {done} of {of}", dict(used), file=sys.stderr)  # noqa: E731
        read = measured(folder, asked, ModelReader(options["--reader"][0], told=told))
        _print(f"{options['--reader'][0].rpartition('/')[2]}, the sheet alone", read)
        return {"model": read}
    sheet = measured(folder, asked)
    of_bank = from_bank(exercises or options.get("--exercise", EXERCISES))
    recorded = measured(folder, asked, ReplayReader(RECORDINGS))
    mixed = measured(folder, asked | {name: _with_text(each, asked.get(name)) for name, each in of_bank.items()})
    named = (
        ("the sheet alone", sheet),
        ("with questions of the bank", mixed),
        ("recorded claims, the sheet alone", recorded),
    )
    for name, figures in named:
        _print(name, figures)
    return {"own": own, "sheet": sheet, "mixed": mixed, "recorded": recorded, "target": TARGET}


def _print(name: str, figures: Mapping[str, Any]) -> None:
    if "--verbose" in sys.argv:
        print("\n".join("  ".join(row) for row in figures["rows"] if row[-1] not in ("right", "nothing to read")))
    print(f"reading, {name}: " + ", ".join(f"{key} {value}" for key, value in figures.items() if key != "rows"))


def own_chats() -> dict[str, Any]:
    """The counts over the labelled chats in our own words, each graded with its sheet alone."""
    verdicts: list[dict[str, Any]] = []
    reports: dict[str, GradeReport] = {}
    seconds: list[float] = []
    for folder in sorted(OWN.iterdir()):
        asked = from_sheet(folder / "sheet.md")
        labels = tomllib.loads((folder / "labels.toml").read_text(encoding="utf-8"))["row"]
        for path in sorted({folder / label["chat"] for label in labels}):
            start = process_time()
            reports[f"{folder.name}/{path.name}"] = grade(read_chat(path), asked)
            seconds.append(process_time() - start)
        verdicts += [
            {
                "chat": f"{folder.name}/{label['chat']}",
                "problem": label["question"],
                "part": label["part"],
                "maths": None if label["maths"] == "none" else label["maths"],
            }
            for label in labels
        ]
    return counted(reports, verdicts, max(seconds))


def _with_text(exercise: Exercise, printed: Exercise | None) -> Exercise:
    """A question of the bank with the words of the sheet, which chats repeat."""
    records = [] if printed is None else [printed, *getattr(printed, "records", {}).values()]
    return exercise.model_copy(update={"text": "\n\n".join([exercise.text, *(each.text for each in records)])})


def measured(folder: Path, exercises: Mapping[str, Exercise], recordings: Reader | None = None) -> dict[str, Any]:
    """The counts over all rows whose answer stands in the text; chats without a recording are left out."""
    verdicts = json.loads((folder / "chats" / "verdicts.json").read_text(encoding="utf-8"))
    reports: dict[str, GradeReport] = {}
    seconds: list[float] = []
    clock = process_time if recordings is None else perf_counter
    for path in sorted((folder / "chats").glob("chat-*")):
        if recordings is not None and path.name not in {each["chat"] for each in verdicts}:
            continue
        start = clock()
        reports[path.name] = grade(read_chat(path), exercises, recordings)
        seconds.append(clock() - start)
        if recordings is not None and not isinstance(recordings, ReplayReader):
            print(f"{path.name}: {seconds[-1] / 60:.1f} minutes", file=sys.stderr)
    return counted(reports, verdicts, max(seconds))


def counted(
    reports: Mapping[str, GradeReport], verdicts: Sequence[Mapping[str, Any]], slowest: float
) -> dict[str, Any]:
    """How many rows come out as labelled, unread, and wrong in either way."""
    statuses = {
        name: {(row.question, plain_label(row.part)): row.status for row in report.rows}
        for name, report in reports.items()
    }
    counts: Counter[str] = Counter()
    rows: list[tuple[str, str, str, str, str]] = []
    for verdict in verdicts:
        got = statuses[verdict["chat"]].get((verdict["problem"], plain_label(verdict["part"])), "unread")
        result = outcome(got, verdict["maths"])
        counts[result] += 1
        counts["rows"] += verdict["maths"] is not None
        rows.append((verdict["chat"], f"{verdict['problem']}{verdict['part']}", str(verdict["maths"]), got, result))
    named = ("right", "false accusations", "wrong passed", "unread", "other", "graded without an answer")
    return {
        "of": counts["rows"],
        **{name: counts[name] for name in named},
        "slowest chat": f"{slowest:.2f} s",
        "rows": rows,
    }


def outcome(got: str, truth: str | None) -> str:
    """What a status is against what mathematics says: a row without an answer must stay unread."""
    if truth is None:
        return "nothing to read" if got == "unread" else "graded without an answer"
    if got == "unread":
        return "unread"
    if truth in ("conditional", got):
        return "right"
    if truth == "one shot":
        return "false accusations"
    return "wrong passed" if got == "one shot" else "other"


def _options(words: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in pairwise(words):
        if name in ("--field", "--exercise", "--reader"):
            found.setdefault(name, []).append(value)
    return found
