"""What a decoder remembers: keys and values in pages that never move, or their sums."""

from .kv import KVCache as KVCache
from .state import LinearState as LinearState

__all__ = ["KVCache", "LinearState"]
