"""Feature maps: what their products are, and the error of random features."""

import math
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import qkv
from qkv import features
from qkv.errors import OptionError, ShapeError
from qkv.features import positive_random
from tests.helpers.decode_reference import same_bits
from tests.helpers.linear_reference import draw


@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_quadratic_map_has_each_monomial_once(width: int) -> None:
    phi = features.polynomial(2)
    x = torch.randn(width, dtype=torch.float64)
    assert phi(x).shape == (width * (width + 3) // 2 + 1,)
    assert phi.features(width) == width * (width + 3) // 2 + 1


def test_quadratic_map_in_order() -> None:
    a, b = 3.0, 5.0
    expected = [a * a, b * b, math.sqrt(2) * a * b, math.sqrt(2) * a, math.sqrt(2) * b, 1.0]
    assert features.polynomial(2)(torch.tensor([a, b], dtype=torch.float64)).tolist() == pytest.approx(expected)


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.25, 1.0, 3.0]),
    st.integers(0, 2**32 - 1),
)
def test_polynomial_products(degree: int, width: int, offset: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, width, generator=generator, dtype=torch.float64)
    phi = features.polynomial(degree, offset)
    assert phi(q).shape[0] == phi.features(width)
    torch.testing.assert_close(phi(q) @ phi(k), (q @ k + offset) ** degree, rtol=1e-9, atol=1e-9)


def test_polynomial_applies_to_the_last_axis() -> None:
    x = torch.randn(2, 3, 5)
    torch.testing.assert_close(features.polynomial(3)(x)[1, 2], features.polynomial(3)(x[1, 2]))


@pytest.mark.parametrize("orthogonal", [True, False])
def test_positive_random_features_approach_the_exponential(orthogonal: bool) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 40, 8, dtype=torch.float64) / 2
    exact = torch.exp(q @ k.T / math.sqrt(8))
    errors = []
    for count in (64, 4096):
        phi = features.positive_random(8, count, seed=3, orthogonal=orthogonal)
        assert bool((phi(q) > 0).all())
        errors.append(((phi(q) @ phi(k).T - exact) / exact).square().mean().sqrt().item())
    assert errors[1] < errors[0] / 4
    assert errors[1] < 0.1


def test_orthogonal_draws_are_orthogonal_and_seeded() -> None:
    phi = features.positive_random(5, 13, seed=1)
    gram = phi._directions[:5] @ phi._directions[:5].T
    torch.testing.assert_close(gram, torch.diag(gram.diagonal()))
    x = torch.randn(5)
    assert torch.equal(phi(x), features.positive_random(5, 13, seed=1)(x))
    assert not torch.equal(phi(x), features.positive_random(5, 13, seed=2)(x))


def test_simple_maps() -> None:
    x = torch.tensor([-2.0, 0.0, 3.0])
    assert features.elu1(x).tolist() == pytest.approx([math.exp(-2), 1.0, 4.0])
    assert features.relu(x).tolist() == [0.0, 0.0, 3.0]
    assert features.identity(x) is x
    assert features.squared(x).tolist() == [4.0, 0.0, 9.0]


def test_refused() -> None:
    for make in (
        lambda: features.polynomial(0),
        lambda: features.polynomial(2.5),
        lambda: features.polynomial(2, -1.0),
        lambda: features.positive_random(0),
        lambda: features.positive_random(4, 0),
        lambda: features.positive_random(4, scale=-1.0),
    ):
        with pytest.raises(OptionError, match="wanted"):
            make()
    with pytest.raises(ShapeError, match="width 3"):
        features.positive_random(4)(torch.zeros(3))


WIDTH = 7
by_orthogonal = pytest.mark.parametrize("orthogonal", [True, False], ids=["orthogonal", "independent"])
by_scale = pytest.mark.parametrize("scale", [None, 1.0, 0.3])


def pairs(length: float = 0.8) -> tuple[Tensor, Tensor]:
    """(11, WIDTH) and (13, WIDTH) in float64, each vector of that length."""
    generator = torch.Generator().manual_seed(2)
    query, key = (torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) for n in (11, 13))
    return tuple(length * x / x.norm(dim=-1, keepdim=True) for x in (query, key))  # pyright: ignore


@cache
def drawn(seeds: int, count: int, scale: float | None, orthogonal: bool, length: float = 0.8) -> Tensor:
    """φ(q)·φ(k) / exp(scale·q·k) for each seed, (seeds, 11, 13)."""
    query, key = pairs(length)
    exact = torch.exp((1 / math.sqrt(WIDTH) if scale is None else scale) * query @ key.T)
    maps = [positive_random(WIDTH, count, seed=s, scale=scale, orthogonal=orthogonal) for s in range(seeds)]
    return torch.stack([phi(query) @ phi(key).T / exact for phi in maps])


@by_orthogonal
@by_scale
def test_the_mean_over_seeds_is_the_exponential(orthogonal: bool, scale: float | None) -> None:
    ratios = drawn(400, 16, scale, orthogonal)
    error, spread = ratios.mean(0) - 1, ratios.std(0) / math.sqrt(400)
    assert bool((error.abs() < 4.5 * spread).all())
    assert error.square().mean().sqrt() < 2 * spread.square().mean().sqrt()
    assert bool((ratios > 0).all())


