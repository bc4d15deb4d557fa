"""`python -m campaigns.mutation [target ...] [--sample N] [--seed S]`: mutate the code and run the tests.

A run can be stopped at any time and continues where it stopped. Results are in build/mutation, the record in
docs/mutation.json, where every survivor has a reason that is written by hand and kept.
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
from .record import prune, publish, table
from .server import Collected, Outcome, collect, run_tests, warm_up
from .targets import TARGETS

STATE = ROOT / "build" / "mutation"


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """The newest result of each mutant."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result["name"]: result for result in map(json.loads, lines)}


class MutationRun:
    """One target: its mutants, their results, and the file that keeps them."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.target, self.options = name, TARGETS[name], options
        self.files = self.target.files_in(ROOT)
        made = [mutant for file in self.files for mutant in mutants_of(ROOT, file)]
        size = options.sample or self.target.sample
        self.chosen = sample(made, size, options.seed, ROOT)
        self.made = len(self.chosen) if size is None else len(made)
        self.path = STATE / f"{name}.jsonl"
        self.results = read_results(self.path)

    def remaining(self, *kinds: str) -> list[Mutant]:
        """Mutants without a result, or with one of these kinds of result."""
        return [m for m in self.chosen if m.name not in self.results or self.results[m.name]["kind"] in kinds]

    def run(self) -> None:
        again = ("lived", "survived") if self.options.again else ()
        if self.remaining("lived", *again):
            self.known = covering(ROOT, STATE / f"{self.name}-tests.json", self.files, self.target.tests)
            self.killers: dict[str, Counter[str]] = {file: Counter() for file in self.files}
            for result in self.results.values():
                self.killers.setdefault(result["file"], Counter())[result["by"]] += result["kind"] == "killed"
            self.in_processes([mutant for mutant in self.remaining(*again) if mutant.inside], self.patched)
            left = self.remaining("lived", *again)
            self.in_processes([m for m in left if not (self.options.quick and m.inside)], self.imported)
        if not self.remaining():
            publish(self.name, self.made, [self.results[mutant.name] for mutant in self.chosen], self.options.seed)

    def in_processes(self, mutants: list[Mutant], work: Callable[[list[Mutant]], None]) -> None:
        """Divide the mutants among processes."""
        children = []
        for place in range(min(self.options.jobs, len(mutants))):
            child = os.fork()
            if child == 0:
                try:
                    self.shown = place == 0
                    work(mutants[place :: self.options.jobs])
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        self.results = read_results(self.path)

    def patched(self, mutants: list[Mutant]) -> None:
        """Run the quickest tests in a process that has collected them, with functions replaced."""

        def each(here: Collected) -> None:
            for mutant in self.bar(mutants, "quickest tests"):
                some = list(self.first(mutant))
                outcome = Outcome("lived")
                if some:
                    seconds = sum(self.known.seconds[test] for test in some)
                    outcome = here.run_tests(some, ROOT / mutant.file, mutant.applied(ROOT), seconds)
                self.enter(mutant, outcome)

        collect(
            ROOT, self.target.tests, Collected(ROOT, [ROOT / file for file in self.files], self.known.modules, each)
        )

    def imported(self, mutants: list[Mutant]) -> None:
        """Run every test that executes the mutant, in a process that imports the changed file."""
        for mutant in self.bar(mutants, "the file imported"):
            every = self.ordered(mutant)
            tests = list(self.first(mutant)) if self.options.quick else every
            outcome = Outcome("survived", "no test executes it")
            if tests:
                seconds = sum(self.known.seconds[test] for test in tests)
                outcome = run_tests(ROOT, tests, {ROOT / mutant.file: mutant.applied(ROOT)}, seconds)
                if outcome.kind == "survived" and len(tests) < len(every):
                    outcome = replace(outcome, kind="lived")
            self.enter(mutant, outcome)

    def ordered(self, mutant: Mutant) -> list[str]:
        """The tests that execute it: those that detected a mutant of its file, then its test file, then by time."""
        detected, mirror = self.killers[mutant.file], f"/test_{Path(mutant.file).name}::"

        def key(test: str) -> tuple[int, bool]:
            return (-detected[test] if self.known.seconds[test] < 0.5 else 0), mirror not in test

        return sorted(self.known.of(mutant), key=key)

    def first(self, mutant: Mutant) -> Iterator[str]:
        seconds = 0.0
        for test in self.ordered(mutant)[: self.options.tests]:
            seconds += self.known.seconds[test]
            yield test
            if seconds > self.options.seconds:
                return

    def bar(self, mutants: list[Mutant], what: str) -> Iterator[Mutant]:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        # pytest captures standard output in a process that has collected tests: the bar needs another stream.
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
    parser.add_argument("targets", nargs="*", metavar="target", help=f"some of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--sample", type=int, help="number of mutants of each target; the target's number by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--again", action="store_true", help="run the tests again on survivors")
    parser.add_argument("--tests", type=int, default=40, help="number of tests that run before all do")
    parser.add_argument("--seconds", type=float, default=3.0, help="time limit of these tests together")
    parser.add_argument("--quick", action="store_true", help="run the quickest tests only; survivors stay undecided")
    options = parser.parse_args()
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    warm_up()
    for name in options.targets or TARGETS:
        MutationRun(name, options).run()
    prune()
    table()


main()
