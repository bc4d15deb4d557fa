"""Weights of a step, `attend` and importance against the equation in float64, for every format, rule and shape."""

from math import inf, nan

import pytest
import torch

import qkv
from qkv import errors
from qkv.backends.base import RUNS
from tests.helpers.decode_cases import BIASES, MASKS, Scene, make_bias, make_mask, make_similarity, tokens
from tests.helpers.decode_reference import STORAGE, Plain, name_of, same_bits, untouched

SHAPE = {"batch": 3, "heads": (10, 2), "widths": (11, 13)}


def both(past, storage=torch.float32, dtype=torch.float32, **options):
    cache = qkv.KVCache(3, 2, 11, value_width=13, dtype=storage, **options)
    plain = Plain.like(cache)
    _, key, value = tokens(past, dtype=dtype, seed=1, **SHAPE)
    cache.append(key, value)
    plain.append(key, value)
    return cache, plain


@pytest.mark.parametrize("storage", STORAGE, ids=name_of)
@pytest.mark.parametrize(("past", "n"), [(0, 1), (67, 1), (300, 3), (530, 67)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=name_of)
def test_weights_are_those_of_the_equation_and_change_no_bit(storage, past, n, dtype):
    cache, plain = both(past, storage, dtype)
    given = tokens(n, dtype=dtype, seed=2, **SHAPE)
    kind = make_similarity("everything", 10, dtype)
    alone = qkv.decode(*given, cache.fork(), similarity=kind)
    path = "decode.torch" if dtype is torch.float64 else "decode.native"
    before = RUNS[path]
    out, weights = qkv.decode(*given, cache, similarity=kind, return_weights=True)
    assert RUNS[path] == before + 1
    same_bits(out, alone)
    assert weights.shape == (3, 10, n, past + n)
    plain.decode(*given, similarity=kind).check_weights(weights)
    assert bool((weights.sum(-1) < 1).all()), "the sink takes its share"


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("similarity", ["default", "argmax"])
def test_every_mask_gives_exact_zeros(mask, similarity):
    cache, plain = both(70, torch.bfloat16)
    built, keep = make_mask(mask, Scene(3, 10, 5, 75, 3))
    given = tokens(5, dtype=torch.float32, seed=2, **SHAPE)
    kind = make_similarity(similarity, 10, torch.float32)
    out, weights = qkv.decode(*given, cache, mask=built, similarity=kind, return_weights=True)
    expected = plain.decode(*given, keep=keep, similarity=kind)
    expected.check(out)
    if similarity == "default":
        return expected.check_weights(weights)
    assert not weights[~expected.seen].any()
    assert torch.equal(weights.sum(-1), expected.seen.any(-1).float())
    return None


@pytest.mark.parametrize("bias", BIASES)
def test_biases_and_ragged_rows_in_a_window(bias):
    cache, plain = both(70, window=40)
    given, lengths = tokens(4, dtype=torch.float32, seed=2, **SHAPE), [2, 0, 4]
    added = make_bias(bias, Scene(3, 10, 4, 74), torch.float32)
    options = {"bias": added, "lengths": lengths, "padding": "left"}
    out, weights = qkv.decode(*given, cache, return_weights=True, **options)
    expected = plain.decode(*given, **options)
    expected.check(out)
    expected.check_weights(weights)
    assert not weights[1].any(), "a row without tokens"


def test_nan_and_infinity_that_are_attended_are_not_hidden():
    """Keys of NaN and infinity: all weights of a row that attends to them are NaN, masked ones exactly 0."""
    for bad in (nan, inf):
        cache, _ = both(300, importance=True)
        query, key, value = tokens(2, dtype=torch.float32, seed=2, **SHAPE)
        key[:, :, 1] = bad
        query[..., 0, :] = query[..., 0, :].abs()
        _, weights = qkv.decode(query, key, value, cache, mask=qkv.Window(left=250), return_weights=True)
        assert weights[:, :, 0].isfinite().all()
        assert not weights[:, :, 1, :51].any()
        assert weights[:, :, 1, 51:].isnan().all()
        assert cache.importance()[:, :, 51:].isnan().all()
        assert cache.importance()[:, :, :50].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=name_of)
