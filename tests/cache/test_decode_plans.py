"""Steps that look like earlier ones: of the same cache, of another one, and where the answer lies."""

import pytest
import torch

import qkv


@pytest.mark.parametrize("n", [1, 5, 70])
def test_an_answer_lies_in_memory_as_its_query_does(n: int) -> None:
    """Models hold (batch, n, heads, width) and look at it as (batch, heads, n, width): turning back moves nothing."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, n, heads, 16) for heads in (6, 3, 3))
    turned = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    plain = [tensor.contiguous() for tensor in turned]
    caches = [qkv.KVCache(2, 3, 16) for _ in range(2)]
    for _ in range(3):  # the first is checked, the others are known again
        expected, found = qkv.decode(*plain, caches[0]), qkv.decode(*turned, caches[1])
        assert torch.equal(found, expected)
    assert found.transpose(1, 2).is_contiguous()
    expected, found = (qkv.attention(*given, mask=qkv.Causal(), backend="native") for given in (plain, turned))
    assert torch.equal(found, expected)
    assert found.transpose(1, 2).is_contiguous()


def test_a_plan_is_known_again_by_another_memory_and_only_where_it_fits() -> None:
    torch.manual_seed(0)
    similarity = qkv.Softmax(0.3)
    query, key, value = torch.randn(2, 6, 5, 16), torch.randn(2, 3, 5, 16), torch.randn(2, 3, 5, 16)
    expected = qkv.decode(query, key, value, qkv.KVCache(2, 3, 16), similarity=similarity)
    for options in ({}, {"capacity": 7}, {"window": 3}, {"dtype": torch.int8}):
        cache = qkv.KVCache(2, 3, 16, **options)
        found = qkv.decode(query, key, value, cache, similarity=similarity)
        again = qkv.KVCache(2, 3, 16, **options)
        mask = qkv.Causal(0)  # a mask takes the long way
        assert torch.equal(found, qkv.decode(query, key, value, again, similarity=similarity, mask=mask))
        assert torch.equal(found, expected) == (options in ({}, {"capacity": 7}))
        assert cache.length == 5
    with pytest.raises(qkv.errors.ShapeError, match="capacity"):
        qkv.decode(query, key, value, qkv.KVCache(2, 3, 16, capacity=4), similarity=similarity)
    with pytest.raises(qkv.errors.DtypeError):
        qkv.decode(query, key.double(), value.double(), qkv.KVCache(2, 3, 16), similarity=similarity)
    cache = qkv.KVCache(2, 3, 16)
    qkv.decode(query, key, value, cache, similarity=similarity)
    with pytest.raises(qkv.errors.DtypeError, match="before"):
        cache.append(key.double(), value.double())


def test_a_similarity_that_is_none_is_refused_by_name() -> None:
    one = torch.randn(1, 2, 1, 4)
    for wrong in ([1], {}, "softmax", qkv.Softmax):
        with pytest.raises(qkv.errors.OptionTypeError, match="similarity"):
            qkv.decode(one, one, one, qkv.KVCache(1, 2, 4), similarity=wrong)
