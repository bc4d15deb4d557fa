"""`python -m campaigns.mutation [room ...] [--sample N] [--seed S]`: change the code, and see who notices.

A run can be stopped at any moment and goes on where it was. Results are in build/mutation, the record in
docs/mutation.json: there every survivor has its reason, which is written by hand and kept.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..ledger import ROOT
from .covering import covering
from .mutants import Mutant, mutants_of, sample
from .record import publish, table
from .rooms import ROOMS
from .server import Collected, Outcome, collect, run_tests, warm_up

STATE = ROOT / "build" / "mutation"


def tried(path: Path) -> dict[str, dict[str, Any]]:
    """The newest result of every mutant."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result["name"]: result for result in map(json.loads, lines)}


class Hunt:
    """One room: what is left to try, who noticed what, and where it is written down."""

    def __init__(self, name: str, asked: argparse.Namespace) -> None:
        self.name, self.room, self.asked = name, ROOMS[name], asked
        self.files = self.room.files_in(ROOT)
        made = [mutant for file in self.files for mutant in mutants_of(ROOT, file)]
        size = asked.sample or self.room.sample
        self.chosen = sample(made, size, asked.seed, ROOT)
        self.made = len(self.chosen) if size is None else len(made)
        self.path = STATE / f"{name}.jsonl"
        self.results = tried(self.path)

    def left(self, *kinds: str) -> list[Mutant]:
        """Mutants without a result, or with one of these."""
        return [m for m in self.chosen if m.name not in self.results or self.results[m.name]["kind"] in kinds]

    def run(self) -> None:
        again = ("lived", "survived") if self.asked.again else ()
        if self.left("lived", *again):
            self.known = covering(ROOT, STATE / f"{self.name}-tests.json", self.files, self.room.tests)
            self.killers: dict[str, Counter[str]] = {file: Counter() for file in self.files}
            for result in self.results.values():
                self.killers.setdefault(result["file"], Counter())[result["by"]] += result["kind"] == "killed"
            self.spread([mutant for mutant in self.left(*again) if mutant.inside], self.patched)
            left = self.left("lived", *again)
            self.spread([m for m in left if not (self.asked.quick and m.inside)], self.imported)
        if not self.left():
            publish(self.name, self.made, [self.results[mutant.name] for mutant in self.chosen], self.asked.seed)

    def spread(self, mutants: list[Mutant], work: Callable[[list[Mutant]], None]) -> None:
        """Work on a part of them in each of some processes."""
        children = []
        for place in range(min(self.asked.jobs, len(mutants))):
            child = os.fork()
            if child == 0:
                try:
                    self.shown = place == 0
                    work(mutants[place :: self.asked.jobs])
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        self.results = tried(self.path)

    def patched(self, mutants: list[Mutant]) -> None:
        """In a process that has collected the tests: the quickest of them, with functions changed."""

        def each(here: Collected) -> None:
            for mutant in self.bar(mutants, "quickest tests"):
                some = list(self.first(mutant))
                outcome = Outcome("lived")
                if some:
                    seconds = sum(self.known.seconds[test] for test in some)
                    outcome = here.run_tests(some, ROOT / mutant.file, mutant.applied(ROOT), seconds)
                self.enter(mutant, outcome)

        collect(ROOT, self.room.tests, Collected(ROOT, [ROOT / file for file in self.files], self.known.modules, each))

    def imported(self, mutants: list[Mutant]) -> None:
        """In a process that imports the changed file: every test that executes it, where there is time."""
        for mutant in self.bar(mutants, "the file imported"):
            every = self.ordered(mutant)
            tests = list(self.first(mutant)) if self.asked.quick else every
            outcome = Outcome("survived", "no test executes it")
            if tests:
                seconds = sum(self.known.seconds[test] for test in tests)
                outcome = run_tests(ROOT, tests, {ROOT / mutant.file: mutant.applied(ROOT)}, seconds)
                if outcome.kind == "survived" and len(tests) < len(every):
                    outcome = replace(outcome, kind="lived")
            self.enter(mutant, outcome)

    def ordered(self, mutant: Mutant) -> list[str]:
        """The tests that execute it: those that noticed something in its file before, its mirror's, the quickest."""
        noticed, mirror = self.killers[mutant.file], f"/test_{Path(mutant.file).name}::"

        def key(test: str) -> tuple[int, bool]:
            return (-noticed[test] if self.known.seconds[test] < 0.5 else 0), mirror not in test

        return sorted(self.known.of(mutant), key=key)

    def first(self, mutant: Mutant) -> Iterator[str]:
        seconds = 0.0
        for test in self.ordered(mutant)[: self.asked.tests]:
            seconds += self.known.seconds[test]
            yield test
            if seconds > self.asked.seconds:
                return

    def bar(self, mutants: list[Mutant], what: str) -> Iterator[Mutant]:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        # Standard output of a process that has collected tests is pytest's: the bar has a stream of its own.
        stream = os.fdopen(os.dup(2), "w")
        with Progress(*columns, console=Console(file=stream), disable=not self.shown) as progress:
            yield from progress.track(mutants, description=f"{self.name}, {what}")

    def enter(self, mutant: Mutant, outcome: Outcome) -> None:
        self.killers[mutant.file][outcome.by] += outcome.kind == "killed"
        was, now = mutant.lines(ROOT)
        result = asdict(mutant) | asdict(outcome) | {"name": mutant.name, "was": was, "now": now}
        self.results[mutant.name] = result
        with self.path.open("a", encoding="utf-8") as store:
            store.write(json.dumps(result, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m campaigns.mutation", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="room", help=f"one of {', '.join(ROOMS)}; all when none is given")
    parser.add_argument("--sample", type=int, help="mutants of each room; each room's own number when not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes that work on mutants")
    parser.add_argument("--again", action="store_true", help="try survivors once more, against tests of now")
    parser.add_argument("--tests", type=int, default=40, help="tests that a mutant meets before it meets all")
    parser.add_argument("--seconds", type=float, default=3.0, help="that these may take together")
    parser.add_argument("--quick", action="store_true", help="the quickest tests only: who lives is tried another time")
    asked = parser.parse_args()
    unknown = [name for name in asked.rooms if name not in ROOMS]
    if unknown:
        parser.error(f"no room {', '.join(unknown)}; there are {', '.join(ROOMS)}")
    warm_up()
    for name in asked.rooms or ROOMS:
        Hunt(name, asked).run()
    table()


main()
