"""Causal attention by features over whole sequences: qkv, other libraries, and plain torch operations.

The targets, in float32: elu+1 at 1x8x16384x64 at least 50 times as fast as SDPA, 3 times as torch's chunks, 5 times as
the best linear peer; (q·k + 1)² at least twice as fast as the N×N scores in blocks at 8,192 tokens and 6 times at
32,768; each at 60% of the multiply rate; extra memory that does not grow with the length; time per token flat from
1,024 to 262,144 tokens; a decoding step at past 1,000,000 within 10% of one at past 1,000.

States that decay, are gated or corrected follow (states.py has their targets).

`python -m benchmarks linear`, or with --quick short lengths; `python -m benchmarks.linear --states` runs the last part
only. Which backend auto takes is benchmarks/choice.py's.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any

import torch

import qkv
from qkv.cost.machine import free_memory

from . import resident, states, tokens
from .decode import bar
from .harness import Timings, report
from .peers.linear import BLOCKS, CHUNKS, ELU1, Shape, Whole, for_elu1, for_quadratic
from .roofs import Roof, Roofs, describe
from .rotation import compare

LONGEST = 20.0  # seconds of a call, beyond which a peer is left out
SLOW = 1.0  # seconds of a call, from which on a peer runs in the first comparison only
TAIL = 16  # queries whose answers are checked: the last ones, which see all keys
ALLOWED = 1e-2  # of the largest answer: enough for sums of 32,768 float32 numbers, too little for another answer
FLAT = 1.25
MEBI = 1 << 20


def flops(similarity: Any, shape: Shape) -> int:
    """The state read and added to for every token, and inside a chunk the causal half of scores and sums."""
    batch, heads, length, width = shape
    features, chunk = (width, 64) if similarity is ELU1 else (width * (width + 3) // 2 + 1, 128)
    return batch * heads * length * (4 * features * width + chunk * (width + width))


def draw(shape: Shape) -> list[torch.Tensor]:
    """Gaussian; queries and keys at a width of 64 give (q·k + 1)² that no single key rules."""
    source = torch.Generator().manual_seed(shape[2])
    return [torch.randn(shape, generator=source) for _ in range(3)]


def error(peer: Whole, out: torch.Tensor, given: list[torch.Tensor]) -> float:
    """The error of the last answers against float64, over the largest. A wrong answer stops the run."""
    if peer.similarity is None:
        return math.nan
    q, k, v = (tensor.double() for tensor in given)
    first = max(0, q.shape[2] - TAIL)
    mask = qkv.Causal(offset=first)
    exact = qkv.attention(q[:, :, first:], k, v, similarity=peer.similarity, mask=mask, backend="reference")
    found = float((out[:, :, first:].double() - exact).abs().max() / exact.abs().max())
    if not found <= ALLOWED:
        raise AssertionError(f"{peer.name} is {found:.1e} of the largest answer away from float64's")
    return found


class Case:
    """One similarity and shape: the times of the peers, and the reasons of those that did not run.

    All run in the first comparison; the fast ones also run in a second one with more rounds. heads: the number of heads
    of a peer that gets fewer to save time; its times are scaled to all.
    """

    def __init__(self, shape: Shape, peers: list[Whole], heads: dict[str, int]) -> None:
        self.shape, self.peers, self.heads = shape, peers, heads
        self.similarity = peers[0].similarity
        self.refused: dict[str, str] = {}
        self.errors: dict[str, float] = {}
        self.often, self.every, self.roof = Timings({}), Timings({}), Roof(math.nan, math.nan)

    def run(self, roofs: Roofs, *, quick: bool) -> None:
        given = draw(self.shape)
        calls = {}
        for peer in self.peers:
            batch, heads, length, width = self.shape
            heads = self.heads.get(peer.name, heads)
            part, need = [tensor[:, :heads].contiguous() for tensor in given], peer.needs((batch, heads, length, width))
            if reason := peer.absent():
                self.refused[peer.name] = reason
            elif need > 0.6 * free_memory():
                self.refused[peer.name] = f"takes about {need / 2**30:.0f} GiB, {free_memory() / 2**30:.0f} are free"
            else:
                before = time.perf_counter()
                out = peer.attend(*part)
                took = time.perf_counter() - before
                self.errors[peer.name] = error(peer, out, part)
                del out
                if took > LONGEST:
                    self.refused[peer.name] = f"a call takes {took:.0f} s, more than {LONGEST:.0f}"
                else:
                    calls[peer.name] = [peer.timed_call(part)]
        first = len(roofs.taken)
        roofs.measure()
        every = compare(calls, seconds=0.0, rounds=3)
        roofs.measure()
        fast = {name: call for name, call in calls.items() if name == "qkv" or every.median(name) < SLOW}
        often = compare(fast, seconds=0.5 if quick else 4.0, rounds=3 if quick else 9)
        roofs.measure()
        self.roof = roofs.best_since(first)
        self.often, self.every = self._scaled(often), self._scaled(every)

    def _scaled(self, found: Timings) -> Timings:
        """The times scaled to all heads."""
        heads = self.shape[1]
        return Timings(
            {name: [t * heads / self.heads.get(name, heads) for t in ts] for name, ts in found.times.items()}
        )

    def of(self, name: str) -> Timings:
        """The comparison with the most rounds that has this entry."""
        return self.often if name in self.often.times else self.every

    def faster(self, name: str) -> float:
        """How many times as fast as this one qkv is; NaN if it did not run."""
        return self.of(name).ratio(name, "qkv") if name in self.every.times else math.nan

    def best_library(self) -> str | None:
        ran = [peer.name for peer in self.peers if peer.library and peer.name in self.every.times]
        return min(ran, key=self.faster, default=None)

    @property
    def of_rate(self) -> float:
        return flops(self.similarity, self.shape) / self.often.median("qkv") / self.roof.rate

    def rows(self) -> list[list[str]]:
        rows = []
        for peer in self.peers:
            if peer.name not in self.every.times:
                continue
            found, scaled = self.of(peer.name), peer.name in self.heads
            rows.append(
                [
                    peer.name + (f" (x{self.shape[1] // self.heads[peer.name]})" if scaled else ""),
                    f"{found.median(peer.name) * 1e3:.2f}",
                    f"{found.spread(peer.name):.0%}",
                    f"{len(found.times[peer.name])}",
                    f"{self.faster(peer.name):.2f}x" if peer.name != "qkv" else "",
                    f"{self.of_rate:.0%}" if peer.name == "qkv" else "",
                    "" if math.isnan(self.errors[peer.name]) else f"{self.errors[peer.name]:.0e}",
                ]
            )
        return rows

    def data(self) -> dict[str, Any]:
        return {
            "similarity": repr(self.similarity),
            "shape": self.shape,
            "heads_given": self.heads,
            "flops": flops(self.similarity, self.shape),
            "of_multiply_rate": self.of_rate,
            "multiply_rate": self.roof.rate,
            "refused": self.refused,
            "errors": {name: None if math.isnan(e) else e for name, e in self.errors.items()},
            "faster": {name: self.faster(name) for name in self.every.times},
            "times": {"fast": self.often.times, "all": self.every.times},
        }


class Figure:
    """Everything that was measured so far; each table also writes it to build/bench/linear.json."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []
        self.bars: list[list[str]] = []

    def show(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        report("linear", title, columns, rows, self.data)

    def case(self, name: str, case: Case, roofs: Roofs, *, quick: bool) -> Case:
        before = time.perf_counter()
        case.run(roofs, quick=quick)
        self.data.append(case.data())
        sizes, rate = "x".join(map(str, case.shape)), case.roof.rate / 1e9
        title = f"{name}, causal, {sizes} float32; multiply rate {rate:.0f} GFLOP/s"
        self.show(title, ["", "ms", "±", "n", "qkv faster", "of the rate", "error"], case.rows())
        for peer, heads in case.heads.items():
            print(f"  {peer} got {heads} of {case.shape[1]} heads; its times are scaled to all of them")
        for peer, reason in case.refused.items():
            print(f"  not run: {peer}: {reason}")
        print(f"  ({time.perf_counter() - before:.0f} s)", flush=True)
        return case

    def elu1(self, roofs: Roofs, *, quick: bool) -> None:
        case = Case((1, 8, 1024 if quick else 16384, 64), for_elu1(), {})
        self.case("elu+1", case, roofs, quick=quick)
        best = case.best_library()
        self.bars += [
            bar(f"elu+1, {case.shape[2]}: sdpa", case.faster("sdpa"), ".1f", least=50.0),
            bar(f"elu+1, {case.shape[2]}: torch's chunks", case.faster(CHUNKS), ".1f", least=3.0),
            bar(f"elu+1, {case.shape[2]}: {best or 'linear peers'}", case.faster(best or ""), ".1f", least=5.0),
            bar(f"elu+1, {case.shape[2]}: part of the multiply rate", case.of_rate, ".2f", least=0.6),
        ]

    def quadratic(self, roofs: Roofs, *, quick: bool) -> None:
        for length, least in ((512, 2.0), (2048, 6.0)) if quick else ((8192, 2.0), (32768, 6.0)):
            heads = {BLOCKS: 2} if length > 8192 else {}
            case = Case((1, 8, length, 64), for_quadratic(), heads)
            self.case("(q·k + 1)²", case, roofs, quick=quick)
            self.bars += [
                bar(f"(q·k+1)², {length}: N×N in blocks", case.faster(BLOCKS), ".1f", least=least),
                bar(f"(q·k+1)², {length}: part of the multiply rate", case.of_rate, ".2f", least=0.6),
            ]

    def memory(self, *, quick: bool) -> None:
        if reason := resident.absent():
            print(f"\nmemory is not measured: {reason}")
            return
        short, rows = 1024 if quick else 8192, []
        for name in resident.NAMES:
            low, high = (resident.extra(name, length) for length in (short, 4 * short))
            rows.append([name, f"{low / MEBI:.2f}", f"{high / MEBI:.2f}"])
            self.data.append({"memory": name, "lengths": [short, 4 * short], "extra_bytes": [low, high]})
            label = f"{name}: MiB more at {4 * short} than at {short}"
            self.bars.append(bar(label, (high - low) / MEBI, ".2f", most=1.0))
        title = "peak memory in addition to inputs and output, 1x8xNx64, MiB, a new process each"
        self.show(title, ["", f"N={short}", f"N={4 * short}"], rows)

    def per_token(self, *, quick: bool) -> None:
        result, taken = tokens.lengths(quick)
        series = {name: tokens.per_token(result, name, taken) for name in tokens.COLOURS}
        rows = [
            [f"{n}", *(f"{points[i]:.0f}" for points in series.values()), f"{result.spread(f'qkv {n}'):.0%}"]
            for i, n in enumerate(taken)
        ]
        self.data.append({"lengths": taken, "ns_per_token": series, "times": result.times})
        title = f"elu+1, causal, 1x{tokens.HEADS}xNx{tokens.WIDTH} float32: ns per token"
        self.show(title, ["N", *series, "±"], rows)
        if not quick:
            tokens.PLOT.parent.mkdir(exist_ok=True)
            tokens.PLOT.write_text(tokens.plot(title, taken, series), encoding="utf-8")
            print("plot: benchmarks/plots/linear-tokens.svg")
        flat = max(series["qkv"]) / min(series["qkv"])
        self.bars.append(bar(f"ns per token, {taken[0]} to {taken[-1]}: most / least", flat, ".2f", most=FLAT))

    def steps(self, *, quick: bool) -> None:
        found = tokens.steps(quick)
        if found is None:
            print("\ndecoding is not measured: LinearState is missing")
            return
        result, (near, far) = found
        rows = []
        for name in tokens.SIMILARITIES:
            times = [f"{result.median(f'{name} {past}') * 1e6:.1f}" for past in (near, far)]
            ratio = result.ratio(f"{name} {far}", f"{name} {near}")
            rows.append([name, *times, f"{result.spread(f'{name} {far}'):.0%}", f"{ratio:.3f}"])
            self.bars.append(bar(f"{name}: a step at past {far} / {near}", ratio, ".2f", most=1.1))
        self.data.append({"pasts": [near, far], "steps": result.times})
        title = "a decoding step from a LinearState, 1x8x64 float32, µs"
        self.show(title, ["", f"past {near}", f"past {far}", "±", "ratio"], rows)

    def states(self, roofs: Roofs, *, quick: bool) -> None:
        for width in states.WIDTHS:
            rows = []
            for kind in states.KINDS:
                more, targets, data = states.prompt(kind, width, roofs, quick=quick)
                rows += more
                self.bars += targets
                self.data.append(data)
            title = f"a state that changes, 1x{states.HEADS}x{2048 if quick else 16384}x{width} float32"
            rate = f"multiply rate {roofs.taken[-1].rate / 1e9:.0f} GFLOP/s"
            columns = ["", "ms", "±", "of the rate; qkv faster", "error"]
            self.show(f"{title}; {rate}", columns, rows)
        rows, targets, data = states.steps(quick=quick)
        self.bars += targets
        self.data.append(data)
        title = "a step of a state that changes, float32, states out of cache, µs"
        self.show(title, ["batch, heads, widths", "qkv", "read and write", "torch", "±", "ratio"], rows)


def introduce(peers: list[Whole]) -> None:
    for peer in peers:
        print(f"{peer.name:<9} {peer.absent() or peer.version()}\n  {peer.title}")


def run() -> None:
    quick, started = "--quick" in sys.argv, time.perf_counter()
    whole = "--states" not in sys.argv
    introduce([*for_elu1(), *for_quadratic()] if whole else [])
    if os.getloadavg()[0] > 0.7:
        print(f"load average {os.getloadavg()[0]:.1f}: other programs are running, these figures are not reliable")
    roofs, figure = Roofs(), Figure()
    if whole:
        figure.elu1(roofs, quick=quick)
        figure.quadratic(roofs, quick=quick)
        figure.memory(quick=quick)
        figure.per_token(quick=quick)
        figure.steps(quick=quick)
    figure.states(roofs, quick=quick)
    print(f"\n{describe(roofs)}")
    figure.data.append({"bars": figure.bars})
    title = "how many times as fast as …, and the other targets"
    figure.show(title + (" (quick: too short to count)" if quick else ""), ["", "is", "bar", ""], figure.bars)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    run()
