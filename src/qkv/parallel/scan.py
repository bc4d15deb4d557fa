"""`scan`: where sim(q, k) = φ(q)·φ(k), sums over keys travel instead of keys, and their size knows no length.

With ṽ = (v, 1), each rank sums its own keys, S_r = Σ_j φ(k_j) ṽ_jᵀ, and answers its queries from the sum over the ranks
before it and from its own keys; without `Causal`, from the sum over all ranks:

    y_i  = φ(q_i)·Σ_{s<r} S_s + Σ_j φ(q_i)·φ(k_j) ṽ_j

Backward the same goes the other way: T_r = Σ_i φ(q_i) g_iᵀ, and a key hears of the queries of later ranks through
Σ_{s>r} T_s (`backends.linear` has the equations). S and T are features × (width_v + 1) numbers for each key/value
head, in float32, and in float64 for float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..backends import linear
from ..backends.base import RUNS
from ..backends.linear import KeyRange, Scan
from ..backends.reference import Result
from ..cache.state import make_sums
from ..errors import OptionError, complaint
from ..features import FeatureMaps, feature_count, feature_maps
from ..inputs import compact, compute_dtype
from ..shapes import Bool, Float
from . import gather
from .consensus import agree, sharing_errors
from .inputs import ShardedInputs
from .transfer import Axis, Message, start


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    reasons = linear.reasons_against(sharded.call._replace(mask=sharded.mask))
    if sharded.call.backend not in ("auto", "linear"):
        reasons = (*reasons, f"backend={sharded.call.backend!r} was asked for, and sums are linear's")
    return reasons or _misaligned_shards(sharded)


def _misaligned_shards(sharded: ShardedInputs) -> tuple[str, ...]:
    """A state is of a whole rank: a query has to see all keys of the ranks before its own, and none of those after."""
    offset = linear.causal_offset(sharded.mask, sharded.extent)
    for rank in range(sharded.axis.size):
        (i0, i1), (j0, j1) = sharded.queries.of(rank), sharded.keys.of(rank)
        if offset is None or i0 >= i1:
            continue
        first, last = max(i0 + offset + 1, 0), min(i1 + offset, sharded.extent.len_k)
        if first < j0:
            sees = f"query {i0} sees the first {first} keys, and the ranks before it have {j0}"
        elif last > j1:
            sees = f"query {i1 - 1} sees the first {last} keys, and the ranks up to it have {j1}"
        else:
            continue
        hint = "a sum is of all keys of a rank; shards of queries and of keys that end together fit"
        return (f"on rank {rank}, {sees}: {hint}",)
    return ()


def state_bytes(sharded: ShardedInputs) -> int:
    """The size of one state, the same on every rank."""
    call = sharded.call
    features = feature_count(call.similarity, call.width)
    numbers = sharded.extent.batch * call.heads_kv * features * (call.width_v + 1)
    return numbers * compute_dtype(call.query.dtype).itemsize


def bytes_sent(
    ranks: int, rank: int, state_bytes: int, causal: bool, *, backward: bool = False, itemsize: int = 4
) -> int:
    """What a rank sends in a pass, for states of so many bytes, in numbers of itemsize bytes each.

    causal: ⌈log₂(ranks − rank)⌉ states, to the ranks 1, 2, 4, … places further on; backward to those before it.
    Otherwise 2·(ranks − 1)/ranks states: a piece to every rank, which adds them up and sends the sum to all.

    >>> [bytes_sent(5, rank, 1000, causal=True) for rank in range(5)]
    [3000, 2000, 2000, 1000, 0]
    >>> [bytes_sent(5, rank, 1000, causal=False) for rank in range(5)]
    [1600, 1600, 1600, 1600, 1600]
    """
    if causal:
        later = rank if backward else ranks - 1 - rank
        return state_bytes * later.bit_length()
    numbers = state_bytes // itemsize
    begin, end = _slice_bounds(numbers, ranks, rank)
    return itemsize * (numbers - (end - begin) + (end - begin) * (ranks - 1))


class _ScanInputs(NamedTuple):
    """This rank's queries, and those of its keys that anybody sees. key_range: among them, positions counted from their
    first. causal: whether other ranks' keys are seen by their place. blind: own queries that see no key of any rank."""

    query: Tensor
    key: Tensor
    value: Tensor
    maps: FeatureMaps
    key_range: KeyRange
    causal: bool
    blind: Bool[Tensor, "#batch 1 len_q 1"] | None
    learns: bool  # the map does


