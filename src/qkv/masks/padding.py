"""`Padding`: which keys of each batch row are real tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qkv.errors import MaskError, OptionError, complaint
from qkv.masks.band import Band
from qkv.masks.base import Mask, Sizes
from qkv.masks.grid import Extent, Grid, Region, as_booleans, as_integers, brief_repr, is_tensor, shape_of, to_numpy


class Padding(Mask):
    """Every query attends to the keys that are not padding. Give exactly one of the arguments.

    Args:
        lengths: integers (batch,): the first `lengths[b]` keys of row b are real. One integer for a batch of one.
        keep: booleans (batch, len_k), or (len_k,) for a batch of one: True is a real key. The `attention_mask` of
            transformers is `keep=attention_mask.bool()`.
        drop: the same with True for padding: the `key_padding_mask` of `nn.MultiheadAttention`.

    Lists, numpy arrays and torch tensors are accepted.

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

    A length of 0, or a row without a real key, leaves its queries nothing to attend to: their output is 0.
    """

    __slots__ = ("_given", "drop", "keep", "lengths")
    lengths: Any
    keep: Any
    drop: Any
    _given: tuple[str, Any]  # the argument's name and value

    def __init__(self, lengths: Any = None, *, keep: Any = None, drop: Any = None) -> None:
        given = {"lengths": lengths, "keep": keep, "drop": drop}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            hint = "keep= has True for real keys, drop= has True for padding"
            wanted = "exactly one of lengths=, keep= and drop="
            raise OptionError(complaint("Padding", " and ".join(named) or "none of them", wanted, hint))
        name = named[0]
        if name == "lengths":
            values = _read_lengths(lengths)
        else:
            values = as_booleans(_argument(name), given[name], "(batch, len_k)")
            if values.ndim not in (1, 2):
                hint = "Dense takes booleans of any shape that broadcasts to the scores"
                raise MaskError(complaint(_argument(name), f"shape {shape_of(values)}", "shape (batch, len_k)", hint))
        signature, fields = ("Padding", name, shape_of(values)), {**dict.fromkeys(given), name: values}
        self._set_fields(_signature=signature, _given=(name, values), **fields)

    def __repr__(self) -> str:
        name, values = self._given
        return f"Padding({name}={brief_repr(values)})"

    def cells(self, grid: Grid) -> Any:
        name, values = self._given
        if name == "lengths":
            return grid.key() < grid.to_array(values).reshape(-1, 1, 1, 1)[slice(*grid.region.batch)]
        kept = grid.cut(_rows(values)[:, None, None])
        return kept if name == "keep" else ~kept

    def check_contents(self, extent: Extent) -> None:
        if self.lengths is not None:
            self._stops(extent.len_k)

    def _stops(self, len_k: int) -> tuple[int, ...]:
        """The lengths as Python integers, checked against len_k."""
        lengths = self.lengths
        return self._cached(
            "lengths", len_k, lambda: _in_range(lengths if type(lengths) is tuple else lengths.tolist(), len_k)
        )

    def _resolve(self, extent: Extent, offsets: tuple[int, ...]) -> Mask:
        name, values = self._given
        shape = shape_of(values)
        if name == "lengths":
            if shape[0] != extent.batch:
                wanted = f"one for each of {extent.batch} batch rows"
                raise MaskError(complaint(_argument(name), f"{shape[0]} of them", wanted))
            if type(values) is tuple and max(values, default=0) > extent.len_k:
                _in_range(values, extent.len_k)
        elif shape != (extent.batch, extent.len_k) and (extent.batch, *shape) != (1, extent.len_k):
            wanted = f"(batch, len_k) = {(extent.batch, extent.len_k)}"
            hint = "padding is per batch row, over keys; Dense broadcasts"
            if extent.dims == 4 and shape[-1] == extent.heads:
                hint += "; if query, key and value came as (batch, length, heads, width): call .transpose(1, 2) first"
            raise MaskError(complaint(_argument(name), f"shape {shape}", wanted, hint))
        return self

    def _band(self, extent: Extent) -> Band | None:
        if self.lengths is not None:
            return Band(stops=self._stops(extent.len_k))
        return self._cached("band", None, lambda: _band_of_rows(_rows(self._given[1]), self.drop is not None))

    def _cut(self, extent: Extent, region: Region) -> Mask:
        name, values = self._given
        j0, j1 = region.keys
        if name != "lengths":
            return Padding(**{name: _rows(values)[slice(*region.batch), j0:j1]})
        values = values[slice(*region.batch)]
        if isinstance(values, tuple):
            return Padding(tuple(max(0, min(length, j1) - j0) for length in values))
        return Padding((values - j0).clamp(0, j1 - j0))

    def _depends_on_keys_only(self, extent: Extent) -> bool:
        return True

    def _own_sizes(self) -> Sizes:
        name, values = self._given
        shape = shape_of(values) if name == "lengths" else shape_of(_rows(values))
        return shape[0], None, None, None if name == "lengths" else shape[1]

    def _example_length(self) -> int:
        return 0 if self.lengths is None else max([int(length) for length in self.lengths], default=0)


def _argument(name: str) -> str:
    return f"{name} (of a Padding mask)"


def _rows(marks: Any) -> Any:
    return marks if marks.ndim == 2 else marks[None]


def _read_lengths(given: Any) -> Any:
    """A tuple of integers, or an integer tensor of one dimension."""
    if isinstance(given, list | tuple) and given and all(type(length) is int for length in given):
        # Without numpy, whose arrays torch.compile does not trace (tests/backends/test_run.py).
        return _in_range(given)
    hint = "booleans (batch, len_k) go to keep= or drop="
    values = as_integers(_argument("lengths"), given, "(batch,)", f"lengths count keys; {hint}")
    values = values.reshape(1) if values.ndim == 0 else values
    if values.ndim != 1:
        raise MaskError(complaint(_argument("lengths"), f"shape {shape_of(values)}", "shape (batch,)", hint))
    return values if is_tensor(values) else _in_range(values.tolist())


def _in_range(lengths: Iterable[int], len_k: int | None = None) -> tuple[int, ...]:
    lengths = tuple(lengths)
    for row, length in enumerate(lengths):
        if length < 0 or (len_k is not None and length > len_k):
            wanted = "0 or more" if len_k is None else f"between 0 and len_k = {len_k}"
            hint = "a length counts the real keys of its batch row"
            raise MaskError(complaint(_argument(f"lengths[{row}]"), length, wanted, hint))
    return lengths


def _band_of_rows(marks: Any, dropped: bool) -> Band | None:
    """The band of the kept keys, (batch, len_k); None when a row has a hole."""
    kept = ~to_numpy(marks) if dropped else to_numpy(marks)
    if kept.shape[1] == 0:
        return Band(stops=(0,) * len(kept))
    counts, starts = kept.sum(axis=1), kept.argmax(axis=1)
    stops = kept.shape[1] - kept[:, ::-1].argmax(axis=1)
    stops[counts == 0] = 0  # argmax of an empty row is 0: its run is [0, 0)
    if (stops - starts != counts).any():
        return None
    return Band(starts=tuple(starts.tolist()), stops=tuple(stops.tolist()))
