"""KVCache: keys and values of earlier tokens, in fixed-size pages that are never moved."""

from __future__ import annotations

import os
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..cost.price import readable_bytes
from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_flags, check_size
from ..notebook import table
from ..ops.kernels import cache_append, cache_attend, populate_memory
from ..ops.library import register_cache
from ..shapes import Float, Int
from .eviction import Policy, Remaining, as_policy, selected
from .formats import StorageFormat
from .inputs import check_crop, check_lengths, check_new_tokens, check_rows, values_of
from .pages import (
    MOST_TOKENS,
    PAGE,
    PageLayout,
    PagePool,
    PageTable,
    StoredTokens,
    TokenStore,
    address_of,
    allocate,
    from_storage,
    page_layout,
    pages_for,
    read_pages,
    to_storage,
    write_page,
)

if TYPE_CHECKING:
    from .prefixes import Prefix

_NO_LIMIT = 1 << 62
_FIRST_SLOTS = 64  # page slots per row in a new table: 4,096 tokens


Padding = Literal["right", "left"]


class Bounds(NamedTuple):
    """A band in absolute positions: starts[b] ≤ j < stops[b] and p + lower ≤ j < p + upper; None: no such bound."""

    starts: Any = None
    stops: Any = None
    lower: int | None = None
    upper: int | None = None


