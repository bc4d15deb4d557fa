"""What the native kernels execute for a call, from sizes alone: rows, keys and widths that fill up tiles and vectors,
and masked parts of tiles, are work like all the rest. A leaf: `qkv.ops.geometry()` brings the sizes of tiles.

    attend          backend decode: softmax on plain tensors
    attend_memory   qkv.decode on a KVCache, softmax or argmax
    argmax          backend hard
    linear          backend linear and LinearState

Integers of any size; a sum over tiles is a closed formula, or takes few steps. Numbers are taken to be finite: where a
NaN or an infinity is met, kernels go another way, which only a count knows (`qkv.ops.loader`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..masks.band import Band
from .executed import Executed, Geometry
from .sizes import Sizes
from .steps import Steps, round_up
from .tiles_linear import Features, linear

__all__ = ["Executed", "Features", "Geometry", "argmax", "attend", "attend_memory", "linear"]


def attend(geometry: Geometry, sizes: Sizes, band: Band | None = None, *, softcap: bool = False) -> Executed:
    """Softmax on plain tensors. band: what the mask leaves each query; None: everything, or a mask that is no band and
    whose cells are all worked on."""
    tiles = _Tiles(geometry, sizes, softcap=softcap, whole_pages=False, pair=1)
    band = Band() if band is None else band
    return tiles.over_rows(_Run(band, b, 0, 0, sizes.len_q, sizes.len_k) for b in range(sizes.batch))


def attend_memory(
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
    hard: bool = False,
) -> Executed:
    """A step on a memory that held past[b] tokens of each row; sizes.len_q are new, and sizes.len_k is not read.

    band: of the mask, in absolute positions. storage, window: the memory's. counts, left: how many of the new tokens
    count in each row, and whether they are the last ones. hard: argmax, which weighs no values.
    """
    tiles = _Tiles(
        geometry, sizes, softcap=softcap, whole_pages=storage == "int8",
        pair=geometry.bfloat16_pair if storage == "bfloat16" else 1, weighs=not hard,
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
    """The best key of each query. band: None for no mask; masks that are no band are not for this kernel."""
    rows, keys = geometry.tile_rows, geometry.tile_keys
    band = Band() if band is None else band
    panels = 0
    for (start, stop), times in _ends(band, sizes).items():
        one = Band(band.lower, band.upper, (start,), (stop,))
        panels += times * sum(_panels(one, sizes, head, rows, keys) for head in range(sizes.group))
    panels *= sizes.heads_kv
    return Executed(score_flops=2 * rows * keys * sizes.width * panels, tiles=panels)


def _ends(band: Band, sizes: Sizes) -> Counter[tuple[int, int]]:
    """The keys between which each batch row sees, and how many rows do."""
    full = Band(starts=band.starts, stops=band.stops)
    return Counter(full.interval(b, 0, sizes.len_k) for b in range(sizes.batch))


def _panels(band: Band, sizes: Sizes, head: int, rows: int, keys: int) -> int:
    """Panels of keys that the tiles which begin in a head of the group look at. Heads follow each other without a gap,
    so that the last of these tiles may look at rows of the next ones, too."""
    length, all_rows = sizes.len_q, sizes.len_q * (sizes.group)
    begin = -(-head * length // rows) * rows
    inside = max(0, (head + 1) * length - begin) // rows
    ends = _Run(band, 0, begin - head * length, 0, length, sizes.len_k).ends(inside, rows, 1)
    total = ends.sum_up(keys) - ends.sum_down(keys)
    if begin + inside * rows < (head + 1) * length:
        total += _across(band, sizes, begin + inside * rows, min(begin + (inside + 1) * rows, all_rows), keys)
    return total // keys


def _across(band: Band, sizes: Sizes, row: int, end: int, keys: int) -> int:
    """Keys, filled up to panels, from the first that one of the rows sees to the last that another sees."""
    pieces = []
    while row < end:
        i0 = row % sizes.len_q
        i1 = min(i0 + end - row, sizes.len_q)
        pieces.append(band.bounds_for_rows(0, i0, i1, sizes.len_k))
        row += i1 - i0
    seen = [(lo, hi) for lo, hi in pieces if lo < hi]
    if not seen:
        return 0
    return round_up(max(hi for _, hi in seen), keys) - min(lo for lo, _ in seen) // keys * keys


class _Run(NamedTuple):
    """A batch row whose queries first … last - 1 count, the first of them at position `at`, with keys up to `len_k`."""

    band: Band
    b: int
    at: int
    first: int
    last: int
    len_k: int

    def bounds(self, i0: int, i1: int) -> tuple[int, int]:
        """The keys that one of the queries i0 … i1 - 1 sees."""
        i0, i1 = max(i0, self.first), min(i1, self.last)
        move = self.at - self.first
        return self.band.bounds_for_rows(self.b, i0 + move, max(i0, i1) + move, self.len_k)

    def ends(self, tiles: int, rows: int, group: int) -> _Ends:
        """What the first so many tiles of `rows` rows see, `group` rows to a query."""
        move, band = self.at - self.first, self.band
        start, stop = Band(starts=band.starts, stops=band.stops).interval(self.b, 0, self.len_k)
        from_, to = Steps(rows, 0, group), Steps(rows, rows - 1, group)  # their first and last query
        nothing = _Ends(0, 0, from_, to)
        if self.first >= self.last or start >= stop:
            return nothing
        # Tiles that hold a query that counts; of those some at either end may see no key.
        t0, t1 = max(0, to.first_from(self.first)), min(tiles, from_.first_from(self.last))
        from_, to = Steps(0, start, 1), Steps(0, stop, 1)
        if band.lower is not None:
            lowest = max(start, self.first + move + band.lower)
            from_ = Steps(rows, group * (move + band.lower), group, lo=lowest)
            t1 = min(t1, from_.first_from(stop)) if lowest < stop else 0
        if band.upper is not None:
            highest = min(stop, self.last - 1 + move + band.upper)
            to = Steps(rows, rows - 1 + group * (move + band.upper), group, hi=highest)
            t0 = max(t0, to.first_from(start + 1)) if highest > start else t1
        if band.lower is not None and band.upper is not None and band.lower >= band.upper:
            return nothing
        return _Ends(t0, max(t0, t1), from_, to)


class _Ends(NamedTuple):
    """Tiles t0 … t1 - 1, each of which sees the keys from … to - 1."""

    t0: int
    t1: int
    from_: Steps
    to: Steps

    def sum_up(self, multiple: int) -> int:
        return self.to.total(self.t0, self.t1, multiple, up=True)

    def sum_down(self, multiple: int) -> int:
        return self.from_.total(self.t0, self.t1, multiple, up=False)


class _Tiles:
    """Query rows, heads of a group side by side, in tiles that go along the keys from the first to the last that one of
    their rows sees."""

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
                one = _Ends(0, int(lo < hi), Steps(0, lo, 1), Steps(0, hi, 1))
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
        # Scores that each token has its own scale for are capped by whole pages.
        capped = ends.sum_up(page) - first if self.whole_pages else weights
        # One factor for each row where two parts are folded together.
        folds = (ends.sum_up(g.part_tokens) - ends.sum_down(g.part_tokens)) // g.part_tokens - tiles
        return scores + Executed(
            value_flops=2 * rows * self.width_v * (ends.sum_up(1) - ends.sum_down(1)),
            exponentials=rows * (weights + (capped if self.softcap else 0)) + folds * round_up(rows, g.group_tokens),
        )
