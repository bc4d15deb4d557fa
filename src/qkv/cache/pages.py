"""The bytes of a page: 64 tokens of one batch row, for all key/value heads.

A page is heads × slab. The slab of a head, every part 64-byte aligned:

    header  64 bytes; byte 0 is 1 when a value in the slab may be NaN or infinite
    scales  int8 only: 64 float32 for the keys, then 64 for the values
    keys    [⌈width / n⌉][64 tokens][n], n = 2 for bfloat16 and 1 otherwise: a run of 64 tokens for each coordinate
    values  [64 tokens][value_width rounded up to a multiple of 16], the rest zero

The native kernels read and write the same bytes; what is here does it with torch alone.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..cost.price import readable_bytes
from ..cost.sizes import PAGE
from ..ops.kernels import advise_huge, populate
from ..shapes import Float, Int

# How the native library numbers what a cache can hold.
STORAGE = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int8: 4}
_LINE = 64


class Stored(NamedTuple):
    """Tokens as they are kept: key (heads, tokens, width), value (heads, tokens, value_width), both in the storage
    dtype; the scales (heads, tokens) are there for int8 only."""

    key: Tensor
    value: Tensor
    key_scale: Tensor | None
    value_scale: Tensor | None


class Layout(NamedTuple):
    """Where everything is in a page; made by `layout_of`."""

    dtype: torch.dtype
    heads: int
    width: int
    value_width: int
    pair: int  # n above
    row: int  # elements of a value with its padding
    keys_at: int
    values_at: int
    head_bytes: int
    page_bytes: int

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """What the native functions want to know of it: storage, heads, width, value_width."""
        return STORAGE[self.dtype], self.heads, self.width, self.value_width


def layout_of(dtype: torch.dtype, heads: int, width: int, value_width: int) -> Layout:
    """The layout of a page.

    >>> layout_of(torch.bfloat16, heads=2, width=5, value_width=17).page_bytes
    9856
    """
    size, pair = dtype.itemsize, 2 if dtype is torch.bfloat16 else 1
    row = -(-value_width // 16) * 16
    keys_at = _LINE + (2 * 4 * PAGE if dtype is torch.int8 else 0)
    values_at = keys_at + size * PAGE * pair * -(-width // pair)
    head_bytes = values_at + size * PAGE * row
    return Layout(dtype, heads, width, value_width, pair, row, keys_at, values_at, head_bytes, heads * head_bytes)


def rounded(layout: Layout, key: Float[Tensor, "h n d"], value: Float[Tensor, "h n dv"]) -> Stored:
    """The tokens in the cache's own format; the only time that they are rounded."""
    if layout.dtype is torch.int8:
        (key, key_scale), (value, value_scale) = quantized(key), quantized(value)
        return Stored(key, value, key_scale, value_scale)
    return Stored(key.to(layout.dtype), value.to(layout.dtype), None, None)


def numbers(stored: Stored) -> tuple[Tensor, Tensor]:
    """Keys and values to compute with: float32 for int8, the storage dtype otherwise."""
    if stored.key_scale is None or stored.value_scale is None:
        return stored.key, stored.value
    return dequantized(stored.key, stored.key_scale), dequantized(stored.value, stored.value_scale)


def write(layout: Layout, page: Tensor, slot: int, stored: Stored) -> None:
    """Put tokens into a page (bytes, page_bytes), from `slot` on."""
    count = stored.key.shape[1]
    to = slice(slot, slot + count)
    slabs = page.view(layout.heads, layout.head_bytes)
    keys, values, scales = _parts(layout, slabs)
    key = stored.key
    if layout.width % layout.pair:
        key = torch.nn.functional.pad(key, (0, layout.pair - layout.width % layout.pair))
    keys[:, :, to] = key.view(layout.heads, count, -1, layout.pair).transpose(1, 2)
    values[:, to, : layout.value_width] = stored.value
    values[:, to, layout.value_width :] = 0
    loose = stored.value
    if scales is not None:
        assert stored.key_scale is not None
        assert stored.value_scale is not None
        scales[:, 0, to], scales[:, 1, to] = stored.key_scale, stored.value_scale
        loose = stored.value_scale
    if slot == 0:
        slabs[:, 0] = 0
    slabs[:, 0] |= (~torch.isfinite(loose)).flatten(1).any(1).to(torch.uint8)


