"""Pages: a pool that hands them out, and a table that says which page holds which tokens.

Nothing here ever moves a token. A pool grows by chunks that stay where they are; growing, forking, reordering and
the ring change tables and counts of owners, and only a shared page that is about to be written to is copied.

What can be interrupted is done in an order that errs on the safe side: a page may be counted once too often, and is
then not used again, but never once too rarely.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from ..cost.price import readable_bytes
from ..kernels.memory import advise_huge, populate
from .layout import PAGE
from .locks import Locked

_LINE = 64
_HUGE = 2 << 20
_LARGE = 1 << 20
_CHUNK = 64 << 20
_START = itemgetter(0)


class Pool(Locked):
    """Pages of one size, shared by a memory and its forks. `lock` is held by whoever changes something.

    >>> pool = Pool(page_bytes=128)
    >>> one, other = pool.take(2)
    >>> pool.share([one])
    >>> pool.release([one, other])  # `one` still has an owner
    >>> pool.take(1) == [other]
    True
    """

    def __init__(self, page_bytes: int) -> None:
        super().__init__()
        self.page_bytes = page_bytes
        self.pages = 0
        self.shared: dict[int, int] = {}  # owners of the pages that have more than one
        self._free: list[int] = []
        self._chunks: list[tuple[int, Tensor]] = []  # address and bytes, by address
        # What memories leave behind when they are collected, which may be in the middle of anything.
        self._left: deque[tuple[Table, list[int]]] = deque()

    def take(self, count: int, *, prompt: bool = False) -> list[int]:
        """The addresses of so many pages, each with one owner; MemoryError when there is no memory for them.

        prompt: for many tokens at once, which can wait for large pages of the system's; a single step cannot.
        """
        if count <= 0:
            return []
        while self._left:
            table, pages = self._left.popleft()
            self.release(table.all() + pages)
        if len(self._free) < count:
            self._grow(count - len(self._free), prompt)
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        return taken

    def next(self, count: int) -> list[int]:
        """The pages that will be taken next, which are still nobody's."""
        if len(self._free) < count:
            self._grow(count - len(self._free), False)
        return self._free[-count:]

    def share(self, addresses: Sequence[int]) -> None:
        """One more owner for each."""
        shared = self.shared
        for address in addresses:
            shared[address] = shared.get(address, 1) + 1

    def release(self, addresses: Sequence[int]) -> None:
        """One owner less for each; pages without any are free."""
        self._free.extend(self.disowned(addresses))

    def disowned(self, addresses: Sequence[int]) -> list[int]:
        """One owner less for each. Those that have none now are returned, and are the caller's."""
        shared = self.shared
        if not shared:
            return list(addresses)
        ours = []
        for address in addresses:
            owners = shared.get(address, 1)
            if owners == 1:
                ours.append(address)
            elif owners == 2:
                del shared[address]
            else:
                shared[address] = owners - 1
        return ours

    def leave(self, table: Table, pages: list[int]) -> None:
        """`release` for a collected memory: at any moment, in any thread, without the lock."""
        self._left.append((table, pages))

    def copied(self, source: int, target: int) -> None:
        """The bytes of one page into another."""
        ctypes.memmove(target, source, self.page_bytes)

    def page(self, address: int) -> Tensor:
        """The bytes of a page."""
        start, chunk = self._chunks[bisect_right(self._chunks, address, key=_START) - 1]
        return chunk[(address - start) // self.page_bytes]

    def gather(self, addresses: Sequence[int]) -> Tensor:
        """A copy of pages one after the other, (pages, page_bytes)."""
        wanted = np.asarray(addresses, dtype=np.int64)
        starts = np.array([start for start, _ in self._chunks], dtype=np.int64)
        places = np.searchsorted(starts, wanted, side="right") - 1
        pages = torch.empty(len(wanted), self.page_bytes, dtype=torch.uint8, device="cpu")
        for place in np.unique(places):
            of_chunk = np.flatnonzero(places == place)
            start, chunk = self._chunks[place]
            rows = (wanted[of_chunk] - start) // self.page_bytes
            pages[torch.from_numpy(of_chunk)] = chunk[torch.from_numpy(rows)]
        return pages

    def _grow(self, count: int, prompt: bool) -> None:
        """A chunk of as many pages as there are already, up to about 64 MiB, and at least of `count`."""
        generous = max(count, min(self.pages, _CHUNK // self.page_bytes))
        huge = prompt and count * self.page_bytes >= _LARGE
        if huge:  # the last large page, too
            generous = max(generous, -(-count * self.page_bytes // _HUGE) * _HUGE // self.page_bytes)
        try:
            start, chunk = _chunk(generous, self.page_bytes, huge)
        except MemoryError:
            if generous == count:
                raise
            generous = count
            start, chunk = _chunk(generous, self.page_bytes, False)
        if prompt and not huge:
            populate(start, count * self.page_bytes)  # in one go, and not page by page as tokens come
        insort(self._chunks, (start, chunk), key=_START)
        self.pages += generous
        # Taken from the end: the lowest addresses first.
        self._free[:0] = range(start + (generous - 1) * self.page_bytes, start - 1, -self.page_bytes)


def _chunk(pages: int, page_bytes: int, huge: bool) -> tuple[int, Tensor]:
    """The address of a chunk and its bytes (pages, page_bytes), aligned.

    huge: in large pages of the system's, which it may have to make room for first, and clears all at once.
    """
    size = pages * page_bytes
    align = _HUGE if huge else _LINE
    room = -(-size // align) * align
    try:
        block = torch.empty(room + align - 1, dtype=torch.uint8, device="cpu")
    except (RuntimeError, MemoryError) as error:  # what torch's allocator says when there is no more
        raise MemoryError(
            f"memory: no room for {pages} more pages of {page_bytes} bytes, {size} bytes ({readable_bytes(size)})"
        ) from error
    skip = -block.data_ptr() % align
    if align == _HUGE:
        advise_huge(block.data_ptr() + skip, room)
    return block.data_ptr() + skip, block[skip : skip + size].view(pages, page_bytes)


def address_of(array: np.ndarray) -> int:
    """Where its numbers are. Not by array.ctypes, which imports a module at every use: a memory may be emptied while
    the interpreter ends, when nothing can be imported any more."""
    return array.__array_interface__["data"][0]


class Table:
    """The pages of each row: absolute page number P of row b is at array[b, P & (slots - 1)], as an address.

    Row b holds the pages first[b] to stop[b] - 1. slots is a power of two.
    """

    __slots__ = ("address", "array", "first", "slots", "stop")

    def __init__(self, array: np.ndarray, first: np.ndarray, stop: np.ndarray) -> None:
        self.array, self.first, self.stop = array, first, stop
        self.address = address_of(array)
        self.slots = array.shape[1]

    @classmethod
    def empty(cls, batch: int, slots: int = 1) -> Table:
        nothing = np.zeros(batch, dtype=np.int64)
        return cls(np.zeros((batch, slots), dtype=np.int64), nothing, nothing.copy())

    @property
    def pages(self) -> int:
        """How many there are; one that several rows share counts once."""
        return len(set(self.all()))

    def of_row(self, row: int, start: int | None = None) -> np.ndarray:
        """The addresses of a row's pages, in order."""
        start = int(self.first[row]) if start is None else start
        return self.array[row, np.arange(start, int(self.stop[row])) & (self.slots - 1)]

    def all(self) -> list[int]:
        """Every page, as often as it stands in the table."""
        rows, numbers = _pairs(self.first, self.stop)
        return self.array[rows, numbers & (self.slots - 1)].tolist()

    def at(self, rows: np.ndarray, numbers: np.ndarray) -> list[int]:
        return self.array[rows, numbers & (self.slots - 1)].tolist()

    def put(self, rows: np.ndarray, numbers: np.ndarray, addresses: list[int]) -> None:
        self.array[rows, numbers & (self.slots - 1)] = addresses

    def with_room(self, stop: np.ndarray) -> Table:
        """This table, or a wider one, in which every row has a slot for each page below stop."""
        longest = int((np.maximum(stop, self.stop) - self.first).max())
        if longest <= self.slots:
            return self
        wider = Table.empty(len(self.array), 1 << (longest - 1).bit_length())
        rows, numbers = _pairs(self.first, self.stop)
        wider.array[rows, numbers & (wider.slots - 1)] = self.array[rows, numbers & (self.slots - 1)]
        wider.first[:], wider.stop[:] = self.first, self.stop
        return wider

    def missing(self, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows, page numbers) of what has to be hooked for each row b to reach stop[b]."""
        return _pairs(self.stop, stop)

    def cut_below(self, first: np.ndarray) -> list[int]:
        """Unhook the pages before first[b]; they are returned."""
        first = np.clip(first, self.first, self.stop)
        gone = self.at(*_pairs(self.first, first))
        self.first[:] = first
        return gone

    def cut_from(self, stop: np.ndarray) -> list[int]:
        """Unhook the pages from stop[b] on; they are returned."""
        stop = np.clip(stop, self.first, self.stop)
        gone = self.at(*_pairs(stop, self.stop))
        self.stop[:] = stop
        return gone

    def copy(self) -> Table:
        return Table(self.array.copy(), self.first.copy(), self.stop.copy())

    def of_rows(self, index: np.ndarray) -> Table:
        """The table with its rows in another order, some more than once, some not at all."""
        return Table(self.array[index], self.first[index], self.stop[index])


def pages_for(tokens: np.ndarray) -> np.ndarray:
    return (tokens + (PAGE - 1)) // PAGE


def _pairs(start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row, number) for every number from start[row] to stop[row] - 1."""
    counts = np.maximum(stop - start, 0)
    rows = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return rows, np.arange(len(rows)) - before[rows] + start[rows]
