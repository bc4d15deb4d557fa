"""Pages: their bytes, the pool, the page table and the locks."""

import contextlib
import copy
import gc
import pickle

import numpy as np
import pytest
import torch

import qkv
from qkv import ops
from qkv.cache import KVCache
from qkv.cache import pages as pages_module
from qkv.cache.pages import (
    PAGE,
    PagePool,
    PageTable,
    from_storage,
    page_layout,
    read_pages,
    to_storage,
    write_page,
)
from qkv.errors import OptionTypeError
from qkv.ops.kernels import cache_append
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import STORAGE, in_a_process, name_of, page_bytes, resident

WIDTHS = [(1, 1), (5, 17), (64, 64), (11, 16), (16, 3)]
by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)
by_width = pytest.mark.parametrize(("width", "values"), WIDTHS)


def stored_tokens(layout, count: int = PAGE, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    key = torch.randn(layout.heads, count, layout.width, generator=generator)
    return to_storage(layout, key, torch.randn(layout.heads, count, layout.value_width, generator=generator))


@by_storage
@by_width
def test_every_part_is_aligned(storage, width, values) -> None:
    layout = page_layout(storage, 3, width, values)
    assert not [at for at in (layout.keys_at, layout.values_at, layout.head_bytes, layout.page_bytes) if at % 64]
    assert layout.head_bytes == page_bytes(1, width, values, storage)
    assert layout.page_bytes == 3 * layout.head_bytes


@by_storage
@by_width
def test_what_is_written_is_read(storage, width, values) -> None:
    layout = page_layout(storage, 3, width, values)
    pages = torch.randint(0, 255, (2, layout.page_bytes), dtype=torch.uint8)
    first, second = stored_tokens(layout), stored_tokens(layout, seed=1)
    for slot in range(0, PAGE, 7):
        part = slice(slot, min(PAGE, slot + 7))
        write_page(layout, pages[0], slot, type(first)(*(t if t is None else t[:, part] for t in first)))
    write_page(layout, pages[1], 0, second)
    found = read_pages(layout, pages)
    for name in found._fields:
        one, other, both = getattr(first, name), getattr(second, name), getattr(found, name)
        assert (both is None) == (one is None)
        if both is not None:
            assert torch.equal(both, torch.cat([one, other], dim=1)), name
    key, value = from_storage(layout, found)
    assert key.shape == (3, 2 * PAGE, width)
    assert value.shape == (3, 2 * PAGE, values)


def test_a_coordinate_is_a_run_of_tokens() -> None:
    layout = page_layout(torch.float32, 1, 3, 5)
    page = torch.zeros(layout.page_bytes, dtype=torch.uint8)
    stored = stored_tokens(layout)
    write_page(layout, page, 0, stored)
    floats = page.view(torch.float32)
    assert torch.equal(floats[16 : 16 + 64], stored.key[0, :, 0])
    assert torch.equal(floats[16 + 3 * 64 : 16 + 3 * 64 + 5], stored.value[0, 0])
    assert not floats[16 + 3 * 64 + 5 : 16 + 3 * 64 + 16].any()


@by_storage
def test_the_header_tells_of_values_that_are_not_finite(storage) -> None:
    layout = page_layout(storage, 2, 4, 4)
    page = torch.randint(1, 255, (layout.page_bytes,), dtype=torch.uint8)
    marks = page.view(2, -1)[:, 0]
    clean, bad = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    bad[1, 1, 2] = float("inf")
    write_page(layout, page, 0, to_storage(layout, bad, clean))
    assert marks.tolist() == [0, 0]
    write_page(layout, page, 3, to_storage(layout, clean, bad))
    write_page(layout, page, 6, to_storage(layout, clean, clean))
    assert marks.tolist() == [0, 1]
    write_page(layout, page, 0, to_storage(layout, clean, clean))
    assert marks.tolist() == [0, 0]


@pytest.mark.slow
@by_storage
@by_width
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_native_library_writes_the_same_bytes(storage, width, values, dtype) -> None:
    assert ops.available(), ops.reasons()
    assert cache_append is not None
    one, other = (KVCache(2, 3, width, value_width=values, dtype=storage) for _ in range(2))
    generator = torch.Generator().manual_seed(4)
    for n in (1, 70, 5):
        key = torch.randn(2, 3, n, width, generator=generator).to(dtype)
        value = torch.randn(2, 3, n, values, generator=generator).to(dtype)
        value[0, 0, 0, 0] = float("nan")
        key[1, 1, 0] = 0
        with one.lock:
            one.append(key, value)
        other.reserve(n, None)
        for row in range(2):
            other._write_row(row, int(other._lengths[row]), to_storage(other._layout, key[row], value[row]))
        other.commit(key, None)
    for row in range(2):
        pages = [cache._pool.gather(cache._table.row_pages(row).tolist()) for cache in (one, other)]
        assert torch.equal(pages[0].view(2 * 3, -1)[:, 0], pages[1].view(2 * 3, -1)[:, 0])
        for found, wanted in zip(one.stored_row(row)[1], other.stored_row(row)[1], strict=True):
            if found is not None:
                torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


MB = 2**20


def new(storage=torch.float32):
    return qkv.KVCache(3, 2, 11, value_width=13, dtype=storage)


def pairs(n):
    return tokens(n, batch=3, heads=(2, 2), widths=(11, 13), dtype=torch.float32, seed=0)[1:]


class TestBytes:
    @by_storage
    def test_pages_that_hold_tokens_are_what_it_costs(self, storage):
        cache, one = new(storage), page_bytes(2, 11, 13, storage)
        assert cache.nbytes == 0
        for n, pages in ((1, 1), (63, 1), (1, 2), (63, 2), (1, 3), (200, 6)):
            cache.append(*pairs(n))
            assert cache.nbytes == 3 * pages * one
        ragged = new(storage)
        ragged.append(*pairs(65), lengths=torch.tensor([65, 1, 0]))
        assert ragged.nbytes == 3 * one

    def test_storage_is_what_the_dtype_says(self):
        sizes = {}
        for storage in STORAGE:
            cache = qkv.KVCache(1, 8, 128, dtype=storage)
            cache.append(torch.zeros(1, 8, 1024, 128), torch.zeros(1, 8, 1024, 128))
            sizes[storage] = cache.nbytes
        numbers_kept = 2 * 8 * 1024 * 128
        assert numbers_kept * 4 <= sizes[torch.float32] <= numbers_kept * 4 * 1.01
        assert numbers_kept * 2 <= sizes[torch.float16] <= numbers_kept * 2 * 1.01
        assert numbers_kept * 2 <= sizes[torch.bfloat16] <= numbers_kept * 2 * 1.01
        assert numbers_kept <= sizes[torch.int8] <= numbers_kept * 1.04

    def test_rows_that_share_pages_count_them_once(self):
        cache = new()
        cache.append(*pairs(128))
        one = cache.nbytes // 3
        cache.reorder([1] * 7)
        assert cache.nbytes == one


def large():
    """96 MB in one row of 8 heads: a copy of it would show."""
    cache = qkv.KVCache(1, 8, 128)
    key = torch.randn(1, 8, 1024, 128)
    for _ in range(12):
        cache.append(key, key)
    assert cache.nbytes > 96 * MB
    return cache, key


class TestThePastIsNeverCopied:
    """Measured by what the process has in memory, with a margin for a chunk of the pool and torch's own."""

    @pytest.mark.slow
    def test_by_growing(self):
        cache, key = large()
        before = resident()
        for _ in range(130):
            cache.append(key[:, :, :1], key[:, :, :1])
            assert resident() - before < 40 * MB

    def test_by_fork_and_reorder(self):
        cache, key = large()
        before = resident()
        kept = [cache.fork() for _ in range(10)]
        for one in kept:
            one.reorder([0] * 6)
        assert resident() - before < 8 * MB
        for one in kept:
            one.append(*(key[:, :, :1].expand(6, -1, -1, -1),) * 2)
        # At most one page of 512 kB for each of 60 rows.
        assert resident() - before < 60 * 2 * page_bytes(8, 128, 128, torch.float32) + 16 * MB

    def test_by_crop_or_a_step(self):
        cache, key = large()
        before = resident()
        forked = cache.fork()
        forked.crop(64 * 150 + 3)
        for _ in range(3):
            qkv.decode(*(key[:, :, :1],) * 3, forked)
        assert resident() - before < 40 * MB

    @pytest.mark.slow
    def test_what_is_let_go_is_used_again(self):
        cache, key = large()
        cache.reset()
        del cache
        gc.collect()
        before = resident()
        for _ in range(5):
            cache, _ = large()
            forked = cache.fork()
            forked.append(key[:, :, :3], key[:, :, :3])
            cache.reset()
            del cache, forked
            gc.collect()
        assert resident() - before < 140 * MB

    def test_reset_does_not_leak(self):
        cache, key = large()
        cache.reset()
        before = resident()
        for _ in range(5):
            for _ in range(12):
                cache.append(key, key)
            cache.reset()
        assert resident() - before < 110 * MB


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["qkv.LinearState(qkv.Polynomial(2), 1, 1, 16)", "qkv.KVCache(1, 1, 16, window=500)"])
def test_a_forked_child_does_not_wait_for_a_thread_that_it_has_not(cache: str) -> None:
    said = in_a_process(
        f"""
        import os, signal, threading, warnings
        import torch, qkv

        torch.set_num_threads(1)
        cache, token = {cache}, torch.randn(1, 1, 1, 16)
        lock = (cache._pool if isinstance(cache, qkv.KVCache) else cache._shared).lock
        held, done = threading.Event(), threading.Event()

        def hold():
            with lock:
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            other = cache.fork()
            qkv.decode(token, token, token, other)
            qkv.decode(token, token, token, cache)
            os._exit(10 * other.length + cache.length)
        done.set()
        thread.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert said.strip() == "11"  # -14: it waited until the alarm


def small_cache(batch: int = 2, **options) -> KVCache:
    return KVCache(batch, 1, 4, **options)


def pair(n: int, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 1, n, 4), torch.randn(batch, 1, n, 4)


def owners(*caches: KVCache) -> dict[int, int]:
    """How often each page stands in the tables."""
    counts: dict[int, int] = {}
    for cache in caches:
        for page in cache._table.all() + cache._preallocated:
            counts[page] = counts.get(page, 0) + 1
    return counts


def check(*caches: KVCache) -> None:
    """No page is both used and free, none is free twice, and shared ones are known as such."""
    pool = caches[0]._pool
    pool.release([])
    while pool._collected:
        table, spare = pool._collected.popleft()
        pool.release(table.all() + spare)
    counts = owners(*caches)
    assert {page: count for page, count in counts.items() if count > 1} == pool.shared
    assert len(set(pool._free)) == len(pool._free)
    assert not set(pool._free) & set(counts)
    assert len(pool._free) + len(counts) == pool.pages


def test_chunks_double_up_to_a_limit_and_never_move() -> None:
    pool = PagePool(256 << 10)
    taken = []
    for _ in range(1200):
        taken += pool.take(1)
    sizes = sorted(len(chunk) for _, chunk in pool._chunks)
    assert sizes[:3] == [1, 1, 2]
    assert max(sizes) == 256
    assert len(set(taken)) == 1200
    assert all(address % 64 == 0 for address in taken)
    # A prompt's chunk is made for large pages, and fills the last one; those that steps grow by are not.
    prompt = PagePool(768 << 10)
    assert min(prompt.take(2, prompt=True)) % (2 << 20) == 0
    prompt.take(100, prompt=True)
    assert prompt.pages == 2 + 101
    for address in taken:
        assert pool.page(address).data_ptr() == address


def test_a_failed_allocation_names_its_bytes_and_changes_nothing(monkeypatch) -> None:
    cache = small_cache()
    cache.append(*pair(64))
    before = cache.tensors()

    def fail(*sizes, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(pages_module.torch, "empty", fail)
        with pytest.raises(MemoryError, match=f"{2 * cache._layout.page_bytes} bytes"):
            cache.append(*pair(1))
    assert cache.lengths.tolist() == [64, 64]
    assert torch.equal(cache.tensors()[0], before[0])
    cache.append(*pair(1))
    check(cache)


def test_a_generous_chunk_that_fails_gives_way_to_a_small_one(monkeypatch) -> None:
    cache = small_cache(1)
    cache.append(*pair(64 * 8, 1))
    real = torch.empty

    def small_only(size, *rest, **options):
        if isinstance(size, int) and size > 2 * cache._layout.page_bytes:
            raise RuntimeError("no")
        return real(size, *rest, **options)

    monkeypatch.setattr(pages_module.torch, "empty", small_only)
    cache.append(*pair(1, 1))
    assert cache.length == 513


def test_owners_through_forks_reorders_crops_and_deaths() -> None:
    generator = torch.Generator().manual_seed(0)
    caches = [small_cache(3)]

    def draw(most: int) -> int:
        return int(torch.randint(0, most, (), generator=generator))

    for _ in range(300):
        cache = caches[draw(len(caches))]
        action = draw(7)
        if action <= 1:
            cache.append(*pair(1 + draw(100), cache.batch))
        elif action == 2 and len(caches) < 5:
            caches.append(cache.fork())
        elif action == 3:
            cache.reorder(torch.randint(0, cache.batch, (1 + draw(4),), generator=generator))
        elif action == 4:
            cache.crop(draw(cache.length + 1))
        elif action == 5:
            n = draw(90)
            cache.append(*pair(n, cache.batch), lengths=torch.randint(0, n + 1, (cache.batch,), generator=generator))
        elif len(caches) > 1:
            del cache
            caches.pop(draw(len(caches)))
        cache = None
        gc.collect(0)
        check(*caches)


def test_a_shared_page_is_copied_once_and_only_when_written_to() -> None:
    cache = small_cache()
    cache.append(*pair(70))
    other = cache.fork()
    pool = cache._pool
    before = set(cache._table.all())
    other.append(*pair(1))
    assert len(set(other._table.all()) - before) == 2
    assert cache._table.all() == sorted(before, key=cache._table.all().index)
    cache.append(*pair(1))
    assert set(cache._table.all()) == before
    assert len(pool.shared) == 2
    check(cache, other)


def test_pages_set_aside_come_back() -> None:
    cache = small_cache(capacity=200)
    aside = cache.nbytes
    assert aside == 2 * 4 * cache._layout.page_bytes
    cache.append(*pair(150))
    other = cache.fork()
    cache.crop(3)
    cache.append(*pair(150))
    cache.reset()
    assert cache.nbytes <= aside
    del other
    cache.append(*pair(200))
    check(cache)


def test_a_table_finds_pages_by_their_number_modulo_its_slots() -> None:
    table = PageTable.empty(2, 2)
    table = table.with_slots_for(np.array([3, 1]))
    assert table.slots == 4
    rows, places = table.missing_pages(np.array([3, 1]))
    table.put(rows, places, [11, 12, 13, 21])
    table.stop[:] = [3, 1]
    assert table.cut_below(np.array([2, 0])) == [11, 12]
    table = table.with_slots_for(np.array([6, 1]))
    assert table.slots == 4
    rows, places = table.missing_pages(np.array([6, 1]))
    table.put(rows, places, [14, 15, 16])
    table.stop[:] = [6, 1]
    assert table.row_pages(0).tolist() == [13, 14, 15, 16]
    wider = table.with_slots_for(np.array([7, 1]))
    assert wider.slots == 8
    assert wider.row_pages(0).tolist() == [13, 14, 15, 16]
    assert wider.cut_from(np.array([4, 0])) == [15, 16, 21]


POINTS = [
    *[(PagePool, name) for name in ("take", "release", "share", "drop_owner", "copy_page", "_grow")],
    *[
        (PageTable, name)
        for name in ("at", "put", "with_slots_for", "missing_pages", "cut_below", "cut_from", "copy", "all")
    ],
    *[(KVCache, name) for name in ("reserve", "write", "_evict", "_take", "_return_pages", "_set_rows")],
]


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("owner", "name"), POINTS, ids=lambda thing: getattr(thing, "__name__", thing))
def test_an_interrupt_anywhere_leaves_a_cache_that_works(owner, name, moment, window, monkeypatch) -> None:
    """A call of the pool, the table or the state raises: the cache holds what it held before, or what it should."""
    real = getattr(owner, name)

    def broken(*arguments, **options):
        if moment == "after":
            real(*arguments, **options)
        raise KeyboardInterrupt

    def held(cache: KVCache) -> torch.Tensor:
        """What a query to come may see."""
        first = 0 if window is None else max(0, cache.length - window + 1 - cache.start)
        return cache.tensors()[0][:, :, first:]

    def same(one: torch.Tensor, other: torch.Tensor) -> bool:
        return one.shape == other.shape and torch.equal(one, other)

    cache, twin = small_cache(window=window), small_cache(window=window)
    start, new_tokens = pair(100), pair(37)
    for each in (cache, twin):
        each.append(*start)
    other = cache.fork()
    for action in (
        lambda m: m.append(*new_tokens),
        lambda m: m.append(*new_tokens),
        lambda m: m.crop(m.length - 20),
        lambda m: m.reorder([0, 0]),
        lambda m: m.fork(),
    ):
        before = held(cache)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            with contextlib.suppress(KeyboardInterrupt):
                action(cache)
        was = held(twin)
        action(twin)
        assert same(before, was)
        if same(held(cache), before):
            action(cache)
        assert same(held(cache), held(twin))
    assert torch.equal(other.tensors()[0], start[0])


def test_a_copy_is_a_fork_and_a_pickle_is_refused() -> None:
    cache = small_cache()
    cache.append(*pair(5))
    for other in (copy.copy(cache), copy.deepcopy(cache)):
        other.append(*pair(1))
        assert (cache.length, other.length) == (5, 6)
        assert other._pool is cache._pool
    with pytest.raises(OptionTypeError, match="save"):
        pickle.dumps(cache)
