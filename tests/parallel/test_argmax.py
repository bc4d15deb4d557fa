"""The strategy `argmax`: the bits of one process, without sending keys."""

from math import inf, nan

import pytest
import torch

import qkv
from qkv.backends.base import RUNS
from qkv.parallel import transfer
from tests.helpers.ranks import JobFailed, RankPool

pytestmark = pytest.mark.slow

LENGTHS = {1: (19,), 2: (13, 6), 3: (8, 0, 11), 4: (2, 5, 9, 3)}
FEWER = {1: (17,), 2: (4, 13), 3: (6, 11, 0), 4: (3, 3, 4, 7)}  # keys with other shards than the queries
SEED = torch.Generator().manual_seed(7)
KEEP = torch.rand(2, 6, 19, 19, generator=SEED) < 0.3
MASKS = [
    None,
    qkv.Causal(),
    qkv.Causal() & qkv.Window(left=4),
    qkv.Padding([19, 7]),
    qkv.Padding(keep=KEEP[:, 0, 0]) & qkv.Causal(),
    qkv.Dense(KEEP),
]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def job(mesh, cases):
    """For each case this rank's result and three gradients."""
    rank, found = mesh.get_local_rank(), []
    for tensors, grad, queries, keys, options in cases:
        lengths = (queries, keys, keys)
        own = [t.split(n, dim=-2)[rank].clone().requires_grad_() for t, n in zip(tensors, lengths, strict=True)]
        out = qkv.parallel.attention(*own, mesh=mesh, similarity=qkv.Argmax(), **options)
        assert isinstance(out, torch.Tensor)
        out.backward(grad.split(queries, dim=-2)[rank])
        found.append([out.detach(), *(t.grad for t in own)])
    return found, RUNS["parallel.argmax"]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def check(pool: RankPool, ranks: int, cases) -> list:
    """Results have the bits of one process; gradients too, where sums are exact."""
    found = pool.run(job, ranks, cases=cases)
    for place, (tensors, grad, _, _, options) in enumerate(cases):
        inputs = [t.clone().requires_grad_() for t in tensors]
        out = qkv.attention(*inputs, similarity=qkv.Argmax(), mask=options.get("mask"))
        out.backward(grad)
        for what, want in enumerate([out.detach(), *(t.grad for t in inputs)]):
            got = torch.cat([answers[place][what] for answers, _ in found], dim=-2)
            assert same_bits(got.contiguous(), want.contiguous()), f"{options}, {tensors[0].dtype}, number {what}"
    return found


