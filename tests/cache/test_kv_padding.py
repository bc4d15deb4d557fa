"""Rows of different lengths: each equals its unpadded row, and padding has no effect."""

import itertools
from math import inf, nan

import pytest
import torch

import qkv
from qkv import errors
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import STORAGE, Plain, holds, name_of, same_bits, untouched

by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)
by_padding = pytest.mark.parametrize("padding", ["right", "left"])
# New tokens and how many of them count, call after call; four rows.
CALLS = (
    (70, [70, 1, 0, 64]),
    (3, [3, 0, 2, 1]),
    (1, [1, 1, 1, 1]),
    (5, [0, 0, 0, 0]),
    (66, [1, 66, 63, 2]),
    (1, [0, 1, 1, 0]),
)


def sequence(n, seed=0, dtype=torch.float32, batch=4):
    return tokens(n, batch=batch, heads=(6, 2), widths=(7, 5), dtype=dtype, seed=seed)


def new(storage=torch.float32, batch=4, **options):
    return qkv.KVCache(batch, 2, 7, value_width=5, dtype=storage, **options)


def part(n, count, padding):
    return slice(n - count, n) if padding == "left" else slice(0, count)


def poisoned(tensors, lengths, padding):
    """Copies with NaN, ±inf and 1e30 wherever a token does not count."""
    n = tensors[0].shape[2]
    copies = [tensor.clone() for tensor in tensors]
    for copy, bad in zip(copies, (nan, inf, nan), strict=True):
        for b, count in enumerate(lengths):
            real = torch.zeros(n, dtype=torch.bool)
            real[part(n, count, padding)] = True
            copy[b, :, ~real] = bad
            copy[b, :, ~real, :1] = 6e4 if b % 2 else -inf
    return copies


@pytest.mark.slow
@by_storage
@by_padding
def test_each_row_equals_its_unpadded_self(storage, padding):
    for dtype, window in itertools.product((torch.float32, torch.bfloat16, torch.float64), (None, 40)):
        together, alone = new(storage, window=window), [new(storage, batch=1, window=window) for _ in range(4)]
        plain = Plain.like(together)
        for seed, (n, lengths) in enumerate(CALLS):
            tensors = sequence(n, seed, dtype)
            found = qkv.decode(
                *poisoned(tensors, lengths, padding), together, lengths=torch.tensor(lengths), padding=padding
            )
            plain.decode(*tensors, lengths=lengths, padding=padding).check(found)
            for b, count in enumerate(lengths):
                real = part(n, count, padding)
                wanted = qkv.decode(*(tensor[b : b + 1, :, real] for tensor in tensors), alone[b])
                if dtype is torch.float64:
                    torch.testing.assert_close(found[b : b + 1, :, real], wanted, atol=1e-6, rtol=1e-6)
                else:
                    same_bits(found[b : b + 1, :, real].contiguous(), wanted, f"row {b} of call {seed}")
        holds(together, plain)
        assert together.lengths.tolist() == [one.length for one in alone]
        assert together.length == max(one.length for one in alone)


@by_storage
@by_padding
def test_append_alone_does_the_same(storage, padding):
    cache = new(storage)
    plain = Plain.like(cache)
    for seed, (n, lengths) in enumerate(CALLS):
        tensors = sequence(n, seed)
        cache.append(*poisoned(tensors, lengths, padding)[1:], lengths=torch.tensor(lengths), padding=padding)
        plain.append(*tensors[1:], lengths=lengths, padding=padding)
        holds(cache, plain)


@by_padding
def test_queries_that_do_not_count_get_exactly_zero(padding):
    for storage, similarity in itertools.product(STORAGE, (None, qkv.Softmax(sink=1.0), qkv.Argmax())):
        cache = new(storage)
        cache.append(*sequence(65)[1:])
        lengths = [0, 1, 4, 3]
        tensors = poisoned(sequence(4, 1), lengths, padding)
        out = qkv.decode(*tensors, cache, lengths=torch.tensor(lengths), padding=padding, similarity=similarity)
        for b, count in enumerate(lengths):
            real = torch.zeros(4, dtype=torch.bool)
            real[part(4, count, padding)] = True
            assert not out[b, :, ~real].any()
            assert bool((out[b, :, real] != 0).any()) == bool(count)
            assert bool(out[b].isfinite().all())


