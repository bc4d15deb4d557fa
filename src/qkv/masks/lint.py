"""Warnings about masks that look inverted or superfluous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkv.masks.count import BLOCK_CELLS, blocks, count
from qkv.masks.dense import Dense
from qkv.masks.draw import extent_of
from qkv.masks.grid import Extent, NumpyGrid
from qkv.masks.joined import Joined
from qkv.masks.padding import Padding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qkv.masks.base import Mask

MAX_CELLS = 16 * BLOCK_CELLS  # larger masks get only the warnings that need no cell


def lint(mask: Mask, extent: Extent | None = None) -> list[str]:
    """See `Mask.lint`.

    >>> from qkv.masks import Padding
    >>> Padding(lengths=[5, 5]).lint(Extent(2, 1, 5, 5))
    ['This mask allows everything: leave it out (mask=None) and save the work.']
    """
    sized = extent is not None
    if extent is None:
        _, _, len_q, len_k = mask._own_sizes()
        # One key more than the longest length: an example must not make the padding superfluous.
        extent = extent_of(mask, len_k=len_k or (mask._example_length() + 1 if mask._example_length() else None))
        sized = (len_q is not None and len_k is not None) or mask._depends_on_keys_only(extent)
    mask = mask.resolved(extent)
    mask.check_contents(extent)
    found = [sentence for leaf in _leaves(mask) for sentence in _leaf(leaf, extent)]
    if extent.cells == 0 or not sized:
        return found  # what an example allows says nothing about the call
    small = extent.cells <= MAX_CELLS
    if (small or mask.band(extent) is not None) and count(mask, extent) == extent.cells:
        return [*found, "This mask allows everything: leave it out (mask=None) and save the work."]
    if small:
        empty = _empty_rows(mask, extent)
        if empty:
            of = extent.batch * extent.heads * extent.len_q
            found.append(
                f"{empty} of {of} queries attend to nothing, so their output is exactly 0: if that is not "
                "meant, look for swapped True and False, a length of 0 or a wrong offset."
            )
    return found


def _leaves(mask: Mask) -> Iterator[Mask]:
    if isinstance(mask, Joined):
        for part in mask.masks:
            yield from _leaves(part)
    else:
        yield mask


def _leaf(mask: Mask, extent: Extent) -> Iterator[str]:
    if isinstance(mask, Padding) and mask.lengths is None:
        yield from _padding(mask)
    elif isinstance(mask, Dense):
        yield from _dense(mask, extent)


def _padding(mask: Padding) -> Iterator[str]:
    kept = mask._keep_array()
    if kept.shape[1] < 2 or kept.shape[0] == 0:
        return
    tails = ~kept[:, 0] & kept[:, -1]
    # With padding on the left, the longest row usually starts with a real key. With inverted right padding,
    # no row does: its longest row keeps nothing.
    if kept[:, 0].any() or 2 * int(tails.sum()) < len(kept) or not tails.any():
        return
    if mask.keep is not None:
        yield (
            "In Padding(keep=...) no batch row keeps its first key while most keep their last: this looks "
            "like key_padding_mask (True = ignore), so use drop= instead, unless padding is on the left."
        )
    else:
        yield (
            "In Padding(drop=...) every batch row drops its first key while most keep their last: this looks "
            "like an attention mask (True = attend), so use keep= instead, unless padding is on the left."
        )


def _dense(mask: Dense, extent: Extent) -> Iterator[str]:
    import numpy as np

    shape = mask._four_sizes(extent.dims)
    if min(shape[2:]) < 2 or shape[0] * shape[1] * shape[2] * shape[3] > MAX_CELLS:
        return
    grid = NumpyGrid(extent, (0, extent.len_q), (0, extent.len_k))
    slabs = mask._cells(grid).reshape(-1, *shape[2:])
    if len(slabs) == 0 or not (slabs == slabs[0]).all():
        return
    cells = slabs[0]
    # The first query of a causal mask attends to the keys up to the offset.
    offset = int(cells[0].sum()) - 1
    if not cells.all() and (cells == np.tri(shape[2], shape[3], offset, dtype=bool)).all():
        call = "Causal()" if offset == 0 and shape[2] == shape[3] else f"Causal(offset={offset})"
        yield f"This Dense mask is causal: use {call} instead, which stores nothing and skips what is masked."
    ahead = shape[3] - int(cells[0].sum())
    if cells.any() and (cells == ~np.tri(shape[2], shape[3], ahead - 1, dtype=bool)).all():
        call = "Causal()" if ahead == 1 and shape[2] == shape[3] else f"Causal(offset={ahead - 1})"
        yield (
            "In this Dense mask each query attends only to later keys: it looks like "
            f"nn.Transformer's mask (True = not allowed), so use Dense(~mask) or {call}."
        )


def _empty_rows(mask: Mask, extent: Extent) -> int:
    import numpy as np

    seen: Any = np.zeros((extent.batch, extent.heads, extent.len_q), dtype=bool)
    for rows, keys in blocks(extent):
        grid = NumpyGrid(extent, rows, keys)
        cells = np.broadcast_to(mask._cells(grid), grid.shape)
        seen[:, :, rows[0] : rows[1]] |= cells.any(axis=3)
    return int((~seen).sum())
