"""The backend that auto chooses and the fastest one, over 200 calls that the linear backend accepts.

The target: auto's backend within 15% of the fastest on at least 95% of the calls. And N*, the length from which on sums
of features are cheaper than scores: counted by the cost model, and measured.

`python -m benchmarks choice`, or with --quick short lengths. About four minutes.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch

import qkv
from qkv.cli.tour import equal_between
from qkv.cli.tour import scores_to_sums as kernel_scores_to_sums
from qkv.cost.machine import free_memory
from qkv.features import feature_maps

from .decode import bar, ms
from .harness import Timings, report
from .peers import TimedCall
from .rotation import compare, time_call

SIMILARITIES: dict[str, Any] = {
    "elu+1": qkv.FeatureMap(qkv.features.elu1),
    "relu": qkv.FeatureMap(qkv.features.relu),
    "power 2": qkv.Polynomial(2),
    "power 3": qkv.Polynomial(3),
}
LENGTHS = (16, 64, 256, 1024, 4096, 16384)
SHORT = (16, 64, 256)
HEADS = {8: 8, 16: 4, 32: 2, 64: 1}  # by width
MANY = (128, 64, 32)  # one more call for each similarity and mask: length, width, heads
BACKENDS = ("reference", "blockwise", "linear")
BEHIND = 10.0  # a backend this many times as slow as the fastest does not run at the next length
LONGEST = 2.0  # seconds of a call, beyond which a backend runs once, and not at greater lengths
CHEAP = 0.02  # seconds of a call, up to which a backend runs in rounds however slow it is
BUDGET = 240.0  # seconds for all
NEAR = 1.15
TARGET = 0.95
CROSSING_ROUNDS = 9
LONGEST_CROSSING = 16384


@dataclass(frozen=True)
class Setting:
    """The options of calls at several lengths."""

    similarity: str
    width: int
    heads: int
    causal: bool

    def options(self) -> dict[str, Any]:
        return {"similarity": SIMILARITIES[self.similarity], "mask": qkv.Causal() if self.causal else None}

    def explain(self, length: int) -> qkv.Choice:
        """Only sizes matter, so an expanded number is enough."""
        one = torch.zeros(1).expand(1, self.heads, length, self.width)
        return qkv.explain(one, one, one, **self.options())

    def __str__(self) -> str:
        return f"{self.similarity} {self.heads}x{self.width}{' causal' if self.causal else ''}"


@dataclass
class Entry:
    """One call: the backend that auto chooses, the seconds of each backend, and why others did not run."""

    setting: Setting
    length: int
    chosen: str
    rounds: Timings = field(default_factory=lambda: Timings({}))
    times: dict[str, float] = field(default_factory=dict)  # medians, or the only run
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def fastest(self) -> str:
        return min(self.times, key=lambda name: self.times[name])

    @property
    def behind(self) -> float:
        """The time of the chosen backend over that of the fastest; ∞ if it was too slow to run."""
        if {self.chosen, self.fastest} <= self.rounds.times.keys():
            return self.rounds.ratio(self.chosen, self.fastest)
        return self.times.get(self.chosen, math.inf) / self.times[self.fastest]


KINDS = [(name, causal) for name in SIMILARITIES for causal in (False, True)]


def settings(quick: bool) -> list[Setting]:
    widths = (8, 64) if quick else HEADS
    return [Setting(name, width, HEADS[width], causal) for name, causal in KINDS for width in widths]


def measure(setting: Setting, length: int, before: Entry | None, *, quick: bool) -> Entry:
    """All backends that do not refuse, in the same rounds."""
    choice = setting.explain(length)
    entry = Entry(setting, length, choice.backend)
    torch.manual_seed(length)
    given = [torch.randn(1, setting.heads, length, setting.width) for _ in range(3)]
    calls: dict[str, TimedCall] = {}
    for candidate in choice.candidates:
        name = candidate.backend
        if name not in BACKENDS or candidate.cost is None:
            continue
        if reason := _against(name, candidate.cost.extra, before):
            entry.left_out[name] = reason
            continue
        calls[name] = TimedCall(lambda name=name: qkv.attention(*given, **setting.options(), backend=name))
        entry.times[name] = time_call(calls[name])
    # A slow backend that is far behind needs no rounds.
    least = min(entry.times.values(), default=0.0)
    close = {name: [calls[name]] for name, once in entry.times.items() if once <= max(CHEAP, min(3 * least, LONGEST))}
    if close:
        slow = max(entry.times[name] for name in close) > 0.1
        entry.rounds = compare(close, seconds=0.0, rounds=3 if quick or slow else 7)
        entry.times |= {name: entry.rounds.median(name) for name in close}
    return entry


def _against(name: str, extra: int, before: Entry | None) -> str | None:
    """Why a backend does not run: one that is slow at a length is slow at a longer one, except linear."""
    if before is not None and name != "linear":
        if name in before.left_out:
            return before.left_out[name]
        took, least = before.times.get(name, 0.0), before.times[before.fastest]
        if took > LONGEST:
            return f"at {before.length} tokens a call took {took:.1f} s"
        if before.length >= 256 and took > BEHIND * least:
            return f"at {before.length} tokens it was more than {BEHIND:.0f} times as slow as {before.fastest}"
    if 3 * extra > free_memory():
        return f"takes {extra / 2**30:.0f} GiB and temporaries of torch"
    return None


def crossing(
    similarity: Any, width: int, heads: int, causal: bool, counted: int, longest: int = LONGEST_CROSSING
) -> str:
    """The length at which the kernel's two algorithms take equally long, interpolated on two log scales."""
    before: tuple[int, float] | None = None
    for length in (max(2, round(counted * 2.0**power)) for power in range(-3, 4)):
        if length > longest:
            return f"> {before[0]}" if before else f"? (> {longest})"
        now = length, scores_to_sums(similarity, width, heads, causal, length)
        if now[1] >= 1:
            return f"<= {length}" if before is None else f"{equal_between(before, now):.0f}"
        before = now
    return f"> {before[0]}" if before else "?"


