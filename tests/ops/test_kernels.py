"""Kernels on tensors: the finite scan, and the best key of each query by definition, for every layout and dtype."""

import math
import resource

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv import ops
from qkv.errors import DtypeError, ShapeError
from qkv.ops import kernels

SCANNED = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
NONFINITE = [math.nan, math.inf, -math.inf]


def native_calls(*tensors: Tensor) -> tuple[bool, int]:
    ops.reset_calls()
    return ops.all_finite(*tensors), ops.calls()["all_finite"]


@pytest.mark.parametrize("dtype", SCANNED)
@pytest.mark.parametrize("bad", NONFINITE)
def test_one_bad_element_anywhere(dtype: torch.dtype, bad: float) -> None:
    for count in (1, 2, 7, 31, 67, 131, 521):
        numbers = torch.full((count,), torch.finfo(dtype).max, dtype=dtype)
        numbers[::2] *= -1
        assert native_calls(numbers) == (True, 1)
        for at in {0, count // 3, count // 2, count - 1}:
            poisoned = numbers.clone()
            poisoned[at] = bad
            assert native_calls(poisoned) == (False, 1)


@pytest.mark.parametrize("dtype", SCANNED)
def test_large_tensors_use_all_threads(dtype: torch.dtype) -> None:
    numbers = torch.zeros(3_000_017, dtype=dtype)
    assert native_calls(numbers) == (True, 1)
    for at in (0, 1_500_007, 3_000_016):
        numbers[at] = math.nan
        assert native_calls(numbers) == (False, 1)
        numbers[at] = 0


@pytest.mark.parametrize("bad", NONFINITE)
def test_views_are_scanned_by_torch(bad: float) -> None:
    whole = torch.zeros(7, 11, 13)
    whole[:, :, 5] = bad
    assert native_calls(whole[..., :5]) == (True, 0)
    assert native_calls(whole[..., 6:].transpose(0, 2)) == (True, 0)
    assert native_calls(whole.transpose(0, 1)) == (False, 0)
    assert native_calls(torch.tensor([bad]).expand(3, 5)) == (False, 0)
    assert native_calls(torch.zeros(1).expand(3, 5)) == (True, 0)


def test_a_contiguous_view_is_scanned_within_its_bounds() -> None:
    row = torch.full((67,), math.nan)
    row[3:61] = 1.0
    assert native_calls(row[3:61]) == (True, 1)
    assert native_calls(row[2:61]) == (False, 1)
    assert native_calls(row[3:62]) == (False, 1)


def test_unaligned_memory() -> None:
    buffer = bytearray(4 * 67 + 1)
    assert native_calls(torch.frombuffer(buffer, dtype=torch.float32, offset=1)) == (True, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_finite_numbers_that_overflow_a_sum_are_finite(dtype: torch.dtype) -> None:
    huge = torch.full((7, 11), torch.finfo(dtype).max, dtype=dtype)
    assert native_calls(huge.t()) == (True, 0)


def test_empty_tensors_are_finite() -> None:
    assert ops.all_finite()
    assert ops.all_finite(torch.empty(0), torch.empty(3, 0, 5), torch.empty(0, 2).t())


def test_the_scan_stops_at_the_first_nonfinite_tensor() -> None:
    bad = torch.tensor([math.nan])
    assert native_calls(torch.ones(3), bad, torch.ones(5)) == (False, 2)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5),
        torch.tensor([True, False]),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.eye(3).to_sparse(),
        torch.ones(3, 5).to_mkldnn() if torch.backends.mkldnn.is_available() else torch.ones(3, 5).t(),
    ],
    ids=["integers", "booleans", "complex", "8-bit float", "sparse", "mkldnn"],
)
def test_other_tensors_are_scanned_by_torch(tensor: Tensor) -> None:
    assert native_calls(tensor) == (True, 0)


def test_complex_infinity() -> None:
    assert not ops.all_finite(torch.tensor([1 + 1j, complex(0, math.inf)]))


def test_parameters_and_tensors_that_require_gradients() -> None:
    weights = torch.nn.Parameter(torch.ones(3, 5))
    assert native_calls(weights) == (True, 1)
    assert native_calls(weights.t()) == (True, 0)
    assert native_calls(weights * 2) == (True, 1)


