"""What torch.compile sees of a decoder's step: one operator that writes to one small tensor.

    qkv::decode(query, key, value, handle, …) -> (batch, heads_q, n, value_width)

handle is int64 (1 + batch,): the number of a cache, and how many tokens each of its rows holds. The operator is a
function of its arguments: it brings the cache back to those lengths, appends, attends and writes the new lengths
into the handle. That makes steps on one cache depend on each other in the graph, and steps on different ones not.
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
    "Tensor? sink=None, Tensor? bias=None, Tensor? keep=None, bool hard=False, Tensor? lengths=None, "
    "bool left=False) -> Tensor"
)
_CACHES: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count(1)
_LIBRARY = torch.library.Library("qkv", "DEF")


def register(cache: Any) -> int:
    """A number that finds the cache as long as it lives."""
    number = next(_NUMBERS)
    _CACHES[number] = cache
    return number


def cache_of(handle: Tensor) -> Any:
    """The cache that a handle belongs to."""
    cache = _CACHES.get(int(handle[0]))
    if cache is None:
        raise OptionError(complaint("handle", "that of a cache that is gone", "the handle of a cache that lives"))
    return cache


def lengths_of(handle: Tensor, held: np.ndarray) -> np.ndarray:
    """The lengths that a handle asks for, beside those that its cache has."""
    asked = handle[1:].numpy(force=True)
    if asked.shape != held.shape or (asked < 0).any() or (asked > held).any():
        hint = "use cache.handle as it is now"
        raise OptionError(complaint("handle", f"lengths {asked.tolist()}", f"at most {held.tolist()}", hint))
    return asked.copy()


def set_implementation(function: Callable[..., Tensor]) -> None:
    """What runs when the operator is called on tensors that hold numbers."""
    _LIBRARY.impl("decode", function, "CompositeExplicitAutograd")


def _fake(query: Tensor, key: Tensor, value: Tensor, handle: Tensor, *rest: Any, **options: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


_LIBRARY.define(SCHEMA)
torch.library.register_fake("qkv::decode", _fake, lib=_LIBRARY)
decode = torch.ops.qkv.decode.default
