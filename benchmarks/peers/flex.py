"""flex_attention, compiled: the query heads of a group by enable_gqa, no mask (one query sees the whole past)."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any

import torch

from . import Peer, Step, Turn


@functools.lru_cache(maxsize=1)
def _compiled(*signature: object) -> Callable[..., Any]:
    """Compiled anew for each shape and dtype, for torch gives up after eight of one function.

    fullgraph: what cannot be compiled is an error here, and not eager code under the name of flex.
    """
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


class Flex(Peer):
    name = "flex"
    title = "PyTorch flex_attention under torch.compile; joined likewise"

    def absent(self) -> str | None:
        return super().absent() or (None if shutil.which("g++") else "torch.compile needs a C++ compiler")

    def prepare(self, step: Step, storage: str) -> Turn:
        query, key, value, gqa = step.query, step.all_key, step.all_value, step.group > 1
        attend = _compiled(query.shape, key.shape, storage)
        return Turn(lambda: attend(query, key, value, enable_gqa=gqa))


PEERS = [Flex()]
