"""A state that is read after every token, literally: the specification of `state=` (qkv.states).

`prepare` brings a call into the form that all ways of computing it share: features instead of queries and keys, a last
column of ones where the similarity normalizes, zeros at padding. `recurrence` is the equation, token by token, in torch
operators, so that autograd differentiates it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..cost.price import Cost, state_flops
from ..features import feature_maps
from ..inputs import AttentionInputs, StateInputs, compact, compute_dtype, fold_group, unfold_group
from ..shapes import Bool, Float
from .base import Result


class Tokens(NamedTuple):
    """What the recurrence reads: rows of features, values, gates; 0 at padding.

    gate: logarithms, (batch, heads_kv, n) or with a last axis of features; None for a gate of 1. beta: None for the
    linear rule.
    """

    query: Float[Tensor, "batch heads_q n features"]
    key: Float[Tensor, "batch heads_kv n features"]
    value: Float[Tensor, "batch heads_kv n columns"]
    gate: Tensor | None
    beta: Float[Tensor, "batch heads_kv n"] | None

    def part(self, start: int, stop: int) -> Tokens:
        """The tokens start … stop − 1."""
        return Tokens(*(None if t is None else t[:, :, start:stop] for t in self))  # pyright: ignore[reportArgumentType]

    def to(self, dtype: torch.dtype) -> Tokens:
        return Tokens(*(None if t is None else t.to(dtype) for t in self))  # pyright: ignore[reportArgumentType]


# The output and the state after the last token: (batch, heads_q, n, columns), (batch, heads_kv, features, columns).
Advanced = tuple[Tensor, Tensor]


def prepare(call: AttentionInputs) -> Tokens:
    """The tokens of a call, in the compute dtype."""
    assert call.state is not None
    query, key, value = (call.query, call.key, call.value)
    if not call.traced:
        query, key, value = compact(query), compact(key), compact(value)
    maps, dtype, scan = feature_maps(call.similarity, call.width), compute_dtype(query.dtype), call.state
    unread = ~attended_tokens(scan)[:, None, :, None] if scan.keep is not None else None
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if unread is not None:
        assert scan.keep is not None
        query = query.masked_fill(unread, 0.0)
        pad = ~scan.keep[:, None, :, None]
        key, value = key.masked_fill(pad, 0.0), value.masked_fill(pad, 0.0)
        key = maps.key(key).masked_fill(pad, 0.0)
    else:
        key = maps.key(key)
    if scan.normalizes:
        value = torch.cat([value, value.new_ones(*value.shape[:3], 1)], dim=-1)
    return Tokens(maps.query(query), key, value, scan.per_token(call.extent.len_k), scan.beta)


def attended_tokens(scan: StateInputs) -> Bool[Tensor, "batch n"]:
    """Which tokens have something to attend to: a real token of their segment, themselves included, or an initial
    state."""
    assert scan.keep is not None
    counts = scan.keep.cumsum(1)
    if scan.resets is None:
        return counts > 0 if scan.initial is None else torch.ones_like(scan.keep)
    before = torch.where(scan.resets, counts - scan.keep.to(counts.dtype), 0).cummax(1).values
    first = ~scan.resets.cumsum(1).bool()
    return (counts > before) if scan.initial is None else (counts > before) | first


def start(call: AttentionInputs) -> Float[Tensor, "batch heads_kv features columns"]:
    """The state before the first token."""
    assert call.state is not None
    if call.state.initial is not None:
        return call.state.initial
    return call.query.new_zeros(call.state.shape, dtype=compute_dtype(call.query.dtype))


def recurrence(tokens: Tokens, state: Tensor, keep: Bool[Tensor, "batch n"] | None = None) -> Advanced:
    """The equation. keep: padding, which changes nothing, even a state that is not finite."""
    heads_q, heads_kv, n = tokens.query.shape[1], *tokens.key.shape[1:3]
    outs = [tokens.query.new_zeros(*tokens.query.shape[:2], 0, tokens.value.shape[3])]
    for i in range(n):
        before = state
        query, key, value, gate, beta = tokens.part(i, i + 1)
        if gate is not None:
            gate = gate.transpose(2, 3) if gate.dim() == 4 else gate[..., None]
            state = torch.exp(gate) * state.masked_fill(gate == -math.inf, 0.0)  # 0 · ∞ is NaN, and is forgotten too
        if beta is not None:
            value = beta[..., None] * (value - key @ state)
        state = state + key.mT * value
        if keep is not None:
            state = torch.where(keep[:, i, None, None, None], state, before)
        outs.append(unfold_group(fold_group(query, heads_kv) @ state, heads_q))
    return torch.cat(outs, dim=2), state


def run_literally(call: AttentionInputs) -> Result:
    """The equation in float64, rounded at the end."""
    assert call.state is not None
    tokens = prepare(call).to(torch.float64)
    return finish(call, recurrence(tokens, start(call).to(torch.float64), call.state.keep))


def needed_flops(call: AttentionInputs) -> int:
    """Flops of the recurrence."""
    scan, extent = call.state, call.extent
    assert scan is not None
    batch, heads, features, columns = scan.shape
    queries, keys = batch * extent.heads * extent.len_q, batch * heads * extent.len_k
    return sum(state_flops(queries, keys, features, columns, scan.rule, scan.log_gate is not None).values())


def literal_cost(call: AttentionInputs) -> Cost:
    """A step of torch operators for each token, which read and write the state."""
    assert call.state is not None
    n, numbers = call.extent.len_k, math.prod(call.state.shape)
    return Cost(needed_flops(call), 8 * 8 * n * numbers, 8 * numbers * n, 60e-6 + 40e-6 * n, mode="state")


def finish(call: AttentionInputs, advanced: Advanced) -> Result:
    """The result of a call, from the sums of each token and the last state."""
    scan, (y, state) = call.state, advanced
    assert scan is not None
    out = normalized(y, True) if scan.normalizes else y
    if scan.keep is not None:
        out = out.masked_fill(~attended_tokens(scan)[:, None, :, None], 0.0)
    state = state.to(compute_dtype(call.query.dtype)) if call.return_state else None
    return Result(out.to(call.query.dtype), None, None, state)


def normalized(y: Tensor, normalize: bool) -> Tensor:
    """Numerator by denominator. Where that is 0: NaN if the numerator is not finite, else 0."""
    if not normalize:
        return y[..., :-1]
    out = divided(y[..., :-1], y[..., -1:])
    return torch.where((y[..., -1:] == 0) & ~y[..., :-1].isfinite(), torch.nan, out)


def divided(numerator: Tensor, denominator: Tensor) -> Tensor:
    """0 where the denominator is 0."""
    return torch.where(denominator == 0, 0.0, numerator / torch.where(denominator == 0, 1.0, denominator))
