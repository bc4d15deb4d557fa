"""The native library and the torch operators built on it: the only package that imports the extension.

`available`, `reasons`, `isa`, `isas` and `geometry` need no torch. Functions that compute (`all_finite`,
`argmax_scores`, `attend_plain`) take tensors and are loaded on first use. `counted` counts what the kernels execute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .loader import (
    available,
    calls,
    chunk_tokens,
    counted,
    geometry,
    isa,
    isas,
    reasons,
    reasons_for_one_thread,
    refused_isas,
    reset_calls,
)

if TYPE_CHECKING:
    from .kernels import all_finite, argmax_scores, attend_plain

_KERNELS = ("all_finite", "argmax_scores", "attend_plain")

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
    if name not in _KERNELS:
        raise AttributeError(f"module 'qkv.ops' has no attribute {name!r}; dir(qkv.ops) lists the names")
    from . import kernels

    function = getattr(kernels, name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    return sorted(__all__)
