"""LinearState: the sums that decoding with a feature map needs, in constant memory; with gates in `changing.py`."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import ops
from ..backends.linear import PIECE_NUMBERS, Chunk, KeyRange, Scan, normalized, run_native
from ..errors import OptionError, OptionTypeError, complaint
from ..features import MAX_FEATURES, FeatureMaps, feature_maps
from ..inputs import check_size, check_state_similarity, compute_dtype
from ..ops.kernels import IDENTITY, FeatureRule, linear_state_size
from ..shapes import Bool, Float
from ..similarity import AnySimilarity, FeatureMap, Polynomial, as_similarity
from ..states import AnyState
from .changing import StateContents, advance, check_change, empty_contents, state_of_tokens
from .inputs import check_crop, check_lengths, check_new_tokens, check_rows
from .kv import Padding
from .pages import LockOwner, TokenStore

# The most recent tokens that are stored unsummed: while there are no sums, and once there are.
_MAX_RECENT = 2048
_MAX_RECENT_WITH_SUMS = 128


class RecentTokens:
    """A buffer of recent tokens, shared by snapshots. A snapshot that uses all `filled` tokens may append to it."""

    def __init__(self, key: Tensor, value: Tensor, capacity: int) -> None:
        self.key, self.value = (t.new_empty(*t.shape[:2], capacity, t.shape[3]) for t in (key, value))
        self.filled = 0

    def write(self, key: Tensor, value: Tensor) -> None:
        new = slice(self.filled, self.filled + key.shape[2])
        self.key[:, :, new], self.value[:, :, new] = key, value
        self.filled = new.stop


class StateSnapshot(NamedTuple):
    """The contents of a state; immutable, so that forks and snapshots can share it.

    sums: Over older tokens, or None. recent: The later tokens, in the first `columns` of the buffer. keep: Which of
    these are real, if rows have different lengths. lengths: Tokens of each row. summed: Those in the sums.
    """

    sums: Tensor | None
    recent: RecentTokens | None
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

    def cropped(self, lengths: np.ndarray) -> StateSnapshot:
        """The first `lengths` tokens of each row; only recent tokens are removed."""
        if self.recent is None or np.array_equal(lengths, self.lengths):
            return self
        keep = self.keep
        if keep is None:
            keep = torch.ones(len(lengths), self.columns, dtype=torch.bool, device=self.key.device)
        wanted = torch.from_numpy(lengths - self.summed).to(keep.device)
        keep = keep & (keep.cumsum(1) <= wanted.unsqueeze(1))
        columns = int(keep.any(0).nonzero().max()) + 1 if bool(keep.any()) else 0
        keep = keep[:, :columns]
        return self._replace(columns=columns, keep=None if bool(keep.all()) else keep, lengths=lengths)

    def taken(self, rows: np.ndarray) -> StateSnapshot:
        """The rows of the batch with these indices."""

        def taken(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[torch.from_numpy(rows).to(tensor.device)]

        recent = None
        if self.columns:
            key, value = (t[:1].expand(len(rows), -1, -1, -1) for t in (self.key, self.value))
            recent = RecentTokens(key, value, self.key.shape[2])
            index = torch.from_numpy(rows).to(self.key.device)
            recent.write(self.key[index], self.value[index])
        lengths, summed = self.lengths[rows], self.summed[rows]
        return StateSnapshot(taken(self.sums), recent, self.columns, taken(self.keep), lengths, summed)


def _empty_snapshot(batch: int) -> StateSnapshot:
    zeros = np.zeros(batch, dtype=np.int64)
    return StateSnapshot(None, None, 0, None, zeros, zeros)


class LinearState(TokenStore):
    """A cache for `qkv.decode` with a similarity φ(q)·φ(k), stored as two sums: Σ φ(k) vᵀ and Σ φ(k).

    Recent tokens are stored unsummed, as long as scoring them is cheaper, and then added to the sums together; this
    does not change results. Sums are float32; float64 for float64 tokens, and where float32 overflows. A token cannot
    be removed from a sum: `crop` goes back to recent tokens, or to a `snapshot`. If a call raises, the state is
    unchanged. Forks share a lock, so threads may use them together. `copy.deepcopy` makes a fork.

    With `state=`, the sums change before a token is added (qkv.states), and each token is added at once. The gates of
    new tokens are given to `decode` and `append`.

    Args:
        similarity: A `FeatureMap` or a `Polynomial`.
        batch: Rows of the batch.
        heads: Key/value heads.
        width: Width of a key.
        value_width: Width of a value; `width` if None.
        state: None; one of the classes `Gated`, `Delta`, `GatedDelta` and `KDA`; or a `Decay`, which is the same for
            all tokens.
        rollback: With `state=`, how many of the last tokens `crop` can remove, in any row: the state before them is
            kept too.

    Raises:
        OptionError: A size is below 1, or the map has too many features.
        OptionTypeError: The similarity has no feature map, or the state is of no such kind.

    >>> import torch, qkv
    >>> state = LinearState(qkv.FeatureMap(qkv.features.elu1), batch=1, heads=2, width=4)
    >>> prompt = torch.randn(1, 2, 100, 4)
    >>> out = qkv.decode(prompt, prompt, prompt, state)
    >>> new = torch.randn(1, 2, 1, 4)
    >>> out = qkv.decode(new, new, new, state)
    >>> state.length
    101
    """

    def __init__(
        self,
        similarity: AnySimilarity,
        batch: int,
        heads: int,
        width: int,
        *,
        value_width: int | None = None,
        state: AnyState | type[AnyState] | None = None,
        rollback: int = 0,
    ) -> None:
        self._similarity = _check_similarity(similarity)
        batch, heads, width = check_size("batch", batch), check_size("heads", heads), check_size("width", width)
        value_width = width if value_width is None else check_size("value_width", value_width)
        self._sizes = heads, width, value_width
        self._maps: FeatureMaps = feature_maps(self._similarity, width)
        if self._maps.features > MAX_FEATURES:
            given = f"{self._maps.features} features for width {width}"
            hint = "use a KVCache, or attention over the whole sequence"
            raise OptionError(complaint("similarity", given, f"at most {MAX_FEATURES}", hint))
        # Scoring a token takes width + value_width products, reading the sums takes features · (value_width + 1).
        break_even = self._maps.features * (value_width + 1) // (width + value_width)
        self._max_recent = max(16, min(_MAX_RECENT, break_even))
        self._shared = LockOwner()
        self.token_type: tuple[torch.dtype, torch.device] | None = None
        self._sums: WideningSums | None = None
        self._change, self._rollback = check_change(state), check_size("rollback", rollback, least=0)
        if self._change is not None:
            check_state_similarity(self._similarity, self._change)
        elif rollback:
            hint = "without state=, crop goes back to recent tokens, and to a snapshot()"
            raise OptionError(complaint("rollback", rollback, "0 without state=", hint))
        self._contents: StateSnapshot | StateContents = self._empty(batch)
        self._snapshots: list[StateSnapshot | StateContents] = []

    def _empty(self, batch: int) -> StateSnapshot | StateContents:
        return _empty_snapshot(batch) if self._change is None else empty_contents(batch)

    @property
    def lock(self) -> Any:
        """The lock that a state shares with its forks."""
        return self._shared.lock

    @property
    def similarity(self) -> AnySimilarity:
        return self._similarity

    def has_similarity(self, other: AnySimilarity) -> bool:
        """Whether `other` has the same parameters and the same map; a copy of a map may have been trained."""
        same_map = getattr(other, "map", None) is getattr(self._similarity, "map", None)
        return same_map and other.signature == self._similarity.signature

    @property
    def row_lengths(self) -> np.ndarray:
        return self._contents.lengths

    @property
    def nbytes(self) -> int:
        """Bytes of the sums and of the whole buffer of recent tokens, without snapshots."""
        itemsize = 4 if self.token_type is None else self.token_type[0].itemsize
        if isinstance(self._contents, StateContents):
            size = 4 if self.token_type is None else compute_dtype(self.token_type[0]).itemsize
            columns = self.value_width + self._similarity.normalizes
            parts = self._contents.recent or ()
            held = self.batch * self.heads * self._maps.features * columns * size * (2 if self._rollback else 1)
            return held + sum(t.numel() * t.itemsize for t in parts[1:] if t is not None)
        recent = self.batch * self.heads * self._max_recent * (self.width + self.value_width) * itemsize
        sums = self._sums or WideningSums(torch.float32, torch.device("cpu"), self._maps, self.value_width)
        return recent + self.batch * self.heads * sums.head_bytes(self._contents.sums)

    def __repr__(self) -> str:
        change = self._change.__name__ if isinstance(self._change, type) else self._change
        return f"LinearState({self._similarity!r}, {self.sizes_text}{'' if change is None else f', state={change}'})"

    def append(
        self,
        key: Float[Tensor, "batch heads n width"],
        value: Float[Tensor, "batch heads n value_width"],
        lengths: Any = None,
        padding: Padding = "right",
        *,
        state: AnyState | None = None,
    ) -> None:
        """Append n tokens to each row.

        Args:
            key: (batch, heads, n, width).
            value: (batch, heads, n, value_width).
            lengths: How many of the n tokens are real in each row; all if None. Padding is not stored.
            padding: Where the padding of a shorter row is: "right" or "left" of its real tokens.
            state: The gates of these tokens, where the state has gates.
        """
        with self.lock:
            check_new_tokens(self, key, value)
            counts, left = check_lengths(lengths, padding, self.batch, key.shape[2])
            self.advance(None, key, value, counts, left, state)

    def crop(self, n: Any) -> None:
        """Keep the first n tokens of each row, if the others are recent tokens or there is a snapshot of that length.

        Args:
            n: One number, for which shorter rows are unchanged, or one for each row.

        >>> import torch, qkv
        >>> state = LinearState(qkv.Polynomial(2), batch=1, heads=1, width=2)
        >>> state.append(torch.ones(1, 1, 5, 2), torch.ones(1, 1, 5, 2))
        >>> state.crop(3)
        >>> state.length
        3
        """
        with self.lock:
            contents = self._contents
            wanted = check_crop(n, contents.lengths, "state")
            # Longer snapshots have tokens that are removed here.
            shorter = [snapshot for snapshot in self._snapshots if (snapshot.lengths <= wanted).all()]
            if (wanted >= contents.summed).all():
                self._contents, self._snapshots = contents.cropped(wanted), shorter
                return
            for snapshot in shorter:
                if np.array_equal(snapshot.lengths, wanted):
                    self._contents, self._snapshots = snapshot, shorter
                    return
            least = int(contents.summed[wanted < contents.summed].max())
            hint = "tokens cannot be removed from a sum; call snapshot() at lengths that you want to crop to"
            hint += "" if self._change is None else ", or make the state with rollback="
            raise OptionError(complaint("n", str(n), f"at least {least}, or the length of a snapshot", hint))

    def snapshot(self) -> None:
        """Save the contents so that `crop` can return to this length. A snapshot takes as much memory as the state."""
        with self.lock:
            self._snapshots = [s for s in self._snapshots if not np.array_equal(s.lengths, self._contents.lengths)]
            self._snapshots.append(self._contents)

    def reorder(self, index: Any) -> None:
        """Replace the rows by rows[index], as in beam search; rows may be repeated or dropped, and batch may change."""
        with self.lock:
            rows = check_rows(index, self.batch)
            snapshots = [snapshot.taken(rows) for snapshot in self._snapshots]
            self._contents, self._snapshots = self._contents.taken(rows), snapshots

    def fork(self) -> LinearState:
        """Return an independent state with the same tokens; the two share memory until one changes."""
        with self.lock:
            other = object.__new__(type(self))
            other.__dict__.update(self.__dict__)
            other._snapshots = list(self._snapshots)
            return other

    def reset(self) -> None:
        """Remove all tokens and snapshots; tokens that are appended later may have another dtype."""
        with self.lock:
            self._contents, self._snapshots = self._empty(self.batch), []
            self.token_type = self._sums = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state without snapshots to a safetensors file. The file is replaced atomically."""
        from .files import save_state

        save_state(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], similarity: AnySimilarity) -> LinearState:
        """Read a state that `save` wrote; `similarity` must be the saved one, since files store no functions."""
        from .files import load_state

        return load_state(cls, path, similarity)

    def advance(
        self,
        query: Tensor | None,
        key: Tensor,
        value: Tensor,
        counts: np.ndarray | None,
        left: bool,
        state: AnyState | None = None,
    ) -> Tensor | None:
        """Append tokens and attend from their queries, if given. The contents are replaced last, in one assignment."""
        n, contents = key.shape[2], self._contents
        if self._change is not None:
            state = state_of_tokens(self._change, state)
        elif state is not None:
            hint = "say so when the state is made: LinearState(..., state=...)"
            raise OptionTypeError(complaint("state", repr(state), "None: this LinearState only adds tokens", hint))
        if n == 0 or (counts is not None and not counts.any()):
            return None if query is None else query.new_zeros((*query.shape[:3], self.value_width))
        if isinstance(contents, StateContents):
            assert state is not None
            keep = None if counts is None else _counted_tokens(counts, n, left, key.device)
            tokens = None if query is None else _plain(query), _plain(key), _plain(value)
            out, contents = advance(contents, self._similarity, state, tokens, keep, self._rollback)
            if self.token_type is None:
                self.token_type = key.dtype, key.device
            self._contents = contents
            return out if keep is None or query is None else out.masked_fill(~keep[:, None, :, None], 0.0)
        sums = self._sums or WideningSums(key.dtype, key.device, self._maps, self.value_width)
        key, value = _plain(key), _plain(value)
        query = None if query is None else _plain(query)
        keep = None if counts is None else _counted_tokens(counts, n, left, key.device)
        if query is not None and keep is not None:  # padding must not change the result
            query = query.masked_fill(~keep[:, None, :, None], 0.0)
        # With sums, which are read in any case, fewer recent tokens are kept.
        limit = self._max_recent if contents.sums is None else min(self._max_recent, _MAX_RECENT_WITH_SUMS)
        if contents.columns and contents.columns + n > limit:
            added = sums.add(contents.sums, contents.key, contents.value, contents.keep)
            contents = StateSnapshot(added, None, 0, None, contents.lengths, contents.lengths)
            limit = min(limit, _MAX_RECENT_WITH_SUMS)
        lengths = contents.lengths + (n if counts is None else counts)
        if n > limit:
            out, added = sums.attend_and_add(contents.sums, query, key, value, keep)
            contents = StateSnapshot(added, None, 0, None, lengths, lengths)
        else:
            before = contents.columns
            contents = _append_recent(contents, key, value, keep, limit)._replace(lengths=lengths)
            out = None
            if query is not None:
                out = sums.attend(contents.sums, query, contents.key, contents.value, contents.keep, before)
        if query is not None and out is not None and n > 1 and not ops.all_finite(out):
            return self._advance_by_token(query, key, value, keep)
        if out is not None and keep is not None:
            out = out.masked_fill(~keep[:, None, :, None], 0.0)
        # In this order: an interrupt in between leaves contents that the state can read.
        if self.token_type is None:
            self.token_type = key.dtype, key.device
        self._sums = sums
        self._contents = contents
        return out

    def _advance_by_token(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        """Used if values are non-finite: 0 · inf is NaN, so earlier queries must not multiply later tokens by 0."""
        start, outs = (self._contents, self._sums, self.token_type), []
        try:
            for i in range(key.shape[2]):
                counts = None if keep is None else keep[:, i].cpu().numpy().astype(np.int64)
                one = slice(i, i + 1)
                outs.append(self.advance(query[:, :, one], key[:, :, one], value[:, :, one], counts, False))
        except BaseException:
            self._contents, self._sums, self.token_type = start
            raise
        return torch.cat(outs, dim=2)


def _check_similarity(given: Any) -> FeatureMap | Polynomial:
    similarity = as_similarity(given)
    if not isinstance(similarity, FeatureMap | Polynomial):
        hint = f"{type(similarity).__name__} has no finite feature map: decode it with a qkv.KVCache"
        raise OptionTypeError(complaint("similarity", repr(given), "a FeatureMap or a Polynomial", hint))
    return similarity


def _plain(tensor: Tensor) -> Tensor:
    """Without a gradient or a pending negation."""
    return (tensor.detach() if tensor.requires_grad else tensor).resolve_neg()


def _counted_tokens(counts: np.ndarray, n: int, left: bool, device: torch.device) -> Bool[Tensor, "batch n"]:
    """Which of the n new tokens of each row are real."""
    index = torch.arange(n, device=device)
    limits = torch.from_numpy(counts).to(device).unsqueeze(1)
    return index >= n - limits if left else index < limits


def _append_recent(
    contents: StateSnapshot, key: Tensor, value: Tensor, keep: Tensor | None, capacity: int
) -> StateSnapshot:
    """Append to the recent tokens; a buffer in which another snapshot has more tokens is copied."""
    recent, columns = contents.recent, contents.columns
    if recent is None or recent.filled != columns or columns + key.shape[2] > recent.key.shape[2]:
        recent = RecentTokens(key, value, max(capacity, columns + key.shape[2]))
        if columns:
            recent.write(contents.key, contents.value)
    recent.write(key, value)
    if keep is not None or contents.keep is not None:
        sizes = (contents.keep, columns), (keep, key.shape[2])
        parts = [key.new_ones(key.shape[0], n, dtype=torch.bool) if kept is None else kept for kept, n in sizes]
        keep = torch.cat(parts, dim=1)
    return contents._replace(recent=recent, columns=columns + key.shape[2], keep=keep)


def make_sums(dtype: torch.dtype, device: torch.device, maps: FeatureMaps, value_width: int) -> Sums:
    if device.type == "cpu" and dtype is not torch.float64 and not ops.reasons():
        return NativeSums(maps, value_width)
    return TorchSums(maps, value_width, torch.float64 if dtype is torch.float64 else torch.float32)


class NativeSums:
    """Computes with sums Σ φ(k) (v, 1)ᵀ, in a tensor whose layout only the class knows; None is the empty sum.

    `add` returns the sums with tokens added, in a new tensor. `attend` computes V' over the sums and the keys
    j ≤ i + offset, and `attend_and_add` over the sums and the keys j ≤ i, before it adds them. `unpack` converts to
    (batch, heads, features, value_width + 1), `pack` back.
    """

    def __init__(self, maps: FeatureMaps, value_width: int) -> None:
        self._maps, self._value_width = maps, value_width
        # A map that the native library does not have is applied in Python first.
        self._floats = linear_state_size(maps.rule or FeatureRule(IDENTITY, maps.features), value_width)

    def head_bytes(self) -> int:
        return 4 * self._floats

    def add(self, sums: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        return self.attend_and_add(sums, None, key, value, keep)[1]

    def attend(
        self, sums: Tensor | None, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, offset: int
    ) -> Tensor:
        return run_native(query, key, value, self._maps, KeyRange(offset, keep), True, sums).to(query.dtype)

    def attend_and_add(
        self, sums: Tensor | None, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        sums = torch.zeros(*key.shape[:2], self._floats) if sums is None else sums.clone()
        out = run_native(query, key, value, self._maps, KeyRange(0, keep), state=sums)
        return None if query is None else out, sums

    def unpack(self, sums: Tensor) -> Tensor:
        values, normalizer = self._parts(sums)
        return torch.cat([values[..., : self._value_width], normalizer.unsqueeze(-1)], dim=-1)

    def pack(self, plain: Tensor) -> Tensor:
        sums = torch.zeros(*plain.shape[:2], self._floats)
        values, normalizer = self._parts(sums)
        values[..., : self._value_width], normalizer[:] = plain[..., :-1], plain[..., -1]
        return sums

    def _parts(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Views of Σ φ(k) vᵀ, its rows padded to a multiple of 16, and of Σ φ(k)."""
        count, slots = self._maps.features, -(-self._value_width // 16) * 16
        values = sums[..., : count * slots].unflatten(-1, (count, slots))
        return values, sums[..., count * slots : count * (slots + 1)]


class TorchSums:
    """The same with torch, in tensors (batch, heads, features, value_width + 1)."""

    def __init__(self, maps: FeatureMaps, value_width: int, dtype: torch.dtype) -> None:
        self._maps, self._value_width, self._dtype = maps, value_width, dtype

    def head_bytes(self) -> int:
        return self._maps.features * (self._value_width + 1) * self._dtype.itemsize

    def _scan(self, query: Tensor, key: Tensor, value: Tensor, key_range: KeyRange) -> Scan:
        dtype = self._dtype
        return Scan(query.to(dtype), key.to(dtype), value.to(dtype), self._maps, key_range)

    def add(self, sums: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        batch, heads, n, _ = key.shape
        scan = self._scan(key[:, :, :0], key, value, KeyRange(None, keep))
        block = max(1, PIECE_NUMBERS // max(1, self._maps.features * batch * heads))
        for start in range(0, n, block):
            more = scan.state_of_keys(start, min(start + block, n))
            sums = more if sums is None else sums + more
        assert sums is not None
        return sums

    def attend(
        self, sums: Tensor | None, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, offset: int
    ) -> Tensor:
        scan = self._scan(query, key, value, KeyRange(offset, keep))
        y = scan.sums(Chunk(0, query.shape[2], 0, key.shape[2]), sums)
        return normalized(y, self._maps.normalize).to(query.dtype)

    def attend_and_add(
        self, sums: Tensor | None, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        if query is None:
            return None, self.add(sums, key, value, keep)
        outs = []
        for start in range(0, key.shape[2], 128):
            part = slice(start, start + 128)
            kept = None if keep is None else keep[:, part]
            outs.append(self.attend(sums, query[:, :, part], key[:, :, part], value[:, :, part], kept, 0))
            sums = self.add(sums, key[:, :, part], value[:, :, part], kept)
        assert sums is not None
        return torch.cat(outs, dim=2), sums

    def unpack(self, sums: Tensor) -> Tensor:
        return sums

    def pack(self, plain: Tensor) -> Tensor:
        return plain.to(self._dtype)


Sums = NativeSums | TorchSums


class WideningSums:
    """The sums of a state. What overflows in float32 is computed in float64 by torch, and such sums stay float64."""

    def __init__(self, dtype: torch.dtype, device: torch.device, maps: FeatureMaps, value_width: int) -> None:
        self._narrow = self._wide = make_sums(dtype, device, maps, value_width)
        if dtype is not torch.float64:
            self._wide = TorchSums(_mapped_in_float32(maps), value_width, torch.float64)

    def _engine(self, sums: Tensor | None) -> Sums:
        return self._wide if sums is not None and sums.dtype is torch.float64 else self._narrow

    def head_bytes(self, sums: Tensor | None) -> int:
        return self._engine(sums).head_bytes()

    def _widened(self, sums: Tensor | None) -> Tensor | None:
        return None if sums is None else self._wide.pack(self.unpack(sums))

    def add(self, sums: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        return self.attend_and_add(sums, None, key, value, keep)[1]

    def attend(
        self, sums: Tensor | None, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, offset: int
    ) -> Tensor:
        engine = self._engine(sums)
        out = engine.attend(sums, query, key, value, keep, offset)
        if engine is self._wide or ops.all_finite(out):
            return out
        return _first_finite(out, self._wide.attend(self._widened(sums), query, key, value, keep, offset))

    def attend_and_add(
        self, sums: Tensor | None, query: Tensor | None, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        engine = self._engine(sums)
        out, added = engine.attend_and_add(sums, query, key, value, keep)
        if engine is self._wide or ops.all_finite(*(t for t in (out, added) if t is not None)):
            return out, added
        wide_out, wide = self._wide.attend_and_add(self._widened(sums), query, key, value, keep)
        if out is not None and wide_out is not None:
            out = _first_finite(out, wide_out)
        overflowed = wide.isfinite() & ~engine.unpack(added).isfinite()
        return out, wide if bool(overflowed.any()) else added

    def unpack(self, sums: Tensor) -> Tensor:
        return self._engine(sums).unpack(sums)

    def pack(self, plain: Tensor) -> Tensor:
        return self._engine(plain).pack(plain)


def _mapped_in_float32(maps: FeatureMaps) -> FeatureMaps:
    """The same features for float64 tokens, by a map whose parameters may be float32."""
    by_query, by_key = maps.query, maps.key
    return maps._replace(query=lambda x: by_query(x.float()).double(), key=lambda x: by_key(x.float()).double())


def _first_finite(out: Tensor, wide: Tensor) -> Tensor:
    """`out`, and `wide` where only that is finite."""
    return torch.where(wide.isfinite() & ~out.isfinite(), wide, out)
