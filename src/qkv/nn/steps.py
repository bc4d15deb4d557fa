"""The caches of a stack's layers stay in step: a call appends to all of them, or to none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..cache import KVCache, LinearState
from ..errors import OptionError, OptionTypeError, complaint


def check_in_step(cache: list[Any]) -> None:
    """Refuse caches that are not one a layer, or that do not hold the same number of tokens."""
    for layer in cache:
        if not isinstance(layer, KVCache | LinearState):
            wanted = "a qkv.KVCache or a qkv.LinearState for each layer"
            raise OptionTypeError(complaint("cache", type(layer).__name__, wanted, "model.memory(batch) makes them"))
    if len({id(layer) for layer in cache}) != len(cache):
        raise OptionError(complaint("cache", "one cache for several layers", "one for each"))
    first = cache[0].lengths.tolist()
    for number, layer in enumerate(cache):
        lengths = layer.lengths.tolist()
        if lengths != first:
            hint = "reset() or crop() all of them to the same length"
            raise OptionError(
                complaint("cache", f"{lengths} tokens in layer {number}", f"{first}, as in layer 0", hint)
            )


@contextlib.contextmanager
def all_or_none(cache: list[KVCache | LinearState]) -> Iterator[None]:
    """An error gives back what layers before it appended. A LinearState cannot: the next call finds it out of step."""
    before = [layer._lengths.copy() for layer in cache if isinstance(layer, KVCache)]
    try:
        yield
    except BaseException:
        caches = [layer for layer in cache if isinstance(layer, KVCache)]
        for layer, lengths in zip(caches, before, strict=True):
            with layer._pool.lock, contextlib.suppress(OptionError):  # a ring may have let go what came before
                if len(lengths) == layer.batch:
                    layer._rewind(lengths)
        raise