def read(layout: Layout, pages: Tensor) -> Stored:
    """The tokens of pages (count, page_bytes) that follow one another: count × 64 of them."""
    count = pages.shape[0]
    keys, values, scales = _parts(layout, pages.view(count * layout.heads, layout.head_bytes))

    def in_order(part: Tensor) -> Tensor:
        return part.unflatten(0, (count, layout.heads)).transpose(0, 1).flatten(1, 2)

    key = in_order(keys.transpose(1, 2).flatten(2))[..., : layout.width]
    value = in_order(values)[..., : layout.value_width]
    if scales is None:
        return Stored(key, value, None, None)
    return Stored(key, value, in_order(scales[:, 0]), in_order(scales[:, 1]))


def _parts(layout: Layout, slabs: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Views of slabs (s, head_bytes): keys (s, ⌈width/n⌉, 64, n), values (s, 64, row), scales (s, 2, 64)."""
    keys = slabs[:, layout.keys_at : layout.values_at].view(layout.dtype)
    values = slabs[:, layout.values_at :].view(layout.dtype)
    scales = None
    if layout.dtype is torch.int8:
        scales = slabs[:, _LINE : layout.keys_at].view(torch.float32).unflatten(1, (2, PAGE))
    return keys.unflatten(1, (-1, PAGE, layout.pair)), values.unflatten(1, (PAGE, layout.row)), scales


LARGEST = 127


def quantized(x: Float[Tensor, "*tokens width"]) -> tuple[Int[Tensor, "*tokens width"], Float[Tensor, "*tokens"]]:
    """scale = max|x| / 127 and q = x / scale, halves to even; float32 throughout.

    A token of zeros has scale 0. One with a NaN or an infinity has scale NaN: it is NaN as a whole.

    >>> q, scale = quantized(torch.tensor([[254.0, -3.0, 0.0], [0.0, 0.0, 0.0]]))
    >>> q.tolist(), scale.tolist()
    ([[127, -2, 0], [0, 0, 0]], [2.0, 0.0])
    """
    x = x.to(torch.float32)
    scale = x.abs().amax(-1) / LARGEST
    scale = torch.where(torch.isfinite(x).all(-1), scale, torch.nan)
    # What has no finite scale above 0 has no digits: the scale alone says what the token is.
    usable = (scale > 0).unsqueeze(-1)
    digits = torch.where(usable, x / torch.where(usable, scale.unsqueeze(-1), 1.0), 0.0)
    return digits.round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def dequantized(q: Int[Tensor, "*tokens width"], scale: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens width"]:
    """scale · q in float32.

    >>> dequantized(torch.tensor([[127, -2]], dtype=torch.int8), torch.tensor([2.0]))
    tensor([[254.,  -4.]])
    """
    return q.to(torch.float32) * scale.unsqueeze(-1)


_HUGE = 2 << 20
_LARGE = 1 << 20
_CHUNK = 64 << 20
_START = itemgetter(0)


class Locked:
    """Has a `lock`, which is held by whoever changes something. In a forked child it is a new one.

    >>> shared = Locked()
    >>> with shared.lock:
    ...     pass
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _ALL.add(self)


_ALL: weakref.WeakSet[Locked] = weakref.WeakSet()


def _unlock_in_child() -> None:
    for one in list(_ALL):
        one.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


class Pool(Locked):
    """Pages of one size, shared by a cache and its forks. `lock` is held by whoever changes something.

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
        # What caches leave behind when they are collected, which may be in the middle of anything.
        self._left: deque[tuple[Table, list[int]]] = deque()

    def take(self, count: int, *, prompt: bool = False) -> list[int]:
        """The addresses of so many pages, each with one owner; MemoryError when there is no cache for them.

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
        """`release` for a collected cache: at any moment, in any thread, without the lock."""
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
            f"cache: no room for {pages} more pages of {page_bytes} bytes, {size} bytes ({readable_bytes(size)})"
        ) from error
    skip = -block.data_ptr() % align
    if align == _HUGE:
        advise_huge(block.data_ptr() + skip, room)
    return block.data_ptr() + skip, block[skip : skip + size].view(pages, page_bytes)


def address_of(array: np.ndarray) -> int:
    """Where its numbers are. Not by array.ctypes, which imports a module at every use: a cache may be emptied while
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
