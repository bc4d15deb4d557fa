"""Warnings about masks that look inverted or superfluous."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from qkv.masks.count import BLOCK_CELLS, count, reach
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
    found = list(_leaves(mask, extent))
    if extent.cells == 0 or not sized:
        return found  # what an example allows says nothing about the call
    small = extent.cells <= MAX_CELLS
    if (small or mask.band(extent) is not None) and count(mask, extent) == extent.cells:
        return [*found, "This mask allows everything: leave it out (mask=None) and save the work."]
    queries = extent.batch * extent.heads * extent.len_q
    if small and (empty := queries - reach(mask, extent, extent.heads).queries):
        found.append(
            f"{empty} of {queries} queries attend to nothing, so their output is exactly 0: if that is not "
            "meant, look for swapped True and False, a length of 0 or a wrong offset."
        )
    return found


def _leaves(mask: Mask, extent: Extent) -> Iterator[str]:
    if isinstance(mask, Joined):
        for part in mask.masks:
            yield from _leaves(part, extent)
    elif isinstance(mask, Padding) and mask.lengths is None:
        yield from _padding(mask, extent)
    elif isinstance(mask, Dense):
        yield from _dense(mask, extent)


def _padding(mask: Padding, extent: Extent) -> Iterator[str]:
    if extent.len_k < 2 or extent.batch == 0:
        return
    kept = mask.cells(NumpyGrid(extent, (0, 1), (0, extent.len_k)))[:, 0, 0]
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
    if min(shape[2:]) < 2 or prod(shape) > MAX_CELLS:
        return
    slabs = mask.cells(NumpyGrid(extent, (0, extent.len_q), (0, extent.len_k))).reshape(-1, *shape[2:])
    if len(slabs) == 0 or not (slabs == slabs[0]).all():
        return

    def is_causal(cells: Any) -> str:
        # The first query of a causal mask attends to the keys up to the offset.
        offset = int(cells[0].sum()) - 1
        if cells.all() or not (cells == np.tri(cells.shape[0], cells.shape[1], offset, dtype=bool)).all():
            return ""
        return "Causal()" if offset == 0 and cells.shape[0] == cells.shape[1] else f"Causal(offset={offset})"

    if call := is_causal(slabs[0]):
        yield f"This Dense mask is causal: use {call} instead, which stores nothing and skips what is masked."
    if call := is_causal(~slabs[0]):
        yield (
            "In this Dense mask each query attends only to later keys: it looks like "
            f"nn.Transformer's mask (True = not allowed), so use Dense(~mask) or {call}."
        )
