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

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin

from ..cache import KVCache
from ..cache.decode import decode
from ..errors import BackendRefused, MaskError, OptionError, ShapeError, complaint
from ..functional import attention
from ..inputs import check_size
from ..masks import Dense, Mask, Padding, Window
from ..similarity import Softmax
from .masks import LazyMask, join_masks, read_mask_tensor


class PagedStates:
    """Stands for all keys, or all values, that a layer holds once the new tokens are in: a shape without data."""

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
        _refuse_tensor_use(self, f".{name}")

    def __getitem__(self, index: Any) -> NoReturn:
        _refuse_tensor_use(self, "[...]")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        given = [*args, *(kwargs or {}).values()]
        flat = [part for one in given for part in (one if isinstance(one, list | tuple) else [one])]
        _refuse_tensor_use(
            next(part for part in flat if isinstance(part, PagedStates)), f"torch's {getattr(func, '__name__', func)}"
        )


def _refuse_tensor_use(held: PagedStates, what: str) -> NoReturn:
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
        self._pending: PagedStates | None = None
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
        self.cache._keep_past = self.record_past

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
        self._pending = held = PagedStates(self, key_states, total)
        return held, PagedStates(self, value_states, total)

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
            self.cache._keep_past = True

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
            cache._evict_past()
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
        key: PagedStates,
        value: Any,
        given: Any,
        similarity: Softmax,
        bias: Tensor | None,
        want_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Append what `update` was given, then attend from the queries."""
        if self._pending is not key or type(value) is not PagedStates or value.layer is not self:
            raise layer_refused(module, "it reads keys that another layer, or an earlier call, has already appended")
        self._pending = None
        cache = self.cache
        assert cache is not None
        pattern = given if isinstance(given, LazyMask) else None
        new_key, new_value = match_dtype(query, key.new, value.new)
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
        return run_call(self, LayerCall(module, query, new_key, new_value, given, similarity, bias, want_weights))

    def _covers(self, pattern: LazyMask) -> bool:
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

    def _continues(self, pattern: LazyMask, bias: Tensor | None) -> bool:
        """Whether all new tokens are real, and everything that the cache holds is: no mask is needed."""
        if self._visible is None:
            return pattern.keep is None
        return not self.holes and bias is None and pattern.follows(self._visible, self.seen)


def match_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
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


if TYPE_CHECKING:
    pass


class LayerCall(NamedTuple):
    """query (batch, heads_q, n, width); key, value (batch, heads_kv, n, …); given: the mask as the model passed it."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    given: Any
    similarity: Softmax
    bias: Tensor | None
    want_weights: bool


class CallMasks(NamedTuple):
    """Masks and bias over all positions; causal: whether no query sees a later key."""

    masks: list[Mask]
    bias: Tensor | None
    causal: bool
    distances: bool  # whether leaving out a token between two others would be noticed
    columns: bool  # whether masks or bias have a column for each position


def run_call(layer: PagedLayer, step: LayerCall) -> tuple[Tensor, Tensor | None]:
    """Append, attend, and remember which positions are padding."""
    cache = layer.cache
    assert cache is not None
    n = step.key.shape[2]
    total = layer.seen + n
    visible = _real_positions(layer, step, total)
    rule = _call_masks(layer, step, total)
    if n > 1 and not rule.causal:
        if layer.seen:
            raise layer_refused(
                step.module, "several new tokens may see each other both ways, and the cache is not empty"
            )
        out = _attend_bidirectional(step, rule, visible)
        cache.append(step.key, step.value)
        layer.remember(total, visible, None, visible is not None)
    else:
        stored = None if visible is None or rule.columns else _tokens_to_store(visible, n, rule.distances)
        out, holes = _decode_call(layer, step, rule, visible, stored, total)
        layer.remember(total, visible, stored, holes)
    return out, _compute_weights(layer, step, rule, visible, total) if step.want_weights else None


