"""N*, the length from which on sums of features are cheaper than scores: as the cost model counts it, and measured."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import torch

from qkv.kernels.linear import linear
from qkv.maps import maps_of

ROUNDS = 9
LONGEST = 16384


def crossing(similarity: Any, width: int, heads: int, causal: bool, counted: int, longest: int = LONGEST) -> str:
    """Where the kernel's two ways take equally long, read between lengths on paper with two log scales."""
    before: tuple[int, float] | None = None
    for length in (max(2, round(counted * 2.0**power)) for power in range(-3, 4)):
        if length > longest:
            return f"> {before[0]}" if before else f"? (> {longest})"
        ratio = scores_to_sums(similarity, width, heads, causal, length)
        if ratio >= 1 and before is None:
            return f"<= {length}"
        if ratio >= 1:
            assert before is not None
            shorter, less = before
            part = -math.log(less) / (math.log(ratio) - math.log(less))
            return f"{shorter * (length / shorter) ** part:.0f}"
        before = length, ratio
    return f"> {before[0]}" if before else "?"


def scores_to_sums(similarity: Any, width: int, heads: int, causal: bool, length: int) -> float:
    """The time that scores take, as a part of the time that sums take."""
    rule = maps_of(similarity, width).rule
    assert rule is not None
    x = torch.randn(1, heads, length, width)
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS + 1):
        for direct, taken in times.items():
            start = time.perf_counter()
            linear(x, x, x, rule, offset=0 if causal else None, direct=direct)
            taken.append(time.perf_counter() - start)
    return statistics.median(times[True][1:]) / statistics.median(times[False][1:])