def test_inside_torch_func_grad() -> None:
    def square(x: Tensor) -> Tensor:
        assert ops.all_finite(x)
        return (x * x).sum()

    assert torch.equal(torch.func.grad(square)(torch.ones(3)), torch.full((3,), 2.0))


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def integers(*shape: int, seed: int = 1) -> Tensor:
    """Small enough for exact sums in float32 and exact values in every dtype."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_definition(query: Tensor, key: Tensor, starts: Tensor | None = None, stops: Tensor | None = None) -> Tensor:
    q, k = query.double().numpy(), key.double().numpy()
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    len_k = k.shape[2]
    result = np.full(q.shape[:3], -1)
    for b, h, i in np.ndindex(*q.shape[:3]):
        first = 0 if starts is None else min(max(int(starts[b, i]), 0), len_k)
        last = len_k if stops is None else min(max(int(stops[b, i]), 0), len_k)
        if first >= last:
            continue
        with np.errstate(invalid="ignore"):
            scores = k[b, h, first:last] @ q[b, h, i]
        if np.isnan(scores).any():
            result[b, h, i] = -2
        elif scores.max() > -math.inf:
            result[b, h, i] = first + scores.argmax()
    return torch.from_numpy(result)


def check(query: Tensor, key: Tensor, starts: Tensor | None = None, stops: Tensor | None = None) -> None:
    ops.reset_calls()
    found = ops.argmax_scores(query, key, starts, stops)
    assert ops.calls()["argmax_scores"] == 1
    assert found.dtype == torch.int64
    assert torch.equal(found, by_definition(query, key, starts, stops))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "heads_q", "heads_kv", "len_q", "len_k", "width"),
    [(1, 1, 1, 1, 1, 1), (2, 3, 3, 5, 7, 11), (3, 10, 2, 29, 53, 13), (1, 7, 1, 19, 131, 3), (2, 1, 1, 61, 37, 67)],
)
def test_the_best_key_by_definition(
    batch: int, heads_q: int, heads_kv: int, len_q: int, len_k: int, width: int, dtype: torch.dtype
) -> None:
    query = integers(batch, heads_q, len_q, width).to(dtype)
    key = integers(batch, heads_kv, len_k, width, seed=2).to(dtype)
    check(query, key)
    random = torch.Generator().manual_seed(len_k)
    starts = torch.randint(-2, len_k + 2, (batch, len_q), generator=random) // 2
    stops = torch.randint(-2, len_k + 3, (batch, len_q), generator=random)
    check(query, key, starts, stops)
    check(query, key, starts=starts)
    check(query, key, stops=stops)


def test_causal_and_windows() -> None:
    query, key = integers(2, 3, 127, 5), integers(2, 3, 127, 5, seed=2)
    positions = torch.arange(127).expand(2, 127)
    check(query, key, stops=positions + 1)
    check(query, key, starts=positions - 31, stops=positions + 1)
    check(query, key, starts=positions - 3, stops=positions + 8)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_keys_out_of_range_cannot_matter(poison: float) -> None:
    query, key = normal(1, 2, 43, 7), normal(1, 2, 101, 7, seed=2)
    positions = torch.arange(43)[None]
    clean = ops.argmax_scores(query, key, positions // 4 + 11, 83 - positions // 7)
    poisoned = key.clone()
    poisoned[:, :, :11] = poison
    poisoned[:, :, 83:] = poison
    assert torch.equal(ops.argmax_scores(query, poisoned, positions // 4 + 11, 83 - positions // 7), clean)


def test_future_keys_cannot_matter() -> None:
    query, key = normal(1, 1, 71, 5), normal(1, 1, 71, 5, seed=2)
    stops = torch.arange(1, 72)[None]
    clean = ops.argmax_scores(query, key, stops=stops)
    for bad in (0, 1, 31, 32, 70):
        poisoned = key.clone()
        poisoned[:, :, bad] = math.nan
        found = ops.argmax_scores(query, poisoned, stops=stops)
        assert torch.equal(found[..., :bad], clean[..., :bad])
        assert (found[..., bad:] == -2).all()


def test_a_nan_query_affects_that_query_only() -> None:
    query, key = normal(1, 1, 71, 5), normal(1, 1, 131, 5, seed=2)
    clean = ops.argmax_scores(query, key)
    query[0, 0, 37, 2] = math.nan
    found = ops.argmax_scores(query, key)
    assert found[0, 0, 37] == -2
    assert torch.equal(found[..., :37], clean[..., :37])
    assert torch.equal(found[..., 38:], clean[..., 38:])


def test_infinite_scores() -> None:
    query, key = torch.ones(1, 1, 17, 1), normal(1, 1, 67, 1)
    key[0, 0, 41] = key[0, 0, 53] = math.inf
    check(query, key)
    check(query, key.fill_(-math.inf))
    check(query.zero_(), key)


def test_empty_ranges() -> None:
    query, key = normal(1, 2, 13, 5), normal(1, 2, 31, 5)
    for start, stop in ((5, 5), (7, 3), (-9, 0), (40, 50)):
        starts, stops = torch.full((1, 13), start), torch.full((1, 13), stop)
        assert (ops.argmax_scores(query, key, starts, stops) == -1).all()
    assert (ops.argmax_scores(query, key[:, :, :0]) == -1).all()


@pytest.mark.parametrize("shape", [(0, 2, 3, 5), (2, 0, 3, 5), (2, 2, 0, 5)])
def test_no_queries(shape: tuple[int, int, int, int]) -> None:
    key = torch.zeros(shape[0], 1 if shape[1] else 0, 7, 5)
    assert ops.argmax_scores(torch.zeros(shape), key).shape == shape[:3]


def test_width_zero_is_a_tie_of_all_keys() -> None:
    starts = torch.tensor([[2, 0, 6]])
    assert ops.argmax_scores(torch.zeros(1, 1, 3, 0), torch.zeros(1, 1, 7, 0), starts).tolist() == [[[2, 0, 6]]]


def test_equal_keys_tie_exactly() -> None:
    key = normal(1, 1, 37, 61).repeat(1, 1, 9, 1)
    found = ops.argmax_scores(normal(1, 2, 89, 61, seed=2), key)
    assert (found < 37).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_layout_does_not_matter(dtype: torch.dtype) -> None:
    query, key = normal(2, 3, 43, 17).to(dtype), normal(2, 3, 101, 17, seed=2).to(dtype)
    expected = ops.argmax_scores(query, key)

    turned = query.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)
    every_other = torch.full((2, 3, 202, 34), math.nan, dtype=dtype)[:, :, ::2, 1::2].copy_(key)
    misaligned = torch.full((key.numel() + 1,), math.nan, dtype=dtype)[1:].view_as(key).copy_(key)
    buffer = bytearray(key.numel() * key.element_size() + 1)
    unaligned = torch.frombuffer(buffer, dtype=dtype, offset=1).view_as(key).copy_(key)
    assert unaligned.data_ptr() % 2 == 1
    for other in (every_other, misaligned, unaligned):
        assert torch.equal(ops.argmax_scores(turned, other), expected)

    shared = key[:1, :1].expand(2, 3, -1, -1)
    assert torch.equal(ops.argmax_scores(query, shared), ops.argmax_scores(query, shared.contiguous()))
    strided = torch.zeros(43, 2, dtype=torch.int64).t()
    assert torch.equal(ops.argmax_scores(query, key, starts=strided), expected)


def test_a_view_with_the_negative_bit() -> None:
    query, key = normal(1, 1, 13, 5), normal(1, 1, 37, 5, seed=2)
    negated = torch.complex(torch.zeros_like(key), -key).conj().imag
    assert negated.is_neg()
    assert torch.equal(ops.argmax_scores(query, negated), ops.argmax_scores(query, key))


def test_the_rest_of_the_batch_and_threads_do_not_matter() -> None:
    query, key = normal(3, 4, 131, 19), normal(3, 2, 211, 19, seed=2)
    expected = ops.argmax_scores(query, key)
    for b in range(3):
        assert torch.equal(ops.argmax_scores(query[b : b + 1], key[b : b + 1]), expected[b : b + 1])
    assert torch.equal(ops.argmax_scores(query[:, :, 7:8], key), expected[:, :, 7:8])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            assert torch.equal(ops.argmax_scores(query, key), expected)
    finally:
        torch.set_num_threads(threads)


def test_subnormals_count_even_if_torch_flushes_them() -> None:
    query = torch.tensor([[[[1.0]]]])
    key = torch.tensor([[[[1e-42], [2e-42], [0.0]]]])
    assert torch.set_flush_denormal(True)
    try:
        assert ops.argmax_scores(query, key).item() == 1
    finally:
        torch.set_flush_denormal(False)


def test_queries_may_require_gradients() -> None:
    query = normal(1, 1, 5, 7).requires_grad_()
    assert not ops.argmax_scores(query, query).requires_grad


def test_memory_does_not_grow_with_queries_times_keys() -> None:
    query, key = torch.zeros(1, 1, 40_000, 1), torch.zeros(1, 1, 40_000, 1)
    ops.argmax_scores(query[:, :, :7], key[:, :, :7])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ops.argmax_scores(query, key)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 * 1024, f"{grown} KB; the scores alone would be 6 GB"


@pytest.mark.parametrize("len_k", [2**55, 2**61])
def test_more_keys_than_memory_is_a_memory_error(len_k: int) -> None:
    with pytest.raises(MemoryError):
        ops.argmax_scores(torch.ones(1, 1, 1009, 1), torch.ones(1, 1, 1, 1).expand(1, 1, len_k, 1))


def test_wrong_shapes_dtypes_and_devices_are_refused() -> None:
    query, key = torch.zeros(2, 6, 5, 7), torch.zeros(2, 3, 11, 7)
    starts = torch.zeros(2, 5, dtype=torch.int64)
    for bad in (key[0], key[:1], key[..., :5], torch.zeros(2, 4, 11, 7), key[:, :0]):
        with pytest.raises(ShapeError, match="key"):
            ops.argmax_scores(query, bad)
    with pytest.raises(ShapeError, match="starts"):
        ops.argmax_scores(query, key, starts[:, :3])
    with pytest.raises(DtypeError, match="stops"):
        ops.argmax_scores(query, key, starts, starts.int())
    with pytest.raises(DtypeError, match="query"):
        ops.argmax_scores(query.double(), key.double())
    with pytest.raises(DtypeError, match="key"):
        ops.argmax_scores(query, key.half())
    with pytest.raises(DtypeError, match="key"):
        ops.argmax_scores(query, key.to("meta"))


def test_versions_of_torch_that_are_not_tested_are_named() -> None:
    kernels.warn_untested_torch("2.13.1+cpu")
    with pytest.warns(RuntimeWarning, match=r"tested with torch 2\.13; this is torch 2\.15\.0"):
        kernels.warn_untested_torch("2.15.0")
