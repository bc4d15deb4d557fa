"""`cache(model)`: a cache for transformers whose layers are `qkv.KVCache`s, and `qkv.LinearState`s in hybrid models."""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, get_layer_types_and_kwargs

from ..cache.formats import storage_format
from ..errors import BackendRefused, OptionError, OptionTypeError, complaint
from ..inputs import check_size
from .interface import check_layers, check_uses_qkv
from .layers import LatentLayer, PagedLayer
from .recurrent import runs_on_states
from .states import StateLayer

# Layer types that cache keys and values, and the option with their window. Chunks are masks, not windows.
_WINDOW_OPTION = {"full_attention": None, "chunked_attention": None, "sliding_attention": "sliding_window"}


class PagedCache(DynamicCache):
    """A cache for `past_key_values=`; created by `cache`."""

    # MiniMaxCache, which `_cache_class` may add, has others.
    __len__, is_croppable = Cache.__len__, Cache.is_croppable  # pyright: ignore[reportIncompatibleMethodOverride]
    batch_repeat_interleave, batch_select_indices = Cache.batch_repeat_interleave, Cache.batch_select_indices

    def __init__(self, layers: list[PagedLayer | StateLayer], dtype: torch.dtype | str) -> None:
        Cache.__init__(self, layers=layers)  # pyright: ignore[reportArgumentType]
        self._dtype = dtype

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if layer_idx >= len(self.layers):
            given = f"a cache of {len(self.layers)} layers for layer {layer_idx}"
            raise OptionError(complaint("past_key_values", given, "qkv.hf.cache(model) of the same model"))
        return self.layers[layer_idx].update(key_states, value_states)  # pyright: ignore[reportAttributeAccessIssue]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.layers[layer_idx].get_seq_length()  # pyright: ignore[reportAttributeAccessIssue]

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last -tokens_to_remove tokens of all layers, or of none."""
        for layer in self.layers:
            if isinstance(layer, StateLayer):
                layer.check_crop(tokens_to_remove)
        Cache.crop(self, tokens_to_remove)

    def fork(self) -> PagedCache:
        """An independent cache with the same tokens, which are not copied."""
        new = copy.copy(self)
        new.layers = [layer.fork() for layer in self.layers]  # pyright: ignore[reportAttributeAccessIssue]
        return new

    @property
    def nbytes(self) -> int:
        """Bytes of the pages and states of all layers."""
        return sum(layer.nbytes for layer in self.layers)  # pyright: ignore[reportAttributeAccessIssue]

    def __repr__(self) -> str:
        kind = str(self._dtype).removeprefix("torch.")
        return f"PagedCache({len(self.layers)} layers, {self.get_seq_length()} tokens, {kind}, {self.nbytes} bytes)"


class PagedEncoderDecoderCache(EncoderDecoderCache):
    """Self-attention in pages; keys and values of cross-attention stay tensors of transformers."""

    @property
    def nbytes(self) -> int:
        """Bytes of the decoder's pages and of the encoder's keys and values."""
        crossed: list[Any] = self.cross_attention_cache.layers
        tensors = [tensor for layer in crossed for tensor in (layer.keys, layer.values) if tensor is not None]
        paged: Any = self.self_attention_cache
        return paged.nbytes + sum(tensor.nbytes for tensor in tensors)

    @property
    def layers(self) -> list[Any]:
        """The layers of the decoder's self-attention."""
        return self.self_attention_cache.layers


