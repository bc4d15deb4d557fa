"""Bad inputs for caches: large scores, capacity, windows, cropping, stale slots, changes between steps, padding."""

from math import inf, nan

import pytest
import torch

import qkv
from qkv import errors
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import STORAGE, Plain, holds, name_of, untouched
from tests.helpers.faults_reference import assert_speaks, same_bits

by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)


def sequence(n, seed=0, dtype=torch.float32, batch=2):
    return tokens(n, batch=batch, heads=(6, 3), widths=(7, 5), dtype=dtype, seed=seed)


def both(storage=torch.float32, n=0, **options):
    cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=storage, **options)
    plain = Plain.like(cache)
    cache.append(*sequence(n)[1:])
    plain.append(*sequence(n)[1:])
    return cache, plain


def step(cache, plain, n=1, seed=1):
    fresh = sequence(n, seed, batch=plain.batch)
    plain.decode(*fresh).check(qkv.decode(*fresh, cache))


def refuses(cache, kind, words, run):
    with untouched(cache), pytest.raises(errors.QkvError) as caught:
        run()
    assert_speaks(caught.value, kind, *words)


@pytest.mark.parametrize("width", [1, 8, 11, 16, 64, 80, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_row_09_133120_everywhere(dtype, width):
    """Scores of 10^11, all equal: the answer is the value itself, neither NaN nor 0."""
    for storage in (torch.float32, torch.bfloat16):
        for heads, n in ((1, 1), (4, 1), (4, 70), (20, 3)):
            cache = qkv.KVCache(1, 1, width, dtype=storage)
            x = torch.full((1, heads, n, width), 133120.0, dtype=dtype)
            for _ in range(3):
                found = qkv.decode(x, x[:, :1], x[:, :1], cache)
                torch.testing.assert_close(found, x, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1e2, 1e5, 1e8, 1e10, 1e12, 1e16, 1e24, 1e32, 1e36])
def test_rows_03_and_08_scores_of_every_size(size):
    """Where one key is far ahead it takes all; where all are equal the answer is the mean; never NaN."""
    for storage in (torch.float32, torch.bfloat16):
        cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=storage)
        query, key, value = sequence(150)
        query, key = query * size**0.5, key * size**0.5
        plain = Plain.like(cache)
        wanted = plain.decode(query, key, value)
        found = qkv.decode(query, key, value, cache)
        assert bool(found.isfinite().all())
        scores = torch.einsum("bhqd,bhkd->bhqk", query.double(), plain.tensors()[0].repeat_interleave(2, 1)) / 7**0.5
        scores = torch.where(wanted.seen, scores, -inf)
        top = scores.topk(2, dim=-1).values
        ahead = (top[..., 0] - top[..., 1] > 50 + 1e-4 * size) & wanted.seen[..., :2].all(-1)
        assert bool(ahead.any()) or size < 1e3
        torch.testing.assert_close(found[ahead].double(), wanted.out[ahead], rtol=1e-5, atol=1e-5)
        for sign in (1, -1):
            cache.reset()
            same_key = key[:, :, :1].expand(key.shape)
            found = qkv.decode(sign * query, same_key, value, cache)
            mean = Plain.like(cache)
            mean.append(same_key, value)
            mean = mean.tensors()[1].repeat_interleave(2, 1).cumsum(2) / torch.arange(1, 151)[:, None]
            torch.testing.assert_close(found.double(), mean, rtol=1e-5, atol=1e-5)


def test_row_08_half_precision_whose_products_overflow_it():
    for storage in STORAGE:
        cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=storage)
        plain = Plain.like(cache)
        query, key, value = sequence(70, dtype=torch.float16)
        query, key = query * 300, key * 300
        found = qkv.decode(query, key, value, cache)
        assert bool(found.isfinite().all())
        plain.decode(query, key, value).check(found)


def test_row_10_softcap_of_large_scores():
    for storage, size in ((torch.float32, 1e3), (torch.float32, 1e12), (torch.bfloat16, 1e18)):
        cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=storage)
        plain = Plain.like(cache)
        query, key, value = sequence(70)
        # No score cancels to something small: all are capped.
        query, key = query.abs(), key.abs() * key[..., :1].sign()
        similarity = qkv.Softmax(softcap=20.0)
        found = qkv.decode(query * size, key * size, value, cache, similarity=similarity)
        wanted = plain.decode(query * size, key * size, value, similarity=similarity)
        torch.testing.assert_close(found.double(), wanted.out, rtol=1e-5, atol=1e-5)


