"""The native library and the torch operators built on it: the only package that imports the extension.

`available`, `reasons`, `isa` and `isas` need no torch. Functions that compute (`all_finite`,
`argmax_scores`, `softmax_attention`) take tensors and are loaded on first use. `count_executed` counts the work of the
kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .loader import (
    available,
    calls,
    chunk_tokens,
    count_executed,
    isa,
    isas,
    reasons,
    reasons_for_one_thread,
    refused_isas,
    reset_calls,
)

if TYPE_CHECKING:
    from .kernels import all_finite, argmax_scores, softmax_attention

__all__ = [
    "all_finite",
    "argmax_scores",
    "available",
    "calls",
    "chunk_tokens",
    "count_executed",
    "isa",
    "isas",
    "reasons",
    "reasons_for_one_thread",
    "refused_isas",
    "reset_calls",
    "softmax_attention",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'qkv.ops' has no attribute {name!r}; dir(qkv.ops) lists the names")
    from . import kernels

    function = getattr(kernels, name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    return sorted(__all__)
