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


NEG_INF = float("-inf")

NO_WEIGHTS = "return_weights asks for the len_q x len_k matrix of weights, which this backend never forms"


class Demand(NamedTuple):
    """Something that some calls ask of a backend.

    Args:
        asked: Whether a call asks for it; reads sizes, dtypes and options only.
        reason: Why a backend that lacks it cannot run the call. {engine} is what computes, {kind} the class of the
            similarity, {device} the type of the device.
    """

    asked: Callable[[AttentionInputs], bool]
    reason: str


# All that a backend may lack; `Backend.lacks` has names of this table.
DEMANDS = {
    "similarities other than softmax": Demand(
        lambda call: not call.similarity.has_lse, "{engine} computes Softmax, not {kind}"
    ),
    "similarities without scores": Demand(
        lambda call: not call.similarity.has_scores, "{engine} computes Softmax and Sigmoid, not {kind}"
    ),
    "similarities without features": Demand(
        lambda call: not call.similarity.is_product,
        "{kind} is no product of features: the sum over the keys cannot move inside",
    ),
    "similarities of several keys": Demand(
        lambda call: not call.similarity.picks_one_key, "only Argmax() has a single best key, not {kind}"
    ),
    "similarities of one key": Demand(
        lambda call: call.similarity.picks_one_key,
        "{kind} has no sum over the keys; backend='argmax' keeps the best key instead",
    ),
    "tracing": Demand(
        lambda call: call.traced,
        "under torch.compile, torch.export, torch.func and forward-mode AD the contents of tensors are not known",
    ),
    "weights": Demand(lambda call: call.return_weights, NO_WEIGHTS),
    "softcap": Demand(lambda call: getattr(call.similarity, "softcap", None) is not None, "{engine} has no softcap"),
    "forgetting": Demand(lambda call: call.forgetting is not None, "{engine} has no log_decay"),
    "score functions": Demand(
        lambda call: call.score_rule is not None, "{engine} takes a tensor as bias, not a function of scores"
    ),
    "dropout": Demand(lambda call: call.dropout > 0, "{engine} has no dropout"),
    "gradients": Demand(lambda call: call.needs_grad, "{engine} has no derivative; call it under torch.no_grad()"),
    "other devices": Demand(lambda call: not call.query.is_cpu, "{engine} runs on the CPU, not on {device}"),
    "float64": Demand(lambda call: call.query.dtype is torch.float64, "{engine} computes in float32"),
    "empty queries": Demand(lambda call: call.width == 0, "queries and keys have width 0"),
    "empty values": Demand(lambda call: call.width_v == 0, "values have width 0"),
}

# The backends that dispatch has chosen, by the call's signature.
CHOSEN: dict[tuple, Backend] = {}
# How often each engine of a backend has run. Tests read it to see that the intended path was taken.
RUNS: Counter[str] = Counter()


class Result(NamedTuple):
    """What a backend returns; all but `out` are None unless the call asks for them."""

    out: Float[Tensor, "b h r dv"]
    lse: Float[Tensor, "b h r"] | None
    weights: Float[Tensor, "b h r c"] | None
    state: Float[Tensor, "b h f c"] | None = None


# The gradients of the output and of the log-sum-exp, as far as there are any.
OutputGradients = tuple[Tensor | None, Tensor | None]


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
        cost: What the call costs here.
        run: Computes the call.
        lacks: Names of `DEMANDS` that it does not serve.
        engine: What computes, for the reasons.
        has_states: Whether it computes calls with `state=`.
        more_reasons: Further reasons against a call. Reads sizes, dtypes and options only.
    """

    name: str
    summary: str
    bound: Mapping[torch.dtype, float]
    same_bits_across: tuple[str, ...]
    cost: Callable[[AttentionInputs], Cost]
    run: Callable[[AttentionInputs], Result]
    lacks: tuple[str, ...] = ()
    engine: str = "this backend"
    has_states: bool = False
    more_reasons: Callable[[AttentionInputs], tuple[str, ...]] = lambda call: ()

    def reasons_against(self, call: AttentionInputs) -> tuple[str, ...]:
        """Why a call cannot run here; empty if it can."""
        states = () if call.state is None or self.has_states else (f"{self.engine} has no state= between tokens",)
        return (*states, *reasons_for(call, self.lacks, self.engine), *self.more_reasons(call))


def reasons_for(call: AttentionInputs, lacks: tuple[str, ...], engine: str) -> tuple[str, ...]:
    """The reasons against a call of an engine that lacks these demands."""
    kind, device = type(call.similarity).__name__, call.query.device.type
    found = [DEMANDS[name].reason for name in lacks if DEMANDS[name].asked(call)]
    return tuple(reason.format(engine=engine, kind=kind, device=device) for reason in found)


def native_kernel_reasons(call: AttentionInputs) -> tuple[str, ...]:
    """Why no native kernel can run the call: the library, the device or the dtype."""
    if not ops.reasons() and call.query.is_cpu and call.query.dtype is not torch.float64:
        return ()
    return (*ops.reasons(), *reasons_for(call, ("other devices", "float64"), "the kernel"))


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
    for part in call.mask_parts:
        if isinstance(part, Causal | Window):
            part_band = part.band(extent)
            band = band if part_band is None else band.intersect(part_band)
    return band.simplified(extent.len_q, extent.len_k)
