"""Hugging Face models on qkv: `register()` makes `attn_implementation="qkv"` known, `cache(model)` is their cache."""

from __future__ import annotations

from ..errors import OptionError, complaint

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:  # pragma: no cover - transformers is there whenever this is tested
    raise OptionError(complaint("qkv.hf", "no transformers", "the extra", "pip install 'qkv[hf]'")) from error

from .caches import PagedCache, PagedEncoderDecoderCache, cache
from .conversion import Conversion, convert
from .interface import served, served_reset
from .loading import Loaded, load
from .looking import Habits, Looked, habits, look
from .registry import register

__all__ = [
    "Conversion",
    "Habits",
    "Loaded",
    "Looked",
    "PagedCache",
    "PagedEncoderDecoderCache",
    "cache",
    "convert",
    "habits",
    "load",
    "look",
    "register",
    "served",
    "served_reset",
]
