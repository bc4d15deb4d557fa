"""Attention with a state that decays or is corrected, over whole prompts: plain torch operations and transformers.

Per head, S' = e^g S, S = S' + k uᵀ and o = Sᵀ q, with u = v, or u = β (v - S'ᵀ k) by the delta rule. query, key and
value are (batch, heads, length, width); g is (heads,) for a constant decay, (batch, heads, length) or (batch, heads,
length, width).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def recurrent(query: Tensor, key: Tensor, value: Tensor, log_gate: Tensor, beta: Tensor | None = None) -> Tensor:
    """Token by token."""
    batch, heads, length, width = key.shape
    gate = log_gate.exp()
    gate = gate[None, :, None, None].expand(batch, heads, length, 1) if gate.dim() == 1 else gate
    gate = gate[..., None] if gate.dim() == 3 else gate
    state, out = value.new_zeros(batch, heads, width, value.shape[-1]), torch.empty_like(value)
    for i in range(length):
        state = state * gate[:, :, i, :, None]
        change = value[:, :, i, None]
        if beta is not None:
            change = beta[:, :, i, None, None] * (change - key[:, :, i, None] @ state)
        state.addcmul_(key[:, :, i, :, None], change)
        out[:, :, i] = (query[:, :, i, None] @ state)[:, :, 0]
    return out


def _cut(x: Tensor, chunk: int) -> Tensor:
    """Chunks of the third axis, the last one filled with zeros."""
    more = -x.shape[2] % chunk
    x = pad(x, (0, 0, 0, more)) if x.dim() == 4 else pad(x, (0, more))
    return x.unflatten(2, (-1, chunk))


def chunked(
    query: Tensor, key: Tensor, value: Tensor, log_gate: Tensor, beta: Tensor | None = None, chunk: int = 64
) -> Tensor:
    """Scores inside all chunks at once, then a state across chunks; gates as exponentials of differences of sums."""
    length = key.shape[2]
    gate = log_gate[None, :, None].expand(key.shape[:3]) if log_gate.dim() == 1 else log_gate
    q, k, v, g = (_cut(x, chunk) for x in (query, key, value, gate))
    sums = g.cumsum(3)
    if g.dim() == 4:
        upper = torch.ones(chunk, chunk, dtype=torch.bool).triu(1)
        weights = (sums[..., :, None] - sums[..., None, :]).masked_fill_(upper, -torch.inf).exp_()
        scores = (q @ k.mT).mul_(weights)
        before, after, last = (
            sums.exp()[..., None],
            (sums[..., -1:] - sums).exp_()[..., None],
            sums[..., -1, None, None],
        )
    else:  # short chunks, and relative to their middle, so that e^-sums stays finite
        weights, middle = None, sums[..., chunk // 2, None, :]
        scores = ((q * (sums - middle).exp()) @ (k * (middle - sums).exp()).mT).tril_()
        before, after, last = sums.exp(), (sums[..., -1:, :] - sums).exp_(), sums[..., -1, :, None]
    asked, kept, last = q * before, (k * after).mT, last.exp()
    held = None
    if beta is not None:
        assert weights is not None
        b = _cut(beta, chunk)[..., None]
        lower = (k @ k.mT).mul_(weights).mul_(b)
        v, held = torch.linalg.solve_triangular(
            lower, torch.cat([b * v, b * before * k], -1), upper=False, unitriangular=True
        ).split([v.shape[-1], k.shape[-1]], -1)
    state = value.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1])
    out = torch.empty_like(v)
    for i in range(q.shape[2]):
        change = v[:, :, i] if held is None else v[:, :, i] - held[:, :, i] @ state
        torch.matmul(scores[:, :, i], change, out=out[:, :, i])
        out[:, :, i] += asked[:, :, i] @ state
        state = state * last[:, :, i] + kept[:, :, i] @ change
    return out.flatten(2, 3)[:, :, :length]


def transformers_chunks(query: Tensor, key: Tensor, value: Tensor, log_gate: Tensor, beta: Tensor | None) -> Tensor:
    """transformers' torch path of Qwen3-Next, which scales queries by width^-½."""
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    first = (x.transpose(1, 2) for x in (query, key, value))
    second = (x.transpose(1, 2) for x in (log_gate, beta) if x is not None)
    return torch_chunk_gated_delta_rule(*first, *second)[0].transpose(1, 2) * key.shape[-1] ** 0.5
