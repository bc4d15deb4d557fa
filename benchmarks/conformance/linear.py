"""ONNX's LinearAttention, opset 27: q·k without a normalizer, and the state of its update rule."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

import qkv

from .cases import Case, to_array

SIMILARITY = qkv.FeatureMap(qkv.features.identity, normalize=False)


def answers(case: Case) -> dict[str, np.ndarray]:
    """The outputs of the node, by name."""
    given = case.tensor("query")
    assert given is not None
    query, key, value = (_heads(case, name) for name in ("query", "key", "value"))
    past = case.tensor("past_state")
    scale = case.attributes["scale"] or 1 / math.sqrt(key.shape[3])
    out, state = qkv.attention(
        scale * query, key, value, similarity=SIMILARITY, state=_state(case, key),
        initial_state=None if past is None else past.float(), return_state=True,
    )  # fmt: skip
    found = {
        "output": out.transpose(1, 2).flatten(2).to(given.dtype),
        "present_state": state.to(given.dtype if past is None else past.dtype),
    }
    return {name: to_array(found[name]) for name in case.wanted}


def _state(case: Case, key: Tensor) -> qkv.states.AnyState | None:
    """The update rule with the gates of the node: of a head, or of each feature of its keys."""
    batch, heads, n, width = key.shape
    decay, beta = case.tensor("decay"), case.tensor("beta")
    gate = None if decay is None else decay.float().unflatten(2, (heads, -1)).transpose(1, 2)
    wide = gate is not None and gate.shape[3] == width > 1
    gate = None if gate is None else gate if wide else gate.squeeze(3)
    beta = None if beta is None else beta.float().transpose(1, 2).expand(batch, heads, n)
    rule = case.attributes["update_rule"].decode()
    kinds = {"gated": qkv.Gated, "delta": qkv.Delta, "gated_delta": qkv.KDA if wide else qkv.GatedDelta}
    given = (tensor for tensor in (gate, beta) if tensor is not None)
    return None if rule == "linear" else kinds[rule](*given)


def _heads(case: Case, name: str) -> Tensor:
    """(batch, length, heads · width) → (batch, heads, length, width), in float32, in which the operator sums."""
    tensor = case.tensor(name)
    assert tensor is not None
    heads = case.attributes["q_num_heads" if name == "query" else "kv_num_heads"]
    return tensor.float().unflatten(2, (heads, -1)).transpose(1, 2)