class CacheView(NamedTuple):
    """The pages of a cache, for those who attend to its tokens."""

    layout: PageLayout
    pool: PagePool
    table: PageTable
    window: int | None
    sinks: int

    @property
    def starts(self) -> np.ndarray:
        """The first stored position of each row."""
        return self.table.first * PAGE

    def stored(self, row: int, start: int, stop: int) -> StoredTokens:
        """Tokens start to stop − 1 of a row in the storage format; start is the first position of a page."""
        addresses = self.table.row_pages(row, start // PAGE)[: -(-(stop - start) // PAGE)]
        stored = read_pages(self.layout, self.pool.gather(addresses.tolist()))
        return stored.map(lambda tensor: tensor[:, : stop - start])

    def read(self, rows: slice, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values (rows, heads, tokens, …) of the tokens start to stop − 1."""
        pairs = [from_storage(self.layout, self.stored(row, start, stop)) for row in range(rows.start, rows.stop)]
        key, value = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
        return key, value

    def attend(
        self,
        query: Tensor,
        out: Tensor,
        positions: np.ndarray,
        *,
        counts: np.ndarray | None = None,
        bounds: Bounds | None = None,
        **rules: Any,
    ) -> None:
        """Run the native kernel, which writes `out`.

        Args:
            query: (batch, heads_q, n, width) with counts[b] tokens, or n, from positions[b] on.
            out: (batch, heads_q, n, value_width).
            positions: (batch,).
            counts: (batch,) or None.
            bounds: Which keys a query attends to.
            rules: The other arguments of `cache_attend`, native/src/cache.h.
        """
        assert cache_attend is not None
        if bounds is not None:
            rules |= {name: getattr(bound, "tolist", lambda b=bound: b)() for name, bound in bounds._asdict().items()}
        threads = torch.get_num_threads()
        rules |= {"window": self.window, "sinks": self.sinks, "threads": threads}
        cache_attend(query, out, **self.pages(positions, counts), **rules)

    def pages(self, positions: np.ndarray, counts: np.ndarray | None) -> dict[str, Any]:
        """The pages, and which tokens the call is about, for the native functions."""
        return {
            "layout": self.layout.native_args,
            "table": self.table.address,
            "slots": self.table.slots,
            "positions": positions.tolist(),
            "counts": None if counts is None else counts.tolist(),
        }


class Compacted(NamedTuple):
    """Rows after an eviction, in new pages: what `KVCache.apply` makes visible, or `discard` drops."""

    lengths: np.ndarray
    table: PageTable
    remaining: Remaining
    importance: Tensor | None
    new: list[int]
    unused: list[int]


class KVCache(TokenStore):
    """Keys and values of earlier tokens for `qkv.decode`: append-only, in pages of 64 tokens.

    Growing, `fork`, `reorder`, `crop` and the window only change a table of pages. Stored tokens are not copied, except
    the one page of a row that is shared with a fork and about to be written. Pages are in main memory. If a call
    raises, the cache is unchanged. Each call takes the lock that a cache shares with its forks, so threads may use
    them together; the order of concurrent appends to one cache is not defined. `copy.deepcopy` makes a fork.

    Args:
        batch: Rows of the batch.
        heads: Key/value heads.
        width: Width of a key.
        value_width: Width of a value; `width` if None.
        capacity: Memory for this many tokens per row is allocated at once, and more tokens are refused. If None, the
            cache grows.
        window: Sliding window. A query at position p attends to the keys p − window + 1 … p, and pages that only hold
            older keys are reused.
        sinks: With a window, the first tokens, which every query attends to as well (StreamingLLM).
        importance: Whether to keep the sum of the attention weights of each key, `importance()`.
        eviction: A policy of `qkv.cache`, such as `HeavyHitters(96, 32)`, which decides what a row forgets: after a
            call, or for `SnapKV` when `evict()` is called. Capacity is then that of the tokens stored at a time.
        dtype: Storage format: float32, float16, bfloat16, int8 with one scale per token and head, "int4" with one for
            each 32 channels, or "int8/int4" for keys and values; `cache.formats` takes more. Appended tokens may have
            any dtype that qkv supports; they are rounded once, on append. "auto": the smallest format within `bound`,
            decided by the first prompt that is decoded, of 32 tokens or more.
        bound: With dtype="auto" the relative error of the attention of that prompt's last queries (`cache.choosing`).
        latent: The values are the first `value_width` coordinates of the keys, which are stored once: latent attention
            (MLA) in its absorbed form, with `heads=1`. `append` and `decode` are then given keys, and None as values.

    Raises:
        OptionError: A size is below 1.
        DtypeError: `dtype` is not a storage format.
        ShapeError: The sizes do not fit into 62 bits.
        MemoryError: There is no memory for `capacity` tokens.

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
        sinks: int = 0,
        importance: bool = False,
        eviction: Policy | None = None,
        dtype: torch.dtype | str = torch.float32,
        bound: float | None = None,
        latent: bool = False,
    ) -> None:
        batch, heads, width = check_size("batch", batch), check_size("heads", heads), check_size("width", width)
        value_width = width if value_width is None else check_size("value_width", value_width)
        capacity = None if capacity is None else check_size("capacity", capacity)
        window = None if window is None else check_size("window", window, most=MOST_TOKENS)
        bound = _check_bound(dtype, bound)
        check_flags(importance=importance, latent=latent)
        layout = page_layout(torch.float32 if bound else dtype, heads, width, value_width, latent)
        if latent:
            _check_latents(layout, bound)
        if batch * layout.page_bytes * (1 + (capacity or 0) // PAGE) >= 1 << 62:
            given = f"batch {batch}, heads {heads}, width {width}, capacity {capacity}"
            raise ShapeError(complaint("batch, heads, width, capacity", given, "sizes whose bytes fit into 62 bits"))
        policy = None if eviction is None else as_policy(eviction)
        counted = importance or (policy is not None and policy.uses_importance)
        check_forgetting(window, check_size("sinks", sinks, 0, MOST_TOKENS), policy, counted)
        if bound and (sinks or policy is not None or counted):
            wanted = "a cache that keeps all tokens, or a window of them"
            raise OptionError(complaint("dtype", '"auto" with sinks, importance or eviction', wanted, "give a format"))
        self._setup(layout, PagePool(layout.page_bytes), batch, capacity, window, sinks, policy, counted)
        self.bound = bound
        if capacity is not None:
            self._preallocate()

    @property
    def capacity(self) -> int | None:
        return self._capacity

    @property
    def window(self) -> int | None:
        return self._window

    @property
    def sinks(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._sinks

    @property
    def eviction(self) -> Policy | None:
        return self._eviction

    @property
    def evicts_after_prompt(self) -> bool:
        """Whether the policy waits for `evict()`."""
        return self._eviction is not None and self._eviction.after_prompt

    @property
    def dtype(self) -> torch.dtype | str:
        """The storage format as `KVCache(dtype=...)` takes it."""
        return self._layout.format.dtype

    @property
    def latent(self) -> bool:
        """Whether values are the first coordinates of the keys."""
        return self._layout.latent

    @property
    def format(self) -> StorageFormat:
        """The storage format."""
        return self._layout.format

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that this cache uses, shared pages included, and of preallocated pages."""
        with self.lock:
            return (self._table.pages + len(self._preallocated)) * self._layout.page_bytes

    @property
    def page_layout(self) -> PageLayout:
        """The layout of a page."""
        return self._layout

    @property
    def page_table(self) -> PageTable:
        """The table that maps rows to pages; its address is that of this object. Callers hold the lock."""
        return self._table

    @property
    def lock(self) -> Any:
        """The lock that a cache shares with its forks."""
        return self._pool.lock

    @property
    def row_lengths(self) -> np.ndarray:
        """`lengths` as an array that the cache itself may use: callers copy it or hold the lock."""
        return self._lengths + self._remaining.gone if self._evicted else self._lengths

    @property
    def stored_lengths(self) -> np.ndarray:
        return self._lengths

    @property
    def stored(self) -> Int[Tensor, " batch"]:
        """How many tokens each row stores, int64 (batch,)."""
        return torch.from_numpy(np.where(self._lengths > 0, self._lengths - self._table.first * PAGE, 0))

    @property
    def evicted(self) -> bool:
        """Whether slots are no longer positions."""
        return self._evicted

    def slot_positions(self, slots: int) -> Int[Tensor, "batch heads slots"] | None:
        return self._remaining.positions(slots) if self._evicted else None

    def __repr__(self) -> str:
        given = {"capacity": self.capacity, "window": self.window, "sinks": self.sinks, "eviction": self.eviction}
        given = {"latent": self.latent} | given
        limits = "".join(f", {name}={limit}" for name, limit in given.items() if limit)
        return f"KVCache({self.sizes_text}, {self.format.name}{limits})"

    def _repr_html_(self) -> str:
        found = {"rows": self.batch, "key/value heads": self.heads, "width": self.sizes_text.rsplit(" ", 1)[-1]}
        found |= {"tokens": ", ".join(map(str, self.row_lengths[:8])) + (", …" if self.batch > 8 else "")}
        found |= {"format": self.format.name, "memory": readable_bytes(self.nbytes)}
        found |= {"capacity": self.capacity, "window": self.window}
        return table(((name, value) for name, value in found.items() if value), caption="KVCache")

    def append(
        self,
        key: Float[Tensor, "batch heads n width"],
        value: Float[Tensor, "batch heads n value_width"] | None = None,
        lengths: Any = None,
        padding: Padding = "right",
    ) -> None:
        """Append n tokens to each row.

        Args:
            key: (batch, heads, n, width).
            value: (batch, heads, n, value_width); None for a cache of latents.
            lengths: How many of the n tokens are real in each row; all if None. Padding is not stored.
            padding: Where the padding of a shorter row is: "right" or "left" of its real tokens.

        >>> import torch
        >>> cache = KVCache(batch=2, heads=1, width=2)
        >>> x = torch.ones(2, 1, 3, 2)
        >>> cache.append(x, x, lengths=[3, 1])
        >>> cache.lengths
        tensor([3, 1])
        """
        with self.lock:
            if self.bound is not None:
                hint = "the queries of the first prompt decide the format: qkv.decode it, or give a format"
                raise OptionError(complaint("dtype", '"auto" with append', "a prompt with queries", hint))
            values: Tensor = values_of(self, key, value)
            check_new_tokens(self, key, values)
            counts, left = check_lengths(lengths, padding, self.batch, key.shape[2])
            if key.shape[2] == 0 or (counts is not None and not counts.any()):
                return
            try:
                self.reserve(key.shape[2], counts)
                self.write(key, values, counts, left)
                ready = self.prepare(key.shape[2], counts)
            except BaseException:
                self.cancel()
                raise
            self.commit(key, counts, ready)

    def crop(self, n: Any) -> None:
        """Keep the first n tokens of each row.

        n is refused if keys that a query at position n attends to have already been evicted: with a window, or below
        the length at which a policy evicted last. What later queries added to the importance of keys stays.

        Args:
            n: One number, for which shorter rows are unchanged, or one for each row.

        >>> import torch
        >>> cache = KVCache(batch=2, heads=1, width=2)
        >>> cache.append(torch.ones(2, 1, 5, 2), torch.ones(2, 1, 5, 2))
        >>> cache.crop(4)
        >>> cache.crop([1, 3])
        >>> cache.lengths
        tensor([1, 3])
        """
        with self.lock:
            self._rewind(check_crop(n, self.row_lengths, "cache"))

    def reorder(self, index: Any) -> None:
        """Replace the rows by rows[index], as in beam search; a row may be repeated or dropped, and batch may change.

        >>> import torch
        >>> cache = KVCache(batch=2, heads=1, width=2)
        >>> x = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1).expand(2, 1, 1, 2)
        >>> cache.append(x, x)
        >>> cache.reorder([1, 1, 0])
        >>> cache.tensors()[0][:, 0, 0, 0]
        tensor([2., 2., 1.])
        """
        with self.lock:
            rows = check_rows(index, self.batch)
            times = np.bincount(rows, minlength=self.batch)
            old = self._table
            table, lengths = old.take_rows(rows), self._lengths[rows]
            for row in np.flatnonzero(times > 1).tolist():
                for _ in range(times[row] - 1):
                    self._pool.share(old.row_pages(row).tolist())
            unused = [page for row in np.flatnonzero(times == 0).tolist() for page in old.row_pages(row).tolist()]
            importance = None if self._importance is None else self._importance[torch.from_numpy(rows)]
            self._set_rows(lengths, table, self._remaining.take_rows(rows), importance)
            self._plan = None
            self._return_pages(unused)

    def extend(self, other: KVCache) -> None:
        """Append the rows of another cache, which keeps them: the two share their pages as forks do.

        Args:
            other: A fork of this cache, or one that was forked from the same cache as this one.

        >>> import torch
        >>> cache = KVCache(batch=1, heads=1, width=2)
        >>> other = cache.fork()
        >>> cache.append(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
        >>> other.append(torch.ones(1, 1, 5, 2), torch.ones(1, 1, 5, 2))
        >>> cache.extend(other)
        >>> cache.lengths
        tensor([3, 5])
        """
        with self.lock:
            if check_cache(other)._pool is not self._pool:
                hint = 'with dtype="auto" fork after the first prompt, which decides the format'
                wanted = "a fork of this cache, or of one that it is a fork of"
                raise OptionError(complaint("other", repr(other), wanted, hint))
            types = {each.token_type for each in (self, other)} - {None}
            if len(types) > 1:
                wanted = "one dtype and device in both, those of the first tokens"
                raise DtypeError(complaint("other", f"tokens of {other.token_type}", wanted))
            lengths = np.concatenate([self._lengths, other._lengths])
            table, importance = self._table.with_rows_of(other._table), None
            if self._importance is not None and other._importance is not None:
                both = self._importance, other._importance
                columns = max(each.shape[2] for each in both)
                importance = torch.cat([_widened(each, columns) for each in both])
            self._pool.share(other._table.all())
            self._set_rows(lengths, table, self._remaining.with_rows_of(other._remaining), importance)
            self.token_type, self._plan = self.token_type or other.token_type, None

    def fork(self, rows: Any = None) -> KVCache:
        """Return an independent cache with the same tokens; the two share a page until one of them writes to it.

        Args:
            rows: The rows that it has, in this order; all if None.

        >>> import torch
        >>> cache = KVCache(batch=1, heads=1, width=2)
        >>> x = torch.ones(1, 1, 3, 2)
        >>> cache.append(x, x)
        >>> other = cache.fork()
        >>> other.append(x, x)
        >>> cache.length, other.length
        (3, 6)
        """
        with self.lock:
            index = np.arange(self.batch) if rows is None else check_rows(rows, self.batch)
            table, remaining = self._table.take_rows(index), self._remaining.take_rows(index)
            importance = None if self._importance is None else self._importance[torch.from_numpy(index)]
            other = self.with_pages(table, self._lengths[index], self._capacity, remaining, importance)
            other.token_type, other.keep_past, other.bound = self.token_type, self.keep_past, self.bound
            self._clear_writable_end()
            return other

    def freeze(self) -> Prefix:
        """Return the tokens as an immutable prefix, from which any number of caches fork.

        >>> import torch
        >>> cache = KVCache(batch=1, heads=1, width=2)
        >>> cache.append(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
        >>> prefix = cache.freeze()
        >>> cache.reset()
        >>> prefix.fork().length
        3
        """
        from .prefixes import Prefix

        return Prefix(self)

    @staticmethod
    def map(
        path: str | os.PathLike[str],
        *,
        model: str | None = None,
        tokens: Any = None,
        check: bool | None = None,
        eviction: Policy | None = None,
    ) -> Prefix:
        """Open a file that `Prefix.save` wrote. Its pages are mapped: several processes share them in memory.

        No cache writes to the file; a page that is about to be written is copied first. The header, with the sizes,
        the formats, the tokens and the name of the model, is checked by a hash. A file that is cut off, or changed in
        place, while it is mapped is refused by the next `fork`; caches that forked before find NaN where it was cut
        off, and what is there now where it was changed. Replacing the file by a new one of the same name is safe.
        Without the native library, and on systems without SIGBUS, the file is read instead.

        Args:
            path: The file.
            model: The name that it must have been saved with; any if None.
            tokens: The tokens that it must have been saved with; any if None.
            check: Whether to compare the pages with their hash, which reads all of them. None: up to 64 MiB.
            eviction: The policy that goes on: a file has none.

        Raises:
            OptionError: The file is damaged, or it is that of another model or of other tokens.

        >>> import tempfile, torch
        >>> cache = KVCache(batch=1, heads=1, width=2)
        >>> cache.append(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cache.freeze().save(f"{folder}/hello.prefix", model="mine", tokens=[5, 7, 11])
        ...     KVCache.map(f"{folder}/hello.prefix", model="mine").fork().length
        3
        """
        from .prefixes import Prefix

        return Prefix.open(path, model, tokens, check, None if eviction is None else as_policy(eviction))

    def adopt(self, other: KVCache) -> None:
        """Take over the tokens of another cache of the same sizes, and its storage format; it becomes empty."""
        with self.lock:
            self._pool.release(self._table.all() + self._preallocated)
            other._pool.lock = self._pool.lock  # those who wait for it
            self._layout, self._pool, self._preallocated, self._plan = other._layout, other._pool, [], None
            self._set_rows(other._lengths, other._table)
            other._table = PageTable.empty(other.batch)
            self.bound = None
            if self._capacity is not None:
                self._preallocate()

    def reset(self) -> None:
        """Remove all tokens; tokens that are appended later may have another dtype.

        The storage format stays, also where dtype="auto" has decided it.
        """
        with self.lock:
            unused = self._table.all()
            nothing = Remaining.all(self.batch, self.heads)
            importance = None if self._importance is None else torch.zeros_like(self._importance)
            self._set_rows(np.zeros_like(self._lengths), PageTable.empty(self.batch), nothing, importance)
            self.token_type = self._plan = None
            self._return_pages(unused)

    @property
    def start(self) -> int:
        """Position of the first token that a row still stores; 0 without a window."""
        first = self._table.first[self._lengths > 0]
        return int(first.min()) * PAGE if len(first) else 0

    def tensors(self) -> tuple[Float[Tensor, "b h tokens d"], Float[Tensor, "b h tokens dv"]]:
        """Return a copy of keys and values as tensors, zero where a row stores no token.

        They hold the positions `start` to `length` − 1: all of them without a window. After an eviction they hold what
        is stored, in order: `positions()`. Their dtype is float16 or bfloat16 for caches of that dtype, and float32
        otherwise.
        """
        with self.lock:
            first = self.start
            shape = self.batch, self.heads, int(self._lengths.max()) - first
            dtype = self.format.read_dtype
            key, value = (allocate((*shape, width), dtype).zero_() for width in (self.width, self.value_width))
            for row in range(self.batch):
                start, stored = self.stored_row(row)
                new = slice(start - first, int(self._lengths[row]) - first)
                key[row, :, new], value[row, :, new] = from_storage(self._layout, stored)
            return key, value

    def positions(self) -> Int[Tensor, "batch heads tokens"]:
        """The position of each token of `tensors()`; −1 where a row stores none.

        >>> import torch
        >>> cache = KVCache(batch=1, heads=1, width=2)
        >>> cache.append(torch.ones(1, 1, 5, 2), torch.ones(1, 1, 5, 2))
        >>> cache.evict(lambda importance, positions, length: positions % 2 == 0)
        >>> cache.positions(), cache.lengths, cache.stored
        (tensor([[[0, 2, 4]]]), tensor([5]), tensor([3]))
        """
        with self.lock:
            found = self._remaining.positions(int(self._lengths.max()))
            slots = np.arange(found.shape[2])
            stored = (slots >= self._table.first[:, None] * PAGE) & (slots < self._lengths[:, None])
            return found.masked_fill(~torch.from_numpy(stored)[:, None], -1)[:, :, self.start :]

    def importance(self) -> Float[Tensor, "batch heads tokens"]:
        """For each token of `tensors()`, the sum of the weights of all queries and query heads that attended to it.

        Kept with `importance=True` and by policies that use it; `SnapKV` restricts it to the last queries of a prompt.
        """
        with self.lock:
            if self._importance is None:
                given = "a cache that does not keep it"
                raise OptionError(complaint("cache", given, "KVCache(..., importance=True)"))
            return self._importance[:, :, : int(self._lengths.max())].clone()

    def evict(self, policy: Policy | Any = None) -> None:
        """Forget tokens: those that stay move to new pages, and the others' pages are released.

        Later queries attend to what stays, with masks and biases at the positions of `positions()`. Forks are not
        changed. `lengths` still counts all tokens; `stored` those that stay.

        Args:
            policy: A policy of `qkv.cache`, or a function as `Select` has; that of the cache if None.

        >>> import torch, qkv
        >>> cache = KVCache(batch=1, heads=1, width=2)
        >>> cache.append(torch.ones(1, 1, 130, 2), torch.ones(1, 1, 130, 2))
        >>> cache.evict(qkv.cache.FirstLast(2, 30))
        >>> cache.stored, cache.length
        (tensor([32]), 130)
        """
        with self.lock:
            if policy is None and self._eviction is None:
                wanted = "a policy, or KVCache(eviction=...)"
                raise OptionError(complaint("policy", "None", wanted, "a window evicts by itself"))
            chosen = self._eviction if policy is None else as_policy(policy, "policy")
            assert chosen is not None
            check_forgetting(self._window, self._sinks, chosen, self._importance is not None)
            ready = self._compact(chosen, self._lengths, np.flatnonzero(self._lengths > chosen.keep))
            if ready is not None:
                self.apply(ready)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache to a safetensors file. The file is replaced atomically."""
        from .files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, eviction: Policy | None = None) -> KVCache:
        """Read a cache that `save` wrote. The header is checked before memory for the tensors is allocated.

        A file has no policy: give the `eviction` that goes on.
        """
        from .files import load

        return load(cls, path, None if eviction is None else as_policy(eviction))

    # An append is `reserve`, `write`, `commit`; `view` reads tokens in between. `_lengths` alone defines which tokens
    # are stored and is written last, in one operation, so an interrupted append has no effect. Callers of the methods
    # below hold `lock` and have checked their arguments.

    def _setup(
        self,
        layout: PageLayout,
        pool: PagePool,
        batch: int,
        capacity: int | None,
        window: int | None,
        sinks: int,
        eviction: Policy | None,
        counted: bool,
    ) -> None:
        self._layout, self._pool, self._capacity, self._window = layout, pool, capacity, window
        self._sinks = sinks
        self._set_policy(eviction)
        self._sizes = layout.heads, layout.width, layout.value_width
        self._preallocated: list[int] = []  # unused pages of those that capacity allocated
        self._preallocated_count = 0
        self._number = register_cache(self)
        self.bound: float | None = None  # of dtype="auto", until the format is decided
        self.keep_past = False  # whether pages outside the window are kept until `evict_past`
        self.token_type: tuple[torch.dtype, torch.device] | None = None  # of the first append
        self._plan: Any = None  # plan of the last checked decode call; valid while batch and `token_type` stay
        importance = torch.zeros(batch, layout.heads, PAGE, device="cpu") if counted else None
        nothing = Remaining.all(batch, layout.heads)
        self._set_rows(np.zeros(batch, dtype=np.int64), PageTable.empty(batch, _FIRST_SLOTS), nothing, importance)

    def _set_policy(self, eviction: Policy | None) -> None:
        self._eviction = eviction
        # From this many slots of a row on, it evicts after a call.
        self._most = _NO_LIMIT if eviction is None or eviction.after_prompt else eviction.keep + eviction.every

    def __del__(self) -> None:
        if hasattr(self, "_table"):
            self._pool.release_later(self._table, self._preallocated)

    def _set_rows(
        self,
        lengths: np.ndarray,
        table: PageTable,
        remaining: Remaining | None = None,
        importance: Tensor | None = None,
    ) -> None:
        """Replace lengths and page table, and unless None what remains and its importance.

        `handle` = [cache number, lengths...] is the tensor that represents the cache in a compiled graph. It has its
        own copy of the lengths, updated after `_lengths`, because a graph may run a step on a copy of the handle.
        """
        self._clear_writable_end()
        lengths = lengths.copy()
        address, handle = address_of(lengths), getattr(self, "handle", None)
        if handle is None or len(handle) != 1 + len(lengths):
            handle = torch.empty(1 + len(lengths), dtype=torch.int64, device="cpu")
            handle[0] = self._number
        copy = handle.numpy()[1:]
        copy_at = address_of(copy)
        remaining = self._remaining if remaining is None else remaining
        importance = self._importance if importance is None and hasattr(self, "_importance") else importance
        importance_at = 0 if importance is None else importance.data_ptr()
        evicted = bool(remaining.gone.any())
        # No call in between, so no interrupt can separate these assignments.
        self._table, self._lengths, self._lengths_at = table, lengths, address
        self._handle_lengths, self._handle_lengths_at, self.handle = copy, copy_at, handle
        self._remaining, self._evicted = remaining, evicted
        self._importance, self._importance_at = importance, importance_at
        copy[:] = lengths

    def _clear_writable_end(self) -> None:
        """Disable the fast path of `decode`.

        Rows of equal length can be written up to `_writable_end` without reading the table, and nothing is evicted from
        the window below length `_evict_from`. 0 disables both.
        """
        self._writable_end = self._evict_from = 0

    def _preallocate(self) -> None:
        """Allocate pages for `capacity` tokens; with a window, for the window, the page that is partly outside of it,
        and the page that is being written."""
        assert self._capacity is not None
        pages = -(-self._capacity // PAGE)
        if self._window is not None:
            pages = min(pages, -(-self._window // PAGE) + 2 + -(-self._sinks // PAGE))
        self._preallocated_count = len(self._lengths) * pages
        self._preallocated = self._pool.take(self._preallocated_count - self._table.pages, prompt=True)

    def reserve(self, n: int, counts: np.ndarray | None) -> None:
        """Add the pages that n (or counts[b]) more tokens need, each owned by this cache alone."""
        self._reserve(n, counts)
        if self._importance is not None and (slots := int(self._table.stop.max()) * PAGE) > self._importance.shape[2]:
            self._importance = _widened(self._importance, 1 << (slots - 1).bit_length())
            self._importance_at = self._importance.data_ptr()

    def _reserve(self, n: int, counts: np.ndarray | None) -> None:
        lengths, pool = self._lengths, self._pool
        equal_rows = self._writable_end > 0
        if counts is None and (self._reserve_next(int(lengths[0]) + n) if equal_rows else self._reserve_prompt(n)):
            return
        longest = int(lengths.max()) + n if counts is None else int((lengths + counts).max())
        if self._capacity is not None and longest > self._capacity:
            wanted = f"at most {self._capacity}, the cache's capacity"
            hint = "crop or reset the cache, or create it with capacity=None so that it grows"
            raise ShapeError(complaint("key", f"{longest} tokens in total", wanted, hint))
        if len(lengths) * (longest + PAGE) * self._layout.page_bytes >= PAGE * _NO_LIMIT:
            raise ShapeError(complaint("key", f"{longest} tokens in total", "a cache whose bytes fit into 62 bits"))
        ends = lengths + (n if counts is None else counts)
        stop = np.maximum(pages_for(ends), self._table.stop)
        partial = np.flatnonzero((lengths % PAGE != 0) & (ends > lengths)) if pool.shared else lengths[:0]
        last = lengths[partial] // PAGE
        shared = [i for i, page in enumerate(self._table.at(partial, last)) if page in pool.shared]
        taken = self._take(int((stop - self._table.stop).sum()) + len(shared), prompt=n >= PAGE)
        rows, numbers = self._table.missing_pages(stop)
        table = self._table = self._table.with_slots_for(stop)
        if shared:
            old = table.at(partial[shared], last[shared])
            for source, target in zip(old, taken, strict=False):
                pool.copy_page(source, target)
            table.put(partial[shared], last[shared], taken[: len(shared)])
            pool.release(old)
        table.put(rows, numbers, taken[len(shared) :])
        table.stop[:] = stop
        if int(lengths.min()) == int(lengths.max()) and counts is None:
            self._set_writable_end()

    def _reserve_prompt(self, n: int) -> bool:
        """Fast path for a prompt: all rows are empty, and each gets pages for n tokens."""
        table, pages = self._table, -(-n // PAGE)
        if table.stop.any() or pages > table.slots or (self._capacity is not None and n > self._capacity):
            return False
        taken = self._take(len(self._lengths) * pages, prompt=n >= PAGE)
        table.array[:, :pages] = np.array(taken, dtype=np.int64).reshape(-1, pages)
        table.stop[:] = pages
        self._set_writable_end()
        return True

    def _reserve_next(self, end: int) -> bool:
        """Fast path for rows of equal length that need no page, or one page each."""
        if end <= self._writable_end:
            return True
        table, last = self._table, int(self._table.stop[0])
        most = (last + 1) * PAGE if self._capacity is None else min((last + 1) * PAGE, self._capacity)
        if end > most or last - int(table.first.min()) >= table.slots or (table.stop != last).any():
            return False
        pages = self._take(len(self._lengths))
        table.array[:, last & (table.slots - 1)] = pages
        table.stop += 1
        self._writable_end = most
        return True

    def _populate_ahead(self, end: int) -> None:
        """Populate an eighth of the next pages; called every eighth step, so that no step waits for whole pages."""
        rows = len(self._lengths)
        if not self._writable_end or self._window is not None or self._writable_end == self._capacity:
            return
        try:
            pages = self._preallocated[-rows:] if len(self._preallocated) >= rows else self._pool.next(rows)
        except MemoryError:
            return  # the step that needs the pages will raise
        share = self._layout.page_bytes // 8
        for page in pages:
            populate_memory(page + end % PAGE // 8 * share, share)

    def _set_writable_end(self) -> None:
        """Enable the fast path; rows have equal lengths and own their last pages."""
        table = self._table
        self._writable_end = min(int(table.stop.min()) * PAGE, _NO_LIMIT if self._capacity is None else self._capacity)
        self._evict_from = _NO_LIMIT if self._window is None else (int(table.first.min()) + 1) * PAGE + self._window

    def cancel(self, importance: Tensor | None = None) -> None:
        """Undo `reserve` after an error: remove the pages without tokens; restore the importance of before."""
        if importance is not None:
            self._importance, self._importance_at = importance, importance.data_ptr()
        self._writable_end = self._evict_from = 0
        self._return_pages(self._table.cut_from(pages_for(self._lengths)))

    def write(self, key: Tensor, value: Tensor, counts: np.ndarray | None, left: bool) -> None:
        """Write tokens into the reserved pages; they are not visible before `commit`."""
        key, value = key.detach().resolve_neg(), value.detach().resolve_neg()
        if cache_append is not None and key.is_cpu and self.format.native_code is not None:
            pages = self.view().pages(self._lengths, counts)
            cache_append(key, value, **pages, left=left, threads=torch.get_num_threads())
            return
        n = key.shape[2]
        for row in range(len(self._lengths)):
            count = n if counts is None else int(counts[row])
            new = slice(n - count, n) if left else slice(0, count)
            stored = to_storage(self._layout, key[row, :, new].cpu(), value[row, :, new].cpu())
            self._write_row(row, int(self._lengths[row]), stored)

    def _write_row(self, row: int, position: int, stored: StoredTokens) -> None:
        self._write_pages(self._table.row_pages(row, position // PAGE).tolist(), position, stored)

    def _write_pages(self, pages: list[int], position: int, stored: StoredTokens) -> None:
        done, count = 0, stored.key.shape[1]
        for page in pages:
            slot = (position + done) % PAGE
            part = slice(done, min(count, done + PAGE - slot))
            if part.start == part.stop:
                return
            write_page(self._layout, self._pool.page(page), slot, stored.map(itemgetter((slice(None), part))))
            done = part.stop

    def commit(self, key: Tensor, counts: np.ndarray | None, ready: Compacted | None = None) -> None:
        """Make the written tokens visible, and what `prepare` returned."""
        if self.token_type is None:
            self.token_type = key.dtype, key.device
        self.advance(key.shape[2], counts, ready)

    def advance(self, n: int, counts: np.ndarray | None, ready: Compacted | None = None) -> None:
        """Make n (or counts[b]) written tokens visible; `commit` without the tokens."""
        if ready is not None:
            self.apply(ready)
            return
        if counts is not None:
            self._writable_end = self._evict_from = 0
        self._lengths += n if counts is None else counts
        self._handle_lengths[:] = self._lengths
        if self._window is not None and not self._lengths[0] < self._evict_from:
            self._evict()

    def _evict(self) -> None:
        """Remove the pages entirely before length − window: no later query attends to them."""
        assert self._window is not None
        if self.keep_past:
            return
        first = (self._lengths - self._window) // PAGE
        if self._sinks:
            self._close_gap(first)
        elif (first > self._table.first).any():
            self._evict_from = 0
            self._return_pages(self._table.cut_below(first))
            self._evict_from = (int(self._table.first.min()) + 1) * PAGE + self._window if self._writable_end else 0

    def _close_gap(self, first: np.ndarray) -> None:
        """Remove the pages between those of the sinks and page first[b]; later pages take their numbers."""
        head, window = -(-self._sinks // PAGE), self._window or 0
        if (first > head).any():
            table, lengths, changed, unused = self._table.copy(), self._lengths.copy(), {}, []
            for row in np.flatnonzero(first > head).tolist():
                cut, stop = int(first[row]), int(table.stop[row])
                unused += table.array[row, head:cut].tolist()
                table.array[row, head : stop - cut + head] = table.array[row, cut:stop]
                table.stop[row] -= cut - head
                lengths[row] -= (cut - head) * PAGE
                gone = int(self._remaining.gone[row]) + (cut - head) * PAGE
                at = np.broadcast_to(np.arange(head * PAGE), (self.heads, head * PAGE))
                changed[row] = gone, at, head * PAGE + gone + window - 1
            self._set_rows(lengths, table, self._remaining.with_rows(changed))
            self._return_pages(unused)
        if not self._pool.shared and int(self._lengths.min()) == int(self._lengths.max()):
            self._set_writable_end()
            self._evict_from = (head + 1) * PAGE + window

    def evict_past(self) -> None:
        """Evict what `keep_past` has kept outside the window, or for the policy."""
        if self.keep_past:
            self.keep_past = False
            if self._window is not None:
                self._evict()
            elif (ready := self.prepare(0, None)) is not None:
                self.apply(ready)
            self.keep_past = True

    def prepare(self, n: int, counts: np.ndarray | None) -> Compacted | None:
        """What the policy leaves of the rows with n (or counts[b]) written tokens, if it is to evict now."""
        if self._eviction is None or self.keep_past:
            return None
        lengths = self._lengths + (n if counts is None else counts)
        if int(lengths.max()) < self._most:
            return None
        return self._compact(self._eviction, lengths, np.flatnonzero(lengths >= self._most))

    def _compact(self, policy: Policy, lengths: np.ndarray, rows: np.ndarray) -> Compacted | None:
        """Copy what stays of the rows, all written before, into new pages. Nothing is visible yet."""
        table, new, unused, changed = self._table.copy(), [], [], {}
        lengths, importance, view = lengths.copy(), self._importance, self.view()
        heads = torch.arange(self.heads)[:, None]
        at, past = self._remaining.positions(int(lengths.max())), lengths + self._remaining.gone
        importance = None if importance is None else importance.clone()
        try:
            for row in rows.tolist():
                end = int(lengths[row])
                sums = None if importance is None else importance[row, :, :end]
                before = self._table, self._lengths.tobytes()
                keep = selected(policy, None if sums is None else sums.clone(), at[row, :, :end], int(past[row]))
                if (self._table, self._lengths.tobytes()) != before:
                    given = f"{policy!r}, which changed the cache"
                    raise OptionError(complaint("eviction", given, "a function that only chooses"))
                count = keep.shape[1]
                if count == end:
                    continue
                stored = view.stored(row, 0, end).map(itemgetter((heads, keep)))
                gone, positions = int(past[row]) - count, at[row].gather(1, keep)
                if policy.positions == "renumbered":
                    if policy.rotate is not None and count:
                        key, value = from_storage(self._layout, stored)
                        key = policy.rotate(key.float(), torch.arange(count) + gone - positions)
                        rotated = to_storage(self._layout, key, value)
                        unrotated = {"value": stored.value, "value_scale": stored.value_scale}
                        stored = rotated if self.latent else rotated._replace(**unrotated)
                    positions = None
                pages = self._take(-(-count // PAGE))
                new += pages
                unused += table.row_pages(row).tolist()
                table.array[row, : len(pages)] = pages
                table.stop[row] = len(pages)
                self._write_pages(pages, 0, stored)
                lengths[row] = count
                changed[row] = gone, None if positions is None else positions.numpy(), int(past[row])
                if importance is not None and sums is not None:
                    kept = sums.gather(1, keep)
                    importance[row] = 0
                    importance[row, :, :count] = kept
        except BaseException:
            self._return_pages(new)
            raise
        return Compacted(lengths, table, self._remaining.with_rows(changed), importance, new, unused)

    def apply(self, ready: Compacted) -> None:
        """Make an eviction visible, together with the tokens that were written before it."""
        self._set_rows(ready.lengths, ready.table, ready.remaining, ready.importance)
        self._return_pages(ready.unused)
        if not self._pool.shared and int(ready.lengths.min()) == int(ready.lengths.max()):
            self._set_writable_end()

    def discard(self, ready: Compacted | None) -> None:
        """Drop an eviction that was prepared."""
        if ready is not None:
            self._return_pages(ready.new)

    def count_from(self, n: int, counts: np.ndarray | None) -> tuple[Tensor | None, np.ndarray | None]:
        """Where the weights of n (or counts[b]) new queries are added, and from which slot on they count.

        With a policy that observes the last queries of a prompt, neither those before nor single steps count.
        """
        if self._importance is None or self._eviction is None or self._eviction.observe is None:
            return self._importance, None
        if n <= 1:
            return None, None
        every = np.full(self.batch, n) if counts is None else counts
        self._importance[torch.from_numpy(every >= self._eviction.observe)] = 0
        return self._importance, self._lengths + every - self._eviction.observe

    @property
    def native_numbers(self) -> tuple[int, ...]:
        """What a program is told of the tokens: table, layout, what was evicted, window, sinks."""
        table = self._table.address, self._table.slots, *self._layout.native_args
        return *table, address_of(self._remaining.gone), -1 if self._window is None else self._window, self._sinks

    @property
    def native_arrays(self) -> tuple[PageTable, Remaining]:
        """The objects whose addresses `native_numbers` has; they are replaced rather than moved."""
        return self._table, self._remaining

    @property
    def importance_sums(self) -> Tensor | None:
        """`importance` as the tensor that the cache itself uses."""
        return self._importance

    def _rewind(self, lengths: np.ndarray) -> None:
        """Shorten rows to these lengths."""
        shortened = self.row_lengths > lengths
        if not shortened.any():
            return
        table, remaining, importance = self._table.copy(), None, self._importance
        if self._evicted:
            too_short = shortened & (lengths < self._remaining.since) & (lengths > 0)
            if too_short.any():
                wanted = f"at least {int(self._remaining.since[too_short].max())}, or 0"
                hint = "tokens that a shorter row attended to were evicted"
                raise OptionError(complaint("n", int(lengths[too_short].min()), wanted, hint))
            empty = shortened & (lengths == 0)
            lengths = np.where(shortened & ~empty, lengths - self._remaining.gone, lengths)
            lengths = np.where(shortened, lengths, self._lengths)
            remaining = self._remaining.with_rows(dict.fromkeys(np.flatnonzero(empty).tolist(), (0, None, 0)))
        if importance is not None:
            beyond = torch.arange(importance.shape[2]) >= torch.from_numpy(lengths)[:, None, None]
            importance = importance.masked_fill(beyond, 0)
        if self._window is not None and not self._sinks:
            # A query at position n attends to keys from n - window + 1 on; at position 0 to no stored key.
            least = np.where(table.first > 0, table.first * PAGE + self._window - 1, 0)
            too_short = shortened & (lengths < least) & (lengths > 0)
            if too_short.any():
                wanted = f"at least {int(least[too_short].max())}, or 0"
                hint = f"earlier keys have left the window ({self._window}) and were evicted"
                raise OptionError(complaint("n", int(lengths[too_short].min()), wanted, hint))
        unused = table.cut_from(pages_for(lengths))
        table.first[lengths == 0] = table.stop[lengths == 0] = 0
        self._set_rows(lengths, table, remaining, importance)
        self._return_pages(unused)
        if not self._pool.shared and int(lengths.min()) == int(lengths.max()):
            self._set_writable_end()

    def view(self) -> CacheView:
        """What the cache stores now, written tokens included; valid while the lock is held."""
        return CacheView(self._layout, self._pool, self._table, self._window, self._sinks)

    def fill(
        self,
        starts: np.ndarray,
        lengths: np.ndarray,
        capacity: int | None,
        stored: StoredTokens,
        remaining: Remaining | None,
        importance: Tensor | None,
        eviction: Policy | None,
    ) -> None:
        """Store the tokens of a file, (batch, heads, span, …), in a new cache: those of row b from starts[b] on.

        The capacity applies, but pages are allocated as needed: the metadata of a file must not allocate memory.
        """
        check_forgetting(self._window, self._sinks, eviction, importance is not None)
        self._capacity = capacity
        self._set_policy(eviction)
        self._lengths[:] = starts
        self._table.first[:] = self._table.stop[:] = starts // PAGE
        self.reserve(0, lengths - starts)
        for row, count in enumerate((lengths - starts).tolist()):
            self._write_row(row, int(starts[row]), stored.map(itemgetter((row, slice(None), slice(0, count)))))
        if importance is not None and self._importance is not None:
            importance = _widened(importance, self._importance.shape[2])
        self._set_rows(lengths, self._table, remaining, importance)

    def with_pages(
        self,
        table: PageTable,
        lengths: np.ndarray,
        capacity: int | None,
        remaining: Remaining,
        importance: Tensor | None,
    ) -> KVCache:
        """A cache of the same kind whose rows share these pages of its pool."""
        other = object.__new__(type(self))
        forgetting = self._window, self._sinks, self._eviction, self._importance is not None
        other._setup(self._layout, self._pool, len(lengths), capacity, *forgetting)
        self._pool.share(table.all())
        other._set_rows(lengths, table, remaining, importance)
        return other

    def stored_row(self, row: int) -> tuple[int, StoredTokens]:
        """The first stored position of a row, and its tokens from there on, in the storage format."""
        start = int(self._table.first[row]) * PAGE
        return start, self.view().stored(row, start, int(self._lengths[row]))

    def _take(self, count: int, *, prompt: bool = False) -> list[int]:
        """Take pages, preallocated ones first."""
        first = max(0, len(self._preallocated) - count)
        own = self._preallocated[first:]
        pages = self._pool.take(count - len(own), prompt=prompt)
        del self._preallocated[first:]
        return own + pages

    def _return_pages(self, pages: list[int]) -> None:
        """Return pages that the table no longer uses: to the preallocated ones up to their number, then to the pool."""
        if self._preallocated_count:
            pages = self._pool.drop_owner(pages)
            missing = max(0, self._preallocated_count - len(self._preallocated) - self._table.pages)
            self._preallocated.extend(pages[:missing])
            pages = pages[missing:]
        self._pool.release(pages)


def _widened(importance: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(importance, (0, columns - importance.shape[2]))


def check_forgetting(window: int | None, sinks: int, policy: Policy | None, counted: bool) -> None:
    """Refuse two rules about what is forgotten, and a policy without what it needs."""
    if sinks and window is None:
        raise OptionError(complaint("sinks", sinks, "0 without a window", "or give the window= of recent tokens"))
    if window is not None and (policy is not None or counted):
        name, given = ("eviction", repr(policy)) if policy is not None else ("importance", "True")
        hint = "a window evicts by itself"
        raise OptionError(complaint(name, f"{given} with window={window}", "one of the two", hint))
    if policy is not None and policy.uses_importance and not counted:
        raise OptionError(complaint("policy", repr(policy), "a cache with importance=True", "it ranks keys by it"))


def _check_latents(layout: PageLayout, bound: float | None) -> None:
    if bound:
        raise OptionError(complaint("dtype", '"auto" with latent=True', "a storage format", "give one"))
    if layout.format.group or layout.format.values is not None:
        hint = "int8 stores latents with one scale for a token"
        wanted = "a format that does not rotate rows, and has one format for keys and values"
        raise OptionError(complaint("dtype", f"{layout.format.name} with latent=True", wanted, hint))
    if layout.value_width > layout.width:
        wanted = f"at most {layout.width}, the width of a key"
        raise OptionError(complaint("value_width", layout.value_width, wanted, "latent values are a part of the keys"))


def _check_bound(dtype: object, bound: Any) -> float | None:
    """The bound of dtype="auto"; None for other formats."""
    if dtype != "auto":
        if bound is not None:
            raise OptionError(complaint("bound", bound, 'None; it is for dtype="auto"'))
        return None
    wanted = "a relative error between 0 and 1, such as 0.05"
    if isinstance(bound, bool) or not isinstance(bound, int | float):
        raise OptionTypeError(complaint("bound", repr(bound), wanted, 'dtype="auto" takes the format by it'))
    if not 0 < bound < 1:
        raise OptionError(complaint("bound", bound, wanted))
    return float(bound)


def check_cache(cache: object) -> KVCache:
    """Refuse what is not a `KVCache`."""
    if isinstance(cache, KVCache):
        return cache
    given, hint = type(cache).__name__, ""
    if type(cache).__module__ == "qkv.parallel.cache":  # by name, since that package imports this one
        given, hint = f"a qkv.parallel.{given}", "call qkv.parallel.decode"
    raise OptionTypeError(complaint("cache", given, "a qkv.KVCache or a qkv.LinearState", hint))
