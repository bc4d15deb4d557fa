"""ONNX's Attention, of opsets 23 to 25, said in qkv's slots. Nothing is computed here: names and layouts change."""

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

# What qk_matmul_output shows, in the order of the arithmetic.
PRODUCTS, CAPPED, MASKED, WEIGHTS = range(4)


def answers(case: Case, backend: str = "auto") -> dict[str, np.ndarray]:
    """What the node gives, by the names of its outputs. backend: qkv's, for the answer Y."""
    dtype, call = tensor(case, "Q").dtype, arguments(case)
    given = {"Y": as_given(case, qkv.attention(**call, backend=backend).to(dtype))}
    if "present_key" in case.wanted:
        given["present_key"], given["present_value"] = memory_of(case, with_new=True).tensors()
    if "qk_matmul_output" in case.wanted:
        given["qk_matmul_output"] = _scores(call, case.attributes["qk_matmul_output_mode"]).to(dtype)
    return {name: to_array(given[name]) for name in case.wanted}


def arguments(case: Case) -> dict[str, Any]:
    """The call of `qkv.attention` that the node is: everything but the backend."""
    query, key, value = tensor(case, "Q"), tensor(case, "K"), tensor(case, "V")
    if value.dtype is not query.dtype:
        raise Refused("qkv takes one dtype for query, key and value")
    past = 0
    if "past_key" in case.inputs:
        past = case.inputs["past_key"].shape[2]
        key, value = memory_of(case, with_new=True).tensors()
    mask, bias = mask_and_bias(case, query.shape[2], key.shape[2], past)
    # Scores and sums of halves are float32 in qkv anyway; what asks for more gets float64 from end to end.
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


def memory_of(case: Case, *, with_new: bool) -> qkv.KVCache:
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
    """What may be attended, and what is added to the scores. past: the position of the first query."""
    said, masks = case.attributes, []
    dense, bias = given_mask(case, len_k)
    if dense is not None:
        masks.append(dense)
    left, right = window(case)
    lengths = case.tensor("nonpad_kv_seqlen")
    if lengths is not None:
        masks.append(qkv.Padding(lengths=lengths))
        masks += _diagonals_by_row(bool(said["is_causal"]), left, right, lengths - len_q)
    else:
        if said["is_causal"]:
            masks.append(qkv.Causal(offset=past))
        if left is not None or right is not None:
            masks.append(qkv.Window(left, right, offset=past))
    return reduce(and_, masks) if masks else None, bias


def given_mask(case: Case, len_k: int) -> tuple[qkv.Dense | None, Tensor | None]:
    """attn_mask: booleans are a mask and numbers a bias. One that is too short says that the rest is not attended."""
    mask = case.tensor("attn_mask")
    if mask is None:
        return None, None
    missing = (0, len_k - mask.shape[-1])
    if mask.dtype is torch.bool:
        return qkv.Dense(torch.nn.functional.pad(mask, missing, value=False)), None
    mask = mask.to(tensor(case, "Q").dtype)
    return None, torch.nn.functional.pad(mask, missing, value=float("-inf"))


def window(case: Case) -> tuple[int | None, int | None]:
    """How many keys to the left and to the right; None is without limit, which ONNX says with -1."""
    sides = (case.attributes.get(name, -1) for name in ("left_window_size", "right_window_size"))
    left, right = (side if side >= 0 else None for side in sides)
    return left, right


def _diagonals_by_row(causal: bool, left: int | None, right: int | None, offsets: Tensor) -> list[qkv.masks.Mask]:
    """`Causal` and `Window` where each batch row has an offset of its own."""
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
    """qk_matmul_output. A score is the logarithm of its weight plus that of the sum below the fraction."""
    if mode == WEIGHTS:
        return qkv.attention(**call, return_weights=True)[1]
    # In float64, so that the way there and back costs no digit of the dtype that is asked for.
    whole = {name: call[name].double() for name in ("query", "key", "value")}
    softmax: qkv.Softmax = call["similarity"]
    whole["similarity"] = softmax if mode >= CAPPED else qkv.Softmax(scale=softmax.scale)
    if mode == MASKED:
        whole |= {"mask": call["mask"], "bias": None if call["bias"] is None else call["bias"].double()}
    _, lse, weights = qkv.attention(**whole, return_lse=True, return_weights=True)
    return weights.log() + lse.unsqueeze(-1)
