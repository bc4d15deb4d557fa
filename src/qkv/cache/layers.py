"""The caches of a model's layers, appended to together: one native call writes the new tokens of all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..shapes import Int
from .kv import KVCache
from .pages import PageTable

# The last result of `_page_numbers` for the cache of the first layer: it changes when a table grows, not at every step.
_NUMBERS: WeakKeyDictionary[KVCache, tuple[list[PageTable], Tensor]] = WeakKeyDictionary()
_TOKEN_TYPE = torch.float32, torch.device("cpu")


@contextlib.contextmanager
def appending(
    caches: Sequence[KVCache], n: int, counts: np.ndarray | None, check: Callable[[], None]
) -> Iterator[Int[Tensor, "layers 6"]]:
    """Reserve pages for n (or counts[b]) more tokens in every layer; at the end, the tokens are visible.

    If `check` or what runs inside raises, no cache has changed. All locks are held; `check` is called first.

    Returns:
        What native code is told of each layer's cache: address of the table, slots, then the page layout.
    """
    locks = [cache.lock for cache in caches]
    for lock in locks:
        lock.acquire()
    try:
        check()
        try:
            for cache in caches:
                cache.reserve(n, counts)
            yield _page_numbers(caches)
        except BaseException:
            for cache in caches:
                cache.cancel()
            raise
        for cache in caches:
            cache.token_type = cache.token_type or _TOKEN_TYPE
            cache.advance(n, counts)
    finally:
        for lock in locks:
            lock.release()


def _page_numbers(caches: Sequence[KVCache]) -> Tensor:
    tables = [cache.page_table for cache in caches]
    known = _NUMBERS.get(caches[0])
    if known is None or known[0] != tables:
        layouts = [cache.page_layout.native_args for cache in caches]
        rows = [(table.address, table.slots, *layout) for table, layout in zip(tables, layouts, strict=True)]
        known = _NUMBERS[caches[0]] = tables, torch.tensor(rows)
    return known[1]
