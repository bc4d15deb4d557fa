"""KVCache: what a decoder remembers, in pages that never move."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..shapes import Float
from .checks import check_tokens, counted, rows_of, size
from .layout import PAGE, STORAGE, layout_of
from .pages import Pool, Table
from .store import Store

Padding = Literal["right", "left"]


class KVCache(Store):
    """Keys and values of the past, for `qkv.decode`: append-only, in pages of 64 tokens.

    batch, heads, width, value_width: the sizes of what is appended; heads are key/value heads.
    capacity: memory for so many tokens a row is set aside at once, and more are refused. None grows.
    window: a ring. A query at position p sees the keys p − window + 1 … p, and pages behind that are used again.
    dtype: what tokens are rounded to when they are appended: float32, float16, bfloat16, or int8 with a scale for
    each token and head. Whatever a model computes in can be appended.

    >>> import torch, qkv
    >>> memory = KVCache(batch=1, heads=2, width=4)
    >>> prompt = torch.randn(1, 2, 5, 4)
    >>> out = qkv.decode(prompt, prompt, prompt, memory)
    >>> new = torch.randn(1, 2, 1, 4)
    >>> out = qkv.decode(new, new, new, memory)
    >>> memory.length
    6
    >>> whole = torch.cat([prompt, new], dim=2)
    >>> torch.allclose(out, qkv.attention(whole, whole, whole, mask=qkv.Causal())[:, :, 5:], atol=1e-6)
    True

    Growing, `fork`, `reorder`, `crop` and the ring change a table of pages; the past is never copied, but for the one
    page of a row that is shared and about to be written to. Pages are in main memory. An error leaves the memory as
    it was. Each call holds the lock of the memory, which its forks share: threads may use them together, and two
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
        batch, heads, width = size("batch", batch), size("heads", heads), size("width", width)
        value_width = width if value_width is None else size("value_width", value_width)
        capacity = None if capacity is None else size("capacity", capacity)
        window = None if window is None else size("window", window)
        if not isinstance(dtype, torch.dtype) or dtype not in STORAGE:
            hint = "this is how tokens are kept; queries may have another dtype"
            raise DtypeError(complaint("dtype", dtype, "torch.float32, float16, bfloat16 or int8", hint))
        layout = layout_of(dtype, heads, width, value_width)
        if batch * layout.page_bytes * (1 + (capacity or 0) // PAGE) >= 1 << 62:
            given = f"batch {batch}, heads {heads}, width {width}, capacity {capacity}"
            raise ShapeError(complaint("batch, heads, width, capacity", given, "sizes whose bytes fit into 62 bits"))
        super().__init__(layout, Pool(layout.page_bytes), batch, capacity, window)
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
        """The bytes of the pages that hold tokens of this memory, shared ones too, and of those set aside."""
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
        >>> memory = KVCache(batch=2, heads=1, width=2)
        >>> x = torch.ones(2, 1, 3, 2)
        >>> memory.append(x, x, lengths=[3, 1])
        >>> memory.lengths
        tensor([3, 1])
        """
        with self._pool.lock:
            check_tokens(self, key, value)
            counts, left = counted(lengths, padding, self.batch, key.shape[2])
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
        >>> memory = KVCache(batch=1, heads=1, width=2)
        >>> memory.append(torch.ones(1, 1, 5, 2), torch.ones(1, 1, 5, 2))
        >>> memory.crop(3)
        >>> memory.length
        3
        """
        n = size("n", n, least=0)
        with self._pool.lock:
            if n > self.length:
                hint = "crop keeps the first n tokens, and cannot make more"
                raise OptionError(complaint("n", n, f"at most {self.length}, the memory's length", hint))
            self._rewind(np.minimum(self._lengths, n))

    def reorder(self, index: Any) -> None:
        """Rows become rows[index], as in beam search: some more than once, some not at all, any number of them.

        >>> import torch
        >>> memory = KVCache(batch=2, heads=1, width=2)
        >>> x = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1).expand(2, 1, 1, 2)
        >>> memory.append(x, x)
        >>> memory.reorder([1, 1, 0])
        >>> memory.tensors()[0][:, 0, 0, 0]
        tensor([2., 2., 1.])
        """
        with self._pool.lock:
            rows = rows_of(index, self.batch)
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
        """An independent memory with the same tokens. All pages are shared until one of the two writes to one.

        >>> import torch
        >>> memory = KVCache(batch=1, heads=1, width=2)
        >>> x = torch.ones(1, 1, 3, 2)
        >>> memory.append(x, x)
        >>> other = memory.fork()
        >>> other.append(x, x)
        >>> memory.length, other.length
        (3, 6)
        """
        with self._pool.lock:
            other = object.__new__(type(self))
            Store.__init__(other, self._layout, self._pool, self.batch, self._capacity, self._window)
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

        float16 and bfloat16 memories give their own dtype, the others float32.
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
        """A memory from a file of `save`. The file is checked before anything of its size is asked for."""
        from .files import load

        return load(cls, path)

    def __copy__(self) -> KVCache:
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        return self.fork()

    def __reduce__(self) -> Any:
        hint = "memory.save(path) and KVCache.load(path) write and read safetensors"
        raise OptionTypeError(complaint("KVCache", "a request to pickle it", "no pickles", hint))
