"""LinearState: what a decoder with a feature map remembers, in a size that does not grow."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .. import ops
from ..errors import OptionError, OptionTypeError, complaint
from ..features import MOST_FEATURES, Maps, maps_of
from ..inputs import check_lengths, check_new_tokens, check_rows, check_size
from ..ops.kernels import IDENTITY, Rule, linear, state_floats
from ..shapes import Bool, Float
from ..similarity import AnySimilarity, FeatureMap, Polynomial, as_similarity
from .kv import Padding
from .pages import Locked

# Tokens that are kept as they are, at most: before there are sums, and beside them.
_MOST_RECENT = 2048
_MOST_BESIDE_SUMS = 128


class Recent:
    """Room for recent tokens, which may be shared. Whoever holds all that is filled may write behind it."""

    def __init__(self, key: Tensor, value: Tensor, room: int) -> None:
        self.key, self.value = (t.new_empty(*t.shape[:2], room, t.shape[3]) for t in (key, value))
        self.filled = 0

    def write(self, key: Tensor, value: Tensor) -> None:
        new = slice(self.filled, self.filled + key.shape[2])
        self.key[:, :, new], self.value[:, :, new] = key, value
        self.filled = new.stop


class StateSnapshot(NamedTuple):
    """All that a state holds. Nothing of it is written to once it is here, so that it can be shared.

    folded: the sums over older tokens, None before there are any. recent: the tokens after those, in its first
    `columns` places. keep: which of them count, where rows are not equally long. lengths: of all tokens; summed: of
    those in the sums.
    """

    folded: Tensor | None
    recent: Recent | None
    columns: int
    keep: Bool[Tensor, "batch columns"] | None
    lengths: np.ndarray
    summed: np.ndarray

    @property
    def key(self) -> Tensor:
        assert self.recent is not None
        return self.recent.key[:, :, : self.columns]

    @property
    def value(self) -> Tensor:
        assert self.recent is not None
        return self.recent.value[:, :, : self.columns]


def _nothing(batch: int) -> StateSnapshot:
    none = np.zeros(batch, dtype=np.int64)
    return StateSnapshot(None, None, 0, None, none, none)


class LinearState:
    """Keys and values of the past for `qkv.decode` with a similarity φ(q)·φ(k), as two sums: Σ φ(k) vᵀ and Σ φ(k).

    similarity: `FeatureMap` or `Polynomial`; the same for the life of the state. batch, heads, width, value_width: the
    sizes of what is appended; heads are key/value heads.

    >>> import torch, qkv
    >>> state = LinearState(qkv.FeatureMap(qkv.features.elu1), batch=1, heads=2, width=4)
    >>> prompt = torch.randn(1, 2, 100, 4)
    >>> out = qkv.decode(prompt, prompt, prompt, state)
    >>> new = torch.randn(1, 2, 1, 4)
    >>> out = qkv.decode(new, new, new, state)
    >>> state.length
    101

    Recent tokens are kept as they are, as many as are cheaper to score than to sum, and then added to the sums all at
    once: nothing of that shows in an answer. Sums are float32, and float64 for float64 tokens. What was summed cannot
    be taken out again: `crop` goes back as far as tokens are still kept, or to a `snapshot`. An error leaves the state
    as it was. Forks share a lock: threads may use them together. A deep copy is a fork.
    """

    def __init__(
        self,
        similarity: AnySimilarity,
        batch: int,
        heads: int,
        width: int,
        *,
        value_width: int | None = None,
    ) -> None:
        self._similarity = _checked_similarity(similarity)
        batch, self._heads, self._width = (
            check_size("batch", batch),
            check_size("heads", heads),
            check_size("width", width),
        )
        self._value_width = self._width if value_width is None else check_size("value_width", value_width)
        self._maps: Maps = maps_of(self._similarity, self._width)
        if self._maps.features > MOST_FEATURES:
            given = f"{self._maps.features} features for width {self._width}"
            hint = "a KVCache, or attention over the whole sequence, is cheaper"
            raise OptionError(complaint("similarity", given, f"at most {MOST_FEATURES}", hint))
        # Scoring a token takes width + value_width products, reading the sums takes features · (value_width + 1).
        worth = self._maps.features * (self._value_width + 1) // (self._width + self._value_width)
        self._most_recent = max(16, min(_MOST_RECENT, worth))
        self._shared = Locked()
        self._seen: tuple[torch.dtype, torch.device] | None = None
        self._sums: Sums | None = None
        self._held = _nothing(batch)
        self._snapshots: list[StateSnapshot] = []

    @property
    def _lock(self) -> Any:
        return self._shared.lock

    @property
    def similarity(self) -> AnySimilarity:
        return self._similarity

    @property
    def batch(self) -> int:
        return len(self._held.lengths)

    @property
    def heads(self) -> int:
        return self._heads

    @property
    def width(self) -> int:
        return self._width

    @property
    def value_width(self) -> int:
        return self._value_width

    @property
    def length(self) -> int:
        """How many tokens the longest row was given."""
        return int(self._held.lengths.max())

    @property
    def lengths(self) -> Tensor:
        """The same for each row, int64 (batch,); a copy."""
        return torch.from_numpy(self._held.lengths.copy())

    @property
    def nbytes(self) -> int:
        """Bytes of the sums and of the recent tokens, full or not; snapshots are not counted."""
        itemsize = 4 if self._seen is None else self._seen[0].itemsize
        recent = self.batch * self._heads * self._most_recent * (self._width + self._value_width) * itemsize
        sums = self._sums or engine_of(torch.float32, torch.device("cpu"), self._maps, self._value_width)
        return recent + self.batch * self._heads * sums.bytes_of_a_head()

    def __repr__(self) -> str:
        widths = f"{self.width}" if self.width == self.value_width else f"{self.width}/{self.value_width}"
        sizes = f"{self.batch} x {self.heads} heads x {self.length} tokens, width {widths}"
        return f"LinearState({self._similarity!r}, {sizes})"

    def append(
        self,
        key: Float[Tensor, "batch heads n width"],
        value: Float[Tensor, "batch heads n value_width"],
        lengths: Any = None,
        padding: Padding = "right",
    ) -> None:
        """Remember n more tokens; lengths[b] of them for row b, the first ones, or the last with padding="left"."""
        with self._lock:
            check_new_tokens(self, key, value)
            counts, left = check_lengths(lengths, padding, self.batch, key.shape[2])
            self._advance(None, key, value, counts, left)

    def crop(self, n: int) -> None:
        """Keep the first n tokens of each row: as long as the others are still kept as they are, or to a snapshot.

        >>> import torch, qkv
        >>> state = LinearState(qkv.Polynomial(2), batch=1, heads=1, width=2)
        >>> state.append(torch.ones(1, 1, 5, 2), torch.ones(1, 1, 5, 2))
        >>> state.crop(3)
        >>> state.length
        3
        """
        n = check_size("n", n, least=0)
        with self._lock:
            if n > self.length:
                hint = "crop keeps the first n tokens, and cannot make more"
                raise OptionError(complaint("n", n, f"at most {self.length}, the state's length", hint))
            held = self._held
            wanted = np.minimum(held.lengths, n)
            # Longer snapshots are of a past that is given up here.
            shorter = [snapshot for snapshot in self._snapshots if (snapshot.lengths <= wanted).all()]
            if (wanted >= held.summed).all():
                self._held, self._snapshots = _shortened(held, wanted), shorter
                return
            for snapshot in shorter:
                if np.array_equal(snapshot.lengths, wanted):
                    self._held, self._snapshots = snapshot, shorter
                    return
            least = int(held.summed[wanted < held.summed].max())
            hint = "what was added to a sum cannot be taken out exactly; call snapshot() where you may want to go back"
            raise OptionError(complaint("n", n, f"at least {least}, or the length of a snapshot", hint))

    def snapshot(self) -> None:
        """Remember the present, for `crop` to go back to. A snapshot costs as much memory as the state."""
        with self._lock:
            self._snapshots = [s for s in self._snapshots if not np.array_equal(s.lengths, self._held.lengths)]
            self._snapshots.append(self._held)

    def reorder(self, index: Any) -> None:
        """Rows become rows[index], as in beam search: some more than once, some not at all, any number of them."""
        with self._lock:
            rows = check_rows(index, self.batch)
            self._held, self._snapshots = _of_rows(self._held, rows), [_of_rows(s, rows) for s in self._snapshots]

    def fork(self) -> LinearState:
        """An independent state with the same tokens. The two share what they hold until it changes."""
        with self._lock:
            other = object.__new__(type(self))
            other.__dict__.update(self.__dict__)
            other._snapshots = list(self._snapshots)
            return other

    def reset(self) -> None:
        """Forget everything, snapshots too; new tokens may have another dtype."""
        with self._lock:
            self._held, self._snapshots = _nothing(self.batch), []
            self._seen = self._sums = None

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the snapshots to a safetensors file: either the old file or the whole new one."""
        from .files import save_state

        save_state(self, path)

    @classmethod
    def load_state(cls, path: str | os.PathLike[str], similarity: AnySimilarity) -> LinearState:
        """A state from a file of `save`; the similarity is given again, since a file holds no functions."""
        from .files import load_state

        return load_state(cls, path, similarity)

    def __copy__(self) -> LinearState:
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> LinearState:
        return self.fork()

    def __reduce__(self) -> Any:
        hint = "state.save(path) and LinearState.load(path, similarity) write and read safetensors"
        raise OptionTypeError(complaint("LinearState", "a request to pickle it", "no pickles", hint))

    def _advance(
        self, query: Tensor | None, key: Tensor, value: Tensor, counts: np.ndarray | None, left: bool
    ) -> Tensor | None:
        """Append, and answer the queries of the new tokens where there are some. The state changes last, at once."""
        n = key.shape[2]
        if n == 0 or (counts is not None and not counts.any()):
            return None if query is None else query.new_zeros((*query.shape[:3], self._value_width))
        sums = self._sums or engine_of(key.dtype, key.device, self._maps, self._value_width)
        key, value = key.detach().resolve_neg(), value.detach().resolve_neg()
        keep = new_keep = None if counts is None else _counting(counts, n, left, key.device)
        new_key, new_value = key, value
        if query is not None and keep is not None:  # whatever stands where nothing counts must not change a bit
            query = query.masked_fill(~keep[:, None, :, None], 0.0)
        held = self._held
        # Once there are sums they have to be read anyway, and a few tokens at a time go into them.
        most = self._most_recent if held.folded is None else min(self._most_recent, _MOST_BESIDE_SUMS)
        if held.columns and held.columns + n > most:
            folded = sums.folded(held.folded, held.key, held.value, held.keep)
            held, most = StateSnapshot(folded, None, 0, None, held.lengths, held.lengths), min(most, _MOST_BESIDE_SUMS)
        lengths = held.lengths + (n if counts is None else counts)
        if n > most:
            out, folded = sums.folding(held.folded, query, key, value, keep)
            held = StateSnapshot(folded, None, 0, None, lengths, lengths)
        else:
            before = held.columns
            held = _joined(held, key, value, keep, most)._replace(lengths=lengths)
            out = None
            if query is not None:
                out = sums.attended(held.folded, query, held.key, held.value, held.keep, before)
        if query is not None and out is not None and n > 1 and not ops.all_finite(out):
            return self._one_by_one(query, new_key, new_value, new_keep)
        if out is not None and counts is not None:
            assert new_keep is not None
            out = out.masked_fill(~new_keep[:, None, :, None], 0.0)
        # In this order: whatever comes between, nothing is held that the state does not know how to read.
        if self._seen is None:
            self._seen = key.dtype, key.device
        self._sums = sums
        self._held = held
        return out

    def _one_by_one(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        """Where a number is not finite: 0 times it is not 0, so no token may stand beside those before it."""
        start, outs = (self._held, self._sums, self._seen), []
        try:
            for i in range(key.shape[2]):
                counts = None if keep is None else keep[:, i].cpu().numpy().astype(np.int64)
                one = slice(i, i + 1)
                outs.append(self._advance(query[:, :, one], key[:, :, one], value[:, :, one], counts, False))
        except BaseException:
            self._held, self._sums, self._seen = start
            raise
        return torch.cat(outs, dim=2)


def _checked_similarity(given: Any) -> FeatureMap | Polynomial:
    similarity = as_similarity(given)
    if not isinstance(similarity, FeatureMap | Polynomial):
        hint = "a KVCache holds the tokens themselves, for Softmax and Argmax"
        raise OptionTypeError(complaint("similarity", repr(given), "a FeatureMap or a Polynomial", hint))
    return similarity


def _counting(counts: np.ndarray, n: int, left: bool, device: torch.device) -> Bool[Tensor, "batch n"]:
    """Which of the n new tokens of each row count."""
    places = torch.arange(n, device=device)
    limits = torch.from_numpy(counts).to(device).unsqueeze(1)
    return places >= n - limits if left else places < limits


def _joined(held: StateSnapshot, key: Tensor, value: Tensor, keep: Tensor | None, room: int) -> StateSnapshot:
    """Recent tokens and new ones; those that others share stay as they are."""
    recent, columns = held.recent, held.columns
    if recent is None or recent.filled != columns or columns + key.shape[2] > recent.key.shape[2]:
        recent = Recent(key, value, max(room, columns + key.shape[2]))
        if columns:
            recent.write(held.key, held.value)
    recent.write(key, value)
    if keep is not None or held.keep is not None:
        sizes = (held.keep, columns), (keep, key.shape[2])
        parts = [key.new_ones(key.shape[0], n, dtype=torch.bool) if kept is None else kept for kept, n in sizes]
        keep = torch.cat(parts, dim=1)
    return held._replace(recent=recent, columns=columns + key.shape[2], keep=keep)


def _shortened(held: StateSnapshot, lengths: np.ndarray) -> StateSnapshot:
    """The first tokens of each row; all that go are recent ones."""
    if held.recent is None or np.array_equal(lengths, held.lengths):
        return held
    keep = held.keep
    if keep is None:
        keep = torch.ones(len(lengths), held.columns, dtype=torch.bool, device=held.key.device)
    wanted = torch.from_numpy(lengths - held.summed).to(keep.device)
    keep = keep & (keep.cumsum(1) <= wanted.unsqueeze(1))
    columns = int(keep.any(0).nonzero().max()) + 1 if bool(keep.any()) else 0
    keep = keep[:, :columns]
    return held._replace(columns=columns, keep=None if bool(keep.all()) else keep, lengths=lengths)


def _of_rows(held: StateSnapshot, rows: np.ndarray) -> StateSnapshot:
    def taken(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[torch.from_numpy(rows).to(tensor.device)]

    recent = None
    if held.columns:
        recent = Recent(held.key[:1].expand(len(rows), -1, -1, -1), held.value[:1].expand(len(rows), -1, -1, -1),
                        held.key.shape[2])  # fmt: skip
        index = torch.from_numpy(rows).to(held.key.device)
        recent.write(held.key[index], held.value[index])
    return StateSnapshot(
        taken(held.folded), recent, held.columns, taken(held.keep), held.lengths[rows], held.summed[rows]
    )


_PIECE = 1 << 19


class Sums(Protocol):
    """Σ φ(k) (v, 1)ᵀ over some tokens, in a tensor of the engine's own making; None stands for no tokens."""

    def bytes_of_a_head(self) -> int: ...

    def folded(self, sums: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        """The sums with these tokens as well, in a new tensor."""
        ...

    def attended(
        self, sums: Tensor | None, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, offset: int
    ) -> Tensor:
        """V' over the sums and the keys j ≤ i + offset."""
        ...

    def folding(
        self, sums: Tensor | None, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        """V' over the sums and the keys j ≤ i, and the sums with all of them."""
        ...

    def plain(self, sums: Tensor) -> Tensor:
        """(batch, heads, features, value_width + 1)."""
        ...

    def packed(self, plain: Tensor) -> Tensor:
        """The way back."""
        ...


def engine_of(dtype: torch.dtype, device: torch.device, maps: Maps, value_width: int) -> Sums:
    if device.type == "cpu" and dtype is not torch.float64 and not ops.reasons():
        return NativeSums(maps, value_width)
    return TorchSums(maps, value_width, torch.float64 if dtype is torch.float64 else torch.float32)


class NativeSums:
    def __init__(self, maps: Maps, value_width: int) -> None:
        self._maps, self._value_width = maps, value_width
        # A map that the library does not know is applied before it is called.
        self._known = maps.rule is not None
        self._rule = maps.rule if maps.rule is not None else Rule(IDENTITY, maps.features)

    def bytes_of_a_head(self) -> int:
        return 4 * state_floats(self._rule, self._value_width)

    def folded(self, sums: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        return self.folding(sums, None, key, value, keep)[1]

    def attended(
        self, sums: Tensor | None, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, offset: int
    ) -> Tensor:
        q, k, v = self._ready(query, key, value, keep)
        out = linear(
            q, k, v, self._rule,
            keep=keep, offset=offset, normalize=self._maps.normalize, state=sums, direct=True,
        )  # fmt: skip
        assert out is not None
        return out.to(query.dtype)

    def folding(
        self, sums: Tensor | None, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        batch, heads, n, _ = key.shape
        floats = state_floats(self._rule, self._value_width)
        sums = torch.zeros(batch, heads, floats) if sums is None else sums.clone()
        rows = heads if query is None else query.shape[1]
        piece = n if self._known else max(64, _PIECE // max(1, self._maps.features * batch * rows))
        outs = []
        for start in range(0, n, piece):
            part = slice(start, start + piece)
            kept = None if keep is None else keep[:, part]
            asked = None if query is None else query[:, :, part]
            q, k, v = self._ready(asked, key[:, :, part], value[:, :, part], kept)
            outs.append(linear(q, k, v, self._rule, keep=kept, offset=0, normalize=self._maps.normalize, state=sums))
        out = None if query is None else torch.cat([o for o in outs if o is not None], dim=2).to(query.dtype)
        return out, sums

    def plain(self, sums: Tensor) -> Tensor:
        values, below = self._parts(sums)
        return torch.cat([values[..., : self._value_width], below.unsqueeze(-1)], dim=-1)

    def packed(self, plain: Tensor) -> Tensor:
        sums = torch.zeros(*plain.shape[:2], state_floats(self._rule, self._value_width))
        values, below = self._parts(sums)
        values[..., : self._value_width], below[:] = plain[..., :-1], plain[..., -1]
        return sums

    def _parts(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Views: Σ φ(k) vᵀ with its rows filled up, and Σ φ(k)."""
        count, slots = self._maps.features, -(-self._value_width // 16) * 16
        values = sums[..., : count * slots].unflatten(-1, (count, slots))
        return values, sums[..., count * slots : count * (slots + 1)]

    def _ready(
        self, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        if self._known:
            return query, key, value
        key, value = key.float(), value.float()
        if keep is not None:
            key = key.masked_fill(~keep[:, None, :, None], 0.0)
        return None if query is None else self._maps.query(query.float()), self._maps.key(key), value


class TorchSums:
    def __init__(self, maps: Maps, value_width: int, dtype: torch.dtype) -> None:
        self._maps, self._value_width, self._dtype = maps, value_width, dtype

    def bytes_of_a_head(self) -> int:
        return self._maps.features * (self._value_width + 1) * self._dtype.itemsize

    def folded(self, sums: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        batch, heads, n, _ = key.shape
        piece = max(1, _PIECE // max(1, self._maps.features * batch * heads))
        for start in range(0, n, piece):
            part = slice(start, start + piece)
            kept = None if keep is None else keep[:, part]
            features, values = self._tokens(key[:, :, part], value[:, :, part], kept)
            more = features.mT @ values
            sums = more if sums is None else sums + more
        assert sums is not None
        return sums

    def attended(
        self, sums: Tensor | None, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, offset: int
    ) -> Tensor:
        batch, heads_q, n, _ = query.shape
        heads = key.shape[1]
        features, values = self._tokens(key, value, keep)
        asked = self._maps.query(query.to(self._dtype)).reshape(batch, heads, heads_q // heads * n, -1)
        rows = torch.arange(n, device=query.device).repeat(heads_q // heads).unsqueeze(1) + offset
        seen = torch.arange(key.shape[2], device=query.device) <= rows
        y = (asked @ features.mT).masked_fill(~seen, 0.0) @ values
        y = y if sums is None else y + asked @ sums
        above, below = y[..., :-1], y[..., -1:]
        if self._maps.normalize:
            above = torch.where(below == 0, 0.0, above / torch.where(below == 0, 1.0, below))
        return above.reshape(batch, heads_q, n, -1).to(query.dtype)

    def folding(
        self, sums: Tensor | None, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        if query is None:
            return None, self.folded(sums, key, value, keep)
        outs = []
        for start in range(0, key.shape[2], 128):
            part = slice(start, start + 128)
            kept = None if keep is None else keep[:, part]
            outs.append(self.attended(sums, query[:, :, part], key[:, :, part], value[:, :, part], kept, 0))
            sums = self.folded(sums, key[:, :, part], value[:, :, part], kept)
        assert sums is not None
        return torch.cat(outs, dim=2), sums

    def plain(self, sums: Tensor) -> Tensor:
        return sums

    def packed(self, plain: Tensor) -> Tensor:
        return plain.to(self._dtype)

    def _tokens(self, key: Tensor, value: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """φ(k) and (v, 1), 0 where a token does not count."""
        hidden = None if keep is None else ~keep[:, None, :, None]
        key, value = key.to(self._dtype), value.to(self._dtype)
        values = torch.cat([value, value.new_ones((*value.shape[:3], 1))], dim=-1)
        if hidden is None:
            return self._maps.key(key), values
        features = self._maps.key(key.masked_fill(hidden, 0.0))
        return features.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0)
