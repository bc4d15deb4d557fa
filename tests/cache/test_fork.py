"""fork: an independent cache that shares every page until one of the two writes."""

import copy
import gc
import itertools
from math import nan

import pytest
import torch

import qkv
from decode_cases import tokens
from decode_reference import STORAGE, Plain, holds, name_of, numbers, page_bytes, same_bits, untouched

by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)


def pairs(n, seed=0, batch=2):
    return tokens(n, batch=batch, heads=(3, 3), widths=(7, 5), dtype=torch.float32, seed=seed)[1:]


def both(storage=torch.float32, n=0, **options):
    cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=storage, **options)
    plain = Plain.beside(cache)
    cache.append(*pairs(n))
    plain.append(*pairs(n))
    return cache, plain


def step(cache, plain, n=1, seed=0):
    query = numbers((cache.batch, 6, n, 7), seed=seed)
    fresh = pairs(n, seed, cache.batch)
    plain.decode(query, *fresh).check(qkv.decode(query, *fresh, cache))


@by_storage
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 130])
def test_each_goes_its_own_way(storage, n):
    cache, plain = both(storage, n)
    forked, model = cache.fork(), plain.fork()
    holds(forked, model)
    step(forked, model, 3, seed=1)
    holds(cache, plain)
    step(cache, plain, 2, seed=2)
    holds(forked, model)
    step(forked, model, 70, seed=3)
    step(cache, plain, 1, seed=4)
    holds(forked, model)
    holds(cache, plain)


@by_storage
def test_the_same_steps_give_the_same_bits(storage):
    cache, _ = both(storage, 70)
    forked = cache.fork()
    for seed in range(3):
        query, fresh = numbers((2, 6, 1, 7), seed=seed), pairs(1, seed)
        same_bits(qkv.decode(query, *fresh, forked), qkv.decode(query, *fresh, cache))


def test_it_is_the_same_kind_of_memory():
    cache = qkv.KVCache(2, 3, 7, value_width=5, capacity=90, window=30, dtype=torch.bfloat16)
    cache.append(*pairs(5))
    forked = cache.fork()
    for name in ("batch", "heads", "width", "value_width", "capacity", "window", "dtype", "length"):
        assert getattr(forked, name) == getattr(cache, name), name
    assert forked.lengths.tolist() == cache.lengths.tolist()
    with pytest.raises(qkv.errors.DtypeError):
        forked.append(*(tensor.double() for tensor in pairs(1)))


def test_pages_are_shared_until_they_are_written():
    one = page_bytes(3, 7, 5, torch.float32)
    cache, _ = both(n=130)
    forked = cache.fork()
    assert cache.nbytes == forked.nbytes == 2 * 3 * one
    with untouched(cache):
        forked.append(*pairs(1))
        assert forked.nbytes == 2 * 3 * one
        forked.append(*pairs(64))
        assert forked.nbytes == 2 * 4 * one
        forked.reset()
    assert forked.nbytes == 0


@by_storage
def test_crop_of_one_and_new_tokens_leave_the_other_alone(storage):
    for n, kept in itertools.product((66, 128, 140), (0, 3, 63, 64, 65)):
        cache, plain = both(storage, n)
        forked, model = cache.fork(), plain.fork()
        forked.crop(kept)
        model.crop(kept)
        holds(cache, plain)
        step(forked, model, 3, seed=1)
        holds(cache, plain)
        step(cache, plain, 2, seed=2)
        holds(forked, model)


def test_reorder_of_one_leaves_the_other_alone():
    cache, plain = both(n=70)
    forked, model = cache.fork(), plain.fork()
    forked.reorder([1, 1, 0])
    model.reorder([1, 1, 0])
    step(forked, model, 2, seed=1)
    holds(cache, plain)
    assert cache.batch == 2
    step(cache, plain, 2, seed=2)
    holds(forked, model)


@by_storage
def test_the_first_may_go_away(storage):
    """The child's pages are not used again by anybody while it lives."""
    cache, plain = both(storage, 100)
    forked, model = cache.fork(), plain.fork()
    cache.reset()
    cache.append(*(torch.full_like(tensor, nan) for tensor in pairs(200)))
    holds(forked, model)
    del cache, plain
    gc.collect()
    others = [both(storage, 130)[0] for _ in range(4)]
    for other in others:
        other.reset()
        other.append(*(torch.full_like(tensor, nan) for tensor in pairs(130)))
    step(forked, model, 70, seed=3)
    holds(forked, model)


def test_a_tree_of_forks():
    """Speculative decoding: branches of branches, written in any order, some dropped."""
    living = [both(n=60)]
    generator = torch.Generator().manual_seed(5)
    for seed in range(60):
        at, what = (int(i) for i in torch.randint(0, 100, (2,), generator=generator))
        cache, plain = living[at % len(living)]
        if what < 30 and len(living) < 8:
            living.append((cache.fork(), plain.fork()))
        elif what < 40 and len(living) > 2:
            living.pop(at % len(living))
        elif what < 55 and plain.length:
            kept = at % (plain.length + 1)
            cache.crop(kept)
            plain.crop(kept)
        else:
            step(cache, plain, 1 + what % 9, seed)
    for cache, plain in living:
        holds(cache, plain)


@by_storage
def test_forks_of_a_ring(storage):
    cache, plain = both(storage, 200, window=50)
    forked, model = cache.fork(), plain.fork()
    for seed, n in enumerate((1, 30, 64, 1, 100)):
        step(forked, model, n, seed)
        if seed % 2:
            step(cache, plain, 3, seed)
    holds(cache, plain)
    holds(forked, model)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_independent_too(copied):
    cache, plain = both(n=66)
    other, model = copied(cache), plain.fork()
    step(other, model, 3, seed=1)
    holds(cache, plain)
    step(cache, plain, 2, seed=2)
    holds(other, model)
