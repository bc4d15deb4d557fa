"""`streaming`: the same answer without the len_q × len_k matrix.

Softmax runs on torch's flash kernel for CPUs, called on pieces of the mask that it understands and merged
by log-sum-exp (`flash`, `pieces`); numbers that are not finite are kept away from it (`odd`), and the derivative of
a bias or of lse, which it lacks, is written out (`backward`). What the kernel does not know (softcap, dropout,
other similarities) runs by the equation on blocks of query rows, recomputed in the backward pass (`blocks`).
Memory grows with len_q + len_k either way.
"""

from __future__ import annotations

from functools import partial

import torch

from ... import kernels
from ...call import Call, arithmetic
from ...cost.price import Cost, product_flops
from ...masks import Extent
from ...similarity import Argmax
from .. import work
from ..base import RUNS, Form, population
from ..equation import Result
from . import blocks, flash, odd

KEYS = 512  # keys in a block of torch's kernel


def reasons_against(call: Call) -> tuple[str, ...]:
    reasons = []
    if isinstance(call.similarity, Argmax):
        reasons.append("Argmax sums nothing; form='hard' keeps a running best")
    if call.return_weights:
        reasons.append("return_weights asks for the len_q x len_k matrix that streaming never makes")
    if call.traced:
        reasons.append(
            "under torch.compile, torch.export, torch.func and forward-mode AD the numbers cannot be looked at, "
            "and the flash kernel needs finite ones"
        )
    if call.width_v == 0:
        reasons.append("values have no width")
    return tuple(reasons)


def cost(call: Call) -> Cost:
    extent = call.extent
    pairs = population(call)
    size = arithmetic(call.query.dtype).itemsize
    flops = product_flops(pairs, call.width + call.width_v)
    rows = extent.batch * extent.heads * extent.len_q
    if flash.reasons_against(call):
        held = 3 * size * min(blocks.BLOCK, rows * extent.len_k)
        # Blocks stay near the cores: a quarter of the dense form's passes reach memory.
        return Cost(flops, 2 * pairs * size, held, 90e-6, work=partial(work.blocks, call, blocks.BLOCK))
    # The kernel's blocks are 32 queries of one head, filled or not.
    executed = flops * max(1, 32 // max(extent.len_q, 1))
    if call.mask is not None and extent.len_q == extent.len_k and pairs < extent.cells:
        executed = max(executed, product_flops(_triangle(extent), call.width + call.width_v))
    held = size * rows + (size * rows * call.width_v if call.mask is not None else 0)
    return Cost(flops, size * rows * (call.width + call.width_v), held, 10e-6, executed, partial(work.flash, call))


def _triangle(extent: Extent) -> int:
    """Pairs that the kernel computes below a diagonal: every block of keys that a query sees any of, as a whole."""
    whole, rest = divmod(extent.len_k, KEYS)
    pairs = KEYS * KEYS * whole * (whole + 1) // 2 + rest * extent.len_k
    return extent.batch * extent.heads * pairs


def run(call: Call) -> Result:
    if not flash.reasons_against(call):
        finite = kernels.all_finite(call.query, call.key, call.value)
        result = flash.run(call) if finite else odd.run(call, flash.run)
        if result is not None:
            RUNS["streaming.flash" if finite else "streaming.odd"] += 1
            return result
    RUNS["streaming.blocks"] += 1
    return blocks.run(call)


STREAMING = Form(
    name="streaming",
    summary="row by row with a running sum, no matrix of scores",
    # The kernel's exp is good to 20 ulp, and it rounds weights to half precision before the second product.
    bound={torch.float64: 32.0, torch.float32: 48.0, torch.bfloat16: 3.0, torch.float16: 3.0},
    keeps=("runs at the same number of threads", "layouts"),
    reasons_against=reasons_against,
    cost=cost,
    run=run,
)
