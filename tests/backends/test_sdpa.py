"""`sdpa`: it runs where it should, agrees with the reference, and never gives non-finite numbers to torch's kernel."""

import pytest
import torch

import qkv
from qkv.backends.base import RUNS

NONFINITE = [float("nan"), float("inf"), float("-inf")]


def inputs(dtype=torch.float64, width_v=11):
    torch.manual_seed(1)
    shapes = ((2, 6, 37, 11), (2, 3, 53, 11), (2, 3, 53, width_v))
    return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]


def leaves(dtype=torch.float64, width_v=11):
    return [tensor.requires_grad_() for tensor in inputs(dtype, width_v)]


MASKS = {
    "none": None,
    "causal": qkv.Causal(0),
    "causal with earlier keys": qkv.Causal(16),
    "causal with fully masked rows": qkv.Causal(-5),
    "padding": qkv.Padding(lengths=[50, 0]),
    "causal and padding": qkv.Causal(16) & qkv.Padding(lengths=[50, 20]),
    "window": qkv.Window(3, 2, offset=8),
    "every third key dropped": qkv.Padding(keep=torch.arange(53).expand(2, 53) % 3 != 0) & qkv.Causal(16),
    "segments": qkv.Segments(torch.arange(37) // 10, torch.arange(53) // 15) & qkv.Causal(4),
    "heads differ": qkv.Dense(torch.arange(6 * 37 * 53).reshape(6, 37, 53) % 5 != 0),
}


def reference_and_sdpa(tensors, **options):
    return [qkv.attention(*tensors, return_lse=True, backend=backend, **options) for backend in ("reference", "sdpa")]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("sink", [None, 0.4], ids=["", "sink"])
@pytest.mark.parametrize("width_v", [5, 11, 17])
def test_agrees_with_the_reference_forward_and_backward(name: str, with_bias: bool, sink, width_v: int) -> None:
    tensors = leaves(width_v=width_v)
    bias = torch.randn(6, 37, 53, dtype=torch.float64).masked_fill(torch.rand(6, 37, 53) < 0.2, float("-inf"))
    options = {"mask": MASKS[name], "similarity": qkv.Softmax(sink=sink), "bias": bias if with_bias else None}
    RUNS.clear()
    (expected, expected_lse), (out, lse) = reference_and_sdpa(tensors, **options)
    assert dict(RUNS) == {"sdpa": 1}
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
    grad = torch.randn_like(expected)
    expected_grads = torch.autograd.grad(expected, tensors, grad)
    for one, other in zip(torch.autograd.grad(out, tensors, grad), expected_grads, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(qkv.attention(*tensors, backend="sdpa", **options), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_accepts_a_float32_bias(dtype: torch.dtype) -> None:
    tensors = leaves(dtype)
    for bias in (torch.randn(37, 53), torch.randn(37, 53).to(dtype)):
        (expected, _), (out, _) = reference_and_sdpa(tensors, bias=bias, mask=qkv.Causal(16))
        torch.testing.assert_close(out, expected, rtol=0, atol=2 * torch.finfo(dtype).eps * 4)


def test_scores_that_overflow_are_computed_blockwise() -> None:
    query, key, value = leaves(torch.float32)
    with torch.no_grad():
        query[0, 0, 3] = key[0, 0, 5] = 3e19
    RUNS.clear()
    (expected, _), (out, _) = reference_and_sdpa((query, key, value))
    assert dict(RUNS) == {"sdpa.overflow": 1, "blockwise": 1}
    assert expected[0, 0, 3].isnan().all()
    torch.testing.assert_close(out, expected, equal_nan=True)


@pytest.mark.parametrize("len_q", [1, 3, 70])
def test_heads_of_a_group_become_rows_for_few_queries(len_q: int) -> None:
    query, key, value = inputs()
    query = query[:, :, :1].expand(2, 6, len_q, 11) + torch.arange(len_q).reshape(len_q, 1)
    (expected, expected_lse), (out, lse) = reference_and_sdpa((query, key, value))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)


def test_the_output_is_writable_and_inputs_do_not_change() -> None:
    tensors = inputs()
    copies = [t.clone() for t in tensors]
    out = qkv.attention(*tensors, mask=qkv.Causal(16), backend="sdpa")
    out.zero_()
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("bad", NONFINITE)
@pytest.mark.parametrize("which", ["query", "key", "value"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_attended_nonfinite_numbers_agree_with_the_reference(bad: float, which: str, with_bias: bool) -> None:
    tensors = inputs(width_v=7)
    tensors[["query", "key", "value"].index(which)][1, 2, 30, 5] = bad
    tensors = [t.requires_grad_() for t in tensors]
    bias = torch.randn(37, 53, dtype=torch.float64) if with_bias else None
    RUNS.clear()
    answers = reference_and_sdpa(tensors, mask=qkv.Causal(16), bias=bias)
    assert dict(RUNS) == {"sdpa.nonfinite": 1}
    for expected, found in zip(*answers, strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)
    grad = torch.randn_like(answers[0][0])
    expected, found = (torch.autograd.grad(answer[0], tensors, grad) for answer in answers)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [qkv.Padding(lengths=[20, 53]), qkv.Causal(-9) & qkv.Window(left=5), qkv.Causal(3)])
@pytest.mark.parametrize("bad", NONFINITE)
def test_masked_nonfinite_numbers_change_no_bit(dtype: torch.dtype, mask, bad: float) -> None:
    query, key, value = inputs(dtype, width_v=7)
    extent = qkv.masks.Extent(2, 6, 37, 53)
    keep = mask.resolved(extent).tile(extent, (0, 37), (0, 53)).expand(2, 6, 37, 53)
    clean = qkv.attention(query, key, value, mask=mask, backend="sdpa")
    masked = ~keep.any((1, 2))
    assert masked.any()
    for tensor in (key, value):
        tensor.masked_fill_(masked[:, None, :, None], bad)
    query.masked_fill_(~keep.any((1, 3))[:, None, :, None], bad)
    assert torch.equal(qkv.attention(query, key, value, mask=mask, backend="sdpa"), clean)


def test_rows_before_nonfinite_keys_keep_their_bits() -> None:
    query, key, value = inputs(torch.float32, width_v=7)
    mask = qkv.Causal(16)
    clean = qkv.attention(query, key, value, mask=mask, backend="sdpa")
    key[:, :, 40:], value[:, :, 45:] = float("nan"), float("inf")
    out = qkv.attention(query, key, value, mask=mask, backend="sdpa")
    assert torch.equal(out[:, :, :24], clean[:, :, :24])
    assert out[:, :, 24:].isnan().all()


def gradients_with_bias(tensors: list[torch.Tensor], bias: torch.Tensor, grad: torch.Tensor, backend: str):
    leaves = [tensor.clone().requires_grad_() for tensor in (*tensors, bias)]
    out = qkv.attention(*leaves[:3], bias=leaves[3], backend=backend)
    return torch.autograd.grad(out, leaves, grad.to(out.dtype))


@pytest.mark.parametrize("size", [10.0, 40.0])
def test_gradients_of_a_learned_bias_keep_their_digits_at_large_scores(size: float) -> None:
    torch.manual_seed(1)  # a width whose scale, 1/√24, rounds
    tensors = [torch.randn(1, 2, 200, 24) * scale for scale in (size, size, 1.0)]
    bias, grad = torch.randn(1, 2, 200, 200), torch.randn(1, 2, 200, 24)
    exact = gradients_with_bias([t.double() for t in tensors], bias.double(), grad.double(), "reference")
    equation = gradients_with_bias(tensors, bias, grad, "reference")
    for found, literal, true in zip(gradients_with_bias(tensors, bias, grad, "sdpa"), equation, exact, strict=True):
        # Large scores round, in the equation as well; the gradient may lose no more than that.
        error, unavoidable = ((x - true).abs().max() / true.abs().max() for x in (found, literal))
        assert error <= 2 * unavoidable + 1e-6


def test_gradients_of_a_learned_bias_are_0_where_one_key_has_all_the_weight() -> None:
    torch.manual_seed(1)
    tensors = [(torch.randn(1, 2, 200, 24) * 1000).half() for _ in range(3)]
    grad = torch.randn(1, 2, 200, 24)
    bias = torch.randn(1, 2, 200, 200).half()
    by_query, by_key, _, by_bias = gradients_with_bias(tensors, bias, grad, "sdpa")
    for found in (by_query, by_key, by_bias):
        assert not found.any()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("mask", [None, qkv.Causal()], ids=["all", "causal"])
def test_values_near_the_largest_number_do_not_overflow(mask: qkv.Causal | None, grad: bool) -> None:
    query, value = torch.zeros(1, 1, 300, 2), torch.full((1, 1, 300, 2), 3.3e38)
    out = qkv.attention(query, query, value.requires_grad_(grad), mask=mask, backend="sdpa")
    torch.testing.assert_close(out, value, rtol=1e-5, atol=0.0)


def test_values_that_overflow_in_later_rows_change_no_bit_of_the_others() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 90, 8) for _ in range(3))
    for backend, similarity in (("sdpa", qkv.Softmax()), ("linear", qkv.FeatureMap(qkv.features.elu1))):
        options = {"mask": qkv.Causal(), "backend": backend, "similarity": similarity}
        clean, large = qkv.attention(query, key, value, **options), value.clone()
        large[:, :, 50:] = 3.3e38
        out = qkv.attention(query, key, large, **options)
        assert torch.equal(out[:, :, :50], clean[:, :, :50])
        torch.testing.assert_close(out, qkv.attention(query, key, large, **{**options, "backend": "reference"}))
        leaves = [tensor.clone().requires_grad_() for tensor in (query, key, large)]
        learned = qkv.attention(*leaves, **options)
        assert torch.equal(learned[:, :, :50], clean[:, :, :50])
        expected = qkv.attention(*leaves, **{**options, "backend": "reference"})
        grads = [torch.autograd.grad(x[:, :, :50, 0].sum(), leaves) for x in (learned, expected)]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
