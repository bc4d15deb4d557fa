"""What the native kernel of the linear backend executes: by sums over the keys, or every score by itself."""

from __future__ import annotations

from math import comb
from typing import NamedTuple

from .executed import Executed, Geometry
from .sizes import Sizes
from .steps import Steps, round_up


class Features(NamedTuple):
    """map: identity, elu1, relu or squared, which have a feature for each coordinate; or power, the monomials of
    (q·k + offset)^degree, which may be scored without them.

    >>> Features("power", degree=2, offset=1.0).count(3)
    10
    """

    map: str
    degree: int = 1
    offset: float = 0.0

    def coordinates(self, width: int) -> int:
        """What monomials are made of: the coordinates, and a 1 that stands for the offset."""
        return width + 1 if self.map == "power" and self.offset else width

    def count(self, width: int) -> int:
        return comb(self.coordinates(width) + self.degree - 1, self.degree) if self.map == "power" else width

    def in_vectors(self, width: int, lanes: int) -> int:
        """The same, with what fills up vectors. Monomials go in blocks that differ in their last factor alone, and that
        runs on from the last but one."""
        coordinates = self.coordinates(width)
        if self.map != "power" or self.degree == 1:
            return round_up(coordinates, lanes)
        others = self.degree - 2
        return sum(comb(last + others, others) * round_up(coordinates - last, lanes) for last in range(coordinates))


