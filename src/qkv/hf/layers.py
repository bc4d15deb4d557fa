"""One layer of a transformers `Cache` on the pages of a `qkv.KVCache`.

transformers updates a cache first and attends afterwards. Here the update only notes the new tokens and returns
stand-ins (`Held`) of keys and values; the attention function finds the layer behind them and runs one `qkv.decode`:
append, then attend, and nothing is concatenated.

Positions are transformers': padding counts. Tokens that are padding are not stored wherever leaving them out cannot
be noticed, so that rows of a batch have lengths of their own and no mask is needed; `_stored` says which positions
are in the cache. Where distances count (a window, a position bias), padding behind a row's first real token is stored,
and masked.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin

from ..cache import KVCache
from ..cache.decode import decode
from ..errors import BackendRefused, MaskError, OptionError, ShapeError, complaint
from ..inputs import check_size
from ..similarity import Softmax
from .patterns import Pattern
from .refusal import refusal
from .steps import Step, run


class Held:
    """Stands for all keys, or all values, that a layer holds once the new tokens are in: a shape without data."""

    __slots__ = ("device", "dtype", "layer", "new", "shape")

    def __init__(self, layer: PagedLayer, new: Tensor, total: int) -> None:
        self.layer, self.new = layer, new
        self.dtype, self.device = new.dtype, new.device
        self.shape = torch.Size((new.shape[0], new.shape[1], total, new.shape[3]))

    def check_size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return 4

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(self, f".{name}")

    def __getitem__(self, index: Any) -> NoReturn:
        _refuse(self, "[...]")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        given = [*args, *(kwargs or {}).values()]
        flat = [part for one in given for part in (one if isinstance(one, list | tuple) else [one])]
        _refuse(next(part for part in flat if isinstance(part, Held)), f"torch's {getattr(func, '__name__', func)}")


def _refuse(held: Held, what: str) -> NoReturn:
    reason = (
        f"{what} was asked of keys or values that are pages of a qkv.hf.cache, and no tensor; the model works on them "
        "outside of the attention function"
    )
    hint = "use transformers' own cache with this model"
    raise BackendRefused(f"past_key_values of {held.layer.name}: {reason}. Hint: {hint}.", (reason,))


class PagedLayer(CacheLayerMixin):
    """A layer of `qkv.hf.cache`. `cache` is its `KVCache`, made when the first tokens come."""

    is_compileable = False
    is_croppable = True

    def __init__(self, dtype: torch.dtype, capacity: int | None, window: int | None, name: str = "a layer") -> None:
        self.storage, self.capacity, self.window, self.name = dtype, capacity, window, name
        self.cache: KVCache | None = None
        self.record_past = False
        self._pending: Held | None = None
        self._clear()

    def _clear(self) -> None:
        self.seen = 0
        self._visible: Tensor | None = None  # (batch, seen): what is no padding; None: everything
        # (batch, positions): what the cache holds of the first ones; of later ones, everything.
        self._stored: Tensor | None = None
        self.holes = False  # whether the cache holds tokens that are padding

    # What transformers asks of a layer.

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
        reason = "keys and values of this layer are pages, and no tensors"
        raise BackendRefused(f"{self!r}: {reason}. Hint: layer.cache.tensors() shows them.", (reason,))

    values = keys  # pyright: ignore[reportAssignmentType]

    @property
    def nbytes(self) -> int:
        return 0 if self.cache is None else self.cache.nbytes

    def __repr__(self) -> str:
        return f"PagedLayer({self.name}: {self.cache if self.cache is not None else 'empty'})"

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """A cache of the sizes of these tokens."""
        batch, heads, _, width = key_states.shape
        value_width = value_states.shape[3]
        self.cache = KVCache(
            batch, heads, width, value_width=value_width, capacity=self.capacity, window=self.window, dtype=self.storage
        )
        self.cache._holds_all = self.record_past

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._pending is not None:
            self._pending = None
            reason = "the model updates its cache, and never calls the attention function that would read it"
            raise BackendRefused(f"{self!r}: {reason}. Hint: use transformers' own cache with this model.", (reason,))
        if not isinstance(key_states, Tensor) or key_states.dim() != 4 or not isinstance(value_states, Tensor):
            given = f"shape {tuple(key_states.shape)}" if isinstance(key_states, Tensor) else type(key_states).__name__
            raise ShapeError(complaint("key_states", given, "a tensor (batch, heads, new tokens, width)"))
        cache = self.cache
        if cache is None or (self.seen == 0 and cache.batch != key_states.shape[0]):
            self.lazy_initialization(key_states, value_states)
        total = self.seen + key_states.shape[2]
        self._pending = held = Held(self, key_states, total)
        return held, Held(self, value_states, total)

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        return -1 if self.capacity is None else self.capacity

    def activate_past_recording(self) -> None:
        """From here on a ring lets nothing go before `crop` is called, so that tokens can be taken back."""
        self.record_past = True
        if self.cache is not None:
            self.cache._holds_all = True

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; a negative number, as in transformers."""
        if tokens_to_remove > 0:
            hint = "transformers counts what is removed, as a negative number"
            raise OptionError(complaint("tokens_to_remove", tokens_to_remove, "a negative number or 0", hint))
        if self.cache is None:
            return
        seen = self.seen + tokens_to_remove
        if seen < 0:
            raise OptionError(complaint("tokens_to_remove", tokens_to_remove, f"at least {-self.seen}"))
        cache = self.cache
        with cache._pool.lock:
            cache._rewind(self.stored(seen).sum(1).numpy(force=True))
            cache._let_go()
        self._stored = None if self._stored is None else self._stored[:, :seen]
        self.seen = seen
        self._visible = None if self._visible is None else self._visible[:, :seen]

    def reset(self) -> None:
        self._pending = None
        self._clear()
        if self.cache is not None:
            self.cache.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.cache is None:
            return
        self.cache.reorder(beam_idx)
        self._visible = None if self._visible is None else self._visible[beam_idx]
        self._stored = None if self._stored is None else self._stored[beam_idx]

    def batch_repeat_interleave(self, repeats: int) -> None:
        repeats = check_size("repeats", repeats)
        if self.cache is not None:
            self.reorder_cache(torch.arange(self.cache.batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.cache is not None:
            self.reorder_cache(torch.arange(self.cache.batch)[indices])

    def offload(self) -> None:
        raise OptionError(complaint("offloading", True, "False: a qkv.hf.cache is in main memory already"))

    prefetch = offload

    def stored(self, total: int) -> Tensor:
        """(batch, total) booleans: which positions the cache holds."""
        assert self.cache is not None
        stored = torch.ones(self.cache.batch, total, dtype=torch.bool)
        if self._stored is not None:
            stored[:, : self._stored.shape[1]] = self._stored[:, :total]
        return stored

    def remember(self, total: int, visible: Tensor | None, stored: Tensor | None, holes: bool) -> None:
        """What was appended: the new number of positions, and what is padding or left out among them."""
        if stored is not None:
            self._stored = torch.cat([self.stored(self.seen), stored.cpu()], 1)
        self.seen, self._visible, self.holes = total, visible, holes

    # What the attention function asks.

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Held,
        value: Any,
        given: Any,
        similarity: Softmax,
        bias: Tensor | None,
        want_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Append what `update` was given, then attend from the queries."""
        if self._pending is not key or type(value) is not Held or value.layer is not self:
            raise refusal(module, "it reads keys that another layer, or an earlier call, has already appended")
        self._pending = None
        cache = self.cache
        assert cache is not None
        pattern = given if isinstance(given, Pattern) else None
        new_key, new_value = alike(query, key.new, value.new)
        n = new_key.shape[2]
        if query.shape[2] != n:
            raise ShapeError(complaint("query", f"{query.shape[2]} queries", f"{n}, one for each new token"))
        if pattern is not None and pattern.place.queries_from != self.seen:
            given = f"a mask for tokens from {pattern.place.queries_from} on"
            hint = "a forward pass that ended in an error reached some layers only: reset() or crop() the cache"
            raise MaskError(complaint("attention_mask", given, f"{self.seen}, what this layer holds", hint))
        usual = self._visible is None if pattern is None else self._covers(pattern) and self._continues(pattern, bias)
        if usual and not want_weights and (pattern is not None or given is None):
            # Nothing but causal and the cache's own window: the step that `decode` knows again.
            out = decode(query, new_key, new_value, cache, similarity=similarity, bias=bias)
            self.seen += n
            self._visible = None if pattern is None else pattern.keep
            return out, None
        return run(self, Step(module, query, new_key, new_value, given, similarity, bias, want_weights))

    def _covers(self, pattern: Pattern) -> bool:
        """Whether the cache itself does what the pattern's windows ask."""
        rules, cache = pattern.rules, self.cache
        assert cache is not None
        if rules.others:
            return False
        if not rules.windows:
            return rules.causal and cache.window is None
        return rules.causal and all(
            cache.window == left + 1 and (right is None or right >= 0) for left, right in rules.windows
        )

    def _continues(self, pattern: Pattern, bias: Tensor | None) -> bool:
        """Whether all new tokens are real, and everything that the cache holds is: no mask is needed."""
        if self._visible is None:
            return pattern.keep is None
        return not self.holes and bias is None and pattern.follows(self._visible, self.seen)


def alike(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values in the queries' dtype, where autocast has left them in another: rotary positions are float32."""
    if value.dtype is not query.dtype and torch.is_autocast_enabled(query.device.type):
        return key.to(query.dtype), value.to(query.dtype)
    return key, value


class LatentLayer(PagedLayer):
    """For models that keep latents, and make keys and values of all of them in every step: they get tensors."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.cache is None or (self.seen == 0 and self.cache.batch != key_states.shape[0]):
            self.lazy_initialization(key_states, value_states)
        assert self.cache is not None
        self.cache.append(key_states, value_states)
        self.seen += key_states.shape[2]
        return tuple(tensor.to(key_states.dtype) for tensor in self.cache.tensors())
