"""Hugging Face models on qkv: `register()` makes `attn_implementation="qkv"` known, `cache(model)` is their memory."""

from __future__ import annotations

from ..errors import OptionError, complaint

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:  # pragma: no cover - transformers is there whenever this is tested
    raise OptionError(complaint("qkv.hf", "no transformers", "the extra", "pip install 'qkv[hf]'")) from error

from .cache import PagedCache, PagedEncoderDecoderCache, cache
from .interface import served, served_reset
from .registry import register

__all__ = ["PagedCache", "PagedEncoderDecoderCache", "cache", "register", "served", "served_reset"]
