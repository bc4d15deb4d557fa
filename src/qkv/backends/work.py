"""What a call comes to on the threads of this process, engine by engine, in the units that a machine has prices for.

Sizes decide, as they do for the choice: what a mask's tensors hold is looked at only for `explain`.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from .. import ops
from ..cost import passes, tiles
from ..cost.executed import Geometry
from ..cost.price import Work, share
from ..cost.sizes import Sizes
from ..features import feature_count
from ..inputs import AttentionInputs, compute_dtype
from ..similarity import Argmax, FeatureMap, Polynomial, Softmax
from .base import band_of_sizes, counts_exactly, population
from .pieces import Piece, cut_mask, pieces_of_rectangle

NEAR = 2 << 20  # bytes a thread that stay in the caches
MOST_STEPS = 4096  # blocks that are looked at one by one; beyond, all are taken to be alike
FEW = 16  # rows of a unit that go without a tile, and queries that torch's kernel has no block for
# Bytes, and flops, for which the native kernels take one more thread (native/src/cache.h, attend.cpp).
READ_BYTES = 96 << 10
WORK_FLOPS = 1 << 20


def sizes_of(call: AttentionInputs) -> Sizes:
    extent = call.extent
    return Sizes(extent.batch, extent.heads, call.heads_kv, extent.len_q, extent.len_k, call.width, call.width_v)


def sdpa(call: AttentionInputs) -> Work:
    """Torch's kernel, piece by piece; each deals its blocks of queries out to the threads in one run."""
    extent, threads, band = call.extent, torch.get_num_threads(), band_of_sizes(call)
    whole = Piece(0, extent.batch, 0, extent.len_q, 0, extent.len_k)
    cut = [whole] if band.is_trivial else list(pieces_of_rectangle(whole, band))
    if counts_exactly() and call.mask is not None:
        cut = cut_mask(call)
    heads, wide = extent.batch * extent.heads, max(call.width, call.width_v)
    if call.group > 1 and band.is_trivial and call.mask is None and extent.len_q < 64:  # the group's heads become rows
        heads, cut = extent.batch * call.heads_kv, [whole._replace(i1=call.group * extent.len_q)]
    per_row = heads // max(1, extent.batch)
    sized = [(per_row * (p.b1 - p.b0), p.i1 - p.i0, p.j1 - p.j0, p.causal) for p in cut]
    busy = sum(_busiest(*piece, threads) for piece in sized)
    executed = sum(passes.flash_flops(rows, keys, wide, own, causal) for own, rows, keys, causal in sized)
    block = _query_block(max((rows for _, rows, _, _ in sized), default=0))
    tasks = sum(-(-own * -(-rows // max(32, block)) // threads) for own, rows, _, _ in sized)
    near, far = _moved(_keys(call), threads)
    # A piece that is neither a rectangle nor a triangle has a mask made for it, in a handful of operators.
    masked = [p for p in cut if p.lower is not None or p.upper is not None or p.mask is not None]
    tasks += 40 * len(masked)
    near += 40 * sum((p.i1 - p.i0) * (p.j1 - p.j0) for p in masked)
    return Work(
        f"sdpa.{block}.{_dtype(call)}", executed, tasks + 8 * len(cut), 4 * busy * wide, busy, _rows(call), near, far
    )


def _query_block(rows: int) -> int:
    """Queries of a head that torch's kernel takes together."""
    return 256 if rows >= 768 else 64 if rows >= 192 else 32 if rows > FEW else 1


def _busiest(heads: int, rows: int, keys: int, causal: bool, threads: int) -> int:
    """Pairs of the thread that has most of them: blocks of all heads in a row, dealt out in runs of one length."""
    block = max(32, _query_block(rows))
    if rows > MOST_STEPS * block:
        return -(-heads * passes.flash_pairs(rows, keys, causal) // max(1, threads))
    before = [0]
    for i0 in range(0, rows, block):
        i1 = min(i0 + block, rows)
        before.append(before[-1] + passes.flash_pairs(i1, keys, causal) - passes.flash_pairs(i0, keys, causal))
    blocks = len(before) - 1
    run = -(-heads * blocks // max(1, threads))

    def up_to(place: int) -> int:
        head, rest = divmod(min(place, heads * blocks), max(1, blocks))
        return head * before[-1] + before[rest]

    return max((up_to(start + run) - up_to(start) for start in range(0, heads * blocks, max(1, run))), default=0)


def blockwise(call: AttentionInputs, most: int) -> Work:
    """The equation on blocks of rows: a handful of torch's operators for each, over scores that stay near."""
    sizes, threads, band = sizes_of(call), torch.get_num_threads(), band_of_sizes(call)
    steps = max(1, -(-sizes.cells // most))
    pairs = (
        population(call) if steps > MOST_STEPS else passes.block_pairs(sizes, most, None if band.is_trivial else band)
    )
    size = compute_dtype(call.query.dtype).itemsize
    width = _score_width(call)
    executed = passes.block_products(pairs, width, sizes.width_v)
    return Work(
        f"blockwise.{_kind(call)}",
        executed,
        steps * (1 + _masked(call)),
        executed / threads,
        _masked(call) * pairs / threads,
        _rows(call) / threads,
        (_passes(call) * pairs * size + _converted(call)) / threads,
    )


def reference(call: AttentionInputs) -> Work:
    """Every score at once: products, and passes over the matrix of scores between them."""
    sizes, threads = sizes_of(call), torch.get_num_threads()
    size = compute_dtype(call.query.dtype).itemsize
    matrix = sizes.cells * size
    near, far = _moved(matrix, threads)
    products = 2 * sizes.cells * (_score_width(call) + (0 if isinstance(call.similarity, Argmax) else sizes.width_v))
    used = threads if sizes.cells > 1 << 15 else 1  # torch shares out no less
    return Work(
        f"reference.{_kind(call)}",
        products,
        1 + (call.mask is not None),
        products / threads,
        _masked(call) * sizes.cells / used,
        _rows(call) / used,
        (_passes(call) * near + _converted(call)) / used,
        _passes(call) * far,
    )


def native(call: AttentionInputs) -> Work:
    """The native kernel on plain tensors: tiles of query rows go along the keys, each page turned as it is met."""
    sizes, geometry = sizes_of(call), _geometry()
    band = None if call.mask is not None and call.mask.band(call.extent) is None else band_of_sizes(call)
    softcap = isinstance(call.similarity, Softmax) and call.similarity.softcap is not None
    executed = tiles.attend(geometry, sizes, band, softcap=softcap)
    rows = sizes.len_q * call.group
    stored = sizes.key_numbers + sizes.value_numbers
    size = call.query.element_size()
    units = -(-rows // geometry.query_rows)
    threads = _threads(4 * stored * units, executed.flops)
    near = executed.tiles * geometry.page_tokens * (sizes.width + sizes.width_v) * size / threads
    _, far = _moved(stored * size, threads)
    return Work(
        "native.few" if rows <= FEW else "native",
        executed.flops,
        executed.tiles / threads,
        executed.flops / threads,
        executed.exponentials / threads,
        _rows(call) / threads,
        near,
        far,
    )


def cache(sizes: Sizes, past: list[int], storage: str, held: int, softcap: bool, hard: bool) -> Work:
    """A step on a cache's pages, which are read while others are multiplied."""
    geometry = _geometry()
    executed = tiles.attend_memory(geometry, sizes, past, storage=storage, softcap=softcap, hard=hard)
    rows = sizes.len_q * (sizes.group)
    units = -(-rows // geometry.query_rows)
    threads = _threads(held * units, executed.flops)
    near, far = _moved(held, threads)
    return Work(
        f"cache.{'few' if rows <= FEW else 'many'}.{storage}",
        executed.flops,
        executed.tiles / threads,
        executed.flops / threads,
        executed.exponentials / threads,
        (sizes.query_numbers + sizes.out_numbers) / threads,
        near / threads,
        far,
        overlaps=True,
    )


def argmax(call: AttentionInputs, native: bool) -> Work:
    sizes, threads, band = sizes_of(call), torch.get_num_threads(), band_of_sizes(call)
    if not native:
        size = compute_dtype(call.query.dtype).itemsize
        near, far = _moved(sizes.cells * size, threads)
        products = passes.hard_products(sizes)
        steps, cells = max(1, sizes.cells >> 20), sizes.cells / threads
        return Work("argmax.torch", products, steps, products / threads, cells, _rows(call) / threads, near, far)
    executed = tiles.argmax(_geometry(), sizes, None if band.is_trivial else band)
    pairs = executed.score_flops / (2 * sizes.width)
    near, far = _moved(_keys(call), threads)
    steps = 100 * _masked(call) + executed.tiles / threads
    rows = (sizes.rows * _masked(call) + _rows(call)) / threads
    return Work("argmax", executed.flops, steps, executed.score_flops / threads, pairs / threads, rows, near, far)


def linear(call: AttentionInputs, features: int, direct: bool, chunk: int, engine: str) -> Work:
    """By a state, chunk by chunk, or by scores. engine: native, mapped (features made by torch first) or torch."""
    sizes, threads = sizes_of(call), torch.get_num_threads()
    band = band_of_sizes(call)
    offset = None if band.upper is None else band.upper - 1
    size = compute_dtype(call.query.dtype).itemsize
    heads = sizes.batch * sizes.heads_kv
    near, far = _moved(_keys(call), threads)
    if engine == "torch":
        steps = -(-sizes.len_q // max(1, chunk))
        some = sizes._replace(len_q=min(sizes.len_q, MOST_STEPS * chunk), len_k=min(sizes.len_k, MOST_STEPS * chunk))
        products = passes.chunk_products(some, passes.Features(features), chunk, offset)
        if some != sizes:
            products = round(products * sizes.len_q / some.len_q)
        return Work("linear.torch", products, steps, products / threads, 0, _rows(call) / threads, near, far)
    rule, wide, rows = _rule(call), sizes, _rows(call)
    if engine == "mapped":
        rule, wide, rows = tiles.Features("identity"), sizes._replace(width=features), sizes.rows * features
        more = _moved(heads * sizes.len_k * features * size, threads)
        near, far = near + more[0], far + more[1]
    executed = tiles.linear(_geometry(), wide, rule, offset=offset, direct=direct)
    # Heads, and segments of a long past, are dealt out one by one.
    tasks = heads * max(1, sizes.len_k // (4 * chunk))
    used = share(tasks, threads)
    return Work(
        f"linear.{'scores' if direct else engine}{'' if rule.map != 'power' else '.power'}",
        executed.flops,
        heads * (sizes.len_k + sizes.len_q) / chunk * used,
        executed.flops * used,
        (executed.feature_flops + executed.exponentials) * used,
        rows * used,
        near * used,
        far,
    )


def _rule(call: AttentionInputs) -> tiles.Features:
    """The map in the native kernel's words."""
    similarity = call.similarity
    if isinstance(similarity, Polynomial):
        return tiles.Features("power", similarity.degree, similarity.offset)
    assert isinstance(similarity, FeatureMap)
    given = similarity.map
    name = getattr(given, "__name__", "")
    if name in ("identity", "elu1", "relu", "squared"):
        return tiles.Features(name)
    return tiles.Features("power", getattr(given, "degree", 1), getattr(given, "offset", 0.0))


def _threads(held: int, flops: int) -> int:
    """As many threads as the native kernels take for so many bytes and so much work."""
    return int(min(max(held // READ_BYTES, flops // WORK_FLOPS, 1), torch.get_num_threads()))


def _moved(size: int, threads: int) -> tuple[int, int]:
    """All bytes, and those of them that do not fit into the caches of the threads."""
    return size, max(0, size - NEAR * threads)


def _keys(call: AttentionInputs) -> int:
    """Bytes of keys and values."""
    sizes = sizes_of(call)
    return (sizes.key_numbers + sizes.value_numbers) * call.query.element_size()


def _rows(call: AttentionInputs) -> int:
    """Numbers of queries and of answers."""
    sizes = sizes_of(call)
    mapped = sizes.key_numbers if isinstance(call.similarity, FeatureMap) else 0  # keys go through a map as queries do
    return sizes.query_numbers + sizes.out_numbers + mapped


def _score_width(call: AttentionInputs) -> int:
    if isinstance(call.similarity, FeatureMap):
        return feature_count(call.similarity, call.width)
    return call.width


def _kind(call: AttentionInputs) -> str:
    return call.similarity.kind


def _dtype(call: AttentionInputs) -> str:
    return str(call.query.dtype).removeprefix("torch.")


def _converted(call: AttentionInputs) -> int:
    """Bytes that move when half precision is made float32 before the work and half precision after it."""
    if call.query.dtype.itemsize >= 4:
        return 0
    sizes = sizes_of(call)
    return 6 * (sizes.query_numbers + sizes.key_numbers + sizes.value_numbers + sizes.out_numbers)


def _masked(call: AttentionInputs) -> int:
    """1 where cells of a mask are made and looked at."""
    return 0 if call.mask is None else 1


def _passes(call: AttentionInputs) -> int:
    """How often numbers of the matrix of scores are read or written between the products."""
    count = 8
    if call.bias is not None:
        count += 4
    if isinstance(call.similarity, Softmax) and call.similarity.softcap is not None:
        count += 6
    return count


@lru_cache
def _geometry_of(isa: str) -> Geometry:
    return ops.geometry()


def _geometry() -> Geometry:
    return _geometry_of(ops.isa())
