"""`register()`, the attention function that transformers then calls for attn_implementation="qkv", and `capture`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.utils import output_capturing

from ..errors import BackendRefused, complaint
from ..functional import attention
from ..masks import Causal, Window
from ..masks.joined import join_masks
from ..similarity import Softmax
from .layers import (
    LAYER_CALLS,
    LayerCall,
    PagedStates,
    class_source,
    layer_name,
    layer_refused,
    match_dtype,
    refuse_unknown_arguments,
)
from .masks import ADDITIVE_MASK_CONFIGS, LazyMask, make_mask, read_mask_tensor
from .recurrent import prepare_layers, warn_of_others


def layer_calls() -> Counter[str]:
    """Calls of each attention layer since `reset_layer_calls()`; keys are "LlamaAttention 0" and so on.

    Returns:
        How often each layer ran.

    >>> reset_layer_calls()
    >>> layer_calls()
    Counter()
    """
    return Counter({layer_name(*layer): count for layer, count in LAYER_CALLS.items()})


def reset_layer_calls() -> None:
    """Reset the counts of `layer_calls`."""
    LAYER_CALLS.clear()


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    sliding_window: int | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function of transformers' interface.

    Args:
        query: (batch, heads, n, width).
        key, value: Tensors, or `PagedStates` of a `qkv.hf.cache`.

    Returns:
        (batch, n, heads, value_width), and the weights if they are requested.
    """
    refuse_unknown_arguments(module, others)
    edges, separated = others.get("cu_seq_lens_q"), isinstance(attention_mask, LazyMask) and attention_mask.rules.others
    if edges is not None and edges.numel() > 2 and not separated:
        reason = "cu_seq_lens_q= packs several documents, but position_ids= do not define where each begins"
        raise layer_refused(module, reason)
    return_weights = bool(output_attentions) or _recording_weights()
    similarity = _softmax(scaling, softcap) if s_aux is None else Softmax(scaling, softcap, s_aux)
    bias = None if position_bias is None else position_bias.to(query.dtype)
    if type(key) is PagedStates:
        if dropout:
            raise layer_refused(module, "dropout is not supported with a qkv.hf.cache; call model.eval()")
        if is_causal is False and query.shape[2] > 1 and not isinstance(attention_mask, Tensor):
            raise layer_refused(module, "it is not causal, which a cache requires; run it without past_key_values")
        call = LayerCall(module, query, key, value, attention_mask, similarity, bias, return_weights)  # pyright: ignore
        out, weights = key.layer.attend(call)
    else:
        key, value = match_dtype(query, key, value)
        mask = added = None
        if isinstance(attention_mask, LazyMask):
            if attention_mask.sizes.keys != key.shape[2]:
                reason = f"its mask is for {attention_mask.sizes.keys} keys, and its cache has {key.shape[2]}"
                raise layer_refused(module, reason)
            mask = attention_mask.mask()
        elif attention_mask is not None:
            mask, added = read_mask_tensor(query, attention_mask, key.shape[2])
        elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            # Without a mask, keys after the queries are unused slots of a static cache.
            window = None if sliding_window is None else Window(left=sliding_window - 1, offset=0)
            mask = join_masks(Causal(offset=0), window)
        bias = added if bias is None else bias if added is None else bias + added
        if bias is not None and bias.shape[-1] > key.shape[2]:
            bias = bias[..., : key.shape[2]]
        answer: Any = attention(
            query, key, value, similarity=similarity, mask=mask, bias=bias, dropout=dropout,
            return_lse=False, return_weights=return_weights,
        )  # fmt: skip
        out, weights = answer if isinstance(answer, tuple) else (answer, None)
    LAYER_CALLS[type(module).__name__, getattr(module, "layer_idx", None)] += 1
    return out.transpose(1, 2).contiguous(), weights


def _recording_weights() -> bool:
    """Whether transformers records weights: not every model passes output_attentions to its layers."""
    collector = output_capturing._active_collector.get()
    return collector is not None and any(name.endswith("attentions") for name in collector)


