"""Pages of keys and values in the native library: writing tokens and attending to them.

The functions are the library's own, bound here once: a step of a decoder calls both, and a layer of Python around
each would cost as much as the call. They take addresses and sizes, which `qkv.memory` and `qkv.decoding` have checked;
None stands for a function that cannot be had, and `reasons` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .capability import load

_native = load().native

memory_append: Callable[..., None] | None = None if _native is None else _native.memory_append
memory_attend: Callable[..., None] | None = None if _native is None else _native.memory_attend
# A step that was checked: `fits` says whether tensors look the same, `run` appends, attends and counts.
NativeStep: Callable[..., Any] | None = None if _native is None else _native.Step


def advise_huge(address: int, count: int) -> None:
    """Ask for large pages of memory behind these bytes; without the native library nothing is asked."""
    if _native is not None:
        _native.advise_huge(address, count)


def populate(address: int, count: int) -> None:
    """Have the system find the memory behind these bytes now; what is in it stays. Without the library, later."""
    if _native is not None:
        _native.populate(address, count)
