"""The torch operator of a decode step, for torch.compile: it appends to a cache and attends.

    qkv::decode(query, key, value, handle, …) -> (batch, heads_q, n, value_width)

handle is int64 (1 + batch,): the number of a cache, and the number of tokens in each of its rows. The operator is a
function of its arguments: it crops the cache to those lengths, appends, attends and writes the new lengths into the
handle. Steps on one cache therefore depend on each other in the graph, and steps on different caches do not.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, complaint

SCHEMA = (
    "decode(Tensor query, Tensor key, Tensor value, Tensor(a!) handle, float? scale=None, float? softcap=None, "
    "Tensor? sink=None, Tensor? bias=None, Tensor? keep=None, bool argmax=False, Tensor? lengths=None, "
    "bool left=False) -> Tensor"
)
_CACHES: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count(1)
_LIBRARY = torch.library.Library("qkv", "DEF")


def register_cache(cache: Any) -> int:
    """A number for the cache, valid as long as the cache exists."""
    number = next(_NUMBERS)
    _CACHES[number] = cache
    return number


def cache_of(handle: Tensor) -> Any:
    """The cache of a handle."""
    cache = _CACHES.get(int(handle[0]))
    if cache is None:
        raise OptionError(
            complaint(
                "handle",
                "the handle of a deleted cache",
                "the handle of an existing cache",
                "keep a reference to the cache",
            )
        )
    return cache


def requested_lengths(handle: Tensor, current: np.ndarray) -> np.ndarray:
    """The lengths in a handle; OptionError unless they are at most the current ones of its cache."""
    lengths = handle[1:].numpy(force=True)
    if lengths.shape != current.shape or (lengths < 0).any() or (lengths > current).any():
        hint = "use cache.handle as it is now"
        raise OptionError(
            complaint("handle", f"lengths {lengths.tolist()}", f"lengths of at most {current.tolist()}", hint)
        )
    return lengths.copy()


def set_implementation(function: Callable[..., Tensor]) -> None:
    """Register the function that runs the operator on tensors with data."""
    _LIBRARY.impl("decode", function, "CompositeExplicitAutograd")


def _fake(query: Tensor, key: Tensor, value: Tensor, handle: Tensor, *rest: Any, **options: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


_LIBRARY.define(SCHEMA)
torch.library.register_fake("qkv::decode", _fake, lib=_LIBRARY)
decode = torch.ops.qkv.decode.default