@by_storage
def test_row_39_a_cache_without_a_capacity_grows(storage):
    cache, plain = both(storage, 5)
    for seed, n in enumerate((1, 58, 1, 64, 130, 2)):
        step(cache, plain, n, seed)
    holds(cache, plain)


@by_storage
def test_row_39_a_ring_evicts_the_oldest_exactly(storage):
    cache, plain = both(storage, 5, window=9)
    for seed, n in enumerate((1, 58, 1, 64, 130, 2)):
        step(cache, plain, n, seed)
    holds(cache, plain)


@by_storage
def test_row_39_a_fixed_cache_refuses_and_stays_as_it_was(storage):
    cache, plain = both(storage, 60, capacity=66)
    for n in (7, 70, 1000):
        fresh = sequence(n, 2)
        refuses(cache, errors.QkvError, ("66",), lambda fresh=fresh: cache.append(*fresh[1:]))
        refuses(cache, errors.QkvError, ("66",), lambda fresh=fresh: qkv.decode(*fresh, cache))
    # One row beyond it is enough, and no row is written.
    fresh = sequence(7, 3)
    refuses(cache, errors.QkvError, ("66",), lambda: cache.append(*fresh[1:], lengths=[0, 7]))
    step(cache, plain, 6)
    holds(cache, plain)
    refuses(cache, errors.QkvError, ("66",), lambda: qkv.decode(*sequence(1), cache))


@pytest.mark.slow
@by_storage
@pytest.mark.parametrize("window", [3, 64, 100])
def test_row_40_appends_across_the_seam(storage, window):
    for start in (0, 1, 62, 63, 64, 127, 190):
        cache, plain = both(storage, start, window=window)
        for seed, n in enumerate((2, 5, 61, 3, 64, 1)):
            step(cache, plain, n, seed)
        holds(cache, plain)


@pytest.mark.slow
@by_storage
def test_row_40_more_at_once_than_the_window(storage):
    for window, n in ((3, 64), (64, 65), (64, 200), (1, 2)):
        cache, plain = both(storage, 10, window=window)
        step(cache, plain, n)
        step(cache, plain, 2 * n, 2)
        holds(cache, plain)


@by_storage
def test_row_41_going_back_after_the_seam_is_exact_or_refused(storage):
    cache, plain = both(storage, 500, window=70)
    went, refused = 0, 0
    for n in (499, 480, 431, 430, 400, 370, 200, 69, 1):
        back, model = cache.fork(), plain.fork()
        try:
            back.crop(n)
        except errors.QkvError as error:
            assert_speaks(error, errors.QkvError)
            holds(back, plain)
            refused += 1
            continue
        model.crop(n)
        step(back, model, 2)
        holds(back, model)
        went += 1
    assert went
    assert refused
    holds(cache, plain)


def test_row_41_going_back_further_than_there_is():
    cache, _ = both(n=5)
    refuses(cache, errors.QkvError, ("6", "5"), lambda: cache.crop(6))
    refuses(cache, errors.QkvError, ("-1",), lambda: cache.crop(-1))
    ring, _ = both(n=500, window=70)
    refuses(ring, errors.QkvError, ("501", "500"), lambda: ring.crop(501))


POISON = (nan, inf, -inf, 1e38)


@by_storage
@pytest.mark.parametrize("options", [{}, {"window": 20}, {"capacity": 300}], ids=str)
def test_row_42_nothing_of_the_past_is_left(storage, options):
    """Every slot was poisoned before it was let go: by reset, crop, reorder, eviction, or a cache that died."""
    for poison in POISON:
        fresh, _ = both(storage, **options)
        used, _ = both(storage, **options)
        bad = [torch.full_like(tensor, poison) for tensor in sequence(200)[1:]]
        used.append(*bad)
        used.reset()
        gone = used.fork()
        gone.append(*bad)
        del gone
        for seed, n in enumerate((1, 63, 2, 64, 1)):
            new = sequence(n, seed)
            found = qkv.decode(*new, used)
            same_bits(found, qkv.decode(*new, fresh))
            assert bool(found.isfinite().all())
            used.append(*(tensor[:, :, :9] for tensor in bad))
            used.crop(fresh.length)


