"""Prefixes: forks share their pages and change nothing of them, in every format and with everything that forgets."""

import gc
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import qkv
from qkv.cache import FirstLast, HeavyHitters, Prefix, SnapKV
from qkv.cache.prefixes import fingerprint
from qkv.errors import OptionError, OptionTypeError
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import STORAGE, Plain, holds, name_of, same_bits, untouched

# What a cache may forget; the walks of helpers/cache_walks.py drive the others.
FORGETTING = {
    "all": {},
    "ring": {"window": 70},
    "sinks": {"window": 40, "sinks": 5},
    "importance": {"importance": True},
    "heavy hitters": {"eviction": HeavyHitters(40, 31)},
    "first and last": {"eviction": FirstLast(4, 67)},
    "renumbered": {"eviction": FirstLast(3, 37, positions="renumbered")},
    "snapkv": {"eviction": SnapKV(50, observe=9)},
}


def sequence(n, seed=0, batch=2):
    return tokens(n, batch=batch, heads=(6, 3), widths=(11, 5), dtype=torch.float32, seed=seed)


def filled(storage=torch.float32, **options):
    cache = qkv.KVCache(2, 3, 11, value_width=5, dtype=storage, **options)
    for seed, n in enumerate((130, 1, 29)):
        qkv.decode(*sequence(n, seed), cache)
    if cache.evicts_after_prompt:
        cache.evict()
    return cache


@pytest.mark.parametrize("forgetting", FORGETTING)
@pytest.mark.parametrize("storage", STORAGE, ids=name_of)
def test_forks_of_a_prefix_and_of_its_file_go_on_as_the_cache_would(storage, forgetting, tmp_path):
    cache = filled(storage, **FORGETTING[forgetting])
    prefix, eviction = cache.freeze(), cache.eviction
    prefix.save(tmp_path / "a.prefix", model="m", tokens=range(320))
    mapped = qkv.KVCache.map(tmp_path / "a.prefix", model="m", tokens=range(320), eviction=eviction)
    one, other = prefix.fork(), mapped.fork()
    for name in ("batch", "heads", "width", "value_width", "window", "sinks", "dtype", "eviction", "length", "nbytes"):
        assert getattr(one, name) == getattr(other, name) == getattr(cache, name), name
    with untouched(prefix.fork()), untouched(mapped.fork()):
        for seed, n in enumerate((1, 67, 3, 130), start=7):
            step = sequence(n, seed)
            wanted = qkv.decode(*step, cache)
            for found in (one, other):
                same_bits(qkv.decode(*step, found), wanted)
        for found in (one, other):
            assert torch.equal(found.positions(), cache.positions())
            if FORGETTING[forgetting].get("importance"):
                same_bits(found.importance(), cache.importance())


def test_a_prefix_stays_when_the_cache_goes_on(tmp_path):
    cache, plain = qkv.KVCache(2, 3, 11, value_width=5, capacity=200), Plain(2, 3, 11, 5)
    for one in (cache, plain):
        one.append(*sequence(70)[1:], lengths=torch.tensor([70, 5]))
    prefix = cache.freeze()
    assert (prefix.batch, prefix.length, prefix.lengths.tolist(), prefix.dtype) == (2, 70, [70, 5], torch.float32)
    assert prefix.nbytes == 3 * cache.page_layout.page_bytes
    assert repr(prefix) == "Prefix(KVCache(2 x 3 heads x 70 tokens, width 11/5, float32, capacity=200))"
    cache.append(*sequence(3, 1)[1:])
    cache.crop(1)
    cache.reorder([1, 1, 0])
    cache.reset()
    holds(prefix.fork(), plain)
    prefix.save(tmp_path / "a.prefix")
    del prefix, cache
    gc.collect()
    again = qkv.KVCache.map(tmp_path / "a.prefix").fork()
    assert again.capacity == 200
    holds(again, plain)


def test_rows_that_share_pages_share_them_in_the_file(tmp_path):
    cache = qkv.KVCache(1, 3, 11, value_width=5)
    cache.append(*sequence(130, batch=1)[1:])
    cache.reorder([0, 0, 0, 0, 0])
    cache.crop([130, 127, 66, 1, 0])
    plain = Plain(1, 3, 11, 5)
    plain.append(*sequence(130, batch=1)[1:])
    plain.reorder([0] * 5)
    rows = [(k[:, :n], v[:, :n]) for (k, v), n in zip(plain.rows, (130, 127, 66, 1, 0), strict=True)]
    plain.rows, plain.marks = (
        rows,
        [
            mark._replace(at=mark.at[:, : row[0].shape[1]], sums=mark.sums[:, : row[0].shape[1]])
            for row, mark in zip(rows, plain.marks, strict=True)
        ],
    )
    cache.freeze().save(tmp_path / "a.prefix")
    mapped = qkv.KVCache.map(tmp_path / "a.prefix")
    assert mapped.nbytes == 3 * cache.page_layout.page_bytes
    assert (tmp_path / "a.prefix").stat().st_size < 4096 + 4 * cache.page_layout.page_bytes
    holds(mapped.fork(), plain)
    one = mapped.fork()
    one.append(*sequence(1, 1, batch=5)[1:])
    holds(mapped.fork(), plain)


