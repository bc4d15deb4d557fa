"""`linear`: if sim(q, k) = φ(q)·φ(k), the sum over the keys moves inside, and N² becomes N.

    V'_i = φ(q_i)·Σ_j φ(k_j) v_jᵀ / φ(q_i)·Σ_j φ(k_j)

The two sums are a state of features × (width_v + 1) numbers. Without `Causal` every query reads the same state; with it
the state grows from chunk to chunk, and pairs inside a chunk are scored. The CPU has a native kernel (`run_native`); on
other devices, in float64 and for gradients torch does (`Scan`).

With ṽ = (v, 1), y_i = Σ_j φ(q_i)·φ(k_j) ṽ_j over the attended keys is the numerator and the denominator. Keys that all
queries of a chunk attend to are summed into a state S = Σ_j φ(k_j) ṽ_jᵀ, and the others are scored:

    y_i  = φ(q_i)·S + Σ_j φ(q_i)·φ(k_j) ṽ_j

Backward, with g_i the gradient of y_i:

    dφ(q_i) = S·g_i + Σ_j (g_i·ṽ_j) φ(k_j)          over the chunks in order, with the same states
    dφ(k_j) = T·ṽ_j + Σ_i (g_i·ṽ_j) φ(q_i)          in reverse order, T = Σ_i φ(q_i) g_iᵀ over later queries
    dṽ_j    = φ(k_j)·T + Σ_i φ(q_i)·φ(k_j) g_i

Neither pass holds more than the features of a chunk and a state. If the queries and keys are a part of a longer
sequence, S starts as the sum over earlier keys, and T as the sum over later queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..cost.price import Cost, linear_flops, product_flops
from ..features import MAX_FEATURES, FeatureMaps, TensorMap, feature_count, feature_maps, has_native_map, identity
from ..inputs import AttentionInputs, compact, compute_dtype, fold_group, unfold_group
from ..masks import Causal, Extent, Mask, Padding, Window
from ..ops.kernels import IDENTITY, FeatureRule, linear_attention, linear_state_size
from ..shapes import Bool, Float
from . import blockwise, chunked, sdpa
from .base import RUNS, Backend, attended_pairs, native_kernel_reasons
from .recurrent import divided, normalized
from .reference import Result

CHUNK_NUMBERS = 1 << 20  # the most numbers (tokens × heads × features) in a chunk of the torch engine
MAX_CHUNK_TOKENS = 128
PIECE_NUMBERS = 1 << 19  # numbers (tokens × heads × features) that torch computes at a time for the native kernel


def more_reasons(call: AttentionInputs) -> tuple[str, ...]:
    """Masks that differ by query, and too many features."""
    if not call.similarity.is_product or call.traced:
        return ()
    reasons = tuple(reason for part in call.mask_parts if call.state is None and (reason := _mask_reason(part)))
    if reasons or not call.width:
        return reasons
    count = feature_count(call.similarity, call.width)
    if count <= MAX_FEATURES:
        return ()
    return (f"a state of {count} features costs more than the scores; at most {MAX_FEATURES} are supported",)


def _mask_reason(mask: Mask) -> str | None:
    if isinstance(mask, Causal | Padding):
        return None
    if isinstance(mask, Window):
        return "a Window drops earlier keys, and a key cannot be removed from the state exactly"
    return (
        f"one state for all queries supports Causal and Padding, not {type(mask).__name__}, which may differ by query"
    )


def key_range_of(call: AttentionInputs) -> KeyRange:
    """The keys that the queries of a call attend to."""
    return key_range_of_mask(call.mask, call.extent, call.query.device)


def key_range_of_mask(mask: Mask | None, extent: Extent, device: torch.device) -> KeyRange:
    """`Causal` parts as an offset, all other parts as keys that are kept or dropped."""
    keep = None
    for part in () if mask is None else mask.parts():
        if not isinstance(part, Causal):
            kept = part.keys_kept(extent, device)
            assert kept is not None
            keep = kept if keep is None else keep & kept
    return KeyRange(causal_offset(mask, extent), keep)


def causal_offset(mask: Mask | None, extent: Extent) -> int | None:
    """The least offset of the `Causal` parts of a mask; None if every query attends to all keys."""
    bands = [part.band(extent) for part in (() if mask is None else mask.parts()) if isinstance(part, Causal)]
    return min((band.upper - 1 for band in bands if band is not None and band.upper is not None), default=None)


def cost(call: AttentionInputs) -> Cost:
    if call.state is not None:
        return chunked.cost(call)
    extent, features = call.extent, feature_count(call.similarity, call.width)
    queries, keys = extent.batch * extent.heads * extent.len_q, extent.batch * call.heads_kv * extent.len_k
    size = compute_dtype(call.query.dtype).itemsize
    chunk = chunk_tokens(features)
    flops = native_flops(call, features)
    extra = size * (extent.batch * call.heads_kv * features * (call.width_v + 1) + chunk * (features + 4 * call.width))
    if native_kernel_reasons(call):
        steps = -(-extent.len_q // MAX_CHUNK_TOKENS)
        return Cost(flops[0], 0, extra, 300e-6 * max(1, steps))
    if not has_native_map(call.similarity):  # features are written out and read again
        return Cost(flops[0], 2 * size * (queries + keys) * features, extra, 80e-6)
    return Cost(min(flops), 0, extra, 25e-6, mode="scores" if direct_is_cheaper(call, features) else "")


def state_is_cheaper(call: AttentionInputs) -> bool:
    """Whether the backend uses a state; otherwise the native kernel scores every pair."""
    native_runs = not native_kernel_reasons(call)
    return not (native_runs and direct_is_cheaper(call, feature_count(call.similarity, call.width)))


def run(call: AttentionInputs) -> Result:
    if call.state is not None:
        return chunked.run_state(call)
    result = _run(call)
    # An attended non-finite number makes the answer non-finite: checking the answer is cheaper than all three inputs.
    if ops.all_finite(result.out.detach()):
        return result
    if ops.all_finite(call.query, call.key, call.value):
        return blockwise.replace_rows(call, result)
    exact = sdpa.run_nonfinite(call, _run)
    assert exact is not None
    return exact


def _run(call: AttentionInputs) -> Result:
    maps, key_range = feature_maps(call.similarity, call.width), key_range_of(call)
    query, key, value = call.query, call.key, call.value
    if maps.rule is None or native_kernel_reasons(call):
        # torch computes the features, or the sums.
        query, key, value = compact(query), compact(key), compact(value)
    fully_masked = fully_masked_rows(call.extent, key_range, (0, call.extent.len_q), query.device)
    if fully_masked is not None:  # the features of such a query may overflow, and ∞·0 is NaN
        query = query.masked_fill(fully_masked, 0.0)
    needs_grad = call.needs_grad
    if map_requires_grad(maps, call):
        (query, key, value, maps), needs_grad = map_in_advance(query, key, value, maps, key_range), True
    with torch.no_grad():
        if native_kernel_reasons(call):
            RUNS["linear.torch"] += 1
            dtype = compute_dtype(query.dtype)
            out = forward(Scan(query.to(dtype), key.to(dtype), value.to(dtype), maps, key_range))
        else:
            RUNS["linear.native"] += 1
            direct = direct_is_cheaper(call, maps.features)
            out = run_native(query.detach(), key.detach(), value.detach(), maps, key_range, direct)
    if needs_grad:
        differentiable = LinearAttention.apply(query, key, value, maps, key_range, out)
        assert isinstance(differentiable, Tensor)
        # Fully masked rows pass no gradient on.
        out = differentiable if fully_masked is None else differentiable.masked_fill(fully_masked, 0.0)
    return Result(out.to(call.query.dtype), None, None)


def gradients_of_call(call: AttentionInputs, grad: Tensor) -> list[Tensor | None]:
    """The gradients of query, key, value, bias and sink for a finite answer, whose numbers they do not need."""
    key_range = key_range_of(call)
    fully_masked = fully_masked_rows(call.extent, key_range, (0, call.extent.len_q), grad.device)
    query, key, value = compact(call.query), compact(call.key), compact(call.value)
    with torch.enable_grad():
        query = query if fully_masked is None else query.masked_fill(fully_masked, 0.0)
        out = LinearAttention.apply(query, key, value, feature_maps(call.similarity, call.width), key_range, grad)
        assert isinstance(out, Tensor)
        out = out if fully_masked is None else out.masked_fill(fully_masked, 0.0)
    inputs = call.query, call.key, call.value, None, None
    return sdpa.needed_gradients(inputs, [t is not None and t.requires_grad for t in inputs], [(out, grad)])


def fully_masked_rows(
    extent: Extent, key_range: KeyRange, rows: tuple[int, int], device: torch.device
) -> Bool[Tensor, "#batch 1 rows 1"] | None:
    """Which of the queries rows[0] to rows[1] - 1 attend to no key; None if sizes rule that out."""
    if key_range.keep is None and (key_range.offset is None or key_range.offset >= 0):
        return None
    kept = torch.ones(1, extent.len_k, dtype=torch.bool, device=device) if key_range.keep is None else key_range.keep
    last = torch.full((rows[1] - rows[0],), extent.len_k, device=device)
    if key_range.offset is not None:
        last = (torch.arange(rows[0] + 1, rows[1] + 1, device=device) + key_range.offset).clamp(0, extent.len_k)
    attended = torch.nn.functional.pad(kept.cumsum(1), (1, 0))[:, last]
    return (attended == 0)[:, None, :, None]


def map_in_advance(
    query: Tensor, key: Tensor, value: Tensor, maps: FeatureMaps, key_range: KeyRange
) -> tuple[Tensor, Tensor, Tensor, FeatureMaps]:
    """Features instead of queries and keys, with identity maps: for autograd, which must record a map with parameters,
    and for the native kernel, which does not have all maps."""
    dtype = compute_dtype(key.dtype)
    if key_range.keep is not None:
        key = key.masked_fill(~key_range.keep[:, None, :, None], 0.0)
    rule = FeatureRule(IDENTITY, maps.features)
    mapped = FeatureMaps(identity, identity, maps.features, rule, maps.normalize)
    features = maps.query(query.to(dtype)) if query.shape[2] else query
    return features, maps.key(key.to(dtype)), value.to(dtype), mapped


def map_requires_grad(maps: FeatureMaps, call: AttentionInputs) -> bool:
    """Whether gradients are recorded and the map has parameters that require them."""
    if maps.rule is not None or not torch.is_grad_enabled():
        return False
    probe = torch.zeros(1, 1, 1, call.width, dtype=compute_dtype(call.query.dtype), device=call.query.device)
    return maps.key(probe).requires_grad


class KeyRange(NamedTuple):
    """The keys that query i attends to: j ≤ i + offset (None: all) and keep[b, j] (None: all)."""

    offset: int | None
    keep: Bool[Tensor, "batch len_k"] | None


class Chunk(NamedTuple):
    """Queries i0 … i1 − 1; all of them attend to the keys before j0, some of them to j0 … j1 − 1."""

    i0: int
    i1: int
    j0: int
    j1: int


class Scan(NamedTuple):
    """Queries, keys and values in the compute dtype, with their feature maps, processed chunk by chunk."""

    query: Float[Tensor, "batch heads_q len_q width"]
    key: Float[Tensor, "batch heads_kv len_k width"]
    value: Float[Tensor, "batch heads_kv len_k width_v"]
    maps: FeatureMaps
    key_range: KeyRange

    @property
    def size(self) -> int:
        """Tokens in a chunk."""
        batch, heads = self.query.shape[:2]
        return max(1, min(MAX_CHUNK_TOKENS, CHUNK_NUMBERS // max(1, self.maps.features * batch * heads)))

    def chunks(self) -> list[Chunk]:
        len_q, len_k, offset = self.query.shape[2], self.key.shape[2], self.key_range.offset
        starts = [(i0, min(i0 + self.size, len_q)) for i0 in range(0, len_q, self.size)]
        if offset is None:
            return [Chunk(i0, i1, len_k, len_k) for i0, i1 in starts]
        return [Chunk(i0, i1, *(min(max(i + offset, 0), len_k) for i in (i0, i1))) for i0, i1 in starts]

    def empty_state(self) -> Tensor:
        """The state before any key, (batch, heads_kv, features, width_v + 1)."""
        batch, heads = self.key.shape[:2]
        return self.key.new_zeros(batch, heads, self.maps.features, self.value.shape[3] + 1)

    def features_of_queries(self, chunk: Chunk) -> Tensor:
        """Features of a chunk of queries, (batch, heads_kv, group·rows, features)."""
        return fold_group(self.maps.query(self.query[:, :, chunk.i0 : chunk.i1]), self.key.shape[1])

    def features_of_keys(self, j0: int, j1: int) -> Tensor:
        """Features of keys, 0 for masked keys."""
        return self._kept(self.maps.key(self._kept(self.key[:, :, j0:j1], j0, j1)), j0, j1)

    def values(self, j0: int, j1: int) -> Tensor:
        """(v, 1) of each key, 0 for masked keys."""
        value = self.value[:, :, j0:j1]
        return self._kept(torch.cat([value, value.new_ones((*value.shape[:3], 1))], dim=-1), j0, j1)

    def state_of_keys(self, j0: int, j1: int) -> Tensor:
        """Σ_j φ(k_j) ṽ_jᵀ."""
        return self.features_of_keys(j0, j1).mT @ self.values(j0, j1)

    def sums(self, chunk: Chunk, state: Tensor | None) -> Tensor:
        """y of a chunk, (batch, heads_q, rows, width_v + 1); state: of the keys before j0."""
        queries = self.features_of_queries(chunk)
        y = None if state is None else queries @ state
        if y is None or chunk.j0 < chunk.j1:
            scores = self.mask_causal(chunk, queries @ self.features_of_keys(chunk.j0, chunk.j1).mT)
            inside = scores @ self.values(chunk.j0, chunk.j1)
            y = inside if y is None else y + inside
        return unfold_group(y, self.query.shape[1])

    def mask_causal(self, chunk: Chunk, pairs: Tensor) -> Tensor:
        """`pairs` of the chunk's queries and of keys j0 … j1 − 1, 0 for pairs that do not attend."""
        assert self.key_range.offset is not None
        rows = torch.arange(chunk.i0, chunk.i1, device=pairs.device).unsqueeze(-1) + self.key_range.offset
        keep = torch.arange(chunk.j0, chunk.j1, device=pairs.device) <= rows
        group = self.query.shape[1] // self.key.shape[1]
        return pairs.masked_fill(~keep.repeat(group, 1), 0.0)

    def _kept(self, x: Tensor, j0: int, j1: int) -> Tensor:
        if self.key_range.keep is None:
            return x
        return x.masked_fill(~self.key_range.keep[:, None, j0:j1, None], 0.0)


