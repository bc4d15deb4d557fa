"""The strategies by which a call is split over ranks: what each costs on the measured link, and which one runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed.device_mesh import DeviceMesh

from ..backends import BACKENDS
from ..backends.base import RUNS, Result
from ..backends.dispatch import describe, refusal
from ..cost.communication import LOOPBACK, Link, Spread, Wire, links, wire
from ..cost.price import product_flops, readable_bytes
from ..cost.readable import count_text, readable_seconds, wrap_lines
from ..features import feature_count
from ..functional import attention
from ..inputs import AttentionInputs
from ..notebook import table
from . import argmax, gather, heads, ring, scan
from .consensus import agree
from .inputs import ShardedInputs
from .transfer import Axis, Message, all_gather, read_axis, start

# Each has a SUMMARY; `reasons_against`, which depends only on what the ranks agreed on; and `run`, the result for this
# rank's queries in four dimensions. By memory, least first: a later strategy is chosen only if it is faster by this
# factor and by that many seconds.
STRATEGIES = {"argmax": argmax, "scan": scan, "ring": ring, "heads": heads, "gather": gather}
MAX_TIME_RATIO, MIN_SECONDS_SAVED = 0.95, 5e-4
LOCAL = "none"  # the strategy where every rank has whole sequences
SMALL, LARGE = 64, 4 << 20  # bytes of a message
REPEATS = {SMALL: 31, LARGE: 7}
TIMED_SHAPE = 1, 4, 768, 64  # batch, heads, tokens, width of the call that is timed
TIMED_CALLS = 5
# By process group; weak, so that destroyed groups are dropped.
_MEASURED: WeakKeyDictionary[object, Link] = WeakKeyDictionary()


def measure(mesh: DeviceMesh | None = None, axis: str | int | None = None) -> Link:
    """Measure the latency and bandwidth of messages on an axis, and the rate at which ranks compute; takes about a
    second.

    Every rank has to call it, and all get the same figures, those of the slowest rank. split="auto" and `explain` use
    them on this axis from then on. On an axis of one rank only the rate is measured.

    Args:
        mesh: a `DeviceMesh`.
        axis: the name or number of an axis of the mesh; a mesh with one axis needs none.

    Returns:
        The measured `Link`.

    Raises:
        PeerLost: if a rank is lost.
    """
    ranks = read_axis(mesh, axis)
    agree(ranks, {"call": "measure"})
    own = [_time_message(ranks, size) for size in REPEATS] if ranks.size > 1 else [0.0, 0.0]
    all_gather(ranks, torch.zeros(1, device=ranks.device))  # all ranks begin the calls together
    tensors = [torch.full(TIMED_SHAPE, 0.5, device=ranks.device) for _ in range(3)]
    with torch.no_grad():
        own.append(_median_seconds(lambda: attention(*tensors), TIMED_CALLS, ranks))
    # Those of the slowest rank: the others wait for it.
    every = torch.stack(all_gather(ranks, torch.tensor(own, dtype=torch.float64, device=ranks.device)))
    small, large, seconds = every.amax(0).tolist()
    batch, heads_, tokens, width = TIMED_SHAPE
    rate = product_flops(batch * heads_ * tokens * tokens, 2 * width) / seconds
    found = replace(_default_link(), rate=rate, name=f"axis {ranks.name}", measured=True, ranks=ranks.size)
    if ranks.size > 1:
        # The time of a large message includes the latency; the clock may not show it.
        bandwidth = LARGE / max(large - small, large / 2)
        found = replace(found, bandwidth=bandwidth, latency=small)
    _MEASURED[ranks.group] = found
    return found


def link_of(axis: Axis) -> Link:
    """The figures measured on this axis, or built-in ones."""
    return _MEASURED.get(axis.group) or _default_link()


def _default_link() -> Link:
    return replace(links()[LOOPBACK], name="built-in figures", source="", title="")


def _time_message(axis: Axis, size: int) -> float:
    out, into = (torch.zeros(size, dtype=torch.uint8, device=axis.device) for _ in range(2))
    messages = [Message(axis.after(1), out)], [Message(axis.after(-1), into)]
    return _median_seconds(lambda: start(axis, *messages).wait(), REPEATS[size], axis)


def _median_seconds(run: Callable[[], object], repeats: int, axis: Axis) -> float:
    """The median; the first run is a warm-up."""
    synchronize = torch.accelerator.synchronize if axis.device.type != "cpu" else lambda: None
    times = []
    for _ in range(repeats + 1):
        synchronize()
        begin = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - begin)
    return max(statistics.median(times[1:]), 1e-9)


def strategy_cost(sharded: ShardedInputs, split: str) -> Wire:
    """The communication and work of a strategy for equal shards, as `qkv plan` counts them; the same on every rank. Of
    the mask, its causality and the width of its band count."""
    call, extent = sharded.call, sharded.extent
    rows = (0, extent.len_q // 2, extent.len_q - 1) if extent.len_q else ()
    bands = [sharded.attended_keys((row, row + 1)) for row in rows]
    causal = len(bands) > 0 and bands[0][1] < extent.len_k
    window = max([1, *(stop - first for first, stop in bands)])
    sums = call.similarity.is_product
    features = max(1, feature_count(call.similarity, call.width)) if sums else None
    sizes = extent.batch, extent.heads, call.heads_kv, call.width, call.width_v, extent.len_k
    band = causal, window if causal and window < extent.len_k else None
    numbers: Any = [*(max(1, size) for size in sizes), sharded.axis.size, call.query.dtype.itemsize]
    return wire(split, Spread(*numbers, *band, sharded.needs_grad, features))  # pyright: ignore


@dataclass(frozen=True)
class Candidate:
    """A strategy considered for a call: the reasons against it, or its cost and the predicted seconds."""

    split: str
    reasons: tuple[str, ...]
    cost: Wire | None = None
    seconds: float = float("inf")


@dataclass(frozen=True)
class SplitChoice:
    """The choice of a strategy, the same on every rank.

    Args:
        split: the strategy that runs.
        requested: the `split=` argument of the call.
        candidates: all strategies, each with its reasons against the call or its cost.
        call: the call in a line.
        ranks: the number of ranks.
        link: the figures that predict the seconds.
    """

    split: str
    requested: str
    candidates: tuple[Candidate, ...]
    call: str
    ranks: int
    link: Link | None = None

    @property
    def chosen(self) -> Candidate:
        return next(each for each in self.candidates if each.split == self.split)

    @property
    def cost(self) -> Wire | None:
        """The communication, work and memory of the chosen strategy."""
        return self.chosen.cost

    @property
    def seconds(self) -> float:
        """Predicted time, of the forward pass and, if gradients are needed, of the backward pass."""
        return self.chosen.seconds

    @property
    def reasons(self) -> dict[str, tuple[str, ...]]:
        """Why each of the others was not chosen."""
        return {each.split: self._why_not(each) for each in self.candidates if each.split != self.split}

    def _why_not(self, candidate: Candidate) -> tuple[str, ...]:
        cost = candidate.cost
        if cost is None:
            return candidate.reasons
        sizes = f"{readable_bytes(cost.sent)} sent, {readable_bytes(cost.peak_bytes)} of memory"
        estimate = f"about {readable_seconds(candidate.seconds)}, {sizes}"
        if self.requested != "auto":
            return (f"split={self.requested!r} was requested; it would take {estimate}",)
        slower = candidate.seconds >= self.seconds
        return (f"slower: {estimate}" if slower else f"needs more memory for little time: {estimate}",)

    def __str__(self) -> str:
        cost = self.cost
        if cost is None:
            texts = [f"{self.call}, on this rank", "-> nothing is sent: every rank has whole sequences"]
            return "\n".join(line for text in texts for line in wrap_lines(text, ""))
        lines = wrap_lines(f"{self.call}, over {count_text(self.ranks, 'rank')}", "")
        lines += wrap_lines(f"-> {self.split}: {STRATEGIES[self.split].SUMMARY}", "")
        passes = "forward and backward" if cost.backward is not None else "forward"
        sent, memory, total = (readable_bytes(size) for size in (cost.sent, cost.peak_bytes, cost.total))
        busiest = f"{sent} sent in {cost.messages} messages, {memory} of memory on the busiest rank"
        time = f"about {readable_seconds(self.seconds)}, {passes}"
        why_not = [f"not {split}: {reason}" for split, reasons in self.reasons.items() for reason in reasons]
        for text in (f"{busiest}, {total} sent in all; {time}", f"by {self.link}", *why_not):
            lines += wrap_lines(text, "   ")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for each in self.candidates:
            why, cost = "chosen" if each.split == self.split else "; ".join(self._why_not(each)), each.cost
            figures = cost and (
                readable_bytes(cost.sent),
                readable_bytes(cost.peak_bytes),
                readable_seconds(each.seconds),
            )
            rows.append((each.split, why, *(figures or ("", "", ""))))
        titles = ("split", "why", "sent by a rank", "memory of a rank", "time")
        return table(rows, titles, f"{self.call}, over {count_text(self.ranks, 'rank')}", numbers=(2, 3, 4))


def run_split(sharded: ShardedInputs) -> Result:
    """Run the strategy that depends only on what all ranks agreed on, so that all choose the same."""
    split = _select(sharded, _list_candidates(sharded))
    RUNS[f"parallel.{split}"] += 1
    return STRATEGIES[split].run(sharded)


def explain_split(sharded: ShardedInputs) -> SplitChoice:
    """The choice of `run_split`, with all strategies."""
    candidates, link = _list_candidates(sharded), link_of(sharded.axis)
    chosen, whole = _select(sharded, candidates), describe(_undivided_inputs(sharded))
    return SplitChoice(chosen, sharded.split, candidates, whole, sharded.axis.size, link)


def _undivided_inputs(sharded: ShardedInputs) -> AttentionInputs:
    """The inputs that one process would have, except for the tensors, which are this rank's shards."""
    return sharded.call._replace(extent=sharded.extent, mask=sharded.mask, bias=sharded.bias)


