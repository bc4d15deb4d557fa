"""The strategies by which a call is split over ranks: what each costs on the measured link, and which one runs."""

from __future__ import annotations

import html
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from weakref import WeakKeyDictionary

import torch
from torch.distributed.device_mesh import DeviceMesh

from ..backends import BACKENDS
from ..backends.dispatch import describe
from ..backends.reference import Result
from ..cost.communication import INDEX_BYTES, LOOPBACK, Link, Phase, Spread, Wire, links, wire
from ..cost.price import product_flops, readable_bytes
from ..cost.readable import count_text, readable_seconds, wrap_lines
from ..errors import BackendRefused
from ..features import feature_count
from ..functional import attention
from ..inputs import AttentionInputs
from ..similarity import FeatureMap, Polynomial
from . import argmax, gather, heads, ring, scan
from .consensus import agree
from .heads import kv_heads
from .inputs import ShardedInputs
from .ring import Range, Schedule
from .transfer import Axis, Message, all_gather, read_axis, start


@dataclass(frozen=True)
class Strategy:
    """A way to split a call over ranks.

    reasons_against: why it cannot run a call; the same on every rank, since it depends only on what the ranks agreed
    on. run: the result for this rank's queries, in the dtype of the query, in four dimensions; lse and weights if
    requested.
    """

    name: str
    summary: str
    reasons_against: Callable[[ShardedInputs], tuple[str, ...]]
    run: Callable[[ShardedInputs], Result]


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

    Raises:
        PeerLost: if a rank is lost.
    """
    ranks = read_axis(mesh, axis)
    agree(ranks, {"call": "measure"})
    own = _time_axis(ranks)
    # Those of the slowest rank: the others wait for it.
    every = torch.stack(all_gather(ranks, torch.tensor(own, dtype=torch.float64, device=ranks.device)))
    small, large, seconds = every.amax(0).tolist()
    found = replace(
        _default_link(), rate=_timed_flops() / seconds, name=f"axis {ranks.name}", measured=True, ranks=ranks.size
    )
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


def _time_axis(axis: Axis) -> list[float]:
    """Seconds of a small message, of a large one, and of a call."""
    found = [0.0, 0.0]
    if axis.size > 1:
        found = [_time_message(axis, size) for size in (SMALL, LARGE)]
        _barrier(axis)
    batch, heads, tokens, width = TIMED_SHAPE
    given = [torch.full((batch, heads, tokens, width), 0.5, device=axis.device) for _ in range(3)]
    with torch.no_grad():
        seconds = _median_seconds(lambda: attention(given[0], given[1], given[2]), TIMED_CALLS, axis)
    return [*found, seconds]


def _time_message(axis: Axis, size: int) -> float:
    out, into = (torch.zeros(size, dtype=torch.uint8, device=axis.device) for _ in range(2))

    def send() -> None:
        start(axis, [Message(axis.after(1), out)], [Message(axis.after(-1), into)]).wait()

    return _median_seconds(send, REPEATS[size], axis)


def _barrier(axis: Axis) -> None:
    all_gather(axis, torch.zeros(1, device=axis.device))


def _median_seconds(run: Callable[[], object], repeats: int, axis: Axis) -> float:
    """The median; the first run is a warm-up."""
    times = []
    for _ in range(repeats + 1):
        _synchronize(axis)
        begin = time.perf_counter()
        run()
        _synchronize(axis)
        times.append(time.perf_counter() - begin)
    return max(statistics.median(times[1:]), 1e-9)


def _synchronize(axis: Axis) -> None:
    if axis.device.type != "cpu":
        torch.accelerator.synchronize()


def _timed_flops() -> int:
    batch, heads, tokens, width = TIMED_SHAPE
    return product_flops(batch * heads * tokens * tokens, 2 * width)


# With more ranks, messages are not counted one by one: shards are assumed to be equal.
MAX_COUNTED_RANKS = 16
SAMPLES = 2  # intervals of rows in which the number of attended keys is assumed to be linear


class KeyCounts:
    """Which keys, and how many, the queries of a call attend to; the mask is evaluated once."""

    def __init__(self, sharded: ShardedInputs) -> None:
        self.sharded = sharded
        self._known: dict[Range, Range] = {}

    def bounds(self, rows: Range) -> Range:
        """The range of keys outside of which these queries attend to nothing."""
        sharded = self.sharded
        if rows[0] >= rows[1]:
            return 0, 0
        if sharded.mask is None:
            return 0, sharded.extent.len_k
        if rows not in self._known:
            self._known[rows] = sharded.mask.bounds(sharded.extent, rows)
        return self._known[rows]

    def needs(self, rows: tuple[Range, ...]) -> list[int]:
        """How many keys of each rank these queries may attend to."""
        attended = [self.bounds(run) for run in rows]
        found = []
        for keys in pairwise(self.sharded.keys.edges):
            parts = [_intersection(run, keys) for run in attended]
            both = _intersection(parts[0], parts[-1]) if len(parts) > 1 else (0, 0)
            found.append(_length(*parts) - _length(both))
        return found

    def pairs(self, rows: Range) -> int:
        """About how many pairs these queries attend to: exact where the number of keys is linear in the row."""
        start, stop = rows
        if start >= stop:
            return 0
        if self.sharded.mask is None:
            return (stop - start) * self.sharded.extent.len_k
        samples = sorted({start + (stop - 1 - start) * at // SAMPLES for at in range(SAMPLES + 1)})
        numbers = [_length(self.bounds((row, row + 1))) for row in samples]
        total = sum(numbers[:1])
        for (row, next_row), (one, other) in zip(pairwise(samples), pairwise(numbers), strict=True):
            total += ((next_row - row) * (one + other) + other - one) // 2
        return total


def strategy_cost(counts: KeyCounts, split: str) -> Wire:
    """The communication and work of a strategy, the same on every rank."""
    spread = equal_shards(counts)
    average = wire(split, spread)
    return average if spread.ranks > MAX_COUNTED_RANKS else _COSTS[split](counts, spread, average)


def equal_shards(counts: KeyCounts) -> Spread:
    """The call, assuming equal shards."""
    sharded = counts.sharded
    call, extent = sharded.call, sharded.extent
    causal = extent.len_q > 0 and sharded.mask is not None and counts.bounds((0, 1))[1] < extent.len_k
    sums = isinstance(call.similarity, Polynomial | FeatureMap)
    return Spread(
        batch=max(1, extent.batch),
        heads=max(1, extent.heads),
        kv_heads=max(1, call.heads_kv),
        width=max(1, call.width),
        value_width=max(1, call.width_v),
        tokens=max(1, extent.len_k),
        ranks=sharded.axis.size,
        item=call.query.dtype.itemsize,
        causal=causal,
        learns=sharded.needs_grad,
        features=max(1, feature_count(call.similarity, call.width)) if sums else 1,
    )


def _ring_cost(counts: KeyCounts, s: Spread, average: Wire) -> Wire:
    sharded = counts.sharded
    schedule, ranks = Schedule(sharded), range(s.ranks)
    needs = _remote_keys(counts, schedule.rows)
    out, into = _sent_and_received(needs)
    halves = [sharded.queries.of(rank)[1] - schedule.half(rank) if schedule.swaps else 0 for rank in ranks]
    theirs = [halves[schedule.partner(rank)] for rank in ranks]
    keys, rows = s.batch * s.kv_heads * (s.width + s.value_width), s.batch * s.heads
    pairs = max(sum(counts.pairs(run) for run in runs) for runs in schedule.rows)
    peers, moves = max(sum(map(bool, line)) for line in zip(*needs, strict=True)), 2 * schedule.swaps
    there, back = rows * s.width * s.item, rows * (s.value_width + 1) * s.sums
    sent = [[halves[r] * there, out[r] * keys * s.item, theirs[r] * back] for r in ranks]
    got = [[theirs[r] * there, into[r] * keys * s.item, halves[r] * back] for r in ranks]
    forward, total = _busiest(sent, got, peers + moves, _pair_flops(s, pairs))
    backward = None
    if s.learns:
        there = rows * ((s.width + 2 * s.value_width) * s.item + (2 if sharded.call.return_lse else 1) * s.sums)
        back = rows * s.width * s.sums
        sent = [[halves[r] * there, keys * (out[r] * s.item + into[r] * s.sums), theirs[r] * back] for r in ranks]
        got = [[theirs[r] * there, keys * (into[r] * s.item + out[r] * s.sums), halves[r] * back] for r in ranks]
        backward, more = _busiest(sent, got, 2 * peers + moves, _pair_flops(s, pairs, backward=True))
        total += more
    return Wire("ring", total, forward, backward, average.peak_bytes)


def _gather_cost(counts: KeyCounts, s: Spread, average: Wire) -> Wire:
    sharded, ranks = counts.sharded, range(s.ranks)
    needs = _remote_keys(counts, [(sharded.queries.of(rank),) for rank in ranks])
    out, into = _sent_and_received(needs)
    key = s.batch * s.kv_heads * (s.width + s.value_width) * s.item
    pairs = max(counts.pairs(sharded.queries.of(rank)) for rank in ranks)
    messages = max(sum(map(bool, line)) for line in zip(*needs, strict=True))
    sent, got = [[n * key, 0, 0] for n in out], [[n * key, 0, 0] for n in into]
    most = max(n + sharded.keys.of(r)[1] - sharded.keys.of(r)[0] for r, n in enumerate(into))
    sums = _state_flops(sharded, s, s.heads * max(_lengths(sharded.queries.edges)) + s.kv_heads * most)
    forward, total = _busiest(sent, got, messages, min(_pair_flops(s, pairs), sums))
    backward = None
    if s.learns:  # gradients of keys and values are sent the other way
        reversed_ = [[0, 0, n * key] for n in into], [[0, 0, n * key] for n in out]
        backward, more = _busiest(*reversed_, messages, min(_pair_flops(s, pairs, backward=True), 2 * sums))
        total += more
    passes = 2 if s.learns else 1
    own = average.peak_bytes - (2 * average.forward.before + key * s.shard) * passes
    return Wire("gather", total, forward, backward, int(own + (most + max(into)) * key * passes))


def _heads_cost(counts: KeyCounts, s: Spread, average: Wire) -> Wire:
    sharded = counts.sharded
    ranks, others = range(s.ranks), s.ranks - 1
    heads = -(-s.heads // s.ranks)
    first, last = kv_heads(s.kv_heads, s.ranks)[0]
    lse = s.sums if sharded.call.return_lse else 0
    row, key = s.batch * heads * s.width * s.item, s.batch * (last - first) * (s.width + s.value_width) * s.item
    answer = s.batch * heads * (s.value_width * s.item + lse)
    queries, keys = (_lengths(shards.edges) for shards in (sharded.queries, sharded.keys))
    there = [others * (queries[r] * row + keys[r] * key) for r in ranks]
    came = [(sum(queries) - queries[r]) * row + (sum(keys) - keys[r]) * key for r in ranks]
    went = [(sum(queries) - queries[r]) * answer for r in ranks]
    home = [others * queries[r] * answer for r in ranks]
    pairs = sum(counts.pairs(run) for run in pairwise(sharded.queries.edges))
    sent, got = ([[a, 0, b] for a, b in zip(*each, strict=True)] for each in ((there, went), (came, home)))
    sums = _state_flops(sharded, s, heads * sum(queries) + (last - first) * sum(keys))
    forward, total = _busiest(sent, got, 2 * others, min(_pair_flops(s, pairs, heads), sums))
    backward = None
    if s.learns:
        sent, got = ([[b, 0, a] for a, b in zip(*each, strict=True)] for each in ((came, home), (there, went)))
        backward, more = _busiest(sent, got, 2 * others, min(_pair_flops(s, pairs, heads, backward=True), 2 * sums))
        total += more
    return Wire("heads", total, forward, backward, average.peak_bytes)


def _scan_cost(counts: KeyCounts, s: Spread, average: Wire) -> Wire:
    state = scan.state_bytes(counts.sharded)
    passes = [False, True] if s.learns else [False]
    every = [scan.bytes_sent(s.ranks, r, state, s.causal, backward=back) for back in passes for r in range(s.ranks)]
    return average._replace(total=sum(every))


def _argmax_cost(counts: KeyCounts, s: Spread, average: Wire) -> Wire:
    sharded = counts.sharded
    ranks, queries = range(s.ranks), _lengths(sharded.queries.edges)
    attends = [list(map(bool, line)) for line in _remote_keys(counts, [(sharded.queries.of(rank),) for rank in ranks])]
    requested = [queries[r] * sum(attends[r]) for r in ranks]
    served = [sum(queries[r] for r in ranks if attends[r][of]) for of in ranks]
    rows = s.batch * s.heads
    query, found = rows * s.width * s.item, rows * (INDEX_BYTES + s.width * s.item)
    values = [rows * n * s.value_width * s.item * (s.ranks > 1) for n in queries]
    sent = [[0, requested[r] * query + served[r] * found, requested[r] * rows * INDEX_BYTES + values[r]] for r in ranks]
    got = [[0, served[r] * query + requested[r] * found, served[r] * rows * INDEX_BYTES + values[r]] for r in ranks]
    pairs = max(counts.pairs(sharded.queries.of(rank)) for rank in ranks)
    flops = 2 * rows * pairs * s.width
    forward, total = _busiest(sent, got, 4 * max(map(sum, attends)), flops)
    return Wire("argmax", total + (sum(values) if s.learns else 0), forward, average.backward, average.peak_bytes)


_COSTS: dict[str, Callable[[KeyCounts, Spread, Wire], Wire]] = {
    "ring": _ring_cost, "gather": _gather_cost, "heads": _heads_cost, "scan": _scan_cost, "argmax": _argmax_cost
}  # fmt: skip


def _busiest(sent: list[list[int]], got: list[list[int]], messages: int, flops: float) -> tuple[Phase, int]:
    """The rank that sends or receives most, and what all ranks send."""
    both = [[max(pair) for pair in zip(*each, strict=True)] for each in zip(sent, got, strict=True)]
    before, during, after = max(both, key=sum)
    return Phase(before, during, after, messages, flops), sum(map(sum, sent))


def _sent_and_received(needs: list[list[int]]) -> tuple[list[int], list[int]]:
    """What every rank sends, and what it receives."""
    return [sum(column) for column in zip(*needs, strict=True)], [sum(line) for line in needs]


def _pair_flops(s: Spread, pairs: int, heads: int | None = None, *, backward: bool = False) -> int:
    each = 3 * s.width + 2 * s.value_width if backward else s.width + s.value_width
    return 2 * s.batch * (s.heads if heads is None else heads) * pairs * each


def _state_flops(sharded: ShardedInputs, s: Spread, rows: int) -> float:
    """Flops of the linear backend, which a rank may choose; infinite for other similarities."""
    if not isinstance(sharded.call.similarity, Polynomial | FeatureMap):
        return float("inf")
    return 2 * s.batch * s.features * (s.value_width + 1) * rows


def _remote_keys(counts: KeyCounts, rows: Sequence[tuple[Range, ...]]) -> list[list[int]]:
    """How many keys of each other rank every rank needs."""
    found = [counts.needs(runs) for runs in rows]
    return [[0 if of == rank else count for of, count in enumerate(line)] for rank, line in enumerate(found)]


def _intersection(one: Range, other: Range) -> Range:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low < high else (0, 0)


def _length(*runs: Range) -> int:
    return sum(stop - start for start, stop in runs)


def _lengths(edges: tuple[int, ...]) -> list[int]:
    return [stop - start for start, stop in pairwise(edges)]


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            "ring",
            "keys and values are sent round a ring, partial results are merged by log-sum-exp",
            ring.reasons_against,
            ring.run,
        ),
        Strategy(
            "gather",
            "every rank fetches the keys and values that its queries attend to",
            gather.reasons_against,
            gather.run,
        ),
        Strategy(
            "heads",
            "tokens are exchanged for heads: each rank has the whole sequence of some heads",
            heads.reasons_against,
            heads.run,
        ),
        Strategy("scan", "sums of features are sent instead of keys, for any length", scan.reasons_against, scan.run),
        Strategy(
            "argmax",
            "each rank finds its best key for every query, and the best of those is taken",
            argmax.reasons_against,
            argmax.run,
        ),
    )
}
# By memory, least first: a later strategy is chosen only if it is faster by this factor and by that many seconds.
ORDER = ("argmax", "scan", "ring", "heads", "gather")
MAX_TIME_RATIO, MIN_SECONDS_SAVED = 0.95, 5e-4
LOCAL = "none"  # the strategy where every rank has whole sequences


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
        if candidate.reasons:
            return candidate.reasons
        estimate = self._estimate(candidate)
        if self.requested != "auto":
            return (f"split={self.requested!r} was requested; it would take {estimate}",)
        slower = candidate.seconds >= self.seconds
        return (f"slower: {estimate}" if slower else f"needs more memory for little time: {estimate}",)

    def _estimate(self, candidate: Candidate) -> str:
        cost = candidate.cost
        assert cost is not None
        sent, memory = f"{readable_bytes(cost.sent)} sent", f"{readable_bytes(cost.peak_bytes)} of memory"
        return f"about {readable_seconds(candidate.seconds)}, {sent}, {memory}"

    def __str__(self) -> str:
        if self.split == LOCAL:
            texts = [f"{self.call}, on this rank", "-> nothing is sent: every rank has whole sequences"]
            return "\n".join(line for text in texts for line in wrap_lines(text, ""))
        lines = wrap_lines(f"{self.call}, over {count_text(self.ranks, 'rank')}", "")
        cost = self.chosen.cost
        assert cost is not None
        assert self.link is not None
        lines += wrap_lines(f"-> {self.split}: {STRATEGIES[self.split].summary}", "")
        passes = "forward and backward" if cost.backward is not None else "forward"
        sent = (
            f"{readable_bytes(cost.sent)} sent in {cost.messages} messages, {readable_bytes(cost.peak_bytes)} of memory"
        )
        time = f"about {readable_seconds(self.seconds)}, {passes}"
        lines += wrap_lines(f"{sent} on the busiest rank, {readable_bytes(cost.total)} sent in all; {time}", "   ")
        lines += wrap_lines(f"by {self.link}", "   ")
        for split, reasons in self.reasons.items():
            lines += [line for reason in reasons for line in wrap_lines(f"not {split}: {reason}", "   ")]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = ""
        for each in self.candidates:
            why = "chosen" if each.split == self.split else html.escape("; ".join(self._why_not(each)))
            cells = ["", "", ""]
            if each.cost is not None:
                sizes = readable_bytes(each.cost.sent), readable_bytes(each.cost.peak_bytes)
                cells = [*sizes, readable_seconds(each.seconds)]
            numbers = "".join(f"<td>{cell}</td>" for cell in cells)
            rows += f"<tr><th scope='row'>{html.escape(each.split)}</th><td>{why}</td>{numbers}</tr>"
        titles = ("split", "why", "sent by a rank", "memory of a rank", "time")
        head = "".join(f"<th scope='col'>{title}</th>" for title in titles)
        caption = html.escape(f"{self.call}, over {count_text(self.ranks, 'rank')}")
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{rows}</table>"


def choose(sharded: ShardedInputs) -> Strategy:
    """The strategy that runs this call. It depends only on what all ranks agreed on, so all choose the same."""
    check_backend(sharded)
    if sharded.split != "auto":
        return STRATEGIES[
            _check_requested(sharded, {name: each.reasons_against(sharded) for name, each in STRATEGIES.items()})
        ]
    return STRATEGIES[select(sharded, list_candidates(sharded))]


def undivided_inputs(sharded: ShardedInputs) -> AttentionInputs:
    """The inputs that one process would have, except for the tensors, which are this rank's shards."""
    return sharded.call._replace(extent=sharded.extent, mask=sharded.mask, bias=sharded.bias)


