"""The linear form in torch operators: a state that goes from chunk to chunk, and the derivative by two sweeps.

With ṽ = (v, 1), Σ_j φ(q_i)·φ(k_j) ṽ_j over the keys that query i sees is y_i = (numerator, denominator). Keys that all
queries of a chunk see have been summed into a state, S = Σ_j φ(k_j) ṽ_jᵀ; those that only some of them see are scored.

    y_i  = φ(q_i)·S + Σ_j φ(q_i)·φ(k_j) ṽ_j

Backward, with g_i the derivative by y_i:

    dφ(q_i) = S·g_i + Σ_j (g_i·ṽ_j) φ(k_j)          forward sweep, the same states again
    dφ(k_j) = T·ṽ_j + Σ_i (g_i·ṽ_j) φ(q_i)          backward sweep, T = Σ_i φ(q_i) g_iᵀ over later queries
    dṽ_j    = φ(k_j)·T + Σ_i φ(q_i)·φ(k_j) g_i

Neither sweep holds more than a chunk's features and a state. Where these queries and keys are a part of a longer
sequence, S starts as the sum over the keys before them and T as that over the queries after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...call import arithmetic, fold_group, unfold_group
from ...maps import Map, Maps
from ...shapes import Bool, Float

# Features of a chunk, at most, and tokens.
TILE = 1 << 20
MOST_TOKENS = 128


class Sight(NamedTuple):
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
    sight: Sight

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
        dtype = arithmetic(query.dtype)
        scan = Scan(query.to(dtype), key.to(dtype), value.to(dtype), ctx.maps, ctx.sight)
        found = derivatives(scan, grad.to(dtype))
        by_query, by_key, by_value = (g.to(t.dtype) for g, t in zip(found, (query, key, value), strict=True))
        return by_query, by_key, by_value, None, None, None