def test_the_file_has_nothing_but_the_tokens(tmp_path):
    """Neither what was cropped or overwritten, nor what was in memory before; the same tokens are the same bytes."""
    secret, paths = 12345.625, [tmp_path / "a.prefix", tmp_path / "b.prefix"]
    cache = qkv.KVCache(2, 3, 11, value_width=5)
    cache.append(*(torch.full_like(tensor, secret) for tensor in sequence(130)[1:]))
    cache.reset()
    for path, before in zip(paths, (5, 66), strict=True):
        cache.append(*sequence(66)[1:])
        cache.append(*(torch.full_like(tensor, secret) for tensor in sequence(before)[1:]))
        cache.crop(66)
        cache.freeze().save(path)
        cache.reset()
    blobs = [path.read_bytes() for path in paths]
    assert torch.tensor([secret]).numpy().tobytes() not in blobs[0]
    assert blobs[0] == blobs[1]


def test_pages_of_a_file_are_forgotten_when_no_cache_uses_them(tmp_path):
    cache = filled()
    cache.freeze().save(tmp_path / "a.prefix")
    prefix = qkv.KVCache.map(tmp_path / "a.prefix")
    pool = prefix._cache.view().pool
    one, other = prefix.fork(), prefix.fork()
    del prefix
    one.crop(64)
    other.reorder([1])
    other.crop(129)
    one.append(*sequence(9)[1:])
    pages = len(pool._of_file)
    assert pages == 2 + 2 + 1 - 1, "two of each row below 128, and the last one of row 1; row 0 is held by `one` alone"
    del one, other
    gc.collect()
    fresh = qkv.KVCache(1, 1, 1)
    del fresh
    pool._release_collected()
    assert not pool._of_file
    assert not pool.shared
    assert not any(chunk.data_ptr() == start for start, chunk in pool._chunks if chunk.nbytes == pages)


def test_threads_fork_and_append_at_once(tmp_path):
    cache = filled(torch.bfloat16)
    cache.freeze().save(tmp_path / "a.prefix")
    prefix, failed = qkv.KVCache.map(tmp_path / "a.prefix"), []
    wanted = [qkv.decode(*sequence(3, seed), cache.fork()) for seed in range(5)]

    def run(seed):
        try:
            for _ in range(20):
                same_bits(qkv.decode(*sequence(3, seed), prefix.fork()), wanted[seed])
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=run, args=(seed,)) for seed in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not failed


def test_what_is_refused_says_why(tmp_path):
    undecided = qkv.KVCache(1, 2, 4, dtype="auto", bound=0.1)
    assert undecided.freeze().fork().bound == 0.1
    with pytest.raises(OptionError, match=r'cache: got dtype="auto", undecided, .* the first prompt decides'):
        undecided.freeze().save(tmp_path / "a.prefix")
    cache = filled(window=70)
    cache.freeze().save(tmp_path / "a.prefix")
    with pytest.raises(OptionError, match="a window evicts by itself"):
        qkv.KVCache.map(tmp_path / "a.prefix", eviction=FirstLast(1, 2))
    filled().freeze().save(tmp_path / "b.prefix")
    with pytest.raises(OptionError, match="cache with importance=True"):
        qkv.KVCache.map(tmp_path / "b.prefix", eviction=HeavyHitters(1, 2))
    with pytest.raises(OptionTypeError, match="tokens: got float64 values, wanted integers"):
        filled().freeze().save(tmp_path / "b.prefix", tokens=[0.5])
    one, other = (qkv.KVCache.map(tmp_path / "b.prefix").fork() for _ in range(2))
    with pytest.raises(OptionError, match="a fork of this cache"):
        one.extend(other)
    one.crop(64)
    with pytest.raises(OptionError, match="earlier keys have left the window"):
        qkv.KVCache.map(tmp_path / "a.prefix").fork().crop(3)
    with pytest.raises(AttributeError):
        cache.freeze().length = 3  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(cache.freeze(), Prefix)


def test_a_fingerprint_sees_sizes_names_and_samples():
    @dataclass
    class Record:
        width: int
        weight: object

    weight = torch.arange(1 << 16, dtype=torch.float32)
    trained = weight * 1.0001
    found = [
        fingerprint(*parts)
        for parts in (
            [Record(3, weight)],
            [Record(5, weight)],
            [Record(3, trained)],
            [Record(3, weight.view(256, 256))],
            [Record(3, weight.to(torch.float64))],
            [{"a": 1, "b": 2}],
            [{"a": 12}],
            [(1, 2)],
            [((1,), 2)],
        )
    ]
    assert len(set(found)) == len(found)
    assert fingerprint(weight.view(256, 256).T) == fingerprint(weight.view(256, 256).T.contiguous())
    array = weight.numpy().copy()
    array.flags.writeable = False
    assert fingerprint(array) == fingerprint(np.array(array))
    assert fingerprint(Record(3, lambda: 1)) == fingerprint(Record(3, lambda: 2))
