"""`Predicate`: any rule that can be written as a function of positions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import add
from typing import Any

from qkv.errors import MaskError, MaskTypeError, OptionTypeError, complaint
from qkv.masks.base import Mask
from qkv.masks.grid import BOOLEANS_ONLY, Grid, NumpyGrid, TorchGrid, describe, is_tensor, to_numpy

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
    _equal_by_fields = True
    function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise OptionTypeError(complaint(_FUNCTION, describe(function), _WANTED))
        self._set_fields(_signature=("Predicate",), function=function)

    def __repr__(self) -> str:
        return f"Predicate({getattr(self.function, '__qualname__', None) or repr(self.function)})"

    def cells(self, grid: Grid) -> Any:
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

    def _call(self, grid: Grid) -> Any:
        return self.function(grid.batches(), grid.heads(), grid.query(), grid.key())

    def _cells_in_numpy(self, grid: NumpyGrid) -> Any:
        import numpy as np

        torch_grid = TorchGrid(grid.extent, grid.rows, grid.keys).over(grid.extent, grid.region)
        for each in (grid, torch_grid) if "torch" in sys.modules else (grid,):  # it may call torch's functions
            try:
                result = to_numpy(self._call(each))
            except Exception:  # a function that cannot take arrays may fail in any way
                continue
            if result.dtype == bool:
                return _as_four_dimensions(result, grid)
        cells = np.empty(grid.shape, dtype=bool)
        first = [start for start, _ in grid.region]
        for place in np.ndindex(*grid.shape):
            try:
                # numpy's integers, since ~ of their comparisons is a boolean, and Python's ~True is -2.
                result = self.function(*map(np.int64, map(add, first, place)))
            except Exception as error:
                given = f"{type(error).__name__}: {error}"
                raise MaskError(complaint(_FUNCTION, given, _WANTED)) from error
            if not isinstance(result, bool) and str(getattr(result, "dtype", "")) not in ("bool", "torch.bool"):
                raise _not_boolean(result)
            cells[place] = bool(result)
        return cells


def _as_four_dimensions(result: Any, grid: Grid) -> Any:
    """The result with four dimensions, each full or 1."""
    shape = (1,) * (4 - result.ndim) + tuple(result.shape)
    if len(shape) != 4 or any(own not in (1, full) for own, full in zip(shape, grid.shape, strict=False)):
        wanted = f"one that broadcasts to (batch, heads, rows, keys) = {grid.shape}"
        raise MaskError(complaint(f"result of {_FUNCTION}", f"shape {tuple(result.shape)}", wanted))
    return result.reshape(shape)


def _not_boolean(result: Any) -> MaskTypeError:
    return MaskTypeError(complaint(f"result of {_FUNCTION}", describe(result), "booleans", BOOLEANS_ONLY))
