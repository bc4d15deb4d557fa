"""Attention over several processes or machines, connected by torch.distributed."""

from __future__ import annotations

from ..cost.communication import Link
from .cache import KVCache
from .decoding import decode
from .functional import attention, explain
from .modules import parallelize
from .strategy import measure
from .transfer import bytes_sent

__all__ = ["KVCache", "Link", "attention", "bytes_sent", "decode", "explain", "measure", "parallelize"]
