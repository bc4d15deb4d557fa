"""Rows 5 to 10 of the table of bad inputs: attended NaN and infinities, and numbers that overflow."""

from math import inf, nan

import pytest
import torch

import qkv
from qkv import errors
from tests.helpers.faults_reference import (
    DTYPES,
    assert_speaks,
    by_argmax,
    by_dtype,
    by_softmax,
    by_way,
    close,
    gradients,
    leaves,
    make_mask,
    numbers,
    problem,
    reference,
)


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("name", [None, "dense", "causal", "lengths"])
def test_row_05_nan_in_one_query_stays_in_its_row(way, name):
    for dtype in DTYPES:
        mask, keep = (None, torch.ones(2, 6, 5, 7).bool()) if name is None else make_mask(name)
        q, k, v = way.problem(dtype)
        q[0, 3, 4, 2] = nan
        assert bool(keep[0, 3, 4].any())
        out, lse = way.attend(q, k, v, mask=mask)
        want = way.reference(q, k, v, keep=keep)
        assert bool(want.out[0, 3, 4].isnan().all())
        assert int(want.out.isnan().any(-1).sum()) == 1
        close(out, want.out, dtype)
        if lse is not None:
            close(lse, want.lse, dtype)


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("name", ["dense", "causal", "drop", "segments", "or"])
def test_row_06_nan_key_reaches_exactly_the_rows_that_attend_it(way, name):
    for dtype in DTYPES:
        mask, keep = make_mask(name)
        q, k, v = way.problem(dtype)
        k[:, :, 3, 5] = nan
        out, lse = way.attend(q, k, v, mask=mask)
        assert torch.equal(out.isnan().any(-1), keep[..., 3])
        want = way.reference(q, k, v, keep=keep)
        close(out, want.out, dtype)
        if lse is not None:
            close(lse, want.lse, dtype)


@by_way
def test_row_06_nan_key_late_in_a_long_memory(way):
    q, k, v = way.problem(torch.float32, batch=1, heads_q=2, heads_kv=1, len_q=37, len_k=641)
    k[0, 0, 620, 1] = nan
    out, _ = way.attend(q, k, v, mask=qkv.Causal(offset=600))
    assert torch.equal(out.isnan().all(-1), (torch.arange(37) >= 20).expand(1, 2, 37))
    assert torch.equal(out.isnan().any(-1), (torch.arange(37) >= 20).expand(1, 2, 37))


@pytest.mark.slow
@by_dtype
@by_way
@pytest.mark.parametrize("bad", [nan, inf])
def test_row_06_bad_value_shows_in_its_column_of_the_rows_that_use_it(way, dtype, bad):
    """Argmax uses only the best key's value; the others use the values of all that they attend."""
    mask, keep = make_mask("causal")
    q, k, v = way.problem(dtype)
    v[:, :, 3, 5] = bad
    out, _ = way.attend(q, k, v, mask=mask)
    want = way.reference(q, k, v, keep=keep)
    assert not want.out[..., 5].isfinite().all()
    close(out, want.out, dtype)


@by_dtype
@by_softmax
def test_row_07_infinite_logits_by_keys(way, dtype):
    """+inf: the row is NaN; -inf: weight exactly 0. The sign of the query's first number decides."""
    mask, keep = make_mask("dense")
    q, k, v = way.problem(dtype)
    q[..., 0] = torch.where(q[..., 0] < 0, -1.0, 1.0).to(dtype)
    k[:, :, 3, 0] = inf
    out, lse = way.attend(q, k, v, mask=mask)
    hit = keep[..., 3] & (q[..., 0] > 0)
    assert torch.equal(out.isnan().all(-1), hit)
    assert torch.equal(out.isnan().any(-1), hit)
    assert torch.equal(lse.isnan(), hit)
    without = keep.clone()
    without[..., 3] &= q[..., 0] > 0
    want = reference(q, k, v, keep=without)
    close(out, want.out, dtype)
    close(lse, want.lse, dtype)


