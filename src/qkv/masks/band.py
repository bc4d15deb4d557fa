"""`Band`: a mask in which each query attends to one run of keys, which is counted in closed form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Band:
    """In batch row b, query i attends to key j when `starts[b] <= j < stops[b]` and `i + lower <= j < i + upper`.

    None is no limit; with starts and stops None the band fits any batch size. All heads are alike. Methods take
    half-open ranges and return half-open intervals inside `[0, len_k)`.

    >>> causal = Band(upper=1)
    >>> causal.interval(0, 2, len_k=5)
    (0, 3)
    >>> causal.population(len_q=5, len_k=5)
    15
    >>> causal.population(len_q=10**15, len_k=10**15)
    500000000000000500000000000000
    """

    lower: int | None = None
    upper: int | None = None
    starts: tuple[int, ...] | None = None
    stops: tuple[int, ...] | None = None

    @property
    def is_uniform(self) -> bool:
        """Whether all batch rows are alike."""
        return self.starts is None and self.stops is None

    @property
    def is_trivial(self) -> bool:
        """Whether nothing is masked, for any lengths."""
        return self.lower is None and self.upper is None and self.is_uniform

    @property
    def transposed(self) -> Band:
        """The same limits on key - query, for queries of keys."""
        return Band(None if self.upper is None else 1 - self.upper, None if self.lower is None else 1 - self.lower)

    def intersect(self, other: Band) -> Band:
        """What both allow.

        >>> Band(upper=1).intersect(Band(lower=-2, stops=(4, 7)))
        Band(lower=-2, upper=1, starts=None, stops=(4, 7))
        """
        return Band(
            lower=_intersect(self.lower, other.lower, max),
            upper=_intersect(self.upper, other.upper, min),
            starts=_intersect(self.starts, other.starts, max),
            stops=_intersect(self.stops, other.stops, min),
        )

    def simplified(self, len_q: int, len_k: int) -> Band:
        """The same cells of a `len_q` by `len_k` rectangle, without limits that change nothing there.

        >>> Band(lower=-9, upper=5, stops=(5, 5)).simplified(len_q=3, len_k=5).is_trivial
        True
        """
        return Band(
            None if self.lower is None or self.lower + len_q <= 1 else self.lower,
            None if self.upper is None or self.upper >= len_k else self.upper,
            None if self.starts is None or max(self.starts, default=0) <= 0 else self.starts,
            None if self.stops is None or min(self.stops, default=len_k) >= len_k else self.stops,
        )

    def interval(self, b: int, i: int, len_k: int) -> tuple[int, int]:
        """The keys that query i of batch row b attends to; `lo == hi` when there are none."""
        return self.bounds_for_rows(b, i, i + 1, len_k)

    def bounds_for_rows(self, b: int, i0: int, i1: int, len_k: int) -> tuple[int, int]:
        """The keys that at least one of the queries i0 to i1 - 1 attends to: always one run, and exact.

        >>> Band(lower=0, upper=1).bounds_for_rows(0, 2, 9, len_k=5)
        (2, 5)
        """
        lo, hi = self.ends(b, len_k)
        if i0 >= i1 or (self.lower is not None and self.upper is not None and self.lower >= self.upper):
            return _clamped(lo, lo, len_k)
        # Both ends move with the query by at most one key, so the runs of neighbours touch.
        if self.lower is not None:
            lo = max(lo, i0 + self.lower)
        if self.upper is not None:
            hi = min(hi, i1 - 1 + self.upper)
        return _clamped(lo, hi, len_k)

    def population(self, len_q: int, len_k: int, batch: int = 1) -> int:
        """How many cells are True, over all batch rows, in one head.

        `batch` counts the rows when starts and stops are both None, and is not needed otherwise.
        """
        if self.is_uniform:
            return batch * self.count(0, (0, len_q), (0, len_k))
        ends = Counter(self.ends(b, len_k) for b in range(len(self.starts or self.stops or ())))
        return sum(times * self._series((0, len_q), *end) for end, times in ends.items())

    def count(self, b: int, rows: tuple[int, int], keys: tuple[int, int]) -> int:
        """How many cells are True in batch row b, among `rows` and `keys`.

        >>> Band(upper=1).count(0, rows=(2, 4), keys=(1, 9))
        5
        """
        start, stop = self.ends(b, keys[1])
        return self._series(rows, max(start, keys[0]), stop)

    def ends(self, b: int, len_k: int) -> tuple[int, int]:
        """The keys of batch row b that its start and stop allow."""
        start = 0 if self.starts is None else max(0, self.starts[b])
        stop = len_k if self.stops is None else min(len_k, self.stops[b])
        return start, stop

    def _series(self, rows: tuple[int, int], start: int, stop: int) -> int:
        if rows[0] >= rows[1] or start >= stop:
            return 0
        below = (rows[1] - rows[0]) * (stop - start)
        if self.upper is not None:
            below = _cells_below(rows, start, stop, self.upper)
        if self.lower is None:
            return below
        return max(0, below - _cells_below(rows, start, stop, self.lower))


def _cells_below(rows: tuple[int, int], start: int, stop: int, limit: int) -> int:
    """The number of cells with j < i + limit, in a rectangle: an arithmetic series, then a constant."""
    first = max(rows[0], start - limit + 1)  # the first query that attends to a key
    full = max(first, stop - limit)  # the first query that attends to all of them
    rising = min(full, rows[1])
    total = 0
    if first < rising:
        total += (rising - first) * ((first + limit - start) + (rising - 1 + limit - start)) // 2
    if full < rows[1]:
        total += (rows[1] - full) * (stop - start)
    return total


def _intersect(one: Any, other: Any, choose: Callable[[int, int], int]) -> Any:
    """The narrower of two limits, or of two tuples of limits, row by row; None is no limit."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, tuple):
        return tuple(choose(a, b) for a, b in zip(one, other, strict=True))
    return choose(one, other)


def _clamped(lo: int, hi: int, len_k: int) -> tuple[int, int]:
    lo = min(max(lo, 0), len_k)
    return lo, min(max(hi, lo), len_k)
