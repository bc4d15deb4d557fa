"""The strategy `heads`: the whole call on every rank's own heads."""

import pytest
import torch

import qkv
from qkv.parallel.transfer import TRAFFIC
from tests.helpers.ranks import JobFailed, RankPool

pytestmark = pytest.mark.slow

QUERIES = {1: (17,), 2: (11, 6), 3: (7, 0, 10), 4: (2, 5, 1, 9)}
KEYS = {1: (13,), 2: (4, 9), 3: (6, 7, 0), 4: (0, 3, 8, 2)}
MASKS = [
    None,
    qkv.Causal(offset=-2),
    qkv.Window(left=4, right=1, offset=-2) & qkv.Padding([13, 5]),
    qkv.Dense(torch.rand(2, 12, 17, 13, generator=torch.Generator().manual_seed(5)) < 0.6),
]
FEATURES = qkv.FeatureMap(qkv.features.elu1)


def apart(tensor, lengths, rank):
    return tensor.split(lengths, dim=-2)[rank].clone()


def job(mesh, inputs, grads, options, rows=True):
    """The answers and the gradients of this rank's shards, its bias and its sink."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    lengths = QUERIES[ranks], KEYS[ranks], KEYS[ranks]
    own = [apart(t, n, rank).requires_grad_() for t, n in zip(inputs[:3], lengths, strict=True)]
    given, learned = dict(options), []
    if inputs[3] is not None:
        given["bias"] = (apart(inputs[3], QUERIES[ranks], rank) if rows else inputs[3].clone()).requires_grad_()
        learned.append(given["bias"])
    if inputs[4] is not None:
        sink = inputs[4].clone().requires_grad_()
        given["similarity"] = qkv.Softmax(sink=sink)
        learned.append(sink)
    answer = qkv.parallel.attention(*own, mesh=mesh, split="heads", **given)
    answers = answer if isinstance(answer, tuple) else (answer,)
    shards = [g.split(QUERIES[ranks], dim=2)[rank] for g in grads]
    torch.autograd.backward(answers, shards)
    return [a.detach() for a in answers], [t.grad for t in own], [t.grad for t in learned]


def alone(inputs, grads, options):
    own = [t.clone().requires_grad_() for t in inputs[:3]]
    given, learned = dict(options), []
    if inputs[3] is not None:
        given["bias"] = inputs[3].clone().requires_grad_()
        learned.append(given["bias"])
    if inputs[4] is not None:
        sink = inputs[4].clone().requires_grad_()
        given["similarity"] = qkv.Softmax(sink=sink)
        learned.append(sink)
    answer = qkv.attention(*own, **given)
    answers = answer if isinstance(answer, tuple) else (answer,)
    torch.autograd.backward(answers, grads)
    return [a.detach() for a in answers], [t.grad for t in own], [t.grad for t in learned]


def drawn(heads_kv, dtype=torch.float64, bias=None, sink=None):
    g = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)

    query, key, value = draw(2, 12, 17, 5), draw(2, heads_kv, 13, 5), draw(2, heads_kv, 13, 3)
    return [query, key, value, None if bias is None else draw(*bias), None if sink is None else draw(*sink)]


def grads_like(inputs, lse=False, weights=False):
    g = torch.Generator().manual_seed(4)
    shapes = [(2, 12, 17, 3)] + [(2, 12, 17)] * lse + [(2, 12, 17, 13)] * weights
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(inputs[0].dtype) for shape in shapes]


def compare(found, want, tolerance=1e-12):
    for place in (0, 1):
        for number, whole in enumerate(want[place]):
            got = torch.cat([answer[place][number] for answer in found], dim=2)
            torch.testing.assert_close(got, whole, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("ranks", QUERIES)
@pytest.mark.parametrize("similarity", [None, qkv.Polynomial(3), qkv.Argmax(), FEATURES], ids=repr)
def test_equals_one_process(pool: RankPool, ranks: int, similarity) -> None:
    for heads_kv, mask in zip((12, 12, 1 if ranks == 3 else 2, 12), MASKS, strict=True):
        inputs = drawn(heads_kv)
        grads, options = grads_like(inputs), {"similarity": similarity, "mask": mask}
        found = pool.run(job, ranks, inputs=inputs, grads=grads, options=options)
        compare(found, alone(inputs, grads, options))


@pytest.mark.parametrize("heads_kv", [1, 2, 4, 12])
def test_key_and_value_heads_that_ranks_share(pool: RankPool, heads_kv: int) -> None:
    inputs = drawn(heads_kv)
    grads = grads_like(inputs, lse=True, weights=True)
    options = {"mask": MASKS[3], "return_lse": True, "return_weights": True}
    compare(pool.run(job, 4, inputs=inputs, grads=grads, options=options), alone(inputs, grads, options))


@pytest.mark.parametrize("shape", [(2, 12, 17, 13), (12, 17, 1), (2, 1, 17, 13)], ids=str)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_bias_with_rows(pool: RankPool, ranks: int, shape) -> None:
    inputs = drawn(12, bias=shape, sink=(12,))
    grads, options = grads_like(inputs), {"mask": qkv.Causal(offset=-2)}
    found, want = pool.run(job, ranks, inputs=inputs, grads=grads, options=options), alone(inputs, grads, options)
    compare(found, want)
    torch.testing.assert_close(torch.cat([answer[2][0] for answer in found], dim=-2), want[2][0])
    torch.testing.assert_close(sum(answer[2][1] for answer in found), want[2][1])


@pytest.mark.parametrize("shape", [(12, 1, 13), (1, 13), (2, 12, 17, 13)], ids=str)
@pytest.mark.parametrize("sink", [(12,), (1,)], ids=str)
def test_replicated_inputs_get_partial_gradients(pool: RankPool, shape, sink) -> None:
    inputs = drawn(4, bias=shape, sink=sink)
    grads = grads_like(inputs)
    found, want = pool.run(job, 4, inputs=inputs, grads=grads, options={}, rows=False), alone(inputs, grads, {})
    compare(found, want)
    for place in (0, 1):
        torch.testing.assert_close(sum(answer[2][place] for answer in found), want[2][place])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes(pool: RankPool, dtype) -> None:
    inputs = drawn(2, dtype)
    grads = grads_like(inputs)
    found = pool.run(job, 4, inputs=inputs, grads=grads, options={"mask": qkv.Causal(offset=1)})
    want = alone(inputs, grads, {"mask": qkv.Causal(offset=1)})
    compare(found, want, 1e-5 if dtype is torch.float32 else 3e-2)


def biases_of_different_shapes(mesh, inputs, bias):
    """Rank 1 has a bias that is broadcast, the others have it expanded."""
    rank, lengths = mesh.get_local_rank(), QUERIES[3]
    own = [apart(t, n, rank) for t, n in zip(inputs[:3], (lengths, KEYS[3], KEYS[3]), strict=True)]
    given = bias if rank == 1 else bias.expand(2, 12, lengths[rank], 13).contiguous()
    return qkv.parallel.attention(*own, mesh=mesh, split="heads", bias=given)


def test_biases_of_different_shapes(pool: RankPool) -> None:
    inputs = drawn(12, bias=(1, 12, 1, 13))
    found = pool.run(biases_of_different_shapes, 3, inputs=inputs, bias=inputs[3])
    want = qkv.attention(*inputs[:3], bias=inputs[3])
    torch.testing.assert_close(torch.cat(found, dim=2), want, rtol=1e-12, atol=1e-12)


def poisoned(mesh, inputs, options):
    rank, ranks = mesh.get_local_rank(), mesh.size()
    own = [apart(t, n, rank) for t, n in zip(inputs[:3], (QUERIES[ranks], KEYS[ranks], KEYS[ranks]), strict=True)]
    return qkv.parallel.attention(*own, mesh=mesh, split="heads", **options)


def test_masked_keys_cannot_matter(pool: RankPool) -> None:
    inputs = drawn(12)
    want = qkv.attention(*inputs[:3], mask=qkv.Padding([9, 9]))
    for tensor in inputs[1:3]:
        tensor[:, :, 9:] = torch.nan
    found = pool.run(poisoned, 4, inputs=inputs, options={"mask": qkv.Padding([9, 9])})
    torch.testing.assert_close(torch.cat(found, dim=2), want, rtol=1e-12, atol=1e-12)


def test_dropped_weights_are_those_that_were_applied(pool: RankPool) -> None:
    inputs = drawn(4)
    options = {"dropout": 0.4, "return_weights": True}
    found = pool.run(poisoned, 2, inputs=inputs, options=options)
    out, weights = (torch.cat([answer[place] for answer in found], dim=2) for place in (0, 1))
    assert 0.3 < (weights == 0).double().mean() < 0.5
    torch.testing.assert_close(out, weights @ inputs[2].repeat_interleave(3, dim=1))


def frozen(mesh, inputs):
    """Only the values require gradients: those of queries and keys are not sent."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    own = [apart(t, n, rank) for t, n in zip(inputs[:3], (QUERIES[ranks], KEYS[ranks], KEYS[ranks]), strict=True)]
    own[2].requires_grad_()
    before = TRAFFIC["data bytes"]
    out = qkv.parallel.attention(*own, mesh=mesh, split="heads")
    assert isinstance(out, torch.Tensor)
    forward = TRAFFIC["data bytes"] - before
    out.sum().backward()
    return forward, TRAFFIC["data bytes"] - before - forward, own[2].grad


