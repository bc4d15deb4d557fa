"""What each split of a call takes: bytes as they will be sent, from the shards and the mask that ranks agreed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ..cost.wire import INDEX, Phase, Spread, Wire, wire
from ..features import feature_count
from ..similarity import FeatureMap, Polynomial
from . import scan
from .heads import kv_heads
from .schedule import Run, Schedule
from .share import Share

MOST = 16  # ranks for which everybody's messages are counted one by one; beyond, shards are taken to be equal
SAMPLES = 2  # rows between which the number of keys that a query sees is taken to change evenly


class Sight:
    """What the queries of a call see, asked of its mask once."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self._known: dict[Run, Run] = {}

    def bounds(self, rows: Run) -> Run:
        """The run of keys outside of which these queries see nothing."""
        share = self.share
        if rows[0] >= rows[1]:
            return 0, 0
        if share.mask is None:
            return 0, share.extent.len_k
        if rows not in self._known:
            self._known[rows] = share.mask.bounds(share.extent, rows)
        return self._known[rows]

    def needs(self, rows: tuple[Run, ...]) -> list[int]:
        """How many keys of each rank these queries may see."""
        seen = [self.bounds(run) for run in rows]
        found = []
        for keys in pairwise(self.share.keys.edges):
            parts = [_within(run, keys) for run in seen]
            both = _within(parts[0], parts[-1]) if len(parts) > 1 else (0, 0)
            found.append(_length(*parts) - _length(both))
        return found

    def pairs(self, rows: Run) -> int:
        """About how many keys these queries see, in all: exact where that changes evenly from row to row."""
        start, stop = rows
        if start >= stop:
            return 0
        if self.share.mask is None:
            return (stop - start) * self.share.extent.len_k
        places = sorted({start + (stop - 1 - start) * at // SAMPLES for at in range(SAMPLES + 1)})
        seen = [_length(self.bounds((row, row + 1))) for row in places]
        total = sum(seen[:1])
        for (row, next_row), (one, other) in zip(pairwise(places), pairwise(seen), strict=True):
            total += ((next_row - row) * (one + other) + other - one) // 2
        return total


def priced(sight: Sight, split: str) -> Wire:
    """What a split takes, the same on every rank."""
    spread = spread_of(sight)
    average = wire(split, spread)
    return average if spread.ranks > MOST else _OF_SPLIT[split](sight, spread, average)


def spread_of(sight: Sight) -> Spread:
    """The call with equal shards."""
    share = sight.share
    call, extent = share.call, share.extent
    causal = extent.len_q > 0 and share.mask is not None and sight.bounds((0, 1))[1] < extent.len_k
    sums = isinstance(call.similarity, Polynomial | FeatureMap)
    return Spread(
        batch=max(1, extent.batch),
        heads=max(1, extent.heads),
        kv_heads=max(1, call.heads_kv),
        width=max(1, call.width),
        value_width=max(1, call.width_v),
        tokens=max(1, extent.len_k),
        ranks=share.axis.size,
        item=call.query.dtype.itemsize,
        causal=causal,
        learns=share.needs_grad,
        features=max(1, feature_count(call.similarity, call.width)) if sums else 1,
    )


def _ring(sight: Sight, s: Spread, average: Wire) -> Wire:
    share = sight.share
    schedule, ranks = Schedule(share), range(s.ranks)
    needs = _others(sight, schedule.rows)
    out, into = _columns(needs)
    halves = [share.queries.of(rank)[1] - schedule.half(rank) if schedule.swaps else 0 for rank in ranks]
    theirs = [halves[schedule.partner(rank)] for rank in ranks]
    keys, rows = s.batch * s.kv_heads * (s.width + s.value_width), s.batch * s.heads
    pairs = max(sum(sight.pairs(run) for run in runs) for runs in schedule.rows)
    peers, moves = max(sum(map(bool, line)) for line in zip(*needs, strict=True)), 2 * schedule.swaps
    there, back = rows * s.width * s.item, rows * (s.value_width + 1) * s.sums
    sent = [[halves[r] * there, out[r] * keys * s.item, theirs[r] * back] for r in ranks]
    got = [[theirs[r] * there, into[r] * keys * s.item, halves[r] * back] for r in ranks]
    forward, total = _busiest(sent, got, peers + moves, _flops(s, pairs))
    backward = None
    if s.learns:
        there = rows * ((s.width + 2 * s.value_width) * s.item + (2 if share.call.return_lse else 1) * s.sums)
        back = rows * s.width * s.sums
        sent = [[halves[r] * there, keys * (out[r] * s.item + into[r] * s.sums), theirs[r] * back] for r in ranks]
        got = [[theirs[r] * there, keys * (into[r] * s.item + out[r] * s.sums), halves[r] * back] for r in ranks]
        backward, more = _busiest(sent, got, 2 * peers + moves, _flops(s, pairs, backward=True))
        total += more
    return Wire("ring", total, forward, backward, average.held)


def _gather(sight: Sight, s: Spread, average: Wire) -> Wire:
    share, ranks = sight.share, range(s.ranks)
    needs = _others(sight, [(share.queries.of(rank),) for rank in ranks])
    out, into = _columns(needs)
    key = s.batch * s.kv_heads * (s.width + s.value_width) * s.item
    pairs = max(sight.pairs(share.queries.of(rank)) for rank in ranks)
    messages = max(sum(map(bool, line)) for line in zip(*needs, strict=True))
    sent, got = [[n * key, 0, 0] for n in out], [[n * key, 0, 0] for n in into]
    most = max(n + share.keys.of(r)[1] - share.keys.of(r)[0] for r, n in enumerate(into))
    sums = _sums(share, s, s.heads * max(_lengths(share.queries.edges)) + s.kv_heads * most)
    forward, total = _busiest(sent, got, messages, min(_flops(s, pairs), sums))
    backward = None
    if s.learns:  # what comes back for keys goes the other way
        turned = [[0, 0, n * key] for n in into], [[0, 0, n * key] for n in out]
        backward, more = _busiest(*turned, messages, min(_flops(s, pairs, backward=True), 2 * sums))
        total += more
    passes = 2 if s.learns else 1
    own = average.held - (2 * average.forward.before + key * s.shard) * passes
    return Wire("gather", total, forward, backward, int(own + (most + max(into)) * key * passes))


def _heads(sight: Sight, s: Spread, average: Wire) -> Wire:
    share = sight.share
    ranks, others = range(s.ranks), s.ranks - 1
    heads = -(-s.heads // s.ranks)
    first, last = kv_heads(s.kv_heads, s.ranks)[0]
    lse = s.sums if share.call.return_lse else 0
    row, key = s.batch * heads * s.width * s.item, s.batch * (last - first) * (s.width + s.value_width) * s.item
    answer = s.batch * heads * (s.value_width * s.item + lse)
    queries, keys = (_lengths(shards.edges) for shards in (share.queries, share.keys))
    there = [others * (queries[r] * row + keys[r] * key) for r in ranks]
    came = [(sum(queries) - queries[r]) * row + (sum(keys) - keys[r]) * key for r in ranks]
    went = [(sum(queries) - queries[r]) * answer for r in ranks]
    home = [others * queries[r] * answer for r in ranks]
    pairs = sum(sight.pairs(run) for run in pairwise(share.queries.edges))
    sent, got = ([[a, 0, b] for a, b in zip(*each, strict=True)] for each in ((there, went), (came, home)))
    sums = _sums(share, s, heads * sum(queries) + (last - first) * sum(keys))
    forward, total = _busiest(sent, got, 2 * others, min(_flops(s, pairs, heads), sums))
    backward = None
    if s.learns:
        sent, got = ([[b, 0, a] for a, b in zip(*each, strict=True)] for each in ((came, home), (there, went)))
        backward, more = _busiest(sent, got, 2 * others, min(_flops(s, pairs, heads, backward=True), 2 * sums))
        total += more
    return Wire("heads", total, forward, backward, average.held)


def _scan(sight: Sight, s: Spread, average: Wire) -> Wire:
    state = scan.state_bytes(sight.share)
    passes = [False, True] if s.learns else [False]
    every = [scan.bytes_sent(s.ranks, r, state, s.causal, backward=back) for back in passes for r in range(s.ranks)]
    return average._replace(total=sum(every))


def _best(sight: Sight, s: Spread, average: Wire) -> Wire:
    share = sight.share
    ranks, queries = range(s.ranks), _lengths(share.queries.edges)
    sees = [list(map(bool, line)) for line in _others(sight, [(share.queries.of(rank),) for rank in ranks])]
    asked = [queries[r] * sum(sees[r]) for r in ranks]
    answered = [sum(queries[r] for r in ranks if sees[r][of]) for of in ranks]
    rows = s.batch * s.heads
    query, found = rows * s.width * s.item, rows * (INDEX + s.width * s.item)
    values = [rows * n * s.value_width * s.item * (s.ranks > 1) for n in queries]
    sent = [[0, asked[r] * query + answered[r] * found, asked[r] * rows * INDEX + values[r]] for r in ranks]
    got = [[0, answered[r] * query + asked[r] * found, answered[r] * rows * INDEX + values[r]] for r in ranks]
    pairs = max(sight.pairs(share.queries.of(rank)) for rank in ranks)
    flops = 2 * rows * pairs * s.width
    forward, total = _busiest(sent, got, 4 * max(map(sum, sees)), flops)
    return Wire("best", total + (sum(values) if s.learns else 0), forward, average.backward, average.held)


_OF_SPLIT: dict[str, Callable[[Sight, Spread, Wire], Wire]] = {
    "ring": _ring, "gather": _gather, "heads": _heads, "scan": _scan, "best": _best
}  # fmt: skip


def _busiest(sent: list[list[int]], got: list[list[int]], messages: int, flops: float) -> tuple[Phase, int]:
    """The rank whose wire is busy longest, in either direction, and what all ranks send."""
    both = [[max(pair) for pair in zip(*each, strict=True)] for each in zip(sent, got, strict=True)]
    before, during, after = max(both, key=sum)
    return Phase(before, during, after, messages, flops), sum(map(sum, sent))


def _columns(needs: list[list[int]]) -> tuple[list[int], list[int]]:
    """What leaves every rank, and what comes to it."""
    return [sum(column) for column in zip(*needs, strict=True)], [sum(line) for line in needs]


def _flops(s: Spread, pairs: int, heads: int | None = None, *, backward: bool = False) -> int:
    each = 3 * s.width + 2 * s.value_width if backward else s.width + s.value_width
    return 2 * s.batch * (s.heads if heads is None else heads) * pairs * each


def _sums(share: Share, s: Spread, rows: int) -> float:
    """Flops by sums of features, which a rank runs by itself where they are fewer; others have no such way."""
    if not isinstance(share.call.similarity, Polynomial | FeatureMap):
        return float("inf")
    return 2 * s.batch * s.features * (s.value_width + 1) * rows


def _others(sight: Sight, rows: Sequence[tuple[Run, ...]]) -> list[list[int]]:
    """How many keys of each other rank every rank needs."""
    found = [sight.needs(runs) for runs in rows]
    return [[0 if of == rank else count for of, count in enumerate(line)] for rank, line in enumerate(found)]


def _within(one: Run, other: Run) -> Run:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low < high else (0, 0)


def _length(*runs: Run) -> int:
    return sum(stop - start for start, stop in runs)


def _lengths(edges: tuple[int, ...]) -> list[int]:
    return [stop - start for start, stop in pairwise(edges)]
