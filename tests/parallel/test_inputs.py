"""DTensors as inputs and results: the result and gradients of one process, for any placements."""

from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import qkv
from tests.helpers.ranks import JobFailed, RankPool

pytestmark = pytest.mark.slow

BATCH, HEADS, KV, LEN_Q, LEN_K, WIDTH = 3, 4, 2, 13, 11, 5
DENSE = torch.rand(BATCH, HEADS, LEN_Q, LEN_K, generator=torch.Generator().manual_seed(2)) < 0.7
MASKS = [
    None,
    qkv.Causal(offset=-2) & qkv.Padding([11, 7, 9]),
    qkv.Dense(DENSE),
    qkv.Predicate(lambda batch, head, query, key: (batch + 2 * head + query + 3 * key) % 5 != 0),
]
_MESHES: dict[str, DeviceMesh] = {}


def grid():
    """Two axes of two ranks."""
    if "grid" not in _MESHES:
        _MESHES["grid"] = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("one", "two"))
    return _MESHES["grid"]


def drawn(dims=4, bias=None):
    g = torch.Generator().manual_seed(3)
    shapes = [(BATCH, HEADS, LEN_Q, WIDTH), (BATCH, KV, LEN_K, WIDTH), (BATCH, KV, LEN_K, 7), (BATCH, HEADS, LEN_Q, 7)]
    cut = {4: lambda s: s, 3: lambda s: (s[0], *s[2:]), 2: lambda s: s[2:]}[dims]
    found = [torch.randn(cut(shape), generator=g, dtype=torch.float64) for shape in shapes]
    return found, None if bias is None else torch.randn(bias, generator=g, dtype=torch.float64)


def attend(*tensors: Any, **options: Any) -> Any:
    return qkv.parallel.attention(*tensors, **options)


def job(mesh, tensors, placements, bias=None, bias_placements=None, sink=None, two=False, which=None, **options):
    """Everything of the whole: answers, then gradients of query, key, value, and of a bias and a sink."""
    mesh = grid() if two else mesh
    if which is not None:  # functions cannot be pickled
        options["mask"] = MASKS[which]
    dtensors = [distribute_tensor(t, mesh, placements).requires_grad_() for t in tensors[:3]]
    learned = list(dtensors)
    if bias is not None:
        bias = bias.clone() if bias_placements is None else distribute_tensor(bias, mesh, bias_placements)
        options["bias"] = bias.requires_grad_()
        learned.append(options["bias"])
    if sink is not None:
        learned.append(sink.clone().requires_grad_())
        options["similarity"] = qkv.Softmax(sink=learned[-1])
    answer = attend(*dtensors, **options)
    answers = answer if isinstance(answer, tuple) else (answer,)
    for found in answers:
        assert isinstance(found, DTensor)
        assert found.placements == tuple(Shard(p.dim % 4) if isinstance(p, Shard) else p for p in placements)
    torch.autograd.backward(answers[0], distribute_tensor(tensors[3], mesh, placements))
    grads: list[Any] = [t.grad for t in learned]
    return [t.full_tensor().detach() if isinstance(t, DTensor) else t.detach() for t in (*answers, *grads)]


def alone(tensors, bias=None, sink=None, **options) -> tuple[list[Any], list[Any]]:
    learned = [t.clone().requires_grad_() for t in tensors[:3]]
    if bias is not None:
        options["bias"] = bias.clone().requires_grad_()
        learned.append(options["bias"])
    if sink is not None:
        learned.append(sink.clone().requires_grad_())
        options["similarity"] = qkv.Softmax(sink=learned[-1])
    answer = qkv.attention(*learned[:3], **options)
    answers = answer if isinstance(answer, tuple) else (answer,)
    answers[0].backward(tensors[3])
    return [a.detach() for a in answers], [t.grad for t in learned]


