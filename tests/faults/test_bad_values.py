"""Rows 1 to 4 of the table of bad inputs: fully masked rows, and NaN or infinity at masked keys."""

from math import inf, log, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from tests.helpers.faults_reference import (
    DTYPES,
    MASKS,
    SIZES,
    Way,
    by_dtype,
    by_softmax,
    by_way,
    close,
    gradients,
    leaves,
    make_mask,
    never_attended,
    numbers,
    poisoned,
    reference,
)

halves = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=("bfloat16", "float16"))


def check(way, clean, given_inputs, keep, dtype, **options):
    """Result, log-sum-exp and every gradient are those of the clean numbers; nothing lost is ever felt."""
    bias = options.get("bias")
    inputs = leaves(*given_inputs)
    out, lse = way.attend(*inputs, **options)
    want, want_lse, want_grads = way.expected(clean, keep, bias)
    close(out, want, dtype)
    empty = ~keep.any(-1) if bias is None else ~(keep & (bias.expand(keep.shape) != -inf)).any(-1)
    assert not out[empty].any()
    if lse is not None:
        close(lse, want_lse, dtype)
        assert bool((lse[empty] == -inf).all())
    got_grads = gradients(out, inputs)
    for got, expected in zip(got_grads, want_grads, strict=True):
        close(got, expected, dtype, loose=5)
    lost = never_attended(keep, clean[1].shape[1])
    assert not got_grads[0][empty].any()
    assert not got_grads[1][lost].any()
    assert not got_grads[2][lost].any()


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("name", ["dense", "early", "lengths", "segments", "predicate"])
def test_row_01_empty_row_is_zero_and_disturbs_nothing(way, name):
    for dtype in DTYPES:
        mask, keep = make_mask(name)
        assert bool((~keep.any(-1)).any())
        clean = way.problem(dtype)
        check(way, clean, clean, keep, dtype, mask=mask)


@by_dtype
@by_way
def test_row_01_every_row_empty(way, dtype):
    keep = torch.zeros(2, 6, 5, 7, dtype=torch.bool)
    clean = way.problem(dtype)
    check(way, clean, clean, keep, dtype, mask=qkv.Dense(keep))


@by_dtype
@by_way
def test_row_01_empty_query_of_nan_disturbs_nothing(way, dtype):
    mask, keep = make_mask("dense")
    clean = way.problem(dtype)
    query = poisoned(clean[0], ~keep.any(-1))
    assert not query.isfinite().all()
    check(way, clean, (query, *clean[1:]), keep, dtype, mask=mask)


@by_dtype
@by_softmax
def test_row_01_empty_row_with_a_sink(way, dtype):
    mask, keep = make_mask("dense")
    q, k, v = way.problem(dtype)
    sink = numbers((SIZES["heads_q"],), dtype, seed=7)
    out, lse = way.attend(q, k, v, mask=mask, similarity=qkv.Softmax(sink=sink))
    want = reference(q, k, v, keep=keep, sink=sink)
    close(out, want.out, dtype)
    close(lse, want.lse, dtype)
    assert not out[~keep.any(-1)].any()


@by_dtype
@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("similarity", ["softmax", "argmax", "polynomial", "features"])
def test_row_01_weights_of_an_empty_row_are_zero(similarity, backend, dtype):
    way = Way(similarity, backend)
    mask, keep = make_mask("dense")
    q, k, v = way.problem(dtype)
    given_options = {"mask": mask, "similarity": way.similarity(), "backend": backend, "return_weights": True}
    out, weights = qkv.attention(q, k, v, **given_options)
    want = way.reference(q, k, v, keep=keep)
    assert weights.shape == keep.shape
    assert not weights[~keep].any()
    close(weights, want.weights, dtype)
    close(out, weights.double() @ v.double().repeat_interleave(2, dim=1), dtype)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(data=st.data())
@by_way
def test_row_01_any_boolean_mask(way, data):
    bits = data.draw(st.lists(st.booleans(), min_size=70, max_size=70))
    keep = torch.tensor(bits).view(2, 1, 5, 7).expand(2, 6, 5, 7)
    q, k, v = way.problem(torch.float64)
    out, lse = way.attend(q, k, v, mask=qkv.Dense(keep))
    want = way.reference(q, k, v, keep=keep)
    close(out, want.out, torch.float64)
    assert not out[~keep.any(-1)].any()
    if lse is not None:
        close(lse, want.lse, torch.float64)


@pytest.mark.slow
@by_dtype
@by_softmax
@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (6, 5, 7), (5, 7)], ids=str)
def test_row_02_bias_row_of_minus_infinity(way, dtype, shape):
    bias = numbers(shape, dtype, seed=8)
    bias[..., 2, :], bias[..., 4] = -inf, -inf
    keep = (bias != -inf).expand(2, 6, 5, 7)
    clean = way.problem(dtype)
    check(way, clean, clean, keep, dtype, bias=bias)


@halves
@by_softmax
def test_row_02_float32_bias_with_half_precision(way, dtype):
    bias = numbers((6, 5, 7), torch.float32, seed=8)
    bias[2, 1], bias[..., 4] = -inf, -inf
    clean = way.problem(dtype)
    check(way, clean, clean, (bias != -inf).expand(2, 6, 5, 7), dtype, bias=bias)


