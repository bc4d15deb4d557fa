"""Attention over many machines: torch.distributed moves the tensors, and qkv says which and when."""

from __future__ import annotations

from ..cost.links import Link
from .api import attention
from .cache import KVCache
from .choice import explain
from .decoding import decode
from .links import measure
from .modules import parallelize

__all__ = ["KVCache", "Link", "attention", "decode", "explain", "measure", "parallelize"]
