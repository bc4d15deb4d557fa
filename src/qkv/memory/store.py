"""The state of a memory: pages, the table of its rows, how long they are, and the order in which that changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, ShapeError, complaint
from ..kernels.dtypes import CODE
from ..kernels.memory import memory_append, populate
from ..kernels.ops import enrolled
from .layout import PAGE, Layout, Stored, numbers, read, rounded, write
from .pages import Pool, Table, address_of, pages_for

_NO_LIMIT = 1 << 62
_SLOTS = 64  # pages a row that the first table has room for: 4,096 tokens


class Store:
    """Rows of tokens in pages of a pool. Whoever calls holds the pool's lock and has checked what it gives.

    `_lengths` is the one place that says what is held. It is written last, in one operation, so that whatever was
    interrupted before did not happen: reserve, write, publish.
    """

    def __init__(self, layout: Layout, pool: Pool, batch: int, capacity: int | None, window: int | None) -> None:
        self._layout, self._pool, self._capacity, self._window = layout, pool, capacity, window
        self._spare: list[int] = []  # pages set aside by capacity, of `_quota` in all
        self._quota = 0
        self._number = enrolled(self)
        self._holds_all = False  # a ring that lets nothing go until it is told to
        self._seen: tuple[torch.dtype, torch.device] | None = None  # of the first append
        self._plan: Any = None  # decode's: the last call that it checked; true while batch and `_seen` stay
        self._set_rows(np.zeros(batch, dtype=np.int64), Table.empty(batch, _SLOTS))

    def __del__(self) -> None:
        if hasattr(self, "_table"):
            self._pool.leave(self._table, self._spare)

    def _set_rows(self, lengths: np.ndarray, table: Table) -> None:
        """New rows. The handle, [number, lengths...], is the tensor that stands for the memory in a graph. It is a copy
        of the lengths, brought up to date after them, since a graph may run a step on a copy of it."""
        self._forget_ready()
        lengths = lengths.copy()
        address, handle = address_of(lengths), getattr(self, "handle", None)
        if handle is None or len(handle) != 1 + len(lengths):
            handle = torch.empty(1 + len(lengths), dtype=torch.int64, device="cpu")
            handle[0] = self._number
        copy = handle.numpy()[1:]
        copy_at = address_of(copy)
        # No call between these, so nothing can come between them.
        self._table, self._lengths, self._lengths_at = table, lengths, address
        self._copy, self._copy_at, self.handle = copy, copy_at, handle
        copy[:] = lengths

    def _forget_ready(self) -> None:
        """Up to `_ready` all rows, which are equally long, can be written to without a look at the table, and a ring
        has nothing to let go before `_full`. 0 is always safe."""
        self._ready = self._full = 0

    def _set_aside(self) -> None:
        """Pages for all tokens that capacity allows; for a ring, for those that it can hold at a time: the window, a
        page that is half behind it and one that is being written."""
        assert self._capacity is not None
        pages = -(-self._capacity // PAGE)
        if self._window is not None:
            pages = min(pages, -(-self._window // PAGE) + 2)
        self._quota = len(self._lengths) * pages
        self._spare = self._pool.take(self._quota, prompt=True)

    def _reserve(self, n: int, counts: np.ndarray | None) -> None:
        """Hook the pages that n (or counts[b]) more tokens need, each with this memory as its only owner."""
        lengths, pool = self._lengths, self._pool
        if counts is None and (self._hook_one_more(int(lengths[0]) + n) if self._ready else self._hook_first(n)):
            return
        longest = int(lengths.max()) + n if counts is None else int((lengths + counts).max())
        if self._capacity is not None and longest > self._capacity:
            wanted = f"at most {self._capacity}: the memory's capacity"
            hint = "crop or reset it, or make one with capacity=None, which grows"
            raise ShapeError(complaint("key", f"{longest} tokens in all", wanted, hint))
        if len(lengths) * (longest + PAGE) * self._layout.page_bytes >= PAGE * _NO_LIMIT:
            raise ShapeError(complaint("key", f"{longest} tokens in all", "a memory whose bytes fit into 62 bits"))
        ends = lengths + (n if counts is None else counts)
        stop = np.maximum(pages_for(ends), self._table.stop)
        half = np.flatnonzero((lengths % PAGE != 0) & (ends > lengths)) if pool.shared else np.empty(0, dtype=np.int64)
        last = lengths[half] // PAGE
        lent = [place for place, page in enumerate(self._table.at(half, last)) if page in pool.shared]
        taken = self._take(int((stop - self._table.stop).sum()) + len(lent), prompt=n >= PAGE)
        rows, places = self._table.missing(stop)
        table = self._table = self._table.with_room(stop)
        if lent:
            old = table.at(half[lent], last[lent])
            for source, target in zip(old, taken, strict=False):
                pool.copied(source, target)
            table.put(half[lent], last[lent], taken[: len(lent)])
            pool.release(old)
        table.put(rows, places, taken[len(lent) :])
        table.stop[:] = stop
        if int(lengths.min()) == int(lengths.max()) and counts is None:
            self._set_ready()

    def _hook_first(self, n: int) -> bool:
        """The common case of a prompt, quickly: all rows are empty, and each gets pages for n tokens."""
        table, pages = self._table, -(-n // PAGE)
        if table.stop.any() or pages > table.slots or (self._capacity is not None and n > self._capacity):
            return False
        taken = self._take(len(self._lengths) * pages, prompt=n >= PAGE)
        table.array[:, :pages] = np.array(taken, dtype=np.int64).reshape(-1, pages)
        table.stop[:] = pages
        self._set_ready()
        return True

    def _hook_one_more(self, end: int) -> bool:
        """The common cases, quickly: rows that are equally long, and need nothing, or each just the next page."""
        if end <= self._ready:
            return True
        table, last = self._table, int(self._table.stop[0])
        most = (last + 1) * PAGE if self._capacity is None else min((last + 1) * PAGE, self._capacity)
        if end > most or last - int(table.first.min()) >= table.slots or (table.stop != last).any():
            return False
        pages = self._take(len(self._lengths))
        table.array[:, last & (table.slots - 1)] = pages
        table.stop += 1
        self._ready = most
        return True

    def _clear_ahead(self, end: int) -> None:
        """After every eighth step: the system clears an eighth of the pages that are opened next, so that no step
        waits for all of it."""
        rows = len(self._lengths)
        if not self._ready or self._window is not None or self._ready == self._capacity:
            return
        try:
            pages = self._spare[-rows:] if len(self._spare) >= rows else self._pool.next(rows)
        except MemoryError:
            return  # this step is done; the one that needs them will say so
        share = self._layout.page_bytes // 8
        for page in pages:
            populate(page + end % PAGE // 8 * share, share)

    def _set_ready(self) -> None:
        """For rows that are equally long and own their last pages."""
        table = self._table
        self._ready = min(int(table.stop.min()) * PAGE, _NO_LIMIT if self._capacity is None else self._capacity)
        self._full = _NO_LIMIT if self._window is None else (int(table.first.min()) + 1) * PAGE + self._window

    def _unreserve(self) -> None:
        """Unhook the pages that hold no token: what they were reserved for did not happen."""
        self._ready = self._full = 0
        self._give_back(self._table.cut_from(pages_for(self._lengths)))

    def _write(self, key: Tensor, value: Tensor, counts: np.ndarray | None, left: bool) -> None:
        """The tokens into the pages that were reserved; nobody sees them yet."""
        key, value = key.detach().resolve_neg(), value.detach().resolve_neg()
        if memory_append is not None and key.is_cpu:
            memory_append(
                *self._layout.numbers,
                self._table.address,
                self._table.slots,
                key.shape,
                self._lengths_at,
                0 if counts is None else counts.ctypes.data,
                left,
                CODE[key.dtype],
                key.data_ptr(),
                key.stride(),
                value.data_ptr(),
                value.stride(),
                torch.get_num_threads(),
            )
            return
        n = key.shape[2]
        for row in range(len(self._lengths)):
            count = n if counts is None else int(counts[row])
            new = slice(n - count, n) if left else slice(0, count)
            stored = rounded(self._layout, key[row, :, new].cpu(), value[row, :, new].cpu())
            self._write_row(row, int(self._lengths[row]), stored)

    def _write_row(self, row: int, position: int, stored: Stored) -> None:
        done, count = 0, stored.key.shape[1]
        for page in self._table.of_row(row, position // PAGE).tolist():
            slot = (position + done) % PAGE
            part = slice(done, min(count, done + PAGE - slot))
            if part.start == part.stop:
                return
            parts = Stored(*(None if tensor is None else tensor[:, part] for tensor in stored))  # pyright: ignore[reportArgumentType]
            write(self._layout, self._pool.page(page), slot, parts)
            done = part.stop

    def _publish(self, key: Tensor, counts: np.ndarray | None) -> None:
        """From here on the new tokens are there."""
        if counts is not None:
            self._ready = self._full = 0
        if self._seen is None:
            self._seen = key.dtype, key.device
        np.add(self._lengths, key.shape[2] if counts is None else counts, out=self._lengths)
        self._copy[:] = self._lengths
        if self._window is not None:
            self._evict()

    def _evict(self) -> None:
        """Unhook the pages wholly behind length − window: no query to come can see them."""
        assert self._window is not None
        if self._holds_all:
            return
        first = (self._lengths - self._window) // PAGE
        if (first > self._table.first).any():
            self._full = 0
            self._give_back(self._table.cut_below(first))
            self._full = (int(self._table.first.min()) + 1) * PAGE + self._window if self._ready else 0

    def _let_go(self) -> None:
        """What a ring that holds everything need no longer hold."""
        if self._holds_all and self._window is not None:
            self._holds_all = False
            self._evict()
            self._holds_all = True

    def _rewind(self, lengths: np.ndarray) -> None:
        """Back to these lengths, none of them longer than now."""
        shortened = self._lengths > lengths
        if not shortened.any():
            return
        table = self._table.copy()
        if self._window is not None:
            # A query at position n sees n - window + 1 and what follows; at position 0 nothing of this.
            least = np.where(table.first > 0, table.first * PAGE + self._window - 1, 0)
            lacking = shortened & (lengths < least) & (lengths > 0)
            if lacking.any():
                wanted = f"at least {int(least[lacking].max())}, or 0"
                hint = f"the ring (window={self._window}) has let go what a query further back could see"
                raise OptionError(complaint("n", int(lengths[lacking].min()), wanted, hint))
        gone = table.cut_from(pages_for(lengths))
        table.first[lengths == 0] = table.stop[lengths == 0] = 0
        self._set_rows(lengths, table)
        self._give_back(gone)
        if not self._pool.shared and int(lengths.min()) == int(lengths.max()):
            self._set_ready()

    def _held(self, row: int) -> tuple[int, tuple[Tensor, Tensor]]:
        """The first position of a row that is held, and its keys and values from there on, to compute with."""
        start, stored = self._stored(row)
        return start, numbers(stored)

    def _stored(self, row: int) -> tuple[int, Stored]:
        start, stop = int(self._table.first[row]) * PAGE, int(self._lengths[row])
        return start, self._read(row, start, stop)

    def _read(self, row: int, start: int, stop: int) -> Stored:
        """Tokens start to stop - 1 of a row, published or not; start is the first of a page."""
        addresses = self._table.of_row(row, start // PAGE)[: -(-(stop - start) // PAGE)]
        stored = read(self._layout, self._pool.gather(addresses.tolist()))
        return Stored(*(None if tensor is None else tensor[:, : stop - start] for tensor in stored))  # pyright: ignore[reportArgumentType]

    def _take(self, count: int, *, prompt: bool = False) -> list[int]:
        """Pages from those set aside first."""
        own = min(count, len(self._spare))
        pages = self._pool.take(count - own, prompt=prompt)
        cut = len(self._spare) - own
        own_pages = self._spare[cut:]
        del self._spare[cut:]
        return own_pages + pages

    def _give_back(self, pages: list[int]) -> None:
        """Pages that this table no longer has: to those set aside, as many as capacity wants, then to the pool."""
        if self._quota:
            pages = self._pool.disowned(pages)
            room = max(0, self._quota - len(self._spare) - self._table.pages)
            self._spare.extend(pages[:room])
            pages = pages[room:]
        self._pool.release(pages)
