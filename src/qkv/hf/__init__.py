"""Hugging Face models on qkv: `register()` makes `attn_implementation="qkv"` known, `cache(model)` is their cache."""

from __future__ import annotations

from ..errors import OptionError, complaint

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:  # pragma: no cover - transformers is there whenever this is tested
    raise OptionError(complaint("qkv.hf", "no transformers", "the extra", "pip install 'qkv[hf]'")) from error

from .caches import PagedCache, PagedEncoderDecoderCache, cache
from .capture import CapturedAttention, HeadStatistics, capture, head_statistics
from .checkpoint import Loaded, load
from .conversion import Conversion, convert
from .interface import layer_calls, register, reset_layer_calls

__all__ = [
    "CapturedAttention",
    "Conversion",
    "HeadStatistics",
    "Loaded",
    "PagedCache",
    "PagedEncoderDecoderCache",
    "cache",
    "capture",
    "convert",
    "head_statistics",
    "layer_calls",
    "load",
    "register",
    "reset_layer_calls",
]
