"""Partial answers over some of the keys come to the answer over all of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.parallel.decoding import merge_by_lse

NEVER = float("-inf")


def parts_of(query: Tensor, key: Tensor, value: Tensor, sizes: list[int]) -> list[Any]:
    pairs = zip(key.split(sizes, dim=2), value.split(sizes, dim=2), strict=True)
    return [qkv.attention(query, k, v, return_lse=True) for k, v in pairs]


@pytest.mark.parametrize("sizes", [[17], [1, 16], [5, 0, 7, 5], [0, 0, 17]], ids=str)
@pytest.mark.parametrize("sink", [None, 0.7, 90.0])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_merged_is_the_whole(sizes: list[int], sink: float | None, scale: float) -> None:
    draw = torch.Generator().manual_seed(len(sizes))
    query, key, value = (torch.randn(2, 3, n, 5, generator=draw, dtype=torch.float64) for n in (7, 17, 17))
    joins = None if sink is None else torch.tensor(sink, dtype=torch.float64)
    found = merge_by_lse(parts_of(query * scale, key, value, sizes), joins)
    similarity = qkv.Softmax(sink=sink)
    wanted = qkv.attention(query * scale, key, value, similarity=similarity, return_lse=True)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_nothing_seen_is_nothing() -> None:
    nothing = torch.zeros(2, 3), torch.full((2,), NEVER)
    something = torch.tensor([[1.0, 2.0, 3.0]] * 2), torch.tensor([0.5, NEVER])
    out, lse = merge_by_lse([nothing, nothing])
    assert not out.any()
    assert bool((lse == NEVER).all())
    out, lse = merge_by_lse([nothing, (something[0] * torch.tensor([[1.0], [0.0]]), something[1]), nothing])
    assert out.tolist() == [[1.0, 2.0, 3.0], [0.0] * 3]
    assert lse.tolist() == [0.5, NEVER]
    assert not merge_by_lse([nothing], torch.tensor(1.0))[0].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_what_is_not_finite_stays(bad: float, place: int) -> None:
    """In an answer, in a log-sum-exp, and behind a weight too small for a number."""
    good = torch.ones(1, 2), torch.zeros(1)
    for part in ((torch.full((1, 2), bad), torch.tensor([-1e4])), (torch.ones(1, 2), torch.tensor([bad]))):
        parts = [part, good] if place == 0 else [good, part]
        assert not merge_by_lse(parts)[0].isfinite().any()
