"""ONNX's LinearAttention, opset 27, where it is the equation V'_i = Σ_j (q_i·k_j) v_j, causal and not normalized.

A `LinearState` takes tokens and answers queries; ONNX passes the sum Σ_j k_j v_jᵀ. Unit vectors convert them: as keys
they put the rows of a sum into the state, as queries they read them.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

import qkv

from .cases import Case, Refused, to_array

SIMILARITY = qkv.FeatureMap(qkv.features.identity, normalize=False)
OUTSIDE = {
    "gated": "decay: what a key counts for depends on the gates after it, not on query and key alone",
    "delta": "delta rule: what a token adds depends on the sum before it, so the answer is no sum of sim(q, k) v",
    "gated_delta": "decay and delta rule: what a token adds depends on the gates and on the sum before it",
}


def answers(case: Case) -> dict[str, np.ndarray]:
    """The outputs of the node, by name."""
    rule = case.attributes["update_rule"].decode()
    if rule != "linear":
        raise Refused(OUTSIDE[rule])
    given = case.tensor("query")
    assert given is not None
    query, key, value = (_heads(case, name) for name in ("query", "key", "value"))
    batch, heads, _, width = key.shape
    state = qkv.LinearState(SIMILARITY, batch, heads, width, value_width=value.shape[3])
    units = torch.eye(width).expand(batch, heads, width, width)
    past = case.tensor("past_state")
    if past is not None:
        state.append(units, past.float())
    out = qkv.decode(query, key, value, state)
    # Keys of zero add nothing to the sum.
    total = qkv.decode(units, torch.zeros_like(units), value.new_zeros(batch, heads, width, value.shape[3]), state)
    scale = case.attributes["scale"] or 1 / math.sqrt(width)
    found = {
        "output": (scale * out).transpose(1, 2).flatten(2).to(given.dtype),
        "present_state": total.to(given.dtype if past is None else past.dtype),
    }
    return {name: to_array(found[name]) for name in case.wanted}


def _heads(case: Case, name: str) -> Tensor:
    """(batch, length, heads · width) → (batch, heads, length, width), in float32, in which the operator sums."""
    tensor = case.tensor(name)
    assert tensor is not None
    heads = case.attributes["q_num_heads" if name == "query" else "kv_num_heads"]
    return tensor.float().unflatten(2, (heads, -1)).transpose(1, 2)