@by_dtype
@by_softmax
def test_row_03_finite_logits_of_minus_1e5_are_ordinary(way, dtype):
    q, k, v = way.problem(dtype)
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0], k[..., 0] = 100.0, -1000.0
    q[0, :, 1] = 0.0
    out, lse = way.attend(q, k, v, similarity=qkv.Softmax(scale=1.0))
    close(out, v.double().mean(2, keepdim=True).repeat_interleave(2, dim=1).expand(out.shape), dtype)
    want = torch.full(lse.shape, log(7) - 1e5)
    want[0, :, 1] = log(7)
    assert float((lse - want).abs().max()) < 0.02


@pytest.mark.slow
@by_dtype
@by_softmax
@pytest.mark.parametrize("low", [-1e5, "lowest"])
def test_row_03_finite_bias_is_no_mask(way, dtype, low):
    bias_dtype = torch.float32 if dtype == torch.float16 and low == -1e5 else dtype
    bias = torch.zeros(5, 7, dtype=bias_dtype)
    bias[1] = bias[3] = torch.finfo(bias_dtype).min if low == "lowest" else low
    q, k, v = way.problem(dtype)
    q[:, :, 3] = 0.0  # equal logits: the uniform average, whatever the rounding of the sum
    out, lse = way.attend(q, k, v, bias=bias)
    mean = v.double().mean(2).repeat_interleave(2, dim=1)
    close(out[:, :, 3], mean, dtype)
    close(out[:, :, ::2], reference(q, k, v).out[:, :, ::2], dtype)
    assert bool(lse.isfinite().all())
    ones, _ = way.attend(q, k, torch.ones_like(v), bias=bias)
    close(ones, torch.ones(ones.shape), dtype)


@pytest.mark.slow
@by_dtype
@by_way
@pytest.mark.parametrize("name", MASKS)
def test_row_04_poison_at_masked_keys_and_values(way, dtype, name):
    mask, keep = make_mask(name)
    q, k, v = clean = way.problem(dtype)
    lost = never_attended(keep, SIZES["heads_kv"])
    assert bool(lost.any())
    check(way, clean, (q, poisoned(k, lost), poisoned(v, lost)), keep, dtype, mask=mask)


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("poison", [nan, inf, -inf, 1e30])
@pytest.mark.parametrize("where", ["key", "value"])
def test_row_04_each_poison_in_each_place(way, poison, where):
    mask, keep = make_mask("causal")
    q, k, v = clean = way.problem(torch.float32)
    k, v = k.clone(), v.clone()
    {"key": k, "value": v}[where][never_attended(keep, SIZES["heads_kv"])] = poison
    check(way, clean, (q, k, v), keep, torch.float32, mask=mask)


@by_dtype
@by_softmax
def test_row_04_poison_where_the_bias_is_minus_infinity(way, dtype):
    bias = numbers((5, 7), dtype, seed=8)
    bias[:, 3], bias[2] = -inf, -inf
    keep = (bias != -inf).expand(2, 6, 5, 7)
    q, k, v = clean = way.problem(dtype)
    lost = never_attended(keep, SIZES["heads_kv"])
    check(way, clean, (q, poisoned(k, lost), poisoned(v, lost)), keep, dtype, bias=bias)


@by_dtype
@by_softmax
def test_row_04_poison_in_the_bias_at_masked_places(way, dtype):
    mask, keep = make_mask("dense")
    clean = way.problem(dtype)
    bias = numbers((2, 6, 5, 7), dtype, seed=8)
    bad = bias.clone()
    bad[~keep] = torch.tensor([nan, inf], dtype=dtype).repeat(int((~keep).sum()))[: int((~keep).sum())]
    exact, inputs = leaves(*(tensor.double() for tensor in clean), bias.double()), leaves(*clean, bad)
    out, lse = way.attend(*inputs[:3], bias=inputs[3], mask=mask)
    want = reference(*exact[:3], bias=exact[3], keep=keep)
    close(out, want.out, dtype)
    close(lse, want.lse, dtype)
    for got, expected in zip(gradients(out, inputs), gradients(want.out, exact), strict=True):
        close(got, expected, dtype, loose=5)


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("name", ["causal", "lengths"])
def test_row_04_poison_over_a_long_memory(way, name):
    """Long enough for several blocks: the future is poisoned for most rows, and no row may feel it."""
    q, k, v = clean = way.problem(torch.float32, batch=1, heads_q=2, heads_kv=1, len_q=37, len_k=641)
    i, j = torch.arange(37)[:, None], torch.arange(641)
    keep = (j <= i + 300) if name == "causal" else (j < 337).expand(37, 641)
    mask = qkv.Causal(offset=300) if name == "causal" else qkv.Padding(lengths=torch.tensor([337]))
    keep = keep.expand(1, 2, 37, 641)
    lost = never_attended(keep, 1)
    check(way, clean, (q, poisoned(k, lost), poisoned(v, lost)), keep, torch.float32, mask=mask)
