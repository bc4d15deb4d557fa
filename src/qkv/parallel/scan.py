"""The strategy `scan`: where sim(q, k) = φ(q)·φ(k), sums over keys are sent instead of keys; their size is independent
of the length.

With ṽ = (v, 1), each rank sums its own keys, S_r = Σ_j φ(k_j) ṽ_jᵀ, and answers its queries from the sum over the ranks
before it and from its own keys; without `Causal`, from the sum over all ranks:

    y_i  = φ(q_i)·Σ_{s<r} S_s + Σ_j φ(q_i)·φ(k_j) ṽ_j

The backward pass does the same in the other direction: T_r = Σ_i φ(q_i) g_iᵀ, and the gradient of a key depends on the
queries of later ranks through Σ_{s>r} T_s (`backends.linear` has the equations). S and T are features × (width_v + 1)
numbers for each key/value head, in float32, and in float64 for float64.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from ..backends import BACKENDS, linear
from ..backends.base import RUNS
from ..backends.linear import KeyRange, Scan
from ..backends.reference import Result
from ..cache.state import make_sums
from ..features import FeatureMaps, feature_maps
from ..inputs import compact
from ..shapes import Bool, Float
from . import gather
from .inputs import ShardedInputs
from .transfer import AGREEMENT, Axis, Message, all_gather, all_to_all, start

SUMMARY = "sums of features are sent instead of keys, for any length"


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    reasons = BACKENDS["linear"].reasons_against(sharded.call._replace(mask=sharded.mask))
    if sharded.call.backend not in ("auto", "linear"):
        reasons = (*reasons, f"backend={sharded.call.backend!r} was requested, and scan runs the backend linear")
    return reasons or _misaligned_shards(sharded)


def _misaligned_shards(sharded: ShardedInputs) -> tuple[str, ...]:
    """Why shards do not fit the mask: a query must attend to all keys of earlier ranks and to none of later ranks."""
    offset = linear.causal_offset(sharded.mask, sharded.extent)
    for rank in range(sharded.axis.size):
        (i0, i1), (j0, j1) = sharded.queries.of(rank), sharded.keys.of(rank)
        if offset is None or i0 >= i1:
            continue
        first, last = max(i0 + offset + 1, 0), min(i1 + offset, sharded.extent.len_k)
        if first < j0 or last > j1:
            attended = f"queries {i0} to {i1 - 1} attend to the first {first} to {last} keys"
            problem = f"{attended}, but the ranks before it have {j0}, and up to it {j1}"
            hint = "a state sums all keys of a rank; use shards of queries and of keys that end at the same position"
            return (f"on rank {rank}, {problem}: {hint}",)
    return ()


class _ScanInputs(NamedTuple):
    """This rank's queries, and those of its keys that some query attends to. key_range: relative to the first of these
    keys. causal: whether the mask is causal. fully_masked: queries that attend to no key of any rank."""

    query: Tensor
    key: Tensor
    value: Tensor
    maps: FeatureMaps
    key_range: KeyRange
    causal: bool
    fully_masked: Bool[Tensor, "#batch 1 len_q 1"] | None
    map_requires_grad: bool


def run(sharded: ShardedInputs) -> Result:
    axis, part = sharded.axis, _scan_inputs(sharded)
    own = _local_state(part, sharded.compute_dtype)
    # With a non-finite term a sum loses the others: fall back to the keys themselves.
    nonfinite = torch.tensor([not ops.all_finite(own, part.query.detach())], dtype=torch.uint8, device=axis.device)
    if any(map(bool, all_gather(axis, nonfinite, AGREEMENT))):
        RUNS["parallel.scan.nonfinite"] += 1
        return gather.run(sharded)
    with torch.no_grad():
        state = prefix_sum(axis, own, 1) if part.causal else sum_all(axis, own)
        out = _attend(sharded, part, state)
    if sharded.needs_grad or part.map_requires_grad:
        found = _ScanAttention.apply(sharded, part, state, out, part.query, part.key, part.value, part.key_range.keep)
        assert isinstance(found, Tensor)
        # Fully masked rows have no gradient.
        out = found if part.fully_masked is None else found.masked_fill(part.fully_masked, 0.0)
    return Result(out.to(sharded.call.query.dtype), None, None)


def _local_state(part: _ScanInputs, dtype: torch.dtype) -> Tensor:
    key, value = part.key.detach(), part.value.detach()
    if key.shape[2] == 0:
        return key.new_zeros((*key.shape[:2], part.maps.features, value.shape[3] + 1), dtype=dtype)
    sums = make_sums(key.dtype, key.device, part.maps, value.shape[3])
    with torch.no_grad():
        return sums.unpack(sums.add(None, key, value, part.key_range.keep)).contiguous()


def _scan_inputs(sharded: ShardedInputs) -> _ScanInputs:
    call, extent = sharded.call, sharded.extent
    maps = feature_maps(call.similarity, call.width)
    whole = linear.key_range_of_mask(sharded.mask, extent, call.query.device)
    (i0, i1), (j0, j1) = sharded.rows, sharded.own_keys
    # Keys after the last attended one may be non-finite.
    end = j1 if whole.offset is None else max(j0, min(j1, extent.len_q + whole.offset))
    query, key, value = call.query, call.key[:, :, : end - j0], call.value[:, :, : end - j0]
    if maps.rule is None or linear.native_kernel_reasons(call):
        # torch's products need a compact layout.
        query, key, value = compact(query), compact(key), compact(value)
    keep = None if whole.keep is None else whole.keep[:, j0:end]
    key_range = KeyRange(None if whole.offset is None else whole.offset + i0 - j0, keep)
    fully_masked = linear.fully_masked_rows(extent, whole, (i0, i1), query.device)
    if fully_masked is not None:
        query = query.masked_fill(fully_masked, 0.0)
    map_requires_grad = linear.map_requires_grad(maps, call)
    if map_requires_grad:
        query, key, value, maps = linear.map_in_advance(query, key, value, maps, key_range)
    return _ScanInputs(query, key, value, maps, key_range, whole.offset is not None, fully_masked, map_requires_grad)


def _attend(sharded: ShardedInputs, part: _ScanInputs, state: Tensor) -> Float[Tensor, "batch heads_q len_q width_v"]:
    """state: S of the keys of earlier ranks; without `Causal`, of all ranks."""
    query, key, value = (t.detach() for t in (part.query, part.key, part.value))
    if query.shape[2] == 0:
        return query.new_zeros((*query.shape[:3], value.shape[3]))
    if linear.native_kernel_reasons(sharded.call):
        return linear.forward(_scan_of_queries(part, *(t.to(state.dtype) for t in (query, key, value))), state)
    scan = _scan_of_queries(part, query, key, value)
    state = make_sums(query.dtype, query.device, part.maps, value.shape[3]).pack(state)
    # The rank's own keys are scored directly where that is cheaper than adding them to the state.
    pairs, sums = query.shape[2] * (key.shape[3] + value.shape[3]) // 2, part.maps.features * (value.shape[3] + 1)
    direct = pairs < sums or not part.causal
    return linear.run_native(query, scan.key, scan.value, part.maps, scan.key_range, direct, state)


def _scan_of_queries(part: _ScanInputs, query: Tensor, key: Tensor, value: Tensor) -> Scan:
    """The scan of the queries over this rank's keys; without `Causal` the state already has all keys."""
    if part.causal:
        return Scan(query, key, value, part.maps, part.key_range)
    return Scan(query, key[:, :, :0], value[:, :, :0], part.maps, KeyRange(None, None))


