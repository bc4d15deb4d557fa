"""Windows: a query at position p attends to keys p − w + 1 to p, for any chunking, in bounded memory."""

import re
from math import inf, nan

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import qkv
from qkv import errors
from qkv.errors import MaskError
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import (
    PAGE,
    STORAGE,
    Plain,
    holds,
    name_of,
    numbers,
    page_bytes,
    resident,
    same_bits,
    untouched,
)

by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)


def sequence(n, seed=0, batch=2):
    return tokens(n, batch=batch, heads=(6, 3), widths=(7, 5), dtype=torch.float32, seed=seed)


def both(window, storage=torch.float32, **options):
    cache = qkv.KVCache(2, 3, 7, value_width=5, window=window, dtype=storage, **options)
    return cache, Plain.like(cache)


def steps(cache, plain, sizes, seed=0):
    for at, n in enumerate(sizes):
        fresh = sequence(n, 50 * seed + at, plain.batch)
        plain.decode(*fresh).check(qkv.decode(*fresh, cache))


@pytest.mark.slow
@by_storage
@pytest.mark.parametrize("window", [1, 2, 5, 63, 64, 65, 100, 128])
def test_the_last_keys_and_no_other(storage, window):
    cache, plain = both(window, storage)
    steps(cache, plain, (3, 1, 1, 60, 1, 64, 1, 130, 2, 1, 67))
    holds(cache, plain)
    assert cache.length == 331


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 7, 64])
def test_more_tokens_at_once_than_the_window_holds(window):
    for past in (0, 1, 63, 200):
        cache, plain = both(window)
        steps(cache, plain, (past, 3 * window + 150, 1, 2 * window))


def test_a_window_longer_than_the_sequence_is_none():
    tensors = sequence(150)
    for window in (150, 151, 10**6, 2**48):
        ring, _ = both(window)
        whole = qkv.KVCache(2, 3, 7, value_width=5)
        same_bits(qkv.decode(*tensors, ring), qkv.decode(*tensors, whole))


@by_storage
def test_a_window_of_one_gives_back_each_value(storage):
    cache, _ = both(1, storage)
    query, key, value = sequence(130)
    found = qkv.decode(query, key, value, cache)
    kept = Plain.like(cache)
    kept.append(key, value)
    wanted = kept.tensors()[1].repeat_interleave(2, dim=1)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=0)


@by_storage
def test_it_is_the_mask_window_over_everything(storage):
    tensors = sequence(200)
    for left in (0, 3, 64):
        ring, _ = both(left + 1, storage)
        whole = qkv.KVCache(2, 3, 7, value_width=5, dtype=storage)
        found = qkv.decode(*tensors, ring)
        torch.testing.assert_close(found, qkv.decode(*tensors, whole, mask=qkv.Window(left=left)), rtol=1e-5, atol=1e-5)


def test_window_and_mask_both_count():
    for left, window in ((3, 20), (2, 3), (30, 70)):
        cache, plain = both(window)
        for seed, n in enumerate((70, 1, 5, 90, 1)):
            fresh = sequence(n, seed)
            found = qkv.decode(*fresh, cache, mask=qkv.Window(left=left))
            plain.decode(*fresh, keep=lambda b, h, i, p, j, left=left: j >= p - left).check(found)


def test_tensors_of_masks_and_biases_have_the_whole_sequence_as_their_key_axis():
    cache, plain = both(30)
    steps(cache, plain, (100, 70))
    fresh = sequence(3, 9)
    keep, bias = numbers((2, 1, 3, 173), seed=1) > -0.5, numbers((6, 1, 173), seed=2)
    found = qkv.decode(*fresh, cache, mask=qkv.Dense(keep) & qkv.Window(left=29), bias=bias)
    plain.decode(*fresh, keep=lambda b, h, i, p, j: keep[b, 0, i, j], bias=bias).check(found)
    ends = torch.tensor([160, 176])
    fresh = sequence(3, 10)
    found = qkv.decode(*fresh, cache, mask=qkv.Padding(lengths=ends))
    plain.decode(*fresh, keep=lambda b, h, i, p, j: j < ends[b]).check(found)


