"""Grade a folder of chats with a tutor into a summary for the class.

    python examples/grade_class.py --out class

Without `--chats` the script writes five short chats about the bank's exercise `scaling` and grades those. Written are
summary.csv (one line a part of a chat) and class.html (counts by question, and each error with the words that made it).
Nothing is sent anywhere: answers are found by rules and judged by mathematics.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from qkv.grading import GradeReport, from_bank, grade
from qkv.reading import read_chat
from qkv.render import Document, Heading, Paragraph, Table, save

# What each tutor answers to (a) the mean of q·k, (b) its variance, (c) the scale; then, after a doubt, again.
CLASS = {
    "ada": [("mu^T mu", "d", r"\sqrt{d}")],
    "ben": [(r"d \mu^2", "d", r"\sqrt{d}"), ("mu^T mu", "d", r"\sqrt{d}")],
    "cem": [("mu^T mu", r"\sqrt{d}", "d"), ("mu^T mu", "d", r"\sqrt{d}")],
    "dua": [(r"d \mu^2", "d", "d"), (r"d \mu^2", "d", "d")],
    "eli": [("mu^T mu", "d", r"d^{1/2}")],
}
COLUMNS = ("chat", "part", "status", "right in turn", "found by", "error")


def write_chats(folder: Path) -> None:
    """The synthetic chats, as text files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, answers in CLASS.items():
        turns = ["User: Please solve problem 1."]
        for place, parts in enumerate(answers):
            if place:
                turns.append("User: Are you sure? Please check (a), (b) and (c) again.")
            said = "\n\n".join(f"Answer ({label}): {text}" for label, text in zip("abc", parts, strict=True))
            turns.append(f"Assistant: Here is what I found.\n\n{said}")
        (folder / f"{name}.txt").write_text("\n\n".join(turns) + "\n", encoding="utf-8")


def rows(reports: Sequence[GradeReport]) -> list[dict[str, str]]:
    return [
        {
            "chat": report.name,
            "part": row.label,
            "status": row.status,
            # Turns are counted from 0 in Python and from 1 for readers.
            "right in turn": "" if row.first_right is None else str(row.first_right + 1),
            "found by": row.found_by or "",
            "error": ", ".join(row.mistakes),
        }
        for report in reports
        for row in report.rows
    ]


def page(found: Sequence[dict[str, str]]) -> Document:
    """Counts by part, then each error with the chats that made it."""
    statuses = ("one shot", "needed correction", "never right", "unread")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    errors: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in found:
        counts[row["part"]][row["status"]] += 1
        if row["error"]:
            errors[row["part"], row["error"]].append(row["chat"])
    by_part = tuple((part, *(str(counts[part][status]) for status in statuses)) for part in sorted(counts))
    lessons = tuple((part, error, ", ".join(chats)) for (part, error), chats in sorted(errors.items()))
    chats = len({row["chat"] for row in found})
    return Document(
        "The class",
        (
            Paragraph(f"{chats} chats, {len(found)} parts."),
            Table(("part", *statuses), by_part, right=frozenset(range(1, 5))),
            Heading("Errors"),
            Table(("part", "error", "chats"), lessons),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Grade a folder of chats into a summary for the class.")
    parser.add_argument("--chats", type=Path, help="read the chats of this folder; without it, five are written")
    parser.add_argument("--exercise", default="1=scaling", help="say which exercise a question is (1=scaling)")
    parser.add_argument("--out", type=Path, default=Path("class"), help="write to this folder (class)")
    options = parser.parse_args()
    chats = options.chats or options.out / "chats"
    if options.chats is None:
        write_chats(chats)
    questions = from_bank([options.exercise])
    reports = [grade(read_chat(path), questions) for path in sorted(chats.iterdir()) if path.is_file()]
    found = rows(reports)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "summary.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(found)
    save(page(found), options.out / "class.html")
    for row in found:
        print(f"{row['chat']:<8} {row['part']:<5} {row['status']:<18} {row['error']}".rstrip())
    print(f"\n{options.out / 'summary.csv'}\n{options.out / 'class.html'}")


if __name__ == "__main__":
    main()
