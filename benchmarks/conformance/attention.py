"""ONNX's Attention, opsets 23 to 25, as calls of qkv: only names and layouts change."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

import qkv

from .cases import Case, Refused, to_array

# The modes of qk_matmul_output, in the order of the computation.
PRODUCTS, CAPPED, MASKED, WEIGHTS = range(4)


def answers(case: Case, backend: str = "auto") -> dict[str, np.ndarray]:
    """The outputs of the node, by name. backend: qkv's, for the output Y."""
    dtype, call = tensor(case, "Q").dtype, arguments(case)
    given = {"Y": as_given(case, qkv.attention(**call, backend=backend).to(dtype))}
    if "present_key" in case.wanted:
        given["present_key"], given["present_value"] = cache_of(case, with_new=True).tensors()
    if "qk_matmul_output" in case.wanted:
        given["qk_matmul_output"] = _scores(call, case.attributes["qk_matmul_output_mode"]).to(dtype)
    return {name: to_array(given[name]) for name in case.wanted}


def arguments(case: Case) -> dict[str, Any]:
    """The arguments of `qkv.attention` for the node, without the backend."""
    query, key, value = tensor(case, "Q"), tensor(case, "K"), tensor(case, "V")
    if value.dtype is not query.dtype:
        raise Refused("qkv takes one dtype for query, key and value")
    past = 0
    if "past_key" in case.inputs:
        past = case.inputs["past_key"].shape[2]
        key, value = cache_of(case, with_new=True).tensors()
    mask, bias = mask_and_bias(case, query.shape[2], key.shape[2], past)
    # qkv computes scores and sums of half precision in float32; a node with double precision gets float64.
    if case.attributes.get("softmax_precision") == onnx.TensorProto.DOUBLE:
        query, key, value, bias = (t if t is None else t.double() for t in (query, key, value, bias))
    similarity = similarity_of(case)
    return {"query": query, "key": key, "value": value, "similarity": similarity, "mask": mask, "bias": bias}


def tensor(case: Case, name: str) -> Tensor:
    """Q, K or V as (batch, heads, length, width)."""
    given = case.tensor(name)
    assert given is not None
    return with_heads(case, name, given)


def with_heads(case: Case, name: str, given: Tensor) -> Tensor:
    """Q, K, V or Y: a node may have (batch, length, heads · width) instead of (batch, heads, length, width)."""
    if given.dim() == 4:
        return given
    heads = case.attributes["q_num_heads" if name in "QY" else "kv_num_heads"]
    return given.unflatten(2, (heads, -1)).transpose(1, 2)


def as_given(case: Case, out: Tensor) -> Tensor:
    """An answer in the layout of the node's queries."""
    return out.transpose(1, 2).flatten(2) if case.inputs["Q"].ndim == 3 else out


def cache_of(case: Case, *, with_new: bool) -> qkv.KVCache:
    """The node's past in a cache, and its new keys and values."""
    key, value = tensor(case, "K"), tensor(case, "V")
    batch, heads, _, width = key.shape
    try:
        cache = qkv.KVCache(batch, heads, width, value_width=value.shape[3], dtype=key.dtype)
    except qkv.errors.QkvError as error:
        raise Refused(str(error)) from error
    past_key, past_value = case.tensor("past_key"), case.tensor("past_value")
    if past_key is not None and past_value is not None:
        cache.append(past_key, past_value)
    if with_new:
        cache.append(key, value)
    return cache


def similarity_of(case: Case) -> qkv.Softmax:
    return qkv.Softmax(scale=case.attributes.get("scale"), softcap=case.attributes.get("softcap") or None)


