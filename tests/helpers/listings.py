"""One token of incremental attention as a textbook writes it, with a cache that is concatenated at every step.

Heads h, queries and keys of width k, values of width v, a past of n tokens. Both steps give back the caches
with the new token in them: without them there is no next step.

    multi-head    V'_bh = Σ_n softmax_n(q_bh · K_bhn / √k) V_bhn
    multi-query   V'_bh = Σ_n softmax_n(q_bh · K_bn  / √k) V_bn
"""

import math

import torch
from torch import Tensor


def multi_head_step(
    x: Tensor, keys: Tensor, values: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, keys, values) of one new token: every head has separate keys and values.

    x (b, d), keys (b, h, n, k), values (b, h, n, v); w_q and w_k (h, d, k), w_v (h, d, v), w_o (h, v, d).
    """
    query = torch.einsum("bd,hdk->bhk", x, w_q)
    keys = torch.cat([keys, torch.einsum("bd,hdk->bhk", x, w_k)[:, :, None]], dim=2)
    values = torch.cat([values, torch.einsum("bd,hdv->bhv", x, w_v)[:, :, None]], dim=2)
    scores = torch.einsum("bhk,bhnk->bhn", query, keys) / math.sqrt(query.shape[-1])
    heads = torch.einsum("bhn,bhnv->bhv", scores.softmax(dim=-1), values)
    return torch.einsum("bhv,hvd->bd", heads, w_o), keys, values


def multi_query_step(
    x: Tensor, keys: Tensor, values: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, keys, values) of one new token: all heads read the same keys and values, so the cache is h times smaller.

    x (b, d), keys (b, n, k), values (b, n, v); w_q (h, d, k), w_k (d, k), w_v (d, v), w_o (h, v, d).
    """
    query = torch.einsum("bd,hdk->bhk", x, w_q)
    keys = torch.cat([keys, torch.einsum("bd,dk->bk", x, w_k)[:, None]], dim=1)
    values = torch.cat([values, torch.einsum("bd,dv->bv", x, w_v)[:, None]], dim=1)
    scores = torch.einsum("bhk,bnk->bhn", query, keys) / math.sqrt(query.shape[-1])
    heads = torch.einsum("bhn,bnv->bhv", scores.softmax(dim=-1), values)
    return torch.einsum("bhv,hvd->bd", heads, w_o), keys, values


def quadratic_features(x: Tensor) -> Tensor:
    """φ of (q·k + 1)²: squares, √2 times products of two coordinates, √2 times coordinates, 1."""
    first, second = torch.triu_indices(x.shape[-1], x.shape[-1], offset=1)
    root = math.sqrt(2)
    return torch.cat([x**2, root * x[:, first] * x[:, second], root * x, torch.ones_like(x[:, :1])], dim=-1)


def linearized(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """V' = φ(Q)·(φ(K)ᵀV) / φ(Q)·(φ(K)ᵀ1): the sums over the keys are made once, and no epsilon is added.

    queries and keys (n, d), values (n, m), all of one dtype, which is that of the ones as well.
    """
    of_queries, of_keys = quadratic_features(queries), quadratic_features(keys)
    sums, below = of_keys.T @ values, of_keys.T @ torch.ones_like(values[:, :1])
    return (of_queries @ sums) / (of_queries @ below)
