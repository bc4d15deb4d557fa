"""What transformers says about a mask, kept as a rule: causal, windows, padding, documents.

transformers calls a mask function once for a forward pass and hands what it returns to every layer. Ours returns a
`Pattern`: a tensor of (batch, 1, queries, keys) booleans by name, without a cell behind it. Attention reads the rule;
a model that computes with the mask itself gets the cells, made at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

from ..errors import DtypeError, MaskError, OptionTypeError, ShapeError, complaint
from ..masks import Causal, Dense, Extent, Mask, Padding, Segments, Window

_MASKING_MODULE = masking_utils.__name__
# Configurations of models that know eager attention's masks only: what they compute with is added to the scores.
ADDITIVE_MASK_CONFIGS: set[type] = set()


class MaskSizes(NamedTuple):
    """Where queries and keys stand in the sequence: query i at queries_from + i, key j at keys_from + j."""

    batch: int
    queries: int
    keys: int
    queries_from: int
    keys_from: int

    @property
    def offset(self) -> int:
        return self.queries_from - self.keys_from


class MaskRules(NamedTuple):
    """A mask function of transformers, read: all of these hold together."""

    causal: bool = False
    windows: tuple[tuple[int, int | None], ...] = ()  # how far a query sees to the left and to the right
    others: tuple[Mask, ...] = ()  # over the place's own queries and keys

    def __and__(self, other: MaskRules) -> MaskRules:
        return MaskRules(self.causal or other.causal, self.windows + other.windows, self.others + other.others)


class LazyMask(Tensor):
    """The mask of one forward pass. keep: (batch, positions) booleans of the whole sequence, or None: all are real."""

    rules: MaskRules
    place: MaskSizes
    keep: Tensor | None
    _mask: Mask | None
    _ready: bool
    _follows: tuple[Tensor, int] | None

    @staticmethod
    def __new__(
        cls, rules: MaskRules, place: MaskSizes, keep: Tensor | None, device: Any, dtype: torch.dtype = torch.bool
    ) -> LazyMask:
        shape = (place.batch, 1, place.queries, place.keys)
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)  # pyright: ignore[reportAttributeAccessIssue]
        made.rules, made.place, made.keep = rules, place, keep
        made._mask, made._ready, made._follows = None, False, None
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Whoever computes with the mask computes with its cells."""
        return func(*_with_cells(args), **_with_cells(kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Pattern({self.mask()!r}, {self.place})"

    def mask(self) -> Mask | None:
        """For tensors of the place's queries and keys; made once, since every layer asks."""
        if not self._ready:
            place, rules = self.place, self.rules
            parts: list[Mask] = [Causal(offset=place.offset)] if rules.causal else []
            parts += [Window(left, right, offset=place.offset) for left, right in rules.windows]
            if self.keep is not None:
                parts.append(Padding(keep=self.keep[:, place.keys_from : place.keys_from + place.keys]))
            self._mask, self._ready = join_masks([*parts, *rules.others]), True
        return self._mask

    def follows(self, past: Tensor, seen: int) -> bool:
        """Whether the first `seen` positions are real where `past` says so, and all later ones are real."""
        if self._follows is None or self._follows[0] is not past or self._follows[1] != seen:
            keep = self.keep
            if keep is None or not torch.equal(keep[:, :seen], past) or not bool(keep[:, seen:].all()):
                return False
            self._follows = past, seen  # every layer asks the same
        return True

    def cells(self) -> Tensor:
        """Every cell, (batch, 1, queries, keys)."""
        place, mask = self.place, self.mask()
        shape = place.batch, 1, place.queries, place.keys
        if mask is None:
            return torch.ones(shape, dtype=torch.bool, device=self.device)
        extent = Extent(*shape)
        return mask.tile(extent, (0, place.queries), (0, place.keys), self.device).expand(shape)


def join_masks(masks: list[Mask]) -> Mask | None:
    """All of them together."""
    whole = None
    for mask in masks:
        whole = mask if whole is None else whole & mask
    return whole


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
    """transformers' mask function for "qkv"; a program that is being traced gets all cells as a tensor instead."""
    if torch.compiler.is_compiling() or (attention_mask is not None and is_tracing(attention_mask)):
        sizes = batch_size, q_length, kv_length, q_offset, kv_offset
        return _dense_cells(mask_function, attention_mask, use_vmap, device, *sizes)
    place = MaskSizes(batch_size, q_length, kv_length, int(q_offset), int(kv_offset))
    rules = None if use_vmap else _read_mask_function(mask_function, place)
    if rules is None:
        # Somebody's own rule: transformers knows how to call it.
        cells = _dense_cells(mask_function, None, use_vmap, device, *place)
        rules = MaskRules(others=(Dense(cells),))
    kind = dtype if type(config) in ADDITIVE_MASK_CONFIGS else torch.bool
    return LazyMask(rules, place, _real_positions(attention_mask, rules, place), device, kind)


def _dense_cells(function: Any, keep: Tensor | None, use_vmap: bool, device: Any, *sizes: Any) -> Tensor:
    cells = masking_utils.sdpa_mask(
        *sizes, mask_function=function, attention_mask=keep, allow_is_causal_skip=False, use_vmap=use_vmap,
        device=device,
    )  # fmt: skip
    assert cells is not None
    return cells


def _real_positions(keep: Tensor | None, rules: MaskRules, place: MaskSizes) -> Tensor | None:
    """Which positions are real; None where all that a query could see are."""
    if keep is None:
        return None
    if rules.causal and keep.shape[1] < place.queries_from + place.queries:
        wanted = f"{place.queries_from + place.queries}: one for each token so far and each new one"
        raise MaskError(complaint("attention_mask", f"{keep.shape[1]} columns", wanted))
    stop = place.keys_from + place.keys
    missing = stop - keep.shape[1]
    seen = keep if missing >= 0 else keep[:, :stop]
    if place.keys_from:
        seen = seen[:, place.keys_from :]
    # Keys beyond the mask are a static cache's empty places, which stand behind every query.
    if (missing <= 0 or rules.causal) and bool(seen.all()):
        return None
    return torch.nn.functional.pad(keep, (0, missing)) if missing > 0 else keep[:, :stop]


def _read_mask_function(function: Callable[..., Any], place: MaskSizes) -> MaskRules | None:
    """The rules that a mask function of transformers stands for; None for one that is not theirs."""
    if function is masking_utils.causal_mask_function:
        return MaskRules(causal=True)
    if function is masking_utils.bidirectional_mask_function:
        return MaskRules()
    closure = getattr(function, "__closure__", None)
    if getattr(function, "__module__", None) != _MASKING_MODULE or not closure:
        return None
    held = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in closure), strict=True))
    kind = function.__qualname__.split(".")[0]
    if kind == "and_masks":
        parts = [_read_mask_function(part, place) for part in held["mask_functions"]]
        return None if None in parts else _join_rules([part for part in parts if part is not None])
    if kind == "sliding_window_overlay":
        return MaskRules(windows=((held["sliding_window"] - 1, None),))
    if kind == "sliding_window_bidirectional_overlay":
        return MaskRules(windows=((held["sliding_window"], held["sliding_window"]),))
    if kind == "chunked_overlay":
        return MaskRules(others=(_chunk_segments(held["chunk_size"], held["left_padding"], place),))
    if kind == "packed_sequence_mask_function":
        return MaskRules(others=(_document_segments(held["packed_sequence_mask"], place),))
    return None


