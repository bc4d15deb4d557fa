"""A call of `decode`, read once: everything that can be wrong with it is found here, before the memory changes.

Masks are read in absolute positions. `Causal`, `Window` and `Predicate` are told where each query stands; a tensor
with an axis of queries has one for each position of the whole sequence, or one for each new query.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .call import check_bias, check_sink, check_tensors, is_traced
from .errors import FormRefused, OptionTypeError, ShapeError, complaint
from .masks import Band, Causal, Dense, Extent, Mask, Padding, Segments, as_mask
from .masks.arrays import shape_of
from .masks.grid import Grid, TorchGrid
from .masks.joined import Joined
from .memory import KVCache, LinearState
from .memory.checks import check_fit, check_no_gradient, counted
from .similarity import AnySimilarity, Argmax, Softmax, as_similarity

_LARGEST = 2**62


class Step(NamedTuple):
    """query (batch, heads_q, n, width), key (batch, heads_kv, n, width), value (…, n, value_width).

    extent: batch, heads_q, n, and the longest row's tokens with the new ones. past: the tokens of each row before.
    counts: how many of the n count in each row, the last ones if `left`; None: all. mask is resolved, bias has
    four dimensions.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    similarity: Softmax | Argmax
    mask: Mask | None
    bias: Tensor | None
    counts: np.ndarray | None
    left: bool
    past: np.ndarray
    extent: Extent

    @property
    def hard(self) -> bool:
        return isinstance(self.similarity, Argmax)

    @property
    def band(self) -> Band | None:
        """What the mask leaves each query as one run of keys, in absolute positions; None when it is none."""
        if self.mask is None:
            return Band()
        total = self.extent.len_k
        return self.mask.band(self.extent._replace(len_q=total))

    def keep(self, rows: tuple[int, int], keys: tuple[int, int]) -> Tensor:
        """The mask for the new queries rows[0] to rows[1] - 1 and keys: each of four dimensions full or 1."""
        assert self.mask is not None
        at = _positions(self.past, self.counts, self.left, self.extent.len_q)
        return self.mask._cells(_Placed(self.extent, rows, keys, self.query.device, at))


def read_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    memory: KVCache,
    similarity: AnySimilarity | None,
    mask: Mask | None,
    bias: Tensor | None,
    lengths: Any,
    padding: str,
) -> Step:
    """Check every argument once. Whoever calls holds the memory's lock."""
    check_tensors(query, key, value)
    if query.dim() != 4:
        wanted = "four dimensions: batch, heads, new tokens, width"
        raise ShapeError(complaint("query", f"shape {tuple(query.shape)}", wanted))
    check_fit(memory, key, value)
    chosen = check_similarity(similarity)
    sink = chosen.sink if isinstance(chosen, Softmax) else None
    for name, tensor in (("query", query), ("key", key), ("value", value), ("bias", bias), ("sink", sink)):
        if isinstance(tensor, Tensor):
            check_no_gradient(name, tensor)
    if is_traced(query, key, value):
        reason = "torch.func, forward-mode AD and subclasses of tensors hide the numbers that a memory keeps"
        raise FormRefused(f"decode: {reason}. Hint: call it on ordinary tensors, or use qkv.attention.", (reason,))
    check_query(query, key, memory)

    batch, heads, n, _ = query.shape
    counts, left = counted(lengths, padding, batch, n)
    past = memory._lengths.copy()
    total = int(past.max()) + n if counts is None else int((past + counts).max())
    if batch * heads * n * total >= _LARGEST:
        shapes = f"{tuple(query.shape)} beside {total} keys"
        raise ShapeError(complaint("query, key", shapes, f"fewer than {_LARGEST} scores: the sizes overflow 64 bits"))
    extent = Extent(batch, heads, n, total)
    if mask is not None:
        mask = _placed(mask, extent, past, counts, left)
    if bias is not None:
        bias = check_bias(bias, query, extent, chosen)
    if isinstance(sink, Tensor):
        check_sink(sink, query, heads)
    return Step(query, key, value, chosen, mask, bias, counts, left, past, extent)


def check_similarity(similarity: AnySimilarity | None) -> Softmax | Argmax:
    """Softmax or Argmax: the others keep a sum of features, and not the past."""
    chosen = as_similarity(similarity)
    if isinstance(chosen, Softmax | Argmax):
        return chosen
    reason = f"a memory of keys and values serves Softmax and Argmax, not {type(chosen).__name__}"
    hint = "a qkv.LinearState remembers for it, and qkv.attention computes it over the whole sequence"
    raise FormRefused(complaint("similarity", repr(chosen), "Softmax or Argmax", f"{reason}; {hint}"), (reason,))


def check_query(query: Tensor, key: Tensor, memory: KVCache | LinearState) -> None:
    """Query beside key, which fits the memory."""
    batch, heads, n, width = query.shape
    if (batch, width) != (memory.batch, memory.width):
        wanted = f"batch {memory.batch} and width {memory.width}, as the memory has"
        raise ShapeError(complaint("query", f"shape {tuple(query.shape)}", wanted))
    if heads == 0 or heads % memory.heads:
        wanted = f"a multiple of the memory's {memory.heads} heads"
        hint = "query head h reads key/value head h // (heads_q // heads_kv)"
        raise ShapeError(complaint("query", f"{heads} heads", wanted, hint))
    if key.shape[2] != n:
        raise ShapeError(complaint("key", f"{key.shape[2]} new tokens", f"{n}, one for each query"))


