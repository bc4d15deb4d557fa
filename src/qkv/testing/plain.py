"""The plain dense computation in one dtype: what anybody would write, and what backends are compared with.

It is no oracle: it has the rounding errors that a straightforward computation has, which is what makes
it the measure for others. It is differentiable, and expects finite numbers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.similarity import Argmax, FeatureMap, Polynomial, Similarity, Softmax


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are made in: float32 for the half precisions."""
    return torch.float64 if dtype is torch.float64 else torch.float32


class Plain(NamedTuple):
    out: Tensor
    lse: Tensor | None
    weights: Tensor


def plain_dense(
    query: Tensor, key: Tensor, value: Tensor, attended: Tensor, similarity: Any = None, bias: Tensor | None = None
) -> Plain:
    """All scores at once, then softmax or the quotient, then one product with the values.

    query (..., len_q, width), key (..., len_k, width), value (..., len_k, width_v) with 2, 3 or 4
    dimensions, attended boolean (..., len_q, len_k). float16 and bfloat16 are computed in float32.

    >>> x = torch.eye(2)
    >>> plain_dense(x, x, x, torch.tensor([[True, False], [False, False]])).out
    tensor([[1., 0.],
            [0., 0.]])
    """
    dtype = query.dtype
    q, k, v = (t.to(arithmetic(dtype)) for t in (query, key, value))
    if q.dim() == 4 and k.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    similarity = Softmax() if similarity is None else similarity
    if isinstance(similarity, Softmax):
        weights, lse = _softmax(q, k, attended, similarity, bias)
    else:
        weights, lse = _ratio(q, k, attended, similarity), None
    return Plain((weights @ v).to(dtype), lse, weights.to(dtype))


def _softmax(q: Tensor, k: Tensor, attended: Tensor, similarity: Softmax, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-1, -2) * similarity.scale_for(q.shape[-1])
    if similarity.softcap is not None:
        scores = similarity.softcap * torch.tanh(scores / similarity.softcap)
    if bias is not None:
        scores = scores + torch.where(bias == -math.inf, 0.0, bias)
    empty = ~attended.any(-1, keepdim=True)
    # An empty row gets scores of 0 and is cleared afterwards: a softmax of −inf alone would be NaN.
    scores = torch.where(attended, scores, torch.where(empty, 0.0, -math.inf))
    top = scores.detach().amax(-1, keepdim=True) if scores.shape[-1] else scores.sum(-1, keepdim=True)
    sink = None
    if similarity.sink is not None:
        sink = torch.as_tensor(similarity.sink).to(scores.dtype).reshape((-1, 1, 1) if scores.dim() == 4 else ())
        top = torch.maximum(top, sink.detach())
    powers = torch.exp(scores - top)
    total = powers.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - top)
    empty = empty | (total == 0)
    weights = torch.where(empty, 0.0, powers / torch.where(empty, 1.0, total))
    lse = torch.where(empty, -math.inf, top + torch.log(torch.where(empty, 1.0, total)))
    return weights, lse.squeeze(-1)


def _ratio(q: Tensor, k: Tensor, attended: Tensor, similarity: Any) -> Tensor:
    if isinstance(similarity, Argmax):
        scores = torch.where(attended, q @ k.transpose(-1, -2), -math.inf)
        if not scores.shape[-1]:
            return scores
        return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0) * attended
    sims = torch.where(attended, similarities(similarity, q, k), 0.0)
    if not getattr(similarity, "normalize", True):
        return sims
    total = sims.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, sims / torch.where(total == 0, 1.0, total))


def similarities(similarity: Any, q: Tensor, k: Tensor) -> Tensor:
    """sim(q_i, k_j) of the ratios, (..., len_q, len_k), for queries and keys with the same heads."""
    match similarity:
        case Polynomial(degree=degree, offset=offset):
            return (q @ k.transpose(-1, -2) + offset) ** degree
        case FeatureMap(map=phi):
            return phi(q) @ phi(k).transpose(-1, -2)
        case Similarity(function=function):
            blocks = (t if t.dim() == 4 else t[:, None] if t.dim() == 3 else t[None, None] for t in (q, k))
            return function(*blocks).reshape(*q.shape[:-1], k.shape[-2])
    raise TypeError(f"similarity: {similarity!r} is none of qkv's ratios")
