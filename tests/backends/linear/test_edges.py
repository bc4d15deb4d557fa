"""backend="linear" at its edges: zero sums, nothing to see, what is masked, what is not finite, maps that are wrong."""

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from decode_reference import same_bits
from linear_reference import close, draw, quadratic, similarities
from qkv import errors, features

SIMILARITIES = similarities()
by_similarity = pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)
FEW = {name: SIMILARITIES[name] for name in ("elu1", "elu1 undivided", "two-sided", "random", "polynomial 2")}
by_few = pytest.mark.parametrize("similarity", FEW.values(), ids=FEW)
BAD = {"nan": nan, "inf": inf, "-inf": -inf, "huge": 1e30}
by_bad = pytest.mark.parametrize("bad", BAD.values(), ids=BAD)


def linear(query: Any, key: Any, value: Any, similarity: Any, mask: Any = None) -> Tensor:
    return qkv.attention(query, key, value, similarity=similarity, mask=mask, backend="linear")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, qkv.Causal(1)], ids=["all", "causal"])
def test_a_sum_of_exactly_zero_gives_a_zero_row(dtype: torch.dtype, mask: Any) -> None:
    query = torch.tensor([[1.0, 0.0], [2.0, 1.0]], dtype=dtype)
    key = torch.tensor([[-1.0, 0.0], [-1.0, 3.0]], dtype=dtype)
    value = torch.tensor([[3.0, 5.0, 7.0], [11.0, 13.0, 17.0]], dtype=dtype)
    found = linear(query, key, value, qkv.Polynomial(2, 1.0), mask)
    assert found[0].tolist() == [0.0, 0.0, 0.0]
    # (−2 + 1)² = 1 and (−2 + 3 + 1)² = 4.
    torch.testing.assert_close(found[1].double(), (value[0] + 4 * value[1]).double() / 5, rtol=1e-2, atol=0.0)


def test_relu_features_with_nothing_in_common_give_a_zero_row() -> None:
    query = torch.tensor([[1.0, -2.0], [-1.0, 2.0], [-1.0, -1.0]])
    key = torch.tensor([[3.0, -1.0], [5.0, -7.0], [-1.0, -1.0]])
    for mask in (None, qkv.Causal()):
        found = linear(query, key, torch.ones(3, 5), qkv.FeatureMap(features.relu), mask)
        assert found.tolist() == [[1.0] * 5, [0.0] * 5, [0.0] * 5]


@by_few
def test_no_epsilon_is_added_to_small_sums(similarity: Any) -> None:
    if not isinstance(similarity, qkv.FeatureMap):
        similarity = qkv.Polynomial(2, 0.0)
    elif similarity.normalize:
        similarity = qkv.FeatureMap(features.squared)
    query, key, value = draw(67, seed=1)
    tensors = query * 1e-8, key * 1e-7, value
    for mask, offset in ((None, None), (qkv.Causal(), 0)):
        close(linear(*tensors, similarity, mask), quadratic(*tensors, similarity, offset=offset))


@by_similarity
def test_queries_that_see_nothing_get_exactly_zero(similarity: Any) -> None:
    query, key, value = draw(67)
    query[:, :, :5] = nan
    found = linear(query, key, value, similarity, qkv.Causal(-5))
    assert not found[:, :, :5].any()
    assert bool(found[:, :, 5:].isfinite().all())
    found = linear(query, key, value, similarity, qkv.Padding(lengths=torch.tensor([0, 67])))
    assert not found[0].any()
    keep = torch.arange(67).expand(2, 67) >= 41
    query = draw(67)[0]
    found = linear(query, key, value, similarity, qkv.Causal() & qkv.Padding(keep=keep))
    assert not found[:, :, :41].any()
    close(found, quadratic(query, key, value, similarity, offset=0, keep=keep))


@by_similarity
def test_lengths_of_zero_and_one(similarity: Any) -> None:
    assert linear(*draw(0, 5), similarity).shape == (2, 6, 0, 5)
    assert linear(*draw(0), similarity, qkv.Causal()).shape == (2, 6, 0, 5)
    assert linear(*draw(3, batch=0), similarity, qkv.Causal()).shape == (0, 6, 3, 5)
    empty = linear(*draw(3, 0), similarity)
    assert empty.shape == (2, 6, 3, 5)
    assert not empty.any()
    one = draw(1)
    close(linear(*one, similarity, qkv.Causal()), quadratic(*one, similarity))
    close(linear(*draw(3, 1), similarity), quadratic(*draw(3, 1), similarity))


