"""Where lines cross: contexts at which the cache overtakes the weights or linear attention wins, and the batch from
which decoding computes longer than it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .attending import state_bytes
from .blocks import model_cost, parts
from .formats import LARGEST, arithmetic

if TYPE_CHECKING:
    from .planning import Crossing, Run

_ENCODER = "an encoder keeps no cache"


def crossings(run: Run, context: int) -> dict[str, Crossing]:
    """Each by its name, in the order of interest."""
    return {
        "cache_over_projections": _cache_over_projections(run),
        "cache_over_weights": _cache_over_weights(run),
        "linear_smaller": _linear_smaller(run),
        "linear_faster": _linear_faster(run),
        "compute_bound": _compute_bound(run, context),
    }


def _cache_over_projections(run: Run) -> Crossing:
    from .planning import Crossing, first

    question = "the cache takes as long as projections"
    if run.model.kind == "encoder":
        return Crossing(question, "tokens", None, _ENCODER)

    def is_longer(context: int) -> bool:
        step = run.step(context)
        return step["cache"].seconds >= step["projections"].seconds

    at = first(is_longer)
    return Crossing(question, "tokens", at, "" if at else _full_window(run))


def _cache_over_weights(run: Run) -> Crossing:
    """The context at which a step reads as many bytes from the cache as of weights."""
    from .planning import Crossing, first

    question = "the cache takes as long to read as a step's weights"
    if run.model.kind == "encoder":
        return Crossing(question, "tokens", None, _ENCODER)
    weights = weights_read(run)
    at = first(lambda size: run.step(size)["cache"].bytes >= weights)
    return Crossing(question, "tokens", at, "" if at else _full_window(run))


def weights_read(run: Run) -> int:
    """Bytes of weights that a step reads: everything but caches, were activations free."""
    step = model_cost(run.model, run.batch, 1, 1, weights=run.weights, cache=run.cache, item=0, source=run.prompt)
    return sum(lines.read for name, lines in parts(step).items() if name != "cache")


def _linear_smaller(run: Run) -> Crossing:
    from .planning import Crossing, first

    question = "a linear state is smaller than the cache"
    if run.model.kind == "encoder":
        return Crossing(question, "tokens", None, _ENCODER)
    state = run.model.layers * state_bytes(run.model)
    at = first(lambda size: run.model.cache_bytes(size, 1, run.cache) > state)
    return Crossing(question, "tokens", at, "" if at else _full_window(run))


def _linear_faster(run: Run) -> Crossing:
    from .planning import Crossing, first

    question = "linear attention makes a token sooner"
    if run.model.kind == "encoder":
        question = "linear attention makes a pass sooner"
    at = first(lambda size: run.seconds(size, "linear") < run.seconds(size))
    return Crossing(question, "tokens", at, "" if at else _full_window(run))


def _full_window(run: Run) -> str:
    if run.model.window is not None:
        return f"windows of {run.model.window} keys keep the cache small at every context"
    return "not at any context"


def _compute_bound(run: Run, context: int) -> Crossing:
    """Intensity grows with the batch, up to that of scores against the cache that each sequence has for itself."""
    from .planning import Crossing, first

    question = "decoding computes longer than it reads"
    if run.model.kind == "encoder":
        question = "a pass computes longer than it reads"

    def intensity(batch: int) -> float:
        found = run.step(context, batch).values()
        return sum(part.flops for part in found) / sum(part.bytes for part in found)

    at = first(lambda batch: intensity(batch) >= run.ridge)
    if at is not None:
        return Crossing(question, "sequences", at)
    dtype = run.hardware.rate_name(arithmetic(run.weights))
    own = "tokens are read and written" if run.model.kind == "encoder" else "each sequence reads its own cache"
    reason = f"{own}: {intensity(LARGEST):.3g} flops a byte at most, {run.ridge:.3g} are needed for {dtype}"
    return Crossing(question, "sequences", None, reason)
