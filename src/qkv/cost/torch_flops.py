"""Flops of the matrix products that the backends built on torch's operators execute, from sizes alone.

Executed, not needed: masked parts of blocks count where the code computes them. Tests compare these numbers with what
`qkv.cost.watch` counts, so that a change in a backend shows. Block sizes belong to the backends and are arguments here.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..masks import Band
from .price import product_flops
from .sizes import Sizes

# Keys in a block of torch's flash kernel. Its blocks of queries, 32, 64 or 256 rows, divide it.
FLASH_KEYS = 512


def argmax_products(sizes: Sizes) -> int:
    """`argmax` in blocks of torch: every score once, whatever the mask."""
    return product_flops(sizes.cells, sizes.width)


def flash_pairs(rows: int, keys: int, causal: bool) -> int:
    """Pairs that torch's flash kernel computes for one head: whole blocks of keys, for all rows of a block of queries
    that attend to any of them. Blocks of queries divide FLASH_KEYS, so that rows count in groups of that size.

    >>> flash_pairs(1024, 1024, causal=True), 1024 * 1025 // 2
    (786432, 524800)
    """
    if not causal:
        return rows * keys
    blocks, rest = divmod(rows, FLASH_KEYS)
    rising = min(blocks, keys // FLASH_KEYS)
    below = FLASH_KEYS**2 * rising * (rising + 1) // 2
    return below + (blocks - rising) * FLASH_KEYS * keys + rest * min(FLASH_KEYS * (blocks + 1), keys)


def flash_flops(len_q: int, len_k: int, width: int, heads: int, causal: bool, *, backward: bool = False) -> int:
    """Flops of the products of one call of torch's flash kernel: two forward; five backward, which computes the scores
    again.

    >>> flash_flops(1024, 1024, 64, heads=8, causal=True)
    1610612736
    """
    return (5 if backward else 2) * heads * product_flops(flash_pairs(len_q, len_k, causal), width)


def block_pairs(sizes: Sizes, most: int, band: Band | None = None) -> int:
    """Pairs in the row blocks of `blockwise`, with at most `most` scores in a block. A block has every key that some of
    its rows attend to; None stands for a mask that is no band, whose blocks have all keys."""
    if band is None:
        return sizes.cells
    group = sizes.group
    per_head = 16 * group * sizes.len_k
    heads = max(1, min(sizes.heads_kv, most // max(1, per_head)))
    all_heads = heads == sizes.heads_kv
    batch = max(1, min(sizes.batch, most // max(1, per_head * sizes.heads_kv))) if all_heads else 1
    step = max(1, min(sizes.len_q, most // max(1, batch * heads * group * sizes.len_k)))
    pairs = 0
    for b0 in range(0, sizes.batch, batch):
        b1 = min(b0 + batch, sizes.batch)
        for i0 in range(0, sizes.len_q, step):
            i1 = min(i0 + step, sizes.len_q)
            ranges = [band.bounds_for_rows(b, i0, i1, sizes.len_k) for b in range(b0, b1)]
            keys = max(hi for _, hi in ranges) - min(lo for lo, _ in ranges)
            pairs += (b1 - b0) * sizes.heads * (i1 - i0) * max(0, keys)
    return pairs


def block_products(pairs: int, width: int, width_v: int) -> int:
    """`blockwise`: a score and a weighted value for each pair. width: of the features, if there are any."""
    return product_flops(pairs, width + width_v)


def chunk_products(sizes: Sizes, features: int, size: int, offset: int | None = None) -> int:
    """`linear` in chunks of `size` tokens with torch. offset: that of `Causal`; None: every query attends to every
    key."""
    group, heads_kv = sizes.group, sizes.batch * sizes.heads_kv
    state = features * (sizes.width_v + 1)
    scored = features + sizes.width_v + 1
    flops = absorbed = 0
    for rows, j0, j1 in _chunks(sizes, size, offset):
        queries = heads_kv * group * rows
        fresh, absorbed = heads_kv * max(0, j0 - absorbed), max(absorbed, j0)
        flops += product_flops(fresh + queries, state) + product_flops(queries * (j1 - j0), scored)
    return flops


def _chunks(sizes: Sizes, size: int, offset: int | None) -> Iterator[tuple[int, int, int]]:
    """(rows, first key, last key + 1) of each chunk: keys that only some rows attend to; all attend to earlier ones."""
    # An offset of len_k - 1 or more masks nothing.
    shift = sizes.len_k if offset is None or offset + 1 >= sizes.len_k else offset
    for i0 in range(0, sizes.len_q, size):
        i1 = min(i0 + size, sizes.len_q)
        j0, j1 = (min(max(end + shift, 0), sizes.len_k) for end in (i0, i1))
        yield i1 - i0, j0, j1
