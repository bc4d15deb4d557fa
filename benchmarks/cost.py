"""The cost model and measurements: formula and count, predicted and measured time, the time of the planner.

Counts: random calls of `reference` over similarities, head layouts and dtypes; the operations that it declares and
those that torch executed. Predictions: calls that prices are fitted to and calls of other sizes that are predicted
from them are measured in the same rounds; and, since the speed of a shared machine changes, also with an earlier
calibration.

`python -m benchmarks cost`, or with --quick fewer calls. About five minutes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

from qkv.cost.price import Price
from qkv.profiling.calibrate import (
    Measured,
    Probe,
    fit_prices,
    measure,
    measure_probes,
    prepare,
    probes,
)
from qkv.profiling.watch import watch

from .decode import bar
from .harness import report

COUNTED = 600
FITTED = 24  # calls for each kind that prices are fitted to
ROUNDS = 16
MEDIAN, LATE = 0.10, 0.25  # targets: median error, and error at the 90th percentile
PLAN_SECONDS = 0.5


def formula_is_count(calls: int) -> tuple[int, int]:
    """How many calls of `reference` without a mask execute exactly what the formula says, and the number of calls."""
    right = 0
    dense = [probe for probe in probes(calls, seed=2026) if probe.backend == "reference" and probe.mask is None][:calls]
    for probe in dense:
        call = prepare(probe)
        with torch.no_grad(), watch() as seen:
            call.run()
        right += call.cost.flops == seen.products
    return right, len(dense)


def predictions(prices: dict[str, Price], calls: list[Probe], measured: list[Measured]) -> list[dict]:
    """The predicted and the measured time of each call."""
    found = []
    for probe, (engine, cost, took) in zip(calls, measured, strict=True):
        predicted = prices[engine].seconds(cost)
        found.append(
            {
                "engine": engine,
                "dtype": probe.dtype,
                "call": f"{probe.batch}x{probe.heads}/{probe.heads_kv} {probe.len_q}x{probe.len_k} w{probe.width}"
                f"{' causal' if probe.mask is not None else ''}",
                "predicted": predicted,
                "measured": took,
                "error": abs(predicted / took - 1),
            }
        )
    return found


def measure_in_rounds(fitted_to: list[Probe], tests: list[Probe], rounds: int) -> tuple[list[Measured], list[Measured]]:
    """Measure calls that prices are fitted to and calls that are predicted in the same rounds.

    Of the first, which are many, a quarter runs in each round.
    """
    some: list[list[Measured]] = [[] for _ in fitted_to]
    others: list[list[Measured]] = [[] for _ in tests]
    for number in range(rounds):
        own = range(number % 4, len(fitted_to), 4)
        found = measure_probes([*(fitted_to[place] for place in own), *tests], 1)
        for place, taken in zip(own, found, strict=False):
            some[place].append(taken)
        for place, taken in enumerate(found[len(own) :]):
            others[place].append(taken)
    return [_middle(visits) for visits in some if visits], [_middle(visits) for visits in others]


def _middle(visits: list[Measured]) -> Measured:
    return visits[0]._replace(seconds=statistics.median(taken.seconds for taken in visits))


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
    """The median time of a process of `qkv plan`."""
    command = [
        str(Path(sys.executable).with_name("qkv")),
        "plan",
        "--model",
        "llama-3-8b",
        "--hardware",
        "h100-sxm",
        "--json",
    ]
    times = []
    for _ in range(5):
        before = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def run() -> None:
    quick, started = "--quick" in sys.argv, time.perf_counter()
    machine = measure()
    took = time.perf_counter() - started
    tests = list(probes(2 if quick else 6, seed=1))
    later = predictions(dict(machine.prices), tests, measure_probes(tests, 3))
    fitted_to, measured = measure_in_rounds(list(probes(6 if quick else FITTED)), tests, 3 if quick else ROUNDS)
    found = predictions(fit_prices(fitted_to)[0], tests, measured)
    errors = [entry["error"] for entry in found]
    report("cost", "predicted against measured time", ["engine", "calls", "median", "worst"], by_engine(found), found)
    worst = sorted(found, key=lambda entry: -entry["error"])[:12]
    rows = [
        [entry["engine"], entry["dtype"], entry["call"], f"{entry['predicted'] / entry['measured']:.2f}"]
        for entry in worst
    ]
    report("cost", "furthest off", ["engine", "dtype", "call", "predicted / measured"], rows, found)
    right, counted = formula_is_count(60 if quick else COUNTED)
    after = [entry["error"] for entry in later]
    bars = [
        bar(f"formula = count, of {counted} calls", right / counted, ".3f", least=1.0),
        bar(f"prediction off by, median of {len(errors)} calls", statistics.median(errors), ".4f", most=MEDIAN),
        bar("the same at the 90th percentile", quantile(errors, 0.9), ".4f", most=LATE),
        [f"calibrated {took:.0f} s before: median", f"{statistics.median(after):.3f}", "", ""],
        ["the same at the 90th percentile", f"{quantile(after, 0.9):.3f}", "", ""],
        bar("qkv plan, seconds as a process", planner_seconds(), ".2f", most=PLAN_SECONDS),
    ]
    title = "the cost model" + (" (quick: too few to count)" if quick else "")
    report("cost", title, ["", "is", "bar", ""], bars, [{"bars": bars}, *found])
    print(f"calibration {took:.0f} s, all {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    run()
