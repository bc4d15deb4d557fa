"""A state in chunks of tokens: what `linear` runs for `state=`. The native kernel computes float32 on the CPU; torch
computes the rest, and the backward pass.

With Γ_ij = e^(g_{j+1} + … + g_i), S the state before a chunk, and u_i what token i adds (v_i, or by a delta rule
β_i (v_i − the state's answer to k_i)), the state after token i is Γ_{i,start} S + Σ_{j≤i} Γ_ij k_j u_jᵀ. So

    o = (q ∘ Γ_start) S + A u            A_ij = q_iᵀ Γ_ij k_j for j ≤ i
    (1 + L) u = β v − β (k ∘ Γ_start) S  L_ij = β_i k_iᵀ Γ_ij k_j for j < i

The second line is the delta rule: a triangular system, solved once for both right sides (the WY form), so that only
u = U − W S and the next state run one chunk after the other. Sums of logarithms are never subtracted, and are 0 or
less: no exponential overflows, and −infinity forgets exactly. With a gate for each feature, A is a product of two
factors between blocks of 16 tokens, each at most 1, and is written out inside a block.

Backward: the states between pieces of some chunks are kept, and each piece is computed again from its state and
differentiated, last piece first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from .. import ops
from ..cost.price import Cost, product_flops
from ..inputs import AttentionInputs, compute_dtype
from ..ops.kernels import state_attention
from ..shapes import Float
from .base import RUNS, Result, native_kernel_reasons
from .recurrent import Advanced, Tokens, finish, needed_flops, prepare, recurrence, start

CHUNK, BLOCK = 64, 16
FEW_TOKENS = 4  # up to this many, steps are faster than a chunk
PIECE_NUMBERS = 1 << 22  # about as many numbers are held for a piece


def run_state(call: AttentionInputs) -> Result:
    """The result of a call with `state=`."""
    assert call.state is not None
    return finish(call, scan(prepare(call), start(call), call.state.keep))


def scan(tokens: Tokens, state: Tensor, keep: Tensor | None = None) -> Advanced:
    """The output of the tokens and the state after them. What is not finite is left to the equation: 0 · NaN is NaN,
    and would reach earlier tokens of a chunk."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (*tokens, state)):
        y, last = _Chunks.apply(*tokens, state)  # pyright: ignore[reportGeneralTypeIssues]
    else:
        with torch.no_grad():
            y, last = advance(tokens, state)
    if ops.all_finite(y.detach(), last.detach()):
        return y, last
    RUNS["linear.tokens"] += 1
    return recurrence(tokens, state, keep)


def runs_natively(tensor: Tensor) -> bool:
    """Whether the kernel computes tokens of this dtype and device; half precision is computed in float32."""
    return tensor.is_cpu and tensor.dtype is not torch.float64 and not ops.reasons()