def run(sharded: ShardedInputs) -> Result:
    axis = sharded.axis
    part, own = sharing_errors(axis, lambda: _local_state(sharded))
    # Infinity minus infinity, and 0 times it: a sum with such a term says nothing of the others. It is rare, and the
    # keys themselves are asked then.
    odd = not ops.all_finite(own, part.query.detach())
    features = f"{part.maps.features}{', with parameters that learn' if part.learns else ''}"
    if any(numbers[0] for numbers in agree(axis, {"call": "scan", "features of the map": features}, [int(odd)])):
        RUNS["parallel.scan.odd"] += 1
        return gather.run(sharded)
    RUNS["parallel.scan"] += 1
    with torch.no_grad():
        seen = sum_before(axis, own) if part.causal else sum_all(axis, own)
        out = _attend(sharded, part, seen)
    if sharded.needs_grad or part.learns:
        found = _ScanAttention.apply(sharded, part, seen, out, part.query, part.key, part.value, part.key_range.keep)
        assert isinstance(found, Tensor)
        # Nothing comes back from where nothing was seen.
        out = found if part.blind is None else found.masked_fill(part.blind, 0.0)
    return Result(out.to(sharded.call.query.dtype), None, None)


def _local_state(sharded: ShardedInputs) -> tuple[_ScanInputs, Tensor]:
    part = _scan_inputs(sharded)
    key, value = part.key.detach(), part.value.detach()
    dtype, count = compute_dtype(sharded.call.query.dtype), part.maps.features
    if key.shape[2] == 0:
        return part, torch.zeros(*key.shape[:2], count, value.shape[3] + 1, dtype=dtype, device=key.device)
    engine = make_sums(key.dtype, key.device, part.maps, value.shape[3])
    with torch.no_grad():
        return part, engine.unpack(engine.add(None, key, value, part.key_range.keep)).contiguous()


def _scan_inputs(sharded: ShardedInputs) -> _ScanInputs:
    call, extent = sharded.call, sharded.extent
    maps, whole = (
        feature_maps(call.similarity, call.width),
        linear.key_range_of_mask(sharded.mask, extent, call.query.device),
    )
    (i0, i1), (j0, j1) = sharded.rows, sharded.own_keys
    # What stands behind the last key that somebody sees may hold anything.
    end = j1 if whole.offset is None else max(j0, min(j1, extent.len_q + whole.offset))
    query, key, value = call.query, call.key[:, :, : end - j0], call.value[:, :, : end - j0]
    if maps.rule is None or linear.native_kernel_reasons(call):
        # torch's products map them, or add them up.
        query, key, value = compact(query), compact(key), compact(value)
    keep = None if whole.keep is None else whole.keep[:, j0:end]
    key_range = KeyRange(None if whole.offset is None else whole.offset + i0 - j0, keep)
    blind = linear.fully_masked_rows(extent, whole, (i0, i1), query.device)
    if blind is not None:
        query = query.masked_fill(blind, 0.0)
    learns = linear.map_requires_grad(maps, call)
    if learns:
        query, key, value, maps = linear.map_in_advance(query, key, value, maps, key_range)
    return _ScanInputs(query, key, value, maps, key_range, whole.offset is not None, blind, learns)


def _attend(sharded: ShardedInputs, part: _ScanInputs, seen: Tensor) -> Float[Tensor, "batch heads_q len_q width_v"]:
    """seen: S of other ranks' keys, and without `Causal` of all."""
    query, key, value = (t.detach() for t in (part.query, part.key, part.value))
    if query.shape[2] == 0:
        return query.new_zeros((*query.shape[:3], value.shape[3]))
    if linear.native_kernel_reasons(sharded.call):
        return linear.forward(_scan_of_queries(part, *(t.to(seen.dtype) for t in (query, key, value))), seen)
    asking = _scan_of_queries(part, query, key, value)
    state = make_sums(query.dtype, query.device, part.maps, value.shape[3]).pack(seen)
    # The rank's own keys are scored one by one where that takes less than to add them to the state.
    pairs, sums = query.shape[2] * (key.shape[3] + value.shape[3]) // 2, part.maps.features * (value.shape[3] + 1)
    direct = pairs < sums or not part.causal
    return linear.run_native(query, asking.key, asking.value, part.maps, asking.key_range, direct, state)