@pytest.mark.slow
@pytest.mark.parametrize("scale", [None, 0.3])
def test_orthogonal_draws_have_the_smaller_error(scale: float | None) -> None:
    """By a tenth here, and three times what 1,000 seeds leave to chance."""
    one, other = (drawn(1000, 14, scale, orthogonal).sub(1).square().mean((1, 2)) for orthogonal in (True, False))
    chance = math.sqrt((one.var() + other.var()).item() / 1000)
    assert other.mean() - one.mean() > 3 * chance


@by_orthogonal
def test_the_error_falls_with_the_root_of_the_count(orthogonal: bool) -> None:
    few, many = (drawn(200, count, 1.0, orthogonal).sub(1).square().mean().sqrt() for count in (16, 256))
    assert 2.8 < few / many < 5.7


@by_orthogonal
def test_the_same_seed_gives_the_same_features(orthogonal: bool) -> None:
    query, _ = pairs()
    one, other, third = (positive_random(WIDTH, 29, seed=s, orthogonal=orthogonal)(query) for s in (5, 5, 6))
    same_bits(one, other)
    assert not torch.equal(one, third)


def test_drawing_leaves_torchs_own_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    positive_random(WIDTH, 29, seed=1).redraw(2)
    assert torch.equal(torch.get_rng_state(), before)


@by_orthogonal
@by_scale
def test_redraw_gives_another_map_and_keeps_this_one(orthogonal: bool, scale: float | None) -> None:
    query, _ = pairs()
    phi = positive_random(WIDTH, 29, seed=5, scale=scale, orthogonal=orthogonal)
    before = phi(query)
    again = phi.redraw(8)
    assert again is not phi
    assert isinstance(again, positive_random)
    assert (again.width, again.count, again.seed, again.orthogonal, again.scale) == (
        WIDTH,
        29,
        8,
        orthogonal,
        phi.scale,
    )
    same_bits(again(query), positive_random(WIDTH, 29, seed=8, scale=scale, orthogonal=orthogonal)(query))
    assert not torch.equal(again(query), before)
    same_bits(phi(query), before)
    assert phi.seed == 5


@by_orthogonal
@by_scale
@pytest.mark.parametrize("count", [28, 64])
def test_the_estimated_error_is_the_measured_one(orthogonal: bool, scale: float | None, count: int) -> None:
    """Relative standard error over 200 seeds, pair by pair on the whole and in the mean of squares."""
    query, key = pairs()
    measured = drawn(200, count, scale, orthogonal).std(0)
    found = positive_random(WIDTH, count, seed=1, scale=scale, orthogonal=orthogonal).error(query, key)
    assert found.shape == (11, 13)
    assert bool((found > 0).all())
    total = found.square().mean().sqrt() / measured.square().mean().sqrt()
    assert 0.5 < total < 2
    assert bool((found < 2 * measured).all())
    assert bool((found > measured / 2).all())


def test_the_estimated_error_grows_with_the_vectors_and_falls_with_the_count() -> None:
    query, key = pairs()
    found = {(s, n): positive_random(WIDTH, n).error(query * s, key * s).mean() for s in (1, 2) for n in (64, 1024)}
    assert found[1, 64] > found[1, 1024]
    assert found[2, 64] > found[1, 64]
    assert 3 < found[1, 64] / found[1, 1024] < 5


def test_the_error_of_a_call_has_one_number_for_each_pair() -> None:
    query, key, _ = draw(5, 11, heads=(3, 3), widths=(WIDTH, 2))
    found = positive_random(WIDTH, 29).error(query, key)
    assert found.shape == (2, 3, 5, 11)
    one = positive_random(WIDTH, 29).error(query[1, 2], key[1, 2])
    torch.testing.assert_close(found[1, 2], one, rtol=1e-4, atol=1e-5)


def test_another_width_is_refused() -> None:
    phi = positive_random(WIDTH, 29)
    with pytest.raises(qkv.errors.ShapeError, match="width"):
        phi.error(torch.zeros(3, WIDTH + 1), torch.zeros(3, WIDTH + 1))


@pytest.mark.parametrize("causal", [False, True])
def test_many_features_come_close_to_softmax(causal: bool) -> None:
    query, key, value = draw(67, heads=(2, 1), widths=(WIDTH, 5), dtype=torch.float64)
    tensors, mask = (query / 2, key / 2, value), qkv.Causal() if causal else None
    exact = qkv.attention(*tensors, mask=mask)
    errors = []
    for count in (64, 4096):
        similarity = qkv.FeatureMap(features.positive_random(WIDTH, count, seed=4))
        found = qkv.attention(*tensors, similarity=similarity, mask=mask, backend="linear")
        errors.append((found - exact).square().mean().sqrt().item())
    assert errors[1] < 0.02
    assert errors[1] < errors[0] / 4


def test_a_nan_is_not_hidden_in_the_gradient_of_elu1() -> None:
    x = torch.tensor([float("nan"), -1.0, 0.0, 2.0], requires_grad=True)
    value = features.elu1(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(value, torch.tensor([float("nan"), math.exp(-1), 1.0, 3.0]), equal_nan=True)
    torch.testing.assert_close(gradient, torch.tensor([float("nan"), math.exp(-1), 1.0, 1.0]), equal_nan=True)
    # The derivatives of these at NaN depend on the version of torch.
    names, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None:
            names.add(node.name())
            waiting += [next_node for next_node, _ in node.next_functions]
    assert not any(name.startswith(("Clamp", "Relu", "Threshold")) for name in names), names
