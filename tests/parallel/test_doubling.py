"""What all ranks have, joined on each: alike for few and for many."""

import pytest
import torch

import qkv
from qkv.cost.communication import DOUBLING_RANKS
from qkv.parallel import transfer
from qkv.parallel.transfer import TRAFFIC, read_axis
from ranks import Crew


def test_paper_and_wire_turn_at_the_same_number() -> None:
    assert transfer.DOUBLING_RANKS == DOUBLING_RANKS


def adding(mesh, many):
    axis, before = read_axis(mesh, None), transfer.DOUBLING_RANKS
    transfer.DOUBLING_RANKS = many
    try:
        TRAFFIC.clear()
        found = transfer.all_reduce(axis, torch.tensor([10.0**axis.rank, 1.0]), lambda every: torch.stack(every).sum(0))
        return found.tolist(), TRAFFIC["data messages"]
    finally:
        transfer.DOUBLING_RANKS = before


@pytest.mark.parametrize(("ranks", "messages"), [(1, [0]), (2, [1, 1]), (3, [2, 1, 1]), (4, [2, 2, 2, 2])])
def test_everybody_is_counted_once(crew: Crew, ranks: int, messages: list[int]) -> None:
    found = crew.run(adding, ranks, many=1)
    assert [answer for answer, _ in found] == [[float("1" * ranks), ranks]] * ranks
    assert [sent for _, sent in found] == messages


def decoding(mesh, query, key, value, similarity, many):
    before, transfer.DOUBLING_RANKS = transfer.DOUBLING_RANKS, many
    try:
        cache = qkv.parallel.KVCache(2, 3, 5, mesh=mesh, dtype=torch.float32)
        steps = [slice(0, 6), slice(6, 7), slice(7, 8), slice(8, 11)]
        return [
            qkv.parallel.decode(query[:, :, s], key[:, :, s], value[:, :, s], cache, similarity=similarity)
            for s in steps
        ]
    finally:
        transfer.DOUBLING_RANKS = before


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("similarity", [qkv.Softmax(), qkv.Softmax(sink=0.4), qkv.Argmax()], ids=repr)
def test_steps_of_many_are_those_of_one(crew: Crew, ranks: int, similarity) -> None:
    draw = torch.Generator().manual_seed(7)
    query, key, value = (torch.randn(2, heads, 11, 5, generator=draw) for heads in (6, 3, 3))
    key[:, :, 4] = key[:, :, 2]  # equals: the first of them counts
    found = crew.run(decoding, ranks, query=query, key=key, value=value, similarity=similarity, many=1)
    want = qkv.attention(query.double(), key.double(), value.double(), similarity=similarity, mask=qkv.Causal())
    for answers in found:
        got = torch.cat(answers, dim=2)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
        assert all(torch.equal(one, other) for one, other in zip(answers, found[0], strict=True))
