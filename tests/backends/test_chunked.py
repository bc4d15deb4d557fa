"""Chunks of a state: which engine runs, gradients, and numbers that would overflow."""

import math
from dataclasses import fields

import pytest
import torch

import qkv
from qkv.backends import chunked
from qkv.backends.base import RUNS
from qkv.testing.contract.subject import arguments, cotangent_like, differentiate, leaves_of
from tests.helpers.state_cases import CLOSE, KINDS, case, relative

EACH = pytest.mark.parametrize("kind", KINDS)


def ran(call, **options) -> set[str]:
    before = RUNS.copy()
    qkv.attention(**call.kwargs, **options)
    return {name for name, count in (RUNS - before).items() if count and name.startswith("linear")}


def test_the_kernel_runs_where_it_can_and_explain_says_where_not() -> None:
    call, double = case("kda", 37), case("kda", 37, "float64")
    assert ran(call) == {"linear.state"}
    assert ran(double) == {"linear.chunks"}
    choice = qkv.explain(**call.kwargs)
    assert choice.backend == "linear"
    assert "state=KDA" in str(choice)
    assert "in torch" not in str(choice)
    assert "in torch: the kernel computes in float32" in str(qkv.explain(**double.kwargs))
    assert "not blockwise: this backend has no state=" in str(choice)


@EACH
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_torch_and_the_kernel_agree_with_the_equation(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = case(kind, 150, dtype, batch=1)
    wanted = qkv.attention(**call.kwargs, backend="reference", return_state=True)
    found = [qkv.attention(**call.kwargs, return_state=True)]
    monkeypatch.setattr(chunked, "runs_natively", lambda tensor: False)
    monkeypatch.setattr(chunked, "PIECE_NUMBERS", 1)  # more than one piece
    found.append(qkv.attention(**call.kwargs, return_state=True))
    for out, state in found:
        assert relative(out, wanted[0]) < CLOSE[dtype]
        assert relative(state, wanted[1]) < CLOSE[dtype]


@EACH
def test_gradients_of_several_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tokens, gates and the initial state, through the output and the last state."""
    monkeypatch.setattr(chunked, "PIECE_NUMBERS", 1)
    call = case(kind, 83, "float64", batch=2, heads_q=3, heads_kv=3)
    found = []
    for backend in ("reference", "linear"):
        leaves = leaves_of(call)
        assert {"log_gate", "beta", "rate"} & leaves.keys() == {f.name for f in fields(call.built_state)}
        columns = 7 + call.built_similarity.normalize
        start = (
            torch.linspace(-1, 1, 2 * 3 * 5 * columns, dtype=torch.float64).reshape(2, 3, 5, columns).requires_grad_()
        )
        given = call.kwargs | arguments(call, leaves)
        out, last = qkv.attention(**given, initial_state=start, return_state=True, backend=backend)
        total = (out * cotangent_like(out)).sum() + (last * cotangent_like(last)).sum()
        found.append(differentiate(total, leaves | {"initial": start}, torch.ones_like(total)))
    for name, wanted in found[0].items():
        assert relative(found[1][name], wanted) < 1e-11, name


def test_the_backward_pass_keeps_no_state_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved grows with the tokens, and has no axes of features times columns for each of them."""
    sizes = []
    for n in (512, 1024):
        call = case("gated delta", n, batch=1, heads_q=2, width=17, width_v=19)
        leaves = leaves_of(call)
        saved = []

        def pack(tensor: torch.Tensor, saved: list = saved) -> torch.Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            qkv.attention(**call.kwargs | arguments(call, leaves))
        sizes.append(sum(saved))
    inputs = 1024 * (2 * 17 + 2 * 17 + 2 * 19 + 4)
    assert sizes[1] < 4 * inputs
    assert sizes[1] < 2.1 * sizes[0]


@EACH
def test_strong_gates_stay_finite_over_many_tokens(kind: str) -> None:
    """e^(−rate · n) underflows, and its inverse, with which a decay could be folded into the keys, overflows."""
    call = case(kind, 700, batch=1, heads_q=2)
    named = {f.name: getattr(call.built_state, f.name) for f in fields(call.built_state)}
    strong = {n: t if n == "beta" else torch.full_like(t, 9.0 if n == "rate" else -9.0) for n, t in named.items()}
    given = call.kwargs | {"state": type(call.built_state)(**strong)}
    leaves = [call.tensors[1].clone().requires_grad_()]
    out = qkv.attention(**given | {"key": leaves[0]})
    assert relative(out, qkv.attention(**given, backend="reference")) < 2e-5
    (grad,) = torch.autograd.grad(out.sum(), leaves)
    assert bool(grad.isfinite().all())


@EACH
def test_gates_of_0_have_gradient_0(kind: str) -> None:
    call = case(kind, 21, "float64")
    leaves = leaves_of(call)
    name = "rate" if "rate" in leaves else "log_gate"
    if name not in leaves:
        pytest.skip("no gates")
    with torch.no_grad():
        leaves[name].view(-1)[::3] = math.inf if name == "rate" else -math.inf
    out = qkv.attention(**call.kwargs | arguments(call, leaves))
    grads = differentiate(out, leaves, cotangent_like(out))
    assert not bool(grads[name].view(-1)[::3].ne(0).any())
    assert all(bool(grad.isfinite().all()) for grad in grads.values())


def test_nan_reaches_later_tokens_only() -> None:
    call = case("delta", 90)
    value = call.value.clone()
    value[0, 0, 70, 1] = math.nan
    before = RUNS["linear.tokens"]
    out = qkv.attention(**call.kwargs | {"value": value})
    assert RUNS["linear.tokens"] == before + 1
    nan = torch.zeros_like(out, dtype=torch.bool)
    nan[0, :3, 70:, 1] = True
    assert torch.equal(out.isnan(), nan)


def test_torch_func_gets_the_recurrence() -> None:
    call = case("gated", 5, "float64")
    wanted, values = 2 * qkv.attention(**call.kwargs), torch.stack([call.value, 2 * call.value])
    rows = torch.func.vmap(lambda value: qkv.attention(**call.kwargs | {"value": value}))(values)
    assert relative(rows[1], wanted) < 1e-12
