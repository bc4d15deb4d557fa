"""Caches for decoding: `KVCache` stores keys and values in pages, `LinearState` stores their sums."""

from .kv import KVCache as KVCache
from .state import LinearState as LinearState

__all__ = ["KVCache", "LinearState"]