def test_bytes(pool: RankPool) -> None:
    inputs = drawn(2)
    for rank, (forward, backward, grad) in enumerate(pool.run(frozen, 4, inputs=inputs)):
        n, m, rest = QUERIES[4][rank], KEYS[4][rank], 17 - QUERIES[4][rank]
        # 3 query heads to each of 3 others, a key/value head to each, and 3 heads of results for the others' queries.
        assert forward == 8 * 2 * (3 * 3 * n * 5 + 3 * m * (5 + 3) + 3 * rest * 3)
        assert backward == 8 * 2 * (3 * 3 * n * 3 + (13 - m) * 3)
        assert grad.shape == (2, 2, m, 3)


def refused(mesh, heads, heads_kv):
    query, key = torch.zeros(1, heads, 2, 5), torch.zeros(1, heads_kv, 2, 5)
    qkv.parallel.attention(query, key, key, mesh=mesh, split="heads")


@pytest.mark.parametrize(
    ("heads", "heads_kv", "ranks", "reason"),
    [(7, 7, 3, "7 query heads"), (12, 3, 2, "3 key/value heads"), (12, 3, 4, "3 key/value heads")],
)
def test_heads_that_cannot_be_divided(pool: RankPool, heads: int, heads_kv: int, ranks: int, reason: str) -> None:
    for failed in pool.run_or_errors(refused, ranks, heads=heads, heads_kv=heads_kv):
        assert isinstance(failed, JobFailed)
        assert "BackendRefused" in failed.kinds
        assert f"{reason} cannot be divided evenly among {ranks} ranks" in failed.message