@by_similarity
@by_bad
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_padded_keys_and_values_do_not_change_a_bit(similarity: Any, bad: float, causal: bool) -> None:
    query, key, value = draw(131)
    keep = torch.ones(2, 131, dtype=torch.bool)
    keep[0, 70:], keep[1, ::3], keep[1, :2] = False, False, False
    mask = qkv.Padding(keep=keep)
    mask = qkv.Causal() & mask if causal else mask
    clean = linear(query, key, value, similarity, mask)
    for poison in ((key,), (value,), (key, value)):
        dirty = [tensor.clone() if any(tensor is p for p in poison) else tensor for tensor in (key, value)]
        for tensor, was in zip(dirty, (key, value), strict=True):
            if tensor is not was:
                tensor.transpose(1, 2)[~keep] = bad
        same_bits(linear(query, *dirty, similarity, mask), clean)


@by_similarity
@by_bad
def test_the_future_does_not_change_a_bit(similarity: Any, bad: float) -> None:
    query, key, value = draw(131, batch=1, heads=(2, 1))
    clean = linear(query, key, value, similarity, qkv.Causal())
    for first in (1, 5, 63, 64, 65, 100, 128, 130):
        dirty_key, dirty_value = key.clone(), value.clone()
        dirty_key[:, :, first:], dirty_value[:, :, first:] = bad, bad
        found = linear(query, dirty_key, dirty_value, similarity, qkv.Causal())
        same_bits(found[:, :, :first], clean[:, :, :first], f"what comes from {first} on")
    for offset, rows in ((-40, 131), (10, 111)):
        dirty_key, dirty_value = key.clone(), value.clone()
        dirty_key[:, :, rows + offset :], dirty_value[:, :, rows + offset :] = bad, bad
        part = linear(query[:, :, :rows], key, value, similarity, qkv.Causal(offset))
        same_bits(linear(query[:, :, :rows], dirty_key, dirty_value, similarity, qkv.Causal(offset)), part)


@by_few
@pytest.mark.parametrize("offset", [None, 0, 3], ids=["all", "causal", "causal 3"])
def test_attended_nan_is_never_hidden(similarity: Any, offset: int | None) -> None:
    mask = None if offset is None else qkv.Causal(offset)
    for which in range(3):
        for at in (0, 50, 63, 64, 66):
            tensors = draw(67)
            tensors[which][1, 2, at, 4] = nan
            close(linear(*tensors, similarity, mask), quadratic(*tensors, similarity, offset=offset), what=f"{at}")


@by_few
def test_attended_nan_beside_padding(similarity: Any) -> None:
    query, key, value = draw(67)
    keep = torch.ones(2, 67, dtype=torch.bool)
    keep[0, 10:20] = False
    key[0, 1, 15], key[0, 1, 40], value[0, 1, 12], value[1, 2, 50, 1] = nan, nan, inf, nan
    clean = key.clone(), value.clone()
    clean[0][0, 1, 15], clean[1][0, 1, 12] = 0.0, 0.0
    for offset, mask in ((None, qkv.Padding(keep=keep)), (0, qkv.Causal() & qkv.Padding(keep=keep))):
        found = linear(query, key, value, similarity, mask)
        close(found, quadratic(query, *clean, similarity, offset=offset, keep=keep))


@pytest.mark.parametrize("name", ["elu1", "elu1 undivided", "two-sided", "random"])
def test_attended_infinite_values_stay_infinite(name: str) -> None:
    """Positive features: inf in the rows that see it, NaN where both signs meet, the others keep their numbers."""
    query, key, value = draw(131, batch=1, heads=(2, 1))
    value[0, 0, 70, 1], value[0, 0, 90, 1], value[0, 0, 100, 3] = inf, -inf, -inf
    for offset, mask in ((None, None), (0, qkv.Causal())):
        wanted = quadratic(query, key, value, SIMILARITIES[name], offset=offset)
        close(linear(query, key, value, SIMILARITIES[name], mask), wanted)


