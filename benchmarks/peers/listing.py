"""The incremental attention of document 003, problem 4, as it should have read: the "before" of this figure.

Corrected: scaled by 1/√k, the cache is returned, and the multi-query listing reads `bhn,bnv->bhv` (its output
projection `bhv,hvd->bd`). Only the attention is measured, without the listings' projections.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import Peer, Step, Turn


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
    name = "list"
    title = "the documents' listing, corrected; torch.cat, einsum, no projections"

    def refuses(self, step: Step, storage: str) -> str | None:
        grouped = step.group > 1 and step.key.shape[1] > 1
        return super().refuses(step, storage) or ("the documents list MHA and MQA only" if grouped else None)

    def prepare(self, step: Step, storage: str) -> Turn:
        query = step.query[:, :, 0]
        if step.group == 1:
            given = (query, step.key[:, :, 0], step.value[:, :, 0], step.past_key, step.past_value)
            return Turn(lambda: multihead(*given))
        shared = (query, step.key[:, 0, 0], step.value[:, 0, 0], step.past_key[:, 0], step.past_value[:, 0])
        return Turn(lambda: multiquery(*shared))

    def answer(self, out: Any) -> Tensor:
        return out[0].unsqueeze(2)


PEERS = [Listing()]
