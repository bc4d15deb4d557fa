"""Random calls of torch's `scaled_dot_product_attention`: `qkv.compat` gives torch's answers and gradients."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from .campaign import Batch, Campaign
from .sdpa_calls import check, drawn


def run(seed: int, count: int) -> Batch:
    torch.set_num_threads(1)
    kinds: Counter[str] = Counter()
    worst = 0.0
    for number in range(count):
        call = drawn(seed, number)
        worst = max(worst, check(call))
        kinds[call.kind] += 1
    return Batch(count, {"largest error, in what rounding allows": round(worst, 3), "calls": dict(kinds)})


def gather(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest error of all batches, and how many calls of each kind there were."""
    kinds: Counter[str] = Counter()
    for batch in figures:
        kinds.update(batch["calls"])
    worst = "largest error, in what rounding allows"
    return {worst: max((batch[worst] for batch in figures), default=0.0), "calls": dict(sorted(kinds.items()))}


CAMPAIGN = Campaign(
    about="calls of scaled_dot_product_attention, forward and backward, compared with torch's in float64",
    unit="calls",
    goal=50_000,
    batch=2_500,
    run=run,
    gather=gather,
)
