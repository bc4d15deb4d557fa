"""The plain dense computation is right wherever it is used, so that its error is only rounding."""

import pytest
import torch

from qkv.testing.cases import CallCase, as_called
from qkv.testing.contract.grid import HEADS, MASKS, SIMILARITIES
from qkv.testing.plain import plain_dense


@pytest.mark.parametrize("heads", sorted(HEADS))
@pytest.mark.parametrize("similarity", sorted(SIMILARITIES))
def test_it_is_the_oracle_in_float64(similarity: str, heads: str) -> None:
    batch, heads_q, heads_kv, dims = HEADS[heads]
    for mask in ("none", "causal late", "dense"):
        case = CallCase(
            batch=batch,
            heads_q=heads_q,
            heads_kv=heads_kv,
            dims=dims,
            dtype="float64",
            similarity=SIMILARITIES[similarity],
            mask=MASKS[mask](batch, 5, 7),
            bias="holes" if similarity.startswith("softmax") else None,
            seed=3,
        )
        attended = as_called(case.attended, dims)
        found = plain_dense(*case.tensors, attended, case.built_similarity, case.built_bias)
        assert torch.allclose(found.out, case.gold.out, atol=1e-11)
        assert torch.allclose(found.weights, case.gold.weights, atol=1e-11)
        if case.gold.lse is not None:
            assert found.lse is not None
            assert torch.allclose(found.lse, case.gold.lse, atol=1e-13)


def test_no_keys() -> None:
    attended = torch.ones(2, 0, dtype=torch.bool)
    for similarity in SIMILARITIES.values():
        case = CallCase(len_q=2, len_k=0, dims=2, similarity=similarity)
        out = plain_dense(*case.tensors, attended, case.built_similarity).out
        assert out.shape == (2, 2)
        assert not out.any()
