"""The scores that a mask has to cover, and one rectangle of them in torch or in numpy.

A mask writes its rule once, in operators that both libraries have. With a `TorchGrid` the rule gives
tiles for attention; with a `NumpyGrid` it counts, draws and lints, and torch is never loaded.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

from qkv.errors import OptionError, OptionTypeError, complaint


class Extent(NamedTuple):
    """The sizes of the scores; `dims` is the rank that the caller's own tensors had.

    Tiles have four dimensions whatever `dims` is: only `Dense` needs it, to align a mask of fewer
    dimensions as the caller meant it: 4 is (batch, heads, len_q, len_k), 3 is (batch, len_q, len_k),
    2 is (len_q, len_k).

    >>> Extent(batch=2, heads=3, len_q=5, len_k=7).scores
    (2, 3, 5, 7)
    >>> Extent(batch=2, heads=1, len_q=5, len_k=7, dims=3).scores
    (2, 5, 7)
    """

    batch: int
    heads: int
    len_q: int
    len_k: int
    dims: int = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """All four sizes."""
        return self.batch, self.heads, self.len_q, self.len_k

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores as the caller sees them."""
        if self.dims == 4:
            return self.shape
        return (self.batch, self.len_q, self.len_k) if self.dims == 3 else (self.len_q, self.len_k)

    @property
    def cells(self) -> int:
        """How many scores there are."""
        return self.batch * self.heads * self.len_q * self.len_k

    @classmethod
    def checked(cls, batch: object, heads: object, len_q: object, len_k: object) -> Extent:
        """An extent from numbers that a person typed."""
        return cls(size("batch", batch), size("heads", heads), size("len_q", len_q), size("len_k", len_k))


class Part(NamedTuple):
    """A rectangle of the scores, each pair half-open: some queries, keys, heads, and some rows of the batch."""

    rows: tuple[int, int]
    keys: tuple[int, int]
    heads: tuple[int, int]
    batch: tuple[int, int]

    @property
    def shift(self) -> int:
        """What is added to key - query when both are counted from the rectangle's corner."""
        return self.rows[0] - self.keys[0]


def size(argument: str, given: Any) -> int:
    """A size: an integer that is not negative."""
    number = integer(argument, given)
    if number < 0:
        raise OptionError(complaint(argument, given, "a size, 0 or more"))
    return number


def integer(argument: str, given: Any) -> int:
    """An integer of Python or numpy; True and 1.0 are none."""
    if type(given) is int:
        return given
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise OptionTypeError(complaint(argument, repr(given), "an integer"))
    return int(given)


class Grid:
    """The absolute positions in one rectangle, each shaped to broadcast to (batch, heads, rows, keys)."""

    __slots__ = ("extent", "keys", "rows")

    def __init__(self, extent: Extent, rows: tuple[int, int], keys: tuple[int, int]) -> None:
        self.extent = extent
        self.rows = rows
        self.keys = keys

    def batches(self) -> Any:
        return self.positions(0, self.extent.batch, 0)

    def heads(self) -> Any:
        return self.positions(0, self.extent.heads, 1)

    def query(self) -> Any:
        return self.positions(*self.rows, 2)

    def key(self) -> Any:
        return self.positions(*self.keys, 3)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the whole tile."""
        (i0, i1), (j0, j1) = self.rows, self.keys
        return self.extent.batch, self.extent.heads, i1 - i0, j1 - j0

    def positions(self, start: int, stop: int, axis: int) -> Any:
        """start to stop - 1 along one of the four axes."""
        raise NotImplementedError

    def hold(self, values: Any) -> Any:
        """What a mask holds (a tuple, a numpy array or a torch tensor), as this grid's own arrays."""
        raise NotImplementedError


class TorchGrid(Grid):
    """Positions as int64 tensors on a device; nothing here reads what a tensor contains."""

    __slots__ = ("device",)

    def __init__(self, extent: Extent, rows: tuple[int, int], keys: tuple[int, int], device: Any) -> None:
        super().__init__(extent, rows, keys)
        self.device = device

    def positions(self, start: int, stop: int, axis: int) -> Any:
        import torch

        shape = [1, 1, 1, 1]
        shape[axis] = stop - start
        return torch.arange(start, stop, device=self.device).view(shape)

    def hold(self, values: Any) -> Any:
        import torch

        return (
            values.to(self.device) if isinstance(values, torch.Tensor) else torch.as_tensor(values, device=self.device)
        )


class NumpyGrid(Grid):
    """Positions as int64 arrays of numpy."""

    __slots__ = ()

    def positions(self, start: int, stop: int, axis: int) -> Any:
        import numpy as np

        shape = [1, 1, 1, 1]
        shape[axis] = stop - start
        return np.arange(start, stop, dtype=np.int64).reshape(shape)

    def hold(self, values: Any) -> Any:
        from qkv.masks.arrays import to_numpy

        return to_numpy(values)
