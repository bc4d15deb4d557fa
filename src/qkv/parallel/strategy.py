"""What every split is: a name, the reasons against it, and a way to run."""

from __future__ import annotations

import html
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
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
from ..functional import explain as explain_here
from ..inputs import AttentionInputs
from ..masks import Mask
from ..similarity import AnySimilarity, FeatureMap, Polynomial
from . import argmax, gather, heads, ring, scan
from .consensus import agree, agreed_axis
from .heads import kv_heads
from .inputs import ShardedInputs, read_sharded_inputs, unwrap_dtensors
from .ring import Run, Schedule
from .transfer import Axis, Message, all_gather, read_axis, start


@dataclass(frozen=True)
class Strategy:
    """reasons_against: why a call cannot be split so; the same on every rank, for it looks only at what they agreed on.
    run: the answer for this rank's queries, in the dtype of the query, in four dimensions; lse and weights if they are
    asked for."""

    name: str
    summary: str
    reasons_against: Callable[[ShardedInputs], tuple[str, ...]]
    run: Callable[[ShardedInputs], Result]


SMALL, LARGE = 64, 4 << 20  # bytes of a message
REPEATS = {SMALL: 31, LARGE: 7}
TIMED_SHAPE = 1, 4, 768, 64  # batch, heads, tokens, width: of the call whose rate is taken
TIMED_CALLS = 5
# By group: a group that is gone takes its figures along.
_MEASURED: WeakKeyDictionary[object, Link] = WeakKeyDictionary()


def measure(mesh: DeviceMesh | None = None, axis: str | int | None = None) -> Link:
    """Measure the axis, in about a second: messages that all ranks pass on to the next at once, and softmax attention
    that all compute at once. Every rank ends with the same figures, those of the slowest, and split="auto" and
    `explain` on this axis go by them from then on.

    Every rank has to call it. At the edges: an axis of one rank has no link; its rate alone is measured.
    """
    place = read_axis(mesh, axis)
    agree(place, {"call": "measure"})
    own = _time_axis(place)
    # The slowest of everybody's: a rank that is ready early waits for the others in any case.
    every = torch.stack(all_gather(place, torch.tensor(own, dtype=torch.float64, device=place.device)))
    small, large, seconds = every.amax(0).tolist()
    found = replace(
        _default_link(), rate=_timed_flops() / seconds, name=f"axis {place.name}", measured=True, ranks=place.size
    )
    if place.size > 1:
        # What a small message takes is in the time of a large one, unless the clock says otherwise.
        bandwidth = LARGE / max(large - small, large / 2)
        found = replace(found, bandwidth=bandwidth, latency=small)
    _MEASURED[place.group] = found
    return found


def link_of(axis: Axis) -> Link:
    """What was measured on this axis, by all its ranks, or built-in figures."""
    return _MEASURED.get(axis.group) or _default_link()


def _default_link() -> Link:
    return replace(links()[LOOPBACK], name="built-in figures", source="", title="")


def _time_axis(axis: Axis) -> list[float]:
    """Seconds of a small message, of a large one, and of the call."""
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

    def turn() -> None:
        start(axis, [Message(axis.after(1), out)], [Message(axis.after(-1), into)]).wait()

    return _median_seconds(turn, REPEATS[size], axis)


def _barrier(axis: Axis) -> None:
    all_gather(axis, torch.zeros(1, device=axis.device))


def _median_seconds(run: Callable[[], object], turns: int, axis: Axis) -> float:
    """The median; the first turn warms up."""
    times = []
    for _ in range(turns + 1):
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


MAX_COUNTED_RANKS = (
    16  # ranks for which everybody's messages are counted one by one; beyond, shards are taken to be equal
)
SAMPLES = 2  # rows between which the number of keys that a query sees is taken to change evenly


