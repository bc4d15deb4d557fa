"""A `KVCache` that the ranks of an axis hold together: each keeps every so-manieth token of a row.

The token at position p of a row goes to the least full rank, the lowest of equals. Since that is so from the first
token on, and since `crop` and a ring take away at the ends, it is always rank p mod ranks: rank r holds the positions
r, r + ranks, r + 2·ranks, … in its slots 0, 1, 2, …, and every rank knows where everything is without asking.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..cache import KVCache as LocalCache
from ..cache.kv import Padding
from ..cache.pages import PAGE
from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_lengths, check_new_tokens, check_rows, check_size
from ..shapes import Float
from .fingerprint import Fingerprint, fingerprint, token_phases
from .transfer import read_axis


class _History(NamedTuple):
    """How a cache has become what it is. happened: the last of what all ranks have to have done alike, with a mark of
    all before it. given: the tokens since, which the ranks have not compared yet."""

    lengths: np.ndarray
    happened: str = "nothing"
    given: Fingerprint = Fingerprint()

    def then(self, what: str, lengths: np.ndarray, given: Fingerprint, mark: str = "") -> _History:
        text = f"{self.happened}|{what}|{mark}|{self.lengths.tolist()}"
        return _History(lengths, f"{what} #{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}", given)


class KVCache:
    """Keys and values of the past, for `qkv.parallel.decode`, spread over the ranks of a mesh's axis.

    Every rank makes one with the same sizes and calls the same methods with the same tokens; each keeps its part of
    them in a `qkv.KVCache` of its own, so that R ranks hold contexts R times as long as one machine can. In each row
    the ranks are equally full but for one token, after any of the methods. None of them sends a message.
    mesh, axis: a `DeviceMesh` and the name or number of its axis; with one axis the name can be left out.
    batch, heads, width, value_width, dtype: as in `qkv.KVCache`.
    capacity: tokens a row, over all ranks together; each sets its part of the cache aside at once. More are refused.
    window: a ring. A query at position p sees the keys p − window + 1 … p; each rank uses its pages behind that again.

    At the edges: with fewer tokens than ranks some ranks hold nothing. An error leaves the cache as it was. Caches
    that were treated differently on two ranks are found out by the next `decode`. `nbytes` is this rank's; everything
    else is the same on all of them.
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
        self._capacity = None if capacity is None else check_size("capacity", capacity)
        self._window = None if window is None else check_size("window", window)
        own = None if self._capacity is None else max(1, int(self._slots(self._capacity)))
        # No two of a rank's keys that a query sees are this far apart in its slots.
        ring = None if self._window is None else -(-self._window // self._axis.size)
        self._local = LocalCache(
            batch, heads, width, value_width=value_width, capacity=own, window=ring, dtype=dtype
        )  # fmt: skip
        self._set_rows(np.zeros(self._local.batch, dtype=np.int64), np.zeros(self._local.batch, dtype=np.int64))
        # The last is the present; the others are what `crop` can go back to as if nothing had happened since.
        self._pasts = [_History(self._lengths)]
        self._dtype_device: tuple[torch.dtype, torch.device] | None = None  # of the first tokens, this rank's or not

    def _set_rows(self, lengths: np.ndarray, longest: np.ndarray) -> None:
        """longest: what each row has been since it was empty, which says what the rings have let go."""
        self._lengths, self._longest = lengths, longest

    @property
    def batch(self) -> int:
        return self._local.batch

    @property
    def heads(self) -> int:
        return self._local.heads

    @property
    def width(self) -> int:
        return self._local.width

    @property
    def value_width(self) -> int:
        return self._local.value_width

    @property
    def capacity(self) -> int | None:
        return self._capacity

    @property
    def window(self) -> int | None:
        return self._window

    @property
    def dtype(self) -> torch.dtype:
        """The storage format."""
        return self._local.dtype

    @property
    def ranks(self) -> int:
        return self._axis.size

    @property
    def length(self) -> int:
        """How many tokens the longest row was given, on all ranks together; those that a ring has let go count."""
        return int(self._lengths.max())

    @property
    def lengths(self) -> Tensor:
        """The same for each row, int64 (batch,); a copy."""
        return torch.from_numpy(self._lengths.copy())

    @property
    def nbytes(self) -> int:
        """The bytes of this rank's pages."""
        return self._local.nbytes

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        widths = f"{self.width}" if self.width == self.value_width else f"{self.width}/{self.value_width}"
        limits = "".join(
            f", {name}={limit}" for name, limit in (("capacity", self.capacity), ("window", self.window)) if limit
        )
        sizes = f"{self.batch} x {self.heads} heads x {self.length} tokens over {self.ranks} ranks"
        return f"parallel.KVCache({sizes}, width {widths}, {kind}{limits})"

    def append(
        self,
        key: Float[Tensor, "batch heads n width"],
        value: Float[Tensor, "batch heads n value_width"],
        lengths: Any = None,
        padding: Padding = "right",
    ) -> None:
        """Remember n more tokens; lengths[b] of them for row b, the first ones, or the last with padding="left". Every
        rank is given all of them, and keeps its own."""
        with self._lock:
            check_new_tokens(self, key, value)  # pyright: ignore[reportArgumentType]
            counts, left = check_lengths(lengths, padding, self.batch, key.shape[2])
            self._check_room(key.shape[2] if counts is None else counts)
            own_key, own_value, own_counts = self._own(key, value, counts, left)
            given = self._looked(key, value, counts, left)
            self._local.append(own_key, own_value, own_counts)
            self._publish(key, counts)
            now = self._pasts[-1]
            if (now.lengths != self._lengths).any():
                self._pasts.append(_History(self._lengths, now.happened, now.given.plus(given)))

    def crop(self, n: int) -> None:
        """Keep the first n tokens of each row; shorter rows stay as they are.

        A ring can go back as long as everything that a query at position n may see is still there, on every rank.
        """
        n = check_size("n", n, least=0)
        with self._lock:
            if n > self.length:
                hint = "crop keeps the first n tokens, and cannot make more"
                raise OptionError(complaint("n", n, f"at most {self.length}, the cache's length", hint))
            self._check_still_there(n)
            self._local.crop(int(self._slots(n)))
            lengths = np.minimum(self._lengths, n)
            self._set_rows(lengths, np.where(lengths == 0, 0, self._longest))
            if n == 0:
                self._pasts = [_History(lengths)]
                return
            now = self._pasts[-1]
            self._pasts = [past for past in self._pasts if (past.lengths <= lengths).all()]
            if not self._pasts or (self._pasts[-1].lengths != lengths).any():
                self._pasts.append(now.then(f"crop({n})", lengths, now.given))

    def reorder(self, index: Any) -> None:
        """Rows become rows[index], as in beam search: some more than once, some not at all, any number of them."""
        with self._lock:
            rows = check_rows(index, self.batch)
            self._local.reorder(rows)
            self._set_rows(self._lengths[rows], self._longest[rows])
            now = self._pasts[-1]
            self._pasts = [now.then(f"reorder({rows.tolist()})", self._lengths, now.given)]

    def fork(self) -> KVCache:
        """An independent cache with the same tokens. All pages are shared until one of the two writes to one."""
        with self._lock:
            other = object.__new__(type(self))
            other._axis, other._capacity, other._window, other._dtype_device = (
                self._axis, self._capacity, self._window, self._dtype_device
            )  # fmt: skip
            other._local = self._local.fork()
            other._set_rows(self._lengths.copy(), self._longest.copy())
            other._pasts = self._pasts.copy()
            return other

    def reset(self) -> None:
        """Forget everything; the pages are free for new tokens, which may have another dtype."""
        with self._lock:
            self._local.reset()
            self._set_rows(np.zeros_like(self._lengths), np.zeros_like(self._longest))
            self._pasts = [_History(self._lengths)]
            self._dtype_device = None

    def __copy__(self) -> KVCache:
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        return self.fork()

    def __reduce__(self) -> Any:
        hint = "it belongs to a process group that is running"
        raise OptionTypeError(complaint("KVCache", "a request to pickle it", "no pickles", hint))

    @property
    def _lock(self) -> Any:
        return self._local._pool.lock

    def _slots(self, length: Any, rank: int | None = None) -> Any:
        """How many of the first `length` positions a rank holds."""
        return (length + self._axis.size - 1 - (self._axis.rank if rank is None else rank)) // self._axis.size

    def _check_room(self, more: Any) -> None:
        longest = int((self._lengths + more).max())
        if self._capacity is not None and longest > self._capacity:
            wanted = f"at most {self._capacity}: the cache's capacity, over all ranks"
            hint = "crop or reset it, or make one with capacity=None, which grows"
            raise ShapeError(complaint("key", f"{longest} tokens in all", wanted, hint))

    def _check_still_there(self, n: int) -> None:
        """Whether no rank's ring has let go what a query at position n could see. Every rank answers for all of them:
        pages are gone that end `ring` slots before the most that a row has held."""
        ring = self._local.window
        if self._window is None or ring is None or n == 0:
            return
        for row in np.flatnonzero(self._lengths > n).tolist():
            least = 0
            for rank in range(self._axis.size):
                gone = max(0, (int(self._slots(self._longest[row], rank)) - ring) // PAGE) * PAGE
                if gone:  # its first key is at gone·ranks + rank, and the last one before it must be out of sight
                    least = max(least, (gone - 1) * self._axis.size + rank + self._window)
            if n < least:
                hint = f"the ring (window={self._window}) has let go what a query further back could see"
                raise OptionError(complaint("n", n, f"at least {least}, or 0", hint))

    def _own(
        self, key: Tensor, value: Tensor, counts: np.ndarray | None, left: bool
    ) -> tuple[Tensor, Tensor, np.ndarray | None]:
        """Those of the new tokens that this rank keeps, and how many of them count in each row; None: all."""
        n, ranks = key.shape[2], self._axis.size
        # The place of each row's first token that this rank keeps, among those that count.
        first = (self._axis.rank - self._lengths) % ranks
        if counts is None and (first == first[0]).all():
            mine = slice(int(first[0]), None, ranks)
            return key[:, :, mine], value[:, :, mine], None
        real = np.full_like(self._lengths, n) if counts is None else counts
        own = np.maximum(0, -((first - real) // ranks))
        most = int(own.max())
        skipped = n - real if left else np.zeros_like(real)
        places = (skipped + first)[:, None] + ranks * np.arange(most)
        rows = torch.arange(len(real), device=key.device)[:, None]
        at = torch.from_numpy(np.clip(places, 0, max(n - 1, 0))).to(key.device)
        own_key, own_value = (t.transpose(1, 2)[rows, at].transpose(1, 2) for t in (key, value))
        return own_key, own_value, own

    def _publish(self, key: Tensor, counts: np.ndarray | None) -> None:
        """All ranks together hold the new tokens."""
        if key.shape[2] == 0 or (counts is not None and not counts.any()):
            return
        if self._dtype_device is None:
            self._dtype_device = key.dtype, key.device
        lengths = self._lengths + (key.shape[2] if counts is None else counts)
        self._set_rows(lengths, np.maximum(self._longest, lengths))

    def _looked(self, key: Tensor, value: Tensor, counts: np.ndarray | None, left: bool) -> Fingerprint:
        """What tells these new tokens from others; nobody asks a rank that is alone."""
        if self._axis.size == 1:
            return Fingerprint()
        places = token_phases(self._lengths, key, counts, left)
        return fingerprint(key, places).plus(fingerprint(value, places), 1j)

    def _agreed(self, mark: str) -> None:
        """All ranks have compared what they were given, and mark it by the same text."""
        self._pasts = [self._pasts[-1].then("decode", self._lengths, Fingerprint(), mark)]
