"""Which tests execute which line: one run of a target's tests under coverage.py, with a context for each test."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import coverage
import pytest

from .mutants import Mutant
from .patching import forget
from .server import Finder, in_child, pytest_in_here


@dataclass(frozen=True)
class Covering:
    """For each file and line the tests that execute it; the seconds of each test; modules that tests import late."""

    lines: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]
    modules: list[str]

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that execute the change, quickest first; all of the file's for code that runs on import, and every
        test for a file without functions.

        The first three cases of each test function come before the other cases, which are similar.
        """
        known = self.lines.get(mutant.file, {})
        lines = range(mutant.line, mutant.last + 1) if mutant.inside else known
        found = {test for line in lines for test in known.get(line, ())}
        if not mutant.inside and len(found) < 2:  # one test may have been the first to import it
            found = set(self.seconds)
        seen: dict[str, int] = {}
        order = []
        for test in sorted(found - {""}, key=lambda test: (self.seconds[test], test)):
            function = test.partition("[")[0]
            seen[function] = seen.get(function, 0) + 1
            order.append((seen[function] > 3, test))
        return [test for _, test in sorted(order, key=lambda pair: pair[0])]


def covering(root: Path, store: Path, files: Sequence[str], tests: Sequence[str]) -> Covering:
    """Kept in `store`: only new and changed test files run again, and all of them if the code changed."""
    digests = {path: _digest([root / path]) for path in _expanded(root, tests)}
    code = _digest([root / file for file in files])
    known: dict[str, Any] = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
    if known.get("code") != code:
        known = {"code": code, "digests": {}, "seconds": {}, "lines": {}, "modules": []}
    fresh = [path for path, digest in digests.items() if known["digests"].get(path) != digest]
    if fresh:
        store.parent.mkdir(parents=True, exist_ok=True)
        part = store.with_suffix(".part")
        result = in_child(root, lambda: _cover(root, part, files, fresh), 7200)
        if result.get("kind") != "covered":
            raise RuntimeError(f"the run of {', '.join(fresh)} under coverage ended with {result}")
    current = {test for test in known["seconds"] if test.partition("::")[0] in set(digests) - set(fresh)}
    known["seconds"] = {test: seconds for test, seconds in known["seconds"].items() if test in current}
    for test in set(known["lines"]) - current:
        del known["lines"][test]
    if fresh:
        found = json.loads(part.read_text(encoding="utf-8"))
        part.unlink()
        known["seconds"] |= found["seconds"]
        known["lines"] |= found["lines"]
        known["modules"] = sorted({*known["modules"], *found["modules"]})
        known["digests"] = digests
        store.write_text(json.dumps(known), encoding="utf-8")
    lines: dict[str, dict[int, list[str]]] = {}
    for test, executed in known["lines"].items():
        for file, numbers in executed.items():
            for line in numbers:
                lines.setdefault(file, {}).setdefault(line, []).append(test)
    return Covering(lines, known["seconds"], known["modules"])


def _digest(paths: Sequence[Path]) -> str:
    return sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _expanded(root: Path, tests: Sequence[str]) -> list[str]:
    """The test files in these paths; every file of the package may have doctests."""
    found = []
    for place in tests:
        here = root / place
        found += [here] if here.is_file() else sorted(here.rglob("*.py" if place.startswith("src") else "test_*.py"))
    return [path.relative_to(root).as_posix() for path in dict.fromkeys(found)]


def _cover(root: Path, store: Path, files: Sequence[str], tests: Sequence[str]) -> dict[str, Any]:
    sys.meta_path.insert(0, Finder(root / "src", {}))
    measured = coverage.Coverage(data_file=None, include=[str(root / file) for file in files], config_file=False)
    measured.start()
    plugin = _Contexts(measured)
    ended = pytest_in_here(["--maxfail=1000", *tests], plugin)
    measured.stop()
    if ended not in (0, 1, 5):
        return {"kind": f"pytest: {ended}"}
    lines: dict[str, dict[str, list[int]]] = {test: {} for test in plugin.seconds}
    for file in files:
        for line, contexts in measured.get_data().contexts_by_lineno(str(root / file)).items():
            for test in contexts:
                if test in lines:
                    lines[test].setdefault(file, []).append(line)
    modules = [name for name in sys.modules if name.partition(".")[0] in ("qkv", "torch")]
    store.write_text(json.dumps({"seconds": plugin.seconds, "lines": lines, "modules": modules}), encoding="utf-8")
    return {"kind": "covered"}


class _Contexts:
    """A plugin: a coverage context for each test that passes, with the package's lru_caches cleared before it."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured, self.seconds = measured, {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        forget("qkv")
        self.measured.switch_context(item.nodeid)
        self.seconds[item.nodeid] = -time.perf_counter()
        try:
            return (yield)
        finally:
            if item.nodeid in self.seconds:
                self.seconds[item.nodeid] += time.perf_counter()
            self.measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.seconds.pop(report.nodeid, None)