def compare(found, want, own_parts=0):
    """own_parts: how many of the last gradients are each rank's own part, to be added up."""
    whole = [*want[0], *want[1]]
    for answer in found:
        for got, right in zip(answer[: len(whole) - own_parts], whole, strict=False):
            torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)
    for place in range(len(whole) - own_parts, len(whole)):
        torch.testing.assert_close(sum(a[place] for a in found), whole[place], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dims", [4, 3, 2])
@pytest.mark.parametrize("ranks", [2, 4])
def test_sequences(pool: RankPool, ranks: int, dims: int) -> None:
    tensors, _ = drawn(dims)
    options = {"mask": qkv.Causal(offset=-2), "return_lse": True, "return_weights": True}
    compare(pool.run(job, ranks, tensors=tensors, placements=[Shard(dims - 2)], **options), alone(tensors, **options))


@pytest.mark.parametrize("which", range(len(MASKS)))
def test_heads(pool: RankPool, which: int) -> None:
    tensors, bias = drawn(bias=(HEADS, LEN_Q, LEN_K))
    sink = torch.randn(HEADS, dtype=torch.float64)
    given = {"tensors": tensors, "bias": bias, "sink": sink, "return_lse": True}
    found = pool.run(job, 2, placements=[Shard(1)], which=which, **given)
    compare(found, alone(mask=MASKS[which], **given), own_parts=2)


@pytest.mark.parametrize("which", range(len(MASKS)))
@pytest.mark.parametrize(
    "placements",
    [[Shard(0), Shard(2)], [Shard(1), Shard(-2)], [Replicate(), Shard(2)], [Shard(0), Shard(1)], [Shard(2), Shard(0)]],
    ids=str,
)
def test_two_axes(pool: RankPool, placements, which: int) -> None:
    tensors, _ = drawn()
    found = pool.run(job, 4, tensors=tensors, placements=placements, two=True, which=which, return_lse=True)
    compare(found, alone(tensors, mask=MASKS[which], return_lse=True))


def test_a_batch_of_three_dimensions(pool: RankPool) -> None:
    tensors, bias = drawn(3, bias=(BATCH, LEN_Q, LEN_K))
    mask = qkv.Dense(DENSE[:, 1]) & qkv.Padding([11, 7, 9])
    options = {"mask": mask, "return_lse": True}
    for placements in ([Shard(0), Shard(1)], [Replicate(), Shard(0)]):
        found = pool.run(job, 4, tensors=tensors, placements=placements, bias=bias, two=True, **options)
        want = alone(tensors, bias, **options)
        copies = 1 if placements[0] == Shard(0) else 2  # two ranks have the same part
        want[1][3] *= copies
        compare(found, want, own_parts=1)


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((HEADS, LEN_Q, LEN_K), [Shard(0), Shard(1)]), ((LEN_Q, 1), [Replicate(), Shard(0)]),
     ((BATCH, 1, 1, LEN_K), [Replicate(), Replicate()]), ((BATCH, HEADS, LEN_Q, LEN_K), [Replicate(), Shard(2)])],
    ids=str,
)  # fmt: skip
def test_biases_that_are_spread(pool: RankPool, shape, rows) -> None:
    tensors, bias = drawn(bias=shape)
    placements = [Shard(1), Shard(2)]
    found = pool.run(job, 4, tensors=tensors, placements=placements, bias=bias, bias_placements=rows, two=True)
    compare(found, alone(tensors, bias))


def uneven(mesh, tensors, lengths, with_shape):
    rank = mesh.get_local_rank()
    own, dtensors = [], []
    for tensor, each in zip(tensors[:3], lengths, strict=True):
        own.append(tensor.split(each, dim=2)[rank].clone().requires_grad_())
        size = {"shape": tensor.shape, "stride": tensor.stride()} if with_shape else {}
        dtensors.append(DTensor.from_local(own[-1], mesh, [Shard(2)], **size))
    out = attend(*dtensors)
    out.to_local().sum().backward()
    return out.shape, out.to_local().detach(), [t.grad for t in own]


def test_shards_of_any_lengths(pool: RankPool) -> None:
    tensors, _ = drawn()
    lengths = [(2, 11), (9, 2), (9, 2)]
    found = pool.run(uneven, 2, tensors=tensors, lengths=lengths, with_shape=True)
    tensors[3] = torch.ones_like(tensors[3])
    (out,), grads = alone(tensors)
    assert all(answer[0] == out.shape for answer in found)
    torch.testing.assert_close(torch.cat([answer[1] for answer in found], dim=2), out, rtol=1e-12, atol=1e-12)
    for place, grad in enumerate(grads):
        torch.testing.assert_close(torch.cat([answer[2][place] for answer in found], dim=2), grad)
    for failed in pool.run_or_errors(uneven, 2, tensors=tensors, lengths=lengths, with_shape=False):
        assert isinstance(failed, JobFailed)
        assert "Disagreement" in failed.kinds
    for failed in pool.run_or_errors(uneven, 2, tensors=tensors, lengths=[(6, 7), (5, 6), (5, 6)], with_shape=False):
        assert "query: (3, 4, 12, 5) as (Shard(dim=2),) on rank 0" in failed.message


def fewer_than_ranks(mesh, tensors):
    dtensors = [distribute_tensor(t, mesh, [Shard(2)]) for t in tensors[:3]]
    return attend(*dtensors).full_tensor()


def test_a_rank_with_nothing(pool: RankPool) -> None:
    tensors = [t[:, :, :2].clone() for t in drawn()[0]]
    for found in pool.run(fewer_than_ranks, 4, tensors=tensors):
        torch.testing.assert_close(found, qkv.attention(*tensors[:3]))


