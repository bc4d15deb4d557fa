"""The strategy `gather`: the whole call on every rank's own queries."""

import pytest
import torch

import qkv
from tests.helpers.ranks import RankPool

pytestmark = pytest.mark.slow

LENGTHS = {2: (11, 6), 3: (7, 0, 10), 4: (2, 5, 7, 3)}


def job(mesh, query, key, value, grad, lengths, options):
    rank = mesh.get_local_rank()
    own = [t.split(lengths, dim=-2)[rank].clone().requires_grad_() for t in (query, key, value)]
    out = qkv.parallel.attention(*own, mesh=mesh, axis="ranks", split="gather", **options)
    out.backward(grad.split(lengths, dim=-2)[rank])
    return [out.detach(), *(t.grad for t in own)]


@pytest.mark.parametrize("ranks", LENGTHS)
@pytest.mark.parametrize("similarity", [None, qkv.Polynomial(2), qkv.Argmax()], ids=repr)
@pytest.mark.parametrize(
    "mask", [None, qkv.Causal(), qkv.Causal() & qkv.Window(left=4), qkv.Padding([17, 9])], ids=repr
)
def test_equals_one_process(pool: RankPool, ranks: int, similarity, mask) -> None:
    shape = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(2, heads, 17, 5, generator=shape, dtype=torch.float64) for heads in (6, 3, 3))
    grad = torch.randn(query.shape, generator=shape, dtype=torch.float64)
    options = {"similarity": similarity, "mask": mask}
    lengths = LENGTHS[ranks]
    found = pool.run(job, ranks, query=query, key=key, value=value, grad=grad, lengths=lengths, options=options)
    inputs = [t.clone().requires_grad_() for t in (query, key, value)]
    out = qkv.attention(*inputs, **options)
    out.backward(grad)
    for place, want in enumerate([out.detach(), *(t.grad for t in inputs)]):
        got = torch.cat([answer[place] for answer in found], dim=2)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
