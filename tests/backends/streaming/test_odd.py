"""NaN and infinity: hidden ones change no bit, attended ones are seen, and neither reaches the kernel."""

import pytest
import torch

import qkv
from qkv.backends.base import RUNS

BAD = [float("nan"), float("inf"), float("-inf")]


def inputs(dtype=torch.float32):
    torch.manual_seed(1)
    shapes = ((2, 6, 37, 11), (2, 3, 53, 11), (2, 3, 53, 7))
    return [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("which", ["query", "key", "value"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_attended_numbers_agree_with_dense(bad: float, which: str, with_bias: bool) -> None:
    tensors = [t.double() for t in inputs()]
    tensors[["query", "key", "value"].index(which)][1, 2, 30, 5] = bad
    tensors = [t.requires_grad_() for t in tensors]
    bias = torch.randn(37, 53, dtype=torch.float64) if with_bias else None
    RUNS.clear()
    answers = [
        qkv.attention(*tensors, mask=qkv.Causal(16), bias=bias, return_lse=True, backend=backend)
        for backend in ("reference", "sdpa")
    ]
    assert dict(RUNS) == {"sdpa.nonfinite": 1}
    for dense, streamed in zip(*answers, strict=True):
        torch.testing.assert_close(streamed, dense, equal_nan=True)
    grad = torch.randn_like(answers[0][0])
    dense, streamed = (torch.autograd.grad(answer[0], tensors, grad) for answer in answers)
    for one, other in zip(streamed, dense, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [qkv.Padding(lengths=[20, 53]), qkv.Causal(-9) & qkv.Window(left=5), qkv.Causal(3)])
@pytest.mark.parametrize("bad", BAD)
def test_hidden_numbers_change_no_bit(dtype: torch.dtype, mask, bad: float) -> None:
    query, key, value = inputs(dtype)
    extent = qkv.masks.Extent(2, 6, 37, 53)
    keep = mask.resolved(extent).tile(extent, (0, 37), (0, 53)).expand(2, 6, 37, 53)
    clean = qkv.attention(query, key, value, mask=mask, backend="sdpa")
    hidden = ~keep.any((1, 2))
    assert hidden.any()
    for tensor in (key, value):
        tensor.masked_fill_(hidden[:, None, :, None], bad)
    query.masked_fill_(~keep.any((1, 3))[:, None, :, None], bad)
    assert torch.equal(qkv.attention(query, key, value, mask=mask, backend="sdpa"), clean)


def test_the_past_of_a_spoilt_future_keeps_its_bits() -> None:
    query, key, value = inputs()
    mask = qkv.Causal(16)
    clean = qkv.attention(query, key, value, mask=mask, backend="sdpa")
    key[:, :, 40:], value[:, :, 45:] = float("nan"), float("inf")
    out = qkv.attention(query, key, value, mask=mask, backend="sdpa")
    assert torch.equal(out[:, :, :24], clean[:, :, :24])
    assert out[:, :, 24:].isnan().all()