def named(mesh, tensors, which):
    mesh = grid()
    dtensors = [distribute_tensor(t, mesh, [Replicate(), Shard(2)]) for t in tensors[:3]]
    given = {"axis": "two"}, {"mesh": mesh, "axis": 1}, {"mesh": mesh["two"]}, {"mesh": mesh, "axis": -1}
    return attend(*dtensors, **given[which]).full_tensor()


def test_mesh_and_axis_may_be_named(pool: RankPool) -> None:
    tensors, _ = drawn()
    for which in range(4):
        for found in pool.run(named, 4, tensors=tensors, which=which):
            torch.testing.assert_close(found, qkv.attention(*tensors[:3]), rtol=1e-12, atol=1e-12)


def refused(mesh, placements, only=None, plain=(), two=True, odd=False, **options):
    """only: the rank with these placements; the others shard the sequence."""
    mesh = grid() if two else mesh
    usual = [Replicate(), Shard(2)] if two else [Shard(2)]
    heads = 3 if odd else HEADS
    shapes = [(2, heads, 6, WIDTH), (2, heads, 6, WIDTH), (2, heads, 6, WIDTH)]
    tensors = []
    for number, shape in enumerate(shapes):
        mine = placements[number] if isinstance(placements[0], list) else placements
        mine = mine if only is None or torch.distributed.get_rank() == only else usual
        if number in plain and (only is None or torch.distributed.get_rank() == only):
            tensors.append(torch.zeros(shape))
        else:
            dtensors = torch.zeros(_local_shape(shape, mesh, mine))
            tensors.append(
                distribute_tensor(torch.zeros(shape), mesh, mine) if odd else DTensor.from_local(dtensors, mesh, mine)
            )
    if options.pop("dtensor_sink", False):
        options["similarity"] = qkv.Softmax(sink=distribute_tensor(torch.zeros(heads), mesh, [Replicate()] * mesh.ndim))
    qkv.parallel.attention(*tensors, **options)


def _local_shape(shape, mesh, placements):
    shape = list(shape)
    for place, placement in enumerate(placements):
        if isinstance(placement, Shard):
            shape[placement.dim] //= mesh.size(place)
    return shape


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("Replicate() along axis 'two', wanted Shard", {"placements": [Replicate(), Replicate()]}),
        ("query: got Replicate() along axis 'one'", {"placements": [Replicate(), Shard(2)], "axis": "one"}),
        ("Partial(sum) of 4 dimensions along axis 'one'", {"placements": [Partial(), Shard(2)]}),
        ("Shard(dim=3) of 4 dimensions along axis 'two'", {"placements": [Replicate(), Shard(3)]}),
        ("Shard(dim=2) along axis 'one', Shard(dim=2) along axis 'two', wanted", {"placements": [Shard(2), Shard(2)]}),
        ("key: got Shard(dim=1) along axis 'two', wanted Shard(dim=2)",
         {"placements": [[Replicate(), Shard(2)], [Replicate(), Shard(1)], [Replicate(), Shard(2)]]}),
        ("along axis 'two' in a call along axis 'one', wanted", {"placements": [Shard(1), Shard(2)], "axis": "one"}),
        ("plain tensors for value", {"placements": [Replicate(), Shard(2)], "plain": (2,)}),
        ("3 heads on 2 ranks", {"placements": [Replicate(), Shard(1)], "odd": True}),
        ("split: got 'ring'", {"placements": [Replicate(), Shard(1)], "split": "ring"}),
        ("bias: got shape (2, 1, 1)", {"placements": [Shard(1), Shard(2)], "bias": torch.zeros(2, 1, 1)}),
        ("sink: got a DTensor", {"placements": [Replicate(), Shard(2)], "dtensor_sink": True}),
        ("mask: got a torch.bool tensor", {"placements": [Shard(0), Shard(2)], "mask": torch.tensor([True])}),
        ("mask", {"placements": [Shard(0), Shard(2)], "mask": qkv.Padding([9, 1])}),
    ],
)  # fmt: skip
def test_refusals(pool: RankPool, message: str, options) -> None:
    for failed in pool.run_or_errors(refused, 4, **options):
        assert isinstance(failed, JobFailed)
        assert "QkvError" in failed.kinds
        assert message in failed.message, failed.message


def test_a_refusal_of_one_rank_reaches_the_others(pool: RankPool) -> None:
    for options in ({"placements": [Shard(2)], "plain": (2,)}, {"placements": [[Shard(2)], [Shard(1)], [Shard(1)]]}):
        found = pool.run_or_errors(refused, 2, only=1, two=False, **options)
        assert "Disagreement" in found[0].kinds, found[0].message
        assert "rank 1 refused the call" in found[0].message
        assert "Disagreement" not in found[1].kinds
