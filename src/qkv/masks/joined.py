"""Masks made of masks: `&` where all have to allow, `|` where one is enough."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, ClassVar

from qkv.errors import MaskTypeError, OptionError, complaint
from qkv.masks.band import Band
from qkv.masks.base import Mask, as_mask

if TYPE_CHECKING:
    from qkv.masks.base import Known
    from qkv.masks.grid import Extent, Grid, Part


class Joined(Mask):
    """What And and Or share. `masks` is flat: no And directly in an And, no Or directly in an Or."""

    __slots__ = ("_loose", "masks")
    _sign: ClassVar[str]

    masks: tuple[Mask, ...]
    _loose: bool

    def __init__(self, *masks: Mask) -> None:
        flat: list[Mask] = []
        for mask in masks:
            if as_mask(mask) is None:
                raise MaskTypeError(complaint(type(self).__name__, None, "masks", "leave None out"))
            flat.extend(mask.masks if isinstance(mask, Joined) and type(mask) is type(self) else (mask,))
        if not flat:
            # An And of nothing allows everything and an Or of nothing allows nothing: nobody means that.
            raise OptionError(complaint(type(self).__name__, "no masks", "at least one"))
        signature = (type(self).__name__, *(mask.signature() for mask in flat))
        self._fill(signature, masks=tuple(flat), _loose=any(mask._floats() for mask in flat))

    def __repr__(self) -> str:
        if len(self.masks) == 1:
            return f"{type(self).__name__}({self.masks[0]!r})"
        inner = [f"({m!r})" if isinstance(m, Joined) and len(m.masks) > 1 else repr(m) for m in self.masks]
        return f" {self._sign} ".join(inner)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Joined) and self.masks == other.masks

    def __hash__(self) -> int:
        return hash((type(self), self.masks))

    def versions(self) -> tuple[int, ...]:
        return tuple(version for mask in self.masks for version in mask.versions())

    def check_contents(self, extent: Extent) -> None:
        for mask in self.masks:
            mask.check_contents(extent)

    def _rebuilt(self, masks: list[Mask]) -> Mask:
        same = all(new is old for new, old in zip(masks, self.masks, strict=True))
        return self if same else type(self)(*masks)

    def _resolve(self, extent: Extent, beside: tuple[int, ...]) -> Mask:
        return self._rebuilt([mask._resolve(extent, beside) for mask in self.masks])

    def _part(self, extent: Extent, place: Part) -> Mask:
        return type(self)(*(mask._part(extent, place) for mask in self.masks))

    def _causal_offsets(self, extent: Extent) -> tuple[int, ...]:
        return tuple([offset for mask in self.masks for offset in mask._causal_offsets(extent)])

    def _floats(self) -> bool:
        return self._loose

    def _only_keys(self, extent: Extent) -> bool:
        return all(mask._only_keys(extent) for mask in self.masks)

    def _known(self) -> Known:
        # Masks of different sizes are no business of this one: resolving refuses them.
        columns = zip(*(mask._known() for mask in self.masks), strict=True)
        batch, heads, len_q, len_k = (next((s for s in c if s is not None), None) for c in columns)
        return batch, heads, len_q, len_k

    def _reach(self) -> int:
        return max(mask._reach() for mask in self.masks)


class And(Joined):
    """Both allow: what `one & other` makes.

    A `Window` without an offset takes the offset of the `Causal` beside it. Beside means that the
    smallest expression holding the two joins them by `&`, however deep in `|` either of them is.
    `Causal`s of different offsets beside such a window are refused: give the window its own.

    >>> from qkv.masks import Causal, Extent, Window
    >>> (Causal(offset=2) & Window(left=1)).resolved(Extent(1, 1, 3, 5))
    Causal(offset=2) & Window(left=1, offset=2)
    """

    __slots__ = ()
    _sign = "&"

    def parts(self) -> tuple[Mask, ...]:
        """The masks that are joined, flat."""
        return self.masks

    def _resolve(self, extent: Extent, beside: tuple[int, ...]) -> Mask:
        if not self._loose:
            return super()._resolve(extent, ())
        offsets = [mask._causal_offsets(extent) for mask in self.masks]
        resolved: list[Mask] = []
        for place, mask in enumerate(self.masks):
            others = [offset for other, found in enumerate(offsets) if other != place for offset in found]
            resolved.append(mask._resolve(extent, (*beside, *others)))
        return self._rebuilt(resolved)

    def _cells(self, grid: Grid) -> Any:
        return reduce(and_, [mask._cells(grid) for mask in self.masks])

    def _allows(self, batch: int, head: int, query: int, key: int, extent: Extent) -> bool:
        return all(mask._allows(batch, head, query, key, extent) for mask in self.masks)

    def _bounds(self, extent: Extent, rows: tuple[int, int]) -> tuple[int, int]:
        runs = [mask._bounds(extent, rows) for mask in self.masks]
        return max(lo for lo, _ in runs), min(hi for _, hi in runs)

    def _band(self, extent: Extent) -> Band | None:
        band = Band()
        for mask in self.masks:
            part = mask._band(extent)
            if part is None:
                return None
            band = band.intersect(part)
        return band


class Or(Joined):
    """Either allows: what `one | other` makes.

    >>> from qkv.masks import Causal, Padding
    >>> prefix = Causal() | Padding(lengths=[3])  # the first three keys are seen by all
    >>> prefix.population(len_q=5, len_k=5)
    18
    """

    __slots__ = ()
    _sign = "|"

    def _cells(self, grid: Grid) -> Any:
        return reduce(or_, [mask._cells(grid) for mask in self.masks])

    def _allows(self, batch: int, head: int, query: int, key: int, extent: Extent) -> bool:
        return any(mask._allows(batch, head, query, key, extent) for mask in self.masks)

    def _bounds(self, extent: Extent, rows: tuple[int, int]) -> tuple[int, int]:
        runs = [run for mask in self.masks if (run := mask._bounds(extent, rows))[0] < run[1]] or [(0, 0)]
        return min(lo for lo, _ in runs), max(hi for _, hi in runs)

    def _band(self, extent: Extent) -> Band | None:
        return self.masks[0]._band(extent) if len(self.masks) == 1 else None
