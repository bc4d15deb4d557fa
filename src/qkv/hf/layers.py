"""Layers of a transformers `Cache` whose tokens are in a `qkv.KVCache`.

transformers updates the cache first and attends afterwards. Here the update only records the new tokens and returns
`PagedStates` instead of keys and values; the attention function then calls `qkv.decode` on the layer's cache, which
appends and attends without concatenating tensors.

Positions are those of transformers, which count padding. Padding is not stored if that does not change the result, so
rows of a batch have different lengths and need no mask; `_stored` says which positions are stored. If distances matter
(a window, a position bias), padding after a row's first real token is stored and masked.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections import Counter
from contextlib import suppress
from functools import lru_cache, wraps
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves
from transformers.cache_utils import CacheLayerMixin
from transformers.utils.generic import TransformersKwargs

from ..cache import KVCache
from ..cache.decode import decode
from ..cache.latents import decode_latents, expand_latents
from ..errors import BackendRefused, MaskError, OptionError, ShapeError, complaint
from ..functional import attention
from ..inputs import check_size
from ..masks import Dense, Mask, Padding, Window
from ..masks.joined import join_masks
from ..similarity import Softmax
from .masks import LazyMask, read_mask_tensor

# Calls of each layer that qkv served: its class and index.
LAYER_CALLS: Counter[tuple[str, int | None]] = Counter()

# Arguments that models pass to their layers and that do not change attention, apart from the mask.
_KNOWN = frozenset(TransformersKwargs.__annotations__) | {
    "cache_position", "deterministic", "labels", "logits_to_keep", "output_router_logits", "position_embeddings",
    "past_key_values", "return_dict", "token_type_ids", "use_cache",
}  # fmt: skip


class PagedStates:
    """Represents the keys or values of a layer, new tokens included: a shape without data."""

    __slots__ = ("device", "dtype", "layer", "new", "shape")

    def __init__(self, layer: PagedLayer, new: Tensor, total: int) -> None:
        self.layer, self.new = layer, new
        self.dtype, self.device = new.dtype, new.device
        self.shape = torch.Size((new.shape[0], new.shape[1], total, new.shape[3]))

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return 4

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse_use(f".{name}")

    def __getitem__(self, index: Any) -> NoReturn:
        self._refuse_use("[...]")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        states = next(part for part in tree_leaves((args, kwargs)) if isinstance(part, PagedStates))
        states._refuse_use(f"torch's {getattr(func, '__name__', func)}")

    def _refuse_use(self, what: str) -> NoReturn:
        where = "on keys or values outside the attention function, where those of a qkv.hf.cache are no tensors"
        raise cache_refused(f"past_key_values of {self.layer.name}", f"it uses {what} {where}")


def cache_refused(what: str, reason: str, hint: str = "use transformers' own cache with this model") -> BackendRefused:
    return BackendRefused(f"{what}: {reason}. Hint: {hint}.", (reason,))


class PagedLayer(CacheLayerMixin):
    """A layer of `qkv.hf.cache`. Its `KVCache`, `cache`, is created with the first tokens."""

    is_compileable = False
    is_croppable = True

    def __init__(
        self, dtype: torch.dtype | str, capacity: int | None, window: int | None, name: str = "a layer"
    ) -> None:
        self.storage, self.capacity, self.window, self.name = dtype, capacity, window, name
        self.cache: KVCache | None = None
        self.record_past = False
        self._pending: PagedStates | None = None
        self._clear()

    @property
    def tokens(self) -> KVCache:
        """The cache, which exists."""
        assert self.cache is not None
        return self.cache

    def _clear(self) -> None:
        self.length = 0
        self._real: Tensor | None = None  # (batch, length), True for real tokens; None: all are real
        # (batch, positions), True for stored tokens; later positions are all stored.
        self._stored: Tensor | None = None
        self.stores_padding = False  # whether the cache has padding tokens

    # The interface of transformers' cache layers.

    @property
    def is_sliding(self) -> bool:
        return self.window is not None

    @property
    def is_initialized(self) -> bool:
        return self.cache is not None

    @property
    def batch_size(self) -> int:
        return -1 if self.cache is None else self.cache.batch

    @property
    def keys(self) -> NoReturn:  # pyright: ignore[reportIncompatibleVariableOverride]
        reason = "keys and values of this layer are stored in pages, not in tensors"
        raise cache_refused(repr(self), reason, "layer.cache.tensors() returns copies")

    values = keys  # pyright: ignore[reportAssignmentType]

    @property
    def nbytes(self) -> int:
        return 0 if self.cache is None else self.cache.nbytes

    def __repr__(self) -> str:
        return f"PagedLayer({self.name}: {self.cache if self.cache is not None else 'empty'})"

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Create the cache with the sizes of these tokens."""
        batch, heads, _, width = key_states.shape
        value_width = value_states.shape[3]
        self.cache = KVCache(
            batch, heads, width, value_width=value_width, capacity=self.capacity, window=self.window, dtype=self.storage
        )
        self.cache.keep_past = self.record_past

    def _ensure_cache(self, key_states: Tensor, value_states: Tensor) -> None:
        if self.cache is None or (self.length == 0 and self.cache.batch != key_states.shape[0]):
            self.lazy_initialization(key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._pending is not None:
            self._pending = None
            raise cache_refused(repr(self), "the model updates its cache without calling the attention function")
        if not isinstance(key_states, Tensor) or key_states.dim() != 4 or not isinstance(value_states, Tensor):
            given = f"shape {tuple(key_states.shape)}" if isinstance(key_states, Tensor) else type(key_states).__name__
            raise ShapeError(complaint("key_states", given, "a tensor (batch, heads, new tokens, width)"))
        self._ensure_cache(key_states, value_states)
        total = self.length + key_states.shape[2]
        self._pending = key = PagedStates(self, key_states, total)
        return key, PagedStates(self, value_states, total)

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1 if self.capacity is None else self.capacity

    def activate_past_recording(self) -> None:
        """From now on keep tokens outside the window until `crop`, so that recent tokens can be removed."""
        self.record_past = True
        if self.cache is not None:
            self.cache.keep_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last -tokens_to_remove tokens; the number is negative, as in transformers."""
        if tokens_to_remove > 0:
            hint = "transformers passes the number of removed tokens as a negative number"
            raise OptionError(complaint("tokens_to_remove", tokens_to_remove, "a negative number or 0", hint))
        if self.cache is None:
            return
        length = self.length + tokens_to_remove
        if length < 0:
            raise OptionError(complaint("tokens_to_remove", tokens_to_remove, f"at least {-self.length}"))
        with self.cache.lock:
            self.cache.crop(self.stored(length).sum(1))
            self.cache.evict_past()
        self.length = length
        self._index_positions((slice(None), slice(length)))

    def _index_positions(self, index: Any) -> None:
        self._real, self._stored = (None if each is None else each[index] for each in (self._real, self._stored))

    def fork(self) -> PagedLayer:
        """An independent layer with the same tokens, which are not copied."""
        new = copy.copy(self)
        new.cache = None if self.cache is None else self.cache.fork()
        return new

    def reset(self) -> None:
        self._pending = None
        self._clear()
        if self.cache is not None:
            self.cache.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.cache is None:
            return
        self.cache.reorder(beam_idx)
        self._index_positions(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        repeats = check_size("repeats", repeats)
        if self.cache is not None:
            self.reorder_cache(torch.arange(self.cache.batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.cache is not None:
            self.reorder_cache(torch.arange(self.cache.batch)[indices])

    def offload(self) -> None:
        raise OptionError(complaint("offloading", True, "False", "a qkv.hf.cache is always in main memory"))

    prefetch = offload

    def stored(self, total: int) -> Tensor:
        """(batch, total) booleans: the positions that are stored."""
        stored = torch.ones(self.tokens.batch, total, dtype=torch.bool)
        if self._stored is not None:
            stored[:, : self._stored.shape[1]] = self._stored[:, :total]
        return stored

    def record_append(self, total: int, real: Tensor | None, stored: Tensor | None, stores_padding: bool) -> None:
        """Record an append: the new number of positions, which are real, and which of the new ones are stored."""
        if stored is not None:
            self._stored = torch.cat([self.stored(self.length), stored.cpu()], 1)
        self.length, self._real, self.stores_padding = total, real, stores_padding

    # The interface of the attention function.

    def attend(self, call: LayerCall) -> tuple[Tensor, Tensor | None]:
        """Append the tokens of `update`, whose `PagedStates` are the keys and values, then attend from the queries."""
        states: tuple[Any, Any] = call.key, call.value
        if self._pending is not states[0] or type(states[1]) is not PagedStates or states[1].layer is not self:
            raise layer_refused(call.module, "it reads keys that another layer or an earlier call has appended")
        self._pending = None
        new_key, new_value = match_dtype(call.query, states[0].new, states[1].new)
        call = self._read(call._replace(key=new_key, value=new_value))
        new_key = call.key
        lazy_mask = call.given if isinstance(call.given, LazyMask) else None
        n = new_key.shape[2]
        if call.query.shape[2] != n:
            raise ShapeError(complaint("query", f"{call.query.shape[2]} queries", f"{n}, one for each new token"))
        if lazy_mask is not None and lazy_mask.sizes.queries_from != self.length:
            given = f"a mask for new tokens from position {lazy_mask.sizes.queries_from} on"
            hint = "a forward pass that raised an error updated some layers only: reset() or crop() the cache"
            raise MaskError(complaint("attention_mask", given, f"{self.length}, the length of this layer", hint))
        if lazy_mask is None:
            plain_step = call.given is None and self._real is None
        else:
            plain_step = self._covers(lazy_mask) and self._continues(lazy_mask, call.bias)
        if plain_step and not call.return_weights:
            # Only causal and the cache's window: `decode` can use its plan.
            out = self.decode(call.query, new_key, call.value, similarity=call.similarity, bias=call.bias)
            self.length += n
            self._real = None if lazy_mask is None else lazy_mask.keep
            return out, None
        return run_call(self, call)

    def _read(self, call: LayerCall) -> LayerCall:
        """A call with what is stored of its tokens as key and value."""
        return call

    def decode(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return decode(query, key, value, self.tokens, **options)

    def append(self, key: Tensor, value: Tensor) -> None:
        self.tokens.append(key, value)

    def expanded(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every head, from what is stored."""
        return key, value

    def _covers(self, lazy_mask: LazyMask) -> bool:
        """Whether causal and the cache's window are equivalent to the mask's rules."""
        rules, window = lazy_mask.rules, self.tokens.window
        if rules.others or not rules.causal:
            return False
        if not rules.windows:
            return window is None
        return all(window == left + 1 and (right is None or right >= 0) for left, right in rules.windows)

    def _continues(self, lazy_mask: LazyMask, bias: Tensor | None) -> bool:
        """Whether all stored and new tokens are real, so that no mask is needed."""
        if self._real is None:
            return lazy_mask.keep is None
        return not self.stores_padding and bias is None and lazy_mask.extends(self._real, self.length)


def match_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Under autocast, convert keys and values to the queries' dtype: rotary positions make float32."""
    if value.dtype is not query.dtype and torch.is_autocast_enabled(query.device.type):
        return key.to(query.dtype), value.to(query.dtype)
    return key, value


class LatentLayer(PagedLayer):
    """For models with latent attention (MLA): a latent and a rotary key of each token are stored, once for all heads.

    Their layers call `expand_kv` on what `update` returns; `pass_on_latents` lets it hand `PagedStates` on.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Create the cache for latents and rotary keys of these widths."""
        batch, _, _, rank = key_states.shape
        sizes = {"value_width": rank, "capacity": self.capacity, "window": self.window, "latent": True}
        self.cache = KVCache(batch, 1, rank + value_states.shape[3], dtype=self.storage, **sizes)
        self.cache.keep_past = self.record_past

    def _read(self, call: LayerCall) -> LayerCall:
        projection: Any = call.module.kv_b_proj
        if type(projection) is not nn.Linear or projection.bias is not None:
            given = f"its kv_b_proj is {projection}, and latents are decoded with the weights of a linear layer"
            raise layer_refused(call.module, f"{given} without bias; use transformers' own cache")
        self.up = projection.weight.to(call.query.dtype).view(call.query.shape[1], -1, call.key.shape[3])
        self.query_width = call.query.shape[3]
        return call._replace(key=torch.cat([call.key, call.value], dim=-1), value=call.key)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return decode_latents(query, key, self.up, self.tokens, **options)

    def append(self, key: Tensor, value: Tensor) -> None:
        self.tokens.append(key)

    def expanded(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return expand_latents(key, self.up, self.query_width)


def pass_on_latents(model: nn.Module) -> None:
    """Let `expand_kv` of the model's classes return `PagedStates` as they are; it is unchanged for tensors."""
    kinds: set[Any] = {type(module) for module in model.modules() if hasattr(module, "expand_kv")}
    for kind in kinds:
        original = kind.expand_kv
        if getattr(original, "passes_on", False):
            continue

        @wraps(original)
        def wrapped(self: Any, kv_nope: Any, k_rot: Any, original: Any = original) -> Any:
            is_paged = isinstance(kv_nope, PagedStates)
            return (kv_nope, k_rot) if is_paged else original(self, kv_nope, k_rot)

        wrapped.passes_on = True  # pyright: ignore[reportAttributeAccessIssue]
        kind.expand_kv = wrapped


class LayerCall(NamedTuple):
    """query (batch, heads_q, n, width); key, value (batch, heads_kv, n, …); given: The mask that the model passed."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    given: Any
    similarity: Softmax
    bias: Tensor | None
    return_weights: bool


class CallMasks(NamedTuple):
    """Masks and bias over all positions. causal: Whether no query attends to a later key."""

    masks: list[Mask]
    bias: Tensor | None
    causal: bool
    distances: bool  # whether the distance of two tokens matters, so that none between them may be left out
    columns: bool  # whether masks or bias have a column for each position


def run_call(layer: PagedLayer, call: LayerCall) -> tuple[Tensor, Tensor | None]:
    """Append and attend, with padding among the new tokens, masks or weights."""
    n = call.key.shape[2]
    total = layer.length + n
    real, call_masks = _real_positions(layer, call, total), _call_masks(layer, call, total)
    if n > 1 and not call_masks.causal:
        if layer.length:
            raise layer_refused(call.module, "its new tokens attend to later tokens, which requires an empty cache")
        mask = join_masks(*call_masks.masks, None if real is None else Padding(keep=real))
        options = {"similarity": call.similarity, "mask": mask, "bias": call_masks.bias}
        out = attention(call.query, *layer.expanded(call.key, call.value), **options)
        layer.append(call.key, call.value)
        layer.record_append(total, real, None, real is not None)
    else:
        stored = None
        if real is not None and not call_masks.columns:
            new = (real.cumsum(1) > 0 if call_masks.distances else real)[:, total - n :]
            stored = None if bool(new.all()) else new
        out, stores_padding = _decode_call(layer, call, call_masks, real, stored, total)
        layer.record_append(total, real, stored, stores_padding)
    return out, _compute_weights(layer, call, call_masks, real, total) if call.return_weights else None


def _real_positions(layer: PagedLayer, call: LayerCall, total: int) -> Tensor | None:
    """Which positions are real. For past positions the mask must be the same as before."""
    given, before = call.given, layer._real
    keep = given.keep if isinstance(given, LazyMask) else None
    if keep is None and isinstance(given, Tensor) and given.dim() == 2:
        keep = given.bool()
    if keep is None:
        if before is None:
            return None
        keep = torch.ones(before.shape[0], total, dtype=torch.bool, device=before.device)
        if not isinstance(given, LazyMask):
            keep[:, : layer.length] = before  # a 4-D mask does not define padding
    if keep.shape[0] != call.key.shape[0] or (before is not None and before.shape[0] != keep.shape[0]):
        rows = keep.shape[0] if before is None else before.shape[0]
        raise ShapeError(complaint("input", f"{call.key.shape[0]} rows", f"{rows}, as in the mask and in the cache"))
    if keep.shape[1] != total:
        hint = "one column for each past token and each new one"
        raise MaskError(complaint("attention_mask", f"{keep.shape[1]} columns", str(total), hint))
    past = keep[:, : layer.length]
    if not (bool(past.all()) if before is None else torch.equal(past, before)):
        hint = "the cached tokens were appended with another mask; reset() the cache, or pass the same mask"
        raise MaskError(complaint("attention_mask", "another value for a past token", "the same value as before", hint))
    return keep


def _call_masks(layer: PagedLayer, call: LayerCall, total: int) -> CallMasks:
    cache = layer.tokens
    if not isinstance(call.given, LazyMask):
        if call.given is None or call.given.dim() == 2:
            return CallMasks([], call.bias, True, cache.window is not None, call.bias is not None)
        mask, added = read_mask_tensor(call.query, call.given, total)
        bias = added if call.bias is None else call.bias if added is None else call.bias + added
        cells = call.given[..., :total] if added is None else added > torch.finfo(added.dtype).min / 2
        causal = not bool(cells.triu(layer.length + 1).any())
        return CallMasks([] if mask is None else [mask], bias, causal, True, True)
    rules = call.given.rules
    if cache.window is not None and not any(left < cache.window for left, _ in rules.windows):
        reason = f"its cache has a window of {cache.window} tokens, and its mask needs earlier ones"
        raise layer_refused(call.module, reason)
    own = [(cache.window - 1, None), (cache.window - 1, 0)] if cache.window and not rules.others else []
    windows = [Window(*window) for window in rules.windows if window not in own]
    columns = bool(rules.others) or call.bias is not None
    return CallMasks([*windows, *rules.others], call.bias, rules.causal, bool(rules.windows), columns)


def _decode_call(
    layer: PagedLayer, call: LayerCall, call_masks: CallMasks, real: Tensor | None, stored: Tensor | None, total: int
) -> tuple[Tensor, bool]:
    """The output, and whether the cache then has padding tokens."""
    stored_all = layer.stored(total)
    if stored is not None:
        stored_all[:, layer.length :] = stored
    masks, bias = call_masks.masks, call_masks.bias
    if call_masks.columns and not bool(stored_all.all()):
        # Some positions are not stored: select the mask's columns of those that are.
        masks = [Dense(_stored_columns(_mask_cells(call, call_masks, total), stored_all))]
        bias = None if bias is None else _stored_columns(bias, stored_all)
    padding = None
    if real is not None and bool((stored_all.to(real.device) & ~real).any()):
        padding = Padding(keep=_stored_columns(real[:, None, None], stored_all)[:, 0, 0])
    options = {"similarity": call.similarity, "mask": join_masks(*masks, padding), "bias": bias}
    if stored is None:
        return layer.decode(call.query, call.key, call.value, **options), padding is not None
    # Move the tokens that are stored to the front, and their outputs back.
    order = torch.argsort(~stored, dim=1, stable=True)
    query, key, value = (_select_tokens(tensor, order) for tensor in (call.query, call.key, call.value))
    out = layer.decode(query, key, value, **options, lengths=stored.sum(1))
    return _select_tokens(out, order.argsort(1)), padding is not None


def _select_tokens(tensor: Tensor, index: Tensor) -> Tensor:
    """Tokens of (batch, heads, n, width) at index (batch, m)."""
    return tensor.gather(2, index[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3]))


def _mask_cells(call: LayerCall, call_masks: CallMasks, total: int) -> Tensor:
    """The dense mask (batch, 1 or heads, n, total)."""
    if isinstance(call.given, LazyMask):
        return call.given.cells()
    n = call.key.shape[2]
    cells = torch.ones(call.key.shape[0], 1, n, total, dtype=torch.bool)
    cells = cells.tril(total - n) if call_masks.causal else cells
    for mask in call_masks.masks:
        assert isinstance(mask, Dense)
        cells = cells & mask.keep
    return cells


def _stored_columns(cells: Tensor, stored_all: Tensor) -> Tensor:
    """The columns of cells (batch or 1, heads, n, total) that each row stores: (batch, heads, n, longest).

    What follows the last token of a shorter row is never attended to.
    """
    order = torch.argsort(~stored_all, dim=1, stable=True)[:, : int(stored_all.sum(1).max())].to(cells.device)
    return _select_tokens(cells.transpose(2, 3).expand(len(order), -1, -1, -1), order).transpose(2, 3)


def _compute_weights(
    layer: PagedLayer, call: LayerCall, call_masks: CallMasks, real: Tensor | None, total: int
) -> Tensor:
    """The weights (batch, heads_q, n, total), 0 for positions that are not stored; computed separately."""
    stored_all, first = layer.stored(total), layer.tokens.start
    places = stored_all.cumsum(1) - 1  # of each position among the tokens of its row
    cells = _mask_cells(call, call_masks, total) & (stored_all & (places >= first))[:, None, None]
    if real is not None:
        cells = cells & real[:, None, None]
    # With a token of zeros at the end, in case that nothing is stored.
    key, value = (tensor.to(call.query.dtype) for tensor in layer.tokens.tensors())
    states = (pad(tensor, (0, 0, 0, 1)) for tensor in layer.expanded(key, value))
    keys, values = (_select_tokens(tensor, (places - first).clamp(min=0)) for tensor in states)
    options = {"similarity": call.similarity, "mask": Dense.borrowed(cells), "bias": call_masks.bias}
    return attention(call.query, keys, values, **options, return_weights=True)[1]


def layer_name(kind: str, index: int | None) -> str:
    """The class of an attention layer, and its index if it has one."""
    return kind if index is None else f"{kind} {index}"


def layer_refused(module: nn.Module, reason: str) -> BackendRefused:
    """The error for a layer that qkv cannot run."""
    name = layer_name(type(module).__name__, getattr(module, "layer_idx", None))
    return BackendRefused(f"{name}: qkv cannot run this layer: {reason}.", (reason,))


def refuse_unknown_arguments(module: nn.Module, others: dict[str, Any]) -> None:
    """Refuse arguments of a layer's call that might change its result."""
    for name, given in others.items():
        if name not in _KNOWN and given is not None:
            raise layer_refused(module, f"it passes {name}=, which qkv does not support")


@lru_cache
def class_source(kind: type[nn.Module], whole_module: bool = False) -> str:
    """The source of the class and of its base classes outside torch, or of its whole module."""
    own = [part for part in kind.__mro__ if not part.__module__.startswith("torch.") and part is not object]
    texts = []
    for part in [sys.modules.get(kind.__module__)] if whole_module else own:
        with suppress(OSError, TypeError):  # defined in an interactive session or by a decorator
            texts.append(inspect.getsource(part))  # pyright: ignore[reportArgumentType]
    return "\n".join(texts)
