"""Products that the backends built on torch's operators execute, from sizes alone. A leaf: no torch, integers.

*Executed*, not needed: masked halves of tiles, and keys that nobody sees, are in it where the code goes over them.
`watch` counts the same from what really ran, and tests hold the two equal, so that a change in a backend shows here. Sizes
of blocks stand in the backends and are given as arguments. `dense_passes` has `dense` with its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..masks import Band
from .price import product_flops
from .sizes import Sizes

# Keys in a block of torch's flash kernel. Its blocks of queries, 32, 64 or 256 rows, divide it.
FLASH_KEYS = 512


class Features(NamedTuple):
    """A feature map: how many features, how many elementwise operators one after the other (identity 0, relu and
    squared 1, elu1 2), and flops of products for each row that is mapped; beside: operators whose results are added to
    that (elu1 1)."""

    width: int
    steps: int = 0
    products_a_row: int = 0
    beside: int = 0


def dense_products(sizes: Sizes, similarity: str, features: Features | None = None, *, training: bool = False) -> int:
    """Flops of the products of `dense`; training: backward too, where each product has two.

    >>> dense_products(Sizes(1, 1, 1, len_q=2, len_k=3, width=5, width_v=7), "softmax", training=True)
    432
    """
    if similarity == "argmax":
        return product_flops(sizes.cells, sizes.width)
    width = sizes.width if features is None else features.width
    rows = sizes.rows + sizes.batch * sizes.heads_kv * sizes.len_k
    mapping = 0 if features is None else rows * features.products_a_row
    times = 3 if training else 1
    return times * product_flops(sizes.cells, width + sizes.width_v) + (2 if training else 1) * mapping


def hard_products(sizes: Sizes) -> int:
    """`hard` by torch's blocks: every score once, whatever the mask, and nothing backward."""
    return product_flops(sizes.cells, sizes.width)


class Piece(NamedTuple):
    """A rectangle of the scores that the flash kernel does in one call: `heads` of the whole batch that share it, and
    whether it is a triangle from the top left."""

    heads: int
    rows: int
    keys: int
    causal: bool = False


def flash_pairs(rows: int, keys: int, causal: bool) -> int:
    """Pairs that the kernel computes for one head: each block of keys as a whole, for all rows of a block of queries
    that see any of it. Blocks of queries divide FLASH_KEYS, so that rows go by that many together.

    >>> flash_pairs(1024, 1024, causal=True), 1024 * 1025 // 2
    (786432, 524800)
    """
    if not causal:
        return rows * keys
    whole, rest = divmod(rows, FLASH_KEYS)
    rising = min(whole, keys // FLASH_KEYS)
    below = FLASH_KEYS**2 * rising * (rising + 1) // 2
    return below + (whole - rising) * FLASH_KEYS * keys + rest * min(FLASH_KEYS * (whole + 1), keys)


def flash_flops(len_q: int, len_k: int, width: int, heads: int, causal: bool, *, backward: bool = False) -> int:
    """Flops of products of one call of the kernel: two forward, and backward five, the scores once more among them.

    >>> flash_flops(1024, 1024, 64, heads=8, causal=True)
    1610612736
    """
    return (5 if backward else 2) * heads * product_flops(flash_pairs(len_q, len_k, causal), width)


def flash_products(pieces: Sequence[Piece], width: int, width_v: int, *, training: bool = False) -> int:
    """`streaming` on the flash kernel, in pieces; the narrower of keys and values is filled up with zeros."""
    wide = max(width, width_v)
    ways = (False, True) if training else (False,)
    return sum(flash_flops(p.rows, p.keys, wide, p.heads, p.causal, backward=way) for p in pieces for way in ways)


def block_pairs(sizes: Sizes, most: int, band: Band | None = None) -> int:
    """Pairs in the blocks of rows of `streaming`, for scores of at most `most` in a block. A block holds every key that
    some of its rows see; a mask that is no band is None, and takes them all."""
    if band is None:
        return sizes.cells
    group = sizes.group
    per_head = 16 * group * sizes.len_k
    heads = max(1, min(sizes.heads_kv, most // max(1, per_head)))
    whole = heads == sizes.heads_kv
    batch = max(1, min(sizes.batch, most // max(1, per_head * sizes.heads_kv))) if whole else 1
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


def block_products(pairs: int, width: int, width_v: int, *, masked: bool = False, training: bool = False) -> int:
    """`streaming` by the equation on blocks. width: of the features, where there are some. Backward the scores are made
    again, and the answer only where a mask comes after it."""
    forward = product_flops(pairs, width + width_v)
    if not training:
        return forward
    return 3 * forward + product_flops(pairs, width + width_v if masked else width)


def block_gradient_products(pairs: int, width: int, width_v: int) -> int:
    """The backward pass by blocks that a bias or lse asks for, in place of the flash kernel's own."""
    return product_flops(pairs, 3 * width + 2 * width_v)


def chunk_products(
    sizes: Sizes, features: Features, size: int, offset: int | None = None, *, training: bool = False
) -> int:
    """`linear` by torch's chunks of `size` tokens. offset: of `Causal`; None where every query sees every key."""
    group, heads_kv = sizes.group, sizes.batch * sizes.heads_kv
    state = features.width * (sizes.width_v + 1)
    scored = features.width + sizes.width_v + 1
    flops = mapped = absorbed = 0
    first = None
    for rows, j0, j1 in _chunks(sizes, size, offset):
        queries, keys = heads_kv * group * rows, heads_kv * (j1 - j0)
        pairs = queries * (j1 - j0)
        fresh, absorbed = heads_kv * max(0, j0 - absorbed), max(absorbed, j0)
        once = product_flops(fresh + queries, state) + product_flops(pairs, scored)
        flops, mapped = flops + once, mapped + fresh + queries + keys
        if training:
            # The sums again, the derivative by queries, and the sweep back over keys; maps again, and backward.
            more = product_flops(2 * queries + 2 * keys, state) + product_flops(3 * pairs, scored)
            flops += once + more
            mapped += fresh + 4 * queries + 5 * keys
            first = j0 if first is None else first
    if training:
        before = heads_kv * (first or 0)
        flops += product_flops(2 * before, state)
        mapped += 3 * before + 1  # one row more asks whether the map learns
    return flops + mapped * features.products_a_row


def _chunks(sizes: Sizes, size: int, offset: int | None) -> Iterator[tuple[int, int, int]]:
    """Rows, and the keys that only some of them see: those before are seen by all."""
    # A diagonal that the first query is already past is none.
    shift = sizes.len_k if offset is None or offset + 1 >= sizes.len_k else offset
    for i0 in range(0, sizes.len_q, size):
        i1 = min(i0 + size, sizes.len_q)
        j0, j1 = (min(max(end + shift, 0), sizes.len_k) for end in (i0, i1))
        yield i1 - i0, j0, j1