def test_degree_zero_never_looks_at_a_key() -> None:
    query, key, value = draw(67)
    clean = linear(query, key, value, qkv.Polynomial(0), qkv.Causal())
    key[0, 1, 3], key[1, 2, 5] = nan, inf
    same_bits(linear(query, key, value, qkv.Polynomial(0), qkv.Causal()), clean)


def flattened(x: Tensor) -> Tensor:
    return x.flatten()


def one_token_less(x: Tensor) -> Tensor:
    return x[..., 1:, :]


def summed_up(x: Tensor) -> Tensor:
    return x.sum(-1)


def one_axis_more(x: Tensor) -> Tensor:
    return x[..., None]


def widened(x: Tensor) -> Tensor:
    return x.double()


def rounded_to_whole(x: Tensor) -> Tensor:
    return x.round().int()


def made_complex(x: Tensor) -> Tensor:
    return x.to(torch.complex64)


@pytest.mark.parametrize("phi", [flattened, one_token_less, summed_up, one_axis_more], ids=lambda f: f.__name__)
def test_a_map_of_the_wrong_shape_is_named(phi: Any) -> None:
    for mask in (None, qkv.Causal()):
        for grad in (False, True):
            tensors = [tensor.requires_grad_(grad) for tensor in draw(67)]
            with pytest.raises(errors.ShapeError, match=phi.__name__):
                linear(*tensors, qkv.FeatureMap(phi), mask)


@pytest.mark.parametrize("phi", [widened, rounded_to_whole, made_complex], ids=lambda f: f.__name__)
def test_a_map_of_the_wrong_dtype_is_named(phi: Any) -> None:
    for mask in (None, qkv.Causal()):
        for grad in (False, True):
            tensors = [tensor.requires_grad_(grad) for tensor in draw(67)]
            with pytest.raises(errors.DtypeError, match=phi.__name__):
                linear(*tensors, qkv.FeatureMap(phi), mask)


def test_a_map_for_another_width_says_so() -> None:
    with pytest.raises(errors.ShapeError, match="width"):
        linear(*draw(67), qkv.FeatureMap(features.positive_random(8, 11)))


def test_errors_of_the_map_itself_come_through() -> None:
    def broken(x: Tensor) -> Tensor:
        raise ZeroDivisionError("of the map")

    with pytest.raises(ZeroDivisionError, match="of the map"):
        linear(*draw(67), qkv.FeatureMap(broken), qkv.Causal())


@pytest.mark.parametrize("name", ["elu1", "random", "polynomial 2"])
def test_numbers_that_are_large_but_fit(name: str) -> None:
    query, key, value = draw(67)
    tensors = query * (100.0 if name != "random" else 1.0), key * (100.0 if name != "random" else 1.0), value * 1e25
    for offset, mask in ((None, None), (0, qkv.Causal())):
        found = linear(*tensors, SIMILARITIES[name], mask)
        close(found, quadratic(*tensors, SIMILARITIES[name], offset=offset), allowed=1e-5)


@pytest.mark.parametrize("width", [1, 3, 16, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_far_below_zero_keep_their_ratios(width: int, dtype: torch.dtype) -> None:
    """e^x of all coordinates is below the numbers of float32, but only their ratios count, beside −inf as well."""
    query, key, value = draw(5, 7, widths=(width, 3), dtype=dtype)
    query = (query - torch.tensor([30.0, 86.0, 95.0, 300.0, 5000.0]).view(5, 1)).to(dtype)
    if width > 1:
        query[..., 0] = -inf
    elu1 = qkv.FeatureMap(features.elu1)
    top = query.double().amax(dim=-1, keepdim=True)
    near = qkv.attention(query.double() - top, key.double(), value.double(), similarity=elu1, backend="reference")
    found = qkv.attention(query, key, value, similarity=elu1, backend="linear")
    torch.testing.assert_close(found, near.to(dtype))
    hidden = torch.full_like(query, -inf)
    assert not qkv.attention(hidden, key, value, similarity=elu1, backend="linear").any()
