"""Tensor parallel layers: the results, gradients, caches and tokens of one process."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import qkv
from tests.helpers.parallel_layers import KV, MODELS, TOKENS, made, whole
from tests.helpers.ranks import JobFailed, RankPool

pytestmark = pytest.mark.slow


def trained(mesh, name):
    """The answer, all gradients by name, and which of the weights are sharded."""
    model, given, options = made(name, seed=mesh.get_local_rank() if mesh is not None else 0)
    if mesh is not None:
        assert qkv.parallel.parallelize(model, mesh) is model
    given = tuple(t.clone().requires_grad_() if t.is_floating_point() else t for t in given)
    answer = model(*given, **options)
    assert type(answer) is torch.Tensor
    weights = torch.linspace(-1, 1, answer.numel(), dtype=torch.float64).view_as(answer)
    (answer * weights).sum().backward()
    # A module that is given twice has a weight under two names.
    every = dict(model.named_parameters(remove_duplicate=False))
    grads = {name: whole(p.grad).clone() for name, p in every.items() if p.grad is not None}
    inputs = [t.grad for t in given if t.is_floating_point()]
    return answer.detach(), inputs, grads, sorted(n for n, p in every.items() if isinstance(p, DTensor))


@pytest.mark.parametrize(("ranks", "name"), [*((2, name) for name in MODELS), (4, "block"), (4, "decoder")])
def test_forward_and_backward(pool: RankPool, ranks: int, name: str) -> None:
    answer, inputs, grads, _ = trained(None, name)
    for found in pool.run(trained, ranks, name=name):
        close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
        close(found[0], answer)
        close(found[1], inputs)
        close(found[2], grads)
        assert [n for n in found[3] if n.endswith("query.weight")]


def stepped(mesh, name, dtype):
    """Step by step from a cache, and how many bytes and heads that holds."""
    model, (tokens,), _ = made(name)
    model.eval()
    if mesh is not None:
        qkv.parallel.parallelize(model, mesh)
    held: Any = model
    cache = held.cache(batch=3, dtype=dtype)
    with torch.no_grad():
        steps = [held(tokens[:, :4], cache=cache)]
        steps += [held(tokens[:, i : i + 1], cache=cache) for i in range(4, 7)]
        straight = held(tokens, **({} if name.startswith("decoder") else {"mask": qkv.Causal()}))
    first = cache[0] if isinstance(cache, list) else cache
    return torch.cat(steps, dim=1), straight, first.heads


@pytest.mark.parametrize(
    ("ranks", "name"),
    [(2, "attention"), (4, "attention with a sink for each head"), (4, "decoder"), (2, "decoder by polynomials")],
)
def test_decoding(pool: RankPool, ranks: int, name: str) -> None:
    want, straight, _ = stepped(None, name, torch.float32)
    for found in pool.run(stepped, ranks, name=name, dtype=torch.float32):
        torch.testing.assert_close(found[0], want, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[1], straight, rtol=1e-10, atol=1e-10)
        assert found[2] == KV // ranks


def generated(mesh, name, **options):
    model, _, _ = made(name)
    if mesh is not None:
        qkv.parallel.parallelize(model, mesh)
    held: Any = model
    source = {"source": TOKENS} if name == "encoder and decoder" else {}
    made_ = qkv.nn.generate(held, TOKENS[:, :4], new=5, lengths=[4, 2, 3], **source, **options)
    return made_.tokens, made_.lengths


@pytest.mark.parametrize(
    ("ranks", "name", "options"),
    [
        (4, "decoder", {}),
        (2, "decoder", {"temperature": 0.7, "seed": 5}),
        (2, "decoder by polynomials", {}),
        (2, "encoder and decoder", {"beams": 3}),
    ],
)
def test_generating(pool: RankPool, ranks: int, name: str, options) -> None:
    want = generated(None, name, **options)
    for found in pool.run(generated, ranks, name=name, **options):
        assert torch.equal(found[0], want[0])
        assert torch.equal(found[1], want[1])


def learned(mesh, name):
    """Some steps of an optimiser, and the loss at the end."""
    model, given, options = made(name)
    if mesh is not None:
        qkv.parallel.parallelize(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    for _ in range(2):
        loss = model(*given, **options).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model(*given, **options).square().mean().item()


def clipped(mesh, name):
    """The recipe of docs/parallel.md: the gradients' norm, and the weights after a step with all of them at once."""
    model, given, options = made(name)
    qkv.parallel.parallelize(model, mesh)
    model(*given, **options).square().sum().backward()
    kinds = [[w for w in model.parameters() if hasattr(w, "full_tensor") == sharded] for sharded in (True, False)]
    kinds = [weights for weights in kinds if weights]
    optimizer = torch.optim.SGD([{"params": weights} for weights in kinds], foreach=True, lr=0.1)
    norms = [nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None]) for weights in kinds]
    total = torch.stack([whole(norm) for norm in norms]).norm()
    for weights in kinds:
        nn.utils.clip_grads_with_norm_(weights, 1.0, total)
    optimizer.step()
    return total, [whole(w).detach() for w in model.parameters()]


