"""Masks of transformers, kept as rules: causal, windows, padding, documents.

transformers calls a mask function once per forward pass and passes its result to every layer. `make_mask` returns a
`LazyMask`: a tensor subclass of shape (batch, 1, queries, keys) without data. Attention reads its rules; a model that
computes with the mask gets a boolean tensor, computed when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

from ..errors import DtypeError, MaskError, OptionTypeError, ShapeError, complaint
from ..masks import Causal, Dense, Extent, Mask, Padding, Segments, Window
from ..masks.joined import join_masks

_MASKING_MODULE = masking_utils.__name__
# Configurations of models that support eager attention only: they compute with masks that are added to the scores.
ADDITIVE_MASK_CONFIGS: set[type] = set()


class MaskSizes(NamedTuple):
    """Sizes and positions: query i is at position queries_from + i, key j at keys_from + j."""

    batch: int
    queries: int
    keys: int
    queries_from: int
    keys_from: int

    @property
    def queries_end(self) -> int:
        return self.queries_from + self.queries

    @property
    def keys_end(self) -> int:
        return self.keys_from + self.keys


class MaskRules(NamedTuple):
    """The rules of a mask function of transformers; a cell must satisfy all of them."""

    causal: bool = False
    windows: tuple[tuple[int, int | None], ...] = ()  # (left, right) distances that a query attends to
    others: tuple[Mask, ...] = ()  # over the queries and keys of MaskSizes

    def __and__(self, other: MaskRules) -> MaskRules:
        return MaskRules(self.causal or other.causal, self.windows + other.windows, self.others + other.others)


class LazyMask(Tensor):
    """The mask of a forward pass. keep: (batch, positions), True for real tokens; None if all tokens are real."""

    rules: MaskRules
    sizes: MaskSizes
    keep: Tensor | None
    _mask: Mask | None
    _computed: bool
    _extends: tuple[Tensor, int] | None

    @staticmethod
    def __new__(
        cls, rules: MaskRules, sizes: MaskSizes, keep: Tensor | None, device: Any, dtype: torch.dtype = torch.bool
    ) -> LazyMask:
        shape = (sizes.batch, 1, sizes.queries, sizes.keys)
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)  # pyright: ignore[reportAttributeAccessIssue]
        mask.rules, mask.sizes, mask.keep = rules, sizes, keep
        mask._mask, mask._computed, mask._extends = None, False, None
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Operators get the mask as a dense tensor."""
        args, kwargs = tree_map_only(LazyMask, _dense_mask, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"LazyMask({self.mask()!r}, {self.sizes})"

    def mask(self) -> Mask | None:
        """The mask over queries and keys; computed once, since every layer calls this."""
        if not self._computed:
            sizes, rules = self.sizes, self.rules
            offset = sizes.queries_from - sizes.keys_from
            parts: list[Mask] = [Causal(offset=offset)] if rules.causal else []
            parts += [Window(left, right, offset=offset) for left, right in rules.windows]
            if self.keep is not None:
                parts.append(Padding(keep=self.keep[:, sizes.keys_from : sizes.keys_end]))
            self._mask, self._computed = join_masks(*parts, *rules.others), True
        return self._mask

    def extends(self, past: Tensor, length: int) -> bool:
        """Whether the first `length` positions are real where `past` is True, and all later ones are real."""
        if self._extends is None or self._extends[0] is not past or self._extends[1] != length:
            keep = self.keep
            if keep is None or not torch.equal(keep[:, :length], past) or not bool(keep[:, length:].all()):
                return False
            self._extends = past, length  # every layer makes the same call
        return True

    def cells(self) -> Tensor:
        """The dense mask, booleans (batch, 1, queries, keys)."""
        sizes, mask = self.sizes, self.mask()
        shape = sizes.batch, 1, sizes.queries, sizes.keys
        if mask is None:
            return torch.ones(shape, dtype=torch.bool, device=self.device)
        extent = Extent(*shape)
        return mask.tile(extent, (0, sizes.queries), (0, sizes.keys), self.device).expand(shape)


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    config: Any = None,
    **options: Any,
) -> Tensor:
    """The mask function that is registered for "qkv"; under tracing it returns a dense mask."""
    if torch.compiler.is_compiling() or (attention_mask is not None and is_tracing(attention_mask)):
        sizes = batch_size, q_length, kv_length, q_offset, kv_offset
        return _dense_cells(mask_function, attention_mask, use_vmap, device, *sizes)
    sizes = MaskSizes(batch_size, q_length, kv_length, int(q_offset), int(kv_offset))
    rules = None if use_vmap else _read_mask_function(mask_function, sizes)
    if rules is None:
        # An unknown mask function: transformers evaluates it.
        cells = _dense_cells(mask_function, None, use_vmap, device, *sizes)
        rules = MaskRules(others=(Dense.borrowed(cells),))
    mask_dtype = dtype if type(config) in ADDITIVE_MASK_CONFIGS else torch.bool
    return LazyMask(rules, sizes, _real_positions(attention_mask, rules, sizes), device, mask_dtype)


