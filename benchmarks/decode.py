"""One decoding step, a token after a long past: qkv and every peer in the same rounds, and the machine's limit.

The targets: at least 2.4 times as fast as the best peer of each shape and dtype in geometric mean, and 0.97 times on
every shape past 64 tokens; 5 times as fast as torch's SDPA as users call it; 80% of the roof on the shapes of TABLE;
int8 1.6 times and int4 1.5 times as fast as bfloat16 where bandwidth is the limit, int8 with an error of at most 1% of
max |v|; under 10 µs a call at past 1.

`python -m benchmarks decode`, or with --quick a few shapes and rounds.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any

import torch

from qkv.cost.machine import last_level_cache

from .cells import Cell, Qkv, Shape, measure, stored
from .harness import Timings, report
from .peers import Peer, Step, TimedCall, all_peers
from .roofs import MEBI, Roofs, describe
from .rotation import caches, compare

TABLE: list[Shape] = [
    (1, 32, 32, 4096, 128),
    (1, 32, 8, 4096, 128),
    (1, 32, 1, 4096, 128),
    (8, 32, 1, 4096, 128),
    (8, 16, 16, 1024, 64),
]
SHAPES: list[Shape] = [
    *TABLE,
    (1, 32, 8, 32768, 128),
    (4, 9, 3, 2048, 64),
    (1, 16, 4, 2048, 80),
    (2, 15, 5, 1024, 96),
    (1, 20, 4, 4097, 64),
    (1, 28, 4, 2048, 128),
    (1, 8, 2, 1024, 256),
    (1, 32, 8, 17, 128),
    (1, 32, 8, 1, 128),
]
QUICK: list[Shape] = [TABLE[1], TABLE[2], TABLE[4], (1, 32, 8, 17, 128)]

# The comparison of narrow storages: qkv's int8 first, as "qkv", then ggml's q8_0, and all that have 16 bits.
NARROW = {
    "qkv": ("qkv", "int8"),
    "q-84": ("qkv", "int8/int4"),
    "q-4": ("qkv", "int4"),
    "g-q8": ("ggml", "int8"),
    "q-bf16": ("qkv", "bfloat16"),
    "q-f16": ("qkv", "float16"),
    "g-f16": ("ggml", "float16"),
    "s-f16": ("sdpa", "float16"),
    "p-f16": ("pack", "float16"),
    "o-f16": ("onnx", "float16"),
    "v-f16": ("vllm", "float16"),
    "m-f16": ("mulmat", "float16"),
}
HALVES = ("g-f16", "s-f16", "p-f16", "o-f16", "v-f16", "m-f16")
LEAST_PAST = 64  # up to this past the calls themselves are compared


def label(shape: Shape) -> str:
    return "x".join(map(str, shape))


def ms(seconds: float) -> str:
    """Milliseconds in four characters: 143, 12.3, 1.23, .123, .012"""
    value = seconds * 1e3
    digits = next((digits for digits, least in ((0, 99.95), (1, 9.995), (2, 0.9995)) if value >= least), 3)
    text = f"{value:.{digits}f}"
    return text.removeprefix("0") if digits == 3 else text


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def best(result: Timings) -> str:
    return result.best_of([name for name in result.times if name != "qkv"])


def best_half(result: Timings) -> str:
    return result.best_of([name for name in HALVES if name in result.times])


class Figure:
    """Everything that was measured so far; each table also writes it to build/bench/decode.json."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.more: list[dict[str, Any]] = []

    def show(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        report("decode", title, columns, rows, [*(cell.data() for cell in self.cells), *self.more])

    def of(self, *storages: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.storage in storages]

    def times(self, kind: str, storage: str, names: list[str], title: str) -> None:
        rows = []
        for cell in self.of(storage):
            result: Timings = getattr(cell, kind)
            rows.append([label(cell.shape), *(ms(result.median(n)) if n in result.times else "-" for n in names)])
        self.show(title, ["ms", *names], rows)

    def ratios(self, storage: str) -> None:
        rows = []
        for cell in self.of(storage):
            rows.append(
                [
                    label(cell.shape),
                    best(cell.cold),
                    f"{cell.cold.ratio(best(cell.cold), 'qkv'):.2f}x",
                    f"{cell.cold.ratio('sdpa', 'qkv'):.2f}x",
                    cell.bound,
                    ms(cell.limit),
                    f"{cell.of_roof:.0%}",
                    ms(cell.warm.median("qkv")),
                    f"{cell.warm.ratio(best(cell.warm), 'qkv'):.2f}x",
                    f"{cell.cold.spread('qkv'):.0%}",
                ]
            )
        columns = ["", "best", "faster", "sdpa", "bound", "roof", "part", "warm", "faster", "±"]
        self.show(f"{storage}: qkv cold to the best peer, to sdpa, to the roof; warm to the best", columns, rows)

    def narrow(self) -> None:
        rows = []
        for cell in self.of("int8"):
            result, half = cell.cold, best_half(cell.cold)
            rows.append(
                [
                    label(cell.shape),
                    *(f"{result.ratio('q-bf16', name):.2f}x" for name in ("qkv", "q-84", "q-4")),
                    cell.bound,
                    f"{cell.of_roof:.0%}",
                    *(f"{cell.errors[name]:.1e}" for name in ("qkv", "q-84", "q-4")),
                    f"{result.ratio('g-q8', 'qkv'):.2f}x" if "g-q8" in result.times else "-",
                    f"{cell.errors['g-q8']:.1e}" if "g-q8" in result.times else "-",
                    f"{result.ratio(half, 'q-f16'):.2f}x",
                    half,
                ]
            )
        columns = [
            "",
            "int8",
            "mixed",
            "int4",
            "bound",
            "part",
            "error",
            "mixed",
            "int4",
            "q8_0",
            "error",
            "f16",
            "best",
        ]
        title = "int8, int8/int4 and int4 to bfloat16, int8 to its roof, errors / max|v|; to q8_0; float16 to the best"
        self.show(title, columns, rows)


def tiny_call(rounds: int) -> Timings:
    """A call at past 1, on one cache: what is left is the call itself."""
    step = Step.draw((1, 32, 8, 1, 128), "float32")
    sdpa = next(peer for peer in all_peers() if peer.name == "sdpa")
    return compare({peer.name: [peer.prepare(step, "float32")] for peer in (Qkv(), sdpa)}, rounds=rounds)


def between_products(rounds: int) -> Timings:
    """The step alone, and between products of torch's, as in a model; only the step is timed."""
    shape, storage = TABLE[1], "bfloat16"
    step = Step.draw(shape, storage)
    alone = [Qkv().prepare(step, storage) for _ in range(caches(stored(shape, storage)))]
    rows, weights = torch.randn(8, 2048), torch.randn(2048, 2048)

    def among(call: TimedCall) -> TimedCall:
        def undo() -> None:
            if call.undo is not None:
                call.undo()
            torch.matmul(rows, weights)  # what follows this step,
            torch.matmul(rows, weights)  # and what comes before the next

        return TimedCall(call.run, undo)

    return compare({"alone": alone, "between": [among(call) for call in alone]}, rounds=rounds)


def bar(name: str, value: float, shown: str, *, least: float | None = None, most: float | None = None) -> list[str]:
    """A row: the measured value, the target, and whether it is met; a value that was not measured (NaN) is not."""
    met = value >= least if least is not None else most is not None and value <= most
    wanted = f">= {least:{shown}}" if least is not None else f"<= {most:{shown}}"
    return [name, f"{value:{shown}}", wanted, "met" if met else "NOT MET"]


def bars(figure: Figure, call: Timings, between: Timings) -> list[list[str]]:
    wide, narrow = figure.of("float32", "bfloat16"), figure.of("int8")
    to_best = {
        storage: [cell.cold.ratio(best(cell.cold), "qkv") for cell in figure.of(storage)]
        for storage in ("float32", "bfloat16")
    }
    to_best["float16"] = [cell.cold.ratio(best_half(cell.cold), "q-f16") for cell in narrow]
    to_best["int8"] = [cell.cold.ratio("g-q8", "qkv") for cell in narrow if "g-q8" in cell.cold.times]
    every = [ratio for ratios in to_best.values() for ratio in ratios]
    far = [cell.cold.ratio(best(cell.cold), "qkv") for cell in wide if cell.shape[3] > LEAST_PAST]
    far += [cell.cold.ratio(best_half(cell.cold), "q-f16") for cell in narrow if cell.shape[3] > LEAST_PAST]
    to_sdpa = [cell.cold.ratio("sdpa", "qkv") for cell in wide]
    roofs = [cell.of_roof for cell in wide if cell.shape in TABLE]
    # int8 saves bytes: it can pay where bytes bind bfloat16.
    bound = {cell.shape for cell in figure.of("bfloat16") if cell.bound == "bytes"}
    to_bfloat16 = {name: [c.cold.ratio("q-bf16", name) for c in narrow if c.shape in bound] for name in ("qkv", "q-4")}
    # What no step can exceed past 64 tokens: the best peer's time over the roof, or over qkv's if that is shorter.
    cold = [(cell, best(cell.cold)) for cell in wide if cell.shape[3] > LEAST_PAST and cell.is_cold]
    limits = [cell.cold.median(name) / min(cell.limit, cell.cold.median("qkv")) for cell, name in cold]
    shown = [("past 64 tokens, is", [cell.cold.ratio(name, "qkv") for cell, name in cold]), ("at the roof", limits)]
    rows = [[f"best peer, {storage}", f"{mean(ratios):.2f}", "", ""] for storage, ratios in to_best.items()]
    rows += [[f"float32 and bfloat16, {kind}", f"{mean(ratios):.2f}", "", ""] for kind, ratios in shown]
    rows += [
        bar("best peer, float32 and bfloat16", mean(to_best["float32"] + to_best["bfloat16"]), ".2f", least=2.4),
        bar("best peer, all four storages", mean(every), ".2f", least=2.4),
        bar("best peer, the least past 64 tokens", min(far), ".2f", least=0.97),
        bar("sdpa, float32 and bfloat16", mean(to_sdpa), ".2f", least=5.0),
        bar("part of the roof, least of the table", min(roofs, default=math.nan), ".2f", least=0.8),
        bar("int8 to bfloat16, least where bytes bind", min(to_bfloat16["qkv"], default=math.nan), ".2f", least=1.6),
        bar("int4 to bfloat16, least where bytes bind", min(to_bfloat16["q-4"], default=math.nan), ".2f", least=1.5),
        bar("int8 error / max|v|, the largest", max(cell.errors["qkv"] for cell in narrow), ".4f", most=0.01),
        bar("a call at past 1, µs", call.median("qkv") * 1e6, ".1f", most=10.0),
        bar("time between products, to alone", between.ratio("between", "alone"), ".2f", most=1.05),
    ]
    figure.more.append({"bars": rows, "to_best_peer": to_best, "to_sdpa": to_sdpa})
    return rows


def introduce(peers: list[Peer]) -> None:
    for peer in peers:
        reason = peer.absent()
        print(f"{peer.name:<5} {reason or peer.version()}\n      {peer.title}")


def refusals(cells: list[Cell]) -> None:
    """Print which entries did not run, where and why."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        for name, reason in cell.refused.items():
            found.setdefault((name, cell.storage, reason), []).append(label(cell.shape))
    print("\nnot run")
    for (name, storage, reason), shapes in found.items():
        count = len({cell.shape for cell in cells if cell.storage == storage})
        where = "all shapes" if len(shapes) == count else ", ".join(shapes)
        print(f"  {name}, {storage}: {reason}\n      {where}")


def run() -> None:
    quick = "--quick" in sys.argv
    shapes, started = QUICK if quick else SHAPES, time.perf_counter()
    peers: list[Peer] = [Qkv(), *all_peers()]
    by_name = {peer.name: peer for peer in peers}
    introduce(peers)
    if os.getloadavg()[0] > 0.7:
        print(f"load average {os.getloadavg()[0]:.1f}: other programs are running, these figures are not reliable")
    roofs, figure = Roofs(), Figure()
    print(f"last-level cache {last_level_cache() / MEBI:.0f} MiB; cold figures rotate over four times that")
    names = list(by_name)
    for storage in ("float32", "bfloat16", "int8"):
        if storage == "int8":
            entries = [(name, by_name[peer], kept) for name, (peer, kept) in NARROW.items()]
        else:
            entries = [(peer.name, peer, storage) for peer in peers]
        for shape in shapes:
            before = time.perf_counter()
            cell = measure(shape, entries, roofs, quick=quick)
            figure.cells.append(cell)
            against = "q-bf16" if storage == "int8" else best(cell.cold)
            ratio, took = cell.cold.ratio(against, "qkv"), time.perf_counter() - before
            print(f"  {label(shape)} {storage}: {ratio:.2f}x as fast as {against} ({took:.0f} s)", flush=True)
        if storage == "int8":
            title = "cold: qkv is int8, q- its others; g- ggml, s- sdpa, p- pack, o- onnx"
            figure.times("cold", storage, list(NARROW), title)
            figure.narrow()
        else:
            figure.times("cold", storage, names, f"{storage}, cold")
            figure.times("warm", storage, names, f"{storage}, warm (one cache, again and again)")
            figure.ratios(storage)
    call, between = tiny_call(11 if quick else 51), between_products(5 if quick else 21)
    figure.more.append({"past_1": call.times, "between_products": between.times, "roofs": vars(roofs.best_since(0))})
    refusals(figure.cells)
    small = [label(cell.shape) for cell in figure.of("float32") if not cell.is_cold]
    print(f"\nnot cold, the rotation is smaller than that: {', '.join(small) or 'none'}")
    print(describe(roofs))
    print(f"a call at past 1: qkv {call.median('qkv') * 1e6:.1f} µs, sdpa {call.median('sdpa') * 1e6:.1f} µs")
    rows = bars(figure, call, between)
    figure.show("how many times as fast as …, geometric means, cold; and the bars", ["", "is", "bar", ""], rows)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    run()
