"""Feature maps: what their products are."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv import features
from qkv.errors import OptionError, ShapeError


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


def test_polynomial_is_one_function_of_a_vector_wherever_it_stands() -> None:
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
