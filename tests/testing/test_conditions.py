"""Similarity functions and feature maps: which are refused, and the report about others."""

import pytest
import torch

from qkv import features
from qkv.errors import DtypeError, OptionError, ShapeError
from qkv.testing import check_feature_map, check_similarity
from qkv.testing.call_case import FUNCTIONS


def dots(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query @ key.transpose(-1, -2)


@pytest.mark.parametrize("name", ["gaussian", "rational"])
def test_positive_functions_pass(name: str) -> None:
    found = check_similarity(FUNCTIONS[name])
    assert found.nonnegative
    assert found.sums_positive
    assert found.smallest_sum == pytest.approx(1.0)
    assert "every sum was positive" in str(found)


def test_signed_functions_pass_and_are_reported() -> None:
    found = check_similarity(dots)
    assert not found.nonnegative
    assert not found.sums_positive
    assert "cancellation" in str(found)
    shifted = check_similarity(lambda q, k: dots(q, k) + 20)
    assert shifted.sums_positive


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda q, k: dots(q, k).transpose(-1, -2), ShapeError, "queries, keys"),
        (lambda q, k: dots(q, k).sum(1), ShapeError, "queries, keys"),
        (lambda q, k: dots(q, k).float(), DtypeError, "float64"),
        (lambda q, k: 3.0, DtypeError, "a tensor"),
        (lambda q, k: dots(q, k).log(), OptionError, "finite"),
        (lambda q, k: torch.exp(1e4 * dots(q, k)), OptionError, "finite"),
        (lambda q, k: dots(q, k).softmax(-1), OptionError, "keys are cut into blocks"),
        (lambda q, k: torch.exp(dots(q, k) - dots(q, k).amax(-2, keepdim=True)), OptionError, "queries are cut"),
        (lambda q, k: dots(q, k) + torch.arange(k.shape[2]), OptionError, "blocks"),
        (lambda q, k: dots(q, k) / (1 + k.norm(dim=(0, 1))[:, 0].sum()), OptionError, "blocks"),
        (lambda q, k: dots(q, k) * (1 + q.abs().mean(0)[..., :1]), OptionError, "batch row is alone"),
        (lambda q, k: dots(q, k) + torch.rand(()), OptionError, "called again"),
    ],
)
def test_functions_that_depend_on_more_than_a_pair_are_refused(function, error: type[Exception], words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words) as caught:
        check_similarity(function)
    assert "function" in str(caught.value)


def test_parameters_of_each_head_are_allowed() -> None:
    gammas = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)[:, None, None]
    assert check_similarity(lambda q, k: torch.exp(-gammas * dots(q, k).abs()), heads=3).nonnegative


@pytest.mark.parametrize(
    "phi", [features.elu1, features.squared, features.positive_random(5, 16), features.polynomial(2)]
)
def test_maps_with_positive_products(phi) -> None:  # type: ignore[no-untyped-def]
    found = check_feature_map(phi)
    assert found.nonnegative
    assert found.sums_positive


def test_identity_can_cancel() -> None:
    assert not check_feature_map(features.identity).sums_positive


@pytest.mark.parametrize(
    ("phi", "error", "words"),
    [
        (lambda x: x.sum(-1), ShapeError, "features"),
        (lambda x: x[..., :0], ShapeError, "features"),
        (lambda x: x.float(), DtypeError, "keep the dtype"),
        (lambda x: None, DtypeError, "a tensor"),
        (lambda x: x.sqrt(), OptionError, "finite"),
        (lambda x: torch.exp(x - x.amax(-2, keepdim=True)), OptionError, "outside of their block"),
        (lambda x: x.softmax(-1) * x.shape[-2], OptionError, "outside of their block"),
    ],
)
def test_maps_that_depend_on_more_than_a_vector_are_refused(phi, error: type[Exception], words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words) as caught:
        check_feature_map(phi)
    assert "map" in str(caught.value)


def test_float32_may_round() -> None:
    assert check_similarity(FUNCTIONS["gaussian"], dtype=torch.float32).nonnegative
