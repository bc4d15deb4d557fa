"""`capture`: the inputs and weights of every attention layer in a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from ..errors import BackendRefused, complaint
from .interface import NAME, attention_forward
from .masks import make_mask

_CAPTURE_NAME = "qkv_capture"


class CapturedAttention(NamedTuple):
    """An attention layer: its index in the model, its inputs after rotary positions, and its weights.

    query (batch, heads, n, width); key, value (batch, kv_heads, n, …); weights (batch, heads, n, n); scale: The factor
    of q·k.
    """

    layer: int | None
    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor
    scale: float


_ON_LAYER: ContextVar[Callable[[CapturedAttention], None] | None] = ContextVar("_ON_LAYER", default=None)


def capture(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], *, each: Callable[[CapturedAttention], None] | None = None
) -> list[CapturedAttention]:
    """Run a model that is set to "qkv" and return its attention layers in the order in which they ran.

    Args:
        model: A model of transformers with attn_implementation="qkv".
        inputs: Keyword arguments of the model.
        each: Called with each layer after it has run; an exception from it ends the pass.

    Returns:
        One `CapturedAttention` per layer.

    Raises:
        BackendRefused: The model is not set to "qkv".

    >>> import torch, transformers, qkv
    >>> qkv.hf.register()
    >>> sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=97)
    >>> config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    >>> model = transformers.AutoModel.from_config(config, attn_implementation="qkv").eval()
    >>> layers = capture(model, {"input_ids": torch.tensor([[5, 7, 11]])})
    >>> [tuple(layer.weights.shape) for layer in layers], tuple(layers[0].key.shape)
    ([(1, 4, 3, 3), (1, 4, 3, 3)], (1, 2, 3, 8))
    """
    given = model.config._attn_implementation
    if given != NAME:
        hint = "qkv.hf.register(), then model.set_attn_implementation('qkv')"
        raise BackendRefused(complaint("model", f"attn_implementation={given!r}", f"{NAME!r}", hint))
    AttentionInterface.register(_CAPTURE_NAME, _capturing_forward)
    AttentionMaskInterface.register(_CAPTURE_NAME, make_mask)
    layers: list[CapturedAttention] = []

    def on_layer(layer: CapturedAttention) -> None:
        layers.append(layer)
        if each is not None:
            each(layer)

    token = _ON_LAYER.set(on_layer)
    model.set_attn_implementation(_CAPTURE_NAME)
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        model.set_attn_implementation(NAME)
        _ON_LAYER.reset(token)
    return layers


def _capturing_forward(
    module: nn.Module, query: Tensor, key: Any, value: Any, attention_mask: Any = None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    out, weights = attention_forward(
        module, query, key, value, attention_mask, **{**options, "output_attentions": True}
    )
    on_layer, scale = _ON_LAYER.get(), options.get("scaling")
    if on_layer is not None and weights is not None:
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        on_layer(CapturedAttention(getattr(module, "layer_idx", None), query, key, value, weights, scale))
    return out, weights


class HeadStatistics(NamedTuple):
    """Means over the queries of each head, each (batch, heads).

    entropy: Of a query's weights, in nats. first: Weight of the first token. previous: Weight of the token before the
    query, over all queries but the first; NaN for a single token. itself: Weight of the query's own token.
    """

    entropy: Tensor
    first: Tensor
    previous: Tensor
    itself: Tensor


def head_statistics(weights: Tensor) -> HeadStatistics:
    """Statistics of weights (batch, heads, n, n), as returned by `capture`.

    >>> found = head_statistics(torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]]))
    >>> float(found.first), float(found.previous), float(found.itself)
    (0.625, 0.25, 0.875)
    """
    weights = weights.double()
    return HeadStatistics(
        torch.special.entr(weights).sum(-1).mean(-1),
        weights[..., 0].mean(-1),
        weights.diagonal(-1, -2, -1).mean(-1),
        weights.diagonal(0, -2, -1).mean(-1),
    )
