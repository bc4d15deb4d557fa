"""The backend for few queries: that its kernel runs, where `auto` takes it, and what it refuses."""

import pytest
import torch

import qkv
from qkv import ops
from qkv.errors import BackendRefused


def tensors(heads: int = 6, heads_kv: int = 2, len_q: int = 3, len_k: int = 701, dtype=torch.float32):
    source = torch.Generator().manual_seed(7)
    sizes = (heads, len_q, 13), (heads_kv, len_k, 13), (heads_kv, len_k, 11)
    return [torch.randn(2, *size, generator=source).to(dtype) for size in sizes]


def test_the_kernel_runs_once_for_each_call():
    query, key, value = tensors()
    for backend in ("native", "auto"):
        ops.reset_calls()
        qkv.attention(query, key, value, backend=backend)
        assert ops.calls()["attend_plain"] == 1


@pytest.mark.parametrize("mask", [None, qkv.Causal(offset=698), qkv.Window(left=300, right=5, offset=400)], ids=repr)
def test_agrees_with_the_equation_beyond_one_part(mask):
    query, key, value = tensors()
    out, lse = qkv.attention(query, key, value, mask=mask, backend="native", return_lse=True)
    double = (tensor.double() for tensor in (query, key, value))
    right, right_lse = qkv.attention(*double, mask=mask, backend="reference", return_lse=True)
    torch.testing.assert_close(out.double(), right, atol=2e-6, rtol=0)
    torch.testing.assert_close(lse.double(), right_lse, atol=4e-6, rtol=1e-6)


def test_the_same_bits_as_a_memory():
    """A page of a cache and a page turned on the way are worked on alike."""
    query, key, value = tensors(len_q=1)
    cache = qkv.KVCache(batch=2, heads=2, width=13, value_width=11)
    cache.append(key[:, :, :-1], value[:, :, :-1])
    step = qkv.decode(query, key[:, :, -1:], value[:, :, -1:], cache)
    assert torch.equal(step, qkv.attention(query, key, value, backend="native"))


def test_many_queries_go_elsewhere():
    query, key, value = tensors(len_q=701)
    assert qkv.explain(query, key, value).backend == "sdpa"


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"dropout": 0.5}, "no dropout"), ({"return_weights": True}, "len_q x len_k"), ({}, "no derivative")],
)
def test_refuses_with_the_reason(options, reason):
    query, key, value = tensors()
    if not options:
        query.requires_grad_()
    with pytest.raises(BackendRefused, match=reason):
        qkv.attention(query, key, value, backend="native", **options)


def test_no_heads_cost_nothing():
    query, key, value = tensors(heads=0, heads_kv=0)
    assert qkv.attention(query, key, value).shape == (2, 0, 3, 11)