class KeyCounts:
    """What the queries of a call see, asked of its mask once."""

    def __init__(self, sharded: ShardedInputs) -> None:
        self.sharded = sharded
        self._known: dict[Run, Run] = {}

    def bounds(self, rows: Run) -> Run:
        """The run of keys outside of which these queries see nothing."""
        sharded = self.sharded
        if rows[0] >= rows[1]:
            return 0, 0
        if sharded.mask is None:
            return 0, sharded.extent.len_k
        if rows not in self._known:
            self._known[rows] = sharded.mask.bounds(sharded.extent, rows)
        return self._known[rows]

    def needs(self, rows: tuple[Run, ...]) -> list[int]:
        """How many keys of each rank these queries may see."""
        seen = [self.bounds(run) for run in rows]
        found = []
        for keys in pairwise(self.sharded.keys.edges):
            parts = [_intersection(run, keys) for run in seen]
            both = _intersection(parts[0], parts[-1]) if len(parts) > 1 else (0, 0)
            found.append(_length(*parts) - _length(both))
        return found

    def pairs(self, rows: Run) -> int:
        """About how many keys these queries see, in all: exact where that changes evenly from row to row."""
        start, stop = rows
        if start >= stop:
            return 0
        if self.sharded.mask is None:
            return (stop - start) * self.sharded.extent.len_k
        places = sorted({start + (stop - 1 - start) * at // SAMPLES for at in range(SAMPLES + 1)})
        seen = [_length(self.bounds((row, row + 1))) for row in places]
        total = sum(seen[:1])
        for (row, next_row), (one, other) in zip(pairwise(places), pairwise(seen), strict=True):
            total += ((next_row - row) * (one + other) + other - one) // 2
        return total


def strategy_cost(counts: KeyCounts, split: str) -> Wire:
    """What a split takes, the same on every rank."""
    spread = equal_shards(counts)
    average = wire(split, spread)
    return average if spread.ranks > MAX_COUNTED_RANKS else _COSTS[split](counts, spread, average)


def equal_shards(counts: KeyCounts) -> Spread:
    """The call with equal shards."""
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
    if s.learns:  # what comes back for keys goes the other way
        turned = [[0, 0, n * key] for n in into], [[0, 0, n * key] for n in out]
        backward, more = _busiest(*turned, messages, min(_pair_flops(s, pairs, backward=True), 2 * sums))
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
    sees = [list(map(bool, line)) for line in _remote_keys(counts, [(sharded.queries.of(rank),) for rank in ranks])]
    asked = [queries[r] * sum(sees[r]) for r in ranks]
    answered = [sum(queries[r] for r in ranks if sees[r][of]) for of in ranks]
    rows = s.batch * s.heads
    query, found = rows * s.width * s.item, rows * (INDEX_BYTES + s.width * s.item)
    values = [rows * n * s.value_width * s.item * (s.ranks > 1) for n in queries]
    sent = [[0, asked[r] * query + answered[r] * found, asked[r] * rows * INDEX_BYTES + values[r]] for r in ranks]
    got = [[0, answered[r] * query + asked[r] * found, answered[r] * rows * INDEX_BYTES + values[r]] for r in ranks]
    pairs = max(counts.pairs(sharded.queries.of(rank)) for rank in ranks)
    flops = 2 * rows * pairs * s.width
    forward, total = _busiest(sent, got, 4 * max(map(sum, sees)), flops)
    return Wire("best", total + (sum(values) if s.learns else 0), forward, average.backward, average.peak_bytes)


_COSTS: dict[str, Callable[[KeyCounts, Spread, Wire], Wire]] = {
    "ring": _ring_cost, "gather": _gather_cost, "heads": _heads_cost, "scan": _scan_cost, "best": _argmax_cost
}  # fmt: skip


def _busiest(sent: list[list[int]], got: list[list[int]], messages: int, flops: float) -> tuple[Phase, int]:
    """The rank whose wire is busy longest, in either direction, and what all ranks send."""
    both = [[max(pair) for pair in zip(*each, strict=True)] for each in zip(sent, got, strict=True)]
    before, during, after = max(both, key=sum)
    return Phase(before, during, after, messages, flops), sum(map(sum, sent))


def _sent_and_received(needs: list[list[int]]) -> tuple[list[int], list[int]]:
    """What leaves every rank, and what comes to it."""
    return [sum(column) for column in zip(*needs, strict=True)], [sum(line) for line in needs]


def _pair_flops(s: Spread, pairs: int, heads: int | None = None, *, backward: bool = False) -> int:
    each = 3 * s.width + 2 * s.value_width if backward else s.width + s.value_width
    return 2 * s.batch * (s.heads if heads is None else heads) * pairs * each


def _state_flops(sharded: ShardedInputs, s: Spread, rows: int) -> float:
    """Flops by sums of features, which a rank runs by itself where they are fewer; others have no such way."""
    if not isinstance(sharded.call.similarity, Polynomial | FeatureMap):
        return float("inf")
    return 2 * s.batch * s.features * (s.value_width + 1) * rows


def _remote_keys(counts: KeyCounts, rows: Sequence[tuple[Run, ...]]) -> list[list[int]]:
    """How many keys of each other rank every rank needs."""
    found = [counts.needs(runs) for runs in rows]
    return [[0 if of == rank else count for of, count in enumerate(line)] for rank, line in enumerate(found)]


def _intersection(one: Run, other: Run) -> Run:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low < high else (0, 0)


def _length(*runs: Run) -> int:
    return sum(stop - start for start, stop in runs)


def _lengths(edges: tuple[int, ...]) -> list[int]:
    return [stop - start for start, stop in pairwise(edges)]


STRATEGIES: dict[str, Strategy] = {
    way.name: way
    for way in (
        Strategy(
            "ring",
            "blocks of keys and values travel, partial answers merge by log-sum-exp",
            ring.reasons_against,
            ring.run,
        ),
        Strategy(
            "gather", "every rank fetches the keys and values that its queries see", gather.reasons_against, gather.run
        ),
        Strategy(
            "heads",
            "tokens are exchanged for heads: each rank has the whole sequence of some",
            heads.reasons_against,
            heads.run,
        ),
        Strategy(
            "scan", "sums of features travel instead of keys, whatever the length", scan.reasons_against, scan.run
        ),
        Strategy(
            "best",
            "each rank finds its best key for every query, and the best of those is taken",
            argmax.reasons_against,
            argmax.run,
        ),
    )
}
# Of two that take about as long, the first: what holds least comes first.
ORDER = ("best", "scan", "ring", "heads", "gather")
MAX_TIME_RATIO, MIN_SECONDS_SAVED = (
    0.95,
    5e-4,
)  # a later one has to take less than this part of the time, and so many seconds less
LOCAL = "none"  # the name of a split where every rank has what it needs


@dataclass(frozen=True)
class Candidate:
    """A split beside the call: the reasons against it, or what it takes and the seconds that are predicted for it."""

    split: str
    reasons: tuple[str, ...]
    wire: Wire | None = None
    seconds: float = float("inf")


@dataclass(frozen=True)
class SplitChoice:
    """What `split` came to, the same on every rank. split: the one that runs. link: the figures that predict."""

    split: str
    asked: str
    candidates: tuple[Candidate, ...]
    call: str
    ranks: int
    link: Link | None = None

    @property
    def taken(self) -> Candidate:
        return next(each for each in self.candidates if each.split == self.split)

    @property
    def wire(self) -> Wire | None:
        """What travels and what is held."""
        return self.taken.wire

    @property
    def seconds(self) -> float:
        """Predicted, forward and backward if anything is learnt."""
        return self.taken.seconds

    @property
    def reasons(self) -> dict[str, tuple[str, ...]]:
        """Why each of the others was not taken."""
        return {each.split: self._why_not(each) for each in self.candidates if each.split != self.split}

    def _why_not(self, candidate: Candidate) -> tuple[str, ...]:
        if candidate.reasons:
            return candidate.reasons
        takes = self._takes(candidate)
        if self.asked != "auto":
            return (f"split={self.asked!r} was asked for; it would take {takes}",)
        return (f"slower: {takes}" if candidate.seconds >= self.seconds else f"not worth its cache: {takes}",)

    def _takes(self, candidate: Candidate) -> str:
        assert candidate.wire is not None
        sent = f"{readable_bytes(candidate.wire.sent)} sent"
        return f"about {readable_seconds(candidate.seconds)}, {sent}, {readable_bytes(candidate.wire.peak_bytes)} held"

    def __str__(self) -> str:
        if self.split == LOCAL:
            said = [f"{self.call}, on this rank", "-> nothing travels: every rank has whole sequences"]
            return "\n".join(line for text in said for line in wrap_lines(text, ""))
        lines = wrap_lines(f"{self.call}, over {count_text(self.ranks, 'rank')}", "")
        found = self.taken.wire
        assert found is not None
        assert self.link is not None
        lines += wrap_lines(f"-> {self.split}: {STRATEGIES[self.split].summary}", "")
        passes = "forward and backward" if found.backward is not None else "forward"
        sent = f"{readable_bytes(found.sent)} sent in {found.messages} messages and {readable_bytes(found.peak_bytes)} held"
        time = f"about {readable_seconds(self.seconds)}, {passes}"
        lines += wrap_lines(f"{sent} by the busiest rank, {readable_bytes(found.total)} sent in all; {time}", "   ")
        lines += wrap_lines(f"by {self.link}", "   ")
        for split, reasons in self.reasons.items():
            lines += [line for reason in reasons for line in wrap_lines(f"not {split}: {reason}", "   ")]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = ""
        for each in self.candidates:
            why = "taken" if each.split == self.split else html.escape("; ".join(self._why_not(each)))
            known = each.wire is not None
            cells = (
                [readable_bytes(each.wire.sent), readable_bytes(each.wire.peak_bytes)] if each.wire is not None else ["", ""]
            )
            cells.append(readable_seconds(each.seconds) if known else "")
            numbers = "".join(f"<td>{cell}</td>" for cell in cells)
            rows += f"<tr><th scope='row'>{html.escape(each.split)}</th><td>{why}</td>{numbers}</tr>"
        titles = ("split", "why", "sent by a rank", "held by a rank", "time")
        head = "".join(f"<th scope='col'>{title}</th>" for title in titles)
        caption = html.escape(f"{self.call}, over {count_text(self.ranks, 'rank')}")
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{rows}</table>"


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mesh: DeviceMesh | None = None,
    axis: str | int | None = None,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    split: str = "auto",
    return_lse: bool = False,
    return_weights: bool = False,
) -> SplitChoice:
    """What `qkv.parallel.attention` would do with the same call: the split that it takes, bytes and seconds of each,
    and the reasons against the others. Every rank has to ask, and all get the same answer; only the question travels.

    Bytes are those that will be sent, counted from the shards and the mask. Seconds are from built-in figures until
    `qkv.parallel.measure` has measured the axis.
    """
    opening = unwrap_dtensors(query, key, value, similarity, mask, bias, mesh, axis)
    query, key, value, similarity, mask, bias, mesh, axis, _ = opening
    if not opening.travels:
        here = explain_here(
            query, key, value, similarity=similarity, mask=mask, bias=bias, dropout=dropout, backend=backend
        )
        return SplitChoice(LOCAL, split, (Candidate(LOCAL, (), seconds=here.seconds),), here.call, 1)
    place = agreed_axis(mesh, axis)
    sharded = read_sharded_inputs(
        place, query, key, value, similarity, mask, bias, dropout, backend, split, return_lse, return_weights, "explain"
    )
    _check_backend(sharded)
    candidates, whole = _candidates(sharded), describe(undivided_inputs(sharded))
    return SplitChoice(_select(sharded, candidates), sharded.split, candidates, whole, place.size, link_of(place))


def choose(sharded: ShardedInputs) -> Strategy:
    """The way that runs this call. It looks only at what all ranks agreed on, so all choose the same."""
    _check_backend(sharded)
    if sharded.split != "auto":
        return STRATEGIES[_requested(sharded, {name: way.reasons_against(sharded) for name, way in STRATEGIES.items()})]
    return STRATEGIES[_select(sharded, _candidates(sharded))]


def undivided_inputs(sharded: ShardedInputs) -> AttentionInputs:
    """The call as one process would have it, but for its tensors."""
    return sharded.call._replace(extent=sharded.extent, mask=sharded.mask, bias=sharded.bias)


def _check_backend(sharded: ShardedInputs) -> None:
    """Refused by what the whole is: a rank with nothing to do refuses with the others."""
    backend = sharded.call.backend
    against = () if backend == "auto" else BACKENDS[backend].reasons_against(undivided_inputs(sharded))
    if against:
        listed = "".join(f"\n  - {reason}" for reason in against)
        said = f"backend: got {backend!r}, wanted a backend that can run {describe(undivided_inputs(sharded))}. Against it:{listed}"
        raise BackendRefused(f"{said}\nHint: backend='auto' lets each rank choose.", against)


def _candidates(sharded: ShardedInputs) -> tuple[Candidate, ...]:
    link, counts, found = link_of(sharded.axis), KeyCounts(sharded), []
    for name in ORDER:
        reasons = STRATEGIES[name].reasons_against(sharded)
        wire = None if reasons else strategy_cost(counts, name)
        found.append(Candidate(name, reasons, wire, float("inf") if wire is None else link.seconds(wire)))
    return tuple(found)


def _select(sharded: ShardedInputs, candidates: tuple[Candidate, ...]) -> str:
    if sharded.split != "auto":
        return _requested(sharded, {each.split: each.reasons for each in candidates})
    possible = [each for each in candidates if each.wire is not None]
    taken = possible[0]
    for each in possible[1:]:
        if each.seconds < min(MAX_TIME_RATIO * taken.seconds, taken.seconds - MIN_SECONDS_SAVED):
            taken = each
    return taken.split


def _requested(sharded: ShardedInputs, reasons: dict[str, tuple[str, ...]]) -> str:
    against = reasons[sharded.split]
    if against:
        others = ", ".join(name for name, why in reasons.items() if not why)
        listed = "".join(f"\n  - {reason}" for reason in against)
        raise BackendRefused(
            f"split: got {sharded.split!r}, wanted one that can run this call. Against it:{listed}\n"
            f"Hint: split='auto' chooses among: {others}.",
            against,
        )
    return sharded.split
