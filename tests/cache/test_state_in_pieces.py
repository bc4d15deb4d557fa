"""Long appends to a state are summed in pieces, in torch for float64 and in the library for the rest: no piece is
counted twice, and what does not count is in none."""

import pytest
import torch

import qkv

SIMILARITIES = {
    "elu1": qkv.FeatureMap(qkv.features.elu1),
    "squares": qkv.Polynomial(2),
    "not divided": qkv.FeatureMap(qkv.features.relu, normalize=False),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SIMILARITIES)
def test_three_hundred_tokens_at_once_then_one(name: str, dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(3)
    q, k, v = (torch.rand(3, 2, 301, 8, generator=made, dtype=torch.float64).to(dtype) for _ in range(3))
    lengths = [300, 170, 3]
    state = qkv.LinearState(SIMILARITIES[name], 3, 2, 8)
    first = qkv.decode(q[:, :, :300], k[:, :, :300], v[:, :, :300], state, lengths=lengths)
    step = qkv.decode(q[:, :, 300:], k[:, :, 300:], v[:, :, 300:], state)
    assert state.lengths.tolist() == [301, 171, 4]
    for row, count in enumerate(lengths):
        own = [torch.cat([x[row : row + 1, :, :count], x[row : row + 1, :, 300:]], dim=2).double() for x in (q, k, v)]
        wanted = qkv.attention(*own, similarity=SIMILARITIES[name], mask=qkv.Causal(), backend="reference").to(dtype)
        torch.testing.assert_close(first[row : row + 1, :, :count], wanted[:, :, :-1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(step[row : row + 1], wanted[:, :, -1:], rtol=1e-5, atol=1e-6)
        assert not first[row, :, count:].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_append_of_nothing_changes_nothing(dtype: torch.dtype) -> None:
    state = qkv.LinearState(SIMILARITIES["elu1"], 2, 1, 8)
    key = torch.rand(2, 1, 40, 8, dtype=dtype)
    state.append(key, key)
    query = torch.rand(2, 1, 1, 8, dtype=dtype)
    wanted = qkv.decode(query, key[:, :, :1], key[:, :, :1], state.fork())
    state.append(key[:, :, :0], key[:, :, :0])
    state.append(key, key, [0, 0])
    assert state.lengths.tolist() == [40, 40]
    assert torch.equal(qkv.decode(query, key[:, :, :1], key[:, :, :1], state), wanted)