def _dense_cells(function: Any, keep: Tensor | None, use_vmap: bool, device: Any, *sizes: Any) -> Tensor:
    cells = masking_utils.sdpa_mask(
        *sizes, mask_function=function, attention_mask=keep, allow_is_causal_skip=False, use_vmap=use_vmap,
        device=device,
    )  # fmt: skip
    assert cells is not None
    return cells


def _real_positions(keep: Tensor | None, rules: MaskRules, sizes: MaskSizes) -> Tensor | None:
    """Which positions are real; None if all that a query may attend to are."""
    if keep is None:
        return None
    if rules.causal and keep.shape[1] < sizes.queries_end:
        wanted = f"{sizes.queries_end}, one for each past token and each new one"
        raise MaskError(complaint("attention_mask", f"{keep.shape[1]} columns", wanted))
    missing = max(0, sizes.keys_end - keep.shape[1])
    keep = keep[:, : sizes.keys_end]
    # Keys beyond the mask are unused slots of a static cache, which come after every query.
    if (not missing or rules.causal) and bool(keep[:, sizes.keys_from :].all()):
        return None
    return torch.nn.functional.pad(keep, (0, missing)) if missing else keep


def _read_mask_function(function: Callable[..., Any], sizes: MaskSizes) -> MaskRules | None:
    """The rules of a mask function of transformers, read from its closure; None for other functions."""
    if function is masking_utils.causal_mask_function:
        return MaskRules(causal=True)
    if function is masking_utils.bidirectional_mask_function:
        return MaskRules()
    closure = getattr(function, "__closure__", None)
    if getattr(function, "__module__", None) != _MASKING_MODULE or not closure:
        return None
    variables = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in closure), strict=True))
    name = function.__qualname__.split(".")[0]
    if name == "and_masks":
        parts = [_read_mask_function(part, sizes) for part in variables["mask_functions"]]
        known = [part for part in parts if part is not None]
        return reduce(and_, known, MaskRules()) if len(known) == len(parts) else None
    if name == "sliding_window_overlay":
        return MaskRules(windows=((variables["sliding_window"] - 1, None),))
    if name == "sliding_window_bidirectional_overlay":
        return MaskRules(windows=((variables["sliding_window"], variables["sliding_window"]),))
    if name == "chunked_overlay":
        # Chunks are counted from each row's first real token.
        first = variables["left_padding"][:, None]
        positions = torch.arange(max(sizes.queries_end, sizes.keys_end), device=first.device)
        ids = (positions - first) // variables["chunk_size"]
    elif name == "packed_sequence_mask_function":
        ids = variables["packed_sequence_mask"]
    else:
        return None
    queries, keys = slice(sizes.queries_from, sizes.queries_end), slice(sizes.keys_from, sizes.keys_end)
    return MaskRules(others=(Segments(ids[:, queries], ids[:, keys]),))


def read_mask_tensor(query: Tensor, given: Any, keys: int) -> tuple[Mask | None, Tensor | None]:
    """A mask tensor of the user: booleans (True attends) become a mask, floats a bias."""
    if not isinstance(given, Tensor):
        raise OptionTypeError(complaint("attention_mask", type(given).__name__, "a tensor, or None"))
    if given.device != query.device:
        hint = f"move it with .to({str(query.device)!r})"
        raise DtypeError(complaint("attention_mask", f"a tensor on {given.device}", f"one on {query.device}", hint))
    if given.dim() == 2:
        return Padding(keep=given.bool()), None
    if given.dim() != 4:
        wanted = "(batch, keys) or (batch, heads or 1, queries, keys)"
        raise ShapeError(complaint("attention_mask", f"shape {tuple(given.shape)}", wanted))
    cells = given[..., :keys]
    if cells.dtype is torch.bool:
        return Dense.borrowed(cells), None
    if not cells.is_floating_point():
        hint = "booleans are a mask (True attends), floats are added to the scores"
        raise DtypeError(complaint("attention_mask", f"a 4-D tensor of {given.dtype}", "booleans or floats", hint))
    return None, cells.to(query.dtype)


def _dense_mask(lazy: LazyMask) -> Tensor:
    cells = lazy.cells()
    if lazy.dtype is torch.bool:
        return cells
    return torch.zeros_like(cells, dtype=lazy.dtype).masked_fill(~cells, torch.finfo(lazy.dtype).min)
