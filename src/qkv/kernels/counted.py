"""What the native kernels execute, counted as they run, and the sizes of tiles that decide it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from ..cost.executed import Executed, Geometry
from ..errors import FormRefused
from .capability import load

_lock = threading.Lock()
_open_blocks = 0


def _unlock_in_child() -> None:
    """A thread that held the lock when the process was forked does not exist in the child."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


@contextmanager
def counted() -> Iterator[Executed]:
    """Count what native kernels execute inside the block; the numbers are there when it ends, by an error too.

    Rows, keys and widths that fill up tiles and vectors count like all others, and so do masked parts of tiles. Packing
    and what goes number by number (scaling, masking, the division) does not. The kernels are the same and give the same
    bits; outside of every block nothing counts, and nobody pays.

    The counters are the process's: a block counts the calls of every thread, as far as they run inside it, and a block
    inside a block counts for both. A call that was under way before the first block opened is not counted.

    >>> import torch, qkv
    >>> with counted() as work:
    ...     x = torch.ones(1, 1, 8, 16)
    ...     out = qkv.attention(x, x, x, form="decode")
    >>> work.value_flops, work.tiles  # 8 queries x 8 keys x 16 channels, on one page
    (2048, 1)
    """
    native = _native("kernels.counted")
    executed = Executed()
    before = _switched(native, 1)
    try:
        yield executed
    finally:
        for name, count in _switched(native, -1).items():
            setattr(executed, name, count - before[name])


def _switched(native: ModuleType, blocks: int) -> dict[str, int]:
    """The counters as a block opens (1) or ends (-1); the first and the last one turn the counting on and off."""
    global _open_blocks
    with _lock:
        counts = native.counts()
        _open_blocks += blocks
        native.count(_open_blocks > 0)
    return counts


def geometry() -> Geometry:
    """The sizes that the kernels use here, for `qkv.cost.tiles`.

    >>> geometry().page_tokens
    64
    """
    return Geometry(**_native("kernels.geometry").geometry())


def chunk_tokens(features: int) -> int:
    """Tokens in a chunk of the linear form; `geometry().chunk_tokens` without the rest."""
    return _native("kernels.chunk_tokens").chunk_tokens(features)


def _native(name: str) -> ModuleType:
    native = load().native
    if native is None:
        raise FormRefused(f"{name} needs the native library", load().reasons)
    return native