def test_row_43_batch_heads_and_widths_that_change():
    cache, plain = both(n=3)
    shapes = {
        "batch": ((3, 6, 1, 7), (3, 3, 1, 7), (3, 3, 1, 5), ("3", "2")),
        "heads": ((2, 6, 1, 7), (2, 2, 1, 7), (2, 2, 1, 5), ("3",)),
        "width": ((2, 6, 1, 8), (2, 3, 1, 8), (2, 3, 1, 5), ("8", "7")),
        "value width": ((2, 6, 1, 7), (2, 3, 1, 7), (2, 3, 1, 6), ("6", "5")),
        "query heads": ((2, 4, 1, 7), (2, 3, 1, 7), (2, 3, 1, 5), ("4", "3")),
    }
    for query, key, value, words in shapes.values():
        q, k, v = (torch.zeros(shape) for shape in (query, key, value))
        refuses(cache, errors.ShapeError, words, lambda q=q, k=k, v=v: qkv.decode(q, k, v, cache))
        if query != (2, 4, 1, 7):
            refuses(cache, errors.ShapeError, words, lambda k=k, v=v: cache.append(k, v))
    step(cache, plain)


@pytest.mark.parametrize("first", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=name_of)
def test_row_43_another_dtype_between_steps(first):
    cache = qkv.KVCache(2, 3, 7, value_width=5)
    qkv.decode(*sequence(2, dtype=first), cache)
    for other in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        if other is first:
            continue
        fresh = sequence(1, dtype=other)
        for run in (lambda f=fresh: qkv.decode(*f, cache), lambda f=fresh: cache.append(*f[1:])):
            with untouched(cache), pytest.raises(errors.DtypeError) as caught:
                run()
            assert name_of(first) in str(caught.value)
            assert ".to(" in str(caught.value)
    qkv.decode(*sequence(1, dtype=first), cache)
    cache.reset()
    qkv.decode(*sequence(1, dtype=torch.float16), cache)


def test_row_43_dtypes_and_devices_that_do_not_belong_together():
    cache, plain = both(n=3)
    query, key, value = sequence(1)
    for bad in ((query.double(), key, value), (query, key.half(), value), (query, key, value.bfloat16())):
        refuses(cache, errors.DtypeError, (), lambda bad=bad: qkv.decode(*bad, cache))
    for at in range(3):
        given = [tensor.to("meta") if at == number else tensor for number, tensor in enumerate((query, key, value))]
        refuses(cache, errors.DtypeError, (), lambda given=given: qkv.decode(*given, cache))
    everything = [tensor.to("meta") for tensor in (query, key, value)]
    refuses(cache, errors.DtypeError, (), lambda: qkv.decode(*everything, cache))
    step(cache, plain)


@by_storage
@pytest.mark.parametrize("padding", ["left", "right"])
def test_row_44_each_row_equals_its_unpadded_self(storage, padding):
    lengths, n = torch.tensor([3, 66]), 66
    prompt = [tensor.clone() for tensor in sequence(n)]
    rows = []
    for b in range(2):
        count = int(lengths[b])
        real = slice(n - count, n) if padding == "left" else slice(0, count)
        rows.append([tensor[b : b + 1, :, real].clone() for tensor in prompt])
        for tensor in prompt:
            kept = tensor[b, :, real].clone()
            tensor[b] = nan
            tensor[b, :, real] = kept
    cache, _ = both(storage)
    out = qkv.decode(*prompt, cache, lengths=lengths, padding=padding)
    after = [sequence(1, seed) for seed in range(3)]
    steps = [qkv.decode(*fresh, cache) for fresh in after]
    for b, row in enumerate(rows):
        alone = qkv.KVCache(1, 3, 7, value_width=5, dtype=storage)
        count = int(lengths[b])
        real = slice(n - count, n) if padding == "left" else slice(0, count)
        same_bits(out[b : b + 1, :, real].contiguous(), qkv.decode(*row, alone))
        for fresh, together in zip(after, steps, strict=True):
            one = qkv.decode(*(tensor[b : b + 1] for tensor in fresh), alone)
            same_bits(together[b : b + 1].contiguous(), one)
    assert not out.isnan().any()
