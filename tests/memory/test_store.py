"""The pool and the table: owners are counted, pages are used again, and what is interrupted did not happen."""

import contextlib
import copy
import gc
import pickle

import numpy as np
import pytest
import torch

from qkv.errors import OptionTypeError
from qkv.memory import KVCache
from qkv.memory import pages as pages_room
from qkv.memory.pages import Pool, Table
from qkv.memory.store import Store


def new(batch: int = 2, **options) -> KVCache:
    return KVCache(batch, 1, 4, **options)


def pair(n: int, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 1, n, 4), torch.randn(batch, 1, n, 4)


def owners(*memories: KVCache) -> dict[int, int]:
    """How often each page stands in the tables."""
    counts: dict[int, int] = {}
    for memory in memories:
        for page in memory._table.all() + memory._spare:
            counts[page] = counts.get(page, 0) + 1
    return counts


def check(*memories: KVCache) -> None:
    """No page is both used and free, none is free twice, and shared ones are known as such."""
    pool = memories[0]._pool
    pool.release([])
    while pool._left:
        table, spare = pool._left.popleft()
        pool.release(table.all() + spare)
    counts = owners(*memories)
    assert {page: count for page, count in counts.items() if count > 1} == pool.shared
    assert len(set(pool._free)) == len(pool._free)
    assert not set(pool._free) & set(counts)
    assert len(pool._free) + len(counts) == pool.pages


def test_chunks_double_up_to_a_limit_and_never_move() -> None:
    pool = Pool(256 << 10)
    taken = []
    for _ in range(1200):
        taken += pool.take(1)
    sizes = sorted(len(chunk) for _, chunk in pool._chunks)
    assert sizes[:3] == [1, 1, 2]
    assert max(sizes) == 256
    assert len(set(taken)) == 1200
    assert all(address % 64 == 0 for address in taken)
    # A prompt's chunk is made for large pages, and fills the last one; those that steps grow by are not.
    prompt = Pool(768 << 10)
    assert min(prompt.take(2, prompt=True)) % (2 << 20) == 0
    prompt.take(100, prompt=True)
    assert prompt.pages == 2 + 101
    for address in taken:
        assert pool.page(address).data_ptr() == address


