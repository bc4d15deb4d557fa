"""Padding: which keys of each batch row are real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkv.errors import MaskError, OptionError, complaint
from qkv.masks.arrays import booleans, brief, integers, is_tensor, shape_of, to_numpy, version
from qkv.masks.band import Band
from qkv.masks.base import Mask

if TYPE_CHECKING:
    from qkv.masks.base import Known
    from qkv.masks.grid import Extent, Grid, Part


class Padding(Mask):
    """Key j of batch row b is seen when it is no padding. Say so in exactly one way:

    - `lengths`, one integer for each batch row: the first `lengths[b]` keys are real. A single integer
      will do for a batch of one.
    - `keep`, booleans (batch, len_k): True is real, and attends.
    - `drop`, booleans (batch, len_k): True is padding, and is ignored. This is what
      `nn.MultiheadAttention` calls `key_padding_mask`.

    Lists, numpy arrays and torch tensors will do; (len_k,) will do for a batch of one.

    >>> Padding(lengths=[3, 5]).population(batch=2, len_q=7, len_k=5)
    56
    >>> print(Padding(drop=[False, False, True]).draw(len_q=2))
    Padding(drop=<bool (3,)>)
            key
            0 1 2
    query 0 ■ ■ ·
          1 ■ ■ ·
    ■ True: the query attends to the key   · False: it does not
    4 of 6 cells attend.

    A length of 0, or a row that keeps nothing, leaves its queries without keys: their output is 0.
    """

    __slots__ = ("_longest", "drop", "keep", "lengths")
    lengths: Any
    keep: Any
    drop: Any
    _longest: int  # of lengths that are Python's own; 0 for tensors, which are not read here

    def __init__(self, lengths: Any = None, *, keep: Any = None, drop: Any = None) -> None:
        given = {"lengths": lengths, "keep": keep, "drop": drop}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            hint = "keep= has True for real keys, drop= has True for padding"
            wanted = "exactly one of lengths=, keep= and drop="
            raise OptionError(complaint("Padding", " and ".join(named) or "none of them", wanted, hint))
        name = named[0]
        if name == "lengths":
            held = _lengths(lengths)
        else:
            held = booleans(_called(name), given[name], "(batch, len_k)")
            if held.ndim not in (1, 2):
                hint = "Dense takes booleans of any shape that broadcasts to the scores"
                raise MaskError(complaint(_called(name), f"shape {shape_of(held)}", "shape (batch, len_k)", hint))
        longest = max(held, default=0) if isinstance(held, tuple) else 0
        self._fill(("Padding", name, shape_of(held)), **{**dict.fromkeys(given), name: held}, _longest=longest)

    def __repr__(self) -> str:
        name, held = self._held()
        return f"Padding({name}={brief(held)})"

    def check_contents(self, extent: Extent) -> None:
        if self.lengths is not None:
            self._read_lengths(extent.len_k)

    def _held(self) -> tuple[str, Any]:
        if self.lengths is not None:
            return "lengths", self.lengths
        return ("keep", self.keep) if self.keep is not None else ("drop", self.drop)

    def _read_lengths(self, len_k: int) -> tuple[int, ...]:
        """The lengths as Python integers, checked against len_k."""

        def read() -> tuple[int, ...]:
            numbers = self.lengths if isinstance(self.lengths, tuple) else tuple(self.lengths.tolist())
            _check_range(numbers, len_k)
            return numbers

        return self._remembered("lengths", (version(self.lengths), len_k), read)

    def _kept(self) -> Any:
        """The real keys as a numpy array (batch, len_k), for `keep` and `drop`."""
        name, held = self._held()
        rows = to_numpy(held if held.ndim == 2 else held[None])
        return rows if name == "keep" else ~rows

    def _resolve(self, extent: Extent, beside: tuple[int, ...]) -> Mask:
        name, held = self._held()
        shape = shape_of(held)
        if name == "lengths":
            if shape[0] != extent.batch:
                wanted = f"one for each of {extent.batch} batch rows"
                raise MaskError(complaint(_called(name), f"{shape[0]} of them", wanted))
            if self._longest > extent.len_k:
                _check_range(held, extent.len_k)
        elif shape != (extent.batch, extent.len_k) and (extent.batch, *shape) != (1, extent.len_k):
            wanted = f"(batch, len_k) = {(extent.batch, extent.len_k)}"
            hint = "padding is per batch row, over keys; Dense broadcasts"
            raise MaskError(complaint(_called(name), f"shape {shape}", wanted, hint))
        return self

    def _cells(self, grid: Grid) -> Any:
        name, held = self._held()
        if name == "lengths":
            return grid.key() < grid.hold(held).reshape(-1, 1, 1, 1)
        j0, j1 = grid.keys
        rows = held if held.ndim == 2 else held[None]
        kept = grid.hold(rows[:, None, None, j0:j1])
        return kept if name == "keep" else ~kept

    def _allows(self, batch: int, head: int, query: int, key: int, extent: Extent) -> bool:
        name, held = self._held()
        if name == "lengths":
            return key < int(held[batch])
        here = bool(held[batch, key] if held.ndim == 2 else held[key])
        return here if name == "keep" else not here

    def _band(self, extent: Extent) -> Band | None:
        name, held = self._held()
        if name == "lengths":
            return Band(stops=self._read_lengths(extent.len_k))
        return self._remembered("band", (version(held),), lambda: _runs(self._kept()))

    def _part(self, extent: Extent, place: Part) -> Mask:
        name, held = self._held()
        j0, j1 = place.keys
        if name != "lengths" and held.ndim == 1:
            held = held[None]
        held = held[slice(*place.batch)]
        if name == "lengths":
            if isinstance(held, tuple):
                return Padding(tuple(max(0, min(length, j1) - j0) for length in held))
            return Padding((held - j0).clamp(0, j1 - j0))
        return Padding(**{name: held[:, j0:j1]})

    def _only_keys(self, extent: Extent) -> bool:
        return True

    def _known(self) -> Known:
        name, held = self._held()
        shape = shape_of(held)
        if name == "lengths":
            return shape[0], None, None, None
        return shape[0] if len(shape) == 2 else 1, None, None, shape[-1]

    def _reach(self) -> int:
        return 0 if self.lengths is None else max([int(length) for length in self.lengths], default=0)


def _called(name: str) -> str:
    return f"{name} (of a Padding mask)"


def _lengths(given: Any) -> Any:
    """A tuple of integers, or an integer tensor of one dimension."""
    shape = "(batch,)"
    held = integers(
        _called("lengths"), given, shape, "lengths count keys; booleans (batch, len_k) go to keep= or drop="
    )
    if held.ndim == 0:
        held = held.reshape(1)
    if held.ndim != 1:
        hint = "booleans (batch, len_k) go to keep= or drop="
        raise MaskError(complaint(_called("lengths"), f"shape {shape_of(held)}", f"shape {shape}", hint))
    if is_tensor(held):
        return held
    numbers = tuple(held.tolist())
    _check_range(numbers, None)
    return numbers


def _check_range(lengths: tuple[int, ...], len_k: int | None) -> None:
    for row, length in enumerate(lengths):
        if length < 0 or (len_k is not None and length > len_k):
            wanted = "0 or more" if len_k is None else f"between 0 and len_k = {len_k}"
            hint = "a length counts the real keys of its batch row"
            raise MaskError(complaint(_called(f"lengths[{row}]"), length, wanted, hint))


def _runs(kept: Any) -> Band | None:
    """The band of kept keys, (batch, len_k); None when a row has a hole."""
    counts = kept.sum(axis=1)
    if kept.shape[1] == 0:
        return Band(stops=(0,) * len(kept))
    starts = kept.argmax(axis=1)
    stops = kept.shape[1] - kept[:, ::-1].argmax(axis=1)
    stops[counts == 0] = 0  # argmax of nothing is 0: an empty row is [0, 0)
    if (stops - starts != counts).any():
        return None
    return Band(starts=tuple(starts.tolist()), stops=tuple(stops.tolist()))