def test_left_padded_prompts_then_steps():
    """The common serving case: prompts padded on the left to one length, then one token a row."""
    lengths = [5, 67, 1, 30]
    prompt = sequence(67)
    cache = new()
    plain = Plain.like(cache)
    found = qkv.decode(*poisoned(prompt, lengths, "left"), cache, lengths=torch.tensor(lengths), padding="left")
    plain.decode(*prompt, lengths=lengths, padding="left").check(found)
    for seed in range(1, 5):
        step = sequence(1, seed)
        plain.decode(*step).check(qkv.decode(*step, cache))
    assert cache.lengths.tolist() == [9, 71, 5, 34]


def test_both_paddings_store_the_same():
    """The same tokens at the other end of the call: equal contents, equal answers."""
    lengths = [5, 67, 1, 30]
    right = sequence(67)
    left = [tensor.clone() for tensor in right]
    for one, other in zip(left, right, strict=True):
        for b, count in enumerate(lengths):
            one[b] = nan
            one[b, :, 67 - count :] = other[b, :, :count]
    one, other = new(), new()
    first = qkv.decode(*right, one, lengths=torch.tensor(lengths))
    second = qkv.decode(*left, other, lengths=torch.tensor(lengths), padding="left")
    for b, count in enumerate(lengths):
        same_bits(second[b, :, 67 - count :].contiguous(), first[b, :, :count].contiguous())
    for kept, also in zip(one.tensors(), other.tensors(), strict=True):
        same_bits(kept, also)


def test_lengths_of_all_is_no_lengths():
    for padding in ("left", "right"):
        one, other = new(), new()
        tensors = sequence(70)
        wanted = qkv.decode(*tensors, one)
        same_bits(qkv.decode(*tensors, other, lengths=torch.full((4,), 70), padding=padding), wanted)


def test_lengths_of_several_kinds():
    lengths = [2, 0, 3, 1]
    for given in (
        lengths,
        tuple(lengths),
        torch.tensor(lengths),
        torch.tensor(lengths, dtype=torch.int32),
        torch.tensor([lengths, lengths]).T[:, 0],
    ):
        cache = new()
        cache.append(*sequence(3)[1:], lengths=given)
        assert cache.lengths.tolist() == lengths


def test_lengths_are_not_kept():
    lengths = torch.tensor([2, 0, 3, 1])
    cache = new()
    cache.append(*sequence(3)[1:], lengths=lengths)
    lengths.zero_()
    assert cache.lengths.tolist() == [2, 0, 3, 1]


WRONG = {
    "too few": [1, 1, 1],
    "too many": [1] * 5,
    "beyond n": [1, 4, 1, 1],
    "negative": [1, -1, 1, 1],
    "far beyond": [1, 2**62, 1, 1],
    "fractions": [1.0, 1.0, 1.0, 1.0],
    "booleans": [True, True, False, True],
    "two dimensions": [[1, 1, 1, 1]],
}


@pytest.mark.parametrize("name", WRONG)
def test_lengths_that_are_none(name):
    cache = new()
    cache.append(*sequence(5)[1:])
    tensors = sequence(3, 1)
    for given in (WRONG[name], torch.tensor(WRONG[name])):
        with untouched(cache), pytest.raises(errors.QkvError, match=r"lengths(?s:.*)wanted"):
            cache.append(*tensors[1:], lengths=given)
        with untouched(cache), pytest.raises(errors.QkvError, match=r"lengths(?s:.*)wanted"):
            qkv.decode(*tensors, cache, lengths=given)
    with untouched(cache), pytest.raises(errors.QkvError, match="wanted"):
        cache.append(*tensors[1:], lengths=2)


@pytest.mark.parametrize("padding", ["middle", "", None, 1, "Left"])
def test_paddings_that_are_none(padding):
    cache = new()
    with untouched(cache), pytest.raises(errors.QkvError, match=r"padding(?s:.*)wanted"):
        cache.append(*sequence(2)[1:], lengths=[1, 1, 1, 1], padding=padding)
    with untouched(cache), pytest.raises(errors.QkvError, match=r"padding(?s:.*)wanted"):
        qkv.decode(*sequence(2), cache, lengths=[1, 1, 1, 1], padding=padding)
