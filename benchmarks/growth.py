"""4,096 steps from an empty cache: qkv.decode, and a textbook listing, which copies its cache at each step.

The targets: at least 10 times as fast as the listing over all steps; time per step linear in the past, no jumps.
The plots go to benchmarks/plots/growth-*.svg.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import qkv

from .harness import report
from .peers.pytorch import multihead, multiquery
from .rotation import QUIET

PLOTS = Path(__file__).parent / "plots"
STEPS = 4096
BIN = 64  # steps in a point of the plot
# batch, query heads, key/value heads, width: the two listings
SHAPES = {"mha": (1, 16, 16, 128), "mqa": (1, 32, 1, 128)}


def steps_of_qkv(shape: tuple[int, int, int, int], steps: int) -> list[float]:
    batch, heads, kv_heads, width = shape
    kv_cache = qkv.KVCache(batch, kv_heads, width)
    query, key, value = (torch.randn(batch, h, 1, width) for h in (heads, kv_heads, kv_heads))
    return timed(lambda: qkv.decode(query, key, value, kv_cache), steps)


def steps_of_listing(shape: tuple[int, int, int, int], steps: int) -> list[float]:
    batch, heads, kv_heads, width = shape
    one = (batch, width) if kv_heads == 1 else (batch, kv_heads, width)
    query, key, value = torch.randn(batch, heads, width), torch.randn(one), torch.randn(one)
    attend = multiquery if kv_heads == 1 else multihead
    cache = [torch.empty(*one[:-1], 0, width) for _ in range(2)]

    def step() -> None:
        _, cache[0], cache[1] = attend(query, key, value, *cache)

    return timed(step, steps)


def timed(step: Callable[[], object], steps: int) -> list[float]:
    """Seconds of each step."""
    time.sleep(QUIET)
    gc.collect()
    gc.disable()
    try:
        marks = [time.perf_counter()]
        for _ in range(steps):
            step()
            marks.append(time.perf_counter())
    finally:
        gc.enable()
    return [after - before for before, after in pairwise(marks)]


def binned(times: np.ndarray) -> np.ndarray:
    """Medians of BIN steps each."""
    return np.median(times[: len(times) // BIN * BIN].reshape(-1, BIN), axis=1)


def straight(points: np.ndarray) -> tuple[float, float, float]:
    """The line through points over the past: seconds at past 0, seconds a token; and the largest distance from it.

    The distance is a part of the points' mean.
    """
    past = (np.arange(len(points)) + 0.5) * BIN
    slope, start = np.polyfit(past, points, 1)
    return float(start), float(slope), float(np.abs(points - (start + slope * past)).max() / points.mean())


def jumps(times: np.ndarray, times_as_long: float = 3.0) -> int:
    """Steps that take more than `times_as_long` times the median around them in every pass: the past was copied."""
    usual = np.repeat(binned(times), BIN)
    return int((times[: len(usual)] > times_as_long * usual).sum())


def plot(title: str, series: dict[str, np.ndarray]) -> str:
    """Two panels, one over the other: all series, and qkv's alone with the line through it. Milliseconds."""
    start, slope, _ = straight(series["qkv"])
    line = start + slope * (np.arange(len(series["qkv"])) + 0.5) * BIN
    alone = {"qkv": series["qkv"], "straight line": line}
    parts = [_panel(40, series, ""), _panel(330, alone, "qkv alone")]
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 640" font-family="sans-serif" font-size="13">',
            f"<title>{title}</title>",
            '<rect width="720" height="640" fill="white"/>',
            f'<text x="70" y="24" font-size="15">{title}</text>',
            *parts,
            "</svg>\n",
        ]
    )


COLOURS = {"qkv": "#1f6fb4", "listing": "#c8541b", "straight line": "#555555"}