@by_dtype
@by_softmax
def test_row_07_infinite_logit_by_bias(way, dtype):
    bias = numbers((5, 7), dtype, seed=8)
    bias[2, 4], bias[3, 1] = inf, -inf
    q, k, v = way.problem(dtype)
    out, lse = way.attend(q, k, v, bias=bias)
    hit = (torch.arange(5) == 2).expand(2, 6, 5)
    assert torch.equal(out.isnan().all(-1), hit)
    assert torch.equal(lse.isnan(), hit)
    close(out, reference(q, k, v, bias=bias).out, dtype)


@by_dtype
@by_softmax
def test_row_07_all_logits_minus_infinity_is_an_empty_row(way, dtype):
    q, k, v = way.problem(dtype)
    q[..., 0] = 1.0
    k[0, :, :, 0] = -inf
    out, lse = way.attend(q, k, v)
    assert not out[0].any()
    assert bool((lse[0] == -inf).all())
    close(out[1:], reference(q[1:], k[1:], v[1:]).out, dtype)


@by_way
def test_row_08_products_beyond_float16(way):
    """Multiples of 200: scores are multiples of 40000, exact in float32 and beyond float16."""
    q, k, v = problem(torch.float16, whole=True)
    q, k = 200 * q, 200 * k
    scores = q.double() @ k.double().repeat_interleave(2, dim=1).mT
    assert bool((scores.abs() * 11**-0.5 > 65504).any())
    inputs = leaves(q, k, v)
    out, lse = way.attend(*inputs)
    want = way.reference(q, k, v)
    close(out, want.out, torch.float16)
    if lse is not None:
        assert bool((lse > 65504).any())
        close(lse, want.lse, torch.float16)
        assert all(gradient.isfinite().all() for gradient in gradients(out, inputs))


@by_way
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=("bfloat16", "float32"))
@pytest.mark.parametrize("length", [7, 67])
@pytest.mark.parametrize("causal", [False, True], ids=("full", "causal"))
def test_row_09_large_numbers_everywhere(way, dtype, length, causal):
    q, k, v = way.problem(dtype, len_q=length, len_k=length)
    q, k, v = (torch.full_like(tensor, 133120.0) for tensor in (q, k, v))
    assert float(q[0, 0, 0, 0]) == 133120.0
    out, lse = way.attend(q, k, v, mask=qkv.Causal() if causal else None)
    close(out, torch.full(out.shape, 133120.0), dtype)
    assert lse is None or bool(lse.isfinite().all())


@by_dtype
@by_softmax
@pytest.mark.parametrize("cap", [30.0, 5.0])
def test_row_10_softcap_bounds_huge_scores(way, dtype, cap):
    q, k, v = way.problem(dtype)
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0] = 1000.0
    k[..., 0] = torch.tensor([1000.0, -1000.0, 1000.0, -1000.0, -1000.0, 0.0, 1000.0])
    similarity = qkv.Softmax(scale=1.0, softcap=cap)
    inputs = leaves(q, k, v)
    try:
        out, lse = way.attend(*inputs, similarity=similarity)
    except errors.BackendRefused as refusal:
        # The one backend that stands on torch's flash kernel, which has no place for a tanh, may say so.
        assert way.backend == "sdpa"
        assert_speaks(refusal, errors.BackendRefused, "softcap", "sdpa")
        return
    want = reference(q, k, v, scale=1.0, softcap=cap)
    close(out, want.out, dtype)
    close(lse, want.lse, dtype)
    assert all(gradient.isfinite().all() for gradient in gradients(out, inputs))


@by_argmax
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=("float64", "float32"))
def test_row_06_argmax_does_not_hide_a_nan_among_better_scores(way, dtype):
    q, k, v = way.problem(dtype, len_k=257)
    for position in (0, 128, 256):
        bad = k.clone()
        bad[1, 2, position, 0] = nan
        out, _ = way.attend(q, bad, v)
        want = torch.zeros(2, 6, dtype=torch.bool)
        want[1, 4:] = True
        assert torch.equal(out.isnan().all(-1).all(-1), want)
        assert torch.equal(out.isnan().any(-1).any(-1), want)
