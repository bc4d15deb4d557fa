"""Which token comes next, and what `generate` gives back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..inputs import compute_dtype
from ..shapes import Float, Int


class Generation(NamedTuple):
    """What was generated.

    tokens: the new ones only; a row that has stopped is filled with its stop token. lengths: how many of them each row
    made, its stop token included. scores: the sum of their log-probabilities under the model's own distribution, at
    temperature 1 and without filters. memory_bytes: what the model's caches held at the end.
    """

    tokens: Int[Tensor, "batch new"]
    lengths: Int[Tensor, " batch"]
    scores: Float[Tensor, " batch"]
    memory_bytes: int


def log_probabilities(logits: Float[Tensor, "*batch vocabulary"]) -> Float[Tensor, "*batch vocabulary"]:
    """log softmax, in float32 at least."""
    return torch.log_softmax(logits, dim=-1, dtype=compute_dtype(logits.dtype))


def pick(
    logs: Float[Tensor, "batch vocabulary"],
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " batch"]:
    """The most probable token at temperature 0, otherwise a drawn one: p_i ∝ exp(logs_i / temperature).

    >>> logs = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    >>> pick(logs), pick(logs, temperature=1.0, top_k=1)
    (tensor([0]), tensor([0]))
    """
    if temperature == 0.0:
        return logs.argmax(-1)
    return torch.multinomial(distribution(logs, temperature, top_k, top_p), 1, generator=generator).squeeze(-1)


def distribution(
    logs: Float[Tensor, "batch vocabulary"], temperature: float, top_k: int | None, top_p: float | None
) -> Float[Tensor, "batch vocabulary"]:
    """The probabilities that a token is drawn with: temperature first, then top_k, then top_p of what is left.

    top_k keeps the k most probable tokens, top_p the smallest set with at least that probability.

    >>> logs = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    >>> distribution(logs, 1.0, None, 0.7)
    tensor([[0.6250, 0.3750, 0.0000]], dtype=torch.float64)
    """
    # The largest becomes 0 first, so that a small temperature overflows to −inf and not to NaN.
    scores = logs.double()
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature
    scores, tokens = scores.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        scores[..., top_k:] = -torch.inf
    if top_p is not None and top_p < 1.0:
        kept = scores.softmax(-1)
        before = kept.cumsum(-1) - kept
        scores = scores.masked_fill(before >= top_p, -torch.inf)
    return torch.empty_like(scores).scatter_(-1, tokens, scores.softmax(-1))
