"""Arguments of `attention` and `decode`, validated once and frozen.

`AttentionInputs` and `DecodeInputs` have tensors with four dimensions, a resolved mask and checked options; backends
validate nothing. Nothing in this file reads the numbers inside a tensor, except the lengths of a mask.

In `decode`, masks are read in absolute positions. `Causal`, `Window` and `Predicate` are given the position of each
query; a tensor with an axis of queries has one row for each position of the whole sequence or for each new query.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from numbers import Real
from typing import Any, NamedTuple, Never, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from .cost.sizes import RANKS, check_sizes
from .errors import (
    BackendRefused,
    DtypeError,
    MaskError,
    MaskTypeError,
    OptionError,
    OptionTypeError,
    QkvError,
    ShapeError,
    complaint,
)
from .masks import Band, Causal, Dense, Extent, Mask, Padding, Segments, Window, as_mask
from .masks.grid import Grid, TorchGrid, as_integer, describe, shape_of
from .masks.joined import And, Joined
from .similarity import AnySimilarity, Argmax, Similarity, Softmax, as_similarity

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_DTYPE_SET = frozenset(DTYPES)
BACKEND_NAMES = ["auto"]  # and the names that `qkv.backends.register` adds
_BACKEND_HINT = "sdpa is torch's flash kernel, native is qkv's; leave it out to let qkv choose"
_MAX_INT64 = 2**63 - 1
ALIGNMENT = 64  # bytes; torch allocates tensors at multiples of it
# Looked up once: following the attributes costs as much as the call.
is_compiling, _forward_ad, _PARAMETER = torch.compiler.is_compiling, torch.autograd.forward_ad, torch.nn.Parameter


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
    def window(self) -> int | None: ...


class AttentionInputs(NamedTuple):
    """query (batch, heads_q, len_q, width), key (batch, heads_kv, len_k, width), value (…, len_k, width_v)."""

    query: Tensor
    key: Tensor
    value: Tensor
    similarity: AnySimilarity
    mask: Mask | None
    bias: Tensor | None
    dropout: float
    backend: str
    return_lse: bool
    return_weights: bool
    extent: Extent
    heads_kv: int
    width: int
    width_v: int
    needs_grad: bool
    traced: bool
    signature: tuple[Any, ...]

    @property
    def mask_parts(self) -> tuple[Mask, ...]:
        """The masks that are joined by &."""
        return () if self.mask is None else self.mask.parts()

    @property
    def group(self) -> int:
        """How many query heads read one key/value head: query head h reads h // group."""
        return self.extent.heads // max(1, self.heads_kv)

    @property
    def sink(self) -> Tensor | None:
        """The sink as (heads_q, 1, 1) or (1, 1, 1), in the dtype of the scores."""
        sink = self.similarity.sink if isinstance(self.similarity, Softmax) else None
        if sink is None:
            return None
        dtype = compute_dtype(self.query.dtype)
        if not isinstance(sink, Tensor):
            return self.query.new_full((1, 1, 1), sink, dtype=dtype)
        return sink.to(dtype).reshape(-1, 1, 1)

    def keep(self, rows: tuple[int, int] | None = None, keys: tuple[int, int] | None = None) -> Tensor | None:
        """Which pairs of these queries and keys, or of all, attend; broadcasts over batch and heads. None for all."""
        if self.mask is None:
            return None
        extent = self.extent
        return self.mask.tile(extent, rows or (0, extent.len_q), keys or (0, extent.len_k), self.query.device)

    def mask_versions(self) -> tuple[int, ...]:
        return () if self.mask is None else self.mask.versions()

    def check_mask_unchanged(self, versions: tuple[int, ...]) -> None:
        """The backward pass computes the mask again: its tensors must not have changed since the forward pass."""
        if self.mask_versions() != versions:
            given = "a tensor that was written to between the forward and the backward pass"
            raise MaskError(complaint("mask", given, "a tensor that does not change", "give the mask a clone() of it"))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scores and sums: float64 for float64 inputs, float32 for all others."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def fold_group(tensor: Tensor, heads_kv: int) -> Tensor:
    """(batch, heads_q, rows, n) → (batch, heads_kv, group·rows, n): the heads of a group become rows."""
    batch, heads_q, rows, n = tensor.shape
    return tensor if heads_q == heads_kv else tensor.reshape(batch, heads_kv, heads_q // heads_kv * rows, n)


def unfold_group(tensor: Tensor, heads_q: int) -> Tensor:
    """The inverse of `fold_group`."""
    batch, heads_kv, rows, n = tensor.shape
    return tensor if heads_q == heads_kv else tensor.reshape(batch, heads_q, rows * heads_kv // heads_q, n)


def cut(tensor: Tensor, *parts: slice) -> Tensor:
    """A part of each axis of a tensor that broadcasts: axes of size 1 stay."""
    whole = slice(None)
    index = tuple(part if size > 1 else whole for part, size in zip(parts, tensor.shape, strict=True))
    return tensor if index == (whole,) * len(index) else tensor[index]


def compact(tensor: Tensor) -> Tensor:
    """The same numbers, contiguous and aligned, so that the layout of the inputs cannot change a bit of the result: on
    some processors a product q kᵀ rounds differently when its rows start at other addresses (docs/log.md).

    Nothing is copied that is contiguous and aligned already. One matrix that `expand` repeats over batch and heads
    stays one where its copies would be aligned as well.
    """
    shape, strides = tensor.shape, tensor.stride()
    if tensor.is_contiguous():
        plain = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        # An axis of size 1 may have any stride in a contiguous tensor, and torch's products depend on strides.
        tensor = tensor if strides == plain else tensor.flatten().view(shape)
        return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
    front, matrix = shape[:-2], math.prod(shape[-2:]) * tensor.itemsize
    alike = all(stride == 0 or size == 1 for size, stride in zip(front, strides[:-2], strict=True))
    if alike and math.prod(front) > 1 and matrix % ALIGNMENT == 0:
        return compact(tensor[(slice(0, 1),) * len(front)]).expand(shape)
    return tensor.contiguous()


def aligned_layout(tensor: Tensor) -> Tensor:
    """For kernels that take strides: the tensor itself where all its rows are aligned, `compact` otherwise."""
    if tensor.is_contiguous() and not (tensor.data_ptr() % ALIGNMENT or tensor.shape[3] * tensor.itemsize % ALIGNMENT):
        return tensor  # the usual case, without a look at each stride
    (batch, head, row, one), width, step = tensor.stride(), tensor.shape[3], ALIGNMENT // tensor.itemsize
    off = tensor.data_ptr() % ALIGNMENT or width % step or batch % step or head % step or row % step
    return compact(tensor) if off or one != 1 or row < width else tensor


def read_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: AnySimilarity | None,
    mask: Mask | None,
    bias: Tensor | None,
    dropout: float,
    backend: str,
    return_lse: bool,
    return_weights: bool,
) -> AttentionInputs:
    """Check every argument of `attention` once."""
    dims = check_tensors(query, key, value)
    if dims != 4:
        query, key, value = (_to_four_dimensions(tensor, dims) for tensor in (query, key, value))
    _check_sizes(query, key, value)
    (batch, heads, len_q, width), heads_kv, len_k, width_v = query.shape, key.shape[1], key.shape[2], value.shape[3]
    extent = Extent(batch, heads, len_q, len_k, dims)
    chosen = as_similarity(similarity)
    _check_options(chosen, backend, return_lse, return_weights)
    if type(dropout) is not float or dropout != 0.0:
        dropout = check_dropout(dropout, chosen)

    traced = is_traced(query, key, value)
    if traced:
        _refuse_dtensors(query, key, value)
    learns = query.requires_grad or key.requires_grad or value.requires_grad
    if mask is not None:
        mask = _resolve_mask(mask, extent, traced)
    if bias is not None:
        bias = check_bias(bias, query, extent, chosen)
        learns = learns or bias.requires_grad
    if isinstance(chosen, Softmax) and isinstance(chosen.sink, Tensor):
        check_sink(chosen.sink, query, heads)
        learns = learns or chosen.sink.requires_grad
    needs_grad = learns and torch.is_grad_enabled()

    flags = dropout > 0.0, return_lse, return_weights, needs_grad, traced
    kinds = chosen.signature, None if mask is None else mask.signature(), None if bias is None else bias.shape
    signature = backend, query.dtype, query.device.type, extent, heads_kv, width, width_v, kinds, flags
    returns = return_lse, return_weights
    sizes = extent, heads_kv, width, width_v
    return AttentionInputs(
        query, key, value, chosen, mask, bias, dropout, backend, *returns, *sizes, needs_grad, traced, signature
    )


# What to write in place of the arguments of torch, transformers and flash-attn.
_REPLACEMENTS = {
    "is_causal": "write mask=qkv.Causal()",
    "causal": "write mask=qkv.Causal()",
    "attn_mask": "write mask=qkv.Dense(attn_mask) for booleans (True attends), bias=attn_mask for numbers to add",
    "attention_mask": "write mask=qkv.Padding(keep=attention_mask.bool()) for 1 = attend and 0 = padding",
    "key_padding_mask": "write mask=qkv.Padding(drop=key_padding_mask) for True = padding",
    "scale": "write similarity=qkv.Softmax(scale=...)",
    "softmax_scale": "write similarity=qkv.Softmax(scale=...)",
    "softcap": "write similarity=qkv.Softmax(softcap=...)",
    "window_size": "write mask=qkv.Window(left=..., right=...), joined to qkv.Causal() by &",
    "enable_gqa": "leave it out: heads are read off the shapes",
    "dropout_p": "write dropout=...",
}
_REPLACEMENTS_OF = {
    "varlen": {
        "attn_mask": "write mask=, with positions counted inside each document: qkv.Causal(), qkv.Predicate(function)"
    },
    "decode": {
        "is_causal": "leave it out: decode is causal, each token attends to itself and earlier tokens",
        "causal": "leave it out: decode is causal, each token attends to itself and earlier tokens",
        "dropout_p": "leave it out: decode has no dropout",
        "dropout": "leave it out: decode has no dropout",
    },
}
_TORCH_ARGUMENTS = ("is_causal", "attn_mask", "scale", "enable_gqa", "dropout_p")


def raise_unknown_arguments(function: Callable[..., Any], unknown: Mapping[str, Never]) -> NoReturn:
    """Refuse keyword arguments that `function` does not have, with what to write instead."""
    name, value = next(iter(unknown.items()))
    parameters = inspect.signature(function).parameters.values()
    options = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    own = function.__name__
    hint = _REPLACEMENTS_OF.get(own, {}).get(name) or _REPLACEMENTS.get(name, "")
    if own == "attention" and name in _TORCH_ARGUMENTS:
        hint += "; qkv.compat.scaled_dot_product_attention takes torch's arguments"
    close = get_close_matches(name, options, 1)
    if not hint and close:
        hint = f"write {close[0]}="
    wanted = f"no such argument: qkv.{own} takes {', '.join(options)}"
    raise OptionTypeError(complaint(name, describe(value), wanted, hint))


def _to_four_dimensions(tensor: Tensor, dims: int) -> Tensor:
    return tensor if dims == 4 else tensor.unsqueeze(1) if dims == 3 else tensor[None, None]


def _resolve_mask(mask: Mask, extent: Extent, traced: bool) -> Mask:
    checked = as_mask(mask)
    assert checked is not None
    checked = checked.resolved(extent)
    if not traced:
        checked.check_contents(extent)
    return checked


def _check_options(similarity: AnySimilarity, backend: str, return_lse: bool, return_weights: bool) -> None:
    for name, flag in (("return_lse", return_lse), ("return_weights", return_weights)):
        if flag is not True and flag is not False:
            raise OptionTypeError(complaint(name, repr(flag), "True or False"))
    if not isinstance(backend, str) or backend not in BACKEND_NAMES:
        raise OptionError(complaint("backend", repr(backend), "one of " + ", ".join(BACKEND_NAMES), _BACKEND_HINT))
    if return_lse and not similarity.has_lse:
        given = f"True with {similarity!r}"
        raise OptionError(complaint("return_lse", given, "False", "only Softmax has a log-sum-exp of scores"))


def in_transform() -> bool:
    """Whether a transform of torch.func or forward-mode AD is active."""
    return _functorch.maybe_current_level() is not None or _forward_ad._current_level >= 0


def is_traced(*tensors: Tensor) -> bool:
    """Whether torch.compile, torch.export, torch.func, forward-mode AD or a tensor subclass hides the numbers."""
    if is_compiling() or in_transform():
        return True
    for tensor in tensors:
        kind = type(tensor)
        if kind is not Tensor and kind is not _PARAMETER:
            return True
    return False


def _refuse_dtensors(*tensors: Tensor) -> None:
    """A DTensor has only a part of the sequence, and torch does not mix DTensors with ordinary masks."""
    for tensor in tensors:
        if type(tensor).__name__ == "DTensor":
            hint = "use qkv.parallel.attention, or tensor.to_local() for this rank's part"
            raise DtypeError(complaint("query, key, value", "a DTensor", "ordinary tensors", hint))


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Check types, dtypes, devices and layouts of the three tensors; returns their number of dimensions."""
    try:
        dtype, device, dims = query.dtype, query.device, query.dim()
        sound = (
            dtype in _DTYPE_SET
            and key.dtype is dtype
            and value.dtype is dtype
            and key.device == device
            and value.device == device
            and key.dim() == dims
            and value.dim() == dims
            and 2 <= dims <= 4
            and device.type != "meta"
            and not (query.is_nested or key.is_nested or value.is_nested)
            and query.layout is key.layout is value.layout is torch.strided
        )
    except (AttributeError, TypeError):
        sound = False
    if not sound or not isinstance(query, Tensor):
        _raise_tensor_error(query, key, value)
    return query.dim()


def _raise_tensor_error(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Find the first thing that is wrong, and say which tensor it is."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _check_kind(name, tensor)
        if tensor.dtype is not query.dtype:
            given = f"dtype {tensor.dtype} with query's {query.dtype}"
            hint = "convert with .to(dtype)"
            raise DtypeError(complaint(name, given, "one dtype for query, key and value", hint))
        if tensor.device != query.device:
            given = f"device {tensor.device} with query's {query.device}"
            raise DtypeError(complaint(name, given, "one device for all three"))
    if query.is_meta:
        raise DtypeError(complaint("query", "a meta tensor", "a tensor with contents"))
    dims = query.dim()
    if dims not in (2, 3, 4):
        raise ShapeError(complaint("query", f"{dims} dimensions {tuple(query.shape)}", RANKS))
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dim() != dims:
            given = f"{tensor.dim()} dimensions {tuple(tensor.shape)} with query's {tuple(query.shape)}"
            raise ShapeError(complaint(name, given, f"{dims}, as many as query has"))
    raise DtypeError(complaint("query, key, value", "tensors of an unknown kind", "ordinary dense tensors"))


def _check_sizes(query: Tensor, key: Tensor, value: Tensor) -> None:
    try:
        sizes = check_sizes(query.shape, key.shape, value.shape)
    except ShapeError as error:
        hint = _hint_at_swapped_axes(query.shape, key.shape, value.shape)
        if not hint:
            raise
        raise ShapeError(f"{error} {hint}") from None
    batch, heads, heads_kv, len_q, len_k, width, width_v = sizes
    # In Python's integers, before anything of that size is allocated.
    bytes_out = batch * heads * len_q * max(width, width_v) * query.element_size()
    counts = bytes_out, batch * heads * len_q * len_k, batch * heads_kv * len_k * width
    if any(count > _MAX_INT64 for count in counts):  # the largest of them would compare symbolic sizes in torch.export
        shapes = f"{tuple(query.shape)} and {tuple(key.shape)}"
        raise ShapeError(complaint("query, key", shapes, f"at most {_MAX_INT64} scores: the sizes overflow 64 bits"))


def check_bias(bias: Tensor, query: Tensor, extent: Extent, similarity: AnySimilarity) -> Tensor:
    if not isinstance(similarity, Softmax):
        hint = "bias is added to softmax's scores; mask= works with all similarities"
        raise OptionError(complaint("bias", f"a tensor with {similarity!r}", "None", hint))
    wanted = "numbers to add to the scores"
    if not isinstance(bias, Tensor):
        raise DtypeError(complaint("bias", type(bias).__name__, f"a torch.Tensor of {wanted}"))
    if bias.dtype is torch.bool:
        raise MaskTypeError(complaint("bias", "dtype torch.bool", wanted, "write mask=qkv.Dense(...)"))
    if bias.dtype is not query.dtype and bias.dtype is not compute_dtype(query.dtype):
        raise DtypeError(complaint("bias", f"dtype {bias.dtype}", f"query's {query.dtype}", "convert with .to(dtype)"))
    if bias.device != query.device or bias.is_nested or bias.layout is not torch.strided:
        raise DtypeError(complaint("bias", f"{bias.layout} on {bias.device}", f"a dense tensor on {query.device}"))
    check_broadcast("bias", bias, extent.scores, ShapeError)
    bias = bias.reshape(*(1,) * (extent.dims - bias.dim()), *bias.shape)
    # An expanded axis broadcasts just as well with size 1.
    bias = bias[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in bias.stride())].contiguous()
    return _to_four_dimensions(bias, extent.dims)


def check_broadcast(argument: str, tensor: Tensor, scores: tuple[int, ...], error: type[QkvError]) -> None:
    """Refuse a tensor that does not broadcast to the scores."""
    sizes = zip(reversed(tensor.shape), reversed(scores), strict=False)
    if tensor.dim() > len(scores) or not all(have in (1, size) for have, size in sizes):
        wanted = f"one that broadcasts, aligned at the right, to the scores {scores}"
        raise error(complaint(argument, f"shape {tuple(tensor.shape)}", wanted))


def check_dropout(dropout: float, similarity: AnySimilarity) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, Real):
        raise OptionTypeError(complaint("dropout", repr(dropout), "a probability between 0 and 1"))
    dropout = float(dropout)
    if not 0.0 <= dropout <= 1.0:
        raise OptionError(complaint("dropout", dropout, "a probability between 0 and 1", "0.0 turns it off"))
    if dropout and similarity.picks_one_key:
        hint = "argmax has one key per query, and dropping it would leave none"
        raise OptionError(complaint("dropout", f"{dropout} with Argmax()", "0.0", hint))
    return dropout


def check_sink(sink: Tensor, query: Tensor, heads: int) -> None:
    if sink.dtype not in _DTYPE_SET or sink.device != query.device:
        wanted = f"floating-point logits on {query.device}"
        raise DtypeError(complaint("sink", f"{sink.dtype} on {sink.device}", wanted))
    if sink.numel() != 1 and tuple(sink.shape) != (heads,):
        raise ShapeError(complaint("sink", f"shape {tuple(sink.shape)}", f"({heads},): one logit per query head"))


_MAX_SCORES = 2**62


class DecodeInputs(NamedTuple):
    """query (batch, heads_q, n, width), key (batch, heads_kv, n, width), value (…, n, value_width).

    mask: resolved over the whole sequence. bias: with four dimensions.
    counts: how many of the n new tokens of each row are real, the last ones if `left`; None for all.
    past: the tokens of each row before the call.
    extent: batch, heads_q, n, and the length of the longest row including the new tokens.
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
    def is_argmax(self) -> bool:
        return self.similarity.picks_one_key

    @property
    def band(self) -> Band | None:
        """The mask as one run of keys for each query, in absolute positions; None when it is not one."""
        if self.mask is None:
            return Band()
        total = self.extent.len_k
        return self.mask.band(self.extent._replace(len_q=total))

    def keep(self, rows: tuple[int, int], keys: tuple[int, int]) -> Tensor:
        """The mask of the new queries rows[0] to rows[1] - 1, in four dimensions, each full or 1."""
        assert self.mask is not None
        at = _positions(self.past, self.counts, self.left, self.extent.len_q)
        return self.mask.cells(_PositionedGrid(self.extent, rows, keys, self.query.device, at))


def read_decode_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: _Lengths,
    similarity: AnySimilarity | None,
    mask: Mask | None,
    bias: Tensor | None,
    lengths: Any,
    padding: str,
) -> DecodeInputs:
    """Check every argument of `decode` once. The caller must have the cache's lock."""
    check_tensors(query, key, value)
    if query.dim() != 4:
        wanted = "four dimensions: batch, heads, new tokens, width"
        raise ShapeError(complaint("query", f"shape {tuple(query.shape)}", wanted))
    check_cache_fit(cache, key, value, query.shape[1])
    chosen = check_cache_similarity(similarity)
    sink = chosen.sink if isinstance(chosen, Softmax) else None
    for name, tensor in (("query", query), ("key", key), ("value", value), ("bias", bias), ("sink", sink)):
        if isinstance(tensor, Tensor):
            check_no_gradient(name, tensor)
    if is_traced(query, key, value):
        reason = "torch.func, forward-mode AD and subclasses of tensors hide the numbers that a cache keeps"
        raise BackendRefused(f"decode: {reason}. Hint: call it on ordinary tensors, or use qkv.attention.", (reason,))
    check_query(query, key, cache)

    batch, heads, n, _ = query.shape
    counts, left = check_lengths(lengths, padding, batch, n)
    past = cache.row_lengths.copy()
    total = int(past.max()) + n if counts is None else int((past + counts).max())
    if batch * heads * n * total >= _MAX_SCORES:
        shapes = f"{tuple(query.shape)} with {total} keys"
        wanted = f"fewer than {_MAX_SCORES} scores: the sizes overflow 64 bits"
        raise ShapeError(complaint("query, key", shapes, wanted))
    extent = Extent(batch, heads, n, total)
    if mask is not None:
        mask = _resolve_positions(mask, extent, past, counts, left)
        if cache.window is not None:
            _check_reach(mask, extent, _positions(past, counts, left, n), cache.window)
    if bias is not None:
        bias = check_bias(bias, query, extent, chosen)
    if isinstance(sink, Tensor):
        check_sink(sink, query, heads)
    return DecodeInputs(query, key, value, chosen, mask, bias, counts, left, past, extent)