class _ScanAttention(torch.autograd.Function):
    """The computed result, with its derivative."""

    @staticmethod
    def forward(ctx, sharded: ShardedInputs, part: _ScanInputs, state: Tensor, out: Tensor, query, key, value, keep):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(query, key, value, state, keep)
        ctx.sharded, ctx.part = sharded, part._replace(query=None, key=None, value=None)
        return out.view_as(out)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        sharded, part = ctx.sharded, ctx.part
        *inputs, state, _ = ctx.saved_tensors
        query, key, value = (t.to(state.dtype) for t in inputs)
        scan = _scan_of_queries(part, query, key, value)
        grad_query, grad_sums = linear.query_gradients(scan, grad.to(state.dtype), state)
        found = [grad_query, None, None]
        if sharded.requires_grad[1] or sharded.requires_grad[2] or part.map_requires_grad:  # the same on all ranks
            own = linear.sum_over_queries(scan, grad_sums)
            if part.causal:
                found[1:] = linear.key_value_gradients(scan, grad_sums, prefix_sum(sharded.axis, own, -1))
            else:
                of_keys = Scan(query[:, :, :0], key, value, part.maps, part.key_range)
                found[1:] = linear.key_value_gradients(of_keys, [], sum_all(sharded.axis, own))
        grads = [None if g is None else g.to(t.dtype) for g, t in zip(found, inputs, strict=True)]
        return None, None, None, None, *grads, None


def prefix_sum(axis: Axis, own: Tensor, direction: int) -> Float[Tensor, "batch heads_kv features width_v+1"]:
    """On rank r, Σ_{s<r} S_s for direction 1, Σ_{s>r} S_s for −1. For d = 1, 2, 4, …, rank r − d sends the sum over
    itself and the d − 1 ranks before it: the order of the sum depends only on r."""
    window, total, step = own.contiguous(), torch.zeros_like(own), 1
    while step < axis.size:
        to, source = axis.rank + direction * step, axis.rank - direction * step
        sends, received = [Message(to, window)] * (0 <= to < axis.size), torch.zeros_like(window)
        start(axis, sends, [Message(source, received)] * (0 <= source < axis.size)).wait()
        total, window, step = received + total, received + window, 2 * step
    return total


def sum_all(axis: Axis, own: Tensor) -> Float[Tensor, "batch heads_kv features width_v+1"]:
    """Σ_s S_s, added in rank order and so with the same bits on all ranks. Each rank sums a slice."""
    edges = [own.numel() * rank // axis.size for rank in range(axis.size + 1)]
    flat, bounds, (begin, end) = own.flatten(), list(pairwise(edges)), edges[axis.rank : axis.rank + 2]
    (parts,) = all_to_all(axis, [[flat[lo:hi] for lo, hi in bounds]], [[(end - begin,)] * axis.size])
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    (whole,) = all_to_all(axis, [[total] * axis.size], [[(hi - lo,) for lo, hi in bounds]])
    return torch.cat(whole).view(own.shape)
