"""Work that the native kernels execute for a call, from sizes alone; padding of tiles and vectors and masked parts of
tiles count too.

    attention          backend native: softmax on plain tensors
    cached_attention   qkv.decode on a KVCache, softmax or argmax
    argmax             backend argmax
    linear             backend linear and LinearState

`qkv.ops.geometry()` gives the sizes of tiles. Integers may be of any size: sums over tiles are closed formulas or take
few steps. Inputs are assumed finite: for NaN and infinity the kernels do other work, which `qkv.ops` counts as it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import comb
from typing import NamedTuple

from ..masks.band import Band
from .sizes import Sizes


@dataclass(frozen=True)
class Geometry:
    """Tile sizes of the kernels for one instruction set, as the native library reports them.

    Attributes:
        lanes: numbers in a vector.
        tile_rows, tile_keys: a tile of argmax.
        query_rows: query rows that read the keys together.
        page_tokens: tokens in a page of a cache.
        part_tokens: tokens whose softmax is computed before it is merged with the rest.
        group_tokens, value_line, linear_line: multiples to which rows of weights, of values and of the linear backend
            are padded.
        bfloat16_pair: channels of keys that a bfloat16 cache stores together.
        linear_rows: rows of the linear backend that are scored against the keys of the last of them.
        chunks: (largest number of features, tokens) of a chunk of the linear backend.
        segment_chunks, most_segments, enough_heads: when the linear backend splits keys into segments.
    """

    isa: str
    lanes: int
    tile_rows: int
    tile_keys: int
    query_rows: int
    page_tokens: int
    part_tokens: int
    group_tokens: int
    value_line: int
    bfloat16_pair: int
    linear_line: int
    linear_rows: int
    chunks: tuple[tuple[int, int], ...]
    segment_chunks: int
    most_segments: int
    enough_heads: int

    def chunk_tokens(self, features: int) -> int:
        """Tokens in a chunk of the linear backend."""
        return next(tokens for most, tokens in self.chunks if features <= most)


@dataclass
class Executed:
    """Work of one kernel call.

    Attributes:
        score_flops: products of queries and keys.
        value_flops: products of weights and values.
        other_flops: products of the linear backend.
        feature_flops: monomials, powers and squares.
        exponentials: computed in vectors; the two for each query's sink are not included.
        tiles: pages and tiles of scores.

    >>> Executed(score_flops=6, value_flops=4).flops
    10
    """

    score_flops: int = 0
    value_flops: int = 0
    other_flops: int = 0
    feature_flops: int = 0
    exponentials: int = 0
    tiles: int = 0

    @property
    def flops(self) -> int:
        """Flops of all products; a multiplication and an addition are two."""
        return self.score_flops + self.value_flops + self.other_flops

    def __add__(self, other: Executed) -> Executed:
        return Executed(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Executed)))

    def times(self, count: int) -> Executed:
        return Executed(*(getattr(self, f.name) * count for f in fields(Executed)))


class FloorSeries(NamedTuple):
    """The series ⌊(step·t + base) / by⌋, clamped to lo and hi where those are given; sums have a closed form."""

    step: int
    base: int
    by: int
    lo: int | None = None
    hi: int | None = None

    def at(self, t: int) -> int:
        value = (self.step * t + self.base) // self.by
        value = value if self.lo is None else max(value, self.lo)
        return value if self.hi is None else min(value, self.hi)

    def first_from(self, value: int) -> int:
        """The first t, possibly negative, with ⌊(step·t + base) / by⌋ ≥ value."""
        return -(-(value * self.by - self.base) // self.step)

    def total(self, t0: int, t1: int, multiple: int, up: bool) -> int:
        """The sum from t0 to t1 - 1, each number rounded up or down to a multiple.

        >>> FloorSeries(3, 1, 2, 2, 9).total(0, 9, 4, up=True)
        72
        >>> sum(-(-min(max((3 * t + 1) // 2, 2), 9) // 4) * 4 for t in range(9))
        72
        """
        if t0 >= t1:
            return 0
        rounded = round_up if up else round_down
        if not self.step:
            return (t1 - t0) * rounded(self.at(0), multiple)
        a = t0 if self.lo is None else min(max(self.first_from(self.lo), t0), t1)
        z = t1 if self.hi is None else min(max(self.first_from(self.hi), a), t1)
        total = (a - t0) * rounded(self.at(t0), multiple) + (t1 - z) * rounded(self.at(t1 - 1), multiple)
        more = self.by * (multiple - 1) if up else 0
        base = self.base + self.step * a + more
        return total + multiple * _floor_sum(z - a, self.by * multiple, self.step, base)


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def round_down(number: int, multiple: int) -> int:
    return number // multiple * multiple


def _floor_sum(count: int, by: int, step: int, base: int) -> int:
    """Σ ⌊(step·t + base) / by⌋ over t from 0 to count - 1, by Euclid's algorithm on the slope.

    >>> _floor_sum(5, by=3, step=2, base=-1)  # -1 + 0 + 1 + 1 + 2
    3
    >>> _floor_sum(10**15, by=2, step=2, base=1) == 10**15 * (10**15 - 1) // 2
    True
    """
    total = 0
    while count > 0:
        total += base // by * count + step // by * (count * (count - 1) // 2)
        step, base = step % by, base % by
        top = step * count + base
        count, base, step, by = top // by, top % by, by, step
    return total


def attention(geometry: Geometry, sizes: Sizes, band: Band | None = None, *, softcap: bool = False) -> Executed:
    """Softmax on plain tensors. band: keys that the mask allows each query; None: all, also for masks that are no band,
    whose cells are all computed."""
    tiles = _Tiles(geometry, sizes, softcap=softcap, whole_pages=False, pair=1)
    band = Band() if band is None else band
    return tiles.over_rows(_Run(band, b, 0, 0, sizes.len_q, sizes.len_k) for b in range(sizes.batch))


def cached_attention(
    geometry: Geometry,
    sizes: Sizes,
    past: Sequence[int],
    band: Band | None = None,
    *,
    storage: str = "float32",
    window: int | None = None,
    counts: Sequence[int] | None = None,
    left: bool = False,
    softcap: bool = False,
    is_argmax: bool = False,
) -> Executed:
    """A step on a cache.

    Args:
        sizes: of the step; len_q is the number of new tokens, len_k is not used.
        past: tokens that the cache had in each batch row.
        band: of the mask, in absolute positions.
        storage, window: those of the cache.
        counts: how many new tokens of each batch row are real, the others being padding; None: all.
        left: whether padding comes first.
        is_argmax: argmax reads one value for each query, so nothing is computed with values.
    """
    tiles = _Tiles(
        geometry, sizes, softcap=softcap, whole_pages=storage == "int8",
        pair=geometry.bfloat16_pair if storage == "bfloat16" else 1, weighs=not is_argmax,
    )  # fmt: skip
    band = Band(upper=1) if band is None else band.intersect(Band(upper=1))
    if window is not None:
        band = band.intersect(Band(lower=1 - window))

    def run(b: int) -> _Run:
        count = sizes.len_q if counts is None else counts[b]
        first = sizes.len_q - count if left else 0
        return _Run(band, b, past[b], first, first + count, past[b] + count)

    return tiles.over_rows(run(b) for b in range(sizes.batch))


def argmax(geometry: Geometry, sizes: Sizes, band: Band | None = None) -> Executed:
    """The best key of each query. band: None without a mask; this kernel takes no mask that is not a band."""
    rows, keys = geometry.tile_rows, geometry.tile_keys
    band = Band() if band is None else band
    panels = 0
    for (start, stop), times in _ends(band, sizes).items():
        one = Band(band.lower, band.upper, (start,), (stop,))
        panels += times * sum(_panels(one, sizes, head, rows, keys) for head in range(sizes.group))
    panels *= sizes.heads_kv
    return Executed(score_flops=2 * rows * keys * sizes.width * panels, tiles=panels)


def _ends(band: Band, sizes: Sizes) -> Counter[tuple[int, int]]:
    """(first, last + 1) of the keys that a batch row attends to, with the number of batch rows."""
    full = Band(starts=band.starts, stops=band.stops)
    return Counter(full.interval(b, 0, sizes.len_k) for b in range(sizes.batch))


def _panels(band: Band, sizes: Sizes, head: int, rows: int, keys: int) -> int:
    """Panels of keys of the tiles that begin in a head of the group. Heads follow each other without a gap, so that the
    last of these tiles may have rows of the next heads too."""
    length, all_rows = sizes.len_q, sizes.len_q * (sizes.group)
    begin = -(-head * length // rows) * rows
    inside = max(0, (head + 1) * length - begin) // rows
    ends = _Run(band, 0, begin - head * length, 0, length, sizes.len_k).ends(inside, rows, 1)
    total = ends.sum_up(keys) - ends.sum_down(keys)
    if begin + inside * rows < (head + 1) * length:
        total += _across(band, sizes, begin + inside * rows, min(begin + (inside + 1) * rows, all_rows), keys)
    return total // keys


def _across(band: Band, sizes: Sizes, row: int, end: int, keys: int) -> int:
    """Keys, rounded up to panels, from the first to the last that any of the rows attends to."""
    pieces = []
    while row < end:
        i0 = row % sizes.len_q
        i1 = min(i0 + end - row, sizes.len_q)
        pieces.append(band.bounds_for_rows(0, i0, i1, sizes.len_k))
        row += i1 - i0
    attended = [(lo, hi) for lo, hi in pieces if lo < hi]
    if not attended:
        return 0
    return round_up(max(hi for _, hi in attended), keys) - min(lo for lo, _ in attended) // keys * keys


class _Run(NamedTuple):
    """A batch row whose queries first … last - 1 are real, the first at position `at`, with keys up to `len_k`."""

    band: Band
    b: int
    at: int
    first: int
    last: int
    len_k: int

    def bounds(self, i0: int, i1: int) -> tuple[int, int]:
        """First and last + 1 of the keys that any of the queries i0 … i1 - 1 attends to."""
        i0, i1 = max(i0, self.first), min(i1, self.last)
        move = self.at - self.first
        return self.band.bounds_for_rows(self.b, i0 + move, max(i0, i1) + move, self.len_k)

    def ends(self, tiles: int, rows: int, group: int) -> _Ends:
        """The keys of the first `tiles` tiles of `rows` rows, with `group` rows for each query."""
        move, band = self.at - self.first, self.band
        start, stop = Band(starts=band.starts, stops=band.stops).interval(self.b, 0, self.len_k)
        from_, to = FloorSeries(rows, 0, group), FloorSeries(rows, rows - 1, group)  # first and last query of each tile
        nothing = _Ends(0, 0, from_, to)
        if self.first >= self.last or start >= stop:
            return nothing
        # Tiles with a real query; of those, some at either end may attend to no key.
        t0, t1 = max(0, to.first_from(self.first)), min(tiles, from_.first_from(self.last))
        from_, to = FloorSeries(0, start, 1), FloorSeries(0, stop, 1)
        if band.lower is not None:
            lowest = max(start, self.first + move + band.lower)
            from_ = FloorSeries(rows, group * (move + band.lower), group, lo=lowest)
            t1 = min(t1, from_.first_from(stop)) if lowest < stop else 0
        if band.upper is not None:
            highest = min(stop, self.last - 1 + move + band.upper)
            to = FloorSeries(rows, rows - 1 + group * (move + band.upper), group, hi=highest)
            t0 = max(t0, to.first_from(start + 1)) if highest > start else t1
        if band.lower is not None and band.upper is not None and band.lower >= band.upper:
            return nothing
        return _Ends(t0, max(t0, t1), from_, to)


class _Ends(NamedTuple):
    """Tiles t0 … t1 - 1 with their keys from_ … to - 1."""

    t0: int
    t1: int
    from_: FloorSeries
    to: FloorSeries

    def sum_up(self, multiple: int) -> int:
        return self.to.total(self.t0, self.t1, multiple, up=True)

    def sum_down(self, multiple: int) -> int:
        return self.from_.total(self.t0, self.t1, multiple, up=False)


class _Tiles:
    """Query rows, heads of a group together, in tiles; each tile reads the keys from the first to the last that any of
    its rows attends to."""

    def __init__(
        self, geometry: Geometry, sizes: Sizes, *, softcap: bool, whole_pages: bool, pair: int, weighs: bool = True
    ) -> None:
        self.geometry, self.heads_kv, self.group = geometry, sizes.heads_kv, sizes.group
        self.rows = self.group * sizes.len_q
        self.width, self.width_v = round_up(sizes.width, pair), round_up(sizes.width_v, geometry.value_line)
        self.softcap, self.whole_pages, self.weighs = softcap, whole_pages, weighs

    def over_rows(self, runs: Iterable[_Run]) -> Executed:
        total = Executed()
        full, rest = divmod(self.rows, self.geometry.query_rows)
        for run in runs:
            total += self._work(self.geometry.query_rows, run.ends(full, self.geometry.query_rows, self.group))
            if rest:
                i0 = (self.rows - rest) // self.group
                lo, hi = run.bounds(i0, self.rows // self.group)
                one = _Ends(0, int(lo < hi), FloorSeries(0, lo, 1), FloorSeries(0, hi, 1))
                total += self._work(rest, one)
        return total.times(self.heads_kv)

    def _work(self, rows: int, ends: _Ends) -> Executed:
        g = self.geometry
        tiles, page, first = ends.t1 - ends.t0, g.page_tokens, ends.sum_down(g.page_tokens)
        scores = Executed(
            score_flops=2 * rows * self.width * (ends.sum_up(g.lanes) - first),
            tiles=(ends.sum_up(page) - first) // page,
        )
        if not self.weighs:
            return scores
        weights = ends.sum_up(g.group_tokens) - first
        # With a scale for each token (int8), scores are capped in whole pages.
        capped = ends.sum_up(page) - first if self.whole_pages else weights
        # One factor for each row where two parts are merged.
        folds = (ends.sum_up(g.part_tokens) - ends.sum_down(g.part_tokens)) // g.part_tokens - tiles
        return scores + Executed(
            value_flops=2 * rows * self.width_v * (ends.sum_up(1) - ends.sum_down(1)),
            exponentials=rows * (weights + (capped if self.softcap else 0)) + folds * round_up(rows, g.group_tokens),
        )


class NativeMap(NamedTuple):
    """A feature map of the native linear kernel.

    map: "identity", "elu1", "relu" or "squared", with one feature for each coordinate; or "power", the monomials of
    (q·k + offset)^degree, whose scores can also be computed directly.

    >>> NativeMap("power", degree=2, offset=1.0).count(3)
    10
    """

    map: str
    degree: int = 1
    offset: float = 0.0

    def coordinates(self, width: int) -> int:
        """Factors of monomials: the coordinates, and one more for an offset."""
        return width + 1 if self.map == "power" and self.offset else width

    def count(self, width: int) -> int:
        return comb(self.coordinates(width) + self.degree - 1, self.degree) if self.map == "power" else width

    def in_vectors(self, width: int, lanes: int) -> int:
        """The same, padded to vectors. Monomials come in blocks that share all factors but the last, which starts at
        the one before it."""
        coordinates = self.coordinates(width)
        if self.map != "power" or self.degree == 1:
            return round_up(coordinates, lanes)
        others = self.degree - 2
        return sum(comb(last + others, others) * round_up(coordinates - last, lanes) for last in range(coordinates))


def linear(
    geometry: Geometry,
    sizes: Sizes,
    features: NativeMap,
    *,
    offset: int | None = None,
    direct: bool = False,
    state: bool = False,
) -> Executed:
    """Linear attention.

    Args:
        sizes: with len_q 0, the keys are only added to the state.
        offset: query i attends to keys j ≤ i + offset; None: to all, also for an offset of len_k - 1 or more.
        direct: every key is scored; a state is read, not updated.
        state: there is an earlier state; all keys are added to it at the end unless `direct`.

    Padding changes nothing.
    """
    if not sizes.batch or not sizes.heads_kv:
        return Executed()
    unit = _Unit(geometry, sizes, features, offset, chunk_of=features.count(sizes.width) if state or not direct else 1)
    if direct:
        unit.score_in_strips()
    elif not state and unit.segments() > 1:
        unit.sum_in_segments()
    else:
        absorbed = unit.answer(0, sizes.len_q, 0)
        if state:
            unit.absorb(absorbed, sizes.len_k)
    return unit.work(reads=state or not direct).times(sizes.batch * sizes.heads_kv)


class _Unit:
    """Work of one key/value head of one batch row.

    loaded, added: keys that are loaded, and that are added to the sums. pairs, filled: pairs of blocks of rows with
    keys that some of the rows attend to, and those pairs with padding.
    """

    def __init__(
        self, geometry: Geometry, sizes: Sizes, features: NativeMap, offset: int | None, chunk_of: int
    ) -> None:
        self.geometry, self.sizes, self.features, self.offset = geometry, sizes, features, offset
        self.group, self.chunk = sizes.group, geometry.chunk_tokens(chunk_of)
        self.loaded = self.added = self.pairs = self.filled = 0
        self.loaded_chunk = 0, 0

    def work(self, reads: bool) -> Executed:
        """reads: whether queries also read a state."""
        g, features, width = self.geometry, self.features, self.sizes.width
        columns = round_up(max(self.sizes.width_v, 1), g.linear_line)
        count, in_vectors = features.count(width), features.in_vectors(width, g.lanes)
        rows = self.group * self.sizes.len_q
        reading = rows if reads else 0
        pairs, filled = self.group * self.pairs, self.group * self.filled
        total = Executed(
            other_flops=2 * reading * count * (columns + 1)
            + self.added * (2 * count * columns + in_vectors)
            + 2 * (width * filled + (columns + 1) * pairs)
        )
        if features.map == "power":
            total.feature_flops = (reading + 2 * self.added) * in_vectors + features.degree * filled
        mapped = (rows + self.loaded) * round_up(width, g.lanes)
        if features.map == "elu1":
            total.exponentials = mapped
        if features.map == "squared":
            total.feature_flops = mapped
        return total

    def segments(self) -> int:
        """How many segments the keys are split into, so that several threads have work."""
        g = self.geometry
        if self.offset is not None and self.sizes.heads_kv >= g.enough_heads:
            return 1
        return min(g.most_segments, self.sizes.len_k // (g.segment_chunks * self.chunk))

    def sum_in_segments(self) -> None:
        """Sums of each segment; then queries with the sums before their segment, whose keys are added again."""
        sizes, count, offset = self.sizes, self.segments(), self.offset
        chunks = -(-sizes.len_k // self.chunk)
        begins = [min(sizes.len_k, chunks * s // count * self.chunk) for s in range(count + 1)]
        for s in range(count if offset is None else count - 1):
            self._forget_chunk()
            self.absorb(begins[s], begins[s + 1])
        if offset is None:
            return
        firsts = [min(max(begin - offset, 0), sizes.len_q) for begin in begins]
        firsts[0], firsts[-1] = 0, sizes.len_q
        for s in range(count):
            self._forget_chunk()
            self.answer(firsts[s], firsts[s + 1], begins[s])

    def score_in_strips(self) -> None:
        """Every strip of queries with all keys that any of them attends to, for each head of the group."""
        full, rest = divmod(self.sizes.len_q, self.chunk)
        for i0, strips, rows in ((0, full, self.chunk), (full * self.chunk, 1, rest)):
            for first in range(0, rows, self.geometry.linear_rows):
                end = min(first + self.geometry.linear_rows, rows)
                attended = self._attended(i0 + end)
                self.pairs += (end - first) * attended.total(0, strips, 1, up=True)
                self.filled += (end - first) * attended.total(0, strips, self.geometry.linear_line, up=True)
            if rows:
                attended = self._attended(i0 + rows)
                few = strips if self.sizes.len_k <= self.chunk else 0
                if attended.step and not few:
                    few = min(max(attended.first_from(self.chunk + 1), 0), strips)
                # A single chunk of keys stays loaded for all heads.
                self.loaded += attended.total(0, few, 1, up=True) + self.group * attended.total(few, strips, 1, up=True)

    def answer(self, begin: int, end: int, absorbed: int) -> int:
        """Queries begin … end - 1, chunk by chunk, with sums over the first `absorbed` keys. Returns how many keys the
        sums have at the end."""
        offset, len_k, chunk = self.offset, self.sizes.len_k, self.chunk
        if begin < end and offset is None:
            self.absorb(absorbed, len_k)
            return max(absorbed, len_k)
        i0, before = begin, None
        if offset is not None:  # skip chunks of queries that attend to nothing
            i0 += max(0, -offset - begin) // chunk * chunk
        while i0 < end and (offset is not None and absorbed < len_k):
            i1 = min(i0 + chunk, end)
            loaded, pairs, filled, added = self.loaded, self.pairs, self.filled, self.added
            here = min(max(i0 + offset, 0), len_k)
            self.absorb(absorbed, here)
            absorbed = max(absorbed, here)
            some = min(max(i1 + offset, 0), len_k)
            if some > absorbed:
                self._load(absorbed, some)
                self._score(i0, i1 - i0, absorbed, some)
            i0 = i1
            # From here on every chunk is like the last two, until queries or keys end.
            now = absorbed - i0, self.loaded_chunk[0] - i0, self.loaded_chunk[1] - i0
            if now == before and here == i0 - chunk + offset:
                alike = max(0, min(end - i0, len_k - offset - i0) // chunk)
                self.loaded += alike * (self.loaded - loaded)
                self.pairs += alike * (self.pairs - pairs)
                self.filled += alike * (self.filled - filled)
                self.added += alike * (self.added - added)
                i0, absorbed = i0 + alike * chunk, absorbed + alike * chunk
                self.loaded_chunk = self.loaded_chunk[0] + alike * chunk, self.loaded_chunk[1] + alike * chunk
                now = None
            before = now
        return absorbed

    def absorb(self, start: int, stop: int) -> None:
        """Add keys to the sums, chunk by chunk; the first chunk may still be loaded."""
        if start >= stop:
            return
        first = start, min(start + self.chunk, stop)
        self.added += stop - start
        self.loaded += stop - start - (first[1] - first[0] if self.loaded_chunk == first else 0)
        self.loaded_chunk = start + (stop - start - 1) // self.chunk * self.chunk, stop

    def _load(self, start: int, stop: int) -> None:
        if self.loaded_chunk != (start, stop):
            self.loaded += stop - start
            self.loaded_chunk = start, stop

    def _forget_chunk(self) -> None:
        self.loaded_chunk = 0, 0

    def _attended(self, end: int) -> FloorSeries:
        """How many keys query end - 1 attends to, and the queries that follow it by one chunk, two chunks, …"""
        if self.offset is None:
            return FloorSeries(0, self.sizes.len_k, 1)
        return FloorSeries(self.chunk, end + self.offset, 1, 0, self.sizes.len_k)

    def _score(self, i0: int, rows: int, start: int, stop: int) -> None:
        """Blocks of rows with the loaded keys that the last row of each attends to."""
        assert self.offset is not None
        for first in range(0, rows, self.geometry.linear_rows):
            end = min(first + self.geometry.linear_rows, rows)
            most = min(max(i0 + end + self.offset - start, 0), stop - start)
            self.pairs += (end - first) * most
            self.filled += (end - first) * round_up(most, self.geometry.linear_line)