def check_memory(memory: object) -> KVCache:
    if isinstance(memory, KVCache):
        return memory
    given, hint = type(memory).__name__, ""
    if type(memory).__module__ == "qkv.parallel.memory":  # by its name, since that room imports this one
        given, hint = f"a qkv.parallel.{given}", "qkv.parallel.decode attends to it"
    raise OptionTypeError(complaint("memory", given, "a qkv.KVCache or a qkv.LinearState", hint))


def traced_keep(mask: Mask | None, n: int) -> Tensor | None:
    """The mask in a program that is being traced, where nobody knows how long the memory is: only tensors that the
    caller brings in full can be used."""
    checked = as_mask(mask)
    if checked is None:
        return None
    keep = None
    for part in checked.parts():
        tile = _traced(part, n)
        if tile is not None:
            keep = tile if keep is None else keep & tile
    return keep


def _traced(part: Mask, n: int) -> Tensor | None:
    if isinstance(part, Causal) and (part.offset is None or part.offset >= 0):
        return None  # decode is causal already
    if isinstance(part, Dense) and isinstance(part.keep, Tensor):
        shape = part._four(4)
        if shape[2] in (1, n):
            return part.keep.reshape(shape)
    if isinstance(part, Padding) and part.lengths is None:
        name, held = part._held()
        if isinstance(held, Tensor):
            rows = (held if held.dim() == 2 else held[None])[:, None, None]
            return rows if name == "keep" else ~rows
    reason = (
        f"under torch.compile the memory's length is not known, and {part!r} needs it; "
        "Causal, Padding(keep=tensor) and Dense(tensor) for the new queries do not"
    )
    raise FormRefused(f"mask: {reason}. Hint: KVCache(window=...) keeps a window without a mask.", (reason,))


def _positions(past: np.ndarray, counts: np.ndarray | None, left: bool, n: int) -> np.ndarray:
    """The absolute position of each new query, (batch, n), or (1, n) when all rows are alike."""
    first = past if counts is None or not left else past - (n - counts)
    if (first == first[0]).all():
        first = first[:1]
    return first[:, None] + np.arange(n)


class _Placed(TorchGrid):
    """Queries rows[0] to rows[1] - 1 of the call, each at its absolute position."""

    __slots__ = ("at",)

    def __init__(self, extent: Extent, rows: tuple[int, int], keys: tuple[int, int], device: Any, at: np.ndarray):
        super().__init__(extent, rows, keys, device)
        self.at = at

    def query(self) -> Any:
        """(1, 1, rows, 1), or (batch, 1, rows, 1) when the rows of the batch are not equally long."""
        return torch.from_numpy(self.at[:, self.rows[0] : self.rows[1]]).to(self.device)[:, None, :, None]


class _Rows(Mask):
    """A Dense or Segments mask with one row for each new query."""

    __slots__ = ("extent", "mask")
    mask: Mask
    extent: Extent

    def __init__(self, mask: Mask, extent: Extent) -> None:
        self._fill(("Rows", mask.signature()), mask=mask.resolved(extent), extent=extent)

    def __repr__(self) -> str:
        return repr(self.mask)

    def _cells(self, grid: Grid) -> Any:
        return self.mask._cells(TorchGrid(self.extent, grid.rows, grid.keys, getattr(grid, "device", None)))


def _placed(mask: Mask, extent: Extent, past: np.ndarray, counts: np.ndarray | None, left: bool) -> Mask:
    """The mask resolved over the whole sequence, with tensors of queries cut to the new ones."""
    at = _positions(past, counts, left, extent.len_q)
    checked = as_mask(mask)
    assert checked is not None
    whole = extent._replace(len_q=extent.len_k)
    resolved = _with_rows(checked, extent, at).resolved(whole)
    resolved.check_contents(whole)
    return resolved


def _with_rows(mask: Mask, extent: Extent, at: np.ndarray) -> Mask:
    if isinstance(mask, Joined):
        return type(mask)(*(_with_rows(part, extent, at) for part in mask.masks))
    if not isinstance(mask, Dense | Segments):
        return mask
    held = shape_of(mask.keep if isinstance(mask, Dense) else mask.query_ids)
    queries = (held[-2] if len(held) > 1 else 1) if isinstance(mask, Dense) else held[-1]
    if queries != extent.len_k or (queries == 1 and isinstance(mask, Dense)):
        return _Rows(mask, extent)
    # One row for each position of the whole sequence: cut out those of the new queries.
    mask = mask.resolved(extent._replace(len_q=extent.len_k))
    places = torch.from_numpy(np.clip(at, 0, extent.len_k - 1))
    if isinstance(mask, Dense):
        keep = torch.as_tensor(mask.keep)
        return _Rows(Dense(_cut(keep.reshape((1,) * (4 - keep.dim()) + keep.shape), places)), extent)
    assert isinstance(mask, Segments)
    ids = torch.as_tensor(mask.query_ids)
    ids = ids if ids.dim() == 2 else ids[None]
    return _Rows(Segments(_cut(ids[:, None, :, None], places)[:, 0, :, 0], mask.key_ids), extent)


def _cut(table: Tensor, places: Tensor) -> Tensor:
    """table (batch or 1, heads or 1, total, k) at places (batch or 1, n): (batch or 1, heads or 1, n, k)."""
    places = places.to(table.device)
    if len(places) == 1:
        return table[:, :, places[0]]
    rows = torch.arange(len(places), device=table.device)[:, None] if len(table) > 1 else 0
    return table.transpose(1, 2)[rows, places].transpose(1, 2)