def linear(
    geometry: Geometry,
    sizes: Sizes,
    features: Features,
    *,
    offset: int | None = None,
    direct: bool = False,
    state: bool = False,
) -> Executed:
    """offset: query i sees the keys j ≤ i + offset; None: all, as the backend says of a Causal that hides nothing, whose
    offset is len_k - 1 or more. direct: every key is scored, and a state only read. state: there is one from before, to
    which all keys are added in the end where nothing is direct. Which keys count for all, as a Padding says, changes
    nothing. len_q 0: there are no queries, and the keys go into the state."""
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
    """One key/value head of one batch row, and what is done with it: keys that are loaded and that are added to the
    sums; and of blocks of rows beside keys that some of them see: pairs, and pairs with what fills up lines."""

    def __init__(self, geometry: Geometry, sizes: Sizes, features: Features, offset: int | None, chunk_of: int) -> None:
        self.geometry, self.sizes, self.features, self.offset = geometry, sizes, features, offset
        self.group, self.chunk = sizes.group, geometry.chunk_tokens(chunk_of)
        self.loaded = self.added = self.pairs = self.filled = 0
        self.holds = 0, 0

    def work(self, reads: bool) -> Executed:
        """reads: whether queries are asked of a state, too."""
        g, features, width = self.geometry, self.features, self.sizes.width
        columns = round_up(max(self.sizes.width_v, 1), g.linear_line)
        count, in_vectors = features.count(width), features.in_vectors(width, g.lanes)
        rows = self.group * self.sizes.len_q
        asked = rows if reads else 0
        pairs, filled = self.group * self.pairs, self.group * self.filled
        total = Executed(
            other_flops=2 * asked * count * (columns + 1)
            + self.added * (2 * count * columns + in_vectors)
            + 2 * (width * filled + (columns + 1) * pairs)
        )
        if features.map == "power":
            total.feature_flops = (asked + 2 * self.added) * in_vectors + features.degree * filled
        mapped = (rows + self.loaded) * round_up(width, g.lanes)
        if features.map == "elu1":
            total.exponentials = mapped
        if features.map == "squared":
            total.feature_flops = mapped
        return total

    def segments(self) -> int:
        """Into how many the keys go, so that several threads have something to do."""
        g = self.geometry
        if self.offset is not None and self.sizes.heads_kv >= g.enough_heads:
            return 1
        return min(g.most_segments, self.sizes.len_k // (g.segment_chunks * self.chunk))

    def sum_in_segments(self) -> None:
        """Sums of each segment; then queries beside what lies before their segment, whose keys are added again."""
        sizes, count, offset = self.sizes, self.segments(), self.offset
        chunks = -(-sizes.len_k // self.chunk)
        begins = [min(sizes.len_k, chunks * s // count * self.chunk) for s in range(count + 1)]
        for s in range(count if offset is None else count - 1):
            self._afresh()
            self.absorb(begins[s], begins[s + 1])
        if offset is None:
            return
        firsts = [min(max(begin - offset, 0), sizes.len_q) for begin in begins]
        firsts[0], firsts[-1] = 0, sizes.len_q
        for s in range(count):
            self._afresh()
            self.answer(firsts[s], firsts[s + 1], begins[s])

    def score_in_strips(self) -> None:
        """Every strip of queries beside all keys that one of them sees, for each head of the group."""
        full, rest = divmod(self.sizes.len_q, self.chunk)
        for i0, strips, rows in ((0, full, self.chunk), (full * self.chunk, 1, rest)):
            for first in range(0, rows, self.geometry.linear_rows):
                end = min(first + self.geometry.linear_rows, rows)
                seen = self._seen(i0 + end)
                self.pairs += (end - first) * seen.total(0, strips, 1, up=True)
                self.filled += (end - first) * seen.total(0, strips, self.geometry.linear_line, up=True)
            if rows:
                seen = self._seen(i0 + rows)
                few = strips if self.sizes.len_k <= self.chunk else 0
                if seen.step and not few:
                    few = min(max(seen.first_from(self.chunk + 1), 0), strips)
                # A single chunk of keys stays where it is for all heads.
                self.loaded += seen.total(0, few, 1, up=True) + self.group * seen.total(few, strips, 1, up=True)

    def answer(self, begin: int, end: int, absorbed: int) -> int:
        """Queries begin … end - 1, chunk by chunk, with sums over the keys before `absorbed`. Returns how many keys the
        sums are over in the end."""
        offset, len_k, chunk = self.offset, self.sizes.len_k, self.chunk
        if begin < end and offset is None:
            self.absorb(absorbed, len_k)
            return max(absorbed, len_k)
        i0, before = begin, None
        if offset is not None:  # chunks of queries that see nothing
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
            # From here on every chunk is like the last two, as long as neither queries nor keys end.
            now = absorbed - i0, self.holds[0] - i0, self.holds[1] - i0
            if now == before and here == i0 - chunk + offset:
                alike = max(0, min(end - i0, len_k - offset - i0) // chunk)
                self.loaded += alike * (self.loaded - loaded)
                self.pairs += alike * (self.pairs - pairs)
                self.filled += alike * (self.filled - filled)
                self.added += alike * (self.added - added)
                i0, absorbed = i0 + alike * chunk, absorbed + alike * chunk
                self.holds = self.holds[0] + alike * chunk, self.holds[1] + alike * chunk
                now = None
            before = now
        return absorbed

    def absorb(self, start: int, stop: int) -> None:
        """Keys into the sums, chunk by chunk; the first may still be there."""
        if start >= stop:
            return
        first = start, min(start + self.chunk, stop)
        self.added += stop - start
        self.loaded += stop - start - (first[1] - first[0] if self.holds == first else 0)
        self.holds = start + (stop - start - 1) // self.chunk * self.chunk, stop

    def _load(self, start: int, stop: int) -> None:
        if self.holds != (start, stop):
            self.loaded += stop - start
            self.holds = start, stop

    def _afresh(self) -> None:
        self.holds = 0, 0

    def _seen(self, end: int) -> Steps:
        """How many keys query end - 1 sees, and those that follow it by a chunk, by two, …"""
        if self.offset is None:
            return Steps(0, self.sizes.len_k, 1)
        return Steps(self.chunk, end + self.offset, 1, 0, self.sizes.len_k)

    def _score(self, i0: int, rows: int, start: int, stop: int) -> None:
        """Blocks of rows beside the loaded keys, as far as the last of each sees."""
        assert self.offset is not None
        for first in range(0, rows, self.geometry.linear_rows):
            end = min(first + self.geometry.linear_rows, rows)
            most = min(max(i0 + end + self.offset - start, 0), stop - start)
            self.pairs += (end - first) * most
            self.filled += (end - first) * round_up(most, self.geometry.linear_line)
