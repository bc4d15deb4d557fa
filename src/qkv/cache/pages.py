"""Pages: their byte layout, the pool that allocates them, and the table that maps rows to pages.

A page stores 64 tokens of one batch row for all key/value heads. It is heads × slab, and every part of a head's slab is
64-byte aligned:

    header  64 bytes; in byte 0, bit 0 is set when a value in the slab may be NaN or infinite, and bit 1 when the
            magnitude of a finite one may be 2^96 or more
    scales  formats with scales only: [groups][64 tokens] for the keys, then for the values
    keys    [⌈elements / n⌉][64 tokens][n], n = the format's pair: 64 tokens of one coordinate are contiguous
    values  [64 tokens][elements rounded up to a multiple of 16], the rest zero

An element is a number, except in int4, where it is two.

A page of latents, keys whose first coordinates are the values, has neither keys nor their scales: its values are the
whole keys. `StoredTokens` has the same: keys without elements, and what is stored of a token as its value.

The native kernels read and write the same bytes; this module does it with torch alone.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..cost.price import readable_bytes
from ..cost.sizes import PAGE
from ..errors import OptionTypeError, complaint
from ..ops.kernels import advise_huge_pages, populate_memory
from ..shapes import Float, Int
from .formats import StorageFormat, storage_format

_ALIGNMENT = 64
MOST_TOKENS = 1 << 48  # of a row, a window or its sinks
_LATENT_CODE = 256  # Storage::kLatentCode in native/src/formats.h
_LARGE_VALUE = 2.0**96  # a sum of 2^32 smaller numbers is finite


class StoredTokens(NamedTuple):
    """Tokens in the storage format: the elements of key and value (heads, tokens, …), and with scales those
    (heads, tokens, groups)."""

    key: Tensor
    value: Tensor
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> StoredTokens:
        """The same change to each tensor."""
        scales = (None if scale is None else change(scale) for scale in self[2:])
        return StoredTokens(change(self.key), change(self.value), *scales)


class PageLayout(NamedTuple):
    """Sizes and offsets within a page; created by `page_layout`."""

    format: StorageFormat
    heads: int
    width: int
    value_width: int
    row: int  # elements of a value, padding included
    value_scales_at: int
    keys_at: int
    values_at: int
    head_bytes: int
    page_bytes: int
    latent: bool = False

    @property
    def row_width(self) -> int:
        """Coordinates of what is stored as a value."""
        return self.width if self.latent else self.value_width

    @property
    def native_args(self) -> tuple[int, int, int, int]:
        """The layout for the native functions: storage format, heads, width, value_width."""
        code = (self.format.native_code or 0) + self.latent * _LATENT_CODE
        return code, self.heads, self.width, self.value_width


def page_layout(dtype: torch.dtype | str, heads: int, width: int, value_width: int, latent: bool = False) -> PageLayout:
    """The layout of a page.

    >>> page_layout(torch.bfloat16, heads=2, width=5, value_width=17).page_bytes
    9856
    >>> page_layout(torch.bfloat16, heads=1, width=576, value_width=512, latent=True).page_bytes == 64 + 64 * 576 * 2
    True
    """
    of = storage_format(dtype)
    values, kept = of.of_values, width if latent else value_width
    row = -(-values.elements(kept) // 16) * 16
    value_scales_at = _ALIGNMENT + (0 if latent else PAGE * of.scales_of(width) * of.scales.itemsize)
    keys_at = value_scales_at + PAGE * values.scales_of(kept) * values.scales.itemsize
    values_at = keys_at + (0 if latent else of.element.itemsize * PAGE * of.pair * -(-of.elements(width) // of.pair))
    head_bytes = values_at + values.element.itemsize * PAGE * row
    offsets = value_scales_at, keys_at, values_at
    return PageLayout(of, heads, width, value_width, row, *offsets, head_bytes, heads * head_bytes, latent)


def to_storage(layout: PageLayout, key: Float[Tensor, "h n d"], value: Float[Tensor, "h n dv"]) -> StoredTokens:
    """Convert tokens to the storage format."""
    if layout.latent:
        row, scale = layout.format.store(key)
        return StoredTokens(row[..., :0], row, None, scale)
    (key, key_scale), (value, value_scale) = layout.format.store(key), layout.format.of_values.store(value)
    return StoredTokens(key, value, key_scale, value_scale)


def from_storage(layout: PageLayout, stored: StoredTokens) -> tuple[Tensor, Tensor]:
    """Convert stored tokens to keys and values."""
    if layout.latent:
        row = layout.format.read(stored.value, stored.value_scale, layout.width)
        return row, row[..., : layout.value_width]
    key = layout.format.read(stored.key, stored.key_scale, layout.width)
    return key, layout.format.of_values.read(stored.value, stored.value_scale, layout.value_width)


def write_page(layout: PageLayout, page: Tensor, slot: int, stored: StoredTokens) -> None:
    """Write tokens into a page (page_bytes,) from `slot` on."""
    count = stored.key.shape[1]
    to = slice(slot, slot + count)
    slabs = page.view(layout.heads, layout.head_bytes)
    parts = _slab_views(layout, slabs)
    key = stored.key
    pair = layout.format.pair
    if key.shape[2] % pair:
        key = torch.nn.functional.pad(key, (0, pair - key.shape[2] % pair))
    if not layout.latent:
        parts.key[:, :, to] = key.view(layout.heads, count, -1, pair).transpose(1, 2)
    elements = stored.value.shape[2]
    parts.value[:, to, :elements] = stored.value
    parts.value[:, to, elements:] = 0
    size = stored.value
    for part, scale in ((parts.key_scale, stored.key_scale), (parts.value_scale, stored.value_scale)):
        if part is not None and scale is not None:
            part[:, :, to] = scale.transpose(1, 2)
    if stored.value_scale is not None:
        size = stored.value_scale.float() * layout.format.of_values.largest
    if slot == 0:
        slabs[:, 0] = 0
    size = size.float().abs().flatten(1)
    finite = size.isfinite()
    slabs[:, 0] |= (~finite).any(1).to(torch.uint8) + 2 * (finite & (size >= _LARGE_VALUE)).any(1).to(torch.uint8)


def read_pages(layout: PageLayout, pages: Tensor) -> StoredTokens:
    """Read the count × 64 tokens of consecutive pages (count, page_bytes)."""
    count = pages.shape[0]
    parts = _slab_views(layout, pages.view(count * layout.heads, layout.head_bytes))

    def in_order(part: Tensor) -> Tensor:
        return part.unflatten(0, (count, layout.heads)).transpose(0, 1).flatten(1, 2)

    value = in_order(parts.value)[..., : layout.format.of_values.elements(layout.row_width)]
    if layout.latent:
        key = value[..., :0]
    else:
        key = in_order(parts.key.transpose(1, 2).flatten(2))[..., : layout.format.elements(layout.width)]
    return StoredTokens(key, value, *(None if scale is None else in_order(scale.mT) for scale in parts[2:]))


def clear_unused(layout: PageLayout, pages: Tensor, counts: np.ndarray) -> None:
    """Zero what pages (n, page_bytes) have besides their first counts[i] tokens: what was in memory before."""
    slabs = pages.view(-1, layout.head_bytes)
    slabs[:, 1:_ALIGNMENT] = 0
    for page in np.flatnonzero(counts < PAGE).tolist():
        rest = slice(int(counts[page]), None)
        parts = _slab_views(layout, slabs[page * layout.heads : (page + 1) * layout.heads])
        parts.value[:, rest] = 0
        for part in (parts.key, parts.key_scale, parts.value_scale):
            if part is not None and part.numel():
                part[:, :, rest] = 0


def _slab_views(layout: PageLayout, slabs: Tensor) -> StoredTokens:
    """Views of slabs (s, head_bytes): keys (s, ⌈elements/n⌉, 64, n), values (s, 64, row), scales (s, groups, 64)."""
    of, values = layout.format, layout.format.of_values

    def scales(of: StorageFormat, start: int, stop: int) -> Tensor | None:
        return slabs[:, start:stop].view(of.scales).unflatten(1, (-1, PAGE)) if of.has_scales and stop > start else None

    keys = slabs[:, layout.keys_at : layout.values_at].view(of.element)
    return StoredTokens(
        keys if layout.latent else keys.unflatten(1, (-1, PAGE, of.pair)),
        slabs[:, layout.values_at :].view(values.element).unflatten(1, (PAGE, layout.row)),
        scales(of, _ALIGNMENT, layout.value_scales_at),
        scales(values, layout.value_scales_at, layout.keys_at),
    )


_HUGE_PAGE = 2 << 20
_MIN_HUGE_BYTES = 1 << 20
_MAX_GROWTH_BYTES = 64 << 20
_ADDRESS = itemgetter(0)


class LockOwner:
    """Owns a `lock` that guards changes. A forked child process gets a new lock.

    >>> shared = LockOwner()
    >>> with shared.lock:
    ...     pass
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _LOCK_OWNERS.add(self)


