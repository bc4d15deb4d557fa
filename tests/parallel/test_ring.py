"""The strategy `ring`: the result of one process, for any shards."""

import pytest
import torch

import qkv
from qkv.backends.base import RUNS
from qkv.parallel.transfer import TRAFFIC
from tests.helpers.ranks import RankPool

LENGTHS = {2: (11, 6), 3: (7, 0, 10), 4: (2, 5, 7, 3)}
EVEN = {2: (9, 8), 3: (6, 6, 5), 4: (4, 4, 4, 5)}
MASKS = [
    None,
    qkv.Causal(),
    qkv.Causal() & qkv.Window(left=4),
    qkv.Window(left=1, right=2),
    qkv.Causal() & qkv.Padding([17, 9]),
    qkv.Segments([0] * 5 + [1] * 8 + [2] * 4) & qkv.Causal(),
    qkv.Predicate(lambda batch, head, query, key: (query + 2 * key + head) % 3 != 0),
]


def with_mask(options):
    """A mask may be given by its index in MASKS, since functions cannot be pickled."""
    return {**options, "mask": MASKS[options["mask"]]} if isinstance(options.get("mask"), int) else options


def job(mesh, query, key, value, grads, lengths, options, split="ring"):
    rank = mesh.get_local_rank()
    options = with_mask(options)
    own = [t.split(lengths, dim=-2)[rank].clone().requires_grad_() for t in (query, key, value)]
    if options.get("bias") is not None:
        own.append(options["bias"].split(lengths, dim=-2)[rank].clone().requires_grad_())
        options = {**options, "bias": own[3]}
    RUNS.clear()
    answer = qkv.parallel.attention(*own[:3], mesh=mesh, axis="ranks", split=split, **options)
    answers = answer if isinstance(answer, tuple) else (answer,)
    axes = -2, -1
    parts = [grad.split(lengths, dim=axis)[rank] for grad, axis in zip(grads, axes, strict=False)]
    torch.autograd.backward(answers, parts[: len(answers)])
    return [[a.detach() for a in answers], [t.grad for t in own], dict(RUNS)]


def inputs(dtype=torch.float64, length=17):
    seed = torch.Generator().manual_seed(3)
    shapes = [(2, 6, length, 5), (2, 3, length, 5), (2, 3, length, 7)]
    query, key, value = (torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype) for shape in shapes)
    grads = [torch.randn((2, 6, length, 7), generator=seed, dtype=torch.float64).to(dtype)]
    grads.append(torch.randn((2, 6, length), generator=seed, dtype=torch.float64).to(dtype))
    return query, key, value, grads


def check(pool: RankPool, ranks: int, lengths, options, dtype=torch.float64, **tolerance) -> list:
    query, key, value, grads = inputs(dtype)
    found = pool.run(job, ranks, query=query, key=key, value=value, grads=grads, lengths=lengths, options=options)
    options = with_mask(options)
    own = [t.clone().requires_grad_() for t in (query, key, value)]
    if options.get("bias") is not None:
        own.append(options["bias"].clone().requires_grad_())
        options = {**options, "bias": own[3]}
    answer = qkv.attention(*own[:3], **options)
    answers = answer if isinstance(answer, tuple) else (answer,)
    torch.autograd.backward(answers, grads[: len(answers)])
    for place, want in enumerate(answers):
        got = torch.cat([each[0][place] for each in found], dim=2)
        torch.testing.assert_close(got, want.detach(), **tolerance)
    for place, tensor in enumerate(own):
        got = torch.cat([each[1][place] for each in found], dim=-2)
        torch.testing.assert_close(got, tensor.grad, **tolerance)
    return [each[2] for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("mask", range(len(MASKS)), ids=lambda place: repr(MASKS[place]))
@pytest.mark.parametrize("lengths", [EVEN, LENGTHS], ids=["even", "uneven"])
def test_equals_one_process(pool: RankPool, ranks: int, mask, lengths) -> None:
    runs = check(pool, ranks, lengths[ranks], {"mask": mask}, rtol=1e-11, atol=1e-11)
    assert all(run["parallel.ring"] == 1 for run in runs)


@pytest.mark.parametrize(
    "options",
    [
        {"similarity": qkv.Softmax(softcap=2.0)},
        {"similarity": qkv.Softmax(scale=0.7, sink=0.3), "return_lse": True},
        {"return_lse": True},
        {"bias": torch.linspace(-1, 1, 17 * 17, dtype=torch.float64).view(17, 17)},
        {"bias": torch.linspace(-1, 1, 6 * 17, dtype=torch.float64).view(6, 17, 1)},
        {"backend": "reference"},
        {"backend": "blockwise"},
        {"backend": "sdpa"},
    ],
    ids=["softcap", "sink", "lse", "bias", "narrow bias", "reference", "blockwise", "sdpa"],
)
def test_options(pool: RankPool, options) -> None:
    for ranks in (2, 4):
        check(pool, ranks, EVEN[ranks], {**options, "mask": qkv.Causal()}, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dtypes(pool: RankPool, dtype) -> None:
    tolerance = {"rtol": 2e-5, "atol": 2e-5} if dtype is torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    runs = check(pool, 3, EVEN[3], {"mask": qkv.Causal()}, dtype, **tolerance)
    assert all(run["parallel.flash"] for run in runs)


def sending(mesh, mask, lengths):
    rank = mesh.get_local_rank()
    own = [torch.ones(2, heads, lengths[rank], 5) for heads in (6, 3, 3)]
    TRAFFIC.clear()
    qkv.parallel.attention(*own, mesh=mesh, mask=mask, split="ring")
    return TRAFFIC["data bytes"]


def test_a_window_sends_only_attended_keys(pool: RankPool) -> None:
    lengths = (7, 7, 7, 7)
    token = 2 * 3 * (5 + 5) * 4
    assert pool.run(sending, 4, mask=None, lengths=lengths) == [3 * 7 * token] * 4
    narrow = qkv.Causal() & qkv.Window(left=2)
    assert pool.run(sending, 4, mask=narrow, lengths=lengths) == [2 * token] * 3 + [0]
