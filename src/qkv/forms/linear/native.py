"""The linear form on the native kernel: maps that it knows as they are, others mapped by torch a piece at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import kernels
from ...call import Call, arithmetic
from ...cost.price import linear_flops, product_flops
from ...kernels.linear import IDENTITY, Rule, linear, state_floats
from ...maps import Maps, is_known
from ...shapes import Float
from ..base import kernel_reasons, population
from .chunks import MOST_TOKENS, Sight

# Features of a piece: tokens × heads × features.
PIECE = 1 << 19


def reasons_against(call: Call) -> tuple[str, ...]:
    """Why the native kernel does not serve; torch serves then."""
    return kernel_reasons(call)


def chunk_tokens(features: int) -> int:
    """Tokens in a chunk of the kernel, for the count; torch's where there is no kernel."""
    return MOST_TOKENS if kernels.reasons() else kernels.chunk_tokens(features)


def flops(call: Call, features: int) -> tuple[int, int]:
    """With a state, and with every score made one by one: the kernel can do either."""
    extent = call.extent
    queries, keys = extent.batch * extent.heads * extent.len_q, extent.batch * call.heads_kv * extent.len_k
    pairs = population(call)
    inside = queries * chunk_tokens(features) // 2 if pairs < queries * extent.len_k else 0
    by_state = linear_flops(queries, keys, features, call.width, call.width_v, inside)
    return by_state, product_flops(pairs, call.width + call.width_v)


def scores_are_cheaper(call: Call, features: int) -> bool:
    """Maps that the kernel does not know come as features, and those are many."""
    by_state, one_by_one = flops(call, features)
    return is_known(call.similarity) and one_by_one < by_state


def run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    maps: Maps,
    sight: Sight,
    direct: bool,
    state: Float[Tensor, "b h floats"] | None = None,
) -> Float[Tensor, "b hq n dv"]:
    """direct: the lengths are short, and scores are cheaper than a state. state: S to start from, of keys that all
    these queries see, as the kernel holds it; it may be written to."""
    if maps.rule is not None:
        out = linear(
            query, key, value, maps.rule,
            keep=sight.keep, offset=sight.offset, normalize=maps.normalize, direct=direct, state=state,
        )  # fmt: skip
        assert out is not None
        return out
    return _in_pieces(query, key, value, maps, sight, state)


def _in_pieces(query: Tensor, key: Tensor, value: Tensor, maps: Maps, sight: Sight, state: Tensor | None) -> Tensor:
    """Features of some tokens at a time, for the kernel to add to its state and to answer from it."""
    batch, heads_q, len_q, _ = query.shape
    heads_kv, len_k, dtype = key.shape[1], key.shape[2], arithmetic(query.dtype)
    rule = Rule(IDENTITY, maps.features)
    if state is None:
        state = torch.zeros(batch, heads_kv, state_floats(rule, value.shape[3]))
    size = max(64, PIECE // max(1, maps.features * batch * heads_q) // 64 * 64)
    outs, absorbed = [], 0

    def step(rows: Tensor | None, end: int, offset: int | None) -> Tensor | None:
        """Keys up to `end` into the state, and the answer to some queries."""
        nonlocal absorbed
        new = slice(absorbed, end)
        keep = None if sight.keep is None else sight.keep[:, new]
        keys = key[:, :, new].to(dtype)
        if keep is not None:
            keys = keys.masked_fill(~keep[:, None, :, None], 0.0)
        features = None if rows is None else maps.query(rows.to(dtype))
        absorbed = end
        return linear(
            features, maps.key(keys), value[:, :, new].to(dtype), rule,
            keep=keep, offset=offset, normalize=maps.normalize, state=state,
        )  # fmt: skip

    first = len_k if sight.offset is None else min(max(sight.offset, 0), len_k)
    for end in range(size, first + size, size):
        step(None, min(end, first), None)
    for i0 in range(0, len_q, size):
        rows = query[:, :, i0 : i0 + size]
        if sight.offset is None:
            out = step(rows, len_k, None)
        else:
            before = absorbed
            end = min(max(i0 + rows.shape[2] + sight.offset, before), len_k)
            out = step(rows, end, i0 + sight.offset - before)
        assert out is not None
        outs.append(out.to(query.dtype))
    return torch.cat(outs, dim=2) if outs else query.new_zeros(batch, heads_q, 0, value.shape[3])