def cost(call: AttentionInputs) -> Cost:
    scan, extent = call.state, call.extent
    assert scan is not None
    batch, features, columns = scan.shape[0], *scan.shape[2:]
    pairs = batch * extent.heads * extent.len_q * CHUNK * (2 if scan.rule == "delta" else 1)
    if runs_natively(call.query):
        return Cost(needed_flops(call), 0, 4 * math.prod(scan.shape), 40e-6, mode="state")
    flops, held = needed_flops(call), compute_dtype(call.query.dtype).itemsize * PIECE_NUMBERS
    executed = flops + product_flops(pairs, features + columns) * (4 if scan.channel_gates else 1)
    overhead = 200e-6 + 30e-6 * -(-extent.len_k // CHUNK)
    return Cost(flops, 0, held, overhead, executed, mode="state", note=f"in torch: {native_kernel_reasons(call)[0]}")


def piece_tokens(tokens: Tokens) -> int:
    """How many tokens are computed at a time: a multiple of `CHUNK`, with a state that is no larger than the inputs."""
    (batch, heads, _, features), (columns, heads_q) = tokens.key.shape, (tokens.value.shape[3], tokens.query.shape[1])
    per_token = batch * (heads_q * CHUNK + heads * (features * columns // CHUNK + 3 * features + columns))
    least = features * columns // (2 * features + columns)
    return max(1, PIECE_NUMBERS // max(1, per_token) // CHUNK, -(-least // CHUNK)) * CHUNK


def pieces(tokens: Tokens) -> list[tuple[int, int]]:
    n, step = tokens.key.shape[2], piece_tokens(tokens)
    return [(i, min(i + step, n)) for i in range(0, n, step)]


def advance(tokens: Tokens, state: Tensor) -> Advanced:
    """The output of all tokens, and the state after them."""
    if runs_natively(tokens.key):
        return _advance_natively(tokens, state)
    if tokens.key.shape[2] <= FEW_TOKENS:
        RUNS["linear.tokens"] += 1
        return recurrence(tokens, state)
    RUNS["linear.chunks"] += 1
    outs = [tokens.query.new_zeros(*tokens.query.shape[:2], 0, tokens.value.shape[3])]
    for span in pieces(tokens):
        out, state = advance_piece(tokens.part(*span), state)
        outs.append(out)
    return (torch.cat(outs, dim=2) if len(outs) != 2 else outs[1]), state


def _advance_natively(tokens: Tokens, state: Tensor) -> Advanced:
    RUNS["linear.state"] += 1
    query, key, value, gate, beta = (None if t is None else t.detach() for t in tokens)
    assert query is not None and key is not None and value is not None  # noqa: PT018
    state = state.detach().clone(memory_format=torch.contiguous_format)
    rule = "linear" if beta is None else "delta"
    return state_attention(query, key, value, log_gate=gate, beta=beta, rule=rule, state=state), state


class _Chunks(torch.autograd.Function):
    """`advance`, with the states between pieces kept for its derivative."""

    @staticmethod
    def forward(ctx, query, key, value, gate, beta, state):  # pyright: ignore[reportIncompatibleMethodOverride]
        tokens, outs, states = Tokens(query, key, value, gate, beta), [], []
        for span in pieces(tokens):
            states.append(state)
            out, state = advance(tokens.part(*span), state)
            outs.append(out)
        ctx.save_for_backward(*tokens, *states)
        return torch.cat(outs, dim=2), state

    @staticmethod
    @once_differentiable
    def backward(ctx, by_out, by_state):  # pyright: ignore[reportIncompatibleMethodOverride]
        tokens, states = Tokens(*ctx.saved_tensors[:5]), ctx.saved_tensors[5:]
        found = [None if t is None else torch.empty_like(t, memory_format=torch.contiguous_format) for t in tokens]
        for (i0, i1), state in zip(reversed(pieces(tokens)), reversed(states), strict=True):
            with torch.enable_grad():
                part = Tokens(*(None if t is None else t[:, :, i0:i1].detach().requires_grad_() for t in tokens))  # pyright: ignore[reportArgumentType]
                begin = state.detach().requires_grad_()
                ends = advance_piece(part, begin)
            sources = [t for t in (*part, begin) if t is not None]
            *grads, by_state = torch.autograd.grad(ends, sources, (by_out[:, :, i0:i1], by_state))
            for whole, grad in zip((t for t in found if t is not None), grads, strict=True):
                whole[:, :, i0:i1] = grad
        return *found, by_state


def advance_piece(tokens: Tokens, state: Float[Tensor, "batch heads_kv features columns"]) -> Advanced:
    """The output of some tokens, chunks side by side as far as they do not need the state, and the state after them."""
    n, heads_kv, features = tokens.query.shape[2], tokens.key.shape[1], tokens.key.shape[3]
    size = min(CHUNK, -(-n // BLOCK) * BLOCK)

    def chunked(x: Tensor) -> Tensor:
        """(batch, heads, n, …) → (batch, heads, chunks, size, …), with zeros at the end."""
        more = -n % size
        x = pad(x, (*(0, 0) * (x.dim() - 3), 0, more)) if more else x
        return x.unflatten(2, (-1, size))

    key, value = chunked(tokens.key), chunked(tokens.value)
    gate = None if tokens.gate is None else chunked(tokens.gate)
    # (batch, heads_kv, chunks, group, size, features)
    query = chunked(tokens.query).unflatten(1, (heads_kv, -1)).transpose(2, 3)
    from_start = to_end = whole = None
    if gate is not None:
        wide = gate if gate.dim() == 5 else gate[..., None]
        from_start = wide.cumsum(3).exp()
        to_end, whole = _sums_after(wide).exp(), from_start[:, :, :, -1, :, None]
    scores = _gated_products(query, key, gate)
    read = query if from_start is None else query * from_start[:, :, :, None]
    kept = key if to_end is None else key * to_end
    corrected = None
    if tokens.beta is not None:
        beta = chunked(tokens.beta)[..., None]
        below = beta * _gated_products(key[:, :, :, None], key, gate)[:, :, :, 0].tril(-1)
        asked = key if from_start is None else key * from_start
        both = torch.linalg.solve_triangular(
            below, beta * torch.cat([value, asked], dim=-1), upper=False, unitriangular=True
        )
        value, corrected = both.split([value.shape[4], features], dim=-1)
    states, added = [], []
    for chunk in range(key.shape[2]):
        states.append(state)
        new = value[:, :, chunk] if corrected is None else value[:, :, chunk] - corrected[:, :, chunk] @ state
        added.append(new)
        state = (state if whole is None else whole[:, :, chunk] * state) + kept[:, :, chunk].mT @ new
    by_chunk = torch.stack(added, dim=2) if corrected is not None else value
    rows = read.flatten(3, 4) @ torch.stack(states, dim=2) + scores.flatten(3, 4) @ by_chunk
    out = rows.unflatten(3, (-1, size)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
    return out[:, :, :n], state


def _sums_after(gate: Tensor) -> Tensor:
    """g_{j+1} + … + g_last for each token j, along axis −2."""
    return pad(gate[..., 1:, :].flip(-2).cumsum(-2).flip(-2), (0, 0, 0, 1))


def _decays(gate: Float[Tensor, "*front n"]) -> Float[Tensor, "*front n n"]:
    """Γ_ij = e^(g_{j+1} + … + g_i) for j ≤ i, 0 for later j."""
    n = gate.shape[-1]
    below = torch.ones(n, n, dtype=torch.bool, device=gate.device).tril(-1)
    # Each column is a sum that starts after its token, so that −infinity is never subtracted from itself.
    return gate[..., None].expand(*gate.shape, n).masked_fill(~below, 0.0).cumsum(-2).exp().tril()


def _gated_products(x: Tensor, key: Tensor, gate: Tensor | None) -> Tensor:
    """x_iᵀ Γ_ij k_j for j ≤ i, 0 for later j; x (…, group, size, features) → (…, group, size, size)."""
    if gate is None or gate.dim() == 4:
        group, size = x.shape[3:5]
        pairs = (x.flatten(3, 4) @ key.mT).unflatten(3, (group, size))
        return pairs.tril() if gate is None else pairs * _decays(gate)[:, :, :, None]
    rows, size = [], key.shape[3]
    for i in range(0, size, BLOCK):
        here, inside = slice(i, i + BLOCK), gate[..., i : i + BLOCK, :]
        within = _decays(inside.mT).movedim(3, -1) * key[..., None, here, :]  # (…, rows, keys, features)
        parts = [(x[..., here, :].transpose(3, 4) @ within.mT).transpose(3, 4)]
        if i:
            left = x[..., here, :] * inside.cumsum(-2).exp()[:, :, :, None]
            right = key[..., :i, :] * _sums_after(gate[..., :i, :]).exp()
            parts.insert(0, left @ right.mT[:, :, :, None])
        rows.append(pad(torch.cat(parts, dim=-1), (0, size - i - BLOCK)))
    return torch.cat(rows, dim=-2)
