"""Torch operators for torch.compile and torch.export: attention, its gradient, and a decode step.

    qkv::attention(query, key, value, …) -> (out, state)
    qkv::attention_backward(grad_out, grad_lse, …, query, key, value, …, out, state) -> (dq, dk, dv, dbias, dsink)

`attention` chooses a backend when it runs, as a call outside a compiled program does. `state` is what the backward pass
needs: the log-sum-exp of softmax, the best keys of argmax, otherwise nothing. Similarity and mask travel as texts,
numbers and tensors (`qkv.backends.description`). With `cu_seqlens` the tensors are packed documents, (1, heads, total,
width).

    qkv::decode(query, key, value, handle, …) -> (batch, heads_q, n, value_width)

handle is int64 (1 + batch,): the number of a cache, and the number of tokens in each of its rows. The operator is a
function of its arguments: it crops the cache to those lengths, appends, attends and writes the new lengths into the
handle. Steps on one cache therefore depend on each other in the graph, and steps on different caches do not.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, complaint

SCHEMA = (
    "decode(Tensor query, Tensor key, Tensor value, Tensor(a!) handle, float? scale=None, float? softcap=None, "
    "Tensor? sink=None, Tensor? bias=None, Tensor? keep=None, bool argmax=False, Tensor? lengths=None, "
    "bool left=False, bool sigmoid=False) -> Tensor"
)
_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? sink, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "str similarity, float[] numbers, str mask, SymInt[] mask_numbers, Tensor[] mask_tensors, str backend, "
    "bool needs_grad, bool return_lse"
)
_OUTPUTS = "(Tensor, Tensor, Tensor, Tensor, Tensor)"
_CACHES: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count(1)
_LIBRARY = torch.library.Library("qkv", "DEF")


def register_cache(cache: Any) -> int:
    """A number for the cache, valid as long as the cache exists."""
    number = next(_NUMBERS)
    _CACHES[number] = cache
    return number


def cache_of(handle: Tensor) -> Any:
    """The cache of a handle."""
    cache = _CACHES.get(int(handle[0]))
    if cache is None:
        given, wanted = "the handle of a deleted cache", "the handle of an existing cache"
        raise OptionError(complaint("handle", given, wanted, "keep a reference to the cache"))
    return cache


def requested_lengths(handle: Tensor, current: np.ndarray) -> np.ndarray:
    """The lengths in a handle; OptionError unless they are at most the current ones of its cache."""
    lengths = handle[1:].numpy(force=True)
    if lengths.shape != current.shape or (lengths < 0).any() or (lengths > current).any():
        given, wanted = f"lengths {lengths.tolist()}", f"lengths of at most {current.tolist()}"
        raise OptionError(complaint("handle", given, wanted, "use cache.handle as it is now"))
    return lengths.copy()


def set_implementation(function: Callable[..., Any], name: str = "decode") -> None:
    """Register the function that runs an operator on tensors with data."""
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")


def _fake_decode(query: Tensor, key: Tensor, value: Tensor, handle: Tensor, *rest: Any, **options: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


def heads_last(like: Tensor, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
    """A new tensor (batch, heads, n, …) with the memory layout (batch, n, heads, …)."""
    batch, heads, n, *rest = sizes
    return like.new_empty((batch, n, heads, *rest), dtype=dtype).transpose(1, 2)


def empty_outputs(
    query: Tensor, value: Tensor, similarity: str, needs_grad: bool, return_lse: bool
) -> tuple[Tensor, Tensor]:
    """Tensors for the two outputs of `qkv::attention`; the first has the memory layout of the query."""
    batch, heads, n, _ = query.shape
    width = value.shape[3]
    out = query.new_empty((batch, heads, n, width))
    if query.stride(1) < query.stride(2):
        out = heads_last(query, batch, heads, n, width)
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    if similarity.startswith("Softmax") and (needs_grad or return_lse):
        return out, heads_last(query, batch, heads, n, dtype=dtype)
    if similarity == "Argmax" and needs_grad:
        return out, query.new_empty((batch, heads, n), dtype=torch.int64)
    return out, query.new_empty((0,), dtype=dtype)


def empty_gradients(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, sink: Tensor | None, needed: list[bool]
) -> tuple[Tensor, ...]:
    """Tensors for the outputs of `qkv::attention_backward`; those of a bias or sink that needs none are empty."""
    sides = [heads_last(tensor, *tensor.shape) for tensor in (query, key, value)]
    for tensor, need in zip((bias, sink), needed[3:], strict=True):
        sides.append(query.new_empty((0,)) if tensor is None or not need else tensor.new_empty(tensor.shape))
    return tuple(sides)


def _fake_attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return empty_outputs(query, value, rest[4], *rest[-2:])


def _fake_backward(grad_out: Tensor | None, grad_lse: Tensor | None, needed: list[bool], *rest: Any) -> Any:
    query, key, value, bias, sink = rest[:5]
    return empty_gradients(query, key, value, bias, sink, needed)


def _is_tensor_list(given: Any) -> bool:
    return isinstance(given, list | tuple) and all(isinstance(item, Tensor) for item in given)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.options = (*inputs[7:11], *inputs[12:])
    # Lists of tensors, and empty lists, which torch takes for such, have a list for a gradient.
    ctx.nothing = [[None] * len(x) if _is_tensor_list(x) else None for x in inputs[5:]]
    ctx.set_materialize_grads(False)
    if not inputs[-1]:
        ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:7], *output, *inputs[11])


def _differentiate(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    tensors, output, mask_tensors = ctx.saved_tensors[:7], ctx.saved_tensors[7:9], list(ctx.saved_tensors[9:])
    needed = list(ctx.needs_input_grad[:5])
    if grad_out is None and grad_lse is None:
        return None, None, None, None, None, *ctx.nothing
    grad_lse = grad_lse if ctx.options[-1] else None
    options = *ctx.options[:4], mask_tensors, *ctx.options[4:]
    grads = attention_backward(grad_out, grad_lse, needed, *tensors, *options, *output)
    return *(grad if need else None for grad, need in zip(grads, needed, strict=True)), *ctx.nothing


_LIBRARY.define(SCHEMA)
_LIBRARY.define(f"attention({_INPUTS}) -> (Tensor, Tensor)")
_LIBRARY.define(
    f"attention_backward(Tensor? grad_out, Tensor? grad_lse, bool[] needed, {_INPUTS}, Tensor out, Tensor state) "
    f"-> {_OUTPUTS}"
)
torch.library.register_fake("qkv::decode", _fake_decode, lib=_LIBRARY)
torch.library.register_fake("qkv::attention", _fake_attention, lib=_LIBRARY)
torch.library.register_fake("qkv::attention_backward", _fake_backward, lib=_LIBRARY)
torch.library.register_autograd("qkv::attention", _differentiate, setup_context=_setup_context, lib=_LIBRARY)
decode = torch.ops.qkv.decode.default
attention = torch.ops.qkv.attention.default
attention_backward = torch.ops.qkv.attention_backward.default
