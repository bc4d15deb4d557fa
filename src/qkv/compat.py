"""`scaled_dot_product_attention` with torch's arguments, computed by `qkv.attention`."""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .cost.sizes import check_heads
from .errors import DtypeError, MaskError, MaskTypeError, OptionError, OptionTypeError, ShapeError, complaint
from .functional import attention
from .inputs import check_broadcast, check_tensors, is_compiling
from .masks import Causal, Dense, Mask
from .similarity import DEFAULT_SOFTMAX, Softmax, finite_number

_TOP_LEFT = Causal(offset=0)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale·q kᵀ + attn_mask) v, with the arguments and results of torch.nn.functional's function.

    Args:
        query: (…, heads, len_q, width); at least two dimensions, as key and value. Sizes before the last two broadcast.
        key: (…, heads, len_k, width).
        value: (…, heads, len_k, width_v).
        attn_mask: booleans (True attends), or numbers that are added to the scores, of query's dtype or float32; any
            shape that broadcasts to (…, heads, len_q, len_k). Also a `CausalBias` of `torch.nn.attention.bias`.
        dropout_p: applied whenever it is not 0; there is no training mode.
        is_causal: query i attends to key j when j <= i, for any lengths: `qkv.Causal(offset=0)`.
        scale: None is 1/√width.
        enable_gqa: query head h reads key/value head h // (heads_q // heads_kv).

    Returns:
        (…, heads, len_q, width_v).

    Raises:
        MaskError: attn_mask together with is_causal, or one that does not fit.
        OptionTypeError: is_causal or enable_gqa is not True or False.
        ShapeError, DtypeError: tensors that do not fit together.

    >>> import torch
    >>> from torch.nn import functional as F
    >>> x = torch.randn(2, 5, 7, 4)
    >>> torch.allclose(scaled_dot_product_attention(x, x, x, is_causal=True),
    ...                F.scaled_dot_product_attention(x, x, x, is_causal=True), atol=1e-6)
    True

    Under autocast the tensors are converted as torch converts them. What differs from torch 2.13 on CPUs:
    - Keys and values that a boolean mask or is_causal hides cannot matter, NaN and infinity included, and NaN that is
      attended to shows. torch's kernel leaks hidden NaN, and in short rows loses NaN that is attended to.
    - is_causal with a scale of 0 or less is computed; torch's kernel gives NaN. A float32 mask with float64 tensors is
      added; torch's kernel misreads it.
    - attn_mask together with is_causal is refused, as torch documents; its kernel takes both.
    - With sizes of 0 the other sizes still broadcast; torch then returns query's sizes.
    - Refused, where torch accepts some: a scale that is not finite, True as a number, key and value of different
      lengths, or of different heads with enable_gqa, a `CausalBias` of other lengths, nested tensors (`qkv.varlen`).
    - A mask of one dimension, or none, broadcasts to four dimensions as to any other number.
    - Errors are qkv's own; dropout draws other random numbers.
    """
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if flag is not True and flag is not False:
            raise OptionTypeError(complaint(name, repr(flag), "True or False"))
    if type(dropout_p) is not float or dropout_p != 0.0:
        dropout_p = _probability(dropout_p)
    similarity = DEFAULT_SOFTMAX if scale is None else _softmax(scale)
    _check_kinds(query, key, value)
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = (_autocast(tensor) for tensor in (query, key, value))
    plain = _needs_no_broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2], enable_gqa)
    lead = query.shape[:-2] if plain else _leading_sizes(query, key, value, enable_gqa)

    mask, bias = _TOP_LEFT if is_causal else None, None
    if attn_mask is not None:
        if is_causal:
            hint = "for a boolean mask, give attn_mask & torch.ones(len_q, len_k, dtype=torch.bool).tril()"
            raise MaskError(complaint("attn_mask", "a mask with is_causal=True", "one of the two", hint))
        mask, bias = _read_mask(attn_mask, query, (*lead, query.shape[-2], key.shape[-2]))
    if query.shape[-1] == 0 == key.shape[-1]:
        # With width 0 every score is 0, as with one coordinate that is 0.
        query, key = (torch.nn.functional.pad(tensor, (0, 1)) for tensor in (query, key))
    if plain:
        return attention(query, key, value, similarity=similarity, mask=mask, bias=bias, dropout=dropout_p)

    heads, heads_k, heads_v = lead[-1], _heads(key), _heads(value)
    if not enable_gqa and not heads_k == heads_v == 1:  # one head for all query heads needs no copies
        heads_k = heads_v = heads
    if isinstance(mask, Dense):
        mask = Dense.borrowed(_mask_to_four_dimensions(mask.keep, lead))
    bias = None if bias is None else _mask_to_four_dimensions(bias, lead)
    sizes = (query, heads), (key, heads_k), (value, heads_v)
    tensors = (_to_four_dimensions(tensor, lead, count) for tensor, count in sizes)
    out = attention(*tensors, similarity=similarity, mask=mask, bias=bias, dropout=dropout_p)
    return out.reshape(*lead, *out.shape[-2:])


def _softmax(scale: object) -> Softmax:
    number = _number("scale", scale, "None is 1/√width")
    # The compiler warns about lru_cache.
    return Softmax(number) if is_compiling() else _cached_softmax(number)


@lru_cache
def _cached_softmax(scale: float) -> Softmax:
    """A model calls with the same few numbers again and again."""
    return Softmax(scale)


def _check_kinds(query: object, key: object, value: object) -> None:
    """Check for dense tensors of two dimensions or more; `attention` and the sizes check the rest."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
            check_tensors(query, key, value)  # pyright: ignore[reportArgumentType]: it raises
        elif tensor.dim() < 2:
            given = f"{tensor.dim()} dimensions {tuple(tensor.shape)}"
            raise ShapeError(complaint(name, given, "at least two, (..., length, width)"))


