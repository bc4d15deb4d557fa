"""Random calls, drawn by Hypothesis: every backend that accepts one agrees with the oracle, and every promise holds.

The properties are those of tests/properties/test_calls.py, on new calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from qkv.testing import CallCase
from qkv.testing.contract import Check, checks
from qkv.testing.strategies import calls
from tests.helpers import call_properties as properties

from .campaign import Batch, Campaign

# Of ten calls: the share of each property. Promises take three times as long as the others.
SHARES = {"agreement": 4, "auto": 2, "weights": 1, "promises": 3}


class Tally:
    """Counts of the calls that ran, without those that Hypothesis discarded."""

    def __init__(self) -> None:
        self.done = 0
        self.counts: dict[str, Counter[str]] = {}

    def enter(self, name: str, call: CallCase, backends: list[str], check: str | None = None) -> None:
        self.done += 1
        masks = ["none"] if call.mask is None else sorted(call.mask.kinds())
        axes = {
            "property": [name],
            "backend": backends,
            "backend, similarity, dtype": [f"{backend}, {call.kind}, {call.dtype}" for backend in backends],
            "backend, layout": [f"{backend}, {call.layout}" for backend in backends],
            "similarity": [call.kind],
            "mask": masks,
            "bias": [call.bias or "none"],
            "dtype": [call.dtype],
            "layout": [call.layout],
            "values": [call.values],
            "dims": [str(call.dims)],
            "promise": [] if check is None else [check],
        }
        for axis, values in axes.items():
            self.counts.setdefault(axis, Counter()).update(values)

    @property
    def figures(self) -> dict[str, dict[str, int]]:
        return {axis: dict(sorted(counts.items())) for axis, counts in self.counts.items()}


def drawn(seed: int, examples: int, strategies: tuple[Any, ...], body: Callable[..., None]) -> None:
    """Run `body` on new examples; a failing one is shrunk, and raised with the code that reproduces it."""
    given_to_hypothesis = given(*strategies)(body)
    chosen = settings(
        max_examples=examples,
        database=None,
        derandomize=False,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    hypothesis.seed(seed)(chosen(given_to_hypothesis))()


def run(seed: int, count: int) -> Batch:
    torch.set_num_threads(1)
    tally = Tally()

    def agreement(call: CallCase) -> None:
        tally.enter("agreement", call, properties.every_backend_agrees_with_the_oracle(call))

    def auto(call: CallCase) -> None:
        tally.enter("auto", call, properties.auto_is_the_backend_that_explain_names(call))

    def weights(call: CallCase) -> None:
        tally.enter("weights", call, properties.weights_agree_with_the_oracle(call))

    def promises(call: CallCase, check: Check) -> None:
        assume(properties.can_be_held_to(call, check))
        tally.enter("promises", call, properties.the_promise_holds(call, check), check.name)

    plans = {
        "agreement": ((calls(),), agreement),
        "auto": ((calls(),), auto),
        "weights": ((calls(kinds=["softmax"]),), weights),
        "promises": ((calls(values=["gaussian"]), st.sampled_from(checks())), promises),
    }
    for at, (name, (strategies, body)) in enumerate(plans.items()):
        drawn(len(plans) * seed + at, -(-count * SHARES[name] // 10), strategies, body)
    return Batch(tally.done, tally.figures)


def gather(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The summed counts of all batches."""
    sums: dict[str, Counter[str]] = {}
    for batch in figures:
        for axis, counts in batch.items():
            sums.setdefault(axis, Counter()).update(counts)
    return {axis: dict(sorted(counts.items())) for axis, counts in sums.items()}


CAMPAIGN = Campaign(
    about="calls drawn by Hypothesis: every backend agrees with the oracle, every promise holds",
    unit="calls",
    goal=100_000,
    batch=1_000,
    run=run,
    limit=3600,
    gather=gather,
)
