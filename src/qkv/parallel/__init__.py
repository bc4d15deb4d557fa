"""Attention over many machines: torch.distributed moves the tensors, and qkv says which and when."""

from __future__ import annotations

from ..cost.communication import Link
from .cache import KVCache
from .decoding import decode
from .functional import attention
from .modules import parallelize
from .strategy import explain, measure

__all__ = ["KVCache", "Link", "attention", "decode", "explain", "measure", "parallelize"]