def _real_positions(layer: PagedLayer, step: LayerCall, total: int) -> Tensor | None:
    """Which of all positions are real. What was padding when it came must still be padding, and the other way round."""
    given, before = step.given, layer._visible
    keep = given.keep if isinstance(given, LazyMask) else None
    if isinstance(given, Tensor) and not isinstance(given, LazyMask) and given.dim() == 2:
        keep = given.bool()
    if keep is None:
        if before is None:
            return None
        keep = torch.ones(before.shape[0], total, dtype=torch.bool, device=before.device)
        if not isinstance(given, LazyMask):
            keep[:, : layer.seen] = before  # a mask of cells says nothing of padding
    if keep.shape[0] != step.key.shape[0] or (before is not None and before.shape[0] != keep.shape[0]):
        held = keep.shape[0] if before is None else before.shape[0]
        raise ShapeError(complaint("input", f"{step.key.shape[0]} rows", f"{held}, as in the mask and in the cache"))
    if keep.shape[1] != total:
        hint = "one column for each token so far and each new one"
        raise MaskError(complaint("attention_mask", f"{keep.shape[1]} columns", str(total), hint))
    past = keep[:, : layer.seen]
    if not (bool(past.all()) if before is None else torch.equal(past, before)):
        hint = "tokens in the cache were appended with another mask; reset() the cache, or give the same mask again"
        raise MaskError(complaint("attention_mask", "another value for a past token", "what was given before", hint))
    return keep


def _call_masks(layer: PagedLayer, step: LayerCall, total: int) -> CallMasks:
    cache = layer.cache
    assert cache is not None
    if not isinstance(step.given, LazyMask):
        if step.given is None or step.given.dim() == 2:
            return CallMasks([], step.bias, True, cache.window is not None, step.bias is not None)
        mask, added = read_mask_tensor(step.query, step.given, total)
        bias = added if step.bias is None else step.bias if added is None else step.bias + added
        seen_later = (
            step.given[..., :total].triu(layer.seen + 1)
            if mask is not None
            else _unmasked_later_keys(added, layer.seen)
        )
        return CallMasks([] if mask is None else [mask], bias, not bool(seen_later.any()), True, True)
    rules = step.given.rules
    if cache.window is not None and not any(left < cache.window for left, _ in rules.windows):
        raise layer_refused(step.module, f"its cache is a ring of {cache.window} tokens, and its mask asks for more")
    windows = [
        Window(left, right) for left, right in rules.windows if left + 1 != cache.window or right not in (None, 0)
    ]
    columns = bool(rules.others) or step.bias is not None
    return CallMasks([*windows, *rules.others], step.bias, rules.causal, bool(rules.windows), columns)


def _unmasked_later_keys(added: Tensor | None, seen: int) -> Tensor:
    """Cells behind a query that numbers which are added to the scores do not close."""
    assert added is not None
    return (added > torch.finfo(added.dtype).min / 2).triu(seen + 1)


def _attend_bidirectional(step: LayerCall, rule: CallMasks, visible: Tensor | None) -> Tensor:
    """The first tokens, which may see each other: attention over them alone."""
    masks = list(rule.masks)
    if visible is not None:
        masks.append(Padding(keep=visible))
    return attention(
        step.query, step.key, step.value, similarity=step.similarity, mask=join_masks(masks), bias=rule.bias
    )  # fmt: skip


def _tokens_to_store(visible: Tensor, n: int, distances: bool) -> Tensor | None:
    """(batch, n): the new tokens that the cache keeps; None: all."""
    keep = (visible.cumsum(1) > 0) if distances else visible
    new = keep[:, keep.shape[1] - n :]
    return None if bool(new.all()) else new


