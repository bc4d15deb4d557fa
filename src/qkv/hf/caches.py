"""`cache(model)`: a transformers cache whose layers are `qkv.KVCache`s."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, get_layer_types_and_kwargs

from ..cache.pages import STORAGE_CODE
from ..errors import BackendRefused, DtypeError, OptionError, OptionTypeError, complaint
from ..inputs import check_size
from .interface import NAME, check_layers
from .layers import LatentLayer, PagedLayer

# Layers that keep keys and values, and what tells how far back they look. A chunk is a mask, and no ring.
_WINDOW_OPTION = {"full_attention": None, "chunked_attention": None, "sliding_attention": "sliding_window"}


class PagedCache(DynamicCache):
    """What `cache` returns, for `past_key_values=`."""

    def __init__(self, layers: list[PagedLayer], dtype: torch.dtype) -> None:
        Cache.__init__(self, layers=layers)  # pyright: ignore[reportArgumentType]
        self._dtype = dtype

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if layer_idx >= len(self.layers):
            given = f"one with {len(self.layers)} layers for layer {layer_idx}"
            raise OptionError(complaint("past_key_values", given, "qkv.hf.cache(model) of this very model"))
        return self.layers[layer_idx].update(key_states, value_states)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def nbytes(self) -> int:
        """The bytes of the pages that all layers hold."""
        return sum(layer.nbytes for layer in self.layers)  # pyright: ignore[reportAttributeAccessIssue]

    def __repr__(self) -> str:
        kind = str(self._dtype).removeprefix("torch.")
        return f"PagedCache({len(self.layers)} layers, {self.get_seq_length()} tokens, {kind}, {self.nbytes} bytes)"


class PagedEncoderDecoderCache(EncoderDecoderCache):
    """Self-attention in pages; what cross-attention reads is written once, and stays transformers' own tensors."""

    @property
    def nbytes(self) -> int:
        """The bytes of the decoder's pages, and of the encoder's keys and values."""
        crossed: list[Any] = self.cross_attention_cache.layers
        tensors = [tensor for layer in crossed for tensor in (layer.keys, layer.values) if tensor is not None]
        paged: Any = self.self_attention_cache
        return paged.nbytes + sum(tensor.nbytes for tensor in tensors)

    @property
    def layers(self) -> list[Any]:
        """Those of the decoder's self-attention."""
        return self.self_attention_cache.layers


def cache(
    model: PreTrainedModel, *, dtype: torch.dtype | None = None, capacity: int | None = None
) -> PagedCache | PagedEncoderDecoderCache:
    """A cache for `past_key_values=` of a model and of its `generate`: tokens are appended in place, never copied.

    dtype: what tokens are rounded to: float32, float16, bfloat16 or int8. None: the model's own dtype.
    capacity: room for so many tokens a row is set aside at once, and more are refused. None grows.

    >>> import torch, transformers, qkv
    >>> qkv.hf.register()
    >>> sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=97)
    >>> config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="qkv").eval()
    >>> cache = qkv.hf.cache(model, dtype=torch.bfloat16)
    >>> with torch.no_grad():
    ...     logits = model(torch.tensor([[5, 7, 11]]), past_key_values=cache).logits
    >>> cache.get_seq_length(), len(cache)
    (3, 2)

    Rows padded on either side are served, and padding is not kept. Sliding layers are rings. `crop`, `reorder_cache`
    and the batch verbs of transformers change tables of pages. A model with multi-head latent attention keeps latents
    there, and gets them as tensors, since it makes keys and values of all of them in every step itself. Run it under
    `torch.no_grad()`: a cache is not differentiated.
    """
    if not isinstance(model, PreTrainedModel):
        raise OptionTypeError(complaint("model", type(model).__name__, "a model of transformers"))
    config = model.config.get_text_config(decoder=True)
    name = type(model).__name__
    if config._attn_implementation != NAME:
        hint = "qkv.hf.register(), then model.set_attn_implementation('qkv')"
        given = f"{name} with attn_implementation={config._attn_implementation!r}"
        raise BackendRefused(complaint("model", given, f"one with {NAME!r}", hint), ("only qkv can read its pages",))
    check_layers(model)
    dtype = model.dtype if dtype is None else dtype
    if dtype not in STORAGE_CODE:
        wanted = "torch.float32, float16, bfloat16 or int8"
        raise DtypeError(
            complaint("dtype", dtype, wanted, "this is how tokens are kept, whatever the model computes in")
        )
    capacity = None if capacity is None else check_size("capacity", capacity)
    _check_is_decoder(model, config)
    kinds, options = get_layer_types_and_kwargs(config)
    if len(kinds) != len(options):
        given = f"{len(kinds)} layer_types for {len(options)} layers"
        raise OptionError(complaint("model", given, "one for each layer, in its configuration"))
    layer_class = LatentLayer if getattr(config, "kv_lora_rank", None) else PagedLayer
    layers = []
    for index, (kind, option) in enumerate(zip(kinds, options, strict=True)):
        if kind not in _WINDOW_OPTION:
            reason = f"layer {index} is {kind}, which keeps no keys and values"
            raise BackendRefused(f"{name}: qkv.hf.cache cannot serve it: {reason}.", (reason,))
        window = None if _WINDOW_OPTION[kind] is None else option.get(_WINDOW_OPTION[kind])
        layers.append(layer_class(dtype, capacity, window, f"{name}, layer {index}"))
    paged = PagedCache(layers, dtype)
    return PagedEncoderDecoderCache(paged, DynamicCache()) if model.config.is_encoder_decoder else paged


def _check_is_decoder(model: PreTrainedModel, config: Any) -> None:
    """Refuse what keeps no keys and values of its own, by name."""
    name, reason = type(model).__name__, None
    # Attention layers say whether they are causal; where none does, nothing is known against it.
    causal = [module.is_causal for module in model.modules() if hasattr(module, "is_causal")]
    if not model.config.is_encoder_decoder and not (model.can_generate() and (any(causal) or not causal)):
        reason = "it is no decoder: its tokens see what comes after them, and nothing can be kept"
    elif getattr(model, "_is_stateful", False):
        reason = "it keeps states of its own beside keys and values"
    elif getattr(config, "num_kv_shared_layers", None):
        reason = f"its last {config.num_kv_shared_layers} layers read the keys of layers before them"
    if reason is not None:
        raise BackendRefused(f"{name}: qkv.hf.cache cannot serve it: {reason}. Hint: use transformers' own.", (reason,))
