"""What pages cost, and that growth, fork, reorder and crop never copy the past."""

import gc

import pytest
import torch

import qkv
from decode_cases import tokens
from decode_reference import STORAGE, name_of, page_bytes, resident

by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)
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
