"""`hard`: argmax attention by a running best and a gather. No weights, no product with the values.

On the CPU a native kernel keeps the best score of every query while it multiplies; elsewhere, and for
masks that are no interval of keys, torch does it block by block.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..cost.price import Cost, product_flops
from ..inputs import AttentionInputs, compact, compute_dtype
from ..masks import Band
from ..shapes import Bool, Float, Int
from ..similarity import Argmax
from . import work
from .base import NEG_INF, RUNS, Backend, kernel_reasons, population
from .reference import Result, pick, products

# Scores in a block of the torch path.
BLOCK = 1 << 20
KEYS = 1 << 14


class Best(NamedTuple):
    """The index of the best key, whether there is none, and whether a NaN is among the scores."""

    chosen: Int[Tensor, "b h r"]
    empty: Bool[Tensor, "b h r"]
    lost: Bool[Tensor, "b h r"]


def reasons_against(call: AttentionInputs) -> tuple[str, ...]:
    reasons = []
    if not isinstance(call.similarity, Argmax):
        reasons.append(f"only Argmax() has a single best key, not {type(call.similarity).__name__}")
    if call.return_weights:
        reasons.append("return_weights asks for the len_q x len_k matrix that hard never makes")
    if call.traced:
        reasons.append(
            "under torch.compile, torch.export, torch.func and forward-mode AD a kernel cannot see the numbers"
        )
    return tuple(reasons)


def native_reasons_against(call: AttentionInputs) -> tuple[str, ...]:
    """Why the native kernel does not serve, by its kinds; torch serves then."""
    return kernel_reasons(call)


def cost(call: AttentionInputs) -> Cost:
    extent = call.extent
    size = compute_dtype(call.query.dtype).itemsize
    packed = size * extent.batch * call.heads_kv * extent.len_k * call.width
    rows = extent.batch * extent.heads * extent.len_q
    native = not native_reasons_against(call)
    flops, traffic, extra = product_flops(population(call), call.width), 2 * packed + rows * 8, packed + rows * 8
    return Cost(flops, traffic, extra, 20e-6, work=partial(work.argmax, call, native))


def run(call: AttentionInputs) -> Result:
    with torch.no_grad():
        best = _run_native(call)
        RUNS["argmax.blocks" if best is None else "argmax.native"] += 1
        best = _in_blocks(call) if best is None else best
    return Result(pick(call.query, call.key, call.value, *best, traced=False), None, None)


def best_of_part(call: AttentionInputs, native: bool) -> Best:
    """The best keys of a call that is a part of another. native: whether the kernel serves the whole, so that a part is
    decided by the same scores, however small it is; its sums are the same for a pair of vectors wherever they stand."""
    best = _by_kernel(call) if native else None
    return _in_blocks(call) if best is None else best


def _run_native(call: AttentionInputs) -> Best | None:
    return None if native_reasons_against(call) else _by_kernel(call)


def _by_kernel(call: AttentionInputs) -> Best | None:
    starts = stops = None
    if call.mask is not None:
        band = call.mask.band(call.extent)
        if band is None:
            return None
        starts, stops = intervals(band, call)
    found = ops.argmax_scores(call.query, call.key, starts, stops)
    return Best(found.clamp_min(0), found == -1, found == -2)


def intervals(band: Band, call: AttentionInputs) -> tuple[Tensor, Tensor]:
    """The first key and the one behind the last, for each batch row and query: two (batch, len_q)."""
    extent = call.extent
    rows = torch.arange(extent.len_q, device="cpu").expand(extent.batch, extent.len_q)
    starts = torch.tensor(band.starts or [0] * extent.batch, device="cpu").unsqueeze(1)
    stops = torch.tensor(band.stops or [extent.len_k] * extent.batch, device="cpu").unsqueeze(1)
    lo = starts.expand_as(rows) if band.lower is None else torch.maximum(starts, rows + band.lower)
    hi = stops.expand_as(rows) if band.upper is None else torch.minimum(stops, rows + band.upper)
    return lo.clamp(0, extent.len_k).contiguous(), hi.clamp(0, extent.len_k).contiguous()


def _in_blocks(call: AttentionInputs) -> Best:
    extent = call.extent
    call = call._replace(query=compact(call.query), key=compact(call.key))
    keys = min(KEYS, extent.len_k)
    step = max(1, BLOCK // (extent.batch * extent.heads * keys))
    # Written into as the blocks come: small results kept between large temporaries would pin the heap.
    best = call.query.new_empty(call.query.shape[:3], dtype=compute_dtype(call.query.dtype))
    index = call.query.new_empty(call.query.shape[:3], dtype=torch.int64)
    for i0 in range(0, extent.len_q, step):
        i1 = min(i0 + step, extent.len_q)
        best[:, :, i0:i1], index[:, :, i0:i1] = _rows(call, i0, i1, keys)
    return Best(index, best == NEG_INF, best.isnan())


def _rows(call: AttentionInputs, i0: int, i1: int, keys: int) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(call.query.dtype)
    query = call.query[:, :, i0:i1].to(dtype)
    best = query.new_full(query.shape[:3], NEG_INF)
    index = torch.zeros(query.shape[:3], dtype=torch.int64, device=query.device)
    for j0 in range(0, call.extent.len_k, keys):
        j1 = min(j0 + keys, call.extent.len_k)
        key = call.key[:, :, j0:j1].to(dtype)
        scores = products(query, key)
        if call.mask is not None:
            scores = torch.where(call.mask.tile(call.extent, (i0, i1), (j0, j1), query.device), scores, NEG_INF)
        block_best, block_index = resolve_ties(scores, query, key).max(-1)
        # Strictly better, so that ties stay with the lower index; NaN stays once it is there.
        better = (block_best > best) | (block_best.isnan() & ~best.isnan())
        best = torch.where(better, block_best, best)
        index = torch.where(better, block_index + j0, index)
    return best, index


ARGMAX = Backend(
    name="argmax",
    summary="a running best over the keys, then one value for each query",
    bound={torch.float64: 0.0, torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 0.0},
    keeps=("runs", "threads", "batch companions", "layouts"),
    reasons_against=reasons_against,
    cost=cost,
    run=run,
)


# Pairs that are summed again at a time.
PAIRS = 1 << 15


def resolve_ties(
    scores: Float[Tensor, "b hq r c"], query: Float[Tensor, "b hq r n"], key: Float[Tensor, "b hkv c n"]
) -> Float[Tensor, "b hq r c"]:
    """The scores q·k, −inf where masked, with those that may be a row's best summed again; written in place.

    A sum of n products is off by less than (n + 1)·eps·Σ|q k| in any order, and Σ|q k| ≤ Σ|q|·max|k|. What is four
    times that below the best, twice for each of the two sums, cannot be the best in another order.

    >>> query, key = torch.ones(1, 1, 1, 3), torch.tensor([[[[1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [1.0, 2.0, 3.0]]]])
    >>> resolve_ties(torch.tensor([[[[6.0000005, 1.5, 6.0]]]]), query, key)
    tensor([[[[6.0000, 1.5000, 6.0000]]]])

    A row with a NaN among its scores stays as it is.
    """
    if key.shape[3] == 0:
        return scores
    group = query.shape[1] // key.shape[1]
    slack = 4 * (key.shape[3] + 1) * torch.finfo(scores.dtype).eps * query.abs().sum(-1, keepdim=True)
    slack = slack * _largest(key).repeat_interleave(group, dim=1)
    least = scores.amax(-1, keepdim=True) - slack
    # Nothing is near where everything is masked, and sums of zeros are exact already.
    near = scores >= torch.where((least > NEG_INF) & (slack > 0), least, torch.nan)
    shared = torch.arange(key.shape[1], device=key.device).repeat_interleave(group)
    for places in near.nonzero().split(PAIRS):
        b, h, i, j = places.unbind(1)
        scores[b, h, i, j] = (query[b, h, i] * key[b, shared[h], j]).sum(-1)
    return scores


def _largest(key: Float[Tensor, "b hkv c n"]) -> Float[Tensor, "b hkv 1 1"]:
    """max|k| of each head, over its finite keys: what is not finite may be masked."""
    largest = torch.maximum(key.amax((2, 3), keepdim=True), -key.amin((2, 3), keepdim=True))
    if largest.isfinite().all():
        return largest
    by_key = key.abs().amax(3, keepdim=True)
    return torch.where(by_key.isfinite(), by_key, 0.0).amax(2, keepdim=True)
