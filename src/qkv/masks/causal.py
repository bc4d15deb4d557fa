"""Masks along the diagonal: `Causal` (itself and earlier tokens) and `Window` (nearby tokens)."""

from __future__ import annotations

from typing import Any

from qkv.errors import MaskError, OptionError, complaint
from qkv.masks.band import Band
from qkv.masks.base import Mask
from qkv.masks.grid import Extent, Grid, Region, as_integer

# Positions in a tile are int64; larger limits would overflow and mean the same.
_MAX_LIMIT = 1 << 62


class _Diagonal(Mask):
    """The keys from `query + offset - left` to `query + offset + right`."""

    __slots__ = ("offset",)
    _equal_by_fields = True
    left: int | None
    right: int | None
    offset: int | None

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self._fields().items() if value is not None)
        return f"{type(self).__name__}({given})"

    def _at_offset(self, offset: int) -> Mask:
        """The same mask with this offset."""
        return Causal(offset) if isinstance(self, Causal) else Window(self.left, self.right, offset)

    def _limits(self) -> tuple[int | None, int | None]:
        """(lower, upper) of the band, once the offset is known."""
        assert self.offset is not None, "the mask was not resolved"
        lower = None if self.left is None else self.offset - self.left
        return lower, None if self.right is None else self.offset + self.right + 1

    def cells(self, grid: Grid) -> Any:
        lower, upper = self._limits()
        ahead = grid.key() - grid.query()
        if lower is None:
            return ahead < (_MAX_LIMIT if upper is None else _clamp(upper))
        within = ahead >= _clamp(lower)
        return within if upper is None else within & (ahead < _clamp(upper))

    def _cut(self, extent: Extent, region: Region) -> Mask:
        assert self.offset is not None, "the mask was not resolved"
        return self._at_offset(self.offset + region.shift)

    def _ambiguous(self, extent: Extent) -> MaskError:
        given = f"len_q={extent.len_q} and len_k={extent.len_k}"
        hint = (
            f"{self._at_offset(0)!r} aligns the first query with the first key (top-left); "
            f"{self._at_offset(extent.len_k - extent.len_q)!r} aligns the last query with the last key (bottom-right)"
        )
        if extent.heads > extent.len_q > extent.len_k > 0 == extent.len_q % extent.len_k:
            # Fewer "tokens" than "heads", in the proportion of query heads to key/value heads.
            hint = f"if the tensors are (batch, length, heads, width), .transpose(1, 2) them; otherwise {hint}"
        return MaskError(complaint(f"{type(self).__name__} mask", given, "equal lengths or an offset", hint))

    def _band(self, extent: Extent) -> Band | None:
        return Band(*self._limits())


class Causal(_Diagonal):
    """Each token attends to itself and earlier tokens: query i to key j when `j <= i + offset`.

    Args:
        offset: the absolute position of query 0 among the keys. May be left out when there are as many queries as
            keys. With different lengths two readings are in use, and neither is guessed: `Causal(offset=0)` aligns
            the first query with the first key (top-left), `Causal(offset=len_k - len_q)` the last query with the
            last key (bottom-right, as with a cache). With a negative offset the first queries attend to nothing.

    >>> from qkv.masks import Extent
    >>> Causal().population(len_q=5, len_k=5)
    15
    >>> Causal().resolved(Extent(1, 1, len_q=3, len_k=5))
    Traceback (most recent call last):
    qkv.errors.MaskError: Causal mask: got len_q=3 and len_k=5, wanted equal lengths or an offset. \
Hint: Causal(offset=0) aligns the first query with the first key (top-left); \
Causal(offset=2) aligns the last query with the last key (bottom-right).
    """

    __slots__ = ()
    left, right = None, 0

    def __init__(self, offset: int | None = None) -> None:
        offset = _offset(offset)
        self._set_fields(_signature=("Causal", offset), offset=offset)

    def _resolve(self, extent: Extent, offsets: tuple[int, ...]) -> Causal:
        if self.offset is not None:
            return self
        if extent.len_q != extent.len_k:
            raise self._ambiguous(extent)
        return _ALIGNED

    def _causal_offsets(self, extent: Extent) -> tuple[int, ...]:
        return (self._resolve(extent, ()).offset or 0,)


class Window(_Diagonal):
    """Query i attends to the keys from `i + offset - left` to `i + offset + right`, both included.

    Args:
        left: how many keys before the query's own position; None is no limit. `Window(0, 0)` is the own position.
        right: how many keys after it; None is no limit.
        offset: the absolute position of query 0 among the keys. When left out, it is that of the `Causal` that the
            window is joined to by `&`; alone, a window without offset needs as many queries as keys.

    >>> Window(left=1, right=0).population(len_q=5, len_k=5)
    9
    >>> Window(left=-1)
    Traceback (most recent call last):
    qkv.errors.OptionError: left: got -1, wanted a number of keys, 0 or more. \
Hint: 0 keeps the query's own position only, None is no limit.
    """

    __slots__ = ("left", "right")

    def __init__(self, left: int | None = None, right: int | None = None, offset: int | None = None) -> None:
        left, right, offset = _side("left", left), _side("right", right), _offset(offset)
        self._set_fields(_signature=("Window", left, right, offset), left=left, right=right, offset=offset)

    def _needs_offset(self) -> bool:
        return self.offset is None

    def _resolve(self, extent: Extent, offsets: tuple[int, ...]) -> Mask:
        if self.offset is not None:
            return self
        if not offsets and extent.len_q != extent.len_k:
            raise self._ambiguous(extent)
        if any(offset != offsets[0] for offset in offsets):
            given, hint = f"Causal offsets {sorted(set(offsets))} with {self!r}", "write Window(..., offset=...)"
            raise MaskError(complaint("Window mask", given, "one offset for the window", hint))
        return self._at_offset(offsets[0] if offsets else 0)


def _offset(given: int | None) -> int | None:
    """The offset, limited so that kernels can add it to a position in 64 bits: beyond, all keys or none are allowed."""
    return None if given is None else _clamp(as_integer("offset", given))


def _side(argument: str, given: int | None) -> int | None:
    if given is not None and as_integer(argument, given) < 0:
        hint = "0 keeps the query's own position only, None is no limit"
        raise OptionError(complaint(argument, given, "a number of keys, 0 or more", hint))
    return None if given is None else int(given)


def _clamp(limit: int) -> int:
    return max(-_MAX_LIMIT, min(_MAX_LIMIT, limit))


_ALIGNED = Causal(offset=0)