def check_cache_similarity(similarity: AnySimilarity | None) -> Softmax | Argmax:
    """Softmax or Argmax: a cache of keys and values serves no other similarity."""
    chosen = as_similarity(similarity)
    if isinstance(chosen, Softmax | Argmax):
        return chosen
    reason = f"a cache of keys and values serves Softmax and Argmax, not {type(chosen).__name__}"
    if isinstance(chosen, Similarity):
        hint = "an arbitrary similarity has no finite feature map: use qkv.attention over the whole sequence"
    else:
        hint = "decode with a qkv.LinearState, or use qkv.attention over the whole sequence"
    raise BackendRefused(complaint("similarity", repr(chosen), "Softmax or Argmax", f"{reason}; {hint}"), (reason,))


def check_query(query: Tensor, key: Tensor, cache: _CacheSizes) -> None:
    """Check the query against the cache and a key that fits the cache."""
    batch, heads, n, width = query.shape
    if (batch, width) != (cache.batch, cache.width):
        wanted = f"batch {cache.batch} and width {cache.width}, as the cache has"
        raise ShapeError(complaint("query", f"shape {tuple(query.shape)}", wanted))
    if heads == 0 or heads % cache.heads:
        wanted = f"a multiple of the cache's {cache.heads} heads"
        hint = "query head h reads key/value head h // (heads_q // heads_kv)"
        raise ShapeError(complaint("query", f"{heads} heads", wanted, hint))
    if key.shape[2] != n:
        raise ShapeError(complaint("key", f"{key.shape[2]} new tokens", f"{n}, one for each query"))


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