def cache(
    model: PreTrainedModel,
    *,
    dtype: torch.dtype | str | None = None,
    capacity: int | None = None,
    rollback: int = 0,
) -> PagedCache | PagedEncoderDecoderCache:
    """Create a cache for `past_key_values=` of a model and of its `generate`. Tokens are appended without copies.

    Padding on either side of a row is supported and not stored. Sliding-window layers reuse pages. `crop`,
    `reorder_cache` and the batch methods of transformers only change tables of pages. A model with multi-head latent
    attention caches its latents here and gets them as tensors, since it computes keys and values itself in every step.
    Layers of linear attention have a `LinearState` in float32, and the last inputs of their convolution. Gradients are
    not supported: use `torch.no_grad()`.

    Args:
        model: A model of transformers with attn_implementation="qkv".
        dtype: Storage format, as for `KVCache`; the model's dtype if None.
        capacity: Memory for this many tokens per row is allocated at once, and more are refused. If None, the cache
            grows.
        rollback: How many of the last tokens `crop` can remove where the model has layers of linear attention; other
            layers can remove all.

    Returns:
        A `PagedCache`, or a `PagedEncoderDecoderCache` for encoder-decoder models.

    Raises:
        BackendRefused: The model is not set to "qkv", or it cannot use a cache of keys and values.
        OptionError, OptionTypeError, DtypeError: An argument is invalid.

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
    """
    if not isinstance(model, PreTrainedModel):
        raise OptionTypeError(complaint("model", type(model).__name__, "a model of transformers"))
    config = model.config.get_text_config(decoder=True)
    check_uses_qkv(model, config, "only qkv reads pages")
    check_layers(model)
    dtype = model.dtype if dtype is None else dtype
    storage_format(dtype)
    capacity = None if capacity is None else check_size("capacity", capacity)
    rollback = check_size("rollback", rollback, least=0)
    _check_is_decoder(model, config)
    kinds, options = get_layer_types_and_kwargs(config)
    if len(kinds) != len(options):
        given = f"{len(kinds)} layer_types for {len(options)} layers"
        raise OptionError(complaint("model", given, "a configuration with one type for each layer"))
    layer_class = LatentLayer if getattr(config, "kv_lora_rank", None) else PagedLayer
    recurrent = {getattr(module, "layer_idx", None) for module in model.modules() if runs_on_states(module)}
    layers: list[PagedLayer | StateLayer] = []
    for index, (kind, option) in enumerate(zip(kinds, options, strict=True)):
        name = f"{type(model).__name__}, layer {index}"
        if kind == "linear_attention" and index in recurrent and option.get("number_of_states", 1) == 1:
            layers.append(StateLayer(rollback, name))
            continue
        if kind not in _WINDOW_OPTION:
            raise _refused(model, f"layer {index} is of type {kind}, which qkv cannot cache")
        window = None if _WINDOW_OPTION[kind] is None else option.get(_WINDOW_OPTION[kind])
        layers.append(layer_class(dtype, capacity, window, name))
    paged = _cache_class(model)(layers, dtype)
    return PagedEncoderDecoderCache(paged, DynamicCache()) if model.config.is_encoder_decoder else paged


def _cache_class(model: PreTrainedModel) -> type[PagedCache]:
    """`PagedCache`; MiniMax accepts no cache that is not a `MiniMaxCache`."""
    wanted = getattr(sys.modules[type(model).__module__], "MiniMaxCache", None)
    return PagedCache if wanted is None else type("PagedCache", (PagedCache, wanted), {})


def _check_is_decoder(model: PreTrainedModel, config: Any) -> None:
    """Refuse models whose layers do not cache keys and values."""
    # Attention layers have is_causal; if none has, the model may be a decoder.
    causal = [module.is_causal for module in model.modules() if hasattr(module, "is_causal")]
    if not model.config.is_encoder_decoder and not (model.can_generate() and (any(causal) or not causal)):
        raise _refused(model, "it is not a decoder: tokens attend to later tokens, so nothing can be cached")
    if getattr(model, "_is_stateful", False) and not any(runs_on_states(module) for module in model.modules()):
        raise _refused(model, "it caches other states in addition to keys and values")
    if getattr(config, "num_kv_shared_layers", None):
        raise _refused(model, f"its last {config.num_kv_shared_layers} layers use the keys of earlier layers")


def _refused(model: PreTrainedModel, reason: str) -> BackendRefused:
    text = f"{type(model).__name__}: qkv.hf.cache does not support this model: {reason}"
    return BackendRefused(f"{text}. Hint: use a cache of transformers.", (reason,))
