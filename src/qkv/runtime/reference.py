"""Runs a program in float32 with torch, `qkv.decode` and KVCaches: what the native step is compared with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache.decode import decode
from ..cache.eviction import FirstLast, Policy
from ..cache.kv import KVCache
from ..errors import OptionError, complaint
from ..nn.positions import positions_after
from ..ops.packed import FEW_ROWS
from ..shapes import Bool, Float, Int
from ..similarity import Softmax
from .blocks import PackedMatrix
from .program import Attention, FeedForward, Linear, Norm, Program, Rotary

_GELU_TANH = partial(F.gelu, approximate="tanh")
_ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": _GELU_TANH, "relu": F.relu}
_BLOCK = 32  # activations that share a scale
_OUTLIER = 36.0  # a block has one if its largest square is more than this many times the mean square of the row
_KEPT_BYTES = 2 << 30
_DENSE: WeakKeyDictionary[PackedMatrix, Tensor] = WeakKeyDictionary()  # matrices in float32, up to _KEPT_BYTES


def run(
    program: Program,
    tokens: Int[Tensor, "batch n"],
    caches: Sequence[KVCache],
    *,
    lengths: Int[Tensor, " batch"] | None = None,
    padding: str = "right",
    every: bool = False,
    activations: str = "float32",
    threads: int | None = None,
) -> Float[Tensor, "*rows vocabulary"]:
    """Append tokens to the caches, one for each layer, and return logits of the next token.

    If it raises, no cache has changed.

    Args:
        program: The model.
        tokens: Token numbers; those of padding have no effect.
        caches: As `new_caches` makes them.
        lengths: How many tokens of each row are real; all if None.
        padding: Where the padding is: "right" or "left" of the real tokens.
        every: Whether to return the logits of all n tokens; otherwise of the last real token of each row.
        activations: "float32", or "int8": what is multiplied by a matrix is rounded in blocks.
        threads: torch's number if None.

    Returns:
        (batch, vocabulary), or (batch, n, vocabulary).
    """
    batch, n = tokens.shape
    if lengths is not None:
        tokens = tokens * real_tokens(n, lengths, padding)
    program.check_length(int((caches[0].lengths + (n if lengths is None else lengths)).max()))
    positions = positions_after(caches[0], n, lengths, padding).at(torch.device("cpu"))
    angles: dict[Rotary, tuple[Tensor, Tensor]] = {}

    def multiply(linear: Linear, x: Tensor) -> Tensor:
        y = product(linear.weight, x, activations)
        return y if linear.bias is None else y + linear.bias

    def attend(attention: Attention, x: Tensor, cache: KVCache) -> Tensor:
        linears = attention.query, attention.key, attention.value
        norms = attention.query_norm, attention.key_norm, None
        parts = zip(linears, norms, strict=True)
        query, key, value = (_heads(attention, multiply(each, x), norm) for each, norm in parts)
        if attention.rotary is not None:
            if attention.rotary not in angles:
                angles[attention.rotary] = _angles(attention.rotary, positions)
            query, key = (_rotated(attention.rotary, each, *angles[attention.rotary]) for each in (query, key))
        similarity = Softmax(scale=attention.scale, softcap=attention.softcap, sink=attention.sinks)
        out = decode(query, key, value, cache, similarity=similarity, lengths=lengths, padding=padding)
        return multiply(attention.output, out.transpose(1, 2).flatten(2))

    def feed(forward: FeedForward, x: Tensor) -> Tensor:
        activation = _ACTIVATIONS[forward.activation]
        up = multiply(forward.up, x)
        inner = activation(up) if forward.gate is None else activation(multiply(forward.gate, x)) * up
        return multiply(forward.down, inner)

    with torch.no_grad(), torch_threads(threads), _all_or_none(caches):
        x = program.embedding.dense(tokens.flatten()).view(batch, n, -1) * program.embedding_scale
        if (learned := program.positions) is not None:
            x = x + learned[positions.clamp(0, len(learned) - 1)]  # those of padding may be outside
        for layer, cache in zip(program.layers, caches, strict=True):
            attended = attend(layer.attention, _normalized(layer.attention_norm, x), cache)
            between = x + _normalized(layer.attention_post_norm, attended)
            fed = feed(layer.feed_forward, _normalized(layer.feed_forward_norm, x if layer.parallel else between))
            x = between + _normalized(layer.feed_forward_post_norm, fed)
        if not every:
            last = torch.full((batch,), n) if lengths is None or padding == "left" else lengths
            x = x[torch.arange(batch), (last - 1).clamp(min=0)]
        logits = multiply(program.logits, _normalized(program.norm, x))
    cap = program.logits_softcap
    return logits if cap is None else cap * torch.tanh(logits / cap)


def real_tokens(n: int, lengths: Int[Tensor, " batch"], padding: str) -> Bool[Tensor, "batch n"]:
    """True for the tokens that are not padding."""
    index = torch.arange(n)
    return index < lengths[:, None] if padding == "right" else index >= n - lengths[:, None]


def new_caches(
    program: Program, batch: int, dtype: torch.dtype, capacity: int | None, eviction: Policy | None = None
) -> list[KVCache]:
    """An empty cache for each layer; layers with a window keep it and do without `eviction`."""
    if eviction is not None and eviction.positions == "renumbered" and program.positions is not None:
        wanted = "'absolute' for a model with learned positions, which are added before the first layer"
        raise OptionError(complaint("positions", "'renumbered'", wanted))
    caches = []
    for layer in program.layers:
        attention = layer.attention
        rules: dict[str, Any] = {"window": attention.window}
        if eviction is not None and attention.window is None:
            rules = _forgetting(eviction, attention.rotary)
        caches.append(KVCache(batch, attention.kv_heads, attention.width, dtype=dtype, capacity=capacity, **rules))
    return caches


def _forgetting(eviction: Policy, rotary: Rotary | None) -> dict[str, Any]:
    """The options of a layer's cache: the first and the last tokens are a ring, which copies nothing."""
    if eviction.positions == "absolute":
        if isinstance(eviction, FirstLast) and eviction.last > 0:
            return {"window": eviction.last, "sinks": eviction.first}
        return {"eviction": eviction}
    if eviction.rotate is None and rotary is not None:

        def rotate(key: Tensor, shift: Tensor) -> Tensor:
            angle = shift.unsqueeze(-1) * rotary.frequencies
            return _rotated(rotary, key, angle.cos().float(), angle.sin().float())

        eviction = replace(eviction, rotate=rotate)
    return {"eviction": eviction}