def forward(scan: Scan, before: Tensor | None = None) -> Float[Tensor, "batch heads_q len_q width_v"]:
    rows = [normalized(y, scan.maps.normalize) for y, _ in chunk_sums(scan, before)]
    if not rows:
        return scan.query.new_zeros((*scan.query.shape[:3], scan.value.shape[3]))
    return torch.cat(rows, dim=2)


def chunk_sums(scan: Scan, before: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """y of each chunk, (batch, heads_q, rows, width_v + 1), and the state S that it was computed from.

    before: the state to start from, of keys that all these queries attend to.
    """
    state, added = scan.empty_state() if before is None else before, 0
    for chunk in scan.chunks():
        while added < chunk.j0:
            stop = min(added + scan.size, chunk.j0)
            state = state + scan.state_of_keys(added, stop)
            added = stop
        yield scan.sums(chunk, state), state


def gradients(scan: Scan, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, given that of the output."""
    by_query, by_sums = query_gradients(scan, grad)
    found = by_query, *key_value_gradients(scan, by_sums)
    if grad.dtype is torch.float64 or ops.all_finite(*(part.detach() for part in found)):
        return found
    # The division by a subnormal sum overflows in float32, before a small feature makes it small again.
    wide = scan._replace(query=scan.query.double(), key=scan.key.double(), value=scan.value.double())
    by_query, by_key, by_value = gradients(wide, grad.double())
    return by_query.to(grad.dtype), by_key.to(grad.dtype), by_value.to(grad.dtype)


def query_gradients(scan: Scan, grad: Tensor, before: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """The gradient of the queries, and g of each chunk with the heads of a group as rows."""
    heads_q, heads_kv = scan.query.shape[1], scan.key.shape[1]
    by_query, by_sums = [], []
    for chunk, (y, state) in zip(scan.chunks(), chunk_sums(scan, before), strict=True):
        by_numerator = grad[:, :, chunk.i0 : chunk.i1]
        if scan.maps.normalize:
            by_numerator = divided(by_numerator, y[..., -1:])
            by_denominator = -(by_numerator * normalized(y, True)).sum(-1, keepdim=True)
        else:
            by_denominator = by_numerator.new_zeros((*by_numerator.shape[:3], 1))
        g = fold_group(torch.cat([by_numerator, by_denominator], dim=-1), heads_kv)
        by_features = g @ state.mT
        if chunk.j0 < chunk.j1:
            pairs = scan.mask_causal(chunk, g @ scan.values(chunk.j0, chunk.j1).mT)
            by_features = by_features + pairs @ scan.features_of_keys(chunk.j0, chunk.j1)
        by_query.append(
            map_gradient(scan.maps.query, scan.query[:, :, chunk.i0 : chunk.i1], unfold_group(by_features, heads_q))
        )
        by_sums.append(g)
    return torch.cat(by_query, dim=2) if by_query else torch.zeros_like(scan.query), by_sums


def sum_over_queries(scan: Scan, by_sums: list[Tensor]) -> Tensor:
    """T, summed over all these queries."""
    total = scan.empty_state()
    for chunk, g in zip(reversed(scan.chunks()), reversed(by_sums), strict=True):
        total = total + scan.features_of_queries(chunk).mT @ g
    return total


def key_value_gradients(scan: Scan, by_sums: list[Tensor], after: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values. after: T to start from, of queries that attend to all these keys."""
    chunks, len_k = scan.chunks(), scan.key.shape[2]
    later = scan.empty_state() if after is None else after
    by_key, by_value = torch.zeros_like(scan.key), torch.zeros_like(scan.value)
    end = chunks[-1].j1 if chunks else 0

    def add_keys(j0: int, j1: int, inside: tuple[Chunk, Tensor, Tensor] | None = None) -> None:
        features, values = scan.features_of_keys(j0, j1), scan.values(j0, j1)
        by_features, by_values = values @ later.mT, features @ later
        if inside is not None:
            chunk, queries, g = inside
            by_features = by_features + scan.mask_causal(chunk, g @ values.mT).mT @ queries
            by_values = by_values + scan.mask_causal(chunk, queries @ features.mT).mT @ g
        by_features, by_values = scan._kept(by_features, j0, j1), scan._kept(by_values, j0, j1)
        key = scan._kept(scan.key[:, :, j0:j1], j0, j1)
        by_key[:, :, j0:j1] = scan._kept(map_gradient(scan.maps.key, key, by_features), j0, j1)
        by_value[:, :, j0:j1] = by_values[..., :-1]

    if after is not None:
        for stop in range(len_k, end, -scan.size):
            add_keys(max(end, stop - scan.size), stop)
    for chunk, g in zip(reversed(chunks), reversed(by_sums), strict=True):
        queries = scan.features_of_queries(chunk)
        if chunk.j0 < chunk.j1:
            add_keys(chunk.j0, chunk.j1, (chunk, queries, g))
        later = later + queries.mT @ g
    first = chunks[0].j0 if chunks else 0
    for stop in range(first, 0, -scan.size):
        add_keys(max(0, stop - scan.size), stop)
    return by_key, by_value


def map_gradient(phi: TensorMap, x: Tensor, by_features: Tensor) -> Tensor:
    """The gradient of x, given that of φ(x)."""
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        start = x if twice and x.requires_grad else x.detach().requires_grad_()
        end = phi(start)
        if not end.requires_grad:  # φ does not depend on x
            return torch.zeros_like(x)
        (gradient,) = torch.autograd.grad(end, start, by_features, create_graph=twice, allow_unused=True)
    return torch.zeros_like(x) if gradient is None else gradient


class LinearAttention(torch.autograd.Function):
    """Returns `out`, which the caller has computed, with `gradients` as its derivative; differentiable twice."""

    @staticmethod
    def forward(ctx, query, key, value, maps, key_range, out):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(query, key, value)
        ctx.maps, ctx.key_range = maps, key_range
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value = ctx.saved_tensors
        dtype = compute_dtype(query.dtype)
        scan = Scan(query.to(dtype), key.to(dtype), value.to(dtype), ctx.maps, ctx.key_range)
        computed = gradients(scan, grad.to(dtype))
        by_query, by_key, by_value = (g.to(t.dtype) for g, t in zip(computed, (query, key, value), strict=True))
        return by_query, by_key, by_value, None, None, None


def chunk_tokens(features: int) -> int:
    """Tokens in a chunk of the native kernel; those of torch without it."""
    return MAX_CHUNK_TOKENS if ops.reasons() else ops.chunk_tokens(features)


def native_flops(call: AttentionInputs, features: int) -> tuple[int, int]:
    """Flops of the native kernel with a state, and with all pairs scored; it can do either."""
    extent = call.extent
    queries, keys = extent.batch * extent.heads * extent.len_q, extent.batch * call.heads_kv * extent.len_k
    pairs = attended_pairs(call)
    inside = queries * chunk_tokens(features) // 2 if pairs < queries * extent.len_k else 0
    by_state = linear_flops(queries, keys, features, call.width, call.width_v, inside)
    return by_state, product_flops(pairs, call.width + call.width_v)


def direct_is_cheaper(call: AttentionInputs, features: int) -> bool:
    """Whether the native kernel scores all pairs instead of using a state; possible only for maps that it knows."""
    by_state, by_scores = native_flops(call, features)
    return has_native_map(call.similarity) and by_scores < by_state


def run_native(
    query: Tensor | None,
    key: Tensor,
    value: Tensor,
    maps: FeatureMaps,
    key_range: KeyRange,
    direct: bool = False,
    state: Float[Tensor, "b h floats"] | None = None,
) -> Float[Tensor, "b hq n dv"]:
    """The output of the native kernel.

    Args:
        query: (batch, heads_q, len_q, width); None to add the keys to the state only.
        key: (batch, heads_kv, len_k, width).
        value: (batch, heads_kv, len_k, width_v).
        maps: The feature maps; those that the kernel does not know are computed by torch, a piece at a time.
        key_range: Which keys each query attends to.
        direct: Score all pairs instead of using a state; the state is then only read.
        state: S to start from, of keys that all these queries attend to, in the layout of the kernel. These keys are
            added to it.
    """
    batch, heads_kv, len_k, _ = key.shape
    query = key.new_zeros(batch, heads_kv, 0, key.shape[3]) if query is None else query
    offset, keep = key_range
    if maps.rule is None and direct:
        query, key, value, maps = map_in_advance(query, key, value, maps, key_range)
    if maps.rule is not None:
        rows = query if query.shape[2] or state is None else None
        out = linear_attention(
            rows, key, value, maps.rule, keep=keep, offset=offset, normalize=maps.normalize, state=state, direct=direct
        )
        return query.new_zeros(*query.shape[:3], value.shape[3]) if out is None else out
    if state is None:
        state = torch.zeros(batch, heads_kv, linear_state_size(FeatureRule(IDENTITY, maps.features), value.shape[3]))
    size = max(64, PIECE_NUMBERS // max(1, maps.features * batch * query.shape[1]) // 64 * 64)
    outs, added = [query.new_zeros(*query.shape[:2], 0, value.shape[3])], 0

    def add_keys(rows: Tensor | None, end: int, offset: int | None) -> Tensor:
        """Adds the keys up to `end` to the state, and returns the output for some queries."""
        nonlocal added
        new, added = slice(added, end), end
        part = KeyRange(offset, None if keep is None else keep[:, new])
        rows = query[:, :, :0] if rows is None else rows
        return run_native(*map_in_advance(rows, key[:, :, new], value[:, :, new], maps, part), part, state=state)

    first = len_k if offset is None or not query.shape[2] else min(max(offset, 0), len_k)
    for end in range(size, first + size, size):
        add_keys(None, min(end, first), None)
    for i0 in range(0, query.shape[2], size):
        rows, before = query[:, :, i0 : i0 + size], added
        end = len_k if offset is None else min(max(i0 + rows.shape[2] + offset, before), len_k)
        outs.append(add_keys(rows, end, None if offset is None else i0 + offset - before).to(query.dtype))
    return torch.cat(outs, dim=2)


LINEAR = Backend(
    name="linear",
    summary="one sum over the keys for all queries, by a feature map",
    bound={torch.float64: 64.0, torch.float32: 64.0, torch.bfloat16: 1.0, torch.float16: 1.0},
    same_bits_across=("runs at the same number of threads", "layouts"),
    cost=cost,
    run=run,
    lacks=("similarities without features", "tracing", "weights", "dropout", "empty values", "empty queries"),
    has_states=True,
    more_reasons=more_reasons,
)