def test_a_failed_allocation_names_its_bytes_and_changes_nothing(monkeypatch) -> None:
    memory = new()
    memory.append(*pair(64))
    before = memory.tensors()

    def fail(*sizes, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(pages_room.torch, "empty", fail)
        with pytest.raises(MemoryError, match=f"{2 * memory._layout.page_bytes} bytes"):
            memory.append(*pair(1))
    assert memory.lengths.tolist() == [64, 64]
    assert torch.equal(memory.tensors()[0], before[0])
    memory.append(*pair(1))
    check(memory)


def test_a_generous_chunk_that_fails_gives_way_to_a_small_one(monkeypatch) -> None:
    memory = new(1)
    memory.append(*pair(64 * 8, 1))
    real = torch.empty

    def small_only(size, *rest, **options):
        if isinstance(size, int) and size > 2 * memory._layout.page_bytes:
            raise RuntimeError("no")
        return real(size, *rest, **options)

    monkeypatch.setattr(pages_room.torch, "empty", small_only)
    memory.append(*pair(1, 1))
    assert memory.length == 513


def test_owners_through_forks_reorders_crops_and_deaths() -> None:
    generator = torch.Generator().manual_seed(0)
    memories = [new(3)]

    def draw(most: int) -> int:
        return int(torch.randint(0, most, (), generator=generator))

    for _ in range(300):
        memory = memories[draw(len(memories))]
        action = draw(7)
        if action <= 1:
            memory.append(*pair(1 + draw(100), memory.batch))
        elif action == 2 and len(memories) < 5:
            memories.append(memory.fork())
        elif action == 3:
            memory.reorder(torch.randint(0, memory.batch, (1 + draw(4),), generator=generator))
        elif action == 4:
            memory.crop(draw(memory.length + 1))
        elif action == 5:
            n = draw(90)
            memory.append(*pair(n, memory.batch), lengths=torch.randint(0, n + 1, (memory.batch,), generator=generator))
        elif len(memories) > 1:
            del memory
            memories.pop(draw(len(memories)))
        memory = None
        gc.collect(0)
        check(*memories)


def test_a_shared_page_is_copied_once_and_only_when_written_to() -> None:
    memory = new()
    memory.append(*pair(70))
    other = memory.fork()
    pool = memory._pool
    before = set(memory._table.all())
    other.append(*pair(1))
    assert len(set(other._table.all()) - before) == 2
    assert memory._table.all() == sorted(before, key=memory._table.all().index)
    memory.append(*pair(1))
    assert set(memory._table.all()) == before
    assert len(pool.shared) == 2
    check(memory, other)


def test_pages_set_aside_come_back() -> None:
    memory = new(capacity=200)
    aside = memory.nbytes
    assert aside == 2 * 4 * memory._layout.page_bytes
    memory.append(*pair(150))
    other = memory.fork()
    memory.crop(3)
    memory.append(*pair(150))
    memory.reset()
    assert memory.nbytes <= aside
    del other
    memory.append(*pair(200))
    check(memory)


def test_a_table_finds_pages_by_their_number_modulo_its_slots() -> None:
    table = Table.empty(2, 2)
    table = table.with_room(np.array([3, 1]))
    assert table.slots == 4
    rows, places = table.missing(np.array([3, 1]))
    table.put(rows, places, [11, 12, 13, 21])
    table.stop[:] = [3, 1]
    assert table.cut_below(np.array([2, 0])) == [11, 12]
    table = table.with_room(np.array([6, 1]))
    assert table.slots == 4
    rows, places = table.missing(np.array([6, 1]))
    table.put(rows, places, [14, 15, 16])
    table.stop[:] = [6, 1]
    assert table.of_row(0).tolist() == [13, 14, 15, 16]
    wider = table.with_room(np.array([7, 1]))
    assert wider.slots == 8
    assert wider.of_row(0).tolist() == [13, 14, 15, 16]
    assert wider.cut_from(np.array([4, 0])) == [15, 16, 21]


POINTS = [
    *[(Pool, name) for name in ("take", "release", "share", "disowned", "copied", "_grow")],
    *[(Table, name) for name in ("at", "put", "with_room", "missing", "cut_below", "cut_from", "copy", "all")],
    *[(Store, name) for name in ("_reserve", "_write", "_evict", "_take", "_give_back", "_set_rows")],
]


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("owner", "name"), POINTS, ids=lambda thing: getattr(thing, "__name__", thing))
def test_an_interrupt_anywhere_leaves_a_memory_that_works(owner, name, moment, window, monkeypatch) -> None:
    """A call of the pool, the table or the state raises: the memory holds what it held before, or what it should."""
    real = getattr(owner, name)

    def broken(*arguments, **options):
        if moment == "after":
            real(*arguments, **options)
        raise KeyboardInterrupt

    def held(memory: KVCache) -> torch.Tensor:
        """What a query to come may see."""
        return memory.tensors()[0][:, :, 0 if window is None else max(0, memory.length - window + 1) :]

    def same(one: torch.Tensor, other: torch.Tensor) -> bool:
        return one.shape == other.shape and torch.equal(one, other)

    memory, twin = new(window=window), new(window=window)
    start, new_tokens = pair(100), pair(37)
    for each in (memory, twin):
        each.append(*start)
    other = memory.fork()
    for action in (
        lambda m: m.append(*new_tokens),
        lambda m: m.append(*new_tokens),
        lambda m: m.crop(m.length - 20),
        lambda m: m.reorder([0, 0]),
        lambda m: m.fork(),
    ):
        before = held(memory)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            with contextlib.suppress(KeyboardInterrupt):
                action(memory)
        was = held(twin)
        action(twin)
        assert same(before, was)
        if same(held(memory), before):
            action(memory)
        assert same(held(memory), held(twin))
    assert torch.equal(other.tensors()[0], start[0])


def test_a_copy_is_a_fork_and_a_pickle_is_refused() -> None:
    memory = new()
    memory.append(*pair(5))
    for other in (copy.copy(memory), copy.deepcopy(memory)):
        other.append(*pair(1))
        assert (memory.length, other.length) == (5, 6)
        assert other._pool is memory._pool
    with pytest.raises(OptionTypeError, match="save"):
        pickle.dumps(memory)
