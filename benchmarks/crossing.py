"""N*, the length from which on sums of features are cheaper than scores: as the cost model counts it, and measured."""

from __future__ import annotations

from typing import Any

from qkv.cli.tour import equal_between
from qkv.cli.tour import scores_to_sums as kernel_scores_to_sums
from qkv.features import feature_maps

ROUNDS = 9
LONGEST = 16384


def crossing(similarity: Any, width: int, heads: int, causal: bool, counted: int, longest: int = LONGEST) -> str:
    """Where the kernel's two ways take equally long, read between lengths on paper with two log scales."""
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
    return kernel_scores_to_sums(rule, heads, length, causal=causal, rounds=ROUNDS)
