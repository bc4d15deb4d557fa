"""What every backend is: a name, the reasons against it, its cost, a way to run, and what it publishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..cost.price import Cost
from ..inputs import AttentionInputs
from ..masks import Band, Causal, Window
from ..shapes import Float

# Whether costs are of this very call, with what its mask's tensors hold.
_CLOSELY: ContextVar[bool] = ContextVar("closely", default=False)


@contextmanager
def exact_counts() -> Iterator[None]:
    """Costs inside are those of the call at hand, and not of all calls of its signature."""
    token = _CLOSELY.set(True)
    try:
        yield
    finally:
        _CLOSELY.reset(token)


def counts_exactly() -> bool:
    return _CLOSELY.get()


NEG_INF = float("-inf")

# How often each engine of a backend has run: tests read it, so that a fast path that was not taken shows.
RUNS: Counter[str] = Counter()


class Result(NamedTuple):
    out: Float[Tensor, "b h r dv"]
    lse: Float[Tensor, "b h r"] | None
    weights: Float[Tensor, "b h r c"] | None


@dataclass(frozen=True)
class Backend:
    """name: what `backend=` says. bound: for each dtype, how many ulp of the largest attended |v| the answer
    may be from float64's, beyond the rounding of the answer itself. keeps: what the same inputs keep the
    same bits under. reasons_against: why a call cannot run here; it looks at sizes and kinds only."""

    name: str
    summary: str
    bound: Mapping[torch.dtype, float]
    keeps: tuple[str, ...]
    reasons_against: Callable[[AttentionInputs], tuple[str, ...]]
    cost: Callable[[AttentionInputs], Cost]
    run: Callable[[AttentionInputs], Result]


def kernel_reasons(call: AttentionInputs) -> tuple[str, ...]:
    """Why no native kernel can take the call, by its kinds."""
    reasons = list(ops.reasons())
    if call.query.device.type != "cpu":
        reasons.append(f"the kernel runs on the CPU, not on {call.query.device.type}")
    if call.query.dtype is torch.float64:
        reasons.append("the kernel computes in float32")
    return tuple(reasons)


def population(call: AttentionInputs) -> int:
    """How many pairs the mask lets through, as far as sizes tell or, for `explain`, exactly."""
    extent = call.extent
    if call.mask is not None and not call.traced and _CLOSELY.get():
        return call.mask.population(extent)
    return extent.heads * band_of_sizes(call).population(extent.len_q, extent.len_k, extent.batch)


def band_of_sizes(call: AttentionInputs) -> Band:
    """What the mask leaves of the scores as far as sizes tell: what tensors hold is not looked at, since the choice is
    remembered for every call of the same signature. For `explain` it is."""
    extent = call.extent
    if call.mask is not None and not call.traced and _CLOSELY.get():
        own = call.mask.band(extent)
        return (Band() if own is None else own).simplified(extent.len_q, extent.len_k)
    band = Band()
    for part in () if call.mask is None else call.mask.parts():
        if isinstance(part, Causal | Window):
            own = part.band(extent)
            band = band if own is None else band.intersect(own)
    return band.simplified(extent.len_q, extent.len_k)
