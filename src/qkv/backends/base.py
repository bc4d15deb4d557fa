"""`Backend`, the record that every backend fills in, and what several of them share."""

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

# Whether costs read the contents of mask tensors. Otherwise they use sizes only, and hold for all calls of a signature.
_EXACT_COUNTS: ContextVar[bool] = ContextVar("exact_counts", default=False)


@contextmanager
def exact_counts() -> Iterator[None]:
    """Inside this context, costs are exact: they read the contents of mask tensors, and not only sizes."""
    token = _EXACT_COUNTS.set(True)
    try:
        yield
    finally:
        _EXACT_COUNTS.reset(token)


def counts_exactly() -> bool:
    """Whether `exact_counts` is active."""
    return _EXACT_COUNTS.get()


NEG_INF = float("-inf")

# Reasons that several backends share.
NO_WEIGHTS = "return_weights asks for the len_q x len_k matrix of weights, which this backend never forms"
TRACED = "under torch.compile, torch.export, torch.func and forward-mode AD the contents of tensors are not known"
NO_VALUE_WIDTH = "values have width 0"

# How often each engine of a backend has run. Tests read it to see that the intended path was taken.
RUNS: Counter[str] = Counter()


class Result(NamedTuple):
    """What a backend returns; `lse` and `weights` are None unless the call asks for them."""

    out: Float[Tensor, "b h r dv"]
    lse: Float[Tensor, "b h r"] | None
    weights: Float[Tensor, "b h r c"] | None


@dataclass(frozen=True)
class Backend:
    """A way to compute attention.

    Args:
        name: The value of `backend=` that asks for it.
        summary: The algorithm in a line, for `explain`.
        bound: For each dtype, the largest error against float64, in ulp of the largest attended |v|, beyond the
            rounding of the answer itself.
        same_bits_across: What may change while the same inputs still give the same bits: "runs", "threads", "batch"
            (the other rows of the batch), "layouts".
        reasons_against: Why a call cannot run here; empty if it can. Reads sizes, dtypes and options only.
        cost: What the call costs here.
        run: Computes the call.
    """

    name: str
    summary: str
    bound: Mapping[torch.dtype, float]
    same_bits_across: tuple[str, ...]
    reasons_against: Callable[[AttentionInputs], tuple[str, ...]]
    cost: Callable[[AttentionInputs], Cost]
    run: Callable[[AttentionInputs], Result]


def native_kernel_reasons(call: AttentionInputs) -> tuple[str, ...]:
    """Why no native kernel can run the call: the library, the device or the dtype."""
    reasons = list(ops.reasons())
    if call.query.device.type != "cpu":
        reasons.append(f"the kernel runs on the CPU, not on {call.query.device.type}")
    if call.query.dtype is torch.float64:
        reasons.append("the kernel computes in float32")
    return tuple(reasons)


def attended_pairs(call: AttentionInputs) -> int:
    """The number of attended (query, key) pairs: exact under `exact_counts`, otherwise as far as sizes determine it."""
    extent = call.extent
    if call.mask is not None and not call.traced and _EXACT_COUNTS.get():
        return call.mask.population(extent)
    return extent.heads * band_from_sizes(call).population(extent.len_q, extent.len_k, extent.batch)


def band_from_sizes(call: AttentionInputs) -> Band:
    """The band of the mask: exact under `exact_counts`, otherwise from `Causal` and `Window` alone.

    Mask tensors are not read, since dispatch remembers its choice for all calls of the same signature.
    """
    extent = call.extent
    if call.mask is not None and not call.traced and _EXACT_COUNTS.get():
        exact = call.mask.band(extent)
        return (Band() if exact is None else exact).simplified(extent.len_q, extent.len_k)
    band = Band()
    for part in () if call.mask is None else call.mask.parts():
        if isinstance(part, Causal | Window):
            part_band = part.band(extent)
            band = band if part_band is None else band.intersect(part_band)
    return band.simplified(extent.len_q, extent.len_k)
