"""Masks along the diagonal: `Causal` looks back, `Window` looks around."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkv.errors import MaskError, OptionError, complaint
from qkv.masks.band import Band
from qkv.masks.base import Mask
from qkv.masks.grid import integer

if TYPE_CHECKING:
    from collections.abc import Callable

    from qkv.masks.grid import Extent, Grid, Part

# Positions are int64 in a tile: limits beyond this mean the same and would overflow.
_FAR = 2**62


class _Diagonal(Mask):
    """A band around `key == query + offset`."""

    __slots__ = ("offset",)
    offset: int | None

    def _limits(self) -> tuple[int | None, int | None]:
        """(lower, upper) of the band, once the offset is known."""
        raise NotImplementedError

    def _cells(self, grid: Grid) -> Any:
        lower, upper = self._limits()
        ahead = grid.key() - grid.query()
        if lower is None:
            return ahead < _FAR if upper is None else ahead < _near(upper)
        within = ahead >= _near(lower)
        return within if upper is None else within & (ahead < _near(upper))

    def _allows(self, batch: int, head: int, query: int, key: int, extent: Extent) -> bool:
        lower, upper = self._limits()
        return (lower is None or query + lower <= key) and (upper is None or key < query + upper)

    def _band(self, extent: Extent) -> Band | None:
        return Band(*self._limits())


class Causal(_Diagonal):
    """Query i sees key j when `j <= i + offset`: itself and what came before.

    The offset is the absolute position of query 0 among the keys. Leaving it out needs as many queries
    as keys. With different lengths there are two readings in use, and neither is guessed:
    `Causal(offset=0)` aligns the first query with the first key (top-left), and
    `Causal(offset=len_k - len_q)` aligns the last with the last (bottom-right, as after a cache).

    >>> from qkv.masks import Extent
    >>> Causal().population(len_q=5, len_k=5)
    15
    >>> Causal().resolved(Extent(1, 1, len_q=3, len_k=5))
    Traceback (most recent call last):
    qkv.errors.MaskError: Causal mask: got len_q=3 and len_k=5, wanted equal lengths or an offset. \
Hint: Causal(offset=0) aligns the first query with the first key (top-left); \
Causal(offset=2) aligns the last query with the last key (bottom-right).

    With a negative offset the first queries see nothing.
    """

    __slots__ = ()

    def __init__(self, offset: int | None = None) -> None:
        offset = None if offset is None else integer("offset", offset)
        self._fill(("Causal", offset), offset=offset)

    def __repr__(self) -> str:
        return "Causal()" if self.offset is None else f"Causal(offset={self.offset})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Causal) and self.offset == other.offset

    def __hash__(self) -> int:
        return hash((Causal, self.offset))

    def _resolve(self, extent: Extent, beside: tuple[int, ...]) -> Mask:
        if self.offset is not None:
            return self
        if extent.len_q != extent.len_k:
            raise _two_readings(extent, "Causal", lambda offset: f"Causal(offset={offset})")
        return _SQUARE

    def _causal_offsets(self, extent: Extent) -> tuple[int, ...]:
        resolved = self._resolve(extent, ())
        return (resolved.offset,) if isinstance(resolved, Causal) and resolved.offset is not None else ()

    def _part(self, extent: Extent, place: Part) -> Mask:
        return Causal(_known_offset(self.offset) + place.shift)

    def _limits(self) -> tuple[int | None, int | None]:
        return None, _known_offset(self.offset) + 1


class Window(_Diagonal):
    """Query i sees the keys from `i + offset - left` to `i + offset + right`, both included.

    The sides count the keys beside the query's own: `Window(0, 0)` is the query itself, None is without
    limit, and a side longer than the sequence is no limit either. Without an offset it takes that of
    the `Causal` beside it (joined by `&`, also across `|`); alone it needs as many queries as keys.

    >>> Window(left=1, right=0).population(len_q=5, len_k=5)
    9
    >>> Window(left=-1)
    Traceback (most recent call last):
    qkv.errors.OptionError: left: got -1, wanted a number of keys, 0 or more. \
Hint: 0 keeps the query's own position only, None is without limit.
    """

    __slots__ = ("left", "right")
    left: int | None
    right: int | None

    def __init__(self, left: int | None = None, right: int | None = None, offset: int | None = None) -> None:
        left, right = _side("left", left), _side("right", right)
        offset = None if offset is None else integer("offset", offset)
        self._fill(("Window", left, right, offset), left=left, right=right, offset=offset)

    def __repr__(self) -> str:
        return self._spelled(self.offset)

    def _spelled(self, offset: int | None) -> str:
        given = {"left": self.left, "right": self.right, "offset": offset}
        return f"Window({', '.join(f'{name}={side}' for name, side in given.items() if side is not None)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Window) and self._signature == other._signature

    def __hash__(self) -> int:
        return hash(self._signature)

    def _floats(self) -> bool:
        return self.offset is None

    def _resolve(self, extent: Extent, beside: tuple[int, ...]) -> Mask:
        if self.offset is not None:
            return self
        if not beside:
            if extent.len_q != extent.len_k:
                raise _two_readings(extent, "Window", self._spelled)
            return Window(self.left, self.right, 0)
        if any(offset != beside[0] for offset in beside):
            given = f"Causal offsets {sorted(set(beside))} beside {self!r}"
            raise MaskError(complaint("Window mask", given, "one offset to take", "give the window offset= of its own"))
        return Window(self.left, self.right, beside[0])

    def _part(self, extent: Extent, place: Part) -> Mask:
        return Window(self.left, self.right, _known_offset(self.offset) + place.shift)

    def _limits(self) -> tuple[int | None, int | None]:
        offset = _known_offset(self.offset)
        lower = None if self.left is None else offset - self.left
        return lower, None if self.right is None else offset + self.right + 1


_SQUARE = Causal(offset=0)


def _side(argument: str, given: int | None) -> int | None:
    if given is None:
        return None
    side = integer(argument, given)
    if side < 0:
        hint = "0 keeps the query's own position only, None is without limit"
        raise OptionError(complaint(argument, given, "a number of keys, 0 or more", hint))
    return side


def _known_offset(offset: int | None) -> int:
    assert offset is not None, "the mask was not resolved"
    return offset


def _near(limit: int) -> int:
    return max(-_FAR, min(_FAR, limit))


def _two_readings(extent: Extent, kind: str, spelled: Callable[[int], str]) -> MaskError:
    given = f"len_q={extent.len_q} and len_k={extent.len_k}"
    hint = (
        f"{spelled(0)} aligns the first query with the first key (top-left); "
        f"{spelled(extent.len_k - extent.len_q)} aligns the last query with the last key (bottom-right)"
    )
    return MaskError(complaint(f"{kind} mask", given, "equal lengths or an offset", hint))
