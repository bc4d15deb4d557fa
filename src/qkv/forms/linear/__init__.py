"""`linear`: where sim(q, k) = φ(q)·φ(k), the sum over the keys moves inside, and N² becomes N.

    V'_i = φ(q_i)·Σ_j φ(k_j) v_jᵀ / φ(q_i)·Σ_j φ(k_j)

The two sums are a state of features × (width_v + 1) numbers. Without `Causal` every query reads the same one; with it
the state grows from chunk to chunk, and inside a chunk the products are made one by one. On the CPU a native kernel
does it (`native`), elsewhere and in float64 torch (`chunks`), which also has the derivative.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ... import kernels
from ...call import Call, arithmetic, compact
from ...cost.price import Cost
from ...kernels.linear import IDENTITY, Rule
from ...maps import MOST_FEATURES, Maps, feature_count, is_known, maps_of
from ...masks import Causal, Extent, Mask, Padding, Window
from ...shapes import Bool
from ...similarity import FeatureMap, Polynomial
from .. import work as priced
from ..base import RUNS, Form
from ..equation import Result
from ..streaming import odd
from . import chunks, native
from .chunks import Differentiable, Scan, Sight


def reasons_against(call: Call) -> tuple[str, ...]:
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


def _parts(call: Call) -> tuple[Mask, ...]:
    return () if call.mask is None else call.mask.parts()


def _against(mask: Mask) -> str | None:
    if isinstance(mask, Causal | Padding):
        return None
    if isinstance(mask, Window):
        return "a Window lets go of keys again, and what was added to the state cannot be taken out of it exactly"
    return f"one state serves Causal and Padding, which says which keys count for all; {type(mask).__name__} may not"


def sight_of(call: Call) -> Sight:
    """The mask as the state needs it."""
    return sight_through(call.mask, call.extent, call.query.device)


def sight_through(mask: Mask | None, extent: Extent, device: torch.device) -> Sight:
    keep = None
    for part in () if mask is None else mask.parts():
        if not isinstance(part, Causal):
            kept = part.keys_kept(extent, device)
            assert kept is not None
            keep = kept if keep is None else keep & kept
    return Sight(diagonal(mask, extent), keep)


def diagonal(mask: Mask | None, extent: Extent) -> int | None:
    """The least offset of the `Causal`s in a mask; None where each lets every query see all keys."""
    bands = [part.band(extent) for part in (() if mask is None else mask.parts()) if isinstance(part, Causal)]
    return min((band.upper - 1 for band in bands if band is not None and band.upper is not None), default=None)


def cost(call: Call) -> Cost:
    extent, features = call.extent, feature_count(call.similarity, call.width)
    queries, keys = extent.batch * extent.heads * extent.len_q, extent.batch * call.heads_kv * extent.len_k
    size = arithmetic(call.query.dtype).itemsize
    chunk = native.chunk_tokens(features)
    flops = native.flops(call, features)
    held = size * (extent.batch * call.heads_kv * features * (call.width_v + 1) + chunk * (features + 4 * call.width))
    if native.reasons_against(call):
        steps = -(-extent.len_q // chunks.MOST_TOKENS)
        size_of_chunk = chunks.size_of(features, extent.batch, extent.heads)
        work = partial(priced.linear, call, features, False, size_of_chunk, "torch")
        return Cost(flops[0], 0, held, 300e-6 * max(1, steps), work=work)
    if not is_known(call.similarity):  # features are written out and read again
        work = partial(priced.linear, call, features, False, chunk, "mapped")
        return Cost(flops[0], 2 * size * (queries + keys) * features, held, 80e-6, work=work)
    direct = native.scores_are_cheaper(call, features)
    work = partial(priced.linear, call, features, direct, chunk, "native")
    return Cost(min(flops), 0, held, 25e-6, work=work)


def sums_are_cheaper(call: Call) -> bool:
    """Whether the form works with a state, and does not score every pair, for which the native kernel is as good."""
    native_serves = not native.reasons_against(call)
    return not (native_serves and native.scores_are_cheaper(call, feature_count(call.similarity, call.width)))


def run(call: Call) -> Result:
    result = _run(call)
    # A number that is not finite and that somebody sees shows in the answer: one look at that, and not at all three.
    if kernels.all_finite(result.out.detach()):
        return result
    exact = odd.run(call, _run)
    assert exact is not None
    return exact


def _run(call: Call) -> Result:
    maps, sight = maps_of(call.similarity, call.width), sight_of(call)
    query, key, value = call.query, call.key, call.value
    if maps.rule is None or native.reasons_against(call):
        # torch's products map them, or add them up.
        query, key, value = compact(query), compact(key), compact(value)
    blind = blind_queries(call.extent, sight, (0, call.extent.len_q), query.device)
    if blind is not None:  # the features of such a query may overflow, and ∞·0 is not 0
        query = query.masked_fill(blind, 0.0)
    differs = call.needs_grad
    if map_learns(maps, call):
        (query, key, value, maps), differs = mapped_ahead(query, key, value, maps, sight), True
    with torch.no_grad():
        if native.reasons_against(call):
            RUNS["linear.torch"] += 1
            dtype = arithmetic(query.dtype)
            out = chunks.forward(Scan(query.to(dtype), key.to(dtype), value.to(dtype), maps, sight))
        else:
            RUNS["linear.native"] += 1
            direct = native.scores_are_cheaper(call, maps.features)
            out = native.run(query.detach(), key.detach(), value.detach(), maps, sight, direct)
    if differs:
        found = Differentiable.apply(query, key, value, maps, sight, out)
        assert isinstance(found, Tensor)
        # Nothing comes back from where nothing was seen.
        out = found if blind is None else found.masked_fill(blind, 0.0)
    return Result(out.to(call.query.dtype), None, None)


def blind_queries(
    extent: Extent, sight: Sight, rows: tuple[int, int], device: torch.device
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


def _cleared(key: Tensor, sight: Sight) -> Tensor:
    return key if sight.keep is None else key.masked_fill(~sight.keep[:, None, :, None], 0.0)


def mapped_ahead(
    query: Tensor, key: Tensor, value: Tensor, maps: Maps, sight: Sight
) -> tuple[Tensor, Tensor, Tensor, Maps]:
    """Features instead of queries and keys, and the maps for those: of a map with parameters of its own, which autograd
    has to see at work on all tokens."""
    dtype = arithmetic(query.dtype)
    query, key, value = maps.query(query.to(dtype)), maps.key(_cleared(key, sight).to(dtype)), value.to(dtype)
    return query, key, value, Maps(_same, _same, maps.features, Rule(IDENTITY, maps.features), maps.normalize)


def map_learns(maps: Maps, call: Call) -> bool:
    """Whether the map has something to learn, beside what is given to it, and somebody asks for derivatives."""
    if maps.rule is not None or not torch.is_grad_enabled():
        return False
    probe = torch.zeros(1, 1, 1, call.width, dtype=arithmetic(call.query.dtype), device=call.query.device)
    return maps.key(probe).requires_grad


LINEAR = Form(
    name="linear",
    summary="one sum over the keys for all queries, by features",
    bound={torch.float64: 64.0, torch.float32: 64.0, torch.bfloat16: 1.0, torch.float16: 1.0},
    keeps=("runs at the same number of threads", "layouts"),
    reasons_against=reasons_against,
    cost=cost,
    run=run,
)
