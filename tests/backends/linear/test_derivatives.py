"""backend="linear" differentiates, once and twice, through its maps too, and holds to the edges on the way back."""

import copy
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from decode_reference import name_of, numbers
from linear_reference import draw, learned, quadratic, similarities
from qkv import features

SIMILARITIES = similarities()
by_similarity = pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)
by_offset = pytest.mark.parametrize("offset", [None, 0], ids=["all", "causal"])
SMOOTH = {
    "elu1": qkv.FeatureMap(features.elu1),
    "undivided": qkv.FeatureMap(features.elu1, normalize=False),
    "squared": qkv.FeatureMap(features.squared),
    "monomials": qkv.FeatureMap(features.polynomial(2, 0.5)),
    "random": qkv.FeatureMap(features.positive_random(3, 5, seed=1)),
    "learned": qkv.FeatureMap(learned(3, 5).double()),
    "polynomial 0": qkv.Polynomial(0),
    "polynomial 2": qkv.Polynomial(2, 1.0),
    "negative offset": qkv.Polynomial(2, -9.0),
    "polynomial 3": qkv.Polynomial(3, 9.0),
}
MASKS = {
    "all": None,
    "causal": qkv.Causal(2),
    "padded": qkv.Padding(keep=torch.tensor([[True, False, True, True, True, False, True]])),
    "both": qkv.Causal(1) & qkv.Padding(lengths=torch.tensor([6])),
    "empty rows": qkv.Causal(-2),
}


def linear(query: Any, key: Any, value: Any, similarity: Any, mask: Any = None) -> Tensor:
    return qkv.attention(query, key, value, similarity=similarity, mask=mask, backend="linear")


def small(len_q: int = 5, len_k: int = 7, **options: Any) -> list[Tensor]:
    options = {"batch": 1, "heads": (2, 1), "widths": (3, 2), "dtype": torch.float64} | options
    return [tensor.requires_grad_() for tensor in draw(len_q, len_k, **options)]


def gradients(out: Tensor, inputs: Any, seed: int = 70) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, inputs, numbers(tuple(out.shape), seed=seed).to(out.dtype))


@pytest.mark.parametrize("similarity", SMOOTH.values(), ids=SMOOTH)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_first_derivatives_are_those_of_differences(similarity: Any, mask: Any) -> None:
    fast = mask is not MASKS["both"]
    assert torch.autograd.gradcheck(lambda q, k, v: linear(q, k, v, similarity, mask), small(), fast_mode=fast)


# With degree 0 values come in linearly, and nothing else does.
CURVED = {name: s for name, s in SMOOTH.items() if not (isinstance(s, qkv.Polynomial) and s.degree == 0)}


@pytest.mark.parametrize("similarity", CURVED.values(), ids=CURVED)
@pytest.mark.parametrize("mask", [MASKS["all"], MASKS["both"]], ids=["all", "both"])
def test_second_derivatives_are_those_of_differences(similarity: Any, mask: Any) -> None:
    tensors = small(3, 7, heads=(1, 1), widths=(3, 1))
    assert torch.autograd.gradgradcheck(lambda q, k, v: linear(q, k, v, similarity, mask), tensors, fast_mode=True)


@by_similarity
@by_offset
@pytest.mark.parametrize("n", [67, 131])
def test_gradients_of_float32_are_those_of_the_reference(similarity: Any, offset: int | None, n: int) -> None:
    if getattr(similarity, "map", None) is features.identity:
        similarity = qkv.FeatureMap(features.identity, normalize=False)
    tensors = [t.requires_grad_() for t in draw(n, batch=1, heads=(2, 1), seed=n)]
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    out, reach = quadratic(*doubles, similarity, offset=offset)
    weights = numbers(tuple(out.shape), seed=70).double()
    if getattr(similarity, "normalize", True):
        # Rows that nearly cancel have gradients as large as one likes: they get no weight, in both.
        calm = reach.amax(-1, keepdim=True) < 50
        assert calm.double().mean() > 0.4
        weights = weights * calm
    found = linear(*tensors, similarity, None if offset is None else qkv.Causal())
    found = torch.autograd.grad(found, tensors, weights.float())
    wanted = torch.autograd.grad(out, doubles, weights)
    for one, other, name in zip(found, wanted, "qkv", strict=True):
        assert one.dtype is torch.float32
        error = (one.double() - other).abs().max() / other.abs().max()
        assert error < (3e-5 if isinstance(similarity, qkv.FeatureMap) else 3e-4), f"{name}: {error:.2g}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("name", ["elu1", "polynomial 2"])