def whole_numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers: every sum is exact, and scores tie all the time."""
    return torch.randint(-2, 3, shape, generator=SEED).to(dtype)


def case(ranks: int, dtype: torch.dtype = torch.float32, make=whole_numbers, queries=LENGTHS, keys=LENGTHS, **options):
    len_q, len_k = sum(queries[ranks]), sum(keys[ranks])
    tensors = make(2, 6, len_q, 5), make(2, 3, len_k, 5), make(2, 3, len_k, 7)
    grad = whole_numbers(2, 6, len_q, 7)
    return [t.to(dtype) for t in tensors], grad.to(dtype), queries[ranks], keys[ranks], options


def ordinary(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=SEED)


@pytest.mark.parametrize("ranks", LENGTHS)
def test_equals_one_process(pool: RankPool, ranks: int) -> None:
    cases = [case(ranks, dtype, make, mask=mask, split="argmax")
             for dtype in DTYPES for make in (whole_numbers, ordinary) for mask in MASKS]  # fmt: skip
    before = [runs for _, runs in pool.run(job, ranks, cases=[])]
    after = [runs for _, runs in check(pool, ranks, cases)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [len(cases)] * ranks


def test_queries_and_keys_may_have_different_shards(pool: RankPool) -> None:
    for ranks in (2, 3, 4):
        check(pool, ranks, [case(ranks, keys=FEWER, mask=mask) for mask in (None, qkv.Causal(offset=-3))])


@pytest.mark.parametrize("dims", [2, 3])
def test_fewer_dimensions(pool: RankPool, dims: int) -> None:
    whole = case(4, mask=qkv.Causal(), split="argmax")
    few = [t[:, 0] if dims == 3 else t[0, 0] for t in (*whole[0], whole[1])]
    check(pool, 4, [(few[:3], few[3], *whole[2:])])


def test_near_ties_are_those_of_one_process(pool: RankPool) -> None:
    """Keys that differ in the last bits: other sums would choose another key."""
    base, width = torch.randn(1, 1, 1, 61, generator=SEED), 61
    key = base * (1 + 2e-7 * torch.randn(1, 1, 997, width, generator=SEED))
    query, value = torch.randn(1, 2, 499, width, generator=SEED), torch.arange(997.0).view(1, 1, 997, 1)
    exact = (query.double() @ key.double().transpose(-1, -2)).argmax(-1)
    taken = qkv.attention(query, key, value, similarity=qkv.Argmax()).squeeze(-1)
    assert (exact != taken).any()  # rounding decides in this case
    parts = (199, 0, 101, 199), (97, 400, 103, 397)
    check(pool, 4, [([query, key, value], torch.ones(1, 2, 499, 1), *parts, {"split": "argmax"})])


def test_nan_reaches_queries_that_attend_to_it(pool: RankPool) -> None:
    cases = []
    for number in (nan, inf, -inf):
        for mask in (None, qkv.Causal(), qkv.Padding([11, 19])):
            made = case(4, mask=mask, split="argmax")
            made[0][1][1, 2, 13] = number  # a key of rank 2
            made[0][2][0, 1, 12] = number  # and the value before it
            cases.append(made)
    check(pool, 4, cases)


def test_gradients_of_ordinary_numbers(pool: RankPool) -> None:
    tensors, grad, queries, keys, options = case(4, torch.float64, ordinary, mask=qkv.Causal(), split="argmax")
    grad = torch.randn(grad.shape, generator=SEED, dtype=torch.float64)
    ((first, _), *_), again = (pool.run(job, 4, cases=[(tensors, grad, queries, keys, options)]) for _ in range(2))
    inputs = [t.clone().requires_grad_() for t in tensors]
    qkv.attention(*inputs, similarity=qkv.Argmax(), mask=qkv.Causal()).backward(grad)
    got = torch.cat([answers[0][3] for answers, _ in again], dim=-2)
    torch.testing.assert_close(got, inputs[2].grad, rtol=1e-13, atol=1e-13)
    assert torch.equal(first[0][3], again[0][0][0][3])


def bytes_of_a_call(mesh, lengths, mask):
    query, key, value = (torch.ones(1, 2, lengths[mesh.get_local_rank()], width) for width in (3, 3, 5))
    transfer.TRAFFIC.clear()
    qkv.parallel.attention(query, key, value, mesh=mesh, similarity=qkv.Argmax(), mask=mask, split="argmax")
    return transfer.TRAFFIC["data bytes"]


def test_bytes(pool: RankPool) -> None:
    lengths = (7, 5, 11, 2)
    # Every query is sent to three ranks with 4 bytes for each number; a key with its position is returned, and the
    # chosen position is sent; all choose the first value.
    found = pool.run(bytes_of_a_call, 4, lengths=lengths, mask=None)
    assert sum(found) == 2 * sum(3 * n * (3 * 4 + 8 + 3 * 4 + 8) for n in lengths) + 2 * (5 + 11 + 2) * 5 * 4
    # Segments that are each on one rank: nothing is sent.
    ids = [rank for rank, n in enumerate(lengths) for _ in range(n)]
    assert sum(pool.run(bytes_of_a_call, 4, lengths=lengths, mask=qkv.Segments(ids, ids))) == 0


def attend(mesh, **options):
    query = torch.ones(1, 1, 3, 2, requires_grad=True)
    similarity = options.pop("similarity", qkv.Argmax())
    out = qkv.parallel.attention(query, query, query, mesh=mesh, similarity=similarity, split="argmax", **options)
    assert isinstance(out, torch.Tensor)
    torch.autograd.grad((out * out).sum(), query, create_graph=True)[0].sum().backward()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"similarity": qkv.Softmax()}, "BackendRefused", "only Argmax"),
        ({"return_weights": True}, "BackendRefused", "return_weights asks"),
        ({"backend": "reference"}, "BackendRefused", "runs the backend argmax, not reference"),
        ({}, "OptionError", "create_graph: got True"),
    ],
)
def test_refusals(pool: RankPool, options, kind: str, message: str) -> None:
    for answer in pool.run_or_errors(attend, 3, **options):
        assert isinstance(answer, JobFailed)
        assert kind in answer.kinds
        assert message in answer.message
