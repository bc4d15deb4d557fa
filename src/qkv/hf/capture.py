"""`look`: one forward pass, and what every attention layer of it was given and did."""

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

_CAPTURE_NAME = "qkv_looked_at"


class CapturedAttention(NamedTuple):
    """An attention layer: its number as the model counts, and its tensors as attention got them, after rotation.

    query (batch, heads, n, width); key, value (batch, kv heads, n, …); weights (batch, heads, n, n); scale: what
    q·k is multiplied by.
    """

    layer: int | None
    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor
    scale: float


_ON_LAYER: ContextVar[Callable[[CapturedAttention], None] | None] = ContextVar("_NOTE", default=None)


def capture(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], *, each: Callable[[CapturedAttention], None] | None = None
) -> list[CapturedAttention]:
    """Run a model that is set to "qkv" on `inputs` and return its attention layers in the order in which they ran.

    each: told of a layer as soon as it has run; an error that it raises ends the pass.

    >>> import torch, transformers, qkv
    >>> qkv.hf.register()
    >>> sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=97)
    >>> config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    >>> model = transformers.AutoModel.from_config(config, attn_implementation="qkv").eval()
    >>> layers = look(model, {"input_ids": torch.tensor([[5, 7, 11]])})
    >>> [tuple(layer.weights.shape) for layer in layers], tuple(layers[0].key.shape)
    ([(1, 4, 3, 3), (1, 4, 3, 3)], (1, 2, 3, 8))
    """
    given = model.config._attn_implementation
    if given != NAME:
        hint = "qkv.hf.register(), then model.set_attn_implementation('qkv')"
        raise BackendRefused(complaint("model", f"one with attn_implementation={given!r}", f"one with {NAME!r}", hint))
    AttentionInterface.register(_CAPTURE_NAME, _capturing_forward)
    AttentionMaskInterface.register(_CAPTURE_NAME, make_mask)
    layers: list[CapturedAttention] = []

    def note(layer: CapturedAttention) -> None:
        layers.append(layer)
        if each is not None:
            each(layer)

    noting = _ON_LAYER.set(note)
    model.set_attn_implementation(_CAPTURE_NAME)
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        model.set_attn_implementation(NAME)
        _ON_LAYER.reset(noting)
    return layers


def _capturing_forward(
    module: nn.Module, query: Tensor, key: Any, value: Any, attention_mask: Any = None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    out, weights = attention_forward(
        module, query, key, value, attention_mask, **{**options, "output_attentions": True}
    )
    note, scale = _ON_LAYER.get(), options.get("scaling")
    if note is not None and weights is not None:
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        note(CapturedAttention(getattr(module, "layer_idx", None), query, key, value, weights, scale))
    return out, weights


class HeadStatistics(NamedTuple):
    """What the heads of a layer do on the whole, each (batch, heads).

    entropy: of a query's weights, in nats, the mean over queries. first, itself: the mean weight on the first token and
    on the query's own. previous: the mean weight on the token before, over all queries but the first; NaN where there
    is one token alone.
    """

    entropy: Tensor
    first: Tensor
    previous: Tensor
    itself: Tensor


def head_statistics(weights: Tensor) -> HeadStatistics:
    """weights (batch, heads, n, n), as of `look`.

    >>> found = habits(torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]]))
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
