"""The cost model beside what it models: formula against count, prediction against the clock, the planner's own time.

Counts: random calls over forms, similarities, masks, head layouts and dtypes; what the form says it executes, against
what torch's operators and the native kernels were seen to execute. Predictions: the machine is calibrated, then calls
of other sizes are predicted and measured, in turns.

`python -m benchmarks cost`, or with --quick fewer calls. About two minutes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import defaultdict

import torch

from qkv.cost.calibrate import Prepared, measure, prepared, timed
from qkv.cost.machine import Machine
from qkv.cost.probes import Probe, odd_calls, probes
from qkv.cost.watch import watch

from .decode import bar
from .harness import report

COUNTED = 600
MEDIAN, LATE = 0.10, 0.25  # bars: errors in the middle, and at nine tenths
WANTED_SECONDS = 0.5


def formula_is_count(calls: int) -> tuple[int, int]:
    """Of so many calls, how many execute just what the formula says."""
    right = 0
    for probe in odd_calls(calls, seed=2026):
        call = prepared(probe)
        with torch.no_grad(), watch() as seen:
            call.run()
        right += call.work.executed == seen.products + seen.native
    return right, calls


def predictions(machine: Machine, calls: list[Probe], rounds: int = 5) -> list[dict]:
    """Each call predicted and measured; the whole list once a round, so that a slow moment hits many."""
    ready: list[tuple[Probe, Prepared]] = [(probe, prepared(probe)) for probe in calls]
    times: dict[int, list[float]] = defaultdict(list)
    with torch.no_grad():
        for _ in range(rounds):
            for place, (_, call) in enumerate(ready):
                times[place].append(timed(call.run, 1))
    found = []
    for place, (probe, call) in enumerate(ready):
        said = machine.seconds(call.work, probe.priced_as)
        assert said is not None, call.work.engine
        took = statistics.median(times[place])
        found.append(
            {
                "engine": call.work.engine,
                "dtype": probe.priced_as,
                "call": f"{probe.batch}x{probe.heads}/{probe.heads_kv} {probe.len_q}x{probe.len_k} w{probe.width}"
                f"{' causal' if probe.mask is not None else ''}",
                "predicted": said,
                "measured": took,
                "error": abs(said / took - 1),
            }
        )
    return found


def quantile(errors: list[float], part: float) -> float:
    return sorted(errors)[min(len(errors) - 1, int(part * len(errors)))]


def by_engine(found: list[dict]) -> list[list[str]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for entry in found:
        groups[f"{entry['engine']} {entry['dtype']}"].append(entry["error"])
    return [
        [name, f"{len(errors)}", f"{statistics.median(errors):.1%}", f"{max(errors):.0%}"]
        for name, errors in sorted(groups.items())
    ]


def planner_seconds() -> float:
    """A whole process of `qkv plan`, in the middle of some."""
    command = [sys.executable, "-m", "qkv", "plan", "--model", "llama-3-8b", "--hardware", "h100-sxm", "--json"]
    times = []
    for _ in range(5):
        before = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def run() -> None:
    quick, started = "--quick" in sys.argv, time.perf_counter()
    before = time.perf_counter()
    machine = measure(quick=quick)
    took = time.perf_counter() - before
    calls = list(probes(quick, seed=1))
    found = predictions(machine, calls, rounds=3 if quick else 7)
    errors = [entry["error"] for entry in found]
    report("cost", "predicted against measured time", ["engine", "calls", "median", "worst"], by_engine(found), found)
    worst = sorted(found, key=lambda entry: -entry["error"])[:12]
    rows = [
        [entry["engine"], entry["dtype"], entry["call"], f"{entry['predicted'] / entry['measured']:.2f}"]
        for entry in worst
    ]
    report("cost", "furthest off", ["engine", "dtype", "call", "predicted / measured"], rows, found)
    right, counted = formula_is_count(60 if quick else COUNTED)
    bars = [
        bar(f"formula = count, of {counted} calls", right / counted, ".3f", least=1.0),
        bar(f"prediction off by, median of {len(errors)} calls", statistics.median(errors), ".3f", most=MEDIAN),
        bar("the same at nine tenths", quantile(errors, 0.9), ".3f", most=LATE),
        bar("qkv plan, seconds as a process", planner_seconds(), ".2f", most=WANTED_SECONDS),
    ]
    title = "the cost model" + (" (quick: too few to count)" if quick else "")
    report("cost", title, ["", "is", "bar", ""], bars, [{"bars": bars}, *found])
    print(f"calibration {took:.0f} s, all {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    run()