@by_offset
def test_gradients_of_narrow_inputs(dtype: torch.dtype, name: str, offset: int | None) -> None:
    tensors = [t.requires_grad_() for t in draw(67, batch=1, heads=(2, 1), widths=(3, 5), dtype=dtype, coarse=True)]
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    out, reach = quadratic(*doubles, SIMILARITIES[name], offset=offset)
    weights = (numbers(tuple(out.shape), seed=70) * (reach < 10)).to(dtype)
    found = linear(*tensors, SIMILARITIES[name], None if offset is None else qkv.Causal())
    wanted = torch.autograd.grad(out, doubles, weights.double())
    for one, other in zip(torch.autograd.grad(found, tensors, weights), wanted, strict=True):
        assert one.dtype is dtype
        assert (one.double() - other).abs().max() < 8 * torch.finfo(dtype).eps * other.abs().max()


@by_offset
@pytest.mark.parametrize("normalize", [True, False])
def test_learned_maps_get_their_gradients(offset: int | None, normalize: bool) -> None:
    module = learned()
    double = copy.deepcopy(module).double()
    tensors = [t.requires_grad_() for t in draw(131, batch=1, heads=(2, 1))]
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    mask = None if offset is None else qkv.Causal()
    found = gradients(linear(*tensors, qkv.FeatureMap(module, normalize), mask), (*tensors, *module.parameters()))
    out, _ = quadratic(*doubles, qkv.FeatureMap(double, normalize), offset=offset)
    for one, other in zip(found, gradients(out, (*doubles, *double.parameters())), strict=True):
        assert one.shape == other.shape
        assert (one.double() - other).abs().max() < 3e-5 * other.abs().max()


