"""Any order of a cache's operations: KVCache and LinearState behave like a plain list.

The walks are those of tests/properties/test_cache.py, in new orders. A step counts if its rule did something and the
result was compared.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.helpers import cache_walks, state_walks

from .campaign import Batch, Campaign

WALK = 50  # steps at most
MACHINES = {"KVCache": cache_walks, "LinearState": state_walks}
CLASSES = {"KVCache": cache_walks.Caches, "LinearState": state_walks.States}


def run(seed: int, count: int) -> Batch:
    """Half of the steps on each kind of cache, in as many walks as needed."""
    torch.set_num_threads(1)
    figures: dict[str, dict[str, int]] = {}
    for at, (name, module) in enumerate(MACHINES.items()):
        module.DONE.clear()
        again = 0
        while (left := count // 2 - module.DONE.total()) > 0:
            _walk(CLASSES[name], 2000 * seed + 2 * again + at, max(1, left // WALK))
            again += 1
        figures[name] = dict(sorted(module.DONE.items()))
    return Batch(sum(sum(counts.values()) for counts in figures.values()), figures)


def _walk(machine: Any, seed: int, walks: int) -> None:
    """Walks that depend on this seed only; a failing one is shrunk and printed step by step."""
    chosen = settings(
        max_examples=walks,
        stateful_step_count=WALK,
        database=None,
        derandomize=False,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    seeded = type(machine.__name__, (machine,), {})
    hypothesis.seed(seed)(seeded)
    run_state_machine_as_test(seeded, settings=chosen)


def gather(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """How often each rule did something, in all batches."""
    sums: dict[str, Counter[str]] = {}
    for batch in figures:
        for name, counts in batch.items():
            sums.setdefault(name, Counter()).update(counts)
    return {name: {"steps": counts.total(), **dict(sorted(counts.items()))} for name, counts in sums.items()}


CAMPAIGN = Campaign(
    about="random operations on caches and their forks, each compared with a plain list",
    unit="steps",
    goal=50_000,
    batch=2_000,
    run=run,
    gather=gather,
)
