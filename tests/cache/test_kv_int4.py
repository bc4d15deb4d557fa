"""int4 caches: rotated rows, a scale for each 32 channels, and int8 keys with int4 values."""

from math import inf, nan

import pytest
import torch

import qkv
from qkv.backends.base import RUNS
from qkv.cache.formats import FORMATS, rotate, rotate_back, storage_format
from tests.helpers.decode_reference import Plain, numbers, same_bits, stored

INT4 = tuple(each.dtype for each in FORMATS.values() if each.of_values.group)


def new(width=64, value_width=96, dtype: object = "int4", **options):
    return qkv.KVCache(2, 3, width, value_width=value_width, dtype=dtype, **options)


def pairs(n, seed=0, size=1.0):
    return numbers((2, 3, n, 64), seed=2 * seed) * size, numbers((2, 3, n, 96), seed=2 * seed + 1) * size


def hadamard(n):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < n:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def signs(n):
    """a(2c) = a(c) and a(2c + 1) = (−1)^c a(c), Rudin and Shapiro's sequence."""
    found = [1.0]
    while len(found) < n:
        found = [found[c // 2] * (-1.0 if c % 2 and c // 2 % 2 else 1.0) for c in range(2 * len(found))]
    return torch.tensor(found[:n], dtype=torch.float64)


@pytest.mark.parametrize(("width", "block"), [(1, 1), (2, 2), (5, 1), (12, 4), (64, 64), (96, 32), (128, 128)])
def test_the_rotation_is_that_of_its_matrix(width, block):
    x = numbers((7, width), seed=width)
    wanted = ((x.double().unflatten(-1, (-1, block)) * signs(block)) @ hadamard(block) / block).flatten(-2)
    torch.testing.assert_close(rotate(x).double(), wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(rotate_back(rotate(x)), x, rtol=1e-5, atol=1e-5)
    products = block * (rotate(x)[:1] * rotate(x)).sum(-1)
    torch.testing.assert_close(products, (x[:1] * x).sum(-1), rtol=1e-4, atol=1e-4)


def test_a_row_of_equal_numbers_and_one_outlier_become_level():
    for row in (torch.ones(64), torch.eye(64)[5], hadamard(64)[7].float()):
        sizes = rotate(row).abs()
        torch.testing.assert_close(sizes, sizes.mean().expand(64))


def test_names():
    assert storage_format("int4") is storage_format(torch.int4) is FORMATS[torch.int4]
    assert storage_format("bf16") is storage_format("bfloat16") is storage_format(torch.bfloat16)
    mixed = qkv.KVCache(1, 1, 32, dtype="int8/int4")
    assert mixed.dtype == mixed.format.name == "int8/int4"
    assert qkv.KVCache(1, 1, 32, dtype=mixed.dtype).format is mixed.format
    assert (mixed.format.of_values.name, new().dtype) == ("int4", torch.int4)
    with pytest.raises(qkv.errors.DtypeError, match="int8/int4"):
        qkv.KVCache(1, 1, 32, dtype="int3")


@pytest.mark.parametrize("width", [64, 96, 128, 256])
def test_bytes_are_at_most_0_30_of_bfloat16(width):
    sizes = {}
    for dtype in (torch.bfloat16, "int8/int4", "int4"):
        cache = qkv.KVCache(1, 2, width, dtype=dtype)
        cache.append(torch.zeros(1, 2, 640, width), torch.zeros(1, 2, 640, width))
        sizes[dtype] = cache.nbytes
    assert sizes["int4"] <= 0.30 * sizes[torch.bfloat16]
    assert sizes["int8/int4"] <= 0.42 * sizes[torch.bfloat16]


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_what_is_stored_is_within_half_a_step_and_keeps_its_bits(size, tmp_path):
    cache = new()
    key, value = pairs(70, size=size)
    cache.append(key, value)
    for found, given in zip(cache.tensors(), (key, value), strict=True):
        same_bits(found, stored(given, torch.int4).float())
        rotated, kept = (rotate(x).unflatten(-1, (-1, 32)) for x in (given, found))
        step = rotated.abs().amax(-1, keepdim=True) / 7.5
        assert bool(((rotated - kept).abs() <= 0.51 * step).all())
    first = cache.tensors()
    forked = cache.fork()
    forked.crop(66)
    forked.append(*pairs(3, 9))
    cache.save(tmp_path / "cache.safetensors")
    for one in (cache, qkv.KVCache.load(tmp_path / "cache.safetensors")):
        assert one.format is cache.format
        for found, wanted in zip(one.tensors(), first, strict=True):
            same_bits(found, wanted)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("dtype", INT4, ids=str)
def test_a_token_that_is_not_finite_is_nan_as_a_whole_in_its_head(dtype, bad):
    key, value = pairs(70)
    key[0, 1, 5, 3], value[1, 2, 66, 7] = bad, bad
    cache = new(dtype=dtype)
    cache.append(key, value)
    found = cache.tensors()
    assert bool(found[0][0, 1, 5].isnan().all())
    assert bool(found[1][1, 2, 66].isnan().all())
    assert [int(tensor.isnan().sum()) for tensor in found] == [64, 96]


@pytest.mark.parametrize("dtype", INT4, ids=str)
def test_numbers_near_the_largest_and_the_smallest_stay_finite(dtype):
    largest = torch.finfo(torch.float32).max
    for size in (largest, largest / 3, 1e-38, 1e-44):
        cache = new(dtype=dtype)
        value = pairs(70, seed=4)[1].sign() * size
        value[:, :, 5] = size
        cache.append(torch.zeros(2, 3, 70, 64), value)
        assert bool(cache.tensors()[1].isfinite().all())
        out = qkv.decode(torch.ones(2, 3, 1, 64), torch.zeros(2, 3, 1, 64), value[:, :, :1], cache)
        assert bool(out.isfinite().all())
        assert float(out.abs().max()) <= size


@pytest.mark.slow
@pytest.mark.parametrize("dtype", INT4, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 7, 13])
def test_answers_over_what_was_kept_are_exact_to_float32(dtype, rows):
    cache = new(dtype=dtype)
    plain = Plain.like(cache)
    before = RUNS["decode.native"]
    for seed, n in enumerate((300, 1, 2)):
        query = numbers((2, 3 * rows, n, 64), seed=3 * seed)
        key, value = (x * torch.logspace(-2, 1, n)[None, None, :, None] for x in pairs(n, seed))
        plain.decode(query, key, value).check(qkv.decode(query, key, value, cache))
    assert RUNS["decode.native"] == before + 3


@pytest.mark.parametrize(("dtype", "bound"), [("int4", 0.1), ("int8/int4", 0.08), ("int8", 0.01)])
def test_error_of_the_attention_on_gaussian_numbers(dtype, bound):
    """Against attention over what was given, relative to the largest |v|; keys with an outlier channel, as models'."""
    cache, exact = new(dtype=dtype), new(dtype=torch.float32)
    key, value = pairs(500)
    key[..., 7] *= 20
    query = numbers((2, 3, 1, 64), seed=5)
    query[..., 7] /= 20
    for each in (cache, exact):
        each.append(key, value)
    step = pairs(1, 6)
    error = qkv.decode(query, *step, cache) - qkv.decode(query, *step, exact)
    assert 0 < float(error.abs().max()) <= bound * float(value.abs().max())


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("width", [1, 3, 64, 96])
def test_a_query_that_is_not_finite_gets_nan_and_no_other(width, bad):
    """An infinity times rotated keys would be −∞ or NaN by their signs."""
    cache = qkv.KVCache(1, 1, width, dtype=torch.int4)
    key = torch.full((1, 1, 3, width), 1.5)
    cache.append(key, key)
    query = torch.ones(1, 1, 2, width)
    query[0, 0, 0, -1] = bad
    out = qkv.attend(query, cache)
    assert out[0, 0, 0].isnan().all()
    assert out[0, 0, 1].isfinite().all()
