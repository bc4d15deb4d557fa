"""Calls of sharded layers with check=True: ranks that differ all raise an error and go on; a lost rank is named."""

import contextlib
import copy
import os
import pickle
import time
from typing import Any

import pytest
import torch

import qkv
from qkv.parallel.consensus import _checksums
from tests.helpers.parallel_layers import TOKENS, VOCABULARY, X, made, whole
from tests.helpers.ranks import JobFailed, RankPool

pytestmark = pytest.mark.slow

# What rank 1 is called with instead, and part of the message on both ranks.
DIFFERENCES: dict[str, tuple[str, Any, str]] = {
    "shape": ("attention", lambda x: {"x": x[:, :5]}, "x: float64 (3, 7, 24) on rank 0, float64 (3, 5, 24) on rank 1"),
    "dtype": ("attention", lambda x: {"x": x.float()}, "float32 (3, 7, 24) on rank 1"),
    "numbers": ("attention", lambda x: {"x": x.flip(0)}, "x: other numbers on rank 1 than on rank 0"),
    "NaN": ("attention", lambda x: {"x": x.clone().fill_(torch.nan)}, "x, non-finite numbers: 0 on rank 0, 504 on"),
    "gradient": ("attention", lambda x: {"x": x.clone().requires_grad_()}, "with a gradient on rank 1"),
    "mask": ("attention", lambda x: {"mask": qkv.Window(left=2)}, "mask: Causal() on rank 0, Window(2) on rank 1"),
    "option": ("attention", lambda x: {"return_weights": True}, "return_weights: False on rank 0, True on rank 1"),
    "unknown": ("attention", lambda x: {"colour": "red"}, "unexpected keyword argument 'colour'"),
    "tokens": ("decoder", lambda x: {"tokens": (x + 1) % VOCABULARY}, "tokens: <int64 (3, 7) #"),
    "one token": ("decoder", lambda x: {"tokens": x.clone().put_(torch.tensor(5), x[0, 5] ^ 1)}, "tokens: <int64"),
    "lengths": ("decoder", lambda x: {"lengths": [7, 4, 6]}, "lengths: [7, 4, 5] on rank 0, [7, 4, 6] on rank 1"),
}


def differing(mesh, what):
    """The message and the seconds until it; then all ranks make the same call."""
    rank = mesh.get_local_rank()
    name, other, _ = DIFFERENCES[what]
    model, given, options = made(name)
    qkv.parallel.parallelize(model, mesh, check=True)
    arguments = {"x" if name == "attention" else "tokens": given[0]} | options
    begin, message = time.monotonic(), None
    try:
        model(**arguments | (other(given[0]) if rank else {}))
    except (qkv.errors.QkvError, TypeError) as error:
        message = str(error)
    seconds = time.monotonic() - begin
    return message, seconds, model(*given, **options).detach()


@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_that_differ_all_raise_and_go_on(pool: RankPool, what: str) -> None:
    name, _, wanted = DIFFERENCES[what]
    model, given, options = made(name)
    want = model(*given, **options).detach()
    for message, seconds, answer in pool.run(differing, 2, what=what):
        assert message is not None
        assert wanted in message
        assert seconds < 5
        torch.testing.assert_close(answer, want, rtol=1e-10, atol=1e-10)


def modes(mesh, what):
    rank = mesh.get_local_rank()
    model: Any = qkv.parallel.parallelize(made("decoder")[0], mesh, check=True)
    cache = model.cache(batch=3, dtype=torch.float32)
    with torch.no_grad():
        model(TOKENS, cache=cache)
        model.train(what != "training" or not rank)
        if what == "cache":
            for layer in cache:
                layer.crop(7 - rank)
        if what == "weights" and rank:
            model.float()
        module = (model, model.layers[0].attention)[what == "call" and rank]
        with torch.set_grad_enabled(what == "gradients" and rank == 1):
            module(TOKENS[:, :1], cache=cache) if module is model else module(X, cache=cache[0])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("training", "training: 34 of 34 modules on rank 0, 0 of 34 modules on rank 1"),
        ("cache", "tokens, width 3, float32) of lengths [6, 6, 6]] on rank 1"),
        ("weights", "weights: torch.float64 on rank 0, torch.float32 on rank 1"),
        ("call", "call: Decoder.forward on rank 0, Attention.forward on rank 1"),
        ("gradients", "gradients: False on rank 0, True on rank 1"),
    ],
)
def test_modes_and_caches_that_differ(pool: RankPool, what: str, message: str) -> None:
    for failed in pool.run_or_errors(modes, 2, what=what):
        assert isinstance(failed, JobFailed)
        assert "Disagreement" in failed.kinds
        assert message in failed.message


def close_enough(mesh, scale):
    """Inputs that differ by rounding."""
    model, (x,), options = made("encoder")
    model = qkv.parallel.parallelize(model.eval(), mesh, check=True)
    with torch.no_grad():
        return model(x * (1 + scale * mesh.get_local_rank()), **options)[0]


def test_rounding_may_differ(pool: RankPool) -> None:
    with torch.no_grad():
        want = made("encoder")[0].eval()(X, lengths=[7, 4, 5])[0]
    for found in pool.run(close_enough, 2, scale=1e-6):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    for failed in pool.run_or_errors(close_enough, 2, scale=0.01):
        assert "other numbers on rank 1" in failed.message


