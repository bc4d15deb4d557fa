"""`hard`: argmax attention by a running best and a gather. No weights, no product with the values.

On the CPU a native kernel keeps the best score of every query while it multiplies; elsewhere, and for
masks that are no interval of keys, torch does it block by block.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .. import kernels
from ..call import Call, arithmetic, compact
from ..cost.price import Cost, product_flops
from ..masks import Band
from ..shapes import Bool, Int
from ..similarity import Argmax
from . import work
from .base import RUNS, Form, kernel_reasons, population
from .best import NEVER, settled
from .equation import Result, pick, products

# Scores in a block of the torch path.
BLOCK = 1 << 20
KEYS = 1 << 14


class Best(NamedTuple):
    """The index of the best key, whether there is none, and whether a NaN is among the scores."""

    chosen: Int[Tensor, "b h r"]
    empty: Bool[Tensor, "b h r"]
    lost: Bool[Tensor, "b h r"]


def reasons_against(call: Call) -> tuple[str, ...]:
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


def native_reasons_against(call: Call) -> tuple[str, ...]:
    """Why the native kernel does not serve, by its kinds; torch serves then."""
    return kernel_reasons(call)


def cost(call: Call) -> Cost:
    extent = call.extent
    size = arithmetic(call.query.dtype).itemsize
    packed = size * extent.batch * call.heads_kv * extent.len_k * call.width
    rows = extent.batch * extent.heads * extent.len_q
    native = not native_reasons_against(call)
    flops, traffic, extra = product_flops(population(call), call.width), 2 * packed + rows * 8, packed + rows * 8
    return Cost(flops, traffic, extra, 20e-6, work=partial(work.hard, call, native))


def run(call: Call) -> Result:
    with torch.no_grad():
        best = _native(call)
        RUNS["hard.blocks" if best is None else "hard.native"] += 1
        best = _in_blocks(call) if best is None else best
    return Result(pick(call.query, call.key, call.value, *best, traced=False), None, None)


def best_of_part(call: Call, native: bool) -> Best:
    """The best keys of a call that is a part of another. native: whether the kernel serves the whole, so that a part is
    decided by the same scores, however small it is; its sums are the same for a pair of vectors wherever they stand."""
    best = _by_kernel(call) if native else None
    return _in_blocks(call) if best is None else best


def _native(call: Call) -> Best | None:
    return None if native_reasons_against(call) else _by_kernel(call)


def _by_kernel(call: Call) -> Best | None:
    starts = stops = None
    if call.mask is not None:
        band = call.mask.band(call.extent)
        if band is None:
            return None
        starts, stops = intervals(band, call)
    found = kernels.argmax_scores(call.query, call.key, starts, stops)
    return Best(found.clamp_min(0), found == -1, found == -2)


def intervals(band: Band, call: Call) -> tuple[Tensor, Tensor]:
    """The first key and the one behind the last, for each batch row and query: two (batch, len_q)."""
    extent = call.extent
    rows = torch.arange(extent.len_q, device="cpu").expand(extent.batch, extent.len_q)
    starts = torch.tensor(band.starts or [0] * extent.batch, device="cpu").unsqueeze(1)
    stops = torch.tensor(band.stops or [extent.len_k] * extent.batch, device="cpu").unsqueeze(1)
    lo = starts.expand_as(rows) if band.lower is None else torch.maximum(starts, rows + band.lower)
    hi = stops.expand_as(rows) if band.upper is None else torch.minimum(stops, rows + band.upper)
    return lo.clamp(0, extent.len_k).contiguous(), hi.clamp(0, extent.len_k).contiguous()


def _in_blocks(call: Call) -> Best:
    extent = call.extent
    call = call._replace(query=compact(call.query), key=compact(call.key))
    keys = min(KEYS, extent.len_k)
    step = max(1, BLOCK // (extent.batch * extent.heads * keys))
    # Written into as the blocks come: small results kept between large temporaries would pin the heap.
    best = call.query.new_empty(call.query.shape[:3], dtype=arithmetic(call.query.dtype))
    index = call.query.new_empty(call.query.shape[:3], dtype=torch.int64)
    for i0 in range(0, extent.len_q, step):
        i1 = min(i0 + step, extent.len_q)
        best[:, :, i0:i1], index[:, :, i0:i1] = _rows(call, i0, i1, keys)
    return Best(index, best == NEVER, best.isnan())


def _rows(call: Call, i0: int, i1: int, keys: int) -> tuple[Tensor, Tensor]:
    dtype = arithmetic(call.query.dtype)
    query = call.query[:, :, i0:i1].to(dtype)
    best = query.new_full(query.shape[:3], NEVER)
    index = torch.zeros(query.shape[:3], dtype=torch.int64, device=query.device)
    for j0 in range(0, call.extent.len_k, keys):
        j1 = min(j0 + keys, call.extent.len_k)
        key = call.key[:, :, j0:j1].to(dtype)
        scores = products(query, key)
        if call.mask is not None:
            scores = torch.where(call.mask.tile(call.extent, (i0, i1), (j0, j1), query.device), scores, NEVER)
        block_best, block_index = settled(scores, query, key).max(-1)
        # Strictly better, so that ties stay with the lower index; NaN stays once it is there.
        better = (block_best > best) | (block_best.isnan() & ~best.isnan())
        best = torch.where(better, block_best, best)
        index = torch.where(better, block_index + j0, index)
    return best, index


HARD = Form(
    name="hard",
    summary="a running best over the keys, then one value for each query",
    bound={torch.float64: 0.0, torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 0.0},
    keeps=("runs", "threads", "batch companions", "layouts"),
    reasons_against=reasons_against,
    cost=cost,
    run=run,
)