def _list_candidates(sharded: ShardedInputs) -> tuple[Candidate, ...]:
    """All strategies, in the order of `STRATEGIES`."""
    found, link = [], link_of(sharded.axis)
    for name, strategy in STRATEGIES.items():
        reasons = strategy.reasons_against(sharded)
        cost = strategy_cost(sharded, name) if not reasons else None
        found.append(Candidate(name, reasons, cost, link.seconds(cost) if cost else float("inf")))
    return tuple(found)


def _select(sharded: ShardedInputs, candidates: tuple[Candidate, ...]) -> str:
    """The name of the requested strategy, or of the one that the cost model chooses. A backend that cannot run the
    whole call is refused, so that all ranks refuse, those without tokens too."""
    backend, whole = sharded.call.backend, _undivided_inputs(sharded)
    against = () if backend == "auto" else BACKENDS[backend].reasons_against(whole)
    if against:
        wanted = f"a backend that can run {describe(whole)}"
        raise refusal("backend", backend, wanted, against, "backend='auto' lets each rank choose")
    possible = [each for each in candidates if not each.reasons]
    if sharded.split != "auto":
        (requested,) = (each for each in candidates if each.split == sharded.split)
        if requested.reasons:
            hint = f"split='auto' chooses among: {', '.join(each.split for each in possible)}"
            raise refusal("split", sharded.split, "a strategy that can run this call", requested.reasons, hint)
        return sharded.split
    chosen = possible[0]
    for each in possible[1:]:
        if each.seconds < min(MAX_TIME_RATIO * chosen.seconds, chosen.seconds - MIN_SECONDS_SAVED):
            chosen = each
    return chosen.split
