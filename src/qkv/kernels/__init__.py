"""The only room that sees the native library.

Asking what there is needs no torch: `available`, `reasons`, `isa`, `isas`, `geometry`. What computes, `all_finite` and
`argmax_scores`, takes tensors and loads on first touch. `counted` counts what the kernels execute meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .capability import (
    available,
    calls,
    isa,
    isas,
    reasons,
    reasons_for_one_thread,
    refused_isas,
    reset_calls,
)
from .counted import chunk_tokens, counted, geometry

if TYPE_CHECKING:
    from .argmax import argmax_scores
    from .attend import attend_plain
    from .finite import all_finite

_HOME_OF_NAME = {"all_finite": "finite", "argmax_scores": "argmax", "attend_plain": "attend"}

__all__ = [
    "all_finite",
    "argmax_scores",
    "attend_plain",
    "available",
    "calls",
    "chunk_tokens",
    "counted",
    "geometry",
    "isa",
    "isas",
    "reasons",
    "reasons_for_one_thread",
    "refused_isas",
    "reset_calls",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF_NAME:
        raise AttributeError(f"module 'qkv.kernels' has no attribute {name!r}; dir(qkv.kernels) lists what there is")
    from importlib import import_module

    function = getattr(import_module(f".{_HOME_OF_NAME[name]}", __name__), name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    return sorted(__all__)
