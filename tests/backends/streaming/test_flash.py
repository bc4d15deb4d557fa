"""The flash kernel in pieces: it runs where it should, agrees with dense, and bad numbers never reach it."""

import pytest
import torch

import qkv
from qkv.backends.base import RUNS


def inputs(dtype=torch.float64, width_v=11):
    torch.manual_seed(1)
    shapes = ((2, 6, 37, 11), (2, 3, 53, 11), (2, 3, 53, width_v))
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


MASKS = {
    "none": None,
    "causal": qkv.Causal(0),
    "causal with a past": qkv.Causal(16),
    "causal, rows that see nothing": qkv.Causal(-5),
    "padding": qkv.Padding(lengths=[50, 0]),
    "causal and padding": qkv.Causal(16) & qkv.Padding(lengths=[50, 20]),
    "window": qkv.Window(3, 2, offset=8),
    "holes": qkv.Padding(keep=torch.arange(53).expand(2, 53) % 3 != 0) & qkv.Causal(16),
    "documents": qkv.Segments(torch.arange(37) // 10, torch.arange(53) // 15) & qkv.Causal(4),
    "heads differ": qkv.Dense(torch.arange(6 * 37 * 53).reshape(6, 37, 53) % 5 != 0),
}


def both(options, tensors, lse=True):
    return [qkv.attention(*tensors, return_lse=lse, backend=backend, **options) for backend in ("reference", "sdpa")]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("sink", [None, 0.4], ids=["", "sink"])
@pytest.mark.parametrize("width_v", [5, 11, 17])
def test_agrees_with_dense_forward_and_backward(name: str, with_bias: bool, sink, width_v: int) -> None:
    tensors = inputs(width_v=width_v)
    bias = torch.randn(6, 37, 53, dtype=torch.float64).masked_fill(torch.rand(6, 37, 53) < 0.2, float("-inf"))
    options = {"mask": MASKS[name], "similarity": qkv.Softmax(sink=sink), "bias": bias if with_bias else None}
    RUNS.clear()
    (dense, dense_lse), (streamed, streamed_lse) = both(options, tensors)
    assert dict(RUNS) == {"sdpa": 1}
    torch.testing.assert_close(streamed, dense)
    torch.testing.assert_close(streamed_lse, dense_lse)
    grad = torch.randn_like(dense)
    expected = torch.autograd.grad(dense, tensors, grad)
    found = torch.autograd.grad(streamed, tensors, grad)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(qkv.attention(*tensors, backend="sdpa", **options), dense)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_bias_may_be_float32(dtype: torch.dtype) -> None:
    tensors = inputs(dtype)
    for bias in (torch.randn(37, 53), torch.randn(37, 53).to(dtype)):
        (dense, _), (streamed, _) = both({"bias": bias, "mask": qkv.Causal(16)}, tensors)
        torch.testing.assert_close(streamed, dense, rtol=0, atol=2 * torch.finfo(dtype).eps * 4)


def test_scores_that_overflow_take_the_blocks_too() -> None:
    query, key, value = inputs(torch.float32)
    with torch.no_grad():
        query[0, 0, 3] = key[0, 0, 5] = 3e19
    RUNS.clear()
    (dense, _), (streamed, _) = both({}, (query, key, value))
    assert dict(RUNS) == {"blockwise": 1}
    assert dense[0, 0, 3].isnan().all()
    torch.testing.assert_close(streamed, dense, equal_nan=True)


@pytest.mark.parametrize("len_q", [1, 3, 70])
def test_groups_become_rows_for_few_queries(len_q: int) -> None:
    query, key, value = (t.detach() for t in inputs())
    query = query[:, :, :1].expand(2, 6, len_q, 11) + torch.arange(len_q).reshape(len_q, 1)
    (dense, dense_lse), (streamed, streamed_lse) = both({}, (query, key, value))
    torch.testing.assert_close(streamed, dense)
    torch.testing.assert_close(streamed_lse, dense_lse)


def test_the_output_may_be_written_to_and_inputs_are_left_alone() -> None:
    tensors = [t.detach() for t in inputs()]
    copies = [t.clone() for t in tensors]
    out = qkv.attention(*tensors, mask=qkv.Causal(16), backend="sdpa")
    out.zero_()
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
