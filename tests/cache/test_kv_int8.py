"""int8 caches: one symmetric scale per token and head for keys and for values; tokens are quantized once."""

from math import inf, nan

import pytest
import torch

import qkv
from tests.helpers.decode_reference import Plain, numbers, quantized, same_bits, stored


def new(batch=2, heads=3, width=16, value_width=8, **options):
    return qkv.KVCache(batch, heads, width, value_width=value_width, dtype=torch.int8, **options)


def pairs(n, seed=0, size=1.0):
    return numbers((2, 3, n, 16), seed=2 * seed) * size, numbers((2, 3, n, 8), seed=2 * seed + 1) * size


def kept(x):
    return stored(x, torch.int8).to(torch.float32)


def test_the_rule():
    cache = new()
    key, value = pairs(200)
    cache.append(key, value)
    for found, given in zip(cache.tensors(), (key, value), strict=True):
        same_bits(found, kept(given))
        scale = given.abs().amax(-1, keepdim=True) / 127
        assert bool(((found - given).abs() <= scale * 0.5001).all())
        # The largest number of a vector is kept as it is, within its rounding.
        largest = given.abs().argmax(-1, keepdim=True)
        torch.testing.assert_close(found.gather(-1, largest), given.gather(-1, largest), rtol=3e-7, atol=0)


def test_halves_go_to_even():
    """max 127: the scale is 1 and numbers are rounded as they stand."""
    x = torch.tensor(
        [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5, 64.5, -63.5, 0.49999997, 126.5, -126.5, 1.0, 0.0, -0.0]
    )
    key = x.expand(2, 3, 1, 16)
    cache = new()
    cache.append(key, key[..., :8])
    wanted = torch.tensor([127.0, 0, 2, 2, 0, -2, -2, 64, 64, -64, 0, 126, -126, 1, 0, 0])
    assert torch.equal(cache.tensors()[0], wanted.expand(2, 3, 1, 16))
    assert torch.equal(cache.tensors()[1], wanted[:8].expand(2, 3, 1, 8))


def test_scales_of_every_size():
    for size in (1e-30, 1e-10, 1.0, 1e10, 1e30):
        cache = new()
        key, value = pairs(70, size=size)
        cache.append(key, value)
        same_bits(cache.tensors()[0], kept(key))
        same_bits(cache.tensors()[1], kept(value))


def test_zeros_and_the_smallest_numbers():
    cache = new()
    key, value = torch.zeros(2, 3, 3, 16), torch.zeros(2, 3, 3, 8)
    key[0, 0, 1, 4], value[0, 0, 1, 4] = 1e-44, -1e-44  # their scale is 0 in float32
    cache.append(key, value)
    for tensor in cache.tensors():
        assert bool(tensor.isfinite().all())
        assert float(tensor.abs().max()) <= 1e-42
    out = qkv.decode(numbers((2, 6, 1, 16)), torch.zeros(2, 3, 1, 16), torch.zeros(2, 3, 1, 8), cache)
    assert not out.nan_to_num(1.0).abs().gt(1e-42).any()


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_token_that_is_not_finite_is_nan_as_a_whole_in_its_head(bad):
    key, value = pairs(70)
    key[0, 1, 5, 3], value[1, 2, 66, 7] = bad, bad
    cache = new()
    cache.append(key, value)
    found = cache.tensors()
    assert bool(found[0][0, 1, 5].isnan().all())
    assert bool(found[1][1, 2, 66].isnan().all())
    assert int(found[0].isnan().sum()) == 16
    assert int(found[1].isnan().sum()) == 8
    wanted = kept(key)
    same_bits(found[0].nan_to_num(0.0), wanted.nan_to_num(0.0))