_LOCK_OWNERS: weakref.WeakSet[LockOwner] = weakref.WeakSet()


def _renew_locks_in_child() -> None:
    for one in list(_LOCK_OWNERS):
        one.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks_in_child)


class TokenStore:
    """What a `KVCache` and a `LinearState` have in common: sizes, lengths, and copies that are forks."""

    _sizes: tuple[int, int, int]
    sinks = 0  # tokens in front of a window

    @property
    def row_lengths(self) -> np.ndarray:
        """`lengths` as the array that the object itself uses: callers copy it or hold the lock."""
        raise NotImplementedError

    @property
    def stored_lengths(self) -> np.ndarray:
        """The slots of each row that are in use: `row_lengths`, without what was evicted from between."""
        return self.row_lengths

    def slot_positions(self, slots: int) -> Int[Tensor, "batch heads slots"] | None:
        """The positions of the first slots, tokens that come next included; None if slots are positions."""
        return None

    def fork(self) -> Self:
        raise NotImplementedError

    @property
    def batch(self) -> int:
        return len(self.row_lengths)

    @property
    def heads(self) -> int:
        return self._sizes[0]

    @property
    def width(self) -> int:
        return self._sizes[1]

    @property
    def value_width(self) -> int:
        return self._sizes[2]

    @property
    def length(self) -> int:
        """Tokens of the longest row, including those that have left a window."""
        return int(self.row_lengths.max())

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row, int64 (batch,), including those that have left a window; a copy."""
        return torch.from_numpy(self.row_lengths.copy())

    @property
    def sizes_text(self) -> str:
        widths = f"{self.width}" if self.width == self.value_width else f"{self.width}/{self.value_width}"
        return f"{self.batch} x {self.heads} heads x {self.length} tokens, width {widths}"

    def __copy__(self) -> Self:
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.fork()

    def __reduce__(self) -> Any:
        name = type(self).__name__
        hint = f"save(path) and {name}.load write and read safetensors"
        raise OptionTypeError(complaint(name, "pickled", "one that is saved", hint))


class PagePool(LockOwner):
    """Allocates pages of one size for a cache and its forks. Callers hold `lock`.

    >>> pool = PagePool(page_bytes=128)
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
        self.shared: dict[int, int] = {}  # number of owners, for pages with more than one
        self._free: list[int] = []
        self._chunks: list[tuple[int, Tensor]] = []  # address and bytes, by address
        self._of_file: dict[int, list[int]] = {}  # pages of a file → where its chunk starts, and how many are in use
        # Pages of garbage-collected caches; collection may happen in the middle of any operation.
        self._collected: deque[tuple[PageTable, list[int]]] = deque()

    def take(self, count: int, *, prompt: bool = False) -> list[int]:
        """Return the addresses of `count` pages with one owner each; raise MemoryError if memory is exhausted.

        prompt: Many tokens are appended at once, so allocating huge pages of the operating system is worth the time.
        """
        if count <= 0:
            return []
        self._release_collected()
        if len(self._free) < count:
            self._grow(count - len(self._free), prompt)
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        return taken

    def next(self, count: int) -> list[int]:
        """The free pages that `take` returns next."""
        if len(self._free) < count:
            self._grow(count - len(self._free), False)
        return self._free[-count:]

    def share(self, addresses: Sequence[int]) -> None:
        """Add an owner to each page."""
        self._release_collected()  # of forks that were dropped before they appended anything
        shared = self.shared
        for address in addresses:
            shared[address] = shared.get(address, 1) + 1

    def release(self, addresses: Sequence[int]) -> None:
        """Remove an owner from each page and free those without one."""
        self._free.extend(self.drop_owner(addresses))

    def drop_owner(self, addresses: Sequence[int]) -> list[int]:
        """Remove an owner from each page and return those without one; they belong to the caller."""
        shared = self.shared
        if not shared:
            return list(addresses)
        unowned = []
        for address in addresses:
            owners = shared.get(address, 1)
            if owners == 1:
                unowned.append(address)
            elif owners == 2:
                del shared[address]
                if address in self._of_file:
                    self._drop_file_page(address)
            else:
                shared[address] = owners - 1
        return unowned

    def add_file(self, pages: Tensor) -> list[int]:
        """Add the pages (count, page_bytes) of a file and return their addresses. The file is an owner of each, so that
        no cache writes to them; `share` adds the caches. A page that none has any more is forgotten."""
        start = pages.data_ptr()
        addresses = list(range(start, start + pages.nbytes, self.page_bytes))
        insort(self._chunks, (start, pages), key=_ADDRESS)
        chunk = [start, len(addresses)]
        self._of_file.update((address, chunk) for address in addresses)
        return addresses

    def _drop_file_page(self, address: int) -> None:
        chunk = self._of_file.pop(address)
        chunk[1] -= 1
        if not chunk[1]:
            del self._chunks[bisect_right(self._chunks, chunk[0], key=_ADDRESS) - 1]

    def _release_collected(self) -> None:
        while self._collected:
            table, pages = self._collected.popleft()
            self.release(table.all() + pages)

    def release_later(self, table: PageTable, pages: list[int]) -> None:
        """`release` for a garbage-collected cache: callable at any time, from any thread, without the lock."""
        self._collected.append((table, pages))

    def copy_page(self, source: int, target: int) -> None:
        """Copy the bytes of one page into another."""
        ctypes.memmove(target, source, self.page_bytes)

    def page(self, address: int) -> Tensor:
        """The bytes of a page."""
        start, chunk = self._chunks[bisect_right(self._chunks, address, key=_ADDRESS) - 1]
        return chunk[(address - start) // self.page_bytes]

    def gather(self, addresses: Sequence[int]) -> Tensor:
        """Copy pages into one tensor (pages, page_bytes)."""
        requested = np.asarray(addresses, dtype=np.int64)
        starts = np.array([start for start, _ in self._chunks], dtype=np.int64)
        chunks = np.searchsorted(starts, requested, side="right") - 1
        pages = torch.empty(len(requested), self.page_bytes, dtype=torch.uint8, device="cpu")
        for number in np.unique(chunks):
            of_chunk = np.flatnonzero(chunks == number)
            start, chunk = self._chunks[number]
            rows = (requested[of_chunk] - start) // self.page_bytes
            pages[torch.from_numpy(of_chunk)] = chunk[torch.from_numpy(rows)]
        return pages

    def _grow(self, count: int, prompt: bool) -> None:
        """Allocate a chunk of at least `count` pages, doubling the pool up to about 64 MiB per chunk."""
        total = max(count, min(self.pages, _MAX_GROWTH_BYTES // self.page_bytes))
        huge = prompt and count * self.page_bytes >= _MIN_HUGE_BYTES
        if huge:  # use the last huge page entirely
            total = max(total, -(-count * self.page_bytes // _HUGE_PAGE) * _HUGE_PAGE // self.page_bytes)
        try:
            start, chunk = _allocate_chunk(total, self.page_bytes, huge)
        except MemoryError:
            if total == count:
                raise
            total = count
            start, chunk = _allocate_chunk(total, self.page_bytes, False)
        if prompt and not huge:
            populate_memory(start, count * self.page_bytes)  # at once instead of page by page as tokens are written
        insort(self._chunks, (start, chunk), key=_ADDRESS)
        self.pages += total
        # `take` takes from the end, so the lowest addresses come first.
        self._free[:0] = range(start + (total - 1) * self.page_bytes, start - 1, -self.page_bytes)


def _allocate_chunk(pages: int, page_bytes: int, huge: bool) -> tuple[int, Tensor]:
    """Allocate an aligned chunk; return its address and its bytes (pages, page_bytes).

    huge: Ask for huge pages, which the operating system clears at once and may have to compact memory for.
    """
    size = pages * page_bytes
    align = _HUGE_PAGE if huge else _ALIGNMENT
    padded = -(-size // align) * align
    try:
        block = torch.empty(padded + align - 1, dtype=torch.uint8, device="cpu")
    except (RuntimeError, MemoryError) as error:  # torch's allocator raises RuntimeError
        raise MemoryError(
            f"cache: no memory for {pages} more pages of {page_bytes} bytes, {size} bytes ({readable_bytes(size)})"
        ) from error
    skip = -block.data_ptr() % align
    if align == _HUGE_PAGE:
        advise_huge_pages(block.data_ptr() + skip, padded)
    return block.data_ptr() + skip, block[skip : skip + size].view(pages, page_bytes)


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """An uninitialized tensor; MemoryError if there is no memory, for which torch raises RuntimeError."""
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:
        size = math.prod(shape) * dtype.itemsize
        raise MemoryError(f"no memory for a tensor {shape}, {size} bytes ({readable_bytes(size)})") from error


def address_of(array: np.ndarray) -> int:
    """The address of an array's data, without array.ctypes: that imports a module, which fails at interpreter exit."""
    return array.__array_interface__["data"][0]


class PageTable:
    """The pages of each row: array[b, P & (slots - 1)] is the address of page number P of row b.

    Row b has the pages first[b] to stop[b] - 1. slots is a power of two.
    """

    __slots__ = ("address", "array", "first", "slots", "stop")

    def __init__(self, array: np.ndarray, first: np.ndarray, stop: np.ndarray) -> None:
        self.array, self.first, self.stop = array, first, stop
        self.address = address_of(array)
        self.slots = array.shape[1]

    @classmethod
    def empty(cls, batch: int, slots: int = 1) -> PageTable:
        zeros = np.zeros(batch, dtype=np.int64)
        return cls(np.zeros((batch, slots), dtype=np.int64), zeros, zeros.copy())

    @property
    def pages(self) -> int:
        """The number of distinct pages."""
        return len(set(self.all()))

    def row_pages(self, row: int, start: int | None = None) -> np.ndarray:
        """The addresses of a row's pages, in order."""
        start = int(self.first[row]) if start is None else start
        return self.array[row, np.arange(start, int(self.stop[row])) & (self.slots - 1)]

    def all(self) -> list[int]:
        """Every page, repeated for each row that has it."""
        rows, numbers = row_ranges(self.first, self.stop)
        return self.array[rows, numbers & (self.slots - 1)].tolist()

    def at(self, rows: np.ndarray, numbers: np.ndarray) -> list[int]:
        return self.array[rows, numbers & (self.slots - 1)].tolist()

    def put(self, rows: np.ndarray, numbers: np.ndarray, addresses: list[int]) -> None:
        self.array[rows, numbers & (self.slots - 1)] = addresses

    def with_slots_for(self, stop: np.ndarray) -> PageTable:
        """This table, or a wider copy, with a slot for each page below stop[b]."""
        longest = int((np.maximum(stop, self.stop) - self.first).max())
        return self if longest <= self.slots else self._widened(1 << (longest - 1).bit_length())

    def with_rows_of(self, other: PageTable) -> PageTable:
        """A table of these rows, then those of another table."""
        slots = max(self.slots, other.slots)
        parts = [table if table.slots == slots else table._widened(slots) for table in (self, other)]
        return PageTable(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("array", "first", "stop"))
        )

    def _widened(self, slots: int) -> PageTable:
        wider = PageTable.empty(len(self.array), slots)
        rows, numbers = row_ranges(self.first, self.stop)
        wider.array[rows, numbers & (wider.slots - 1)] = self.array[rows, numbers & (self.slots - 1)]
        wider.first[:], wider.stop[:] = self.first, self.stop
        return wider

    def missing_pages(self, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows, page numbers) of the pages that rows need to reach stop[b]."""
        return row_ranges(self.stop, stop)

    def cut_below(self, first: np.ndarray) -> list[int]:
        """Remove and return the pages before first[b]."""
        first = np.clip(first, self.first, self.stop)
        removed = self.at(*row_ranges(self.first, first))
        self.first[:] = first
        return removed

    def cut_from(self, stop: np.ndarray) -> list[int]:
        """Remove and return the pages from stop[b] on."""
        stop = np.clip(stop, self.first, self.stop)
        removed = self.at(*row_ranges(stop, self.stop))
        self.stop[:] = stop
        return removed

    def copy(self) -> PageTable:
        return PageTable(self.array.copy(), self.first.copy(), self.stop.copy())

    def take_rows(self, index: np.ndarray) -> PageTable:
        """A table of the given rows, in that order."""
        return PageTable(self.array[index], self.first[index], self.stop[index])


def pages_for(tokens: np.ndarray) -> np.ndarray:
    return (tokens + (PAGE - 1)) // PAGE


def row_ranges(start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row, number) for every number from start[row] to stop[row] - 1."""
    counts = np.maximum(stop - start, 0)
    rows = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return rows, np.arange(len(rows)) - before[rows] + start[rows]