@by_storage
def test_evicted_tokens_cannot_matter(storage):
    clean, dirty = (both(20, storage)[0] for _ in range(2))
    query, key, value = sequence(300)
    bad_key, bad_value = key.clone(), value.clone()
    gone = slice(0, 260)
    bad_key[:, :, gone], bad_value[:, :, gone] = nan, inf
    for chunk in (300, 1, 13):
        for cache, k, v in ((clean, key, value), (dirty, bad_key, bad_value)):
            cache.reset()
            for first in range(0, 280, chunk):
                last = min(first + chunk, 280)
                cache.append(k[:, :, first:last], v[:, :, first:last])
        tail = [tensor[:, :, 280:] for tensor in (query, key, value)]
        found = qkv.decode(*tail, dirty)
        assert bool(found.isfinite().all())
        same_bits(found, qkv.decode(*tail, clean), f"{chunk} at a time")


@by_storage
def test_memory_stays_bounded(storage):
    window, one = 100, page_bytes(3, 7, 5, storage)
    cache, _ = both(window, storage)
    tensors = sequence(40)
    most = 0
    for _ in range(200):
        cache.append(*tensors[1:])
        most = max(most, cache.nbytes)
    assert cache.length == 8000
    assert most <= 2 * one * (-(-(window + 40) // PAGE) + 2)
    assert most >= 2 * one * (window // PAGE)
    cache.append(*sequence(500)[1:])
    cache.append(*sequence(1)[1:])
    assert cache.nbytes <= 2 * one * (-(-(window + 500) // PAGE) + 2)


def test_pages_that_are_evicted_are_used_again():
    cache = qkv.KVCache(1, 8, 128, window=256)
    key = torch.randn(1, 8, 64, 128)
    for _ in range(20):
        cache.append(key, key)
    before = resident()
    for _ in range(400):  # 200 MB of tokens
        cache.append(key, key)
    assert resident() - before < 30 * 2**20


@by_storage
def test_ragged_rows_evict_each_for_itself(storage):
    cache, plain = both(10, storage)
    for seed, (n, counts) in enumerate(((70, [70, 2]), (5, [0, 5]), (66, [1, 66]), (3, [3, 3]), (1, [1, 0]))):
        for padding in ("left", "right"):
            fresh = sequence(n, seed)
            found = qkv.decode(*fresh, cache, lengths=torch.tensor(counts), padding=padding)
            plain.decode(*fresh, lengths=counts, padding=padding).check(found)
    holds(cache, plain)


def refused(cache, n):
    """What crop(n) says against it; "" when it went."""
    try:
        cache.crop(n)
    except errors.QkvError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 5, 64, 100])
@pytest.mark.parametrize("length", [3, 64, 130, 331])
def test_going_back_is_exact_or_refused(window, length):
    """Never a silent no-op: what a query at position n may see is all there, or the crop is an error."""
    allowed = set()
    ring, tokens_of_it = both(window)
    ring.append(*sequence(length)[1:])
    tokens_of_it.append(*sequence(length)[1:])
    for n in range(length + 1):
        cache, plain = ring.fork(), tokens_of_it.fork()
        if refused(cache, n):
            assert cache.lengths.tolist() == [length, length]
            continue
        plain.crop(n)
        allowed.add(n)
        assert cache.lengths.tolist() == [n, n]
        if n % 7 == 0 or n > length - 5:
            steps(cache, plain, (1, 2), seed=n)
    holds(ring, tokens_of_it)
    # A query at position 0 sees itself alone: nothing has to be held for that.
    assert {0, length} <= allowed
    if length <= window:
        assert len(allowed) == length + 1, "nothing was evicted yet"
    if window + 2 * PAGE < length:
        assert len(allowed) <= length, "an evicted token cannot come back"


def test_how_far_one_can_go_back_is_said_and_true():
    cache, plain = both(100)
    cache.append(*sequence(900)[1:])
    plain.append(*sequence(900)[1:])
    with untouched(cache):
        said = {int(number) for number in re.findall(r"\d+", refused(cache, 300))}
    limits = [m for m in said if 300 < m < 900 and not refused(cache.fork(), m) and refused(cache.fork(), m - 1)]
    assert len(limits) == 1, f"of {said} none is the first n that crop takes"
    cache.crop(limits[0])
    plain.crop(limits[0])
    steps(cache, plain, (1, 3, 64))


def test_going_back_again_and_again_does_not_reach_further():
    cache, plain = both(20)
    cache.append(*sequence(500)[1:])
    plain.append(*sequence(500)[1:])
    reached = cache.length
    while reached and not refused(cache, reached - 1):
        reached -= 1
        plain.crop(reached)
    assert reached >= 500 - 2 * PAGE
    steps(cache, plain, (1, 2, 70))


def test_reorder_and_reset_of_a_ring():
    cache, plain = both(30)
    steps(cache, plain, (100, 3))
    cache.reorder([1, 1, 0])
    plain.reorder([1, 1, 0])
    steps(cache, plain, (1, 70, 3), seed=2)
    cache.reset()
    plain.reset()
    steps(cache, plain, (5, 70), seed=3)
    holds(cache, plain)


SINKS = torch.zeros(1, 101, dtype=torch.bool)
SINKS[:, :4] = SINKS[:, -64:] = True


@pytest.mark.parametrize(
    "mask",
    [
        qkv.Window(left=63) | qkv.Padding(keep=SINKS),
        qkv.Window(left=64),
        qkv.Causal() & qkv.Window(left=100),
        qkv.Dense(SINKS),
        qkv.Predicate(lambda b, h, i, j: j < 4),
        qkv.Predicate(lambda b, h, i, j: j % 2 == 0) & qkv.Padding(keep=SINKS),
    ],
    ids=repr,
)
def test_a_mask_that_reaches_behind_the_window_is_refused(mask):
    cache = qkv.KVCache(1, 1, 4, window=64)
    x = numbers((1, 1, 100, 4), seed=0)
    cache.append(x, x)
    new = numbers((1, 1, 1, 4), seed=1)
    with pytest.raises(MaskError, match=r"window of 64 tokens.*Window\(left=63\)"):
        qkv.decode(new, new, new, cache, mask=mask)
    assert cache.length == 100
    both_say = qkv.decode(new, new, new, cache.fork(), mask=mask & qkv.Window(left=63))
    whole = qkv.KVCache(1, 1, 4)
    whole.append(x, x)
    found = qkv.decode(new, new, new, whole, mask=mask & qkv.Window(left=63))
    torch.testing.assert_close(both_say, found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "mask",
    [qkv.Window(left=63), qkv.Causal(), qkv.Padding(keep=SINKS), qkv.Dense(SINKS & (torch.arange(101) > 36)), None],
    ids=repr,
)
def test_a_mask_within_the_window_or_without_distances_is_taken(mask):
    cache = qkv.KVCache(1, 1, 4, window=64)
    x = numbers((1, 1, 100, 4), seed=0)
    cache.append(x, x)
    new = numbers((1, 1, 1, 4), seed=1)
    assert qkv.decode(new, new, new, cache, mask=mask).shape == (1, 1, 1, 4)


def far_along(path, batch, rows):
    """A ring of 70 tokens, and the same from a crafted file that claims 2^48 more in some rows."""
    cache = qkv.KVCache(batch, 1, 4, window=3)
    x = numbers((batch, 1, 70, 4), seed=0)
    cache.append(x, x)
    cache.save(path)
    tensors = load_file(path)
    for name in ("starts", "lengths"):
        tensors[name][rows] += 2**48 - 192
    with safe_open(path, "pt") as file:
        about = file.metadata()
    save_file(tensors, path, about)
    return cache, qkv.KVCache.load(path)


def test_tensors_and_masks_of_a_ring_cost_its_window_and_not_its_length(tmp_path):
    """Whatever has a cell for each of 2^48 tokens would need petabytes."""
    cache, far = far_along(tmp_path / "ring", 1, [0])
    assert far.length == 2**48 - 192 + 70
    for found, wanted in zip(far.tensors(), cache.tensors(), strict=True):
        same_bits(found, wanted)
    new = numbers((1, 1, 2, 4), seed=1)
    mask = qkv.Predicate(lambda b, h, i, j: (i + j) % 2 == 0) & qkv.Window(left=2)
    same_bits(qkv.decode(new, new, new, far, mask=mask), qkv.decode(new, new, new, cache, mask=mask))


def test_rows_of_a_ring_that_are_far_apart_end_in_a_memory_error(tmp_path):
    _, far = far_along(tmp_path / "ring", 2, [0])
    with pytest.raises(MemoryError, match="no memory for a tensor"):
        far.tensors()