def scores_to_sums(similarity: Any, width: int, heads: int, causal: bool, length: int) -> float:
    rule = feature_maps(similarity, width).rule
    assert rule is not None
    return kernel_scores_to_sums(rule, heads, length, causal=causal, rounds=CROSSING_ROUNDS)


def show(title: str, columns: list[str], rows: list[list[str]], entries: list[Entry], more: list[dict]) -> None:
    data = [
        {
            "call": str(entry.setting),
            "length": entry.length,
            "chosen": entry.chosen,
            "fastest": entry.fastest,
            "behind": entry.behind if math.isfinite(entry.behind) else None,
            "seconds": entry.times,
            "rounds": entry.rounds.times,
            "left_out": entry.left_out,
        }
        for entry in entries
    ]
    report("choice", title, columns, rows, [*data, *more])


def slow_choices(entries: list[Entry], most: int = 15) -> list[list[str]]:
    """The calls where auto is furthest behind."""
    worst = sorted((entry for entry in entries if entry.behind > NEAR), key=lambda entry: -entry.behind)
    return [
        [
            f"{entry.setting}",
            f"{entry.length}",
            entry.chosen,
            ms(entry.times[entry.chosen]) if entry.chosen in entry.times else "-",
            entry.fastest,
            ms(entry.times[entry.fastest]),
            f"{entry.behind:.2f}x",
            f"{max(map(entry.rounds.spread, entry.rounds.times), default=math.nan):.0%}",
        ]
        for entry in worst[:most]
    ]


def run() -> None:
    quick, started = "--quick" in sys.argv, time.perf_counter()
    lengths = SHORT if quick else LENGTHS
    entries, by_setting, late = [], {}, 0
    for setting in settings(quick):
        series: list[Entry] = []
        for length in lengths:
            if time.perf_counter() - started > BUDGET:
                late += 1
                continue
            entry = measure(setting, length, series[-1] if series else None, quick=quick)
            if entry.times:
                series.append(entry)
            else:
                print(f"{setting}, {length} tokens: no backend ran; {entry.left_out}")
        by_setting[setting] = series
        entries += series
    length, width, heads = MANY
    entries += [measure(Setting(name, width, heads, causal), length, None, quick=quick) for name, causal in KINDS]
    for backend in BACKENDS:
        reasons = [entry.left_out[backend] for entry in entries if backend in entry.left_out]
        if reasons:
            print(f"{backend} was left out in {len(reasons)} calls: first, {reasons[0]}")
    if late:
        print(f"\n{late} calls were not measured: {BUDGET:.0f} s were used up")
    rows = slow_choices(entries)
    if rows:
        title = f"auto's backend more than {NEAR - 1:.0%} behind the fastest, ms; the worst"
        show(title, ["", "N", "auto", "ms", "fastest", "ms", "behind", "±"], rows, entries, [])
    crossings = []
    for setting in by_setting:
        counted = setting.explain(128).crossover
        assert counted is not None
        one = SIMILARITIES[setting.similarity], setting.width, setting.heads, setting.causal
        found = crossing(*one, counted, 256) if quick else crossing(*one, counted)
        crossings.append([str(setting), f"{counted}", found])
    more: list[dict] = [{"crossings": crossings}]
    show(
        "N*, the length from which on sums are cheaper than scores",
        ["", "counted", "measured"],
        crossings,
        entries,
        more,
    )
    near = sum(entry.behind <= NEAR for entry in entries) / len(entries)
    bars = [bar(f"auto within {NEAR - 1:.0%} of the fastest, of {len(entries)} calls", near, ".3f", least=TARGET)]
    title = "the choice of backend" + (" (quick: too short to count)" if quick else "")
    show(title, ["", "is", "bar", ""], bars, entries, [*more, {"bars": bars}])
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    run()
