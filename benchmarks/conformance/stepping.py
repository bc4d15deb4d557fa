"""ONNX's Attention once more, where a node is a step of a decoder: `qkv.decode` from a cache.

A step is causal, and its queries are those of the last keys. With past_key the cache holds the past and takes
what is new; with nonpad_kv_seqlen it is ragged: the first keys of each batch row are its past, and those that the
queries belong to are new.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import qkv

from .attention import as_given, given_mask, memory_of, similarity_of, tensor, window
from .cases import Case, Refused, to_array


def answers(case: Case) -> dict[str, np.ndarray]:
    """Y, by a step; `Refused` where the node is none."""
    query, key, value = (tensor(case, name) for name in "QKV")
    lengths, len_q = case.tensor("nonpad_kv_seqlen"), query.shape[2]
    if not case.attributes["is_causal"]:
        raise Refused("a step is causal")
    cache = memory_of(case, with_new=False)
    if lengths is not None:
        if bool((lengths < len_q).any()):
            raise Refused("more queries than keys")
        cache.append(key, value, lengths=lengths - len_q)
        places = (lengths - len_q)[:, None] + torch.arange(len_q)
        key, value = (_taken(t, places) for t in (key, value))
    elif key.shape[2] != len_q:
        raise Refused("as many queries as new keys make a step")
    total = cache.length + len_q
    # What lies behind the longest row is not in the cache.
    dense, bias = given_mask(case, max(total, tensor(case, "K").shape[2]))
    mask: qkv.masks.Mask | None = None if dense is None else qkv.Dense(dense.keep[..., :total])
    if window(case) != (None, None):
        around = qkv.Window(*window(case), offset=0)
        mask = around if mask is None else mask & around
    bias = None if bias is None else bias[..., :total]
    out = qkv.decode(query, key, value, cache, similarity=similarity_of(case), mask=mask, bias=bias)
    return {"Y": to_array(as_given(case, out))}


def _taken(tokens: Tensor, places: Tensor) -> Tensor:
    """tokens (batch, heads, length, width) at places (batch, n)."""
    index = places[:, None, :, None].expand(-1, tokens.shape[1], -1, tokens.shape[3])
    return tokens.gather(2, index)