@by_offset
def test_a_map_learns_where_no_input_does(offset: int | None) -> None:
    module = learned()
    tensors, mask = draw(67), None if offset is None else qkv.Causal()
    out = linear(*tensors, qkv.FeatureMap(module), mask)
    assert out.requires_grad
    out.square().sum().backward()
    double = copy.deepcopy(module).double()
    double.zero_grad()
    quadratic(*tensors, qkv.FeatureMap(double), offset=offset)[0].square().sum().backward()
    for one, other in zip(module.parameters(), double.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert (one.grad.double() - other.grad).abs().max() < 3e-5 * other.grad.abs().max()


def test_parameters_are_checked_by_differences() -> None:
    module = learned(3, 5).double()
    names = [name for name, _ in module.named_parameters()]
    query, key, value = (t.detach() for t in small(5, 5))

    def of_parameters(*given: Tensor) -> Tensor:
        named = dict(zip(names, given, strict=True))
        phi = qkv.FeatureMap(lambda x: torch.func.functional_call(module, named, (x,)))
        return linear(query, key, value, phi, qkv.Causal())

    inputs = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(of_parameters, inputs)


def test_a_few_steps_of_descent_teach_a_map() -> None:
    module, teacher = learned(), learned(seed=40)
    tensors = draw(67, heads=(1, 1))
    wanted = linear(*tensors, qkv.FeatureMap(teacher), qkv.Causal()).detach()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (linear(*tensors, qkv.FeatureMap(module), qkv.Causal()) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("which", [0, 1, 2], ids=["query", "key", "value"])
@by_offset
def test_one_input_alone_gets_the_same_gradient(which: int, offset: int | None) -> None:
    mask = None if offset is None else qkv.Causal()
    for name in ("elu1", "two-sided", "polynomial 2"):
        tensors = [t.requires_grad_() for t in draw(67)]
        wanted = gradients(linear(*tensors, SIMILARITIES[name], mask), tensors)[which]
        alone = [t.detach().requires_grad_(at == which) for at, t in enumerate(tensors)]
        (found,) = gradients(linear(*alone, SIMILARITIES[name], mask), alone[which])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["elu1", "elu1 undivided", "two-sided", "polynomial 2", "polynomial 3"])
def test_nothing_comes_back_from_rows_that_saw_nothing(name: str) -> None:
    query, key, value = draw(67)
    query[:, :, :3] = nan
    tensors = [t.requires_grad_() for t in (query, key, value)]
    out = linear(*tensors, SIMILARITIES[name], qkv.Causal(-3))
    weights = torch.ones_like(out)
    weights[:, :, :3] = nan
    dq, dk, dv = torch.autograd.grad(out, tensors, weights)
    assert not dq[:, :, :3].any()
    assert not dk[:, :, 64:].any()
    assert not dv[:, :, 64:].any()
    assert all(bool(grad.isfinite().all()) for grad in (dq, dk, dv))


@by_similarity
@by_offset
@pytest.mark.parametrize("bad", [nan, inf, 1e30])
def test_what_is_masked_cannot_matter_on_the_way_back(similarity: Any, offset: int | None, bad: float) -> None:
    keep = torch.ones(2, 67, dtype=torch.bool)
    keep[0, 50:], keep[1, ::5] = False, False
    mask = qkv.Padding(keep=keep) if offset is None else qkv.Causal() & qkv.Padding(keep=keep)
    query, key, value = draw(67)
    clean = [t.clone().requires_grad_() for t in (query, key, value)]
    for tensor in (key, value):
        tensor.transpose(1, 2)[~keep] = bad
    dirty = [t.requires_grad_() for t in (query, key, value)]
    wanted, found = (gradients(linear(*tensors, similarity, mask), tensors) for tensors in (clean, dirty))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    for grad in found[1:]:
        assert not grad.transpose(1, 2)[~keep].any(), "what is masked gets a gradient of exactly zero"


@pytest.mark.parametrize("name", ["elu1", "two-sided", "polynomial 2"])
def test_attended_nan_is_not_hidden_on_the_way_back(name: str) -> None:
    for which in (0, 1):
        tensors = draw(67, heads=(1, 1))
        tensors[which][0, 0, 20, 3] = nan
        inputs = [t.requires_grad_() for t in tensors]
        dq, dk, dv = gradients(linear(*inputs, SIMILARITIES[name], qkv.Causal()), inputs)
        assert bool(dq[0, 0, 20].isnan().all())
        if which == 1:
            assert bool(dq[0, 0, 20:].isnan().all())
        assert bool(dq[0, 0, :20].isfinite().all())
        assert all(bool(grad[1].isfinite().all()) for grad in (dq, dk, dv))


def test_empty_calls_have_empty_gradients() -> None:
    for len_q, len_k in ((0, 5), (5, 0), (0, 0)):
        tensors = [t.requires_grad_() for t in draw(len_q, len_k)]
        for similarity in (SIMILARITIES["elu1"], SIMILARITIES["polynomial 2"]):
            for grad in torch.autograd.grad(linear(*tensors, similarity).sum(), tensors):
                assert not grad.any()


def test_gradients_add_up_over_two_uses() -> None:
    tensors = [t.requires_grad_() for t in draw(67)]
    once = gradients(linear(*tensors, SIMILARITIES["elu1"], qkv.Causal()), tensors)
    out = linear(*tensors, SIMILARITIES["elu1"], qkv.Causal())
    first = torch.autograd.grad(out, tensors, numbers(tuple(out.shape), seed=70), retain_graph=True)
    second = torch.autograd.grad(out, tensors, numbers(tuple(out.shape), seed=70))
    for one, two, three in zip(once, first, second, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_gradients_of_a_polynomial_have_the_same_bits_with_many_threads(threads: Any) -> None:
    threads(4)
    similarity, tensors = qkv.Polynomial(3, -0.5), draw(67, 71, heads=(3, 3), widths=(16, 16))
    seen = set()
    for _ in range(12):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        out = qkv.attention(*leaves, similarity=similarity, mask=qkv.Causal(offset=4), backend="linear")
        grads = torch.autograd.grad(out.square().sum(), leaves)
        seen.add(tuple(grad.contiguous().numpy().tobytes() for grad in grads))
    assert len(seen) == 1