def _panel(top: int, series: dict[str, np.ndarray], heading: str) -> str:
    left, width, height = 70, 620, 220
    ceiling = round_up(max(float(points.max()) for points in series.values()) * 1e3)
    span = max(len(points) for points in series.values()) * BIN
    parts = [f'<text x="{left + 8}" y="{top + 16}" fill="#333">{heading}</text>']
    for i in range(5):
        y, x = top + height - height * i / 4, left + width * i / 4
        parts += [
            f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{ceiling * i / 4:g}</text>',
            f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle">{span * i // 4}</text>',
        ]
    middle = top + height / 2
    parts += [
        f'<text x="{left + width / 2}" y="{top + height + 36}" text-anchor="middle">past (tokens)</text>',
        f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">time per step (ms)</text>',
    ]
    for i, (name, points) in enumerate(series.items()):
        spots = " ".join(
            f"{left + width * (j + 0.5) * BIN / span:.1f},{top + height * (1 - point * 1e3 / ceiling):.1f}"
            for j, point in enumerate(points)
        )
        dashes = ' stroke-dasharray="6 4"' if name == "straight line" else ""
        colour, x, y = COLOURS[name], left + 120 + 130 * i, top + 12
        parts += [
            f'<polyline points="{spots}" fill="none" stroke="{colour}" stroke-width="1.6"{dashes}/>',
            f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"{dashes}/>',
            f'<text x="{x + 30}" y="{y + 4}">{name}</text>',
        ]
    return "\n".join(parts)


def round_up(value: float) -> float:
    """The next of 1, 2, 4, 8 and 10 times a power of ten: its quarters are round."""
    power = 10.0 ** np.floor(np.log10(value))
    return next(float(f"{factor * power:g}") for factor in (1, 2, 4, 8, 10) if factor * power >= value)


def run() -> None:
    quick = "--quick" in sys.argv
    steps, passes = (512, 2) if quick else (STEPS, 3)
    rows, data = [], []
    for name, shape in SHAPES.items():
        taken: dict[str, list[list[float]]] = {"qkv": [], "listing": []}
        for done in range(passes):
            taken["qkv"].append(steps_of_qkv(shape, steps))
            if done == 0 or quick:  # it takes a minute
                taken["listing"].append(steps_of_listing(shape, steps))
        totals = {entry: statistics.median(map(sum, runs)) for entry, runs in taken.items()}
        # A step that another program interrupts is slow in one pass, a jump is slow in all of them.
        least = {entry: np.array(runs).min(axis=0) for entry, runs in taken.items()}
        start, slope, off = straight(binned(least["qkv"]))
        faster = totals["listing"] / totals["qkv"]
        if not quick:
            sizes = "x".join(map(str, shape))
            title = f"{steps} steps from an empty cache, {name.upper()} {sizes} float32: {faster:.1f} times as fast"
            PLOTS.mkdir(exist_ok=True)
            text = plot(title, {"listing": binned(least["listing"]), "qkv": binned(least["qkv"])})
            (PLOTS / f"growth-{name}.svg").write_text(text, encoding="utf-8")
        rows.append(
            [
                f"{name} {'x'.join(map(str, shape))}",
                f"{totals['qkv']:.2f}",
                f"{totals['listing']:.2f}",
                f"{faster:.1f}x",
                "met" if faster >= 10 else "NOT MET",
                f"{start * 1e6:.1f}",
                f"{slope * 1e9:.1f}",
                f"{off:.0%}",
                f"{jumps(least['qkv'])}",
            ]
        )
        data.append({"case": name, "shape": shape, "faster": faster, "seconds_per_step": taken})
    report(
        "growth",
        f"{steps} steps from an empty cache, seconds in all; qkv's line: µs + ns a token",
        ["", "qkv", "listing", "faster", ">= 10x", "µs", "ns", "off it", "jumps"],
        rows,
        data,
    )
    if not quick:
        print(f"plots: {', '.join(f'benchmarks/plots/growth-{name}.svg' for name in SHAPES)}")


if __name__ == "__main__":
    run()
