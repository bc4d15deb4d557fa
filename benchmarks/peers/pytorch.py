"""PyTorch's ways to decode: SDPA as users call it, SDPA over packed heads, flex_attention, and a listing in plain
operations."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from . import Peer, Step, TimedCall


class TorchSdpa(Peer):
    """Over past and new token in one contiguous tensor."""

    name = "sdpa"
    title = "PyTorch SDPA, enable_gqa; given past and new token joined"

    def prepare(self, step: Step, storage: str) -> TimedCall:
        query, key, value, gqa = step.query, step.all_key, step.all_value, step.group > 1
        return TimedCall(lambda: sdpa(query, key, value, enable_gqa=gqa))


class PackedSdpa(Peer):
    """The query heads of a group become query rows, so that each key is read once for all of them."""

    name = "pack"
    title = "PyTorch SDPA, the query heads of a group packed as rows; joined likewise"

    def refuses(self, step: Step, storage: str) -> str | None:
        return super().refuses(step, storage) or ("no heads to pack" if step.group == 1 else None)

    def prepare(self, step: Step, storage: str) -> TimedCall:
        query, key, value, group = step.query, step.all_key, step.all_value, step.group
        batch, heads, _, width = query.shape

        def run() -> Tensor:
            out = sdpa(query.view(batch, heads // group, group, width), key, value)
            return out.reshape(batch, heads, 1, width)

        return TimedCall(run)


@functools.lru_cache(maxsize=1)
def _compiled(*signature: object) -> Callable[..., Any]:
    """Compiled again for each shape and dtype, since torch stops compiling a function after eight of them.

    fullgraph: what cannot be compiled is an error, not eager code under the name of flex.
    """
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


class Flex(Peer):
    """Compiled, with enable_gqa and without a mask, since one query sees the whole past."""

    name = "flex"
    title = "PyTorch flex_attention under torch.compile; joined likewise"

    def absent(self) -> str | None:
        return super().absent() or (None if shutil.which("g++") else "torch.compile needs a C++ compiler")

    def prepare(self, step: Step, storage: str) -> TimedCall:
        query, key, value, gqa = step.query, step.all_key, step.all_value, step.group > 1
        attend = _compiled(query.shape, key.shape, storage)
        return TimedCall(lambda: attend(query, key, value, enable_gqa=gqa))


def multihead(q: Tensor, k: Tensor, v: Tensor, prev_k: Tensor, prev_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [b, h, k], cache [b, h, n, k] -> o [b, h, v], and the cache of n + 1."""
    new_k = torch.cat([prev_k, k.unsqueeze(2)], dim=2)
    new_v = torch.cat([prev_v, v.unsqueeze(2)], dim=2)
    logits = torch.einsum("bhk,bhnk->bhn", q, new_k) * q.shape[-1] ** -0.5
    weights = torch.nn.functional.softmax(logits, dim=-1)
    return torch.einsum("bhn,bhnv->bhv", weights, new_v), new_k, new_v


def multiquery(q: Tensor, k: Tensor, v: Tensor, prev_k: Tensor, prev_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q [b, h, k], k and v [b, k], cache [b, n, k] -> o [b, h, v], and the cache of n + 1."""
    new_k = torch.cat([prev_k, k.unsqueeze(1)], dim=1)
    new_v = torch.cat([prev_v, v.unsqueeze(1)], dim=1)
    logits = torch.einsum("bhk,bnk->bhn", q, new_k) * q.shape[-1] ** -0.5
    weights = torch.nn.functional.softmax(logits, dim=-1)
    return torch.einsum("bhn,bnv->bhv", weights, new_v), new_k, new_v


class Listing(Peer):
    """Incremental attention in plain torch operations, as textbooks list it: the cache is copied at each step.

    Only the attention is measured, without the listing's projections.
    """

    name = "list"
    title = "the textbook listing; torch.cat, einsum, no projections"

    def refuses(self, step: Step, storage: str) -> str | None:
        grouped = step.group > 1 and step.key.shape[1] > 1
        return super().refuses(step, storage) or ("the listing has MHA and MQA only" if grouped else None)

    def prepare(self, step: Step, storage: str) -> TimedCall:
        query = step.query[:, :, 0]
        if step.group == 1:
            given = (query, step.key[:, :, 0], step.value[:, :, 0], step.past_key, step.past_value)
            return TimedCall(lambda: multihead(*given))
        shared = (query, step.key[:, 0, 0], step.value[:, 0, 0], step.past_key[:, 0], step.past_value[:, 0])
        return TimedCall(lambda: multiquery(*shared))

    def answer(self, out: Any) -> Tensor:
        return out[0].unsqueeze(2)


PEERS = [TorchSdpa(), PackedSdpa(), Flex(), Listing()]
