"""`qkv.parallel.attention`: when one rank does something else, every rank raises an error."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, distribute_tensor

import qkv
from tests.helpers.ranks import JobFailed, RankPool

pytestmark = pytest.mark.slow


def shard(rank: int, **options) -> torch.Tensor:
    return torch.randn(1, 2, 5, 7, generator=torch.Generator().manual_seed(rank), **options)


def fine(mesh) -> bool:
    """Whether the group still works."""
    x = shard(mesh.get_local_rank())
    return bool(qkv.parallel.attention(x, x, x, mesh=mesh).isfinite().all())


def other_call(mesh):
    rank, x = mesh.get_local_rank(), shard(0)
    (qkv.parallel.explain if rank == 1 else qkv.parallel.attention)(x, x, x, mesh=mesh)


def other_axis(mesh):
    rank, x = mesh.get_local_rank(), shard(0)
    qkv.parallel.attention(x, x, x, mesh=mesh, axis="nowhere" if rank == 1 else "ranks")


def raising(x):
    if dist.get_rank() == 1:
        raise ZeroDivisionError("no such map")
    return x


def failing_map(mesh):
    x = shard(0)
    qkv.parallel.attention(x, x, x, mesh=mesh, similarity=qkv.FeatureMap(raising), split="gather")


@pytest.mark.parametrize(
    ("job", "kind", "word"),
    [
        (other_call, "Disagreement", "explain on rank 1"),
        (other_axis, "OptionError", "rank 1 refused the call"),
        (failing_map, "ZeroDivisionError", "no such map"),
    ],
)
def test_every_rank_raises_an_error(pool: RankPool, job, kind: str, word: str) -> None:
    answers = pool.run_or_errors(job, 3)
    assert all(isinstance(answer, JobFailed) for answer in answers)
    assert kind in answers[1].kinds
    for answer in answers[::2]:
        assert "Disagreement" in answer.kinds
        assert word in answer.message
    assert pool.run(fine, 3) == [True] * 3


def turned(mesh):
    """The last rank first in the mesh: the order of the group counts."""
    size, rank = mesh.size(), dist.get_rank()
    other = DeviceMesh("cpu", list(range(dist.get_world_size()))[::-1], mesh_dim_names=("turned",))
    x = shard(rank)
    return qkv.parallel.attention(x, x, x, mesh=other, mask=qkv.Causal()), size


def test_a_mesh_in_another_order(pool: RankPool) -> None:
    found = pool.run(turned, pool.size)
    whole = torch.cat([shard(rank) for rank in range(pool.size)], dim=2)
    got = torch.cat([out for out, _ in found], dim=2)
    torch.testing.assert_close(got, qkv.attention(whole, whole, whole, mask=qkv.Causal()), rtol=1e-5, atol=1e-6)


def whole_dtensor(mesh):
    x = distribute_tensor(shard(0), mesh, [Replicate()])
    qkv.attention(x, x, x, mask=qkv.Causal())


def test_one_process_refuses_dtensors(pool: RankPool) -> None:
    for answer in pool.run_or_errors(whole_dtensor, 2):
        assert "DtypeError" in answer.kinds
        assert "qkv.parallel.attention" in answer.message
