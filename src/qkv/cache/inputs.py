"""Arguments of `decode` and of caches, validated once: `DecodeInputs` has a mask resolved over the whole sequence.

Masks are read in absolute positions. `Causal`, `Window` and `Predicate` are given the position of each query; a tensor
with an axis of queries has one row for each position of the whole sequence or for each new query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from ..errors import (
    BackendRefused,
    DtypeError,
    MaskError,
    OptionError,
    OptionTypeError,
    ShapeError,
    complaint,
)
from ..forgetting import Forgetting, check_log_decay, forgetting_of
from ..inputs import (
    check_bias,
    check_kind,
    check_sink,
    check_size,
    check_tensors,
    fold_bias,
    is_traced,
    resolve_mask,
    tokens_kept,
)
from ..masks import Band, Causal, Dense, Extent, Mask, Padding, Segments, Window, as_mask
from ..masks.grid import Grid, TorchGrid, shape_of
from ..masks.joined import And, Joined
from ..scoring import ScoreFunction, ScoreRule, check_score_function
from ..similarity import AnySimilarity, Softmax, as_similarity


class _CacheSizes(Protocol):
    """The parts of a `KVCache` or `LinearState` that validation reads."""

    token_type: tuple[torch.dtype, torch.device] | None

    @property
    def batch(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def value_width(self) -> int: ...


class _Lengths(_CacheSizes, Protocol):
    """A `KVCache`: also how many tokens each row holds, and how many a query attends to."""

    @property
    def row_lengths(self) -> np.ndarray: ...
    @property
    def stored_lengths(self) -> np.ndarray: ...
    @property
    def window(self) -> int | None: ...
    @property
    def sinks(self) -> int: ...
    def slot_positions(self, slots: int) -> Tensor | None: ...


_MAX_SCORES = 2**62


class DecodeInputs(NamedTuple):
    """query (batch, heads_q, n, width), key (batch, heads_kv, n, width), value (…, n, value_width).

    mask: resolved over the whole sequence. bias: with four dimensions, its keys by slot.
    counts: how many of the n new tokens of each row are real, the last ones if `left`; None for all.
    past: the tokens of each row before the call.
    extent: batch, heads_q, n, and the length of the longest row including the new tokens.
    slots: the slots of each row that are in use before the call; past where nothing was evicted.
    positions: of each slot, (batch, heads_kv, slots); None where slots are positions.
    score_rule: a bias that is a function of scores, for the new queries and the slots.
    forgetting: the gates of `Softmax(log_decay=...)`, which the similarity then has no more.
    cross: the queries are not tokens of the cache: query i of n, as in `attention`; key and value are None.
    """

    query: Tensor
    key: Any
    value: Any
    similarity: AnySimilarity
    mask: Mask | None
    bias: Tensor | None
    counts: np.ndarray | None
    left: bool
    past: np.ndarray
    extent: Extent
    slots: np.ndarray
    positions: Tensor | None = None
    cross: bool = False
    forgetting: Forgetting | None = None
    score_rule: ScoreRule | None = None

    @property
    def stored_end(self) -> int:
        """The slots of the longest row, new tokens included."""
        return self.extent.len_k if self.positions is None else self.positions.shape[2]

    @property
    def is_argmax(self) -> bool:
        return self.similarity.picks_one_key

    @property
    def band(self) -> Band | None:
        """The mask as one run of keys for each query, in absolute positions; None when it is not one."""
        if self.mask is None:
            return Band()
        total = self.extent.len_k
        band = self.mask.band(self.extent if self.cross else self.extent._replace(len_q=total))
        if band is None or self.positions is None:
            return band
        # Causality, which holds anyway, is the same rule for slots.
        return Band() if band.is_trivial or (band == Band(upper=1) and not self.cross) else None

    def keep(self, rows: tuple[int, int], keys: tuple[int, int]) -> Tensor:
        """The mask of the new queries rows[0] to rows[1] - 1 for these slots, in four dimensions, each full or 1."""
        assert self.mask is not None
        at = _positions(self.past, self.counts, self.left, self.extent.len_q, self.cross)
        over = keys if self.positions is None else (0, self.extent.len_k)
        cells = self.mask.cells(_PositionedGrid(self.extent, rows, over, self.query.device, at))
        return cells if self.positions is None else _by_slot(cells, self.positions[..., slice(*keys)], self.extent)


def read_decode_inputs(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    cache: _Lengths,
    similarity: AnySimilarity | None,
    mask: Mask | None,
    bias: Tensor | ScoreFunction | None,
    lengths: Any,
    padding: str,
) -> DecodeInputs:
    """Check every argument of `decode` once, or of `attend`, whose key and value are None. The caller must have the
    cache's lock."""
    given = (query, query, query) if key is None or value is None else (query, key, value)
    cross = key is None
    check_tensors(*given)
    if query.dim() != 4:
        wanted = "four dimensions: batch, heads, new tokens, width"
        raise ShapeError(complaint("query", f"shape {tuple(query.shape)}", wanted))
    if not cross:
        check_cache_fit(cache, *given[1:], query.shape[1])
    chosen = check_cache_similarity(similarity)
    sink, own, gates = (getattr(chosen, name, None) for name in ("sink", "bias", "log_decay"))
    of_similarity = ("sink", sink), ("bias", own), ("log_decay", gates)
    for name, tensor in (("query", query), ("key", key), ("value", value), ("bias", bias), *of_similarity):
        if isinstance(tensor, Tensor):
            check_no_gradient(name, tensor)
    if is_traced(*given):
        reason = "torch.func, forward-mode AD and subclasses of tensors hide the numbers that a cache keeps"
        hint = "call it on ordinary tensors, or use qkv.attention"
        raise BackendRefused(f"{'attend' if cross else 'decode'}: {reason}. Hint: {hint}.", (reason,))
    check_query(query, key, cache)

    batch, heads, n, _ = query.shape
    counts, left = check_lengths(lengths, padding, batch, n)
    past, slots = cache.row_lengths.copy(), cache.stored_lengths.copy()
    more = 0 if cross else n if counts is None else counts
    total = int((past + more).max())
    if batch * heads * n * total >= _MAX_SCORES:
        shapes = f"{tuple(query.shape)} with {total} keys"
        wanted = f"fewer than {_MAX_SCORES} scores: the sizes overflow 64 bits"
        raise ShapeError(complaint("query, key", shapes, wanted))
    extent = Extent(batch, heads, n, total)
    if mask is not None and cross:
        mask = resolve_mask(mask, extent, traced=False)
    elif mask is not None:
        mask = _resolve_positions(mask, extent, past, counts, left)
        if cache.window is not None and not cache.sinks:
            _check_reach(mask, extent, _positions(past, counts, left, n), cache.window)
    positions = cache.slot_positions(int((slots + more).max()))
    rule = None
    if callable(bias):
        at = torch.from_numpy(_positions(past, counts, left, n, cross)).to(query.device)
        by_head = None if positions is None else _of_query_heads(positions, heads, query.device)
        rule = ScoreRule.over(check_score_function(bias, chosen), extent, query.device, at, by_head)
        bias = None
    if bias is not None:
        bias = check_bias(bias, query, extent, chosen)
    chosen, bias = fold_bias(chosen, bias, query, heads)
    if isinstance(sink, Tensor):
        check_sink(sink, query, heads)
    if bias is not None and positions is not None:
        bias = _by_slot(bias, positions, extent)
    found = DecodeInputs(
        query, key, value, chosen, mask, bias, counts, left, past, extent, slots, positions, cross, score_rule=rule
    )
    if not isinstance(chosen, Softmax) or chosen.log_decay is None:
        return found
    return found._replace(similarity=chosen.without_decay(), forgetting=_read_log_decay(found, chosen.log_decay))


