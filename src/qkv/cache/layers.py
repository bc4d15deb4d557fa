"""The caches of a model's layers, appended to together: one native call writes the new tokens of all of them."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..shapes import Int
from .kv import Compacted, KVCache
from .pages import address_of

# The last result of `_page_numbers` for the cache of the first layer: it changes when a table grows, not at every step.
_NUMBERS: WeakKeyDictionary[KVCache, tuple[list[Any], Tensor]] = WeakKeyDictionary()
_TOKEN_TYPE = torch.float32, torch.device("cpu")


@contextlib.contextmanager
def appending(
    caches: Sequence[KVCache], n: int, counts: np.ndarray | None, check: Callable[[], None]
) -> Iterator[Int[Tensor, "layers 12"]]:
    """Reserve pages for n (or counts[b]) more tokens in every layer; at the end, the tokens are visible.

    If `check` or what runs inside raises, no cache has changed. All locks are held; `check` is called first.

    Returns:
        What native code is told of each layer's cache: see kCacheNumbers in native/program_bindings.cpp.
    """
    locks = [cache.lock for cache in caches]
    for lock in locks:
        lock.acquire()
    try:
        check()
        before = [None if (sums := cache.importance_sums) is None else sums.clone() for cache in caches]
        ready: list[Compacted | None] = []
        try:
            for cache in caches:
                cache.reserve(n, counts)
            counted = [cache.count_from(n, counts) for cache in caches]
            yield _page_numbers(caches, counted)
            for cache in caches:
                ready.append(cache.prepare(n, counts))
        except BaseException:
            for cache, evicted in zip(caches, ready, strict=False):
                cache.discard(evicted)
            for cache, sums in zip(caches, before, strict=True):
                cache.cancel(sums)
            raise
        for cache, evicted in zip(caches, ready, strict=True):
            cache.token_type = cache.token_type or _TOKEN_TYPE
            cache.advance(n, counts, evicted)
    finally:
        for lock in locks:
            lock.release()


def _page_numbers(caches: Sequence[KVCache], counted: list[Any]) -> Tensor:
    # Arrays are compared by identity, and kept, so that their addresses stay.
    arrays = [each for cache in caches for each in cache.native_arrays] + [each for pair in counted for each in pair]
    known = _NUMBERS.get(caches[0])
    if known is None or len(known[0]) != len(arrays) or not all(map(operator.is_, known[0], arrays)):
        rows = []
        for cache, (sums, first) in zip(caches, counted, strict=True):
            columns = (0, 0) if sums is None else (sums.data_ptr(), sums.shape[2])
            rows.append((*cache.native_numbers, *columns, 0 if first is None else address_of(first)))
        known = _NUMBERS[caches[0]] = arrays, torch.tensor(rows)
    return known[1]
