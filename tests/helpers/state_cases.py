"""Sequences with a state: every kind, with gates of all sizes, and parts of their tokens."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

import qkv
from qkv.states import AnyState, Decay
from qkv.testing.call_case import CallCase, Spec

PLAIN = Spec("feature_map", map="identity", normalize=False)
ELU1 = Spec("feature_map", map="elu1")
KINDS: dict[str, tuple[Spec, Spec]] = {
    "decay": (ELU1, Spec("decay", seed=1)),
    "gated": (ELU1, Spec("gated", seed=2)),
    "gated features": (PLAIN, Spec("gated", per="feature", seed=3)),
    "delta": (PLAIN, Spec("delta", seed=4)),
    "gated delta": (PLAIN, Spec("gated_delta", seed=5)),
    "kda": (PLAIN, Spec("kda", seed=6)),
}
SIZES: dict[str, Any] = {"batch": 3, "heads_q": 6, "heads_kv": 2, "width": 5, "width_v": 7}
CLOSE = {"float64": 1e-13, "float32": 2e-5, "bfloat16": 2e-2, "float16": 2e-3}


def case(kind: str, n: int, dtype: str = "float32", **changes: Any) -> CallCase:
    similarity, state = KINDS[kind]
    return CallCase(**SIZES | changes, len_q=n, len_k=n, similarity=similarity, state=state, dtype=dtype, seed=n)


def part_of_state(state: AnyState, start: int, stop: int, rows: Any = slice(None)) -> AnyState:
    """The gates of the tokens start … stop − 1."""
    if isinstance(state, Decay):
        return state
    return replace(state, **{f.name: getattr(state, f.name)[rows, :, start:stop] for f in fields(state)})


def gates_of_step(state: AnyState, start: int, stop: int, rows: Any = slice(None)) -> AnyState | None:
    """What `decode` is given: nothing with a `Decay`."""
    return None if isinstance(state, Decay) else part_of_state(state, start, stop, rows)


def state_for(call: CallCase, **options: Any) -> qkv.LinearState:
    change = call.built_state if isinstance(call.built_state, Decay) else type(call.built_state)
    sizes = {"value_width": call.width_v, "state": change, **options}
    return qkv.LinearState(call.built_similarity, call.batch, call.heads_kv, call.width, **sizes)


def decode_part(call: CallCase, state: qkv.LinearState, start: int, stop: int) -> Tensor:
    tensors = (t[:, :, start:stop] for t in call.tensors)
    assert call.built_state is not None
    return qkv.decode(*tensors, state, state=gates_of_step(call.built_state, start, stop))


def whole(call: CallCase) -> Tensor:
    """The equation."""
    return qkv.attention(*call.tensors, similarity=call.built_similarity, state=call.built_state, backend="reference")


def relative(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))


def padded(tensor: Tensor, counts: list[int], starts: list[int], n: int, left: bool) -> Tensor:
    """Row b's tokens starts[b] … starts[b] + counts[b] − 1 among n columns, NaN in the others."""
    out = torch.full((*tensor.shape[:2], n, *tensor.shape[3:]), float("nan"), dtype=tensor.dtype)
    for row, (count, start) in enumerate(zip(counts, starts, strict=True)):
        place = slice(n - count, n) if left else slice(0, count)
        out[row, :, place] = tensor[row, :, start : start + count]
    return out
