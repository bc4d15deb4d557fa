"""`native`: when its kernel runs, when `auto` chooses it, and what it refuses."""

from collections.abc import Iterator

import pytest
import torch

import qkv
from qkv import ops
from qkv.errors import BackendRefused
from qkv.ops.loader import require_native


def tensors(heads: int = 6, heads_kv: int = 2, len_q: int = 3, len_k: int = 701, dtype=torch.float32):
    source = torch.Generator().manual_seed(7)
    sizes = (heads, len_q, 13), (heads_kv, len_k, 13), (heads_kv, len_k, 11)
    return [torch.randn(2, *size, generator=source).to(dtype) for size in sizes]


def test_the_kernel_runs_once_for_each_call():
    query, key, value = tensors()
    for backend in ("native", "auto"):
        ops.reset_calls()
        qkv.attention(query, key, value, backend=backend)
        assert ops.calls()["softmax_attention"] == 1


@pytest.mark.parametrize("mask", [None, qkv.Causal(offset=698), qkv.Window(left=300, right=5, offset=400)], ids=repr)
def test_agrees_with_the_reference(mask):
    query, key, value = tensors()
    out, lse = qkv.attention(query, key, value, mask=mask, backend="native", return_lse=True)
    double = (tensor.double() for tensor in (query, key, value))
    expected, expected_lse = qkv.attention(*double, mask=mask, backend="reference", return_lse=True)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(lse.double(), expected_lse, atol=4e-6, rtol=1e-6)


def test_the_same_bits_as_a_cache():
    """The kernel gives the same bits on the pages of a cache and on tensors."""
    query, key, value = tensors(len_q=1)
    cache = qkv.KVCache(batch=2, heads=2, width=13, value_width=11)
    cache.append(key[:, :, :-1], value[:, :, :-1])
    step = qkv.decode(query, key[:, :, -1:], value[:, :, -1:], cache)
    assert torch.equal(step, qkv.attention(query, key, value, backend="native"))


def test_auto_prefers_sdpa_for_many_queries():
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


def test_no_heads():
    query, key, value = tensors(heads=0, heads_kv=0)
    assert qkv.attention(query, key, value).shape == (2, 0, 3, 11)


def test_an_infinite_value_under_a_weight_that_underflows_is_infinite() -> None:
    query, key, value = torch.full((1, 1, 2, 1), 200.0), torch.zeros(1, 1, 300, 1), torch.ones(1, 1, 300, 1)
    key[0, 0, 0], value[0, 0, 7], value[0, 0, 250] = 1.0, float("inf"), float("-inf")
    mask = qkv.Dense(torch.arange(300) < torch.tensor([[200], [300]]))
    for sign in (1.0, -1.0):
        out = qkv.attention(query, sign * key, value, mask=mask, backend="native").flatten()
        assert out[0] == float("inf")
        assert out[1].isnan()  # +∞ and −∞


def test_values_near_the_largest_number_do_not_overflow() -> None:
    value = torch.full((1, 1, 300, 2), 3.3e38)
    value[0, 0, 299] = 1.0
    mask = qkv.Padding(lengths=[299])
    out = qkv.attention(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 300, 2), value, mask=mask, backend="native")
    torch.testing.assert_close(out, value[:, :, :3], rtol=1e-5, atol=0.0)


def test_a_row_that_overflows_changes_no_bit_of_the_others() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 1, 5, 8), torch.randn(2, 1, 70, 8), torch.randn(2, 1, 70, 8)
    alone = qkv.attention(query, key, value, backend="native")[0]
    value[1] = 3.3e38
    out = qkv.attention(query, key, value, backend="native")
    assert torch.equal(out[0], alone)
    assert out[1].isfinite().all()


@pytest.mark.parametrize("past", [20, 1000])
@pytest.mark.parametrize("sink", [None, 300.0])
def test_an_infinite_value_of_a_cache_stays_infinite_under_a_weight_that_underflows(
    past: int, sink: float | None
) -> None:
    for best, infinite in ((0, past - 1), (past - 1, 0), (past // 2, 1)):
        key, value = torch.zeros(1, 1, past, 4), torch.ones(1, 1, past, 4)
        key[0, 0, best], value[0, 0, infinite, 1] = 1.0, float("inf")
        cache = qkv.KVCache(1, 1, 4)
        cache.append(key, value)
        new = torch.zeros(1, 1, 1, 4)
        out = qkv.decode(new + 200.0, new, new, cache, similarity=qkv.Softmax(sink=sink)).flatten()
        assert out[1] == float("inf")
        assert out[[0, 2, 3]].isfinite().all()


@pytest.fixture(params=ops.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    native = require_native("this test")
    native.use(request.param)
    yield request.param
    native.use(ops.isa())


@pytest.mark.parametrize("size", [1e37, 1e38, 3e38, 3.38e38])
@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("options", [{}, {"similarity": qkv.Softmax(sink=0.0)}, {"mask": qkv.Window(left=80)}])
def test_values_of_a_cache_near_the_largest_number_do_not_overflow(
    isa: str, size: float, storage: torch.dtype, options: dict
) -> None:
    """The prompt, checked steps, and planned steps; the row without such values keeps its bits."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if storage is torch.bfloat16 else torch.float32
    query, key, value = (torch.randn(2, 3, 75, 5).to(dtype) for _ in range(3))
    plain, large = (qkv.KVCache(2, 3, 5, dtype=storage) for _ in range(2))
    huge = value.clone()
    huge[1, ..., :3] = size
    huge[1, ..., 3:] = size * value[1, ..., 3:].sign()
    outs = []
    for start, stop in ((0, 70), *((i, i + 1) for i in range(70, 75))):
        new = slice(start, stop)
        expected = qkv.decode(query[:, :, new], key[:, :, new], value[:, :, new], plain, **options)
        outs.append(qkv.decode(query[:, :, new], key[:, :, new], huge[:, :, new], large, **options))
        assert torch.equal(outs[-1][0], expected[0])
    stored, values = (tensor.double() for tensor in large.tensors())
    similarity = options.get("similarity")
    true = qkv.attention(query.double(), stored, values, mask=qkv.Causal(), similarity=similarity, backend="reference")
    error = (torch.cat(outs, dim=2)[1].double() - true[1]).abs().max() / size
    assert error < (1e-2 if dtype is torch.bfloat16 else 1e-5)


def test_an_infinite_value_stays_infinite_next_to_values_near_the_largest_number(isa: str) -> None:
    value = torch.full((1, 1, 75, 5), 3e38)
    value[0, 0, 7, 1], value[0, 0, 8, 2] = float("inf"), float("nan")
    cache = qkv.KVCache(1, 1, 5)
    cache.append(torch.zeros(1, 1, 75, 5), value)
    new = torch.zeros(1, 1, 1, 5)
    out = qkv.decode(new, new, new, cache).flatten()
    assert out[1] == float("inf")
    assert out[2].isnan()
    torch.testing.assert_close(out[[0, 3, 4]], torch.full((3,), 3e38 * 75 / 76), rtol=1e-5, atol=0.0)