def _read_log_decay(step: DecodeInputs, log_decay: Tensor) -> Forgetting:
    """The gates of all tokens of the sequence, as those of a mask in absolute positions."""
    (batch, heads, n, total), device, positions = step.extent.shape, step.query.device, step.positions
    if step.cross:
        hint = "the queries of attend are no tokens of the sequence; use qkv.decode"
        raise OptionError(complaint("log_decay", f"shape {tuple(log_decay.shape)}", "None in qkv.attend", hint))
    axes = "batch, query heads, tokens of the longest row with the new ones"
    check_log_decay(log_decay, step.query, (batch, heads, total), axes)
    more = n if step.counts is None else step.counts
    ends = torch.from_numpy(np.broadcast_to(step.past + more, (batch,)).copy()).to(device)
    real, kept = torch.arange(total, device=device) < ends[:, None], tokens_kept(step.mask, step.extent, device)
    at = torch.from_numpy(_positions(step.past, step.counts, step.left, n)).to(device)
    positions = None if positions is None else _of_query_heads(positions, heads, device)
    return forgetting_of(log_decay, at, real if kept is None else real & kept, positions)


def _of_query_heads(positions: Tensor, heads: int, device: torch.device) -> Tensor:
    """The position of each slot for each query head."""
    return positions.to(device, torch.int64).repeat_interleave(heads // positions.shape[1], dim=1)


def check_cache_similarity(similarity: AnySimilarity | None) -> AnySimilarity:
    """A similarity that is no product of features: those have a state of constant size instead."""
    chosen = as_similarity(similarity)
    if not chosen.is_product:
        return chosen
    reason = f"a cache of keys and values serves Softmax, Sigmoid, Argmax and Similarity, not {type(chosen).__name__}"
    hint = "decode with a qkv.LinearState, or use qkv.attention over the whole sequence"
    wanted = "Softmax, Sigmoid, Argmax or Similarity"
    raise BackendRefused(complaint("similarity", repr(chosen), wanted, f"{reason}; {hint}"), (reason,))


def check_query(query: Tensor, key: Tensor | None, cache: _CacheSizes) -> None:
    """Check the query against the cache and a key that fits the cache."""
    batch, heads, n, width = query.shape
    if (batch, width) != (cache.batch, cache.width):
        wanted = f"batch {cache.batch} and width {cache.width}, as the cache has"
        raise ShapeError(complaint("query", f"shape {tuple(query.shape)}", wanted))
    if heads == 0 or heads % cache.heads:
        wanted = f"a multiple of the cache's {cache.heads} heads"
        hint = "query head h reads key/value head h // (heads_q // heads_kv)"
        raise ShapeError(complaint("query", f"{heads} heads", wanted, hint))
    if key is not None and key.shape[2] != n:
        raise ShapeError(complaint("key", f"{key.shape[2]} new tokens", f"{n}, one for each query"))


def _by_slot(keys: Tensor, positions: Tensor, extent: Extent) -> Tensor:
    """Columns of a mask or bias (batch or 1, heads or 1, n or 1, keys or 1) at the position of each slot."""
    if keys.shape[3] == 1:
        return keys
    every = positions.to(keys.device).repeat_interleave(extent.heads // positions.shape[1], dim=1)[:, :, None]
    wide = keys.expand(extent.batch, extent.heads, *keys.shape[2:])
    # The slots of a shorter row go on behind the longest one; they are not attended.
    return wide.gather(3, every.clamp(max=extent.len_k - 1).expand(*wide.shape[:3], -1))


def keep_under_tracing(mask: Mask | None, n: int) -> Tensor | None:
    """The mask in a traced program, where the cache's length is unknown: only tensors over all keys can be used.

    Returns (batch or 1, keys) if it is padding alone, otherwise four dimensions.
    """
    checked = as_mask(mask)
    if checked is None:
        return None
    keep = None
    for part in checked.parts():
        tile = _part_under_tracing(part, n)
        if tile is not None and keep is not None and tile.dim() != keep.dim():
            tile, keep = (each[:, None, None] if each.dim() == 2 else each for each in (tile, keep))
        if tile is not None:
            keep = tile if keep is None else keep & tile
    return keep


def _part_under_tracing(part: Mask, n: int) -> Tensor | None:
    if isinstance(part, Causal) and (part.offset is None or part.offset >= 0):
        return None  # decode is causal already
    if isinstance(part, Dense) and isinstance(part.keep, Tensor):
        shape = part._four_sizes(4)
        if shape[2] in (1, n):
            return part.keep.reshape(shape)
    if isinstance(part, Padding) and part.lengths is None:
        name, values = part._given
        if isinstance(values, Tensor):
            rows = values if values.dim() == 2 else values[None]
            return rows if name == "keep" else ~rows
    reason = (
        f"under torch.compile the cache's length is not known, and {part!r} needs it; "
        "Causal, Padding(keep=tensor) and Dense(tensor) for the new queries do not"
    )
    raise BackendRefused(f"mask: {reason}. Hint: for a window, use KVCache(window=...).", (reason,))


def _positions(past: np.ndarray, counts: np.ndarray | None, left: bool, n: int, cross: bool = False) -> np.ndarray:
    """The absolute position of each new query, (batch, n), or (1, n) when all rows are equal."""
    if cross:
        return np.arange(n)[None]
    first = past if counts is None or not left else past - (n - counts)
    if (first == first[0]).all():
        first = first[:1]
    return first[:, None] + np.arange(n)


class _PositionedGrid(TorchGrid):
    """Queries rows[0] to rows[1] - 1 of the call, each at its absolute position."""

    __slots__ = ("at",)

    def __init__(self, extent: Extent, rows: tuple[int, int], keys: tuple[int, int], device: Any, at: np.ndarray):
        super().__init__(extent, rows, keys, device)
        self.at = at

    def query(self) -> Any:
        """(1, 1, rows, 1), or (batch, 1, rows, 1) when the rows of the batch are not equally long."""
        return torch.from_numpy(self.at[:, self.rows[0] : self.rows[1]]).to(self.device)[:, None, :, None]


class _RowMask(Mask):
    """A Dense or Segments mask with one row for each new query."""

    __slots__ = ("extent", "mask")
    mask: Mask
    extent: Extent

    def __init__(self, mask: Mask, extent: Extent) -> None:
        self._set_fields(_signature=("Rows", mask.signature()), mask=mask.resolved(extent), extent=extent)

    def __repr__(self) -> str:
        return repr(self.mask)

    def cells(self, grid: Grid) -> Any:
        return self.mask.cells(TorchGrid(self.extent, grid.rows, grid.keys, getattr(grid, "device", None)))


def _resolve_positions(mask: Mask, extent: Extent, past: np.ndarray, counts: np.ndarray | None, left: bool) -> Mask:
    """The mask resolved over the whole sequence, with tensors of queries cut to the new ones."""
    at = _positions(past, counts, left, extent.len_q)
    checked = as_mask(mask)
    assert checked is not None
    return resolve_mask(_select_rows(checked, extent, at), extent._replace(len_q=extent.len_k), traced=False)


def _check_reach(mask: Mask, extent: Extent, at: np.ndarray, window: int) -> None:
    """Refuse a mask that allows keys which have left the cache's window: they are not stored.

    `Causal`, `Padding` and `Segments` say which tokens exist, not how far a query reaches; the window bounds them.
    Tensors are looked at. Any other mask must be joined by & to a `Window` that is no longer than the cache's.
    """
    parts = [part for part in mask.parts() if not _is_unbounded(part)]
    if not parts or any((reach := _reach(part)) is not None and reach < window for part in parts):
        return
    reaching = next((part for part in parts if not isinstance(part, _RowMask)), None)
    behind = int(at.max(initial=0)) - window + 1  # the keys before it are outside of the last query's window
    if reaching is None and behind > 0:
        rows = 0, extent.len_q
        cells = mask.cells(_PositionedGrid(extent, rows, (0, behind), None, at))
        distance = torch.from_numpy(at)[:, None, :, None] - torch.arange(behind)
        reaching = parts[0] if bool((cells.cpu() & (distance >= window)).any()) else None
    if reaching is not None:
        hint = f"earlier keys are evicted; join & qkv.Window(left={window - 1}) to it, or use a cache without a window"
        raise MaskError(complaint("mask", repr(reaching), f"one within the cache's window of {window} tokens", hint))


def _is_unbounded(mask: Mask) -> bool:
    if isinstance(mask, Joined):
        return all(_is_unbounded(part) for part in mask.masks)
    inner = mask.mask if isinstance(mask, _RowMask) else mask
    return isinstance(inner, Causal | Padding | Segments)


def _reach(mask: Mask) -> int | None:
    """How many positions before its own a query attends to at most; None if that is not limited."""
    if isinstance(mask, Window) and mask.left is not None:
        return mask.left - (mask.offset or 0)
    if isinstance(mask, Joined):
        reaches = [_reach(part) for part in mask.masks]
        if isinstance(mask, And):
            return min((reach for reach in reaches if reach is not None), default=None)
        return None if None in reaches else max(reach for reach in reaches if reach is not None)
    return None


def _select_rows(mask: Mask, extent: Extent, at: np.ndarray) -> Mask:
    if isinstance(mask, Joined):
        return type(mask)(*(_select_rows(part, extent, at) for part in mask.masks))
    if not isinstance(mask, Dense | Segments):
        return mask
    shape = shape_of(mask.keep if isinstance(mask, Dense) else mask.query_ids)
    queries = (shape[-2] if len(shape) > 1 else 1) if isinstance(mask, Dense) else shape[-1]
    if queries != extent.len_k or (queries == 1 and isinstance(mask, Dense)):
        return _RowMask(mask, extent)
    if extent.len_k == 0:  # nothing is stored, and nothing is added
        return mask
    # One row for each position of the whole sequence: select those of the new queries.
    mask = mask.resolved(extent._replace(len_q=extent.len_k))
    places = torch.from_numpy(np.clip(at, 0, extent.len_k - 1))
    if isinstance(mask, Dense):
        keep = torch.as_tensor(mask.keep)
        return _RowMask(Dense(_select(keep.reshape((1,) * (4 - keep.dim()) + keep.shape), places)), extent)
    assert isinstance(mask, Segments)
    ids = torch.as_tensor(mask.query_ids)
    ids = ids if ids.dim() == 2 else ids[None]
    return _RowMask(Segments(_select(ids[:, None, :, None], places)[:, 0, :, 0], mask.key_ids), extent)


def _select(table: Tensor, places: Tensor) -> Tensor:
    """table (batch or 1, heads or 1, total, k) at places (batch or 1, n): (batch or 1, heads or 1, n, k)."""
    places = places.to(table.device)
    if len(places) == 1:
        return table[:, :, places[0]]
    rows = torch.arange(len(places), device=table.device)[:, None] if len(table) > 1 else 0
    return table.transpose(1, 2)[rows, places].transpose(1, 2)


_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def values_of(cache: Any, key: Any, value: Any) -> Any:
    """The values of new tokens for a `KVCache`: of latents, the first coordinates of the keys."""
    if not cache.latent:
        if value is None:
            hint = "with KVCache(latent=True) values are a part of the keys"
            raise OptionTypeError(complaint("value", "None", "a tensor with one value for each key", hint))
        return value
    if value is not None:
        wanted = f"None with latent=True, where values are the first {cache.value_width} coordinates of the keys"
        given = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise OptionTypeError(complaint("value", given, wanted))
    return key[..., : cache.value_width] if isinstance(key, Tensor) else key


def check_new_tokens(cache: _CacheSizes, key: Tensor, value: Tensor) -> None:
    """Refuse keys and values of any kind that do not fit the cache."""
    for name, tensor in (("key", key), ("value", value)):
        check_plain_tensor(name, tensor)
    check_cache_fit(cache, key, value)


def check_cache_fit(cache: _CacheSizes, key: Tensor, value: Tensor, query_heads: int | None = None) -> None:
    """Refuse tensors whose sizes, dtypes or devices do not fit the cache."""
    if key.dtype is not value.dtype or key.device != value.device:
        given = f"{value.dtype} on {value.device} with key's {key.dtype} on {key.device}"
        raise DtypeError(complaint("value", given, "key's dtype and device", "convert with .to(...)"))
    for name, tensor, width in (("key", key, cache.width), ("value", value, cache.value_width)):
        fits = tensor.dim() == 4 and (*tensor.shape[:2], tensor.shape[3]) == (cache.batch, cache.heads, width)
        if not fits:
            wanted = f"({cache.batch}, {cache.heads}, n, {width}): batch, heads, new tokens and width of the cache"
            hint = _hint_at_cache_sizes(cache, tensor.shape, query_heads)
            raise ShapeError(complaint(name, f"shape {tuple(tensor.shape)}", wanted, hint))
    if key.shape[2] != value.shape[2]:
        given = f"{value.shape[2]} tokens with {key.shape[2]} keys"
        raise ShapeError(complaint("value", given, "one value for each key"))
    if cache.token_type is not None and cache.token_type != (key.dtype, key.device):
        dtype, device = cache.token_type
        hint = f"convert with .to({str(device)!r}, {dtype}), or reset() the cache"
        given = f"{key.dtype} on {key.device}"
        raise DtypeError(complaint("key", given, f"{dtype} on {device}, as the cache was given before", hint))


def _hint_at_cache_sizes(cache: _CacheSizes, shape: Sequence[int], query_heads: int | None) -> str:
    """For a key or value that does not fit: the likely mistake, if the shapes show one."""
    if len(shape) != 4:
        return ""
    heads, length = shape[1], shape[2]
    if heads != cache.heads and length == cache.heads:
        return "if this is (batch, length, heads, width), call .transpose(1, 2)"
    if query_heads == cache.heads and heads < cache.heads:
        kind = type(cache).__name__
        return f"the cache was made with the query heads; make the {kind} with the key/value heads, heads={heads}"
    return ""


def check_plain_tensor(name: str, tensor: Any) -> None:
    """An ordinary tensor of numbers, not differentiated or traced."""
    check_kind(name, tensor)
    if tensor.is_meta:
        raise DtypeError(complaint(name, "a meta tensor", "a tensor with contents"))
    if type(tensor) not in _PLAIN or _functorch.maybe_current_level() is not None:
        reason = "torch.func and subclasses of tensors hide the numbers that a cache keeps"
        raise BackendRefused(complaint(name, type(tensor).__name__, "an ordinary tensor", reason), (reason,))
    check_no_gradient(name, tensor)


def check_no_gradient(name: str, tensor: Tensor) -> None:
    """A cache outlives the autograd graph of its tokens."""
    if tensor.requires_grad and torch.is_grad_enabled():
        reason = f"{name} requires grad, and a cache is not differentiated"
        hint = "decode under torch.no_grad(), or train with qkv.attention over the whole sequence"
        message = complaint(name, "a tensor that requires grad", "one that does not", f"{reason}; {hint}")
        raise BackendRefused(message, (reason,))


def check_lengths(lengths: Any, padding: Any, batch: int, n: int) -> tuple[np.ndarray | None, bool]:
    """How many of the n new tokens of each row are real (None: all), and whether they are the last ones."""
    if not isinstance(padding, str) or padding not in ("right", "left"):
        raise OptionError(complaint("padding", repr(padding), "'right' or 'left': the side of the padding"))
    if lengths is None:
        return None, False
    counts = _integers("lengths", lengths)
    if counts.shape != (batch,):
        raise ShapeError(complaint("lengths", f"shape {counts.shape}", f"({batch},): one for each row"))
    _check_range("lengths", counts, n, "the number of new tokens")
    return counts, padding == "left"


def check_crop(n: Any, lengths: np.ndarray, what: str) -> np.ndarray:
    """The tokens that each row keeps: n of all rows, or n[b] of row b."""
    if isinstance(n, Tensor | np.ndarray | list | tuple) and np.ndim(n):
        kept = _integers("n", n)
        if kept.shape != lengths.shape:
            raise ShapeError(complaint("n", f"shape {kept.shape}", f"a number, or one for each of {len(lengths)} rows"))
    else:
        kept = np.array([check_size("n", n, least=0)])
    most = lengths if len(kept) > 1 or np.ndim(n) else np.array([int(lengths.max())])
    wrong = np.flatnonzero((kept < 0) | (kept > most))
    if len(wrong):
        row = int(wrong[0])
        name, wanted = f"n[{row}]" if np.ndim(n) else "n", f"0 to {int(most[row])}, the {what}'s length"
        raise OptionError(
            complaint(name, int(kept[row]), wanted, "crop keeps the first n tokens; it cannot add tokens")
        )
    return np.minimum(lengths, kept)


def check_rows(index: Any, batch: int) -> np.ndarray:
    """Indices of rows, at least one."""
    rows = _integers("index", index)
    if rows.ndim != 1 or len(rows) == 0:
        raise ShapeError(complaint("index", f"shape {rows.shape}", "one dimension, with at least one row"))
    _check_range("index", rows, batch - 1, "a row of the cache")
    return rows


def _check_range(argument: str, numbers: np.ndarray, most: int, what: str) -> None:
    wrong = np.flatnonzero((numbers < 0) | (numbers > most))
    if len(wrong):
        place = int(wrong[0])
        raise OptionError(complaint(f"{argument}[{place}]", int(numbers[place]), f"0 to {most}, {what}"))


def _integers(argument: str, given: Any) -> np.ndarray:
    """A copy as int64."""
    wanted = "integers"
    if isinstance(given, Tensor):
        if given.dtype not in _INTEGERS or given.is_nested or given.layout is not torch.strided or given.is_meta:
            raise OptionTypeError(complaint(argument, f"a tensor of {given.dtype}", wanted))
        return given.detach().to("cpu", torch.int64, copy=True).contiguous().numpy()
    try:
        array = np.array(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionTypeError(complaint(argument, repr(given), wanted)) from error
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        if array.size == 0 and array.ndim == 1:
            return array.astype(np.int64)
        raise OptionTypeError(complaint(argument, repr(given), wanted))
    return array.astype(np.int64)
