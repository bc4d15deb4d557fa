"""KVCache(dtype="auto"): the first prompt decides the format by the error of its attention."""

import numpy as np
import pytest
import torch

import qkv
from qkv import errors
from qkv.cache.choosing import CANDIDATES, MIN_TOKENS
from qkv.cache.formats import FORMATS
from tests.helpers.decode_reference import numbers, same_bits

SIZES = {"batch": 2, "heads": 3, "width": 64}


def tokens(n, seed=0, key_size=1.0, heads=6):
    query = numbers((2, heads, n, 64), seed=3 * seed)
    return query, key_size * numbers((2, 3, n, 64), seed=3 * seed + 1), numbers((2, 3, n, 64), seed=3 * seed + 2)


def after_a_prompt(bound, n=70, key_size=1.0, **options):
    cache = qkv.KVCache(**SIZES, dtype="auto", bound=bound)
    out = qkv.decode(*tokens(n, key_size=key_size), cache, **options)
    return cache, out


@pytest.mark.parametrize("name", [each.name for each in CANDIDATES] + ["float32"])
def test_a_bound_just_above_the_error_of_a_format_takes_it(name):
    """The errors are measured here from `decode` itself."""
    exact = qkv.KVCache(**SIZES)
    query, key, value = tokens(70)
    wanted = qkv.decode(query, key, value, exact)[:, :, -16:]
    found = {}
    for each in CANDIDATES:
        cache = qkv.KVCache(**SIZES, dtype=each.dtype)
        out = qkv.decode(query, key, value, cache)[:, :, -16:]
        found[each.name] = float((out - wanted).norm() / wanted.norm())
    assert found["int4"] > found["int8/int4"] > found["int8"]
    cache, _ = after_a_prompt(1e-7 if name == "float32" else 1.02 * found[name])
    within = [each for each in CANDIDATES if found[each.name] <= 1.02 * found.get(name, 0.0)]
    assert cache.format is (within[0] if within else FORMATS[torch.float32])
    assert cache.bound is None


def test_int8_keys_are_taken_where_int4_keys_miss_the_bound():
    """Large scores: an error of a key changes which key is attended."""
    bound = 0.2
    assert after_a_prompt(bound)[0].format.name == "int4"
    assert after_a_prompt(bound, key_size=5.0)[0].format.name == "int8/int4"


@pytest.mark.parametrize("capacity", [None, 130])
def test_the_tokens_are_rounded_once_and_decoding_goes_on(capacity):
    cache = qkv.KVCache(**SIZES, dtype="auto", bound=0.2, capacity=capacity)
    fork = cache.fork()
    prompt, exact, twin = tokens(70), qkv.KVCache(**SIZES), qkv.KVCache(**SIZES, dtype="int4", capacity=capacity)
    same_bits(qkv.decode(*prompt, cache), qkv.decode(*prompt, exact))
    twin.append(*prompt[1:])
    assert cache.format is twin.format
    for found, wanted in zip(cache.tensors(), twin.tensors(), strict=True):
        same_bits(found, wanted)
    assert cache.nbytes == twin.nbytes
    for seed in (1, 2):
        step = tokens(1, seed)
        same_bits(qkv.decode(*step, cache), qkv.decode(*step, twin))
    qkv.decode(*prompt, fork)
    assert (fork.length, fork.format) == (70, twin.format)
    cache.crop(3)
    cache.append(*tokens(9)[1:])
    assert cache.length == 12


def test_rows_of_different_lengths_and_a_window():
    for padding in ("left", "right"):
        cache = qkv.KVCache(**SIZES, dtype="auto", bound=0.2, window=40)
        other = qkv.KVCache(**SIZES, dtype="int4", window=40)
        query, key, value = tokens(150)
        options = {"lengths": torch.tensor([150, 37]), "padding": padding}
        qkv.decode(query, key, value, cache, **options)
        other.append(key, value, **options)
        assert cache.format.name == "int4"
        step = tokens(1, 5)
        same_bits(qkv.decode(*step, cache), qkv.decode(*step, other))


def test_what_cannot_be_decided_is_refused_and_changes_nothing():
    cache = qkv.KVCache(**SIZES, dtype="auto", bound=0.1)
    with pytest.raises(errors.OptionError, match="queries of the first prompt"):
        cache.append(*tokens(70)[1:])
    with pytest.raises(errors.OptionError, match=f"at least {MIN_TOKENS} tokens"):
        qkv.decode(*tokens(MIN_TOKENS - 1), cache)
    with pytest.raises(errors.OptionError, match=f"at least {MIN_TOKENS} tokens"):
        qkv.decode(*tokens(70), cache, lengths=torch.tensor([70, 0]))
    assert (cache.length, cache.nbytes, cache.bound) == (0, 0, 0.1)
    qkv.decode(*tokens(MIN_TOKENS), cache)
    assert cache.bound is None


def test_a_nan_is_within_no_bound():
    cache = qkv.KVCache(**SIZES, dtype="auto", bound=0.9)
    query, key, value = tokens(70)
    value[0, 0, 3, 1] = float("nan")
    qkv.decode(query, key, value, cache)
    assert cache.dtype is torch.float32


@pytest.mark.parametrize("bound", [0, 1, -0.5, 2.0, float("nan")])
def test_bounds_out_of_range(bound):
    with pytest.raises(errors.OptionError, match="bound"):
        qkv.KVCache(**SIZES, dtype="auto", bound=bound)


def test_a_bound_belongs_to_auto():
    for bound in (None, "0.1", True, np.array(0.1)):
        with pytest.raises(errors.OptionTypeError, match="bound"):
            qkv.KVCache(**SIZES, dtype="auto", bound=bound)
    with pytest.raises(errors.OptionError, match="auto"):
        qkv.KVCache(**SIZES, dtype="int4", bound=0.1)


def test_a_format_that_is_not_decided_is_not_saved(tmp_path):
    cache = qkv.KVCache(1, 2, 64, dtype="auto", bound=0.1)
    with pytest.raises(errors.OptionError, match="decode it before"):
        cache.save(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
