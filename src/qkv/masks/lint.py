"""Warnings about masks that look inverted or superfluous."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from qkv.masks.base import Mask
from qkv.masks.count import BLOCK_CELLS, count, reach
from qkv.masks.dense import Dense
from qkv.masks.draw import EXAMPLE_LENGTH
from qkv.masks.grid import Extent, NumpyGrid
from qkv.masks.padding import Padding

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
        longest = mask._example_length()
        extent = mask.extent_of(None, None, len_q, len_k or (longest + 1 if longest else None), EXAMPLE_LENGTH)
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
    for part in mask._inner():
        yield from _leaves(part, extent)
    if isinstance(mask, Padding) and mask.lengths is None:
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
        found, looks, other = "no batch row keeps", "key_padding_mask (True = ignore)", "drop"
    else:
        found, looks, other = "every batch row drops", "an attention mask (True = attend)", "keep"
    yield (
        f"In Padding({mask._given[0]}=...) {found} its first key while most keep their last: this looks "
        f"like {looks}, so use {other}= instead, unless padding is on the left."
    )


def _dense(mask: Dense, extent: Extent) -> Iterator[str]:
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
