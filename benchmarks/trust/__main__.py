"""`python -m benchmarks.trust [--only NAME] [--rows 1,5,23]`: the table here, JSON in build, and docs/trust.md.

With --page nothing is probed: docs/trust.md is written again from the last run and from the records of today.
"""

from __future__ import annotations

import argparse
import sys

from ..harness import machine
from . import page, table
from .rows import rows
from .runner import run_subject
from .subjects import Subject, everyone


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="this subject only; may be given again")
    parser.add_argument("--rows", metavar="N,N", help="these rows only")
    parser.add_argument("--page", action="store_true", help="write the page again, from what the last run found")
    asked = parser.parse_args()
    every = rows()
    if asked.page:
        if not table.DETAILS.exists():
            sys.exit(f"trust: there is no {table.DETAILS}: make trust writes it")
        found, about = table.read()
        page.write(every, [subject for subject in everyone() if subject.name in found], found, about)
        return
    wanted = list(every) if asked.rows is None else [int(number) for number in asked.rows.split(",")]
    unknown = [number for number in wanted if number not in every]
    subjects = [subject for subject in everyone() if not asked.only or subject.name in asked.only]
    if unknown or not subjects:
        names = ", ".join(subject.name for subject in everyone())
        sys.exit(f"trust: there are rows 1 to {max(every)} and subjects {names}")
    present = [subject for subject in subjects if _present(subject)]
    chosen = [every[number] for number in wanted]
    found: table.Found = {}
    for subject in present:
        found[subject.name] = {}
        for row, told in run_subject(subject.name, chosen):
            found[subject.name][row.number] = told
            _progress(f"{subject.name}: {len(found[subject.name])} of {len(chosen)} rows")
    _progress("")
    print(table.printed(chosen, present, found))
    for subject in present:
        for number, told in found[subject.name].items():
            if asked.rows is not None or (subject.name == "qkv" and told["verdict"] != "right"):
                print(f"{subject.short} {number}: {told['verdict']}: {told['seen']}")
    if len(chosen) == len(every) and not asked.only:
        about = {"machine": machine(), "versions": {subject.name: subject.versions() for subject in present}}
        table.write(found, about)
        page.write(every, present, found, about)
        print(f"written: {table.COUNTS}, {table.DETAILS}, {page.PAGE}")
    if any(told["verdict"] != "right" for told in found.get("qkv", {}).values()):
        sys.exit("trust: qkv is not right on every row")


def _present(subject: Subject) -> bool:
    reason = subject.absent()
    if reason is not None:
        print(f"left out: {subject.name}: {reason}", file=sys.stderr)
    return reason is None


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text:<70}\r{text}")
        sys.stderr.flush()


main()