@lru_cache
def _softmax(scale: float | None, softcap: float | None) -> Softmax:
    """Cached, so that the plan of an earlier step, which compares by identity, is found."""
    return Softmax(scale, softcap)


NAME = "qkv"
_REGISTRY_CALL = "get_interface("
# A table of classes by implementation, which has no entry for "qkv".
_CLASS_TABLE = re.compile(r"_CLASSES\[(self\.)?config\._attn_implementation\]")
_ATTENTION_OPS = ("softmax(", "scaled_dot_product_attention(", "baddbmm(")


def register() -> None:
    """Register "qkv" as an attention implementation of transformers. May be called repeatedly.

    Afterwards `from_pretrained(..., attn_implementation="qkv")`, `from_config(..., attn_implementation="qkv")` and
    `model.set_attn_implementation("qkv")` run every attention layer on qkv. A model with a layer that computes
    attention itself is refused with BackendRefused; transformers would silently run that layer unchanged.

    >>> register()
    >>> from transformers import AttentionInterface
    >>> "qkv" in AttentionInterface()
    True
    """
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, make_mask)
    for method in ("post_init", "_check_and_adjust_attn_implementation", "set_attn_implementation"):
        _wrap_method(method)


def _wrap_method(method: str) -> None:
    """Check the model around a method of PreTrainedModel; transformers has no hooks for these calls."""
    original = getattr(PreTrainedModel, method)
    if getattr(original, "wrapped_by", None) == NAME:
        return

    @wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if method != "post_init":
            if method == "set_attn_implementation":
                prepare_layers(self)
            _check_model(self, args[0] if args else kwargs.get("attn_implementation"))
        result = original(self, *args, **kwargs)
        if method == "post_init":
            prepare_layers(self)
            _check_model(self, getattr(self.config, "_attn_implementation", None))
        return result

    wrapped.wrapped_by = NAME  # pyright: ignore[reportAttributeAccessIssue]
    setattr(PreTrainedModel, method, wrapped)


def _check_model(model: PreTrainedModel, implementation: Any) -> None:
    if not model._supports_sdpa:
        ADDITIVE_MASK_CONFIGS.add(type(model.config))
    if implementation == NAME:
        if not type(model)._can_set_attn_implementation() or _CLASS_TABLE.search(class_source(type(model), True)):
            raise _model_refused(model, f"{type(model).__module__} does not use transformers' attention interface")
        check_layers(model)
        warn_of_others(model)


def check_uses_qkv(model: PreTrainedModel, config: Any, reason: str) -> None:
    if config._attn_implementation != NAME:
        hint = "qkv.hf.register(), then model.set_attn_implementation('qkv')"
        given = f"{type(model).__name__} with attn_implementation={config._attn_implementation!r}"
        raise BackendRefused(complaint("model", given, f"{NAME!r}", hint), (reason,))


def _model_refused(model: nn.Module, reason: str) -> BackendRefused:
    hint = "use attn_implementation='eager' or 'sdpa'"
    return BackendRefused(f"{type(model).__name__}: qkv cannot run this model: {reason}. Hint: {hint}.", (reason,))


def check_layers(model: nn.Module) -> None:
    """Refuse a model with an attention layer that does not use transformers' attention interface."""
    for path, module in model.named_modules():
        kind = type(module)
        if "Attention" not in kind.__name__ or any(
            _REGISTRY_CALL in class_source(type(part)) for part in module.modules()
        ):
            continue
        if any(word in class_source(kind) for word in _ATTENTION_OPS):
            raise _model_refused(model, f"{path or 'it'} ({kind.__name__}) computes attention itself")


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
    check_uses_qkv(model, model.config, "other layers are not captured")
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
    options["output_attentions"] = True
    out, weights = attention_forward(module, query, key, value, attention_mask, **options)
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

    Args:
        weights: (batch, heads, n, n).

    Returns:
        Means over the queries of each head, (batch, heads) each.

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
