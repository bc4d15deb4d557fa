"""What a decoder remembers: keys and values in pages that never move."""

from .kv import KVCache as KVCache

__all__ = ["KVCache"]