def mask_and_bias(case: Case, len_q: int, len_k: int, past: int) -> tuple[qkv.masks.Mask | None, Tensor | None]:
    """The mask, and the bias of the scores. past: the position of the first query."""
    attributes, masks = case.attributes, []
    dense, bias = given_mask(case, len_k)
    if dense is not None:
        masks.append(dense)
    left, right = window(case)
    lengths = case.tensor("nonpad_kv_seqlen")
    if lengths is not None:
        masks.append(qkv.Padding(lengths=lengths))
        masks += _diagonals_by_row(bool(attributes["is_causal"]), left, right, lengths - len_q)
    else:
        if attributes["is_causal"]:
            masks.append(qkv.Causal(offset=past))
        if left is not None or right is not None:
            masks.append(qkv.Window(left, right, offset=past))
    return reduce(and_, masks) if masks else None, bias


def given_mask(case: Case, len_k: int) -> tuple[qkv.Dense | None, Tensor | None]:
    """attn_mask: booleans are a mask and numbers a bias. The keys after one that is too short are masked."""
    mask = case.tensor("attn_mask")
    if mask is None:
        return None, None
    missing = (0, len_k - mask.shape[-1])
    if mask.dtype is torch.bool:
        return qkv.Dense(torch.nn.functional.pad(mask, missing, value=False)), None
    mask = mask.to(tensor(case, "Q").dtype)
    return None, torch.nn.functional.pad(mask, missing, value=float("-inf"))


def window(case: Case) -> tuple[int | None, int | None]:
    """The number of keys to the left and to the right; None for no limit, which is -1 in ONNX."""
    sides = (case.attributes.get(name, -1) for name in ("left_window_size", "right_window_size"))
    left, right = (side if side >= 0 else None for side in sides)
    return left, right


def _diagonals_by_row(causal: bool, left: int | None, right: int | None, offsets: Tensor) -> list[qkv.masks.Mask]:
    """`Causal` and `Window` with an offset for each batch row."""
    rules = []
    if causal:
        rules.append(lambda ahead: ahead <= 0)
    if left is not None:
        rules.append(lambda ahead: ahead >= -left)
    if right is not None:
        rules.append(lambda ahead: ahead <= right)
    return [
        qkv.Predicate(lambda batch, head, query, key, rule=rule: rule(key - query - offsets[batch])) for rule in rules
    ]


def _scores(call: dict[str, Any], mode: int) -> Tensor:
    """qk_matmul_output. A score is the logarithm of its weight plus the log-sum-exp."""
    if mode == WEIGHTS:
        return qkv.attention(**call, return_weights=True)[1]
    # In float64, so that log and exp lose no digit of the output dtype.
    whole = {name: call[name].double() for name in ("query", "key", "value")}
    softmax: qkv.Softmax = call["similarity"]
    whole["similarity"] = softmax if mode >= CAPPED else qkv.Softmax(scale=softmax.scale)
    if mode == MASKED:
        whole |= {"mask": call["mask"], "bias": None if call["bias"] is None else call["bias"].double()}
    _, lse, weights = qkv.attention(**whole, return_lse=True, return_weights=True)
    return weights.log() + lse.unsqueeze(-1)


def step_answers(case: Case) -> dict[str, np.ndarray]:
    """Y of a node that is a decoding step, by `qkv.decode`; raises `Refused` for other nodes.

    A step is causal, and its queries belong to the last keys. With past_key the cache has the past and takes the new
    tokens; with nonpad_kv_seqlen it is ragged: the first keys of each batch row are its past, the others are new.
    """
    query, key, value = (tensor(case, name) for name in "QKV")
    lengths, len_q = case.tensor("nonpad_kv_seqlen"), query.shape[2]
    if not case.attributes["is_causal"]:
        raise Refused("a step is causal")
    cache = cache_of(case, with_new=False)
    if lengths is not None:
        if bool((lengths < len_q).any()):
            raise Refused("more queries than keys")
        cache.append(key, value, lengths=lengths - len_q)
        places = (lengths - len_q)[:, None] + torch.arange(len_q)
        key, value = (_taken(t, places) for t in (key, value))
    elif key.shape[2] != len_q:
        raise Refused("a step has as many queries as new keys")
    total = cache.length + len_q
    # The cache ends with the longest row.
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