def _number(argument: str, given: object, hint: str) -> float:
    """A number, or a tensor without dimensions and gradient as one."""
    if isinstance(given, Tensor):
        if given.dim() or given.requires_grad or given.dtype is torch.bool:
            shown = "a tensor with dimensions or a gradient"
            raise OptionTypeError(complaint(argument, shown, "a plain number", hint))
        given = given.item()
    return finite_number(argument, given, hint)


def _probability(given: object) -> float:
    number = _number("dropout_p", given, hint := "0.0 turns dropout off")
    if not 0.0 <= number <= 1.0:
        raise OptionError(complaint("dropout_p", number, "a probability between 0 and 1", hint))
    return number


def _autocast(tensor: Tensor) -> Tensor:
    """Convert as torch's autocast does for this function: all floating-point tensors except float64."""
    if not tensor.is_floating_point() or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def _needs_no_broadcast(own: torch.Size, of_key: torch.Size, of_value: torch.Size, enable_gqa: bool) -> bool:
    """Whether `attention` reads these shapes as torch does: nothing broadcasts; with enable_gqa, four dimensions."""
    if enable_gqa:
        return len(own) == 2 == len(of_key) and own[0] == of_key[0] and of_key == of_value
    return own == of_key == of_value and len(own) <= 2


def _heads(tensor: Tensor) -> int:
    return tensor.shape[-3] if tensor.dim() > 2 else 1


