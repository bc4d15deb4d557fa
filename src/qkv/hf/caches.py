"""`cache(model)`: a cache for transformers whose layers are `qkv.KVCache`s, and `qkv.LinearState`s in hybrid models."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, get_layer_types_and_kwargs

from ..cache.formats import storage_format
from ..cache.mapped import PagesFile, write_pages
from ..cache.prefixes import fingerprint
from ..errors import BackendRefused, OptionError, OptionTypeError, complaint
from ..inputs import check_size
from .interface import check_layers, check_uses_qkv
from .layers import LatentLayer, PagedLayer, pass_on_latents
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
    `reorder_cache` and the batch methods of transformers only change tables of pages. Of a model with multi-head latent
    attention (MLA) the latents are stored and decoded as `qkv.cache.decode_latents` does. Layers of linear attention
    have a `LinearState` in float32, and the last inputs of their convolution. Gradients are not supported: use
    `torch.no_grad()`.

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
    layer_class = PagedLayer
    if getattr(config, "kv_lora_rank", None):
        layer_class = LatentLayer
        pass_on_latents(model)
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


def identity(model: PreTrainedModel) -> str:
    """A name of a model for files of its caches: `qkv.cache.prefixes.fingerprint` of its configuration and weights."""
    config = {name: each for name, each in model.config.to_dict().items() if name[0] != "_"}
    return fingerprint(config | {"transformers_version": None}, model.state_dict())


def save_cache(model: PreTrainedModel, cache: PagedCache, path: str | os.PathLike[str], *, tokens: Any = None) -> None:
    """Write the cache of all layers to one file, whole or not at all.

    Args:
        model: The model that filled it.
        cache: Of `qkv.hf.cache(model)`; not that of an encoder-decoder.
        path: The file. It holds the tokens in the clear, and keys and values from which text can be guessed.
        tokens: The tokens of all rows without padding, one row after another, which `load_cache` can ask for.

    Raises:
        BackendRefused: A layer has other states than keys and values in pages.
    """
    write_layers(path, [cache], model=identity(model), tokens=tokens)


def load_cache(
    model: PreTrainedModel, path: str | os.PathLike[str], *, tokens: Any = None, check: bool | None = None
) -> PagedCache:
    """Open a file that `save_cache` wrote; pages are mapped and copied on write, as in `KVCache.map`.

    Args:
        model: The model, whose configuration and weights must be those of the file.
        path: The file.
        tokens: The tokens that it must have been saved with; any if None.
        check: Whether to compare the pages with their hash, which reads all of them. None: up to 64 MiB.

    Returns:
        A cache for `past_key_values=`; later calls append to it.

    Raises:
        OptionError: The file is damaged, or it is that of another model or of other tokens.

    >>> import tempfile, torch, transformers, qkv
    >>> qkv.hf.register()
    >>> sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=97, num_attention_heads=4)
    >>> config = transformers.LlamaConfig(**sizes)
    >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="qkv").eval()
    >>> cache = qkv.hf.cache(model)
    >>> with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
    ...     logits = model(torch.tensor([[5, 7, 11]]), past_key_values=cache).logits
    ...     qkv.hf.save_cache(model, cache, f"{folder}/chat.prefix")
    ...     qkv.hf.load_cache(model, f"{folder}/chat.prefix").get_seq_length()
    3
    """
    file = PagesFile(path)
    file.expect(identity(model), tokens)
    record = next((each for each in file.records if each is not None), None)
    found = cache(model, dtype=None if record is None else record["dtype"])
    if not isinstance(found, PagedCache):
        raise _refused(model, "the keys of cross-attention are not in pages")
    read_layers(file, [found], check)
    return found


def write_layers(path: str | os.PathLike[str], caches: Sequence[PagedCache], **options: Any) -> None:
    """Write several caches of a model to one file."""
    layers, more = [], dict[str, torch.Tensor]()
    for one in caches:
        for layer in one.layers:
            if not isinstance(layer, PagedLayer) or not isinstance(one, PagedCache):
                reason = f"{type(layer).__name__} of {type(one).__name__} does not only have keys and values in pages"
                raise BackendRefused(f"cache: {reason}. Hint: save what the model was given.", (reason,))
            masks = {"real": layer._real, "stored": layer._stored}
            more |= {f"{n}.of.{len(layers)}": each.to(torch.uint8) for n, each in masks.items() if each is not None}
            layers.append(layer)
    first: list[Any] = [one.layers[0] for one in caches]
    options["count"] = sum(int(layer.cache.row_lengths.sum()) for layer in first if layer.cache is not None)
    about = {"lengths": json.dumps([[layer.length, layer.stores_padding] for layer in layers])}
    write_pages(path, [layer.cache for layer in layers], about=about, more=more, **options)


def read_layers(file: PagesFile, caches: Sequence[PagedCache], check: bool | None) -> None:
    """Fill new caches of a model from a file of `write_layers`."""
    layers: list[Any] = [layer for one in caches for layer in one.layers]
    masks = {f"{name}.of.{number}" for name in ("real", "stored") for number in range(len(layers))}
    found = file.caches(check=check, extras=masks & set(file.arrays))
    try:
        states = [(int(length), bool(padded)) for length, padded in json.loads(file.about["lengths"])]
        for number, (layer, own, (length, padded)) in enumerate(zip(layers, found, states, strict=True)):
            if own is None:
                continue
            given = (file.arrays.get(f"{name}.of.{number}") for name in ("real", "stored"))
            layer.cache, layer.length, layer.stores_padding = own, length, padded
            layer._real, layer._stored = (None if each is None else each != 0 for each in given)
            fits = layer._real is None or layer._real.shape == (own.batch, length)
            if not fits or own.window != layer.window or not torch.equal(layer.stored(length).sum(1), own.lengths):
                raise ValueError(f"layer {number}")
    except (KeyError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise file.damaged(f"layers that do not fit: {error}") from error


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