@pytest.mark.parametrize("storage", STORAGE, ids=name_of)
def test_attend_is_attention_over_the_stored_tokens(storage, dtype):
    cache, _ = both(130, storage, dtype)
    query = tokens(7, dtype=dtype, seed=4, **SHAPE)[0]
    key, value = (tensor.double() for tensor in cache.tensors())
    keep = torch.rand(3, 10, 7, 130, generator=torch.Generator().manual_seed(5)) < 0.4
    for mask in (
        None,
        qkv.Causal(offset=100),
        qkv.Dense(keep),
        qkv.Window(left=9, offset=50),
        qkv.Padding([3, 0, 130]),
    ):
        with untouched(cache):
            found = qkv.attend(query, cache, mask=mask, return_lse=True, return_weights=True)
        wanted = qkv.attention(query.double(), key, value, mask=mask, return_lse=True, return_weights=True)
        for one, other, bound in zip(
            found, wanted, (2e-3 if dtype is torch.float16 else 3e-6, 1e-5, 1e-6), strict=True
        ):
            torch.testing.assert_close(one.double(), other, rtol=bound, atol=bound)
        assert torch.equal(found[2] == 0, wanted[2] == 0)
        same_bits(found[0], qkv.attend(query, cache, mask=mask))


def test_attend_in_a_window_is_the_last_token():
    for options in ({"window": 40}, {"window": 70, "sinks": 3}):
        cache, plain = both(400, **options)
        query = tokens(5, dtype=torch.float32, seed=4, **SHAPE)[0]
        plain.attend(query, torch.full((3, 5), 399)).check(qkv.attend(query, cache))


def test_attend_refuses_what_it_cannot_say():
    cache, _ = both(9)
    query = tokens(3, dtype=torch.float32, seed=4, **SHAPE)[0]
    with pytest.raises(errors.MaskError, match="offset"):
        qkv.attend(query, cache, mask=qkv.Causal())
    with pytest.raises(errors.OptionError, match="log-sum-exp"):
        qkv.attend(query, cache, similarity=qkv.Argmax(), return_lse=True)
    with pytest.raises(errors.OptionTypeError, match="return_weights"):
        qkv.attend(query, cache, return_weights=1)  # pyright: ignore
    state = qkv.LinearState(qkv.FeatureMap(qkv.features.elu1), 3, 2, 11)
    with pytest.raises(errors.BackendRefused, match="LinearState"):
        qkv.attend(query, state)  # pyright: ignore
    with pytest.raises(errors.BackendRefused, match="no single keys"):
        qkv.decode(query, query[:, :2], query[:, :2], state, return_weights=True)
    empty = qkv.KVCache(3, 2, 11)
    assert not qkv.attend(query, empty).any()
    assert qkv.attend(query[:, :, :0], cache).shape == (3, 10, 0, 13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name_of)
@pytest.mark.parametrize("storage", STORAGE, ids=name_of)
def test_importance_is_the_sum_of_weights_and_changes_no_bit(storage, dtype):
    """Prompts of several tiles of rows, ragged rows, steps with a plan and without."""
    cache, plain = both(0, storage, dtype, importance=True)
    without = qkv.KVCache(3, 2, 11, value_width=13, dtype=storage)
    for seed, (n, lengths) in enumerate([(130, None), (1, None), (1, None), (70, [70, 0, 3]), (1, None), (1, None)]):
        given = tokens(n, dtype=dtype, seed=seed, **SHAPE)
        same_bits(qkv.decode(*given, cache, lengths=lengths), qkv.decode(*given, without, lengths=lengths))
        plain.decode(*given, lengths=lengths)
    torch.testing.assert_close(cache.importance().double(), plain.importance(), rtol=1e-5, atol=1e-5)
    fork, before = cache.fork(), cache.importance()
    qkv.decode(*tokens(1, dtype=dtype, seed=9, **SHAPE), fork)
    assert torch.equal(cache.importance(), before)
    cache.crop([5, 131, 9])
    cache.reorder([1, 1, 0])
    expected = before[:, :, :131].clone()
    expected[0, :, 5:] = 0
    assert torch.equal(cache.importance(), expected[[1, 1, 0]])
    with pytest.raises(errors.OptionError, match="importance=True"):
        without.importance()


def test_importance_does_not_depend_on_threads():
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        cache = qkv.KVCache(1, 2, 16, importance=True)
        for n in (400, 1, 1, 1):
            qkv.decode(*tokens(n, batch=1, heads=(6, 2), widths=(16, 16), dtype=torch.float32, seed=n), cache)
        found.append(cache.importance())
    torch.set_num_threads(2)
    same_bits(found[0], found[1])
    same_bits(found[0], found[2])
