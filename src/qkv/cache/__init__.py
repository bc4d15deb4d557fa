"""Caches for decoding: `KVCache` stores keys and values in pages, `LinearState` stores their sums."""

from .eviction import FirstLast as FirstLast
from .eviction import HeavyHitters as HeavyHitters
from .eviction import Policy as Policy
from .eviction import Select as Select
from .eviction import SnapKV as SnapKV
from .kv import KVCache as KVCache
from .latents import decode_latents as decode_latents
from .prefixes import Prefix as Prefix
from .state import LinearState as LinearState

__all__ = [
    "FirstLast",
    "HeavyHitters",
    "KVCache",
    "LinearState",
    "Policy",
    "Prefix",
    "Select",
    "SnapKV",
    "decode_latents",
]
