"""Who works on which queries, and which keys travel where and when: settled by sizes and the mask, alike on every rank.

Under a causal mask the last rank would have most to do. So every rank keeps the first half of its queries and works on
the second half of the rank that stands as far from the other end: rank r and rank R − 1 − r together have as much to do
as any other two, and each does half of it. Keys and values stay where they are.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from ..masks import Band, Mask
from .share import Share

Run = tuple[int, int]
LEAST_PIECE, PIECES = 1024, 64  # tokens of a message at least, and messages for a shard at most
WORTH = 0.95  # queries change places where the busiest rank has no more than this part of its work left


class Step(NamedTuple):
    """The number-th piece between ranks that stand `distance` apart round the ring."""

    distance: int
    number: int


class Schedule:
    """What every rank does. rows: for each rank the queries that it keeps and those of its partner that it works on."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._size = share.axis.size
        plain = [(share.queries.of(rank), (0, 0)) for rank in range(self._size)]
        swapped = [self._halved(rank) for rank in range(self._size)]
        self.swaps = self._size > 1 and share.bias is None and self._most(swapped) < WORTH * self._most(plain)
        self.rows: list[tuple[Run, Run]] = swapped if self.swaps else plain
        longest = max(stop - start for start, stop in map(share.keys.of, range(self._size)))
        self.piece = max(LEAST_PIECE, -(-longest // PIECES))

    def partner(self, rank: int) -> int:
        return self._size - 1 - rank

    def half(self, rank: int) -> int:
        """The first of a rank's queries that its partner works on."""
        start, stop = self._share.queries.of(rank)
        return stop if self.partner(rank) == rank else start + (stop - start + 1) // 2

    def _halved(self, rank: int) -> tuple[Run, Run]:
        partner, start = self.partner(rank), self._share.queries.of(rank)[0]
        kept = start, self.half(rank)
        return kept, (0, 0) if partner == rank else (self.half(partner), self._share.queries.of(partner)[1])

    def _most(self, rows: list[tuple[Run, Run]]) -> int:
        return max(sum(map(self._work, runs)) for runs in rows)

    def _work(self, run: Run) -> int:
        return self.pairs(run, (0, self._share.extent.len_k))

    def pairs(self, rows: Run, keys: Run) -> int:
        """How many pairs of these queries and keys the mask leaves, as far as it is known as runs."""
        if rows[0] >= rows[1] or keys[0] >= keys[1]:
            return 0
        band = self._band
        batch = range(self._share.extent.batch) if band.starts is not None or band.stops is not None else range(1)
        return sum(band.count(b, rows, keys) for b in batch)

    @cached_property
    def _band(self) -> Band:
        """What is known of the mask as runs of keys; the rest of it is taken to be spread evenly."""
        band, parts = Band(), () if self._share.mask is None else self._share.mask.parts()
        for part in parts:
            own: Band | None = part.band(self._share.extent) if isinstance(part, Mask) else None
            band = band if own is None else band.intersect(own)
        return band

    @cached_property
    def _seen(self) -> list[list[Run]]:
        """For each rank the keys that the queries it works on may see: two runs, of which each may be empty."""
        mask, extent = self._share.mask, self._share.extent
        everything = 0, extent.len_k
        return [
            [
                (0, 0) if rows[0] >= rows[1] else everything if mask is None else mask.bounds(extent, rows)
                for rows in both
            ]
            for both in self.rows
        ]

    def pieces(self, rank: int, of: int) -> list[Run]:
        """The keys of rank `of` that a rank needs for the queries it works on, in messages."""
        first, last = self._share.keys.of(of)
        cut = [(max(lo, first), min(hi, last)) for lo, hi in self._seen[rank]]
        runs = sorted(run for run in cut if run[0] < run[1])
        joined: list[Run] = []
        for lo, hi in runs:
            if joined and lo <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(hi, joined[-1][1])
            else:
                joined.append((lo, hi))
        return [(lo, min(lo + self.piece, stop)) for start, stop in joined for lo in range(start, stop, self.piece)]

    @cached_property
    def _pieces(self) -> dict[tuple[int, int], list[Run]]:
        ranks = range(self._size)
        return {(rank, of): self.pieces(rank, of) for rank in ranks for of in ranks if rank != of}

    @cached_property
    def steps(self) -> list[Step]:
        """In this order on every rank, so that nobody waits for a message that is sent after one he has yet to get."""
        found = []
        for distance in range(1, self._size):
            most = max(len(self._pieces[(rank + distance) % self._size, rank]) for rank in range(self._size))
            found += [Step(distance, number) for number in range(most)]
        return found

    def arrives(self, rank: int, step: Step) -> Run | None:
        """The keys that a rank gets in a step, from the rank `distance` before it."""
        return _at(self._pieces[rank, (rank - step.distance) % self._size], step.number)

    def leaves(self, rank: int, step: Step) -> Run | None:
        """The keys that a rank sends in a step, to the rank `distance` after it."""
        return _at(self._pieces[(rank + step.distance) % self._size, rank], step.number)


def _at(pieces: list[Run], number: int) -> Run | None:
    return pieces[number] if number < len(pieces) else None
