"""`native`: Softmax and Sigmoid by qkv's kernel. Each key and value is read once for all the query heads that share it.

It is the kernel that `qkv.decode` runs on the pages of a cache; here it transposes the keys page by page as it goes. It
is fastest with few queries and many keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..cost.price import Cost, product_flops
from ..inputs import AttentionInputs, compute_dtype
from ..masks import Band, Causal, Padding, Window
from ..similarity import AnySimilarity, Sigmoid, Softmax
from . import blockwise
from .base import RUNS, Backend, attended_pairs
from .reference import Result

# The most cells of a mask that is passed as a tensor; larger ones are left to the backends that work in blocks.
MAX_MASK_CELLS = 1 << 24
CORE_CACHE_BYTES = 1 << 20  # keys and values of a head up to this size stay in the cache of a core
TIME_RELATIVE_TO_FLASH = 1.12  # time for the same work without a mask, relative to torch's kernel (docs/log.md)
_NO_BAND = Band()
_TILE_ROWS = 48  # query rows that the kernel processes together


def more_reasons(call: AttentionInputs) -> tuple[str, ...]:
    if call.traced:  # a reason already; torch.compile does not trace the loading of the library
        return ()
    if call.extent.cells <= MAX_MASK_CELLS or _keys_are_contiguous(call):
        return ops.reasons()
    limit = f"a mask that is not a contiguous range of keys may have at most {MAX_MASK_CELLS} (query, key) pairs"
    return (*ops.reasons(), limit)


def _keys_are_contiguous(call: AttentionInputs) -> bool:
    """Whether the type of the mask makes the keys of each query a contiguous range, so that no cells are needed."""
    parts = call.mask_parts
    return all(isinstance(p, Causal | Window) or (isinstance(p, Padding) and p.lengths is not None) for p in parts)


def cost(call: AttentionInputs) -> Cost:
    extent = call.extent
    widths = call.width + call.width_v
    stored = extent.batch * call.heads_kv * extent.len_k * widths * call.query.element_size()
    # Keys are transposed once for every tile of query rows, which costs an eighth of a row.
    tiles = -(-extent.len_q * extent.heads // max(_TILE_ROWS * call.heads_kv, 1))
    transposing = product_flops(tiles * extent.batch * call.heads_kv * extent.len_k, call.width) // 8
    scratch = 64 * max(call.width, call.width_v) + _TILE_ROWS * (256 + call.width + 2 * call.width_v)
    flops = product_flops(attended_pairs(call), widths) + transposing
    # A partly filled tile costs as much as a full one; up to 16 rows run without a tile.
    rows = extent.len_q * extent.heads // max(call.heads_kv, 1)
    slower = TIME_RELATIVE_TO_FLASH * (_TILE_ROWS / rows if 16 < rows < _TILE_ROWS else 1)
    slower *= 1 if _keys_are_contiguous(call) else 2  # the cells of the mask are written and read
    # Keys and values of a head that fit into the cache of a core are not read again for each tile of queries.
    reread = stored * (tiles - 1) if extent.len_k * widths * call.query.element_size() > CORE_CACHE_BYTES else 0
    return Cost(flops, reread, 4 * scratch, 12e-6, int(slower * flops), "few" if rows <= 16 else "")


def kernel_rule(similarity: AnySimilarity, width: int) -> dict[str, Any]:
    """How the kernel makes weights of scores."""
    if isinstance(similarity, Sigmoid):
        assert not isinstance(similarity.bias, Tensor)  # it is a part of the call's bias
        return {"scale": similarity.scale_for(width), "sigmoid": True, "offset": similarity.bias or 0.0}
    assert isinstance(similarity, Softmax)
    return {"scale": similarity.scale_for(width), "softcap": similarity.softcap or 0.0}


def run(call: AttentionInputs) -> Result:
    sink = call.sink
    band = None if call.mask is None else call.mask.band(call.extent)
    keep = call.keep() if band is None else None
    band = _NO_BAND if band is None else band
    RUNS["native"] += 1
    out, lse = ops.softmax_attention(
        call.query.detach(),
        call.key.detach(),
        call.value.detach(),
        **kernel_rule(call.similarity, call.width),
        sink=None if sink is None else sink.detach().reshape(-1),
        starts=band.starts,
        stops=band.stops,
        lower=band.lower,
        upper=band.upper,
        keep=keep,
        bias=None if call.bias is None else call.bias.detach(),
        decay=None if call.forgetting is None else call.forgetting.kernel_rule(),
        return_lse=call.return_lse,
    )
    lse = None if lse is None else lse.to(compute_dtype(call.query.dtype))
    odd = None if call.forgetting is None else call.forgetting.odd > 0  # the kernel has no NaN gates
    return blockwise.replace_rows(call, Result(out, lse, None), odd)


NATIVE = Backend(
    name="native",
    summary="qkv's native kernel, each key and value read once",
    bound={torch.float32: 32.0, torch.bfloat16: 1.0, torch.float16: 1.0},
    same_bits_across=("runs", "threads", "batch", "layouts"),
    cost=cost,
    run=run,
    lacks=(
        "tracing",
        "similarities without scores",
        "score functions",
        "weights",
        "dropout",
        "gradients",
        "other devices",
        "float64",
        "empty values",
    ),
    engine="the kernel",
    more_reasons=more_reasons,
)