def _scan_of_queries(part: _ScanInputs, query: Tensor, key: Tensor, value: Tensor) -> Scan:
    """What the queries have to do with: without `Causal`, all keys are in the sum already."""
    if part.causal:
        return Scan(query, key, value, part.maps, part.key_range)
    return Scan(query, key[:, :, :0], value[:, :, :0], part.maps, KeyRange(None, None))


class _ScanAttention(torch.autograd.Function):
    """The answers that were found, with their derivative."""

    @staticmethod
    def forward(ctx, sharded: ShardedInputs, part: _ScanInputs, seen: Tensor, out: Tensor, query, key, value, keep):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(query, key, value, seen, keep)
        ctx.sharded, ctx.part = sharded, part._replace(query=None, key=None, value=None)
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            raise OptionError(complaint("create_graph", "True", "False", "split calls have first derivatives only"))
        sharded, part = ctx.sharded, ctx.part
        *inputs, seen, _ = ctx.saved_tensors
        query, key, value = (t.to(seen.dtype) for t in inputs)
        asking = _scan_of_queries(part, query, key, value)
        by_query, by_sums = linear.query_gradients(asking, grad.to(seen.dtype), seen)
        found = [by_query, None, None]
        if sharded.requires_grad[1] or sharded.requires_grad[2] or part.learns:  # all ranks say the same
            own = linear.sum_over_queries(asking, by_sums)
            if part.causal:
                found[1:] = linear.key_value_gradients(asking, by_sums, sum_after(sharded.axis, own))
            else:
                answering = Scan(query[:, :, :0], key, value, part.maps, part.key_range)
                found[1:] = linear.key_value_gradients(answering, [], sum_all(sharded.axis, own))
        by_inputs = [None if g is None else g.to(t.dtype) for g, t in zip(found, inputs, strict=True)]
        return None, None, None, None, *by_inputs, None


def sum_before(axis: Axis, own: Tensor) -> Float[Tensor, "batch heads_kv features width_v+1"]:
    """Σ_{s<r} S_s on rank r. Rank r − d sends the sum over itself and the d − 1 ranks before it, d = 1, 2, 4, …, in
    turn: the order in which they are added depends on nothing but r."""
    return _prefix_sum(axis, own, 1)


def sum_after(axis: Axis, own: Tensor) -> Float[Tensor, "batch heads_kv features width_v+1"]:
    """Σ_{s>r} S_s likewise."""
    return _prefix_sum(axis, own, -1)


def _prefix_sum(axis: Axis, own: Tensor, way: int) -> Tensor:
    window, found, step = own.contiguous(), None, 1  # window: the sum over this rank and the step - 1 beside it
    while step < axis.size:
        to, of = axis.rank + way * step, axis.rank - way * step
        arriving = torch.empty_like(window)
        sends = [Message(to, window)] if 0 <= to < axis.size else []
        receives = [Message(of, arriving)] if 0 <= of < axis.size else []
        start(axis, sends, receives).wait()
        if receives:
            found = arriving if found is None else arriving + found
            window = arriving + window
        step *= 2
    return torch.zeros_like(own) if found is None else found


def sum_all(axis: Axis, own: Tensor) -> Float[Tensor, "batch heads_kv features width_v+1"]:
    """Σ_s S_s, added in the order of the ranks and therefore of the same bits on all. Each rank adds up a piece."""
    mine, whole = own.flatten(), torch.empty(own.numel(), dtype=own.dtype, device=own.device)
    pieces = [slice(*_slice_bounds(mine.numel(), axis.size, rank)) for rank in range(axis.size)]
    others, piece = [axis.after(step) for step in range(1, axis.size)], pieces[axis.rank]
    arriving = {rank: torch.empty_like(mine[piece]) for rank in others}
    sends = [Message(rank, mine[pieces[rank]]) for rank in others]
    start(axis, sends, [Message(rank, arriving[rank]) for rank in reversed(others)]).wait()
    arriving[axis.rank] = mine[piece]
    total = arriving[0].clone()
    for rank in range(1, axis.size):
        total += arriving[rank]
    whole[piece] = total
    receives = [Message(rank, whole[pieces[rank]]) for rank in reversed(others)]
    start(axis, [Message(rank, total) for rank in others], receives).wait()
    return whole.view(own.shape)


def _slice_bounds(numbers: int, ranks: int, rank: int) -> tuple[int, int]:
    return numbers * rank // ranks, numbers * (rank + 1) // ranks
