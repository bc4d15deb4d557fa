"""KVCache: the keys and values of earlier tokens, in pages that never move."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_lengths, check_new_tokens, check_rows, check_size
from ..ops.kernels import CODE, memory_append, populate
from ..ops.library import register
from ..shapes import Float
from .pages import (
    PAGE,
    STORAGE,
    Layout,
    Pool,
    Stored,
    Table,
    address_of,
    layout_of,
    numbers,
    pages_for,
    read,
    rounded,
    write,
)

_NO_LIMIT = 1 << 62
_SLOTS = 64  # pages a row that the first table has room for: 4,096 tokens


Padding = Literal["right", "left"]


class KVCache:
    """Keys and values of the past, for `qkv.decode`: append-only, in pages of 64 tokens.

    batch, heads, width, value_width: the sizes of what is appended; heads are key/value heads.
    capacity: cache for so many tokens a row is set aside at once, and more are refused. None grows.
    window: a ring. A query at position p sees the keys p − window + 1 … p, and pages behind that are used again.
    dtype: what tokens are rounded to when they are appended: float32, float16, bfloat16, or int8 with a scale for
    each token and head. Whatever a model computes in can be appended.

    >>> import torch, qkv
    >>> cache = KVCache(batch=1, heads=2, width=4)
    >>> prompt = torch.randn(1, 2, 5, 4)
    >>> out = qkv.decode(prompt, prompt, prompt, cache)
    >>> new = torch.randn(1, 2, 1, 4)
    >>> out = qkv.decode(new, new, new, cache)
    >>> cache.length
    6
    >>> whole = torch.cat([prompt, new], dim=2)
    >>> torch.allclose(out, qkv.attention(whole, whole, whole, mask=qkv.Causal())[:, :, 5:], atol=1e-6)
    True

    Growing, `fork`, `reorder`, `crop` and the ring change a table of pages; the past is never copied, but for the one
    page of a row that is shared and about to be written to. Pages are in main memory. An error leaves the cache as
    it was. Each call holds the lock of the cache, which its forks share: threads may use them together, and two
    that append to the same one take turns in no fixed order. A deep copy is a fork.
    """

    def __init__(
        self,
        batch: int,
        heads: int,
        width: int,
        *,
        value_width: int | None = None,
        capacity: int | None = None,
        window: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        batch, heads, width = check_size("batch", batch), check_size("heads", heads), check_size("width", width)
        value_width = width if value_width is None else check_size("value_width", value_width)
        capacity = None if capacity is None else check_size("capacity", capacity)
        window = None if window is None else check_size("window", window)
        if not isinstance(dtype, torch.dtype) or dtype not in STORAGE:
            hint = "this is how tokens are kept; queries may have another dtype"
            raise DtypeError(complaint("dtype", dtype, "torch.float32, float16, bfloat16 or int8", hint))
        layout = layout_of(dtype, heads, width, value_width)
        if batch * layout.page_bytes * (1 + (capacity or 0) // PAGE) >= 1 << 62:
            given = f"batch {batch}, heads {heads}, width {width}, capacity {capacity}"
            raise ShapeError(complaint("batch, heads, width, capacity", given, "sizes whose bytes fit into 62 bits"))
        self._setup(layout, Pool(layout.page_bytes), batch, capacity, window)
        if capacity is not None:
            self._set_aside()

    @property
    def batch(self) -> int:
        return len(self._lengths)

    @property
    def heads(self) -> int:
        return self._layout.heads

    @property
    def width(self) -> int:
        return self._layout.width

    @property
    def value_width(self) -> int:
        return self._layout.value_width

    @property
    def capacity(self) -> int | None:
        return self._capacity

    @property
    def window(self) -> int | None:
        return self._window

    @property
    def dtype(self) -> torch.dtype:
        """The storage format."""
        return self._layout.dtype

    @property
    def length(self) -> int:
        """How many tokens the longest row was given; those that a ring has let go count."""
        return int(self._lengths.max())

    @property
    def lengths(self) -> Tensor:
        """The same for each row, int64 (batch,); a copy."""
        return torch.from_numpy(self._lengths.copy())

    @property
    def nbytes(self) -> int:
        """The bytes of the pages that hold tokens of this cache, shared ones too, and of those set aside."""
        with self._pool.lock:
            return (self._table.pages + len(self._spare)) * self._layout.page_bytes

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        widths = f"{self.width}" if self.width == self.value_width else f"{self.width}/{self.value_width}"
        limits = "".join(
            f", {name}={limit}" for name, limit in (("capacity", self.capacity), ("window", self.window)) if limit
        )
        return f"KVCache({self.batch} x {self.heads} heads x {self.length} tokens, width {widths}, {kind}{limits})"

    def append(
        self,
        key: Float[Tensor, "batch heads n width"],
        value: Float[Tensor, "batch heads n value_width"],
        lengths: Any = None,
        padding: Padding = "right",
    ) -> None:
        """Remember n more tokens; lengths[b] of them for row b, the first ones, or the last with padding="left".

        >>> import torch
        >>> cache = KVCache(batch=2, heads=1, width=2)
        >>> x = torch.ones(2, 1, 3, 2)
        >>> cache.append(x, x, lengths=[3, 1])
        >>> cache.lengths
        tensor([3, 1])
        """
        with self._pool.lock:
            check_new_tokens(self, key, value)
            counts, left = check_lengths(lengths, padding, self.batch, key.shape[2])
            if key.shape[2] == 0 or (counts is not None and not counts.any()):
                return
            self._reserve(key.shape[2], counts)
            try:
                self._write(key, value, counts, left)
            except BaseException:
                self._unreserve()
                raise
            self._publish(key, counts)

    def crop(self, n: int) -> None:
        """Keep the first n tokens of each row; shorter rows stay as they are.

        A ring can go back as long as everything that a query at position n may see is still there.

        >>> import torch
        >>> cache = KVCache(batch=1, heads=1, width=2)
        >>> cache.append(torch.ones(1, 1, 5, 2), torch.ones(1, 1, 5, 2))
        >>> cache.crop(3)
        >>> cache.length
        3
        """
        n = check_size("n", n, least=0)
        with self._pool.lock:
            if n > self.length:
                hint = "crop keeps the first n tokens, and cannot make more"
                raise OptionError(complaint("n", n, f"at most {self.length}, the cache's length", hint))
            self._rewind(np.minimum(self._lengths, n))

    def reorder(self, index: Any) -> None:
        """Rows become rows[index], as in beam search: some more than once, some not at all, any number of them.

        >>> import torch
        >>> cache = KVCache(batch=2, heads=1, width=2)
        >>> x = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1).expand(2, 1, 1, 2)
        >>> cache.append(x, x)
        >>> cache.reorder([1, 1, 0])
        >>> cache.tensors()[0][:, 0, 0, 0]
        tensor([2., 2., 1.])
        """
        with self._pool.lock:
            rows = check_rows(index, self.batch)
            times = np.bincount(rows, minlength=self.batch)
            old = self._table
            table, lengths = old.of_rows(rows), self._lengths[rows]
            for row in np.flatnonzero(times > 1).tolist():
                for _ in range(times[row] - 1):
                    self._pool.share(old.of_row(row).tolist())
            gone = [page for row in np.flatnonzero(times == 0).tolist() for page in old.of_row(row).tolist()]
            self._set_rows(lengths, table)
            self._plan = None
            self._give_back(gone)

    def fork(self) -> KVCache:
        """An independent cache with the same tokens. All pages are shared until one of the two writes to one.

        >>> import torch
        >>> cache = KVCache(batch=1, heads=1, width=2)
        >>> x = torch.ones(1, 1, 3, 2)
        >>> cache.append(x, x)
        >>> other = cache.fork()
        >>> other.append(x, x)
        >>> cache.length, other.length
        (3, 6)
        """
        with self._pool.lock:
            other = object.__new__(type(self))
            other._setup(self._layout, self._pool, self.batch, self._capacity, self._window)
            self._pool.share(self._table.all())
            other._set_rows(self._lengths, self._table.copy())
            other._seen, other._holds_all = self._seen, self._holds_all
            self._forget_ready()
            return other

    def reset(self) -> None:
        """Forget everything; the pages are free for new tokens, which may have another dtype."""
        with self._pool.lock:
            gone = self._table.all()
            self._set_rows(np.zeros_like(self._lengths), Table.empty(self.batch))
            self._seen = self._plan = None
            self._give_back(gone)

    def tensors(self) -> tuple[Float[Tensor, "b h length d"], Float[Tensor, "b h length dv"]]:
        """Keys and values as tensors, zeros where a row holds nothing: a copy, to look at.

        float16 and bfloat16 caches give their own dtype, the others float32.
        """
        with self._pool.lock:
            dtype = torch.float32 if self.dtype is torch.int8 else self.dtype
            shape = self.batch, self.heads, self.length
            key = torch.zeros(*shape, self.width, dtype=dtype, device="cpu")
            value = torch.zeros(*shape, self.value_width, dtype=dtype, device="cpu")
            for row in range(self.batch):
                start, (row_key, row_value) = self._held(row)
                stop = int(self._lengths[row])
                key[row, :, start:stop], value[row, :, start:stop] = row_key, row_value
            return key, value

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a safetensors file, so that there is either the old file or the whole new one."""
        from .files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KVCache:
        """A cache from a file of `save`. The file is checked before anything of its size is asked for."""
        from .files import load

        return load(cls, path)

    def __copy__(self) -> KVCache:
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        return self.fork()

    def __reduce__(self) -> Any:
        hint = "cache.save(path) and KVCache.load(path) write and read safetensors"
        raise OptionTypeError(complaint("KVCache", "a request to pickle it", "no pickles", hint))

    # `_lengths` alone says which tokens the cache holds. It is written last, in one operation, so that an interrupted
    # append has no effect: reserve, write, publish. Callers of the methods below hold the pool's lock and have checked
    # their arguments.

    def _setup(self, layout: Layout, pool: Pool, batch: int, capacity: int | None, window: int | None) -> None:
        self._layout, self._pool, self._capacity, self._window = layout, pool, capacity, window
        self._spare: list[int] = []  # pages set aside by capacity, of `_quota` in all
        self._quota = 0
        self._number = register(self)
        self._holds_all = False  # a ring that lets nothing go until it is told to
        self._seen: tuple[torch.dtype, torch.device] | None = None  # of the first append
        self._plan: Any = None  # decode's: the last call that it checked; true while batch and `_seen` stay
        self._set_rows(np.zeros(batch, dtype=np.int64), Table.empty(batch, _SLOTS))

    def __del__(self) -> None:
        if hasattr(self, "_table"):
            self._pool.leave(self._table, self._spare)

    def _set_rows(self, lengths: np.ndarray, table: Table) -> None:
        """New rows. The handle, [number, lengths...], is the tensor that stands for the cache in a graph. It is a copy
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
        """Hook the pages that n (or counts[b]) more tokens need, each with this cache as its only owner."""
        lengths, pool = self._lengths, self._pool
        if counts is None and (self._hook_one_more(int(lengths[0]) + n) if self._ready else self._hook_first(n)):
            return
        longest = int(lengths.max()) + n if counts is None else int((lengths + counts).max())
        if self._capacity is not None and longest > self._capacity:
            wanted = f"at most {self._capacity}: the cache's capacity"
            hint = "crop or reset it, or make one with capacity=None, which grows"
            raise ShapeError(complaint("key", f"{longest} tokens in all", wanted, hint))
        if len(lengths) * (longest + PAGE) * self._layout.page_bytes >= PAGE * _NO_LIMIT:
            raise ShapeError(complaint("key", f"{longest} tokens in all", "a cache whose bytes fit into 62 bits"))
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


def check_cache(cache: object) -> KVCache:
    if isinstance(cache, KVCache):
        return cache
    given, hint = type(cache).__name__, ""
    if type(cache).__module__ == "qkv.parallel.cache":  # by name, since that package imports this one
        given, hint = f"a qkv.parallel.{given}", "qkv.parallel.decode attends to it"
    raise OptionTypeError(complaint("cache", given, "a qkv.KVCache or a qkv.LinearState", hint))
