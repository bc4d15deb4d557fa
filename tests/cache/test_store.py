"""The pool and the table: owners are counted, pages are used again, and what is interrupted did not happen."""

import contextlib
import copy
import gc
import pickle

import numpy as np
import pytest
import torch

from qkv.cache import pages as pages_room
from qkv.cache.kv import KVCache
from qkv.cache.pages import PagePool, PageTable
from qkv.errors import OptionTypeError


def new(batch: int = 2, **options) -> KVCache:
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
    while pool._left:
        table, spare = pool._left.popleft()
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
    cache = new()
    cache.append(*pair(64))
    before = cache.tensors()

    def fail(*sizes, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate cache")

    with monkeypatch.context() as patch:
        patch.setattr(pages_room.torch, "empty", fail)
        with pytest.raises(MemoryError, match=f"{2 * cache._layout.page_bytes} bytes"):
            cache.append(*pair(1))
    assert cache.lengths.tolist() == [64, 64]
    assert torch.equal(cache.tensors()[0], before[0])
    cache.append(*pair(1))
    check(cache)


def test_a_generous_chunk_that_fails_gives_way_to_a_small_one(monkeypatch) -> None:
    cache = new(1)
    cache.append(*pair(64 * 8, 1))
    real = torch.empty

    def small_only(size, *rest, **options):
        if isinstance(size, int) and size > 2 * cache._layout.page_bytes:
            raise RuntimeError("no")
        return real(size, *rest, **options)

    monkeypatch.setattr(pages_room.torch, "empty", small_only)
    cache.append(*pair(1, 1))
    assert cache.length == 513


def test_owners_through_forks_reorders_crops_and_deaths() -> None:
    generator = torch.Generator().manual_seed(0)
    caches = [new(3)]

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
    cache = new()
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
    cache = new(capacity=200)
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
    *[(KVCache, name) for name in ("_reserve", "_write", "_evict", "_take", "_return_pages", "_set_rows")],
]


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("owner", "name"), POINTS, ids=lambda thing: getattr(thing, "__name__", thing))
def test_an_interrupt_anywhere_leaves_a_memory_that_works(owner, name, moment, window, monkeypatch) -> None:
    """A call of the pool, the table or the state raises: the cache holds what it held before, or what it should."""
    real = getattr(owner, name)

    def broken(*arguments, **options):
        if moment == "after":
            real(*arguments, **options)
        raise KeyboardInterrupt

    def held(cache: KVCache) -> torch.Tensor:
        """What a query to come may see."""
        return cache.tensors()[0][:, :, 0 if window is None else max(0, cache.length - window + 1) :]

    def same(one: torch.Tensor, other: torch.Tensor) -> bool:
        return one.shape == other.shape and torch.equal(one, other)

    cache, twin = new(window=window), new(window=window)
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
    cache = new()
    cache.append(*pair(5))
    for other in (copy.copy(cache), copy.deepcopy(cache)):
        other.append(*pair(1))
        assert (cache.length, other.length) == (5, 6)
        assert other._pool is cache._pool
    with pytest.raises(OptionTypeError, match="save"):
        pickle.dumps(cache)
