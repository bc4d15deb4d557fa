"""`Predicate`: any rule that can be written as a function of positions."""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any

from qkv.errors import MaskError, MaskTypeError, OptionTypeError, complaint
from qkv.masks.base import Mask
from qkv.masks.grid import BOOLEANS_ONLY, NumpyGrid, TorchGrid, describe, is_tensor, to_numpy

if TYPE_CHECKING:
    from collections.abc import Callable

    from qkv.masks.grid import Extent, Grid, Region

_FUNCTION = "function (of a Predicate mask)"
_WANTED = "a function of (batch, head, query, key) that returns booleans"


class Predicate(Mask):
    """A query attends to a key when `function(batch, head, query, key)` is True, in absolute positions.

    Args:
        function: is given integer tensors of shapes (batch, 1, 1, 1), (1, heads, 1, 1), (1, 1, rows, 1) and
            (1, 1, 1, keys), where rows and keys may be any part of the sequence, and returns booleans that broadcast
            to (batch, heads, rows, keys). Write `&`, `|` and `~`, not `and`, `or`, `not` and `if`.

    >>> strided = Predicate(lambda batch, head, query, key: (query - key) % 3 == 0)
    >>> strided.population(len_q=5, len_k=7)
    12

    Counts and pictures call it with numpy arrays instead, or, where it cannot take these, cell by cell.
    """

    __slots__ = ("function",)
    function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise OptionTypeError(complaint(_FUNCTION, describe(function), _WANTED))
        self._set_fields(("Predicate",), function=function)

    def __repr__(self) -> str:
        return f"Predicate({getattr(self.function, '__qualname__', None) or repr(self.function)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predicate) and self.function == other.function

    def __hash__(self) -> int:
        return hash((Predicate, self.function))

    def _cells(self, grid: Grid) -> Any:
        if isinstance(grid, NumpyGrid):
            return self._cells_in_numpy(grid)
        try:
            result = self._call(grid)
        except RuntimeError as error:
            if "Boolean value of Tensor" not in str(error):
                raise
            hint = "join conditions with &, | and ~ instead of and, or, not, if, min and max"
            raise MaskError(complaint(_FUNCTION, "a branch on a whole tensor", _WANTED, hint)) from error
        if isinstance(result, bool):  # a constant
            result = grid.to_array(result)
        if not is_tensor(result) or "bool" not in str(result.dtype):
            raise _not_boolean(result)
        return grid.to_array(_as_four_dimensions(result, grid))

    def _cut(self, extent: Extent, region: Region) -> Mask:
        function, b0, h0, i0, j0 = self.function, region.batch[0], region.heads[0], region.rows[0], region.keys[0]
        return Predicate(lambda batch, head, query, key: function(batch + b0, head + h0, query + i0, key + j0))

    def _call(self, grid: Grid) -> Any:
        return self.function(grid.batches(), grid.heads(), grid.query(), grid.key())

    def _cells_in_numpy(self, grid: NumpyGrid) -> Any:
        result = self._try_call(grid)
        if result is None and "torch" in sys.modules:  # it may call torch's functions
            result = self._try_call(TorchGrid(grid.extent, grid.rows, grid.keys, None))
        return self._cell_by_cell(grid) if result is None else _as_four_dimensions(result, grid)

    def _try_call(self, grid: Grid) -> Any:
        try:
            result = to_numpy(self._call(grid))
        except Exception:  # a function that cannot take arrays may fail in any way
            return None
        return result if result.dtype == bool else None

    def _cell_by_cell(self, grid: NumpyGrid) -> Any:
        import numpy as np

        batch, heads, rows, keys = grid.shape
        cells = np.empty(grid.shape, dtype=bool)
        for b, h, i, j in np.ndindex(batch, heads, rows, keys):
            cells[b, h, i, j] = self._allows(b, h, grid.rows[0] + i, grid.keys[0] + j, grid.extent)
        return cells

    def _allows(self, batch: int, head: int, query: int, key: int, extent: Extent) -> bool:
        import numpy as np

        # numpy's integers, since ~ of their comparisons is a boolean, and Python's ~True is -2.
        position = [np.int64(index) for index in (batch, head, query, key)]
        try:
            result = self.function(*position)
        except Exception as error:
            if "torch" not in sys.modules:
                raise _failed(error) from error
            result = self._allows_in_torch(batch, head, query, key)
        if prod(getattr(result, "shape", ())) != 1:
            raise MaskError(complaint(_FUNCTION, describe(result), "one boolean for one position"))
        if not isinstance(result, bool) and "bool" not in str(getattr(result, "dtype", "")):
            raise _not_boolean(result)
        return bool(result)

    def _allows_in_torch(self, *indices: int) -> Any:
        """For a function that calls torch: the same with tensors of one position."""
        import torch

        position = [torch.tensor(p).view(1, 1, 1, 1) for p in indices]
        try:
            return self.function(*position)
        except Exception as error:
            raise _failed(error) from error


def _as_four_dimensions(result: Any, grid: Grid) -> Any:
    """The result with four dimensions, each full or 1."""
    shape = (1,) * (4 - result.ndim) + tuple(result.shape)
    if len(shape) != 4 or any(own not in (1, full) for own, full in zip(shape, grid.shape, strict=False)):
        wanted = f"one that broadcasts to (batch, heads, rows, keys) = {grid.shape}"
        raise MaskError(complaint(f"result of {_FUNCTION}", f"shape {tuple(result.shape)}", wanted))
    return result.reshape(shape)


def _not_boolean(result: Any) -> MaskTypeError:
    return MaskTypeError(complaint(f"result of {_FUNCTION}", describe(result), "booleans", BOOLEANS_ONLY))


def _failed(error: Exception) -> MaskError:
    return MaskError(complaint(_FUNCTION, f"{type(error).__name__}: {error}", _WANTED))