def product(
    weight: PackedMatrix, x: Float[Tensor, "*rows columns"], activations: str = "float32"
) -> Float[Tensor, "*rows outputs"]:
    """Wx in float32, for each row x; with "int8", of x as native code rounds it (native/src/packed.h)."""
    if activations == "int8":
        few = x.shape[:-1].numel() <= FEW_ROWS
        if weight.format.is_quantized:
            x = round_blocks(x, few)
        elif weight.format.name == "bf16" and not few:
            x = x.bfloat16().float()
    return x @ _dense(weight).T


def round_blocks(x: Float[Tensor, "*rows columns"], few: bool) -> Float[Tensor, "*rows columns"]:
    """x rounded in blocks of 32 with a scale each: to 15 bits if rows are few or the block has an outlier, otherwise 8.

    A block that is not finite is NaN.

    >>> round_blocks(torch.tensor([[254.0, -3.0, 0.5] + 29 * [127.0]]), few=False)[0, :4]
    tensor([254.,  -4.,   0., 128.])
    """
    parts, squares = x.unflatten(-1, (-1, _BLOCK)), x.square().sum(-1)[..., None, None]
    most = parts.abs().amax(-1, keepdim=True)
    outlier = squares.isfinite() & (most.double().square() > _OUTLIER * squares.double() / x.shape[-1])
    steps = torch.where(outlier | few, 127.0 * 2**7, 127.0)
    numbers = (parts * torch.where(most > 1e-34, steps / most, 0.0)).round()
    return (numbers * (most / steps)).flatten(-2)


def _dense(weight: PackedMatrix) -> Tensor:
    found = _DENSE.get(weight)
    if found is None:
        found = weight.dense()
        if found.nbytes + sum(each.nbytes for each in _DENSE.values()) <= _KEPT_BYTES:
            _DENSE[weight] = found
    return found


def _normalized(norm: Norm | None, x: Tensor) -> Tensor:
    if norm is None:
        return x
    if norm.kind == "layer":
        return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight


def _heads(attention: Attention, x: Tensor, norm: Norm | None) -> Tensor:
    """(batch, heads, n, width), normalized."""
    whole = norm is not None and len(norm.weight) == x.shape[-1]
    x = _normalized(norm, x) if whole else x
    x = x.unflatten(-1, (-1, attention.width)).transpose(1, 2)
    return x if whole else _normalized(norm, x)


def _angles(rotary: Rotary, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, in float32 from angles in float64: (n, pairs), or (batch, 1, n, pairs) where rows differ."""
    angle = positions.unsqueeze(-1) * rotary.frequencies
    angle = angle if angle.dim() == 2 else angle.unsqueeze(1)
    return angle.cos().float() * rotary.scale, angle.sin().float() * rotary.scale


def _rotated(rotary: Rotary, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = 2 * len(rotary.frequencies)
    part, rest = x[..., :width], x[..., width:]
    a, b = (part[..., 0::2], part[..., 1::2]) if rotary.interleaved else part.chunk(2, dim=-1)
    pairs = a * cos - b * sin, b * cos + a * sin
    part = torch.stack(pairs, dim=-1).flatten(-2) if rotary.interleaved else torch.cat(pairs, dim=-1)
    return torch.cat([part, rest], dim=-1)


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _all_or_none(caches: Sequence[KVCache]) -> Iterator[None]:
    """Restore all caches if a layer raises or is interrupted; until then, windows evict nothing."""
    before: list[Any] = [(cache, cache.lengths, cache.keep_past) for cache in caches]
    for cache in caches:
        cache.keep_past = True
    try:
        yield
    except BaseException:
        for cache, lengths, _ in before:
            cache.crop(lengths)
        raise
    finally:
        for cache, _, kept in before:
            if not kept:
                cache.evict_past()
            cache.keep_past = kept
