"""Causal attention by features in plain torch operations: what somebody writes who has no kernel.

    V'_i = φ(q_i)·Σ_{j≤i} φ(k_j) v_jᵀ / φ(q_i)·Σ_{j≤i} φ(k_j)

Features are given, (batch, heads, length, features), values are (batch, heads, length, width_v). All compute in the
dtype of what is given, and no epsilon is added below the fraction.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 128  # tokens
ROWS = 512  # queries in a block of the N×N backend


def recurrent(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Token by token: document 003's listing with its two sums as a state, so that it is causal.

    Corrected: φ is defined (the features are given), `denominator + 1e-6` is the denominator, ones and state have the
    dtype of the input.
    """
    batch, heads, length, features = query.shape
    kv_agg = value.new_zeros(batch, heads, features, value.shape[-1])
    z_agg = value.new_zeros(batch, heads, features, 1)
    out = torch.empty_like(value)
    for i in range(length):
        column = key[:, :, i, :, None]
        kv_agg += column * value[:, :, i, None, :]
        z_agg += column
        row = query[:, :, i, None, :]
        out[:, :, i] = ((row @ kv_agg) / (row @ z_agg))[:, :, 0]
    return out


def cumulative(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """einsum and cumsum: the state of every token is written down, length × features × width_v numbers a head."""
    states = torch.einsum("bhnf,bhnv->bhnfv", key, value).cumsum(dim=2)
    above = torch.einsum("bhnf,bhnfv->bhnv", query, states)
    return above / torch.einsum("bhnf,bhnf->bhn", query, key.cumsum(dim=2))[..., None]


def chunked(query: Tensor, key: Tensor, value: Tensor, chunk: int = CHUNK) -> Tensor:
    """Quadratic inside a chunk, a state across chunks; a column of ones beside the values makes the sum below."""
    batch, heads, length, features = query.shape
    width = value.shape[-1]
    value = torch.cat([value, value.new_ones(batch, heads, length, 1)], dim=-1)
    state = value.new_zeros(batch, heads, features, width + 1)
    out = value.new_empty(batch, heads, length, width)
    for i in range(0, length, chunk):
        q, k, v = (tensor[:, :, i : i + chunk] for tensor in (query, key, value))
        sums = (q @ k.transpose(-1, -2)).tril_() @ v
        sums += q @ state
        state += k.transpose(-1, -2) @ v
        torch.div(sums[..., :width], sums[..., width:], out=out[:, :, i : i + chunk])
    return out


def blocked_quadratic(query: Tensor, key: Tensor, value: Tensor, rows: int = ROWS) -> Tensor:
    """(q·k + 1)² over the N×N matrix, some rows at a time, up to the last key that they see. No features here."""
    length, out = query.shape[2], torch.empty_like(value)
    for i in range(0, length, rows):
        end = min(i + rows, length)
        weights = query[:, :, i:end] @ key[:, :, :end].transpose(-1, -2)
        weights.add_(1).square_()
        weights[..., i:].tril_()
        above = weights @ value[:, :, :end]
        torch.div(above, weights.sum(-1, keepdim=True), out=out[:, :, i:end])
    return out
