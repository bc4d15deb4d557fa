"""The memories of a stack's layers stay in step: a call appends to all of them, or to none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..errors import OptionError, OptionTypeError, complaint
from ..memory import KVCache, LinearState


def check_in_step(memory: list[Any]) -> None:
    """Refuse memories that are not one a layer, or that do not hold the same number of tokens."""
    for layer in memory:
        if not isinstance(layer, KVCache | LinearState):
            wanted = "a qkv.KVCache or a qkv.LinearState for each layer"
            raise OptionTypeError(complaint("memory", type(layer).__name__, wanted, "model.memory(batch) makes them"))
    if len({id(layer) for layer in memory}) != len(memory):
        raise OptionError(complaint("memory", "one memory for several layers", "one for each"))
    first = memory[0].lengths.tolist()
    for number, layer in enumerate(memory):
        lengths = layer.lengths.tolist()
        if lengths != first:
            hint = "reset() or crop() all of them to the same length"
            raise OptionError(
                complaint("memory", f"{lengths} tokens in layer {number}", f"{first}, as in layer 0", hint)
            )


@contextlib.contextmanager
def all_or_none(memory: list[KVCache | LinearState]) -> Iterator[None]:
    """An error gives back what layers before it appended. A LinearState cannot: the next call finds it out of step."""
    before = [layer._lengths.copy() for layer in memory if isinstance(layer, KVCache)]
    try:
        yield
    except BaseException:
        caches = [layer for layer in memory if isinstance(layer, KVCache)]
        for layer, lengths in zip(caches, before, strict=True):
            with layer._pool.lock, contextlib.suppress(OptionError):  # a ring may have let go what came before
                if len(lengths) == layer.batch:
                    layer._rewind(lengths)
        raise
