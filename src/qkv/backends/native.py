"""`decode`: few queries, many keys. Every key and value is read once, for all the query heads that share it.

The native kernel is the one that `qkv.decode` runs on a cache's pages; here it turns the keys into pages as it goes.
"""

from __future__ import annotations

from functools import partial

import torch

from .. import ops
from ..cost.price import Cost, product_flops
from ..inputs import AttentionInputs, compute_dtype
from ..masks import Causal, Padding, Window
from ..similarity import Softmax
from . import work
from .base import RUNS, Backend, population
from .reference import Result

# Cells of a mask that is no run of keys, beyond which another backend goes over it in blocks.
MOST_CELLS = 1 << 24
NEAR = 1 << 20  # bytes that a core keeps near itself
TIME_RELATIVE_TO_FLASH = 1.12  # time for the same work without a mask, beside torch's kernel (docs/log.md)


def reasons_against(call: AttentionInputs) -> tuple[str, ...]:
    if call.traced:
        return ("under torch.compile, torch.export, torch.func and forward-mode AD a kernel cannot see the numbers",)
    reasons = list(ops.reasons())
    if not isinstance(call.similarity, Softmax):
        reasons.append(f"the kernel computes Softmax, not {type(call.similarity).__name__}")
    if call.return_weights:
        reasons.append("return_weights asks for the len_q x len_k matrix that decode never makes")
    if call.dropout:
        reasons.append("the kernel has no dropout")
    if call.needs_grad:
        reasons.append("the kernel has no derivative; call it under torch.no_grad()")
    if call.query.device.type != "cpu":
        reasons.append(f"the kernel runs on the CPU, not on {call.query.device.type}")
    if call.query.dtype is torch.float64:
        reasons.append("the kernel computes in float32")
    if call.width_v == 0:
        reasons.append("values have no width")
    if call.extent.cells > MOST_CELLS and not _runs_of_keys(call):
        reasons.append(f"with a mask that may have holes it takes at most {MOST_CELLS} pairs of a query and a key")
    return tuple(reasons)


def _runs_of_keys(call: AttentionInputs) -> bool:
    """Whether each query sees one run of keys, whatever the mask's tensors hold: such a mask has no cells."""
    parts = () if call.mask is None else call.mask.parts()
    return all(isinstance(p, Causal | Window) or (isinstance(p, Padding) and p.lengths is not None) for p in parts)


def cost(call: AttentionInputs) -> Cost:
    extent = call.extent
    widths = call.width + call.width_v
    held = extent.batch * call.heads_kv * extent.len_k * widths * call.query.element_size()
    # Keys are turned once for every 48 query rows, while they come from memory: an eighth of a row more.
    tiles = -(-extent.len_q * extent.heads // max(48 * call.heads_kv, 1))
    turning = product_flops(tiles * extent.batch * call.heads_kv * extent.len_k, call.width) // 8
    scratch = 64 * max(call.width, call.width_v) + 48 * (256 + call.width + 2 * call.width_v)
    flops = product_flops(population(call), widths) + turning
    # A tile is 48 query rows, filled or not; up to 16 rows go by themselves.
    rows = extent.len_q * extent.heads // max(call.heads_kv, 1)
    slower = TIME_RELATIVE_TO_FLASH * (48 / rows if 16 < rows < 48 else 1)
    slower *= 1 if _runs_of_keys(call) else 2  # cells of a mask are made and looked at
    # Keys and values of a head that stay in a core's cache are not read again for each tile of queries.
    again = held * (tiles - 1) if extent.len_k * widths * call.query.element_size() > NEAR else 0
    return Cost(flops, again, 4 * scratch, 12e-6, int(slower * flops), partial(work.native, call))


def run(call: AttentionInputs) -> Result:
    similarity, mask = call.similarity, call.mask
    assert isinstance(similarity, Softmax)
    band = keep = None
    if mask is not None:
        band = mask.band(call.extent)
        if band is None:
            extent = call.extent
            keep = mask.tile(extent, (0, extent.len_q), (0, extent.len_k), call.query.device)
    sink = call.sink
    RUNS["native"] += 1
    out, lse = ops.attend_plain(
        call.query.detach(),
        call.key.detach(),
        call.value.detach(),
        scale=similarity.scale_for(call.width),
        softcap=similarity.softcap,
        sink=None if sink is None else sink.detach().reshape(-1),
        starts=None if band is None else band.starts,
        stops=None if band is None else band.stops,
        lower=None if band is None else band.lower,
        upper=None if band is None else band.upper,
        keep=keep,
        bias=None if call.bias is None else call.bias.detach(),
        return_lse=call.return_lse,
    )
    return Result(out, None if lse is None else lse.to(compute_dtype(call.query.dtype)), None)


NATIVE = Backend(
    name="native",
    summary="few queries, each key and value read once",
    bound={torch.float32: 32.0, torch.bfloat16: 1.0, torch.float16: 1.0},
    keeps=("runs", "threads", "batch companions", "layouts"),
    reasons_against=reasons_against,
    cost=cost,
    run=run,
)
