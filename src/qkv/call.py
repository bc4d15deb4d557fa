"""A call of `attention`, read once: validated, brought to four dimensions and frozen.

Everything that can be wrong with the arguments is found here; forms trust what they get. Nothing in
this file reads the numbers inside a tensor, except where a mask holds lengths.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from .errors import DtypeError, MaskError, MaskTypeError, OptionError, OptionTypeError, ShapeError, complaint
from .masks import Extent, Mask, as_mask
from .similarity import AnySimilarity, Argmax, Softmax, as_similarity
from .sizes import RANKS, check_sizes

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_DTYPE_SET = frozenset(DTYPES)
FORM_NAMES = ("auto", "dense", "streaming", "linear", "hard", "decode")
_LARGEST = 2**63 - 1
BOUNDARY = 64  # bytes: torch's own tensors start on multiples of it
# Looked up once: a chain of attributes costs as much as the question itself.
is_compiling, _forward_ad, _PARAMETER = torch.compiler.is_compiling, torch.autograd.forward_ad, torch.nn.Parameter


class Call(NamedTuple):
    """query (batch, heads_q, len_q, width), key (batch, heads_kv, len_k, width), value (…, len_k, width_v)."""

    query: Tensor
    key: Tensor
    value: Tensor
    similarity: AnySimilarity
    mask: Mask | None
    bias: Tensor | None
    dropout: float
    form: str
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
    def group(self) -> int:
        """How many query heads read one key/value head: query head h reads h // group."""
        return self.extent.heads // max(1, self.heads_kv)

    @property
    def sink(self) -> Tensor | None:
        """The sink as (heads_q, 1, 1) in the arithmetic's dtype, ready to stand beside the scores."""
        sink = self.similarity.sink if isinstance(self.similarity, Softmax) else None
        if sink is None:
            return None
        dtype = arithmetic(self.query.dtype)
        if not isinstance(sink, Tensor):
            return self.query.new_full((1, 1, 1), sink, dtype=dtype)
        return sink.to(dtype).reshape(-1, 1, 1)

    def mask_versions(self) -> tuple[int, ...]:
        return () if self.mask is None else self.mask.versions()

    def check_mask_is_as_it_was(self, versions: tuple[int, ...]) -> None:
        """A mask is made again in the backward pass, and must still be the one of the forward pass."""
        if self.mask_versions() != versions:
            raise MaskError(
                complaint(
                    "mask",
                    "a tensor that was written to between the forward and the backward pass",
                    "one that stays as it was",
                    "give the mask a clone() of the buffer",
                )
            )


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """Scores and sums are float32 for half-precision inputs, and the inputs' own dtype otherwise."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def fold_group(tensor: Tensor, heads_kv: int) -> Tensor:
    """(batch, heads_q, rows, n) → (batch, heads_kv, group·rows, n): the group's heads become rows."""
    batch, heads_q, rows, n = tensor.shape
    return tensor if heads_q == heads_kv else tensor.reshape(batch, heads_kv, heads_q // heads_kv * rows, n)


def unfold_group(tensor: Tensor, heads_q: int) -> Tensor:
    """The way back of `fold_group`."""
    batch, heads_kv, rows, n = tensor.shape
    return tensor if heads_q == heads_kv else tensor.reshape(batch, heads_q, rows * heads_kv // heads_q, n)


def compact(tensor: Tensor) -> Tensor:
    """The same numbers in the plain order of memory and from a boundary on, so that no layout can change a bit of what
    follows: on some processors a product q kᵀ rounds otherwise when its rows start elsewhere (docs/log.md).

    Nothing is copied that lies so already. One matrix that `expand` shows to all batch rows and heads stays one, where
    its copies would start on boundaries as well.
    """
    shape, strides = tensor.shape, tensor.stride()
    if tensor.is_contiguous():
        plain = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        # An axis of size 1 may have any stride and still be contiguous, and torch's products look at strides.
        tensor = tensor if strides == plain else tensor.flatten().view(shape)
        return tensor.clone() if tensor.data_ptr() % BOUNDARY else tensor
    front, matrix = shape[:-2], math.prod(shape[-2:]) * tensor.itemsize
    alike = all(stride == 0 or size == 1 for size, stride in zip(front, strides[:-2], strict=True))
    if alike and math.prod(front) > 1 and matrix % BOUNDARY == 0:
        return compact(tensor[(slice(0, 1),) * len(front)]).expand(shape)
    return tensor.contiguous()


def level(tensor: Tensor) -> Tensor:
    """For kernels that take strides: the tensor itself where its rows, copied or not, start on boundaries, and
    `compact` otherwise."""
    (batch, head, row, one), width, step = tensor.stride(), tensor.shape[3], BOUNDARY // tensor.itemsize
    off = tensor.data_ptr() % BOUNDARY or width % step or batch % step or head % step or row % step
    return compact(tensor) if off or one != 1 or row < width else tensor


def read_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: AnySimilarity | None,
    mask: Mask | None,
    bias: Tensor | None,
    dropout: float,
    form: str,
    return_lse: bool,
    return_weights: bool,
) -> Call:
    """Check every argument once and freeze the call."""
    dims = check_tensors(query, key, value)
    query, key, value = _in_four_dimensions(query, key, value, dims)
    _check_sizes(query, key, value)
    (batch, heads, len_q, width), heads_kv, len_k, width_v = query.shape, key.shape[1], key.shape[2], value.shape[3]
    extent = Extent(batch, heads, len_q, len_k, dims)
    chosen = as_similarity(similarity)
    _check_options(chosen, form, return_lse, return_weights)
    if type(dropout) is not float or dropout != 0.0:
        dropout = check_dropout(dropout, chosen)

    traced = is_traced(query, key, value)
    if traced:
        _refuse_spread(query, key, value)
    learns = query.requires_grad or key.requires_grad or value.requires_grad
    if mask is not None:
        mask = _resolved(mask, extent, traced)
    if bias is not None:
        bias = check_bias(bias, query, extent, chosen)
        learns = learns or bias.requires_grad
    if isinstance(chosen, Softmax) and isinstance(chosen.sink, Tensor):
        check_sink(chosen.sink, query, heads)
        learns = learns or chosen.sink.requires_grad
    needs_grad = learns and torch.is_grad_enabled()

    flags = dropout > 0.0, return_lse, return_weights, needs_grad, traced
    kinds = chosen.signature, None if mask is None else mask.signature(), None if bias is None else bias.shape
    signature = form, query.dtype, query.device.type, extent, heads_kv, width, width_v, kinds, flags
    returns = return_lse, return_weights
    sizes = extent, heads_kv, width, width_v
    return Call(query, key, value, chosen, mask, bias, dropout, form, *returns, *sizes, needs_grad, traced, signature)


def _in_four_dimensions(query: Tensor, key: Tensor, value: Tensor, dims: int) -> tuple[Tensor, Tensor, Tensor]:
    if dims == 4:
        return query, key, value
    if dims == 3:
        return query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    return query[None, None], key[None, None], value[None, None]


def _resolved(mask: Mask, extent: Extent, traced: bool) -> Mask:
    checked = as_mask(mask)
    assert checked is not None
    checked = checked.resolved(extent)
    if not traced:
        checked.check_contents(extent)
    return checked


def _check_options(similarity: AnySimilarity, form: str, return_lse: bool, return_weights: bool) -> None:
    for name, flag in (("return_lse", return_lse), ("return_weights", return_weights)):
        if flag is not True and flag is not False:
            raise OptionTypeError(complaint(name, repr(flag), "True or False"))
    if not isinstance(form, str) or form not in FORM_NAMES:
        raise OptionError(complaint("form", repr(form), "one of " + ", ".join(FORM_NAMES)))
    if return_lse and not isinstance(similarity, Softmax):
        given = f"True with {similarity!r}"
        raise OptionError(complaint("return_lse", given, "False", "only Softmax has a log-sum-exp of scores"))


def transforming() -> bool:
    """Whether torch.func or forward-mode AD is at work."""
    return _functorch.maybe_current_level() is not None or _forward_ad._current_level >= 0


def is_traced(*tensors: Tensor) -> bool:
    """Whether torch.compile, torch.export, torch.func or forward-mode AD stands between us and the numbers."""
    if is_compiling() or transforming():
        return True
    for tensor in tensors:
        kind = type(tensor)
        if kind is not Tensor and kind is not _PARAMETER:
            return True
    return False


def _refuse_spread(*tensors: Tensor) -> None:
    """A part of a sequence is no sequence, and torch's operators do not mix DTensors with masks that are none."""
    for tensor in tensors:
        if type(tensor).__name__ == "DTensor":
            hint = "qkv.parallel.attention takes DTensors; t.to_local() is what this rank has"
            raise DtypeError(complaint("query, key, value", "a DTensor", "ordinary tensors", hint))


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> int:
    """The number of dimensions, after everything about the three tensors but their sizes was looked at."""
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
        _complain_of_tensors(query, key, value)
    return query.dim()


def _complain_of_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Say what is wrong with them, one after the other."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            hint = "torch.as_tensor turns arrays and lists into one"
            raise DtypeError(complaint(name, type(tensor).__name__, "a torch.Tensor", hint))
        if tensor.is_nested or tensor.layout is not torch.strided:
            kind = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
            raise DtypeError(complaint(name, kind, "an ordinary dense tensor", "pad it, or use qkv.varlen"))
        if tensor.dtype not in _DTYPE_SET:
            wanted = "float32, float64, bfloat16 or float16"
            raise DtypeError(complaint(name, f"dtype {tensor.dtype}", wanted, f"{name}.float() converts"))
        if tensor.dtype is not query.dtype:
            given = f"dtype {tensor.dtype} beside query's {query.dtype}"
            hint = "nothing is promoted in silence: convert with .to(dtype)"
            raise DtypeError(complaint(name, given, "one dtype for query, key and value", hint))
        if tensor.device != query.device:
            given = f"device {tensor.device} beside query's {query.device}"
            raise DtypeError(complaint(name, given, "one device for all three"))
    if query.device.type == "meta":
        raise DtypeError(complaint("query", "a meta tensor", "a tensor that holds numbers"))
    dims = query.dim()
    if dims not in (2, 3, 4):
        raise ShapeError(complaint("query", f"{dims} dimensions {tuple(query.shape)}", RANKS))
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dim() != dims:
            given = f"{tensor.dim()} dimensions {tuple(tensor.shape)} beside query's {tuple(query.shape)}"
            raise ShapeError(complaint(name, given, f"{dims}, as many as query has"))
    raise DtypeError(complaint("query, key, value", "tensors of an unknown kind", "ordinary dense tensors"))


def _check_sizes(query: Tensor, key: Tensor, value: Tensor) -> None:
    batch, heads, heads_kv, len_q, len_k, width, width_v = check_sizes(query.shape, key.shape, value.shape)
    # Checked in Python's integers, before anything of that size is asked for.
    bytes_out = batch * heads * len_q * max(width, width_v) * query.element_size()
    if bytes_out > _LARGEST or batch * heads * len_q * len_k > _LARGEST or batch * heads_kv * len_k * width > _LARGEST:
        shapes = f"{tuple(query.shape)} and {tuple(key.shape)}"
        raise ShapeError(complaint("query, key", shapes, f"at most {_LARGEST} scores: the sizes overflow 64 bits"))


def check_bias(bias: Tensor, query: Tensor, extent: Extent, similarity: AnySimilarity) -> Tensor:
    if not isinstance(similarity, Softmax):
        raise OptionError(
            complaint(
                "bias",
                f"a tensor with {similarity!r}",
                "None",
                "bias is added to softmax's scores; a mask works for all",
            )
        )
    if not isinstance(bias, Tensor):
        raise DtypeError(complaint("bias", type(bias).__name__, "a torch.Tensor that is added to the scores"))
    if bias.dtype is torch.bool:
        raise MaskTypeError(
            complaint("bias", "dtype torch.bool", "numbers to add", "a mask goes to mask=qkv.Dense(...)")
        )
    if bias.dtype is not query.dtype and bias.dtype is not arithmetic(query.dtype):
        raise DtypeError(complaint("bias", f"dtype {bias.dtype}", f"query's {query.dtype}", "convert with .to(dtype)"))
    if bias.device != query.device or bias.is_nested or bias.layout is not torch.strided:
        raise DtypeError(complaint("bias", f"{bias.layout} on {bias.device}", f"a dense tensor on {query.device}"))
    scores = (extent.batch, extent.heads, extent.len_q, extent.len_k)
    seen = scores if extent.dims == 4 else (extent.batch, *scores[2:]) if extent.dims == 3 else scores[2:]
    fits = bias.dim() <= len(seen) and all(
        have in (1, want) for have, want in zip(reversed(bias.shape), reversed(seen), strict=False)
    )
    if not fits:
        raise ShapeError(
            complaint(
                "bias",
                f"shape {tuple(bias.shape)}",
                f"one that broadcasts, right-aligned, to the scores {seen}",
            )
        )
    bias = bias.reshape(*(1,) * (extent.dims - bias.dim()), *bias.shape)
    # What was expanded broadcasts just as well unexpanded.
    bias = bias[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in bias.stride())].contiguous()
    return bias.unsqueeze(1) if extent.dims == 3 else bias[None, None] if extent.dims == 2 else bias


def check_dropout(dropout: float, similarity: AnySimilarity) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, Real):
        raise OptionTypeError(complaint("dropout", repr(dropout), "a probability between 0 and 1"))
    dropout = float(dropout)
    if not 0.0 <= dropout <= 1.0:
        raise OptionError(complaint("dropout", dropout, "a probability between 0 and 1", "0.0 turns it off"))
    if dropout and isinstance(similarity, Argmax):
        raise OptionError(
            complaint(
                "dropout",
                f"{dropout} with Argmax()",
                "0.0",
                "argmax keeps one key, and dropping it leaves none",
            )
        )
    return dropout


def check_sink(sink: Tensor, query: Tensor, heads: int) -> None:
    if sink.dtype not in _DTYPE_SET or sink.device != query.device:
        raise DtypeError(
            complaint("sink", f"{sink.dtype} on {sink.device}", f"floating-point logits on {query.device}")
        )
    if sink.numel() != 1 and tuple(sink.shape) != (heads,):
        raise ShapeError(complaint("sink", f"shape {tuple(sink.shape)}", f"({heads},): one logit per query head"))
