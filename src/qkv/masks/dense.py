"""`Dense`: any boolean tensor, for masks that have no shorter description."""

from __future__ import annotations

from typing import Any

from qkv.errors import MaskError, complaint
from qkv.masks.base import Mask, Sizes
from qkv.masks.grid import Extent, Grid, as_booleans, brief_repr, shape_of

_KEEP, _SHAPE = "keep (of a Dense mask)", "(..., len_q, len_k)"


class Dense(Mask):
    """True attends, cell by cell; the shape broadcasts to the scores, aligned at the right.

    Args:
        keep: booleans, a tensor, an array or lists. The scores are (batch, heads, len_q, len_k) when the queries have
            four dimensions, (batch, len_q, len_k) when they have three and (len_q, len_k) when they have two; `keep`
            may have fewer dimensions, and 1 in place of any size. Three dimensions with four-dimensional queries are
            (heads, len_q, len_k), as always in broadcasting, even if batch would fit too.

    >>> import numpy as np
    >>> keep = np.tri(3, 5, 2, dtype=bool)
    >>> Dense(keep).population(batch=2, heads=7, len_q=3, len_k=5)
    168
    >>> Dense(keep.astype(float))
    Traceback (most recent call last):
    qkv.errors.MaskTypeError: keep (of a Dense mask): got float64 values of shape (3, 5), wanted booleans of \
shape (..., len_q, len_k), True where a query may attend. Hint: masks are bool; use bias= for additive; \
x != 0 makes booleans of 0 and 1.

    `nn.Transformer` has True where attention is not allowed: `Dense(~mask)`.
    """

    __slots__ = ("keep",)
    keep: Any

    def __init__(self, keep: Any) -> None:
        super().__init__(keep=as_booleans(_KEEP, keep, _SHAPE))

    @classmethod
    def borrowed(cls, keep: Any) -> Dense:
        """The mask of a tensor that is not copied: for one call, in which nothing writes to it."""
        mask = cls.__new__(cls)
        Mask.__init__(mask, keep=as_booleans(_KEEP, keep, _SHAPE, copy=False))
        return mask

    def __repr__(self) -> str:
        return f"Dense({brief_repr(self.keep)})"

    def cells(self, grid: Grid) -> Any:
        return grid.cut(self.keep.reshape(self._four_sizes(grid.extent.dims)))

    def _resolve(self, extent: Extent, offsets: tuple[int, ...]) -> Mask:
        shape, scores = shape_of(self.keep), extent.scores
        tail = scores[len(scores) - len(shape) :] if len(shape) <= len(scores) else ()
        if len(tail) != len(shape) or any(own not in (1, size) for own, size in zip(shape, tail, strict=False)):
            names = {4: "(batch, heads, len_q, len_k)", 3: "(batch, len_q, len_k)", 2: "(len_q, len_k)"}[extent.dims]
            wanted = f"one that broadcasts to {names} = {scores}, aligned at the right"
            hint = "insert dimensions of 1 with keep[:, None]" if len(shape) > 2 else ""
            raise MaskError(complaint(_KEEP, f"shape {shape}", wanted, hint))
        return self

    def _four_sizes(self, dims: int) -> tuple[int, int, int, int]:
        """The shape as (batch, heads, len_q, len_k); heads is 1 for a call without heads."""
        shape = (1,) * (dims - self.keep.ndim) + shape_of(self.keep)
        batch = shape[0] if dims >= 3 else 1
        return batch, shape[1] if dims == 4 else 1, shape[-2], shape[-1]

    def _depends_on_keys_only(self, extent: Extent) -> bool:
        return self._four_sizes(extent.dims)[1:3] == (1, 1)

    def _own_sizes(self) -> Sizes:
        shape = shape_of(self.keep)[-4:]
        batch, heads, len_q, len_k = (None if size == 1 else size for size in (1,) * (4 - len(shape)) + shape)
        return batch, heads, len_q, len_k