def test_one_head_or_token_does_not_change_another():
    key, value = pairs(70)
    quiet = new()
    quiet.append(key, value)
    loud_key, loud_value = key.clone(), value.clone()
    loud_key[:, 1, 30] *= 1e6
    loud_value[:, 2, 31] *= 1e6
    loud = new()
    loud.append(loud_key, loud_value)
    for at, (head, token) in ((0, (1, 30)), (1, (2, 31))):
        one, other = quiet.tensors()[at], loud.tensors()[at]
        one[:, head, token] = other[:, head, token] = 0
        same_bits(one, other)


def test_keys_and_values_have_separate_scales():
    key, value = pairs(5)
    cache, other = new(), new()
    cache.append(key, value)
    other.append(key * 1000, value)
    same_bits(cache.tensors()[1], other.tensors()[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes_are_quantised_from_their_own_numbers(dtype):
    key, value = (tensor.to(dtype) for tensor in pairs(130))
    cache = new()
    cache.append(key, value)
    for found, given in zip(cache.tensors(), (key, value), strict=True):
        torch.testing.assert_close(found, kept(given), rtol=3e-7, atol=0)


def test_nothing_is_quantised_twice(tmp_path):
    """Whatever happens to the cache, the first tokens keep their bits."""
    key, value = pairs(70)
    cache = new()
    cache.append(key, value)
    first = [tensor.clone() for tensor in cache.tensors()]

    def unchanged(one):
        for found, wanted in zip(one.tensors(), first, strict=True):
            same_bits(found[:, :, :70].contiguous(), wanted)

    for seed in range(1, 4):
        cache.append(*pairs(33, seed, size=100.0**seed))
        unchanged(cache)
    forked = cache.fork()
    forked.crop(71)
    forked.append(*pairs(3, 9))
    unchanged(forked)
    unchanged(cache)
    cache.reorder([0, 1])
    unchanged(cache)
    cache.save(tmp_path / "cache.safetensors")
    again = qkv.KVCache.load(tmp_path / "cache.safetensors")
    unchanged(again)
    again.append(*pairs(1, 10))
    again.save(tmp_path / "cache.safetensors")
    unchanged(qkv.KVCache.load(tmp_path / "cache.safetensors"))


@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_error_against_float64_on_gaussian_numbers(width, dtype):
    """At most 1e-2 of the largest |v|, against attention over what was given, not over what was kept."""
    past = 1000
    cache = qkv.KVCache(1, 2, width, dtype=torch.int8)
    exact = Plain(1, 2, width, width, torch.float32)
    key, value = (numbers((1, 2, past, width), dtype, seed) for seed in (1, 2))
    query, new_key, new_value = (numbers((1, h, 3, width), dtype, seed) for h, seed in ((8, 3), (2, 4), (2, 5)))
    cache.append(key, value)
    exact.append(key, value)
    wanted = exact.decode(query, new_key, new_value)
    found = qkv.decode(query, new_key, new_value, cache)
    error = float((found.double() - wanted.out).abs().max())
    rounding = {torch.float32: 0.0, torch.bfloat16: 2**-9, torch.float16: 2**-12}[dtype] * float(wanted.out.abs().max())
    assert error - rounding <= 1e-2 * float(value.abs().max().double())


@pytest.mark.slow
def test_answers_over_what_was_kept_are_exact_to_float32():
    """The scales are folded into the products; no other error joins the quantisation."""
    cache = qkv.KVCache(2, 3, 128, value_width=96, dtype=torch.int8)
    plain = Plain.like(cache)
    for seed, n in enumerate((300, 1, 2, 65)):
        query = numbers((2, 12, n, 128), seed=3 * seed)
        key, value = numbers((2, 3, n, 128), seed=3 * seed + 1), numbers((2, 3, n, 96), seed=3 * seed + 2)
        # Sizes that differ by token: a wrong scale cannot hide.
        key, value = (x * torch.logspace(-2, 1, n)[None, None, :, None] for x in (key, value))
        plain.decode(query, key, value).check(qkv.decode(query, key, value, cache))


def test_the_codes_use_all_of_int8():
    codes, _ = quantized(numbers((1000, 16)))
    assert int(codes.max()) == 127
    assert int(codes.min()) == -127