def _leading_sizes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[int, ...]:
    """The sizes before (len_q, width_v) of the result."""
    own, of_key, of_value = query.shape[:-2], key.shape[:-2], value.shape[:-2]
    if enable_gqa:
        if not (own and of_key and of_value):
            given = f"True with {_shapes(query, key, value)}"
            raise ShapeError(complaint("enable_gqa", given, "three dimensions or more, (..., heads, length, width)"))
        if of_key[-1] != of_value[-1]:
            raise ShapeError(complaint("value", f"{of_value[-1]} heads", f"key's {of_key[-1]} heads, with enable_gqa"))
        check_heads(own[-1], of_key[-1])
        of_key, of_value = (*of_key[:-1], own[-1]), (*of_value[:-1], own[-1])
    try:
        return torch.broadcast_shapes(own, of_key, of_value)
    except RuntimeError:
        hint = "counted from the right, sizes must be equal or 1"
        heads, heads_kv = own[-1] if own else 1, of_key[-1] if of_key else 1
        if not enable_gqa and heads_kv and heads != heads_kv and heads % heads_kv == 0:
            hint = f"enable_gqa=True lets {heads} query heads share {heads_kv} key/value heads"
        wanted = "sizes before the last two that broadcast"
        raise ShapeError(complaint("query, key, value", _shapes(query, key, value), wanted, hint)) from None


def _shapes(*tensors: Tensor) -> str:
    *some, last = (str(tuple(tensor.shape)) for tensor in tensors)
    return f"{', '.join(some)} and {last}"


def _read_mask(given: Tensor, query: Tensor, scores: tuple[int, ...]) -> tuple[Mask | None, Tensor | None]:
    """(mask, None) for booleans, (None, bias) for numbers to add to the scores."""
    if not isinstance(given, Tensor):
        hint = "torch.as_tensor makes one"
        raise MaskTypeError(complaint("attn_mask", type(given).__name__, "a tensor, or None", hint))
    # Not imported here: the module loads torch's compiler, which takes seconds, and a CausalBias needs it loaded.
    biases = sys.modules.get("torch.nn.attention.bias")
    if biases is not None and isinstance(given, biases.CausalBias):
        return _read_causal_bias(given, scores, biases.CausalVariant.LOWER_RIGHT), None
    if given.layout is not torch.strided or given.is_nested or given.device != query.device:
        kind = f"{'a nested tensor' if given.is_nested else given.layout} on {given.device}"
        raise DtypeError(complaint("attn_mask", kind, f"a dense tensor on {query.device}"))
    if torch.is_autocast_enabled(given.device.type):
        given = _autocast(given)
    boolean = given.dtype is torch.bool
    if not boolean and given.dtype not in (query.dtype, torch.float32):
        wanted = f"booleans (True attends), or numbers in query's {query.dtype} or float32 that are added to the scores"
        raise MaskTypeError(complaint("attn_mask", f"dtype {given.dtype}", wanted, "convert it with .to(dtype)"))
    check_broadcast("attn_mask", given, scores, MaskError)
    if boolean:
        return Dense.borrowed(given), None
    return None, given.to(torch.float64) if query.dtype is torch.float64 else given


def _read_causal_bias(given: Any, scores: tuple[int, ...], lower_right: object) -> Causal:
    len_q, len_k = scores[-2:]
    if (lengths := (given.seq_len_q, given.seq_len_kv)) != (len_q, len_k):
        wanted = f"({len_q}, {len_k}), the lengths of query and key"
        raise MaskError(complaint("attn_mask", f"a CausalBias of lengths {lengths}", wanted))
    return Causal(offset=len_k - len_q) if given.variant == lower_right else _TOP_LEFT


def _to_four_dimensions(tensor: Tensor, lead: tuple[int, ...], heads: int) -> Tensor:
    """(…, rows, n) → (batch, heads, rows, n): sizes before the heads are expanded and become the batch."""
    rows, n = tensor.shape[-2:]
    return tensor.expand(*lead[:-1], heads, rows, n).reshape(math.prod(lead[:-1]), heads, rows, n)


def _mask_to_four_dimensions(cells: Tensor, lead: tuple[int, ...]) -> Tensor:
    """The same for a mask of any broadcasting shape; what all batch rows share stays one."""
    cells = cells.reshape(*(1,) * (len(lead) + 2 - cells.dim()), *cells.shape)
    *front, heads, rows, n = cells.shape
    shared = all(size == 1 for size in front)
    return cells.reshape(1, heads, rows, n) if shared else _to_four_dimensions(cells, lead, heads)