def test_clipping(pool: RankPool) -> None:
    model, given, options = made("decoder")
    model(*given, **options).square().sum().backward()
    total = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for found in pool.run(clipped, 2, name="decoder"):
        torch.testing.assert_close(found[0], total)
        torch.testing.assert_close(found[1], [w.detach() for w in model.parameters()])


def test_sampling_needs_a_seed(pool: RankPool) -> None:
    for failed in pool.run_or_errors(generated, 2, name="decoder", temperature=0.7):
        assert "seed: got None for a model on several ranks" in failed.message


def on_a_grid(mesh, named):
    names = ("batch", "heads") if named else None
    grid = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=names)
    model, (tokens,), _ = made("decoder", seed=grid.get_local_rank(1))
    qkv.parallel.parallelize(model, grid, "heads" if named else 1)
    rows = tokens.split([1, 2])[grid.get_local_rank(0)]
    with torch.no_grad():
        return model(rows)


@pytest.mark.parametrize("named", [True, False])
def test_one_axis_of_two(pool: RankPool, named: bool) -> None:
    """Heads along one axis, rows of the batch along the other."""
    model, (tokens,), _ = made("decoder")
    found = pool.run(on_a_grid, 4, named=named)
    with torch.no_grad():
        torch.testing.assert_close(torch.cat([found[0], found[2]]), model(tokens), rtol=1e-10, atol=1e-10)
    assert torch.equal(found[2], found[3])


def test_training(pool: RankPool) -> None:
    want = learned(None, "encoder and decoder")
    assert pool.run(learned, 2, name="encoder and decoder") == pytest.approx([want, want], rel=1e-9)


def saved(mesh, path):
    model, (tokens,), _ = made("decoder")
    qkv.parallel.parallelize(model, mesh)
    qkv.nn.save(model, f"{path}/{mesh.get_local_rank()}.safetensors")
    with torch.no_grad():
        return model(tokens)


def test_a_file_has_all_heads(pool: RankPool, tmp_path) -> None:
    for rank, answer in enumerate(pool.run(saved, 2, path=str(tmp_path))):
        with torch.no_grad():
            torch.testing.assert_close(qkv.nn.load(tmp_path / f"{rank}.safetensors")(TOKENS), answer)


def refused(mesh, what):
    rank = mesh.get_local_rank()
    models: dict[str, Any] = {
        "heads": lambda: qkv.nn.Attention(21, 7),
        "kv_heads": lambda: qkv.nn.Attention(24, 8, kv_heads=1),
        "hidden": lambda: qkv.nn.FeedForward(24, hidden=13),
        "foreign": lambda: nn.Linear(24, 24),
        "none": lambda: "a model",
        "different": lambda: qkv.nn.Attention(24, 8, kv_heads=8 if rank else 4),
        "one": lambda: qkv.nn.Attention(21, 7) if rank else qkv.nn.Attention(24, 8),
        "twice": lambda: qkv.parallel.parallelize(qkv.nn.Attention(24, 8), mesh),
        "adapted": adapted,
        "shared": shared,
        "dropout": lambda: qkv.nn.Block(24, 8, dropout=0.1),
    }
    model = qkv.parallel.parallelize(models[what](), mesh)
    model.eval()
    model(torch.zeros(1, 2, 24))
    model.train()
    model(torch.zeros(1, 2, 24))


def adapted():
    layer = qkv.nn.Attention(24, 8)
    layer.query = nn.Sequential(layer.query)  # pyright: ignore[reportAttributeAccessIssue]
    return layer


def shared():
    one, other = qkv.nn.Attention(24, 8), qkv.nn.Attention(24, 8)
    one.query.weight = other.query.weight
    return nn.ModuleList([one, other])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("heads", "module: got 7 heads, wanted a multiple of the 2 ranks"),
        ("kv_heads", "module: got 1 kv_heads"),
        ("hidden", "module: got 13 hidden"),
        ("foreign", "a Linear without layers of qkv.nn, wanted a module that contains an Attention"),
        ("none", "module: got str"),
        ("different", "key.weight: float32 (12, 24) on rank 0, float32 (24, 24) on rank 1"),
        ("twice", "got sharded weights"),
        ("adapted", "a Sequential as 'query'"),
        ("shared", "that layers share"),
        ("dropout", "0.1 while training"),
    ],
)
def test_refusals(pool: RankPool, what: str, message: str) -> None:
    for failed in pool.run_or_errors(refused, 2, what=what):
        assert isinstance(failed, JobFailed)
        assert "QkvError" in failed.kinds
        assert message in failed.message


def test_a_refusal_of_one_rank_reaches_the_others(pool: RankPool) -> None:
    first, second = pool.run_or_errors(refused, 2, what="one")
    assert "rank 1 refused the call" in first.message
    assert "7 heads" in second.message
