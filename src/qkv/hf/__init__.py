"""Run models of transformers on qkv: `register()` adds `attn_implementation="qkv"`, `cache(model)` creates a cache."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from ..errors import MissingExtra

_NAMES = {
    "caches": "PagedCache PagedEncoderDecoderCache cache load_cache save_cache",
    "checkpoint": "Loaded load",
    "conversion": "Conversion convert",
    "interface": "CapturedAttention HeadStatistics capture head_statistics layer_calls register reset_layer_calls",
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_MODULE_OF_NAME)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from .caches import PagedCache, PagedEncoderDecoderCache, cache, load_cache, save_cache
    from .checkpoint import Loaded, load
    from .conversion import Conversion, convert
    from .interface import (
        CapturedAttention,
        HeadStatistics,
        capture,
        head_statistics,
        layer_calls,
        register,
        reset_layer_calls,
    )


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'qkv.hf' has no attribute {name!r}; it has {', '.join(__all__)}")
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtra(f"qkv.hf.{name}", "transformers", "hf")
    thing = getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
    globals()[name] = thing
    return thing


def __dir__() -> list[str]:
    return [] if importlib.util.find_spec("transformers") is None else sorted(__all__)
