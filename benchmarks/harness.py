"""Entries run alternately in one process; ratios are taken per round, so that a slow moment affects all of them."""

from __future__ import annotations

import json
import platform
import statistics
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from qkv.cost.machine import processor_name

RESULTS = Path("build/bench")


@dataclass(frozen=True)
class Timings:
    """Seconds per call: one number per entry and round."""

    times: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.times[name])

    def spread(self, name: str) -> float:
        """Half the interquartile range over the median."""
        low, _, high = statistics.quantiles(self.times[name], n=4)
        return (high - low) / 2 / self.median(name)

    def ratio(self, name: str, to: str) -> float:
        """The median over rounds of the time of `name` over that of `to`."""
        return statistics.median(a / b for a, b in zip(self.times[name], self.times[to], strict=True))

    def best_of(self, names: list[str]) -> str:
        return min(names, key=self.median)


def compare(entries: dict[str, Callable[[], object]], *, seconds: float = 2.0, rounds: int = 9) -> Timings:
    """Warm up, then run each entry once a round, for at least `rounds` rounds and `seconds` seconds."""
    repeats = {name: _repeats(run) for name, run in entries.items()}
    times: dict[str, list[float]] = {name: [] for name in entries}
    names = list(entries)
    started, done = time.perf_counter(), 0
    while done < rounds or time.perf_counter() - started < seconds:
        # Each round starts with another entry, so that none always runs after the same one.
        for name in names[done % len(names) :] + names[: done % len(names)]:
            run, count = entries[name], repeats[name]
            before = time.perf_counter()
            for _ in range(count):
                run()
            times[name].append((time.perf_counter() - before) / count)
        done += 1
    return Timings(times)


def _repeats(run: Callable[[], object]) -> int:
    """Calls in a sample, so that a sample takes about two milliseconds."""
    run()
    before = time.perf_counter()
    run()
    once = max(time.perf_counter() - before, 1e-7)
    return max(1, min(2000, int(2e-3 / once)))


def machine() -> dict[str, object]:
    from qkv import ops

    return {
        "cpu": processor_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "torch_isa": torch.backends.cpu.get_cpu_capability(),
        "qkv_isa": ops.isa(),
        "python": platform.python_version(),
    }


class LiveTable:
    """A table whose rows are printed, and written to build/bench/<name>.json, as soon as they are measured."""

    def __init__(self, name: str, title: str, columns: dict[str, int]) -> None:
        self.name, self.title, self.widths = name, title, list(columns.values())
        self.data: list[dict] = []
        print(f"\n{title}")
        self._print(list(columns))
        self._print(["-" * width for width in self.widths])

    def add(self, cells: list[str], data: dict) -> None:
        self._print(cells)
        self.data.append(data)
        write_json(self.name, self.title, self.data)

    def note(self, text: str) -> None:
        """A line between rows, wrapped to 80 columns."""
        indent = " " * (len(text) - len(text.lstrip()))
        print(textwrap.fill(text.lstrip(), 80, initial_indent=indent, subsequent_indent=f"{indent}  "), flush=True)

    def _print(self, cells: list[str]) -> None:
        shown = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, self.widths, strict=True))
        ]
        print(" ".join(shown).rstrip(), flush=True)


def write_json(name: str, title: str, data: list[dict]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine(), "title": title, "rows": data}, indent=2))


def report(name: str, title: str, columns: list[str], rows: list[list[str]], data: list[dict]) -> None:
    """Print a table, and write the numbers to build/bench/<name>.json."""
    widths = [max(len(column), *(len(row[i]) for row in rows)) for i, column in enumerate(columns)]
    print(f"\n{title}")
    for row in [columns, ["-" * w for w in widths], *rows]:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    write_json(name, title, data)
    sys.stdout.flush()