def _positions(past: np.ndarray, counts: np.ndarray | None, left: bool, n: int) -> np.ndarray:
    """The absolute position of each new query, (batch, n), or (1, n) when all rows are equal."""
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
    return _resolve_mask(_select_rows(checked, extent, at), extent._replace(len_q=extent.len_k), traced=False)


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


def check_size(argument: str, given: Any, least: int = 1) -> int:
    """An integer, `least` or more."""
    number = as_integer(argument, given)
    if number < least:
        raise OptionError(complaint(argument, given, f"an integer, {least} or more"))
    return number


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


def _hint_at_swapped_axes(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> str:
    """For shapes that do not fit: which tensors would, if they were (batch, length, heads, width)."""

    def swapped(shape: Sequence[int]) -> tuple[int, ...]:
        return shape[0], shape[2], shape[1], shape[3]

    candidates: list[tuple[str, tuple[Sequence[int], Sequence[int], Sequence[int]]]]
    if value[1:3] != key[1:3]:
        candidates = [("value", (query, key, swapped(value))), ("key", (query, swapped(key), value))]
    elif query[1] == key[2]:
        candidates = [("query", (swapped(query), key, value))]
        if query[2] == key[1]:
            candidates.append(("key and value", (query, swapped(key), swapped(value))))
    else:
        candidates = [("query, key and value", (swapped(query), swapped(key), swapped(value)))]
    fitting = []
    for names, shapes in candidates:
        with suppress(ShapeError):
            check_sizes(*shapes)
            fitting.append(names)
    names = ", or ".join(fitting)
    return f"If {names} came as (batch, length, heads, width): call .transpose(1, 2) first." if names else ""


def check_plain_tensor(name: str, tensor: Any) -> None:
    """An ordinary tensor of numbers, not differentiated or traced."""
    _check_kind(name, tensor)
    if tensor.is_meta:
        raise DtypeError(complaint(name, "a meta tensor", "a tensor with contents"))
    if type(tensor) not in _PLAIN or _functorch.maybe_current_level() is not None:
        reason = "torch.func and subclasses of tensors hide the numbers that a cache keeps"
        raise BackendRefused(complaint(name, type(tensor).__name__, "an ordinary tensor", reason), (reason,))
    check_no_gradient(name, tensor)


def _check_kind(name: str, tensor: Any) -> None:
    """A dense tensor of floating-point numbers."""
    if not isinstance(tensor, Tensor):
        hint = "torch.as_tensor turns arrays and lists into one"
        raise DtypeError(complaint(name, type(tensor).__name__, "a torch.Tensor", hint))
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
        raise DtypeError(complaint(name, kind, "an ordinary dense tensor", "pad it, or use qkv.varlen"))
    if tensor.dtype not in _DTYPE_SET:
        wanted = "float32, float64, bfloat16 or float16"
        raise DtypeError(complaint(name, f"dtype {tensor.dtype}", wanted, f"{name}.float() converts"))


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
        wanted = f"at most {int(most[row])}, the {what}'s length"
        raise OptionError(complaint("n", int(kept[row]), wanted, "crop keeps the first n tokens; it cannot add tokens"))
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
