"""Masks made of masks: `&` where all must allow, `|` where one is enough, and the masks of the usual transformers.

| model | its attention | mask |
| --- | --- | --- |
| encoder (BERT) | self-attention | `encoder(...)` |
| decoder (GPT) | self-attention | `decoder(...)` |
| encoder-decoder (T5) | encoder's self-attention | `encoder(...)`, of the source |
| | decoder's self-attention | `decoder(...)`, of the target |
| | cross-attention | `cross(...)`, of the source |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, is_, or_
from typing import Any, ClassVar

from qkv.errors import MaskTypeError, OptionError, complaint
from qkv.masks.band import Band
from qkv.masks.base import Mask, Sizes, as_mask, hull
from qkv.masks.causal import Causal
from qkv.masks.grid import Extent, Grid, Range, Region
from qkv.masks.padding import Padding


class Joined(Mask):
    """What And and Or share. `masks` is flat: no And directly in an And, no Or directly in an Or."""

    __slots__ = ("_offset_needed", "masks")
    _equal_by_fields = True
    _sign: ClassVar[str]
    _join: ClassVar[Callable[[Any, Any], Any]]

    masks: tuple[Mask, ...]
    _offset_needed: bool

    def __init__(self, *masks: Mask) -> None:
        flat: list[Mask] = []
        for mask in masks:
            if as_mask(mask) is None:
                raise MaskTypeError(complaint(type(self).__name__, None, "masks", "leave None out"))
            flat.extend(mask.masks if isinstance(mask, Joined) and type(mask) is type(self) else (mask,))
        if not flat:
            # An And of no masks would allow everything, an Or of none would allow nothing.
            raise OptionError(complaint(type(self).__name__, "no masks", "at least one"))
        signature = (type(self).__name__, *(mask.signature() for mask in flat))
        needed = any(mask._needs_offset() for mask in flat)
        self._set_fields(_signature=signature, masks=tuple(flat), _offset_needed=needed)

    def __repr__(self) -> str:
        if len(self.masks) == 1:
            return f"{type(self).__name__}({self.masks[0]!r})"
        inner = [f"({m!r})" if isinstance(m, Joined) and len(m.masks) > 1 else repr(m) for m in self.masks]
        return f" {self._sign} ".join(inner)

    def _inner(self) -> tuple[Mask, ...]:
        return self.masks

    def cells(self, grid: Grid) -> Any:
        return reduce(type(self)._join, [mask.cells(grid) for mask in self.masks])

    def _rebuilt(self, masks: list[Mask]) -> Mask:
        return self if all(map(is_, masks, self.masks)) else type(self)(*masks)

    def _resolve(self, extent: Extent, offsets: tuple[int, ...]) -> Mask:
        return self._rebuilt([mask._resolve(extent, offsets) for mask in self.masks])

    def _cut(self, extent: Extent, region: Region) -> Mask:
        return type(self)(*(mask._cut(extent, region) for mask in self.masks))

    def _needs_offset(self) -> bool:
        return self._offset_needed

    def _depends_on_keys_only(self, extent: Extent) -> bool:
        return all(mask._depends_on_keys_only(extent) for mask in self.masks)

    def _own_sizes(self) -> Sizes:
        # Masks of different sizes are refused when the mask is resolved, not here.
        columns = zip(*(mask._own_sizes() for mask in self.masks), strict=True)
        batch, heads, len_q, len_k = (next((s for s in c if s is not None), None) for c in columns)
        return batch, heads, len_q, len_k


class And(Joined):
    """Both allow: what `one & other` makes.

    A `Window` without an offset takes the offset of the `Causal` that it is joined to by `&`, also when either of
    them is inside an `|`. If those `Causal`s have different offsets, the mask is refused: give the window an offset.

    >>> from qkv.masks import Causal, Extent, Window
    >>> (Causal(offset=2) & Window(left=1)).resolved(Extent(1, 1, 3, 5))
    Causal(offset=2) & Window(left=1, offset=2)
    """

    __slots__ = ()
    _sign, _join = "&", and_

    def parts(self) -> tuple[Mask, ...]:
        """The masks that are joined, flat."""
        return self.masks

    def _resolve(self, extent: Extent, offsets: tuple[int, ...]) -> Mask:
        if not self._offset_needed:
            return super()._resolve(extent, ())
        resolved = []
        for mask in self.masks:
            others = (offset for other in self.masks if other is not mask for offset in other._causal_offsets(extent))
            resolved.append(mask._resolve(extent, (*offsets, *others)))
        return self._rebuilt(resolved)

    def _bounds(self, extent: Extent, rows: Range) -> Range:
        runs = [mask._bounds(extent, rows) for mask in self.masks]
        return max(lo for lo, _ in runs), min(hi for _, hi in runs)

    def _band(self, extent: Extent) -> Band | None:
        bands = [mask._band(extent) for mask in self.masks]
        known = [band for band in bands if band is not None]
        return reduce(Band.intersect, known) if len(known) == len(bands) else None


class Or(Joined):
    """Either allows: what `one | other` makes.

    >>> from qkv.masks import Causal, Padding
    >>> prefix = Causal() | Padding(lengths=[3])  # every query attends to the first three keys
    >>> prefix.population(len_q=5, len_k=5)
    18
    """

    __slots__ = ()
    _sign, _join = "|", or_

    def _bounds(self, extent: Extent, rows: Range) -> Range:
        return hull(mask._bounds(extent, rows) for mask in self.masks)

    def _band(self, extent: Extent) -> Band | None:
        return self.masks[0]._band(extent) if len(self.masks) == 1 else None


def join_masks(*masks: Mask | None) -> Mask | None:
    """All masks that are not None, joined by &; None if there are none.

    >>> join_masks(None, Causal(), Padding(lengths=[3]))
    Causal() & Padding(lengths=[3])
    """
    given = [mask for mask in masks if as_mask(mask) is not None]
    return reduce(and_, given) if given else None


def encoder(lengths: Any = None, *, keep: Any = None, drop: Any = None) -> Mask | None:
    """Self-attention of an encoder: every query attends to every key that is not padding.

    Args:
        lengths, keep, drop: those of `Padding`; give at most one.

    Returns:
        A `Padding` mask, or None without arguments.

    >>> encoder(lengths=[3, 5])
    Padding(lengths=[3, 5])
    >>> encoder() is None
    True
    """
    return None if lengths is keep is drop is None else Padding(lengths, keep=keep, drop=drop)


def decoder(lengths: Any = None, *, keep: Any = None, drop: Any = None, offset: int | None = None) -> Mask:
    """Self-attention of a decoder: each token attends to itself and earlier tokens, and none to padding.

    Padding on the right needs no mask: causality already hides it from every real query, so with `lengths` the
    result is `Causal` alone. (The outputs of padded queries are meaningless; a loss leaves them out.) With `keep`
    and `drop`, padding may be on the left, where causality does not hide it, so both masks are joined.

    Args:
        lengths, keep, drop: those of `Padding`; give at most one.
        offset: that of `Causal`, the absolute position of the first query.

    >>> decoder(lengths=[3, 5])
    Causal()
    >>> decoder(drop=[[True, False, False]])
    Causal() & Padding(drop=<bool (1, 3)>)

    With an offset larger than the queries' true position, queries attend to later tokens too, and padding on the
    right needs `Causal(offset) & Padding(lengths)`.
    """
    padding = encoder(lengths, keep=keep, drop=drop)
    return Causal(offset) if padding is None or lengths is not None else Causal(offset) & padding


def cross(lengths: Any = None, *, keep: Any = None, drop: Any = None) -> Mask | None:
    """Cross-attention: the decoder's queries attend to every key of the encoder that is not padding.

    Args:
        lengths, keep, drop: those of `Padding`, for the encoder's sequence; give at most one.

    Returns:
        A `Padding` mask, or None without arguments. Nothing is causal between two sequences.

    >>> cross(lengths=[3, 5]).population(batch=2, len_q=7, len_k=5)
    56
    """
    return encoder(lengths, keep=keep, drop=drop)
