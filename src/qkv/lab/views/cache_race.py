"""The race of the cache view: five ways to keep the past decode at the same time on one machine, until memory is full.

A moment has the tokens of each way whose steps fit into the time so far. Steps take what the roofline gives; bytes and
flops are those of `qkv.cost`.
"""

from __future__ import annotations

import html
import json
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

from ...cost.architecture import Latent, Model
from ...cost.blocks import model_cost, parts
from ...cost.ledger import Ledger
from ...cost.machine import Hardware
from ...cost.variants import ITEM, VARIANTS, past, seconds_by_roofline
from ..numbers import shown

MOMENTS = 60
POINTS = 400  # between which the time of a step changes evenly
LONGEST = 1 << 34  # tokens
WAYS = (*VARIANTS[:3], "MLA", VARIANTS[3])


def latent_of(width: int) -> Latent:
    """As DeepSeek's, for heads of this width: a vector of four widths, and half a width of rotated coordinates."""
    return Latent(kv_rank=4 * width, q_rank=None, rope_width=max(width // 2, 1))


def kept(way: str, tokens: int, sizes: dict[str, Any]) -> tuple[int, Ledger]:
    """Bytes of one layer after so many tokens, and its next step."""
    if way != "MLA":
        found = past(way, tokens=tokens, **sizes)
        return found.cache_bytes, found.step
    heads, width, batch, cache = (sizes[name] for name in ("heads", "width", "batch", "cache"))
    latent = latent_of(width)
    model = Model(
        name=way,
        layers=1,
        d_model=heads * width,
        heads=heads,
        head_width=width + latent.rope_width,
        value_width=width,
        latent=latent,
    )
    by_part = parts(model_cost(model, batch, 1, tokens, weights=ITEM, cache=cache, similarity="softmax"))
    return model.cache_bytes(tokens, batch, cache), Ledger(way, (*by_part["scores"].lines, *by_part["cache"].lines))


def race(sizes: dict[str, Any], start: int, layers: int, machine: Hardware) -> dict[str, Any]:
    """For each way: the tokens at which memory is full, and tokens and bytes at each moment."""
    runs = {way: _Run(way, sizes, start, layers, machine) for way in WAYS}
    # Until grouped queries have filled the memory, and a little longer; with one group they are the first ones.
    seconds = 1.15 * max(runs["GQA"].until_full, 1e-9)
    times = [seconds * moment / MOMENTS for moment in range(MOMENTS + 1)]
    ways = []
    for way, run in runs.items():
        frames = [run.at(time) for time in times]
        ways.append({"name": way, "full_at": run.full_at, "tokens": [frame[0] for frame in frames],
                     "held": [frame[1] for frame in frames]})  # fmt: skip
    return {"memory": machine.memory, "layers": layers, "seconds": times, "ways": ways}


class _Run:
    """One way: its bytes are even in the tokens, so that two of them give all."""

    def __init__(self, way: str, sizes: dict[str, Any], start: int, layers: int, machine: Hardware) -> None:
        one, two = (kept(way, start + more, sizes) for more in (0, LONGEST))
        self.start, self.base = start, layers * one[0]
        self.each = layers * (two[0] - one[0]) // LONGEST
        space = machine.memory - self.base
        self.full_at = None if not self.each else start + max(space // self.each, 0) if space >= 0 else start
        self.step = [layers * seconds_by_roofline(step, machine) for step in (one[1], two[1])]
        flops, moved = (
            [layers * getattr(step, name) / rate for step in (one[1], two[1])]
            for name, rate in (("flops", machine.rate(ITEM)), ("traffic", machine.bandwidth))
        )
        self.lines = [(a, (b - a) / LONGEST) for a, b in (flops, moved)]
        last = LONGEST if self.full_at is None else self.full_at - start
        self.grid = sorted({round(last * (n / POINTS) ** 2) for n in range(POINTS + 1)})
        steps = [(b - a) * (self._seconds(a) + self._seconds(b - 1)) / 2 for a, b in pairwise(self.grid)]
        self.spent = list(accumulate(steps, initial=0.0))

    def _seconds(self, tokens: int) -> float:
        """Of the step after so many new tokens."""
        return max(first + slope * tokens for first, slope in self.lines)

    @property
    def until_full(self) -> float:
        return self.spent[-1]

    def at(self, time: float) -> tuple[int, int]:
        """Tokens and bytes after so long."""
        if time >= self.spent[-1]:
            new = self.grid[-1]
        else:
            place = bisect_right(self.spent, time) - 1
            new = _most(
                lambda n: self._part(place, n) <= time - self.spent[place], self.grid[place + 1] - self.grid[place]
            )
            new += self.grid[place]
        return self.start + new, self.base + self.each * new

    def _part(self, place: int, steps: int) -> float:
        first = self.grid[place]
        return steps * (self._seconds(first) + self._seconds(first + steps - 1)) / 2 if steps else 0.0


def _most(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits; 0 does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def frames(result: dict[str, Any]) -> str:
    """Each moment as a script shows it: tokens, bytes and their words, for each way."""
    found = result["race"]
    rows = [
        [
            [way["tokens"][moment], way["held"][moment], shown(way["tokens"][moment]), shown(way["held"][moment], "B")]
            for way in found["ways"]
        ]
        for moment in range(MOMENTS + 1)
    ]
    times = [[seconds, shown(seconds, "s")] for seconds in found["seconds"]]
    return html.escape(json.dumps({"rows": rows, "times": times}))
