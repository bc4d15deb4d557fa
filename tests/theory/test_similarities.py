"""Similarities on the same data, against NumPy and the formulas of the claims."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import OptionError
from qkv.theory import similarities


def softmax(scores):
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def as_numpy(*tensors):
    return [tensor.numpy() for tensor in tensors]


@pytest.mark.parametrize("kind", similarities.SAMPLES)
@pytest.mark.parametrize(("tokens", "width"), [(2, 1), (7, 5), (12, 8)])
def test_samples_are_repeatable_and_of_the_sizes_asked_for(kind, tokens, width):
    first, again = (similarities.sample(kind, tokens, width, seed=3) for _ in range(2))
    other = similarities.sample(kind, tokens, width, seed=4)
    for a, b, c in zip(first, again, other, strict=True):
        assert a.shape == (tokens, width)
        assert a.dtype == torch.float64
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_samples_have_the_structure_that_they_are_named_after():
    query, key, _ = similarities.sample("clustered", 30, 16)
    scores = (query @ key.T).numpy()
    same = np.equal.outer(np.arange(30) // 10, np.arange(30) // 10)
    assert scores[same].mean() > 5 * abs(scores[~same].mean())
    query, key, value = similarities.sample("repeated", 10, 16)
    best = (query @ key.T).argmax(-1)
    assert [int(at) % 5 for at in best] == [(n + 1) % 5 for n in range(10)]  # what came after the token
    assert torch.equal(value, query)
    with pytest.raises(OptionError, match="one of random, clustered, repeated"):
        similarities.sample("sorted", 3, 3)


@pytest.mark.parametrize("causal", [False, True])
def test_weights_and_distances_are_numpys(causal):
    tensors = similarities.sample("random", 7, 5, seed=1)
    query, key, value = as_numpy(*tensors)
    seen = np.tri(7, dtype=bool) if causal else np.ones((7, 7), bool)
    scores = query @ key.T
    soft = softmax(np.where(seen, scores / math.sqrt(5), -np.inf))
    power = np.where(seen, (scores + 1) ** 2, 0)
    wanted = {"softmax": soft, "polynomial": power / power.sum(-1, keepdims=True)}
    kinds = {"softmax": qkv.Softmax(), "polynomial": qkv.Polynomial(2, 1.0)}
    found = similarities.compared(*tensors, kinds, mask=qkv.Causal() if causal else None)
    for name, weights in wanted.items():
        each = found[name]
        np.testing.assert_allclose(each.weights, weights, atol=1e-12)
        np.testing.assert_allclose(each.out, weights @ value, atol=1e-12)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.nansum(weights * np.log(weights), -1)
        np.testing.assert_allclose(each.entropy, entropy, atol=1e-12)
        assert each.weights_apart == pytest.approx(np.abs(weights - soft).max(), abs=1e-12)
        assert each.out_apart == pytest.approx(np.abs((weights - soft) @ value).max(), abs=1e-12)
        assert (each.empty, each.negative) == (0, 0)
    with pytest.raises(OptionError, match="reference"):
        similarities.compared(*tensors, kinds, reference="even")


def test_rows_that_are_no_distribution_are_counted():
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    key = torch.tensor([[-1.0, 0.0], [-1.0, 3.0]], dtype=torch.float64)
    kinds = {"softmax": qkv.Softmax(), "even": qkv.Polynomial(2, 1.0), "odd": qkv.Polynomial(1, -1.0)}
    found = similarities.compared(query, key, key, kinds)
    assert (found["even"].empty, found["even"].negative) == (1, 0)
    assert math.isnan(found["even"].entropy[0])
    assert found["odd"].negative == 1
    assert math.isnan(found["odd"].entropy[1])


@pytest.mark.parametrize("causal", [False, True])
def test_cooling_stays_within_the_bounds_of_its_gaps(causal):
    query, key, _ = similarities.sample("random", 9, 5, seed=2)
    temperatures = [0.001, 0.02, 0.3, 1.0, 8.0]
    mask = qkv.Causal() if causal else None
    found = similarities.cooling(query, key, temperatures, mask=mask)
    seen = np.tri(9, dtype=bool) if causal else np.ones((9, 9), bool)
    scores = np.where(seen, (query @ key.T).numpy() / math.sqrt(5), -np.inf)
    hard = np.eye(9)[scores.argmax(-1)]
    ordered = np.sort(scores, -1)
    assert found.gap == pytest.approx((ordered[:, -1] - ordered[:, -2]).min())
    assert found.tied == 0
    for temperature, step in zip(temperatures, found.steps, strict=True):
        rows = np.abs(softmax(scores / temperature) - hard).max(-1)
        assert step.apart == pytest.approx(rows.max(), abs=1e-12)
        assert step.median == pytest.approx(np.sort(rows)[4], abs=1e-12)
        assert step.least - 1e-12 <= step.median <= step.most + 1e-12
    assert found.steps[0].median < 1e-9


def test_ties_and_lone_keys():
    twins = torch.tensor([[1.0], [1.0], [0.0]], dtype=torch.float64)
    found = similarities.cooling(twins[:1], twins, [1e-3])
    assert (found.tied, found.gap) == (1, 0.0)
    assert found.steps[0].apart == pytest.approx(0.5)
    alone = similarities.cooling(twins[:1], twins[:1], [1.0])
    assert (alone.tied, alone.gap, alone.steps[0].apart) == (0, math.inf, 0.0)


def test_random_features_come_nearer_to_softmax():
    query, key, value = similarities.sample("random", 8, 4, seed=5)
    found = similarities.approximated(query, key, [4, 64, 1024], seed=7, draws=3)
    assert [each.features for each in found] == [4, 64, 1024]
    assert found[0].median > found[1].median > found[2].median
    apart = []
    for seed in (7, 8, 9):
        kinds = {
            "softmax": qkv.Softmax(),
            "random": qkv.FeatureMap(qkv.features.positive_random(4, 64, seed=seed)),
        }
        apart.append(similarities.compared(query, key, value, kinds)["random"].weights_apart)
    assert found[1].apart == pytest.approx(apart[0], abs=1e-12)
    assert found[1].median == pytest.approx(sorted(apart)[1], abs=1e-12)


@pytest.mark.parametrize("width", [2, 16, 64])
def test_sums_pay_from_the_length_that_the_formula_says(width):
    maps = [
        (qkv.Polynomial(2, 1.0), None, (width + 1) * (width + 2) // 2),
        (qkv.Polynomial(3, 0.0), None, math.comb(width + 2, 3)),
        (qkv.FeatureMap(qkv.features.elu1), None, width),
        (qkv.FeatureMap(qkv.features.identity), 128, 128),
    ]
    for similarity, given, features in maps:
        equal = Fraction(2 * features * (2 * width + 3) + width, 2 * (2 * width + 3))
        found = similarities.pays_from(similarity, width, features=given)
        assert found == math.floor(equal) + 1
        work = [similarities.work(similarity, n, width, features=given) for n in (found, found - 1)]
        assert work[0] < similarities.work(qkv.Softmax(), found, width)
        assert work[1] >= similarities.work(qkv.Softmax(), found - 1, width)
        late = similarities.pays_from(similarity, width, features=given, mask=qkv.Causal())
        assert late == max(1, math.floor(2 * equal - 1) + 1)
    assert similarities.work(qkv.Argmax(), 10, width) == 10 * 10 * (2 * width + 1)
