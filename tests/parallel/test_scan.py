"""The strategy `scan`: sums over keys are sent, and the result is that of one process."""

import time
from functools import cache
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import ops, parallel
from qkv.backends.base import RUNS
from qkv.errors import OptionError
from qkv.parallel.transfer import TRAFFIC
from tests.helpers.linear_reference import close, draw, learned, quadratic, similarities
from tests.helpers.ranks import JobFailed, RankPool

pytestmark = pytest.mark.slow

# For each number of ranks, shards of queries and of keys that end together.
SHARDS = {1: [(17,)], 2: [(11, 6)], 3: [(7, 0, 10)], 4: [(2, 5, 7, 3), (0, 13, 4, 0)]}
SOME = {
    torch.float64: ("elu1 undivided", "two-sided", "polynomial 2"),
    torch.float32: ("elu1", "random"),
}
MASKS = ("all", "causal", "padding", "both", "shifted")


def mask_of(name: str, length: int) -> tuple[Any, int | None, Tensor | None]:
    """The mask, its offset, and the keys that it keeps."""
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(length)) < 0.6
    keep[0, : length // 3] = False
    keep[1] = False if name == "padding" else keep[1]
    return {
        "all": (None, None, None),
        "causal": (qkv.Causal(), 0, None),
        "padding": (qkv.Padding(keep=keep), None, keep),
        "both": (qkv.Causal() & qkv.Padding(keep=keep), 0, keep),
        "shifted": (qkv.Causal(offset=-1), -1, None),
    }[name]


def job(mesh, tensors, grad, shards, calls, split="scan", backend="auto", pause=0.0) -> list[Any]:
    """For each call: the result and the gradients of the rank's shards, and what ran."""
    rank, found = mesh.get_local_rank(), []
    time.sleep(pause * rank)
    for similarity, mask in calls:
        own = [
            t.split(s, dim=-2)[rank].clone().requires_grad_()
            for t, s in zip(tensors, (shards[0], shards[1], shards[1]), strict=True)
        ]
        similarity = similarities()[similarity] if isinstance(similarity, str) else similarity
        before = RUNS.copy()
        options = {"similarity": similarity, "mask": mask, "split": split, "backend": backend}
        out = parallel.attention(*own, mesh=mesh, axis="ranks", **options)
        out.backward(grad.split(shards[0], dim=-2)[rank])
        found.append(([out.detach(), *(t.grad for t in own)], dict(RUNS - before)))
    return found


def together(found: list[Any], call: int) -> list[Tensor]:
    return [torch.cat([rank[call][0][place] for rank in found], dim=-2) for place in range(4)]


def reference(tensors: Any, grad: Tensor, similarity: Any, offset: int | None, keep: Tensor | None) -> Any:
    """The answer in float64 with the measure of its error, and the derivatives."""
    inputs = [t.detach().double().clone().requires_grad_() for t in tensors]
    out, reach = quadratic(*inputs, similarity, offset=offset, keep=keep)
    out.backward(grad.double())
    return (out.detach(), reach), [t.grad for t in inputs]


def drawn(length: int, dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Query, key and value, and the derivative by the answer."""
    return draw(length, dtype=dtype), draw(length, dtype=dtype, heads=(6, 6), seed=7)[2]


@cache
def wanted(similarity: str, mask: str, length: int, dtype: torch.dtype) -> Any:
    return reference(*drawn(length, dtype), similarities()[similarity], *mask_of(mask, length)[1:])


def check(found: list[Tensor], right: Any, what: str) -> None:
    answer, gradients = right
    close(found[0], answer, what=what)
    part = {torch.float64: 1e-11, torch.float32: 3e-4}.get(found[0].dtype, 0.05)
    for name, got, want in zip(("query", "key", "value"), found[1:], gradients, strict=True):
        error, size = (got.double() - want).abs().max(), want.abs().max()
        assert error <= part * size, f"{what}: derivative by {name} is off by {error:.3g} of {size:.3g}"


@pytest.mark.parametrize("ranks", SHARDS)
@pytest.mark.parametrize("dtype", SOME, ids=str)
def test_equals_one_process(pool: RankPool, ranks: int, dtype: torch.dtype) -> None:
    tensors, grad = drawn(17, dtype)
    for lengths in SHARDS[ranks]:
        for shifted in (False, True):
            # Query i + 1 sees what query i sees otherwise: shards of queries end one later.
            queries = [n + (at == 0) - (at == ranks - 1) for at, n in enumerate(lengths)] if shifted else [*lengths]
            if min(queries) < 0:
                continue
            names = [(s, m) for s in SOME[dtype] for m in MASKS if (m == "shifted") == shifted]
            calls, shards = [(s, mask_of(m, 17)[0]) for s, m in names], (queries, [*lengths])
            found = pool.run(job, ranks, tensors=tensors, grad=grad, shards=shards, calls=calls)
            for at, (similarity, mask) in enumerate(names):
                assert all(rank[at][1].get("parallel.scan") == 1 for rank in found)
                what = f"{similarity}, {mask}, {queries} queries, {lengths} keys"
                check(together(found, at), wanted(similarity, mask, 17, dtype), what)


@pytest.mark.parametrize(
    ("dtype", "names"), [(torch.float64, ["two-sided"]), (torch.float32, ["elu1", "polynomial 2"])], ids=str
)
def test_shards_of_many_chunks(pool: RankPool, dtype: torch.dtype, names: list[str]) -> None:
    tensors, grad = drawn(547, dtype)
    tensors = tuple(t[:1, : t.shape[1] // 3] for t in tensors)
    grad, shards = grad[:1, :2], [1, 307, 239]
    calls = [(s, m) for s in names for m in (None, qkv.Causal())]
    found = pool.run(job, 3, tensors=tensors, grad=grad, shards=(shards, shards), calls=calls)
    for at, (similarity, mask) in enumerate(calls):
        right = reference(tensors, grad, similarities()[similarity], None if mask is None else 0, None)
        check(together(found, at), right, f"{similarity}, {mask}")


def without_kernels(mesh, **given) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "reasons", lambda: ("they are not to run here",))
        return job(mesh, **given)


@pytest.mark.parametrize("job", [job, without_kernels])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_sums_in_float32(pool: RankPool, dtype: torch.dtype, job: Any) -> None:
    tensors, grad = drawn(17, dtype)
    names = [(s, m) for s in ("elu1", "two-sided") for m in ("all", "both")]
    calls = [(s, mask_of(m, 17)[0]) for s, m in names]
    found = pool.run(job, 3, tensors=tensors, grad=grad, shards=([7, 0, 10],) * 2, calls=calls)
    for at, (similarity, mask) in enumerate(names):
        assert together(found, at)[0].dtype is dtype
        check(together(found, at), wanted(similarity, mask, 17, dtype), f"{similarity}, {mask}")


@pytest.mark.parametrize("dims", [3, 2])
def test_fewer_dimensions(pool: RankPool, dims: int) -> None:
    tensors, grad = drawn(17, torch.float64)
    (*tensors, grad), lost = [t[:, 0] if dims == 3 else t[0, 0] for t in (*tensors, grad)], 4 - dims
    calls = [("elu1", None), ("elu1", qkv.Causal())]
    found = pool.run(job, 2, tensors=tensors, grad=grad, shards=([11, 6],) * 2, calls=calls)
    for at, offset in enumerate((None, 0)):
        four = [t.unsqueeze(1) if lost == 1 else t[None, None] for t in (*tensors, grad)]
        got = [t.unsqueeze(1) if lost == 1 else t[None, None] for t in together(found, at)]
        check(got, reference(four[:3], four[3], similarities()["elu1"], offset, None), f"{dims} dimensions")


def of_poison(mesh, tensors, shards, mask, similarity, queries=None) -> Any:
    rank, before = mesh.get_local_rank(), RUNS.copy()
    every = zip(tensors, (queries or shards, shards, shards), strict=True)
    own = [t.split(s, dim=-2)[rank].clone().requires_grad_() for t, s in every]
    out = parallel.attention(
        *own, mesh=mesh, axis="ranks", similarity=similarities()[similarity], mask=mask, split="scan"
    )
    torch.where(out.isfinite(), out, 0.0).sum().backward()
    return out.detach(), [t.grad for t in own], dict(RUNS - before)


@pytest.mark.parametrize(
    ("similarity", "dtype"),
    [("elu1", torch.float32), ("two-sided", torch.float32), ("elu1", torch.float64), ("polynomial 2", torch.float32)],
)
def test_what_is_padded_cannot_matter(pool: RankPool, similarity: str, dtype: torch.dtype) -> None:
    (query, key, value), _ = drawn(17, dtype)
    keep = torch.ones(2, 17, dtype=torch.bool)
    keep[0, :9], keep[1, 4:13] = False, False
    hidden = ~keep[:, None, :, None]
    shards = [7, 0, 10]
    for mask in (qkv.Padding(keep=keep), qkv.Causal() & qkv.Padding(keep=keep)):
        clean = pool.run(of_poison, 3, tensors=[query, key, value], shards=shards, mask=mask, similarity=similarity)
        bad = [query, key.masked_fill(hidden, nan), value.masked_fill(hidden, inf)]
        if mask.parts()[1:]:  # the first nine queries of row 0 see nothing
            bad[0] = query.clone()
            bad[0][0, :, :9] = nan
        found = pool.run(of_poison, 3, tensors=bad, shards=shards, mask=mask, similarity=similarity)
        for (out, grads, ran), (right, right_grads, _) in zip(found, clean, strict=True):
            assert ran.get("parallel.scan") == 1
            assert torch.equal(out, right)
            assert all(torch.equal(g, w) for g, w in zip(grads, right_grads, strict=True))


@pytest.mark.parametrize(
    ("similarity", "dtype"),
    [("elu1", torch.float32), ("elu1 undivided", torch.float64), ("polynomial 2", torch.float32)],
)
def test_what_is_attended_is_not_hidden(pool: RankPool, similarity: str, dtype: torch.dtype) -> None:
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}[dtype]
    for place, number in ((0, inf), (1, nan), (2, -inf)):
        tensors, _ = drawn(17, dtype)
        tensors[place][1, 2, 8, 3] = number
        for mask in (qkv.Causal(), None):
            found = pool.run(of_poison, 3, tensors=tensors, shards=[7, 0, 10], mask=mask, similarity=similarity)
            assert all(ran.get("parallel.scan.nonfinite") == 1 for _, _, ran in found)
            out = torch.cat([out for out, _, _ in found], dim=2)
            right = qkv.attention(*tensors, similarity=similarities()[similarity], mask=mask, backend="linear")
            torch.testing.assert_close(out, right, rtol=tolerance, atol=tolerance, equal_nan=True)
            if mask is not None:
                assert bool(out[:, :, :8].isfinite().all())


def test_keys_after_the_last_attended_one_cannot_matter(pool: RankPool) -> None:
    (query, key, value), _ = drawn(17, torch.float64)
    key[:, :, 12:], value[:, :, 12:] = nan, nan
    found = pool.run(
        of_poison,
        3,
        tensors=[query, key, value],
        shards=[7, 0, 10],
        mask=qkv.Causal(-5),
        similarity="elu1",
        queries=[12, 0, 5],
    )
    assert all(ran.get("parallel.scan") == 1 for _, _, ran in found)
    out = torch.cat([out for out, _, _ in found], dim=2)
    assert not out[:, :, :5].any()
    close(out, quadratic(query, key, value, similarities()["elu1"], offset=-5))
    assert not torch.cat([grads[1] for _, grads, _ in found], dim=2)[:, :, 12:].any()


def of_bytes(mesh, length, similarity, mask) -> tuple[int, int]:
    rank, ranks = mesh.get_local_rank(), mesh.size()
    tensors = [t.split(-(-length // ranks), dim=2)[rank].requires_grad_() for t in draw(length)]
    counts = [TRAFFIC["data bytes"]]
    out = parallel.attention(
        *tensors, mesh=mesh, axis="ranks", similarity=similarities()[similarity], mask=mask, split="scan"
    )
    counts.append(TRAFFIC["data bytes"])
    out.sum().backward()
    counts.append(TRAFFIC["data bytes"])
    return counts[1] - counts[0], counts[2] - counts[1]


def bytes_of_states(ranks: int, rank: int, state: int, causal: bool, backward: bool) -> int:
    """Causal: a state to the ranks 1, 2, 4, … after it, in the backward pass before it. Otherwise a slice to every
    rank, which sums them and sends the sum to all."""
    if causal:
        return state * (rank if backward else ranks - 1 - rank).bit_length()
    numbers = state // 4
    own = numbers * (rank + 1) // ranks - numbers * rank // ranks
    return 4 * (numbers - own + own * (ranks - 1))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
def test_bytes_do_not_depend_on_the_length(pool: RankPool, ranks: int, causal: bool) -> None:
    for similarity, features in (("elu1", 7), ("polynomial 2", 36)):
        state = 4 * 2 * 3 * features * (5 + 1)
        right = [
            tuple(bytes_of_states(ranks, rank, state, causal, backward) for backward in (False, True))
            for rank in range(ranks)
        ]
        for length in (19, 211):
            mask = qkv.Causal() if causal else None
            found = pool.run(of_bytes, ranks, length=length, similarity=similarity, mask=mask)
            assert found == right
        assert all(max(pair) <= state * ((ranks - 1).bit_length() if causal else 2) for pair in right)


def of_learning(mesh, shards, mask) -> Any:
    rank, phi = mesh.get_local_rank(), learned().double()
    tensors, grad = drawn(17, torch.float64)
    own = [t.split(shards, dim=2)[rank] for t in tensors]
    options = {"similarity": qkv.FeatureMap(phi), "mask": mask, "split": "scan"}
    out = parallel.attention(*own, mesh=mesh, axis="ranks", **options)
    out.backward(grad.split(shards, dim=2)[rank])
    return [p.grad for p in phi.parameters()]


@pytest.mark.parametrize("mask", [None, qkv.Causal()], ids=repr)
def test_the_parts_of_a_maps_gradient_add_up(pool: RankPool, mask: Any) -> None:
    found = pool.run(of_learning, 3, shards=[7, 0, 10], mask=mask)
    phi = learned().double()
    tensors, grad = drawn(17, torch.float64)
    quadratic(*tensors, qkv.FeatureMap(phi), offset=None if mask is None else 0)[0].backward(grad)
    for parts, parameter in zip(zip(*found, strict=True), phi.parameters(), strict=True):
        torch.testing.assert_close(sum(parts), parameter.grad, rtol=1e-11, atol=1e-11)


def test_delays_do_not_change_a_bit(pool: RankPool) -> None:
    tensors, grad = drawn(17, torch.float32)
    given = {"tensors": tensors, "grad": grad, "shards": ([2, 5, 7, 3],) * 2}
    calls = [("elu1", None), ("elu1", qkv.Causal())]
    first, late = (pool.run(job, 4, **given, calls=calls, pause=pause) for pause in (0.0, 0.03))
    for at in range(2):
        assert all(torch.equal(a, b) for a, b in zip(together(first, at), together(late, at), strict=True))


@pytest.mark.parametrize(
    ("mask", "keys", "message"),
    [
        (qkv.Causal(), [6, 11], "on rank 0, queries 0 to 6 attend to the first 1 to 7 keys"),
        (qkv.Causal(-3), [7, 10], "on rank 1, queries 7 to 16 attend to the first 5 to 14 keys"),
        (qkv.Causal() & qkv.Window(left=3), [7, 10], "a Window drops earlier keys"),
    ],
    ids=repr,
)
def test_refusals(pool: RankPool, mask: Any, keys: list[int], message: str) -> None:
    tensors, grad = drawn(17, torch.float64)
    given = {"tensors": tensors, "grad": grad, "shards": ([7, 10], keys), "calls": [("elu1", mask)]}
    for answer in pool.run_or_errors(job, 2, **given):
        assert isinstance(answer, JobFailed)
        assert "BackendRefused" in answer.kinds
        assert message in answer.message
    pool.run(job, 2, **given, split="auto")


def test_another_backend_is_refused(pool: RankPool) -> None:
    tensors, grad = drawn(17, torch.float64)
    given = {"tensors": tensors, "grad": grad, "shards": ([7, 10],) * 2, "calls": [("elu1", None)]}
    assert all(
        "backend='reference'" in answer.message for answer in pool.run_or_errors(job, 2, **given, backend="reference")
    )
    pool.run(job, 2, **given, backend="linear")


def of_other_maps(mesh) -> None:
    rank, (tensors, _) = mesh.get_local_rank(), drawn(5, torch.float32)
    similarity = qkv.FeatureMap(learned(count=11 + rank))
    parallel.attention(*tensors, mesh=mesh, axis="ranks", similarity=similarity, split="scan")


def of_second_derivatives(mesh) -> str:
    tensors, _ = drawn(5, torch.float32)
    query = tensors[0].requires_grad_()
    similarity = similarities()["elu1"]
    out = parallel.attention(query, *tensors[1:], mesh=mesh, axis="ranks", similarity=similarity, split="scan")
    with pytest.raises(OptionError, match="create_graph"):
        torch.autograd.grad(out.sum(), query, create_graph=True)
    return "refused"


def test_maps_that_differ_are_named_and_second_derivatives_refused(pool: RankPool) -> None:
    for answer in pool.run_or_errors(of_other_maps, 2):
        assert isinstance(answer, JobFailed)
        assert "Disagreement" in answer.kinds
        assert "features of the map: 11 on rank 0, 12 on rank 1" in answer.message
    assert pool.run(of_second_derivatives, 2) == ["refused"] * 2