class Batches(torch.nn.Module):
    """A module outside of qkv.nn, with a dict and a list as arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = made("attention")[0]

    def forward(self, batch, *more, **options):
        return self.layer(batch["x"] + sum(more), **options)


def call_batches(mesh, what):
    model, rank = qkv.parallel.parallelize(Batches(), mesh, check=True), mesh.get_local_rank()
    other = {what: 0.1 * rank}
    return model(
        {"x": X + other.get("dict", 0.0), "note": object()},
        X + other.get("list", 0.0),
        **({"colour": 1} if rank and what == "options" else {}),
    ).detach()


def test_arguments_of_other_modules(pool: RankPool) -> None:
    first, second = pool.run(call_batches, 2, what="nothing")
    assert torch.equal(first, second)
    for what, message in (
        ("dict", "batch['x']: other numbers"),
        ("options", "colour"),
    ):
        for failed in pool.run_or_errors(call_batches, 2, what=what):
            assert message in failed.message


@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (2, 3, 5), (0, 3)])
def test_checksums_differ_for_different_numbers(shape: tuple[int, ...]) -> None:
    x = torch.linspace(1, 2, max(1, torch.Size(shape).numel()))[: torch.Size(shape).numel()].view(shape)
    x.view(-1)[:1].fill_(torch.inf if x.numel() > 1 else 3.0)
    nonfinite, numbers = _checksums(x)
    assert nonfinite == int(x.numel() > 1)
    assert _checksums(x.clone()) == (nonfinite, numbers)
    found = torch.tensor(numbers).view(torch.float64)
    assert found.isfinite().all()
    for axis in range(x.dim()):
        other = torch.tensor(_checksums(x.flip(axis))[1]).view(torch.float64)
        assert not x.numel() or ((other - found).abs() > 1e-3 * found[-1]).any()


def copied(mesh, name):
    """A copy has its own guard, and its shared weights get the gradients of all ranks."""
    model, given, options = made(name)
    twin = copy.deepcopy(qkv.parallel.parallelize(model, mesh, check=True))
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(torch.nan)
    given = given[0][:, : 5 + mesh.get_local_rank()], *given[1:]
    with contextlib.suppress(qkv.errors.Disagreement):
        twin(*given, **options)
        return None
    answer = twin(X, **options)
    answer.sum().backward()
    return answer.detach(), {name: whole(p.grad) for name, p in twin.named_parameters()}


@pytest.mark.parametrize("name", ["attention with one sink", "attention by features"])
def test_copies(pool: RankPool, name: str) -> None:
    model, given, options = made(name)
    answer = model(*given, **options)
    answer.sum().backward()
    for found in pool.run(copied, 2, name=name):
        torch.testing.assert_close(found[0], answer.detach(), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found[1], {name: p.grad for name, p in model.named_parameters()})


def agreements(mesh, name):
    """How many agreement messages a rank sends for a call, and for generated tokens."""
    from qkv.parallel.transfer import TRAFFIC

    model: Any = qkv.parallel.parallelize(made(name)[0], mesh, check=True)
    before = TRAFFIC["agreement messages"]
    model(TOKENS)
    once = TRAFFIC["agreement messages"] - before
    qkv.nn.generate(model, TOKENS, new=5)
    return once, TRAFFIC["agreement messages"] - before - once


def test_only_the_outermost_call_is_compared(pool: RankPool) -> None:
    assert pool.run(agreements, 2, name="decoder") == [(1, 5)] * 2


def prompted(mesh):
    model: Any = qkv.parallel.parallelize(made("decoder")[0], mesh, check=True)
    qkv.nn.generate(model, TOKENS + mesh.get_local_rank(), new=5)


def other_axis(mesh):
    qkv.parallel.parallelize(qkv.nn.Attention(24, 8), mesh, ("ranks", "rows")[mesh.get_local_rank()])


def test_other_prompts_and_another_axis(pool: RankPool) -> None:
    for failed in pool.run_or_errors(prompted, 2):
        assert "tokens: <int64" in failed.message
    first, second = pool.run_or_errors(other_axis, 2)
    assert "rank 1 refused the call" in first.message
    assert "axis: got 'rows'" in second.message


def leaving(mesh, how):
    """A rank that ends, or raises, in the middle of a call."""

    def stop(*_):
        os._exit(1) if how == "ends" else time.sleep(5)
        raise ArithmeticError

    layer: Any = qkv.parallel.parallelize(made("attention")[0], mesh, check=True)
    if mesh.get_local_rank() == 1:
        layer.out.register_forward_pre_hook(stop)
    layer(X)


@pytest.mark.parametrize("how", ["ends", "gives up"])
def test_a_lost_rank_is_named(how: str) -> None:
    frail = RankPool(timeout=2.0)
    try:
        frail.start(leaving, 4, how=how)
        for rank in (0, 2, 3):
            assert frail._pipes[rank].poll(20)
            good, (kinds, text, _) = pickle.loads(frail._pipes[rank].recv_bytes())
            assert not good
            assert "PeerLost" in kinds
            assert "rank 1 of axis 'ranks' (4 ranks)" in text
    finally:
        frail.close()
