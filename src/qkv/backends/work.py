"""The work that each backend executes for a call, in the units in which `qkv.cost.machine` predicts time.

A function of this module returns a `Work`: flops in all, and steps, flops, pairs, rows and bytes of the busiest thread.
Its counts follow from sizes, as dispatch requires; the contents of mask tensors are read only under `exact_counts`.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from .. import ops
from ..cost import native_flops, torch_flops
from ..cost.native_flops import Geometry
from ..cost.price import Work, busiest_share
from ..cost.sizes import Sizes
from ..features import feature_count
from ..inputs import AttentionInputs, compute_dtype
from ..similarity import Argmax, FeatureMap, Polynomial, Softmax
from .base import attended_pairs, band_from_sizes, counts_exactly
from .pieces import Piece, cut_mask, pieces_of_rectangle

THREAD_CACHE_BYTES = 2 << 20  # bytes that stay in the CPU caches for each thread
MAX_STEPS = 4096  # the most blocks that are counted one by one; beyond that, all count as equal
FEW_ROWS = 16  # up to this many rows, the native kernel uses no tile and torch's kernel no block of queries
# The native kernels use one more thread for each of these bytes, or flops (native/src/attend.cpp).
READ_BYTES = 96 << 10
WORK_FLOPS = 1 << 20


def sizes_of(call: AttentionInputs) -> Sizes:
    extent = call.extent
    return Sizes(extent.batch, extent.heads, call.heads_kv, extent.len_q, extent.len_k, call.width, call.width_v)


def sdpa(call: AttentionInputs) -> Work:
    """Torch's flash kernel, piece by piece; each thread gets a contiguous run of the blocks of queries of a piece."""
    extent, threads, band = call.extent, torch.get_num_threads(), band_from_sizes(call)
    whole = Piece(0, extent.batch, 0, extent.len_q, 0, extent.len_k)
    cut = [whole] if band.is_trivial else list(pieces_of_rectangle(whole, band))
    if counts_exactly() and call.mask is not None:
        cut = cut_mask(call)
    heads, wide = extent.batch * extent.heads, max(call.width, call.width_v)
    if call.group > 1 and band.is_trivial and call.mask is None and extent.len_q < 64:  # the group's heads become rows
        heads, cut = extent.batch * call.heads_kv, [whole._replace(i1=call.group * extent.len_q)]
    per_row = heads // max(1, extent.batch)
    shapes = [(per_row * (p.b1 - p.b0), p.i1 - p.i0, p.j1 - p.j0, p.causal) for p in cut]
    busy = sum(_pairs_of_busiest_thread(*piece, threads) for piece in shapes)
    executed = sum(torch_flops.flash_flops(rows, keys, wide, heads, causal) for heads, rows, keys, causal in shapes)
    block = _query_block(max((rows for _, rows, _, _ in shapes), default=0))
    tasks = sum(-(-heads * -(-rows // max(32, block)) // threads) for heads, rows, _, _ in shapes)
    near, far = _bytes_moved(_key_value_bytes(call), threads)
    # A piece that is neither a rectangle nor a triangle needs an additive mask, which takes several operators.
    masked = [p for p in cut if p.lower is not None or p.upper is not None or p.mask is not None]
    tasks += 40 * len(masked)
    near += 40 * sum((p.i1 - p.i0) * (p.j1 - p.j0) for p in masked)
    return Work(
        f"sdpa.{block}.{_dtype(call)}",
        executed,
        tasks + 8 * len(cut),
        4 * busy * wide,
        busy,
        _query_numbers(call),
        near,
        far,
    )


def _query_block(rows: int) -> int:
    """The number of queries of a head that torch's kernel processes together."""
    return 256 if rows >= 768 else 64 if rows >= 192 else 32 if rows > FEW_ROWS else 1


def _pairs_of_busiest_thread(heads: int, rows: int, keys: int, causal: bool, threads: int) -> int:
    """Pairs of the busiest thread: the blocks of all heads, in order, are split into runs of equal length."""
    block = max(32, _query_block(rows))
    if rows > MAX_STEPS * block:
        return -(-heads * torch_flops.flash_pairs(rows, keys, causal) // max(1, threads))
    before = [0]
    for i0 in range(0, rows, block):
        i1 = min(i0 + block, rows)
        before.append(
            before[-1] + torch_flops.flash_pairs(i1, keys, causal) - torch_flops.flash_pairs(i0, keys, causal)
        )
    blocks = len(before) - 1
    run = -(-heads * blocks // max(1, threads))

    def pairs_before(place: int) -> int:
        head, rest = divmod(min(place, heads * blocks), max(1, blocks))
        return head * before[-1] + before[rest]

    starts = range(0, heads * blocks, max(1, run))
    return max((pairs_before(start + run) - pairs_before(start) for start in starts), default=0)


def blockwise(call: AttentionInputs, block_scores: int) -> Work:
    """The equation on blocks of rows: several torch operators for each, over scores that stay in the caches."""
    sizes, threads, band = sizes_of(call), torch.get_num_threads(), band_from_sizes(call)
    steps = max(1, -(-sizes.cells // block_scores))
    pairs = (
        attended_pairs(call)
        if steps > MAX_STEPS
        else torch_flops.block_pairs(sizes, block_scores, None if band.is_trivial else band)
    )
    size = compute_dtype(call.query.dtype).itemsize
    width = _score_width(call)
    executed = torch_flops.block_products(pairs, width, sizes.width_v)
    return Work(
        f"blockwise.{call.similarity.kind}",
        executed,
        steps * (1 + _has_mask(call)),
        executed / threads,
        _has_mask(call) * pairs / threads,
        _query_numbers(call) / threads,
        (_score_passes(call) * pairs * size + _conversion_bytes(call)) / threads,
    )


def reference(call: AttentionInputs) -> Work:
    """All scores at once: two products, and passes over the matrix of scores between them."""
    sizes, threads = sizes_of(call), torch.get_num_threads()
    size = compute_dtype(call.query.dtype).itemsize
    matrix = sizes.cells * size
    near, far = _bytes_moved(matrix, threads)
    products = 2 * sizes.cells * (_score_width(call) + (0 if isinstance(call.similarity, Argmax) else sizes.width_v))
    used = threads if sizes.cells > 1 << 15 else 1  # torch runs smaller operators on one thread
    return Work(
        f"reference.{call.similarity.kind}",
        products,
        1 + (call.mask is not None),
        products / threads,
        _has_mask(call) * sizes.cells / used,
        _query_numbers(call) / used,
        (_score_passes(call) * near + _conversion_bytes(call)) / used,
        _score_passes(call) * far,
    )


def native(call: AttentionInputs) -> Work:
    """The native kernel on tensors: tiles of query rows pass over the keys, transposing each page of them."""
    sizes, geometry = sizes_of(call), _geometry()
    band = None if call.mask is not None and call.mask.band(call.extent) is None else band_from_sizes(call)
    softcap = isinstance(call.similarity, Softmax) and call.similarity.softcap is not None
    executed = native_flops.attention(geometry, sizes, band, softcap=softcap)
    rows = sizes.len_q * call.group
    stored = sizes.key_numbers + sizes.value_numbers
    size = call.query.element_size()
    units = -(-rows // geometry.query_rows)
    threads = _native_threads(4 * stored * units, executed.flops)
    near = executed.tiles * geometry.page_tokens * (sizes.width + sizes.width_v) * size / threads
    _, far = _bytes_moved(stored * size, threads)
    return Work(
        "native.few" if rows <= FEW_ROWS else "native",
        executed.flops,
        executed.tiles / threads,
        executed.flops / threads,
        executed.exponentials / threads,
        _query_numbers(call) / threads,
        near,
        far,
    )


def cache_step(sizes: Sizes, past: list[int], storage: str, stored: int, softcap: bool, is_argmax: bool) -> Work:
    """The native kernel on the pages of a cache, which are read while others are multiplied.

    Args:
        sizes: Sizes of the step; `len_k` is not read.
        past: The number of tokens of each batch row.
        storage: The storage format of the cache.
        stored: Bytes of keys and values in the cache.
        softcap: Whether scores are capped.
        is_argmax: Whether the similarity is `Argmax`.
    """
    geometry = _geometry()
    executed = native_flops.cached_attention(
        geometry, sizes, past, storage=storage, softcap=softcap, is_argmax=is_argmax
    )
    rows = sizes.len_q * sizes.group
    units = -(-rows // geometry.query_rows)
    threads = _native_threads(stored * units, executed.flops)
    near, far = _bytes_moved(stored, threads)
    return Work(
        f"cache.{'few' if rows <= FEW_ROWS else 'many'}.{storage}",
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
    """The best key of each query: by the native kernel, or by torch in blocks."""
    sizes, threads, band = sizes_of(call), torch.get_num_threads(), band_from_sizes(call)
    if not native:
        size = compute_dtype(call.query.dtype).itemsize
        near, far = _bytes_moved(sizes.cells * size, threads)
        products = torch_flops.argmax_products(sizes)
        steps, cells = max(1, sizes.cells >> 20), sizes.cells / threads
        return Work(
            "argmax.torch", products, steps, products / threads, cells, _query_numbers(call) / threads, near, far
        )
    executed = native_flops.argmax(_geometry(), sizes, None if band.is_trivial else band)
    pairs = executed.score_flops / (2 * sizes.width)
    near, far = _bytes_moved(_key_value_bytes(call), threads)
    steps = 100 * _has_mask(call) + executed.tiles / threads
    rows = (sizes.rows * _has_mask(call) + _query_numbers(call)) / threads
    return Work("argmax", executed.flops, steps, executed.score_flops / threads, pairs / threads, rows, near, far)


def linear(call: AttentionInputs, features: int, direct: bool, chunk: int, engine: str) -> Work:
    """By a state, chunk by chunk, or by scores (`direct`).

    engine: "native", "mapped" (torch computes the features, the native kernel the rest) or "torch".
    """
    sizes, threads = sizes_of(call), torch.get_num_threads()
    band = band_from_sizes(call)
    offset = None if band.upper is None else band.upper - 1
    size = compute_dtype(call.query.dtype).itemsize
    heads = sizes.batch * sizes.heads_kv
    near, far = _bytes_moved(_key_value_bytes(call), threads)
    if engine == "torch":
        steps = -(-sizes.len_q // max(1, chunk))
        counted = sizes._replace(len_q=min(sizes.len_q, MAX_STEPS * chunk), len_k=min(sizes.len_k, MAX_STEPS * chunk))
        products = torch_flops.chunk_products(counted, features, chunk, offset)
        if counted != sizes:
            products = round(products * sizes.len_q / counted.len_q)
        return Work("linear.torch", products, steps, products / threads, 0, _query_numbers(call) / threads, near, far)
    rule, wide, rows = _kernel_map(call), sizes, _query_numbers(call)
    if engine == "mapped":
        rule, wide, rows = native_flops.NativeMap("identity"), sizes._replace(width=features), sizes.rows * features
        more = _bytes_moved(heads * sizes.len_k * features * size, threads)
        near, far = near + more[0], far + more[1]
    executed = native_flops.linear(_geometry(), wide, rule, offset=offset, direct=direct)
    # Heads, and segments of a long sequence, go to the threads one by one.
    tasks = heads * max(1, sizes.len_k // (4 * chunk))
    used = busiest_share(tasks, threads)
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


def _kernel_map(call: AttentionInputs) -> native_flops.NativeMap:
    """The feature map under the name that the native kernel has for it."""
    similarity = call.similarity
    if isinstance(similarity, Polynomial):
        return native_flops.NativeMap("power", similarity.degree, similarity.offset)
    assert isinstance(similarity, FeatureMap)
    given = similarity.map
    name = getattr(given, "__name__", "")
    if name in ("identity", "elu1", "relu", "squared"):
        return native_flops.NativeMap(name)
    return native_flops.NativeMap("power", getattr(given, "degree", 1), getattr(given, "offset", 0.0))


def _native_threads(size: int, flops: int) -> int:
    """The number of threads that the native kernels use for this many bytes and flops."""
    return int(min(max(size // READ_BYTES, flops // WORK_FLOPS, 1), torch.get_num_threads()))


def _bytes_moved(size: int, threads: int) -> tuple[int, int]:
    """All bytes, and those of them that do not fit into the CPU caches of the threads."""
    return size, max(0, size - THREAD_CACHE_BYTES * threads)


def _key_value_bytes(call: AttentionInputs) -> int:
    """The number of bytes of keys and values."""
    sizes = sizes_of(call)
    return (sizes.key_numbers + sizes.value_numbers) * call.query.element_size()


def _query_numbers(call: AttentionInputs) -> int:
    """The count of numbers in queries and answers, and in keys if they go through a feature map."""
    sizes = sizes_of(call)
    mapped = sizes.key_numbers if isinstance(call.similarity, FeatureMap) else 0
    return sizes.query_numbers + sizes.out_numbers + mapped


def _score_width(call: AttentionInputs) -> int:
    if isinstance(call.similarity, FeatureMap):
        return feature_count(call.similarity, call.width)
    return call.width


def _dtype(call: AttentionInputs) -> str:
    return str(call.query.dtype).removeprefix("torch.")


def _conversion_bytes(call: AttentionInputs) -> int:
    """Bytes moved to convert half precision to float32 before the work, and back after it."""
    if call.query.dtype.itemsize >= 4:
        return 0
    sizes = sizes_of(call)
    return 6 * (sizes.query_numbers + sizes.key_numbers + sizes.value_numbers + sizes.out_numbers)


def _has_mask(call: AttentionInputs) -> int:
    """1 if there is a mask, whose cells are written and read."""
    return 0 if call.mask is None else 1


def _score_passes(call: AttentionInputs) -> int:
    """How many times the matrix of scores is read or written between the two products."""
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