def check_backend(sharded: ShardedInputs) -> None:
    """Refuse a backend that cannot run the whole call, so that all ranks refuse, those without tokens too."""
    backend = sharded.call.backend
    against = () if backend == "auto" else BACKENDS[backend].reasons_against(undivided_inputs(sharded))
    if against:
        listed = "".join(f"\n  - {reason}" for reason in against)
        wanted = f"wanted a backend that can run {describe(undivided_inputs(sharded))}"
        message = f"backend: got {backend!r}, {wanted}. Against it:{listed}"
        raise BackendRefused(f"{message}\nHint: backend='auto' lets each rank choose.", against)


def list_candidates(sharded: ShardedInputs) -> tuple[Candidate, ...]:
    """All strategies, in the order of `ORDER`."""
    link, counts, found = link_of(sharded.axis), KeyCounts(sharded), []
    for name in ORDER:
        reasons = STRATEGIES[name].reasons_against(sharded)
        cost = None if reasons else strategy_cost(counts, name)
        found.append(Candidate(name, reasons, cost, float("inf") if cost is None else link.seconds(cost)))
    return tuple(found)


def select(sharded: ShardedInputs, candidates: tuple[Candidate, ...]) -> str:
    """The name of the requested strategy, or of the one that the cost model chooses."""
    if sharded.split != "auto":
        return _check_requested(sharded, {each.split: each.reasons for each in candidates})
    possible = [each for each in candidates if each.cost is not None]
    chosen = possible[0]
    for each in possible[1:]:
        if each.seconds < min(MAX_TIME_RATIO * chosen.seconds, chosen.seconds - MIN_SECONDS_SAVED):
            chosen = each
    return chosen.split


def _check_requested(sharded: ShardedInputs, reasons: dict[str, tuple[str, ...]]) -> str:
    against = reasons[sharded.split]
    if against:
        others = ", ".join(name for name, why in reasons.items() if not why)
        listed = "".join(f"\n  - {reason}" for reason in against)
        raise BackendRefused(
            f"split: got {sharded.split!r}, wanted a strategy that can run this call. Against it:{listed}\n"
            f"Hint: split='auto' chooses among: {others}.",
            against,
        )
    return sharded.split
