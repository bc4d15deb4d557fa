"""`argmax`: each query keeps its best key, and its value is gathered. No weights, no product with the values.

On the CPU a native kernel keeps the best score of every query as it computes them. On other devices, in float64, and
for masks that are not a contiguous range of keys for each query, torch does it block by block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..cost.price import Cost, product_flops
from ..inputs import AttentionInputs, compact, compute_dtype, fold_group
from ..masks import Band
from ..shapes import Bool, Float, Int
from .base import NEG_INF, RUNS, Backend, attended_pairs, native_kernel_reasons
from .reference import Result, dot_products, gather_best

BLOCK_SCORES = 1 << 20  # scores in a block of the torch path
BLOCK_KEYS = 1 << 14  # keys in a block of the torch path
NOT_KEPT, NAN_SCORE, NO_KEY = -3, -2, -1  # in place of the best key's index
PAIRS_AT_ONCE = 1 << 15  # pairs whose scores `resolve_ties` sums again at a time


class BestKeys(NamedTuple):
    """For each query the index of the best key, whether it attends to no key, and whether one of its scores is NaN."""

    key_index: Int[Tensor, "b h r"]
    empty: Bool[Tensor, "b h r"]
    has_nan: Bool[Tensor, "b h r"]

    def code(self) -> Int[Tensor, "b h r"]:
        """One integer for each query: the index, `NO_KEY` or `NAN_SCORE`."""
        return torch.where(self.has_nan, NAN_SCORE, torch.where(self.empty, NO_KEY, self.key_index))


def cost(call: AttentionInputs) -> Cost:
    extent = call.extent
    size = compute_dtype(call.query.dtype).itemsize
    packed = size * extent.batch * call.heads_kv * extent.len_k * call.width
    rows = extent.batch * extent.heads * extent.len_q
    flops, traffic, extra = product_flops(attended_pairs(call), call.width), 2 * packed + rows * 8, packed + rows * 8
    return Cost(flops, traffic, extra, 20e-6)


def run(call: AttentionInputs) -> Result:
    return Result(gather_best(call.query, call.key, call.value, *best_keys(call), traced=False), None, None)


@torch.no_grad()
def best_keys(call: AttentionInputs) -> BestKeys:
    """The best key of each query."""
    best = None if native_kernel_reasons(call) else _call_kernel(call)
    RUNS["argmax.blocks" if best is None else "argmax.native"] += 1
    return _run_blocks(call) if best is None else best


def gradients(
    call: AttentionInputs, code: Int[Tensor, "b h r"], grad_out: Float[Tensor, "b h r dv"]
) -> list[Tensor | None] | None:
    """The gradients of query, key, value, bias and sink from the best keys; None if these were not kept."""
    if bool((code == NOT_KEPT).any()):
        return None
    # An unattended row gets no gradient, and so does a row of NaN, whose output is no value.
    grad = fold_group(grad_out.masked_fill((code < 0).unsqueeze(-1), 0.0), call.heads_kv)
    index = fold_group(code.clamp_min(0).unsqueeze(-1), call.heads_kv).expand_as(grad)
    by_value = torch.zeros_like(call.value).scatter_add_(2, index, grad)
    return [torch.zeros_like(call.query), torch.zeros_like(call.key), by_value, None, None]


def best_keys_of_part(call: AttentionInputs, native: bool) -> BestKeys:
    """The best keys of a call that is a part of another.

    Args:
        call: The part.
        native: Whether the native kernel runs the whole call. Its score of a pair does not depend on the rest of the
            call, so the part is decided by the same scores as the whole.
    """
    best = _call_kernel(call) if native else None
    return _run_blocks(call) if best is None else best


def _call_kernel(call: AttentionInputs) -> BestKeys | None:
    starts = stops = None
    if call.mask is not None:
        band = call.mask.band(call.extent)
        if band is None:
            return None
        starts, stops = key_intervals(band, call)
    index = ops.argmax_scores(call.query, call.key, starts, stops)
    return BestKeys(index.clamp_min(0), index == -1, index == -2)


def key_intervals(band: Band, call: AttentionInputs) -> tuple[Tensor, Tensor]:
    """The half-open range of keys for each batch row and query: starts and stops, each (batch, len_q)."""
    extent = call.extent
    rows = torch.arange(extent.len_q, device="cpu").expand(extent.batch, extent.len_q)
    starts = torch.tensor(band.starts or [0] * extent.batch, device="cpu").unsqueeze(1)
    stops = torch.tensor(band.stops or [extent.len_k] * extent.batch, device="cpu").unsqueeze(1)
    lo = starts.expand_as(rows) if band.lower is None else torch.maximum(starts, rows + band.lower)
    hi = stops.expand_as(rows) if band.upper is None else torch.minimum(stops, rows + band.upper)
    return lo.clamp(0, extent.len_k).contiguous(), hi.clamp(0, extent.len_k).contiguous()


def _run_blocks(call: AttentionInputs) -> BestKeys:
    extent = call.extent
    call = call._replace(query=compact(call.query), key=compact(call.key))
    keys = min(BLOCK_KEYS, extent.len_k)
    step = max(1, BLOCK_SCORES // (extent.batch * extent.heads * keys))
    # Written in place: small results allocated between large temporaries would fragment the heap.
    best = call.query.new_empty(call.query.shape[:3], dtype=compute_dtype(call.query.dtype))
    index = call.query.new_empty(call.query.shape[:3], dtype=torch.int64)
    for i0 in range(0, extent.len_q, step):
        i1 = min(i0 + step, extent.len_q)
        best[:, :, i0:i1], index[:, :, i0:i1] = _best_of_rows(call, i0, i1, keys)
    return BestKeys(index, best == NEG_INF, best.isnan())


def _best_of_rows(call: AttentionInputs, i0: int, i1: int, keys: int) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(call.query.dtype)
    query = call.query[:, :, i0:i1].to(dtype)
    best = query.new_full(query.shape[:3], NEG_INF)
    index = torch.zeros(query.shape[:3], dtype=torch.int64, device=query.device)
    for j0 in range(0, call.extent.len_k, keys):
        j1 = min(j0 + keys, call.extent.len_k)
        key = call.key[:, :, j0:j1].to(dtype)
        scores = dot_products(query, key)
        if call.mask is not None:
            scores = torch.where(call.mask.tile(call.extent, (i0, i1), (j0, j1), query.device), scores, NEG_INF)
        block_best, block_index = resolve_ties(scores, query, key).max(-1)
        # Strictly better, so that ties keep the lower index; a NaN, once met, stays.
        better = (block_best > best) | (block_best.isnan() & ~best.isnan())
        best = torch.where(better, block_best, best)
        index = torch.where(better, block_index + j0, index)
    return best, index


def resolve_ties(
    scores: Float[Tensor, "b hq r c"], query: Float[Tensor, "b hq r n"], key: Float[Tensor, "b hkv c n"]
) -> Float[Tensor, "b hq r c"]:
    """The scores, with those that may be the best of their row summed again in one fixed order; written in place.

    A matrix product may sum different scores in different orders, so that equal keys differ in the last bit. Summed in
    one order they tie, and the best key depends on the numbers alone.

    A sum of n products is off by less than (n + 1)·eps·Σ|q k| in any order, and Σ|q k| ≤ Σ|q|·max|k|. A score that is
    further than four times that below the best, twice for each of the two sums, cannot be the best in another order. A
    row with a NaN score does not change.

    Args:
        scores: q·k, −inf where masked.
        query: The queries.
        key: The keys.

    Returns:
        `scores`.

    >>> query, key = torch.ones(1, 1, 1, 3), torch.tensor([[[[1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [1.0, 2.0, 3.0]]]])
    >>> resolve_ties(torch.tensor([[[[6.0000005, 1.5, 6.0]]]]), query, key)
    tensor([[[[6.0000, 1.5000, 6.0000]]]])
    """
    if key.shape[3] == 0:
        return scores
    group = query.shape[1] // key.shape[1]
    slack = 4 * (key.shape[3] + 1) * torch.finfo(scores.dtype).eps * query.abs().sum(-1, keepdim=True)
    slack = slack * _largest_magnitude(key).repeat_interleave(group, dim=1)
    least = scores.amax(-1, keepdim=True) - slack
    # Fully masked rows have nothing to resolve, and sums of zeros are exact.
    near = scores >= torch.where((least > NEG_INF) & (slack > 0), least, torch.nan)
    kv_head = torch.arange(key.shape[1], device=key.device).repeat_interleave(group)
    for places in near.nonzero().split(PAIRS_AT_ONCE):
        b, h, i, j = places.unbind(1)
        scores[b, h, i, j] = (query[b, h, i] * key[b, kv_head[h], j]).sum(-1)
    return scores


def _largest_magnitude(key: Float[Tensor, "b hkv c n"]) -> Float[Tensor, "b hkv 1 1"]:
    """max|k| of each head over its finite keys; non-finite keys may be masked."""
    largest = torch.maximum(key.amax((2, 3), keepdim=True), -key.amin((2, 3), keepdim=True))
    if largest.isfinite().all():
        return largest
    by_key = key.abs().amax(3, keepdim=True)
    return torch.where(by_key.isfinite(), by_key, 0.0).amax(2, keepdim=True)


ARGMAX = Backend(
    name="argmax",
    summary="the best key of each query, then its value",
    bound={torch.float64: 0.0, torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 0.0},
    same_bits_across=("runs", "threads", "batch", "layouts"),
    cost=cost,
    run=run,
    lacks=("similarities of several keys", "weights", "tracing"),
)
