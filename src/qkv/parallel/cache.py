"""A `KVCache` that is sharded over the ranks of an axis: each of R ranks stores every R-th token of a row.

Rank p mod R stores the token at position p: rank r has the positions r, r + R, r + 2·R, … in its slots 0, 1, 2, ….
`crop` and a window remove tokens only at the ends, so this always holds, and every rank knows where each token is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..cache import KVCache as LocalCache
from ..cache.inputs import check_crop, check_lengths, check_new_tokens, check_rows
from ..cache.kv import Padding
from ..cache.pages import PAGE, TokenStore
from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_size
from ..shapes import Float
from .transfer import read_axis


class KVCache(TokenStore):
    """Keys and values of earlier tokens for `qkv.parallel.decode`, sharded over the ranks of a mesh axis.

    Every rank makes a cache with the same sizes and calls the same methods with the same tokens; each stores its part
    in a local `qkv.KVCache`, so that R ranks store R times as many tokens. In each row the numbers of tokens of
    the ranks differ by at most one. No method sends a message: if the lengths of the ranks' caches differ, the next
    `decode` raises `Disagreement`. With fewer tokens than ranks some ranks store nothing. After an error the
    cache is unchanged. `nbytes` is that of this rank; all other attributes are the same on all ranks.

    Args:
        batch: rows.
        heads: key/value heads.
        width: of the keys.
        mesh: a `DeviceMesh`.
        axis: the name or number of an axis of the mesh; a mesh with one axis needs none.
        value_width: of the values; `width` by default.
        capacity: tokens of a row on all ranks together, allocated at once; more are refused. None: grows.
        window: a query at position p attends to the keys p − window + 1 … p; pages before them are reused.
        dtype: the storage format, as in `qkv.KVCache`.
    """

    def __init__(
        self,
        batch: int,
        heads: int,
        width: int,
        *,
        mesh: DeviceMesh,
        axis: str | int | None = None,
        value_width: int | None = None,
        capacity: int | None = None,
        window: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._axis = read_axis(mesh, axis)
        self.capacity = None if capacity is None else check_size("capacity", capacity)
        self.window = None if window is None else check_size("window", window)
        own = None if self.capacity is None else max(1, int(self._slots(self.capacity)))
        # The attended keys of a rank span fewer slots than this.
        ring = None if self.window is None else -(-self.window // self._axis.size)
        options = {"value_width": value_width, "capacity": own, "window": ring, "dtype": dtype}
        self._local = LocalCache(batch, heads, width, **options)
        self._sizes = self._local.heads, self._local.width, self._local.value_width
        self.dtype, self.ranks = self._local.dtype, self._axis.size
        # longest: the largest length of each row since it was empty, which determines what a window has dropped.
        self._lengths = self._longest = np.zeros(self._local.batch, dtype=np.int64)
        # Of the first tokens, even if another rank stores them.
        self.token_type: tuple[torch.dtype, torch.device] | None = None

    @property
    def row_lengths(self) -> np.ndarray:
        """The tokens of each row on all ranks together, including those that a window has dropped."""
        return self._lengths

    @property
    def nbytes(self) -> int:
        """The bytes of this rank's pages."""
        return self._local.nbytes

    def __repr__(self) -> str:
        limits = {"capacity": self.capacity, "window": self.window}
        shown = "".join(f", {name}={limit}" for name, limit in limits.items() if limit)
        sizes = self.sizes_text.replace(" tokens,", f" tokens over {self.ranks} ranks,")
        return f"parallel.KVCache({sizes}, {str(self.dtype).removeprefix('torch.')}{shown})"

    def append(
        self,
        key: Float[Tensor, "batch heads n width"],
        value: Float[Tensor, "batch heads n value_width"],
        lengths: Any = None,
        padding: Padding = "right",
    ) -> None:
        """Append n tokens. Every rank is given all of them and stores its own.

        Args:
            key: (batch, heads, n, width).
            value: (batch, heads, n, value_width).
            lengths: how many tokens of each row are real; None for all.
            padding: the side of the padding, "right" or "left".

        Raises:
            ShapeError: for wrong shapes, and beyond the capacity.
        """
        with self._local.lock:
            check_new_tokens(self, key, value)  # pyright: ignore[reportArgumentType]
            counts, left = check_lengths(lengths, padding, self.batch, key.shape[2])
            self._check_capacity(key.shape[2] if counts is None else counts)
            self._local.append(*self._local_tokens(key, value, counts, left))
            self._publish(key, counts)

    def crop(self, n: Any) -> None:
        """Keep the first n tokens of each row; shorter rows do not change.

        Args:
            n: one number, or one for each row.

        Raises:
            OptionError: for n beyond the length, and if the window has dropped keys that a query at position n attends
                to.
        """
        with self._local.lock:
            lengths = check_crop(n, self._lengths, "cache")
            self._check_not_dropped(lengths)
            self._local.crop(self._slots(lengths))
            self._lengths, self._longest = lengths, np.where(lengths == 0, 0, self._longest)

    def reorder(self, index: Any) -> None:
        """Replace rows by rows[index], as in beam search: a row may occur more than once or not at all."""
        with self._local.lock:
            rows = check_rows(index, self.batch)
            self._local.reorder(rows)
            self._lengths, self._longest = self._lengths[rows], self._longest[rows]

    def fork(self) -> KVCache:
        """An independent cache with the same tokens; pages are shared until one of the two writes to them."""
        with self._local.lock:
            other = object.__new__(type(self))
            other.__dict__.update(self.__dict__)
            other._local = self._local.fork()
            return other

    def reset(self) -> None:
        """Remove all tokens; new tokens may have another dtype."""
        with self._local.lock:
            self._local.reset()
            self._lengths = self._longest = np.zeros_like(self._lengths)
            self.token_type = None

    def __reduce__(self) -> Any:
        hint = "it belongs to a running process group"
        raise OptionTypeError(complaint("KVCache", "an attempt to pickle it", "no pickling", hint))

    def _slots(self, length: Any, rank: Any = None) -> Any:
        """How many of the first `length` positions a rank stores."""
        return (length + self._axis.size - 1 - (self._axis.rank if rank is None else rank)) // self._axis.size

    def _check_capacity(self, more: Any) -> None:
        longest = int((self._lengths + more).max())
        if self.capacity is not None and longest > self.capacity:
            wanted = f"at most {self.capacity}: the capacity of the cache on all ranks"
            hint = "crop or reset the cache, or make one with capacity=None, which grows"
            raise ShapeError(complaint("key", f"{longest} tokens in all", wanted, hint))

    def _check_not_dropped(self, lengths: np.ndarray) -> None:
        """Check that no rank's window has dropped a key that a query after these lengths attends to. Every rank checks
        for all ranks: dropped are the pages that end `ring` slots before the longest length of a row."""
        ring, rank = self._local.window, np.arange(self.ranks)
        if self.window is None or ring is None:
            return
        dropped = np.maximum(0, (self._slots(self._longest[:, None], rank) - ring) // PAGE) * PAGE
        # The last dropped key of a rank, at (dropped − 1)·ranks + rank, must be outside of the window.
        least = np.where(dropped > 0, (dropped - 1) * self.ranks + rank + self.window, 0).max(1)
        wrong = (lengths < self._lengths) & (lengths > 0) & (lengths < least)
        if wrong.any():
            hint = f"window={self.window} has dropped keys that an earlier query attends to"
            wanted = f"at least {int(least[wrong].max())}, or 0"
            raise OptionError(complaint("n", int(lengths[wrong].min()), wanted, hint))

    def _local_tokens(
        self, key: Tensor, value: Tensor, counts: np.ndarray | None, left: bool
    ) -> tuple[Tensor, Tensor, np.ndarray | None]:
        """The new tokens that this rank stores, and how many of them are real in each row; None: all."""
        n, ranks = key.shape[2], self._axis.size
        # The index, among the real tokens of each row, of the first one that this rank stores.
        first = (self._axis.rank - self._lengths) % ranks
        if counts is None and (first == first[0]).all():
            stored = slice(int(first[0]), None, ranks)
            return key[:, :, stored], value[:, :, stored], None
        real = np.full_like(self._lengths, n) if counts is None else counts
        own = np.maximum(0, -((first - real) // ranks))
        most = int(own.max())
        skipped = n - real if left else np.zeros_like(real)
        indices = (skipped + first)[:, None] + ranks * np.arange(most)
        rows = torch.arange(len(real), device=key.device)[:, None]
        at = torch.from_numpy(np.clip(indices, 0, max(n - 1, 0))).to(key.device)
        own_key, own_value = (t.transpose(1, 2)[rows, at].transpose(1, 2) for t in (key, value))
        return own_key, own_value, own

    def _publish(self, key: Tensor, counts: np.ndarray | None) -> None:
        """Count the new tokens, which all ranks together have stored."""
        if key.shape[2] == 0 or (counts is not None and not counts.any()):
            return
        if self.token_type is None:
            self.token_type = key.dtype, key.device
        self._lengths = self._lengths + (key.shape[2] if counts is None else counts)
        self._longest = np.maximum(self._longest, self._lengths)
