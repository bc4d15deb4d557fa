"""The operators qkv::attention and qkv::attention_backward: opcheck, the bits of the eager call, the same backends."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.backends.base import RUNS
from qkv.backends.description import describe_mask, describe_similarity
from qkv.masks import Extent

HEADS, GROUP, N, WIDTH, VALUES = 2, 3, 40, 11, 13
MASK = qkv.Causal() & qkv.Padding(lengths=[40, 23])
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": qkv.Causal()},
    "padding": {"mask": MASK},
    "padding in a tensor": {"mask": qkv.Padding(keep=torch.arange(N) < torch.tensor([[N], [0]]))},
    "bias and sink": {"similarity": qkv.Softmax(sink=torch.randn(HEADS * GROUP)), "bias": torch.randn(1, 6, N, N)},
    "softcap": {"similarity": qkv.Softmax(softcap=3.0), "mask": MASK},
    "flash": {"backend": "sdpa", "mask": MASK},
    "sigmoid": {"similarity": qkv.Sigmoid(bias=-1.5), "mask": MASK, "bias": torch.randn(1, 6, 1, 1)},
    "argmax": {"similarity": qkv.Argmax(), "mask": MASK},
    "argmax in blocks": {"similarity": qkv.Argmax(), "mask": qkv.Dense(torch.rand(N, N) < 0.5), "backend": "argmax"},
    "features": {"similarity": qkv.FeatureMap(qkv.features.elu1), "mask": MASK, "backend": "linear"},
    "no normalization": {"similarity": qkv.FeatureMap(qkv.features.relu, normalize=False), "backend": "linear"},
    "polynomial": {"similarity": qkv.Polynomial(), "mask": qkv.Causal(-3), "backend": "linear"},
}


def inputs(dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((HEADS * GROUP, WIDTH), (HEADS, WIDTH), (HEADS, VALUES))
    return [torch.randn(2, heads, N, width, generator=generator).to(dtype) for heads, width in shapes]


def arguments(tensors: list[torch.Tensor], options: dict[str, Any], lse: bool = False) -> tuple[Any, ...]:
    """What a compiled program passes to the operator."""
    query, key, value = tensors
    similarity = options.get("similarity", qkv.Softmax())
    sink = getattr(similarity, "sink", None)
    sink = sink if isinstance(sink, torch.Tensor) else None
    extent = Extent(2, query.shape[1], query.shape[2], key.shape[2])
    mask = options.get("mask")
    described = describe_mask(None if mask is None else mask.resolved(extent), extent, query.device)
    words = describe_similarity(similarity)
    assert described is not None
    assert words is not None
    grad = query.requires_grad or value.requires_grad
    backend = options.get("backend", "auto")
    return query, key, value, options.get("bias"), sink, None, None, *words, *described, backend, grad, lse


def operator(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.qkv.attention.default(*given)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_the_operator_has_the_bits_and_the_backend_of_the_call(options: dict[str, Any]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        tensors = inputs(dtype)
        given = {**options, **({"bias": options["bias"].to(dtype)} if "bias" in options else {})}
        RUNS.clear()
        expected = qkv.attention(*tensors, **given)
        engines = set(RUNS)
        RUNS.clear()
        out, _ = operator(*arguments(tensors, given))
        assert torch.equal(out, expected)
        assert set(RUNS) == engines


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_the_operator_has_the_gradients_of_the_call(options: dict[str, Any]) -> None:
    found = []
    for compute in (lambda *t, o: qkv.attention(*t, **o), lambda *t, o: operator(*arguments(list(t), o))[0]):
        leaves = [tensor.requires_grad_() for tensor in inputs()]
        given = dict(options)
        if "bias" in given:
            given["bias"] = given["bias"].clone().requires_grad_()
            leaves.append(given["bias"])
        if isinstance(sink := getattr(given.get("similarity"), "sink", None), torch.Tensor):
            leaves.append(sink.clone().requires_grad_())
            given["similarity"] = qkv.Softmax(sink=leaves[-1])
        out = compute(*leaves[:3], o=given)
        found.append(torch.autograd.grad(out.square().sum(), leaves))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["bias and sink", "sigmoid", "softcap"])
def test_a_bias_and_a_sink_that_are_constants(name: str) -> None:
    """The others have the gradients of the call, also where a backend computes its answer again for them."""
    options, found = {"bias": torch.linspace(-1, 1, 6).reshape(1, 6, 1, 1), **CASES[name]}, []
    for compute in (lambda *t: qkv.attention(*t, **options), lambda *t: operator(*arguments(list(t), options))[0]):
        leaves = [tensor.requires_grad_() for tensor in inputs()]
        found.append(torch.autograd.grad(compute(*leaves).square().sum(), leaves))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_the_gradient_of_lse_and_masked_nan() -> None:
    query, key, value = inputs()
    key[1, :, 23:], value[1, :, 23:] = float("nan"), float("inf")
    found = []
    for compute in (
        lambda *t: qkv.attention(*t, mask=MASK, return_lse=True),
        lambda *t: operator(*arguments(list(t), {"mask": MASK}, lse=True)),
    ):
        leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        out, lse = compute(*leaves)
        found.append([out, lse, *torch.autograd.grad(out.sum() + lse.sum(), leaves)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
        assert other.isfinite().all()


def test_packed_documents() -> None:
    query, key, value = (tensor[:1] for tensor in inputs())
    edges = torch.tensor([0, 7, 7, 40])
    expected = qkv.varlen(*(t[0].transpose(0, 1) for t in (query, key, value)), edges, mask=qkv.Causal())
    words = ("Softmax", [], "Causal", [], [], "auto", False, False)
    out, _ = operator(query, key, value, None, None, edges, edges, *words)
    assert torch.equal(out[0].transpose(0, 1), expected)
    with pytest.raises(qkv.errors.MaskError, match="cu_seqlens_q"):
        operator(query, key, value, None, None, edges[:3], edges, *words)


def test_the_gradient_of_a_bias_is_a_sum_over_packed_documents() -> None:
    tensors, edges = [t[:1] for t in inputs()], torch.tensor([0, 7, 7, 40])
    words, found = ("Sigmoid", [], "Causal", [], [], "auto", True, False), []
    for by_operator in (False, True):
        query, key, value, bias = leaves = [t.clone().requires_grad_() for t in (*tensors, torch.linspace(-2, 1, 6))]
        if by_operator:
            out = operator(query, key, value, bias.reshape(1, -1, 1, 1), None, edges, edges, *words)[0]
        else:
            packed = (t[0].transpose(0, 1) for t in (query, key, value))
            out = qkv.varlen(*packed, edges, similarity=qkv.Sigmoid(bias=bias), mask=qkv.Causal()).transpose(0, 1)[None]
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [CASES["plain"], CASES["bias and sink"], CASES["argmax"], CASES["features"]])
def test_opcheck_of_shapes_and_registration(options: dict[str, Any]) -> None:
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for grad in (False, True):
        tensors = [tensor.requires_grad_(grad) for tensor in inputs()]
        torch.library.opcheck(torch.ops.qkv.attention.default, arguments(tensors, options), test_utils=tests)


@pytest.mark.slow
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_opcheck(options: dict[str, Any]) -> None:
    for grad in (False, True):
        tensors = [tensor.requires_grad_(grad) for tensor in inputs()]
        lse = "bias" in options and options["similarity"].has_lse
        torch.library.opcheck(torch.ops.qkv.attention.default, arguments(tensors, options, lse))


@pytest.mark.slow
def test_compiled_programs_keep_the_fast_path() -> None:
    """In a new process: the shape checks that tests switch on cannot be traced."""
    program = Path(__file__).parents[1] / "helpers" / "compiled_operators.py"
    done = subprocess.run([sys.executable, "-W", "ignore", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[-2] == "all passed"


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4)])
def test_lse_of_an_empty_call_requires_grad(shape: tuple[int, ...]) -> None:
    query = torch.zeros(shape, requires_grad=True)
    out, lse = qkv.attention(query, query, query, return_lse=True)
    assert out.requires_grad
    assert lse.requires_grad
    (grad,) = torch.autograd.grad(lse.sum(), query)
    assert grad.shape == shape


def test_lse_without_keys_requires_grad() -> None:
    query, key = torch.zeros(1, 2, 3, 4, requires_grad=True), torch.zeros(1, 2, 0, 4)
    _, lse = qkv.attention(query, key, key, return_lse=True)
    assert (lse == float("-inf")).all()
    (grad,) = torch.autograd.grad(lse.sum(), query)
    assert torch.equal(grad, torch.zeros_like(query))
