"""The textbook's decode steps equal projections and qkv.decode; its printed subscripts do not."""

import pytest
import torch

import qkv
from tests.helpers.listings import linearized, multi_head_step, multi_query_step, quadratic_features

# Every axis another prime: batch, heads, model width, key width, value width.
B, H, D, K, V = 2, 3, 11, 5, 7
# The subscripts as printed and corrected, for weights (b, h, n), values (b, n, v) and w_o (h, v, d).
PRINTED_VALUES, RIGHT_VALUES = "bhn,bhv->bhv", "bhn,bnv->bhv"
PRINTED_OUTPUT, RIGHT_OUTPUT = "bhv,bdv->bd", "bhv,hvd->bd"


def numbers(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found, wanted, dtype):
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6}[dtype]
    torch.testing.assert_close(found, wanted, atol=tolerance * float(wanted.abs().max()), rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shared", [False, True], ids=["multi-head", "multi-query"])
def test_a_listing_is_decode_with_projections(shared, dtype):
    """70 tokens, one at a time, from an empty cache."""
    heads = 1 if shared else H
    w_q, w_o = numbers(H, D, K, dtype=dtype, seed=1), numbers(H, V, D, dtype=dtype, seed=2)
    w_k, w_v = numbers(heads, D, K, dtype=dtype, seed=3), numbers(heads, D, V, dtype=dtype, seed=4)
    storage = torch.float32
    if dtype is torch.float64:
        # Numbers that float32 storage keeps as they are: products of small whole numbers.
        w_q, w_k, w_v, w_o = (torch.round(4 * w) / 4 for w in (w_q, w_k, w_v, w_o))
    cache = qkv.KVCache(B, heads, K, value_width=V, dtype=storage)
    step = multi_query_step if shared else multi_head_step
    cached = (B, 0) if shared else (B, H, 0)
    keys, values = torch.zeros(*cached, K, dtype=dtype), torch.zeros(*cached, V, dtype=dtype)
    given = (w_q, w_k[0], w_v[0], w_o) if shared else (w_q, w_k, w_v, w_o)
    for t in range(70):
        x = numbers(B, D, dtype=dtype, seed=100 + t)
        if dtype is torch.float64:
            x = torch.round(4 * x) / 4
        wanted, keys, values = step(x, keys, values, *given)
        query, key, value = (torch.einsum("bd,hdk->bhk", x, w)[:, :, None] for w in (w_q, w_k, w_v))
        heads_out = qkv.decode(query, key, value, cache)
        close(torch.einsum("bhtv,hvd->bd", heads_out, w_o), wanted, dtype)
    assert cache.length == keys.shape[-2] == values.shape[-2] == 70
    close(cache.tensors()[0].squeeze(1).to(dtype) if shared else cache.tensors()[0].to(dtype), keys, dtype)


def test_multi_query_is_multi_head_with_the_same_keys_in_every_head():
    w_q, w_o = numbers(H, D, K, seed=1), numbers(H, V, D, seed=2)
    w_k, w_v, x = numbers(D, K, seed=3), numbers(D, V, seed=4), numbers(B, D, seed=5)
    keys, values = numbers(B, 13, K, seed=6), numbers(B, 13, V, seed=7)
    one, _, _ = multi_query_step(x, keys, values, w_q, w_k, w_v, w_o)
    repeated = (t[:, None].expand(-1, H, -1, -1) for t in (keys, values))
    other, _, _ = multi_head_step(x, *repeated, w_q, w_k.expand(H, -1, -1), w_v.expand(H, -1, -1), w_o)
    torch.testing.assert_close(one, other)


def test_without_the_scale_it_is_another_attention():
    """The listings leave 1/√k out; the document's own first problem says why it belongs there."""
    query, key, value = numbers(B, H, 1, K), numbers(B, H, 19, K, seed=1), numbers(B, H, 19, V, seed=2)
    scaled = qkv.attention(query, key, value)
    plain = torch.einsum("bhqk,bhnk->bhqn", query, key).softmax(-1) @ value
    torch.testing.assert_close(plain, qkv.attention(query, key, value, similarity=qkv.Softmax(scale=1.0)))
    assert not torch.allclose(plain, scaled, atol=1e-2)


def test_the_printed_values_run_only_when_heads_are_as_many_as_tokens():
    weights, values = numbers(B, H, H + 1).softmax(-1), numbers(B, H + 1, V)
    with pytest.raises(RuntimeError):
        torch.einsum(PRINTED_VALUES, weights, values)
    torch.einsum(RIGHT_VALUES, weights, values)


def test_the_printed_values_ignore_the_weights_when_h_is_n_plus_1():
    """h = n + 1: head h gets the value of token h, whatever it attends to, and nothing complains."""
    past = H - 1
    values = numbers(B, past + 1, V)
    one, other = (numbers(B, H, past + 1, seed=seed).softmax(-1) for seed in (1, 2))
    for weights in (one, other):
        torch.testing.assert_close(torch.einsum(PRINTED_VALUES, weights, values), values)
    right = torch.einsum(RIGHT_VALUES, one, values)
    torch.testing.assert_close(right, one @ values)
    assert not torch.allclose(right, values, atol=1e-2)
    assert not torch.allclose(right, torch.einsum(RIGHT_VALUES, other, values), atol=1e-2)


def test_the_printed_output_projection_reads_other_weights():
    """It runs only for as many rows as heads and v = d, and then gives row b the weights of head b, transposed."""
    heads, w_o = numbers(B, H, V), numbers(H, V, D, seed=1)
    with pytest.raises(RuntimeError):
        torch.einsum(PRINTED_OUTPUT, heads, w_o)
    square, w_o = numbers(H, H, D), numbers(H, D, D, seed=1)
    printed, right = (torch.einsum(text, square, w_o) for text in (PRINTED_OUTPUT, RIGHT_OUTPUT))
    torch.testing.assert_close(printed, torch.stack([w_o[b] @ square[b].sum(0) for b in range(H)]))
    torch.testing.assert_close(right, sum(square[:, h] @ w_o[h] for h in range(H)))
    assert not torch.allclose(printed, right, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_linearized_listing_is_the_quadratic_kernel(dtype):
    """Problem 6 of the third document, with its feature map written out."""
    queries, keys, values = (
        numbers(23, D, dtype=dtype, seed=1),
        numbers(23, D, dtype=dtype),
        numbers(23, V, dtype=dtype),
    )
    wanted = qkv.attention(queries, keys, values, similarity=qkv.Polynomial(2), backend="linear")
    found = linearized(queries, keys, values)
    assert found.dtype is dtype
    torch.testing.assert_close(found, wanted, atol=1e-12 if dtype is torch.float64 else 2e-5, rtol=0)
    assert quadratic_features(queries).shape[1] == D * (D + 3) // 2 + 1


def test_an_epsilon_below_the_fraction_would_show():
    """Short vectors have small sums: what is added to them is no longer small."""
    queries, keys = 1e-4 * numbers(5, D), 1e-4 * numbers(7, D, seed=3)
    values = numbers(7, V, seed=4)
    squares = qkv.Polynomial(2, offset=0.0)
    right = qkv.attention(queries, keys, values, similarity=squares)
    sims = (queries @ keys.T) ** 2
    with_epsilon = sims @ values / (sims.sum(1, keepdim=True) + 1e-6)
    torch.testing.assert_close(right, sims @ values / sims.sum(1, keepdim=True))
    assert (with_epsilon.abs() < 1e-6 * right.abs().max()).all()
