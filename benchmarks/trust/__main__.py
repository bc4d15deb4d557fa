"""`python -m benchmarks.trust [--only NAME] [--rows 1,5,23]`: print the table, write JSON to build and docs/trust.md.

With --page no row runs: docs/trust.md is written again from the last run and the present records.
"""

from __future__ import annotations

import argparse
import sys

from ..harness import machine
from . import page, table
from .rows import rows
from .runner import run_subject
from .subjects import Subject, all_subjects


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="run this subject only; may be repeated")
    parser.add_argument("--rows", metavar="N,N", help="run these rows only")
    parser.add_argument("--page", action="store_true", help="write docs/trust.md again from the last run")
    options = parser.parse_args()
    every = rows()
    if options.page:
        if not table.DETAILS.exists():
            sys.exit(f"trust: {table.DETAILS} is missing; run make trust first")
        found, about = table.read()
        page.write(every, [subject for subject in all_subjects() if subject.name in found], found, about)
        return
    wanted = list(every) if options.rows is None else [int(number) for number in options.rows.split(",")]
    unknown = [number for number in wanted if number not in every]
    subjects = [subject for subject in all_subjects() if not options.only or subject.name in options.only]
    if unknown or not subjects:
        names = ", ".join(subject.name for subject in all_subjects())
        sys.exit(f"trust: choose rows from 1 to {max(every)} and subjects from {names}")
    present = [subject for subject in subjects if _present(subject)]
    chosen = [every[number] for number in wanted]
    found: table.Found = {}
    for subject in present:
        found[subject.name] = {}
        for row, result in run_subject(subject.name, chosen):
            found[subject.name][row.number] = result
            _progress(f"{subject.name}: {len(found[subject.name])} of {len(chosen)} rows")
    _progress("")
    print(table.printed(chosen, present, found))
    for subject in present:
        for number, result in found[subject.name].items():
            if options.rows is not None or (subject.name == "qkv" and result["verdict"] != "right"):
                print(f"{subject.short} {number}: {result['verdict']}: {result['seen']}")
    if len(chosen) == len(every) and not options.only:
        about = {"machine": machine(), "versions": {subject.name: subject.versions() for subject in present}}
        table.write(found, about)
        page.write(every, present, found, about)
        print(f"written: {table.COUNTS}, {table.DETAILS}, {page.PAGE}")
    if any(result["verdict"] != "right" for result in found.get("qkv", {}).values()):
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