def _join_rules(parts: list[MaskRules]) -> MaskRules:
    whole = MaskRules()
    for part in parts:
        whole = whole & part
    return whole


def _chunk_segments(size: int, first: Tensor, place: MaskSizes) -> Segments:
    """Positions in chunks of `size`, counted from each row's first real token."""
    device = first.device
    queries = torch.arange(place.queries, device=device) + place.queries_from
    keys = torch.arange(place.keys, device=device) + place.keys_from
    return Segments((queries - first[:, None]) // size, (keys - first[:, None]) // size)


def _document_segments(ids: Tensor, place: MaskSizes) -> Segments:
    queries = ids[:, place.queries_from : place.queries_from + place.queries]
    return Segments(queries, ids[:, place.keys_from : place.keys_from + place.keys])


def read_mask_tensor(query: Tensor, given: Any, keys: int) -> tuple[Mask | None, Tensor | None]:
    """Somebody's own mask: booleans of which keys are seen, or numbers that are added to the scores."""
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
        return Dense(cells), None
    if not cells.is_floating_point():
        hint = "booleans say what is seen (True attends), floating-point numbers are added to the scores"
        raise DtypeError(complaint("attention_mask", f"a 4-D tensor of {given.dtype}", "booleans or floats", hint))
    return None, cells.to(query.dtype)


def _with_cells(given: Any) -> Any:
    if isinstance(given, LazyMask):
        cells = given.cells()
        if given.dtype is torch.bool:
            return cells
        return torch.zeros(cells.shape, dtype=given.dtype, device=cells.device).masked_fill(
            ~cells, torch.finfo(given.dtype).min
        )
    if isinstance(given, list | tuple):
        return type(given)(_with_cells(part) for part in given)
    if isinstance(given, dict):
        return {name: _with_cells(part) for name, part in given.items()}
    return given
