"""`linear`: where sim(q, k) = φ(q)·φ(k), the sum over the keys moves inside, and N² becomes N.

    V'_i = φ(q_i)·Σ_j φ(k_j) v_jᵀ / φ(q_i)·Σ_j φ(k_j)

The two sums are a state of features × (width_v + 1) numbers. Without `Causal` every query reads the same one; with it
the state grows from chunk to chunk, and inside a chunk the products are made one by one. On the CPU a native kernel
does it (`native`), elsewhere and in float64 torch (`chunks`), which also has the derivative.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..cost.price import Cost, linear_flops, product_flops
from ..features import MOST_FEATURES, Map, Maps, feature_count, is_known, maps_of
from ..inputs import AttentionInputs, compact, compute_dtype, fold_group, unfold_group
from ..masks import Causal, Extent, Mask, Padding, Window
from ..ops.kernels import IDENTITY, Rule, linear, state_floats
from ..shapes import Bool, Float
from ..similarity import FeatureMap, Polynomial
from . import sdpa
from . import work as priced
from .base import RUNS, Backend, kernel_reasons, population
from .reference import Result


def reasons_against(call: AttentionInputs) -> tuple[str, ...]:
    similarity = call.similarity
    if not isinstance(similarity, Polynomial | FeatureMap):
        return (f"{type(similarity).__name__} is no product of features: the sum over the keys cannot move inside",)
    if call.traced:
        return ("under torch.compile, torch.export, torch.func and forward-mode AD the numbers cannot be looked at",)
    reasons = [reason for part in _parts(call) if (reason := _against(part))]
    if call.return_weights:
        reasons.append("return_weights asks for the len_q x len_k matrix that linear never makes")
    if call.dropout:
        reasons.append("dropout is for single weights, and linear never makes them")
    if call.width_v == 0:
        reasons.append("values have no width")
    if call.width == 0:
        reasons.append("queries and keys have no width")
    if not reasons:
        count = feature_count(similarity, call.width)
        if count > MOST_FEATURES:
            reasons.append(f"{count} features: a state of that size is dearer than the scores")
    return tuple(reasons)


def _parts(call: AttentionInputs) -> tuple[Mask, ...]:
    return () if call.mask is None else call.mask.parts()


def _against(mask: Mask) -> str | None:
    if isinstance(mask, Causal | Padding):
        return None
    if isinstance(mask, Window):
        return "a Window lets go of keys again, and what was added to the state cannot be taken out of it exactly"
    return f"one state serves Causal and Padding, which says which keys count for all; {type(mask).__name__} may not"


def key_range_of(call: AttentionInputs) -> KeyRange:
    """The mask as the state needs it."""
    return key_range_through(call.mask, call.extent, call.query.device)


def key_range_through(mask: Mask | None, extent: Extent, device: torch.device) -> KeyRange:
    keep = None
    for part in () if mask is None else mask.parts():
        if not isinstance(part, Causal):
            kept = part.keys_kept(extent, device)
            assert kept is not None
            keep = kept if keep is None else keep & kept
    return KeyRange(diagonal(mask, extent), keep)


def diagonal(mask: Mask | None, extent: Extent) -> int | None:
    """The least offset of the `Causal`s in a mask; None where each lets every query see all keys."""
    bands = [part.band(extent) for part in (() if mask is None else mask.parts()) if isinstance(part, Causal)]
    return min((band.upper - 1 for band in bands if band is not None and band.upper is not None), default=None)


def cost(call: AttentionInputs) -> Cost:
    extent, features = call.extent, feature_count(call.similarity, call.width)
    queries, keys = extent.batch * extent.heads * extent.len_q, extent.batch * call.heads_kv * extent.len_k
    size = compute_dtype(call.query.dtype).itemsize
    chunk = chunk_tokens(features)
    flops = native_flops(call, features)
    held = size * (extent.batch * call.heads_kv * features * (call.width_v + 1) + chunk * (features + 4 * call.width))
    if native_reasons_against(call):
        steps = -(-extent.len_q // MOST_TOKENS)
        size_of_chunk = size_of(features, extent.batch, extent.heads)
        work = partial(priced.linear, call, features, False, size_of_chunk, "torch")
        return Cost(flops[0], 0, held, 300e-6 * max(1, steps), work=work)
    if not is_known(call.similarity):  # features are written out and read again
        work = partial(priced.linear, call, features, False, chunk, "mapped")
        return Cost(flops[0], 2 * size * (queries + keys) * features, held, 80e-6, work=work)
    direct = scores_are_cheaper(call, features)
    work = partial(priced.linear, call, features, direct, chunk, "native")
    return Cost(min(flops), 0, held, 25e-6, work=work)


def sums_are_cheaper(call: AttentionInputs) -> bool:
    """Whether the backend works with a state, and does not score every pair, for which the native kernel is as good."""
    native_serves = not native_reasons_against(call)
    return not (native_serves and scores_are_cheaper(call, feature_count(call.similarity, call.width)))


def run(call: AttentionInputs) -> Result:
    result = _run(call)
    # A number that is not finite and that somebody sees shows in the answer: one look at that, and not at all three.
    if ops.all_finite(result.out.detach()):
        return result
    exact = sdpa.run_nonfinite(call, _run)
    assert exact is not None
    return exact


def _run(call: AttentionInputs) -> Result:
    maps, sight = maps_of(call.similarity, call.width), key_range_of(call)
    query, key, value = call.query, call.key, call.value
    if maps.rule is None or native_reasons_against(call):
        # torch's products map them, or add them up.
        query, key, value = compact(query), compact(key), compact(value)
    blind = fully_masked_rows(call.extent, sight, (0, call.extent.len_q), query.device)
    if blind is not None:  # the features of such a query may overflow, and ∞·0 is not 0
        query = query.masked_fill(blind, 0.0)
    differs = call.needs_grad
    if map_learns(maps, call):
        (query, key, value, maps), differs = mapped_ahead(query, key, value, maps, sight), True
    with torch.no_grad():
        if native_reasons_against(call):
            RUNS["linear.torch"] += 1
            dtype = compute_dtype(query.dtype)
            out = forward(Scan(query.to(dtype), key.to(dtype), value.to(dtype), maps, sight))
        else:
            RUNS["linear.native"] += 1
            direct = scores_are_cheaper(call, maps.features)
            out = run_native(query.detach(), key.detach(), value.detach(), maps, sight, direct)
    if differs:
        found = Differentiable.apply(query, key, value, maps, sight, out)
        assert isinstance(found, Tensor)
        # Nothing comes back from where nothing was seen.
        out = found if blind is None else found.masked_fill(blind, 0.0)
    return Result(out.to(call.query.dtype), None, None)


def fully_masked_rows(
    extent: Extent, sight: KeyRange, rows: tuple[int, int], device: torch.device
) -> Bool[Tensor, "#batch 1 rows 1"] | None:
    """Which of the queries rows[0] to rows[1] - 1 see no key; None where sizes say that there are none."""
    if sight.keep is None and (sight.offset is None or sight.offset >= 0):
        return None
    kept = torch.ones(1, extent.len_k, dtype=torch.bool, device=device) if sight.keep is None else sight.keep
    last = torch.full((rows[1] - rows[0],), extent.len_k, device=device)
    if sight.offset is not None:
        last = (torch.arange(rows[0] + 1, rows[1] + 1, device=device) + sight.offset).clamp(0, extent.len_k)
    seen = torch.nn.functional.pad(kept.cumsum(1), (1, 0))[:, last]
    return (seen == 0)[:, None, :, None]


def _same(x: Tensor) -> Tensor:
    return x


def _cleared(key: Tensor, sight: KeyRange) -> Tensor:
    return key if sight.keep is None else key.masked_fill(~sight.keep[:, None, :, None], 0.0)


def mapped_ahead(
    query: Tensor, key: Tensor, value: Tensor, maps: Maps, sight: KeyRange
) -> tuple[Tensor, Tensor, Tensor, Maps]:
    """Features instead of queries and keys, and the maps for those: of a map with parameters of its own, which autograd
    has to see at work on all tokens."""
    dtype = compute_dtype(query.dtype)
    query, key, value = maps.query(query.to(dtype)), maps.key(_cleared(key, sight).to(dtype)), value.to(dtype)
    return query, key, value, Maps(_same, _same, maps.features, Rule(IDENTITY, maps.features), maps.normalize)


def map_learns(maps: Maps, call: AttentionInputs) -> bool:
    """Whether the map has something to learn, beside what is given to it, and somebody asks for derivatives."""
    if maps.rule is not None or not torch.is_grad_enabled():
        return False
    probe = torch.zeros(1, 1, 1, call.width, dtype=compute_dtype(call.query.dtype), device=call.query.device)
    return maps.key(probe).requires_grad


LINEAR = Backend(
    name="linear",
    summary="one sum over the keys for all queries, by features",
    bound={torch.float64: 64.0, torch.float32: 64.0, torch.bfloat16: 1.0, torch.float16: 1.0},
    keeps=("runs at the same number of threads", "layouts"),
    reasons_against=reasons_against,
    cost=cost,
    run=run,
)


# Features of a chunk, at most, and tokens.
TILE = 1 << 20
MOST_TOKENS = 128


class KeyRange(NamedTuple):
    """Which keys a query sees: j ≤ i + offset (None: all), and keep[b, j] (None: all)."""

    offset: int | None
    keep: Bool[Tensor, "batch len_k"] | None


class Chunk(NamedTuple):
    """Queries i0 … i1 − 1; the keys before j0 are seen by all of them, j0 … j1 − 1 by some."""

    i0: int
    i1: int
    j0: int
    j1: int


def chunks_of(len_q: int, len_k: int, offset: int | None, size: int) -> Iterator[Chunk]:
    for i0 in range(0, len_q, size):
        i1 = min(i0 + size, len_q)
        if offset is None:
            yield Chunk(i0, i1, len_k, len_k)
        else:
            yield Chunk(i0, i1, min(max(i0 + offset, 0), len_k), min(max(i1 + offset, 0), len_k))


def size_of(features: int, batch: int, heads: int) -> int:
    return max(1, min(MOST_TOKENS, TILE // max(1, features * batch * heads)))


class Scan(NamedTuple):
    """Queries, keys and values in the arithmetic's dtype, with their maps."""

    query: Float[Tensor, "batch heads_q len_q width"]
    key: Float[Tensor, "batch heads_kv len_k width"]
    value: Float[Tensor, "batch heads_kv len_k width_v"]
    maps: Maps
    sight: KeyRange

    @property
    def size(self) -> int:
        return size_of(self.maps.features, self.query.shape[0], self.query.shape[1])

    def chunks(self) -> list[Chunk]:
        return list(chunks_of(self.query.shape[2], self.key.shape[2], self.sight.offset, self.size))

    def nothing(self) -> Tensor:
        """The state before any key."""
        batch, heads = self.key.shape[:2]
        return self.key.new_zeros(batch, heads, self.maps.features, self.value.shape[3] + 1)

    def features_of_queries(self, chunk: Chunk) -> Tensor:
        """(batch, heads_kv, group·rows, features)."""
        return fold_group(self.maps.query(self.query[:, :, chunk.i0 : chunk.i1]), self.key.shape[1])

    def features_of_keys(self, j0: int, j1: int) -> Tensor:
        """0 where a key counts for nobody."""
        return self._kept(self.maps.key(self._kept(self.key[:, :, j0:j1], j0, j1)), j0, j1)

    def values(self, j0: int, j1: int) -> Tensor:
        """(v, 1), and 0 where a key counts for nobody."""
        value = self.value[:, :, j0:j1]
        return self._kept(torch.cat([value, value.new_ones((*value.shape[:3], 1))], dim=-1), j0, j1)

    def seen(self, chunk: Chunk, pairs: Tensor) -> Tensor:
        """Products of the chunk's queries and of keys j0 … j1 − 1, 0 where a query does not see the key."""
        assert self.sight.offset is not None
        rows = torch.arange(chunk.i0, chunk.i1, device=pairs.device).unsqueeze(-1) + self.sight.offset
        keep = torch.arange(chunk.j0, chunk.j1, device=pairs.device) <= rows
        group = self.query.shape[1] // self.key.shape[1]
        return pairs.masked_fill(~keep.repeat(group, 1), 0.0)

    def _kept(self, x: Tensor, j0: int, j1: int) -> Tensor:
        if self.sight.keep is None:
            return x
        return x.masked_fill(~self.sight.keep[:, None, j0:j1, None], 0.0)