def _decode_call(
    layer: PagedLayer, step: LayerCall, rule: CallMasks, visible: Tensor | None, stored: Tensor | None, total: int
) -> tuple[Tensor, bool]:
    """The answer, and whether the cache then holds padding."""
    cache = layer.cache
    assert cache is not None
    new = torch.ones(cache.batch, total - layer.seen, dtype=torch.bool) if stored is None else stored.cpu()
    held = torch.cat([layer.stored(layer.seen), new], 1)
    gaps = not bool(held.all())
    masks: list[Mask] = list(rule.masks)
    bias = rule.bias
    if gaps and rule.columns:
        # Tokens were left out before somebody began to speak of columns: a cell for each that is held.
        cells = _mask_cells(step, rule, total)
        masks[:] = [Dense(_stored_columns(cells, held))]
        bias = None if bias is None else _stored_columns(bias, held)
    holes = visible is not None and bool((held.to(visible.device) & ~visible).any())
    if holes:
        assert visible is not None
        masks.append(Padding(keep=_stored_columns(visible[:, None, None], held)[:, 0, 0]))
    mask = join_masks(masks)
    if stored is None:
        return decode(step.query, step.key, step.value, cache, similarity=step.similarity, mask=mask, bias=bias), holes
    counts = stored.sum(1)
    place = torch.arange(stored.shape[1], device=stored.device)
    if bool((stored == (place >= stored.shape[1] - counts[:, None])).all()):
        side, order = "left", None
    elif bool((stored == (place < counts[:, None])).all()):
        side, order = "right", None
    else:
        # Gaps in the middle: what counts goes to the front, and its answers back to where they belong.
        side, order = "right", torch.argsort(~stored, dim=1, stable=True)
    query, key, value = (_reorder_tokens(t, order) for t in (step.query, step.key, step.value))
    out = decode(
        query, key, value, cache, similarity=step.similarity, mask=mask, bias=bias, lengths=counts, padding=side
    )  # fmt: skip
    return out if order is None else _reorder_tokens(out, order.argsort(1)), holes


def _reorder_tokens(tensor: Tensor, order: Tensor | None) -> Tensor:
    if order is None:
        return tensor
    return tensor.gather(2, order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3]))


def _mask_cells(step: LayerCall, rule: CallMasks, total: int) -> Tensor:
    """(batch, 1 or heads, n, total) booleans, causal among the new ones."""
    if isinstance(step.given, LazyMask):
        return step.given.cells()
    n = step.key.shape[2]
    cells = torch.ones(step.key.shape[0], 1, n, total, dtype=torch.bool).tril(total - n)
    for mask in rule.masks:
        assert isinstance(mask, Dense)
        cells = cells & mask.keep
    return cells


def _stored_columns(cells: Tensor, held: Tensor) -> Tensor:
    """cells (batch or 1, heads, n, total) at the positions that each row holds: (batch, heads, n, longest)."""
    if bool(held.all()):
        return cells
    counts = held.sum(1)
    batch = held.shape[0]
    moved = cells.new_zeros(batch, cells.shape[1], cells.shape[2], int(counts.max()))
    whole = cells.expand(batch, -1, -1, -1)
    for row in range(batch):
        moved[row, ..., : int(counts[row])] = whole[row][..., held[row].to(cells.device)]
    return moved


def _compute_weights(layer: PagedLayer, step: LayerCall, rule: CallMasks, visible: Tensor | None, total: int) -> Tensor:
    """(batch, heads_q, n, total) over all positions, 0 where nothing is held: computed again, to look at."""
    cache = layer.cache
    assert cache is not None
    n = step.key.shape[2]
    held = layer.stored(total)
    keys, values = (tensor.to(step.query.dtype) for tensor in cache.tensors())
    cells = _mask_cells(step, rule, total)
    if visible is not None:
        cells = cells & visible[:, None, None]
    if rule.masks and not isinstance(step.given, LazyMask) and rule.causal:
        cells = cells.tril(total - n)
    weights = step.query.new_zeros(*step.query.shape[:3], total)
    for row in range(cache.batch):
        at = held[row].nonzero()[:, 0]
        count = len(at)
        if not count:
            continue
        bias = None if rule.bias is None else rule.bias.expand(cache.batch, -1, -1, -1)[row : row + 1][..., at]
        keep = cells.expand(cache.batch, -1, -1, -1)[row : row + 1][..., at]
        weights[row : row + 1, :, :, at] = attention(
            step.query[row : row + 1],
            keys[row : row + 1, :, :count],
            values[row : row + 1, :, :count],
            similarity=step.similarity,
            mask=Dense(keep),
            bias=bias,
            return_weights=True,
        )[1]
    return weights


def layer_name(module: nn.Module) -> str:
    """The class of an attention layer, and its number where it has one."""
    index = getattr(module, "layer_idx", None)
    return type(module).__name__ if index is None else f"{type(module).__name__} {index}"


def layer_refused(module: nn.Module, reason: str) -> BackendRefused:
    """The error for a layer, with the reason."""
    return BackendRefused(f"{layer_name(module)}: qkv cannot serve this layer: {reason}.", (reason,))
