"""NaN and infinity are found wherever they are."""

import math

import pytest
import torch
from torch import Tensor

from qkv import ops

NATIVE = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
BAD = [math.nan, math.inf, -math.inf]


def native_calls(*tensors: Tensor) -> tuple[bool, int]:
    ops.reset_calls()
    return ops.all_finite(*tensors), ops.calls()["all_finite"]


@pytest.mark.parametrize("dtype", NATIVE)
@pytest.mark.parametrize("bad", BAD)
def test_one_bad_element_anywhere(dtype: torch.dtype, bad: float) -> None:
    for count in (1, 2, 7, 31, 67, 131, 521):
        numbers = torch.full((count,), torch.finfo(dtype).max, dtype=dtype)
        numbers[::2] *= -1
        assert native_calls(numbers) == (True, 1)
        for at in {0, count // 3, count // 2, count - 1}:
            poisoned = numbers.clone()
            poisoned[at] = bad
            assert native_calls(poisoned) == (False, 1)


@pytest.mark.parametrize("dtype", NATIVE)
def test_large_tensors_go_through_all_threads(dtype: torch.dtype) -> None:
    numbers = torch.zeros(3_000_017, dtype=dtype)
    assert native_calls(numbers) == (True, 1)
    for at in (0, 1_500_007, 3_000_016):
        numbers[at] = math.nan
        assert native_calls(numbers) == (False, 1)
        numbers[at] = 0


@pytest.mark.parametrize("bad", BAD)
def test_views_are_looked_through_by_torch(bad: float) -> None:
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


def test_memory_that_starts_at_an_odd_byte() -> None:
    cache = bytearray(4 * 67 + 1)
    assert native_calls(torch.frombuffer(cache, dtype=torch.float32, offset=1)) == (True, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_finite_numbers_that_overflow_a_sum_are_finite(dtype: torch.dtype) -> None:
    huge = torch.full((7, 11), torch.finfo(dtype).max, dtype=dtype)
    assert native_calls(huge.t()) == (True, 0)


def test_empty_is_finite() -> None:
    assert ops.all_finite()
    assert ops.all_finite(torch.empty(0), torch.empty(3, 0, 5), torch.empty(0, 2).t())


def test_stops_at_the_first_tensor_that_is_not() -> None:
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
    ids=["integers", "booleans", "complex", "eight bits", "sparse", "mkldnn"],
)
def test_other_kinds_of_tensors_go_through_torch(tensor: Tensor) -> None:
    assert native_calls(tensor) == (True, 0)


def test_complex_infinity() -> None:
    assert not ops.all_finite(torch.tensor([1 + 1j, complex(0, math.inf)]))


def test_parameters_and_gradients_do_not_get_in_the_way() -> None:
    weights = torch.nn.Parameter(torch.ones(3, 5))
    assert native_calls(weights) == (True, 1)
    assert native_calls(weights.t()) == (True, 0)
    assert native_calls(weights * 2) == (True, 1)


def test_inside_torch_func_grad() -> None:
    def square(x: Tensor) -> Tensor:
        assert ops.all_finite(x)
        return (x * x).sum()

    assert torch.equal(torch.func.grad(square)(torch.ones(3)), torch.full((3,), 2.0))