def forward(scan: Scan, before: Tensor | None = None) -> Float[Tensor, "batch heads_q len_q width_v"]:
    rows = [quotient(y, scan.maps.normalize) for y, _ in sums(scan, before)]
    if not rows:
        return scan.query.new_zeros((*scan.query.shape[:3], scan.value.shape[3]))
    return torch.cat(rows, dim=2)


def sums(scan: Scan, before: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """y of each chunk, (batch, heads_q, rows, width_v + 1), and the state that it found. before: S to start from, of
    keys that all these queries see."""
    state, absorbed = scan.nothing() if before is None else before, 0
    for chunk in scan.chunks():
        while absorbed < chunk.j0:
            stop = min(absorbed + scan.size, chunk.j0)
            state = state + scan.features_of_keys(absorbed, stop).mT @ scan.values(absorbed, stop)
            absorbed = stop
        queries = scan.features_of_queries(chunk)
        y = queries @ state
        if chunk.j0 < chunk.j1:
            scores = scan.seen(chunk, queries @ scan.features_of_keys(chunk.j0, chunk.j1).mT)
            y = y + scores @ scan.values(chunk.j0, chunk.j1)
        yield unfold_group(y, scan.query.shape[1]), state


def quotient(y: Tensor, normalize: bool) -> Tensor:
    """Above by below; 0 where the sum below is 0."""
    above, below = y[..., :-1], y[..., -1:]
    if not normalize:
        return above
    return torch.where(below == 0, 0.0, above / torch.where(below == 0, 1.0, below))


def derivatives(scan: Scan, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """By query, key and value, for the derivative `grad` by the answer."""
    by_query, by_sums = of_queries(scan, grad)
    return by_query, *of_keys(scan, by_sums)


def of_queries(scan: Scan, grad: Tensor, before: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """The derivative by the queries, and g of each chunk, the heads of a group as rows."""
    heads_q, heads_kv = scan.query.shape[1], scan.key.shape[1]
    by_query, by_sums = [], []
    for chunk, (y, state) in zip(scan.chunks(), sums(scan, before), strict=True):
        own = grad[:, :, chunk.i0 : chunk.i1]
        if scan.maps.normalize:
            below = y[..., -1:]
            own = torch.where(below == 0, 0.0, own / torch.where(below == 0, 1.0, below))
            part = -(own * quotient(y, True)).sum(-1, keepdim=True)
        else:
            part = own.new_zeros((*own.shape[:3], 1))
        g = fold_group(torch.cat([own, part], dim=-1), heads_kv)
        by_features = g @ state.mT
        if chunk.j0 < chunk.j1:
            pairs = scan.seen(chunk, g @ scan.values(chunk.j0, chunk.j1).mT)
            by_features = by_features + pairs @ scan.features_of_keys(chunk.j0, chunk.j1)
        by_query.append(
            through(scan.maps.query, scan.query[:, :, chunk.i0 : chunk.i1], unfold_group(by_features, heads_q))
        )
        by_sums.append(g)
    return torch.cat(by_query, dim=2) if by_query else torch.zeros_like(scan.query), by_sums


def summed(scan: Scan, by_sums: list[Tensor]) -> Tensor:
    """T of all these queries."""
    total = scan.nothing()
    for chunk, g in zip(reversed(scan.chunks()), reversed(by_sums), strict=True):
        total = total + scan.features_of_queries(chunk).mT @ g
    return total


def of_keys(scan: Scan, by_sums: list[Tensor], after: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The derivatives by keys and values. after: T to start from, of queries that see all these keys."""
    chunks, len_k = scan.chunks(), scan.key.shape[2]
    later = scan.nothing() if after is None else after
    by_key, by_value = [], []
    end = chunks[-1].j1 if chunks else 0

    def take(j0: int, j1: int, chunk: Chunk | None, queries: Tensor | None, g: Tensor | None) -> None:
        features, values = scan.features_of_keys(j0, j1), scan.values(j0, j1)
        by_features, by_values = values @ later.mT, features @ later
        if chunk is not None and queries is not None and g is not None:
            by_features = by_features + scan.seen(chunk, g @ values.mT).mT @ queries
            by_values = by_values + scan.seen(chunk, queries @ features.mT).mT @ g
        by_features, by_values = scan._kept(by_features, j0, j1), scan._kept(by_values, j0, j1)
        key = scan._kept(scan.key[:, :, j0:j1], j0, j1)
        by_key.append(scan._kept(through(scan.maps.key, key, by_features), j0, j1))
        by_value.append(by_values[..., :-1])

    if after is not None:
        for stop in range(len_k, end, -scan.size):
            take(max(end, stop - scan.size), stop, None, None, None)
    elif end < len_k:  # nobody sees these
        by_key.append(torch.zeros_like(scan.key[:, :, end:]))
        by_value.append(torch.zeros_like(scan.value[:, :, end:]))
    for chunk, g in zip(reversed(chunks), reversed(by_sums), strict=True):
        queries = scan.features_of_queries(chunk)
        if chunk.j0 < chunk.j1:
            take(chunk.j0, chunk.j1, chunk, queries, g)
        later = later + queries.mT @ g
    first = chunks[0].j0 if chunks else 0
    for stop in range(first, 0, -scan.size):
        take(max(0, stop - scan.size), stop, None, None, None)
    if not by_key:
        return torch.zeros_like(scan.key), torch.zeros_like(scan.value)
    by_key.reverse()
    by_value.reverse()
    return torch.cat(by_key, dim=2), torch.cat(by_value, dim=2)


def through(phi: Map, x: Tensor, by_features: Tensor) -> Tensor:
    """The derivative by x, for that by φ(x)."""
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        start = x if twice and x.requires_grad else x.detach().requires_grad_()
        end = phi(start)
        if not end.requires_grad:  # φ does not depend on x
            return torch.zeros_like(x)
        (found,) = torch.autograd.grad(end, start, by_features, create_graph=twice, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


class Differentiable(torch.autograd.Function):
    """`forward`, or what the caller found to be the same, with the derivative above; it can be taken twice."""

    @staticmethod
    def forward(ctx, query, key, value, maps, sight, out):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(query, key, value)
        ctx.maps, ctx.sight = maps, sight
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value = ctx.saved_tensors
        dtype = compute_dtype(query.dtype)
        scan = Scan(query.to(dtype), key.to(dtype), value.to(dtype), ctx.maps, ctx.sight)
        found = derivatives(scan, grad.to(dtype))
        by_query, by_key, by_value = (g.to(t.dtype) for g, t in zip(found, (query, key, value), strict=True))
        return by_query, by_key, by_value, None, None, None


# Features of a piece: tokens × heads × features.
PIECE = 1 << 19


def native_reasons_against(call: AttentionInputs) -> tuple[str, ...]:
    """Why the native kernel does not serve; torch serves then."""
    return kernel_reasons(call)


def chunk_tokens(features: int) -> int:
    """Tokens in a chunk of the kernel, for the count; torch's where there is no kernel."""
    return MOST_TOKENS if ops.reasons() else ops.chunk_tokens(features)


def native_flops(call: AttentionInputs, features: int) -> tuple[int, int]:
    """With a state, and with every score made one by one: the kernel can do either."""
    extent = call.extent
    queries, keys = extent.batch * extent.heads * extent.len_q, extent.batch * call.heads_kv * extent.len_k
    pairs = population(call)
    inside = queries * chunk_tokens(features) // 2 if pairs < queries * extent.len_k else 0
    by_state = linear_flops(queries, keys, features, call.width, call.width_v, inside)
    return by_state, product_flops(pairs, call.width + call.width_v)


def scores_are_cheaper(call: AttentionInputs, features: int) -> bool:
    """Maps that the kernel does not know come as features, and those are many."""
    by_state, one_by_one = native_flops(call, features)
    return is_known(call.similarity) and one_by_one < by_state


def run_native(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    maps: Maps,
    sight: KeyRange,
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


def _in_pieces(query: Tensor, key: Tensor, value: Tensor, maps: Maps, sight: KeyRange, state: Tensor | None) -> Tensor:
    """Features of some tokens at a time, for the kernel to add to its state and to answer from it."""
    batch, heads_q, len_q, _ = query.shape
    heads_kv, len_k, dtype = key.shape[1], key.shape[2], compute_dtype(query.dtype)
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
