"""`dense`: every score at once, by the equation as it stands. It serves every call and differentiates twice."""

from __future__ import annotations

from functools import partial

import torch

from .. import kernels
from ..call import Call, arithmetic, compact
from ..cost.price import Cost, product_flops
from . import work
from .base import Form, population
from .equation import Result, Rows, attend

# Bytes of scores that stay near the cores.
NEAR = 1 << 22


def reasons_against(call: Call) -> tuple[str, ...]:
    return ()


def cost(call: Call) -> Cost:
    batch, heads, len_q, len_k = call.extent.batch, call.extent.heads, call.extent.len_q, call.extent.len_k
    pairs = batch * heads * len_q * len_k
    size = arithmetic(call.query.dtype).itemsize
    # About eight passes over the scores: product, mask, largest, exp, sum, quotient, product. Small ones stay cached.
    passes = 8 if pairs * size > NEAR else 2
    flops = product_flops(population(call), call.width + call.width_v)
    # A product with few rows reads the other matrix for little work.
    rows = max(1, len_q * call.group)
    return Cost(
        flops=flops,
        charged=int(product_flops(pairs, call.width + call.width_v) * (1 + 32 / rows)),
        traffic=passes * pairs * size,
        extra=3 * pairs * size,
        overhead=60e-6,
        work=partial(work.dense, call),
    )


def run(call: Call) -> Result:
    extent = call.extent
    keep = None
    if call.mask is not None:
        keep = call.mask.tile(extent, (0, extent.len_q), (0, extent.len_k), call.query.device)
    finite = not call.traced and kernels.all_finite(call.query, call.key, call.value)
    query, key, value = call.query, call.key, call.value
    if not call.traced:
        query, key, value = compact(query), compact(key), compact(value)
    result = attend(call, Rows(query, key, value, keep, call.bias, call.sink, finite))
    dtype = call.query.dtype
    weights = result.weights.to(dtype) if call.return_weights and result.weights is not None else None
    return Result(result.out.to(dtype), result.lse, weights)


DENSE = Form(
    name="dense",
    summary="all scores at once, by the equation",
    bound={torch.float64: 16.0, torch.float32: 16.0, torch.bfloat16: 1.0, torch.float16: 1.0},
    keeps=("runs at the same number of threads", "layouts"),
    reasons_against=reasons_against,
    cost=cost,
    run=run,
)
