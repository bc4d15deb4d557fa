"""Random scores and their predicted law, against results by hand and counts."""

import math
import statistics

import numpy as np
import pytest
import torch

import qkv
from qkv.theory.draws import (
    MEASURES,
    SoftmaxDraws,
    SoftmaxRows,
    attended,
    descending,
    drawn_scores,
    histogram,
    normal_curve,
    normal_distance,
    predicted_moments,
)
from qkv.theory.saturation import gradients


@pytest.mark.parametrize("width", [1, 2, 7, 64, 1024])
@pytest.mark.parametrize(("mean", "sigma"), [(0.0, 1.0), (0.5, 1.5), (-2.0, 0.1), (1 / 3, 3.0)])
def test_predicted_moments_by_hand(width, mean, sigma):
    variance = width * (sigma**4 + 2 * mean**2 * sigma**2)
    assert predicted_moments(width, mean, sigma, scaled=False) == pytest.approx((width * mean**2, variance))
    scaled = (math.sqrt(width) * mean**2, variance / width)
    assert predicted_moments(width, mean, sigma, scaled=True) == pytest.approx(scaled)


@pytest.mark.parametrize("width", [1, 3, 200_000])
def test_drawn_scores_follow_the_law(width):
    count = 4000 if width < 10 else 3
    values = drawn_scores(width, 0.4, 1.3, count, 5)
    assert values.shape == (count,)
    assert np.array_equal(values, drawn_scores(width, 0.4, 1.3, count, 5))
    mean, variance = predicted_moments(width, 0.4, 1.3, scaled=False)
    assert abs(values.mean() - mean) < 4.5 * math.sqrt(variance / count)


def test_blocks_do_not_repeat():
    values = drawn_scores(1024, 0.0, 1.0, 300, 0)
    assert len(np.unique(values)) == 300


def test_histogram_counts_everything():
    values = np.array([-9.0, -0.5, 0.1, 0.2, 3.9, 50.0])
    bars = histogram(values, 0.0, 1.0, bars=8)
    assert bars.edges == (-4, -3, -2, -1, 0, 1, 2, 3, 4)
    assert bars.counts == (0, 0, 0, 1, 2, 0, 0, 1)
    assert bars.outside == 2
    assert bars.heights == tuple(count / 6 for count in bars.counts)


def test_the_curve_is_a_density():
    points = normal_curve(3.0, 2.0, steps=400)
    step = points[1][0] - points[0][0]
    assert math.fsum(y * step for _, y in points) == pytest.approx(1, abs=1e-3)
    assert max(points, key=lambda point: point[1])[0] == pytest.approx(3)


def test_distance_tells_a_normal_sample_from_others():
    law = statistics.NormalDist(2, 3)
    even = np.array([law.inv_cdf((n + 0.5) / 500) for n in range(500)])
    distance, chance = normal_distance(even, 2, 3, rarity=20)
    assert distance == pytest.approx(0.5 / 500)
    assert chance == pytest.approx(1.358 / math.sqrt(500), rel=1e-3)
    products = drawn_scores(1, 0.0, 1.0, 4000, 0)
    distance, chance = normal_distance(products, 0, 1)
    assert distance > 3 * chance
    assert chance == pytest.approx(math.sqrt(math.log(20_000) / 8000))


def test_sizes_are_those_of_the_matrix():
    scores = descending(3 * np.random.default_rng(0).standard_normal((7, 5)))
    soft = SoftmaxRows.of(scores)
    for row, a in enumerate(torch.softmax(torch.from_numpy(scores), 1)):
        jacobian = torch.diag(a) - torch.outer(a, a)
        assert soft.jacobian[row] == pytest.approx(float(jacobian.norm()), rel=1e-12)
        assert soft.entry[row] == pytest.approx(float(jacobian.abs().max()), rel=1e-12)
        assert soft.entropy[row] == pytest.approx(float(-(a * a.log()).sum()), rel=1e-12)
        assert soft.most[row] == pytest.approx(float(a.max()), rel=1e-15)


@pytest.mark.parametrize("gap", [30.0, 300.0, 700.0])
def test_nothing_is_lost_where_softmax_is_nearly_hard(gap):
    soft = SoftmaxRows.of(np.array([[gap, 0.0]]))
    small = math.exp(-gap)
    assert soft.jacobian[0] == pytest.approx(2 * small, rel=1e-9)
    assert soft.entry[0] == pytest.approx(small, rel=1e-9)
    assert soft.entropy[0] == pytest.approx(small * (1 + gap), rel=1e-9)
    both = SoftmaxRows.of(np.array([[gap, 0.0, 0.0]]))
    assert both.jacobian[0] == pytest.approx(math.sqrt(8) * small, rel=1e-9)  # 2s, and s twice on and twice off it
    assert SoftmaxRows.of(np.array([[0.0, -1000.0]])).jacobian[0] == 0


@pytest.mark.parametrize("sigma", [0.3, 6.0])
def test_the_gradient_of_one_query_by_many_digits(sigma):
    """Softmax in 1100 bits: where it is close to argmax, autograd in float64 loses the best key's share."""
    import mpmath

    keys, width = 3, 16
    generator = np.random.default_rng(1)
    vectors = sigma * generator.standard_normal((1 + keys, width))
    value, target = generator.standard_normal((keys, 5)), generator.standard_normal(5)
    with mpmath.workprec(1100):
        query, *rest = ([mpmath.mpf(x) for x in row] for row in vectors.tolist())
        powers = [mpmath.exp(mpmath.fdot(query, key)) for key in rest]
        a = [power / sum(powers) for power in powers]
        error = [mpmath.fdot(a, value[:, n].tolist()) - target[n] for n in range(5)]
        slope = [mpmath.fdot(error, row) for row in value.tolist()]
        slope = [w * (s - mpmath.fdot(a, slope)) for w, s in zip(a, slope, strict=True)]
        size = mpmath.norm([mpmath.fdot(slope, [key[n] for key in rest]) for n in range(width)])
    _, sizes = attended(width, scaled=False, keys=keys, seed=1, sigma=sigma)
    assert sizes.gradient[0] == pytest.approx(float(size), rel=1e-9)
    assert (float(1 - max(a)) < 1e-40) == (sigma > 1)


def by_vectors(width, scaled, mean, sigma, keys, count=3000):
    """The same from vectors, attention and torch's gradient."""
    seeded = torch.Generator().manual_seed(width)

    def normal(*shape):
        return torch.randn(*shape, generator=seeded, dtype=torch.float64)

    query = (mean + sigma * normal(count, 1, width)).requires_grad_()
    key = mean + sigma * normal(count, keys, width)
    similarity = qkv.Softmax(scale=None if scaled else 1.0)
    out, a = qkv.attention(
        query, key, normal(count, keys, 5), similarity=similarity, backend="reference", return_weights=True
    )
    (slope,) = torch.autograd.grad(0.5 * ((out - normal(count, 1, 5)) ** 2).sum(), query)
    return a[:, 0].detach(), slope.norm(dim=-1).flatten()


@pytest.mark.parametrize(("width", "mean", "sigma"), [(1, 0.7, 1.2), (2, 0.0, 1.0), (11, -0.6, 0.8)])
@pytest.mark.parametrize("scaled", [False, True])
def test_draws_have_the_law_of_vectors(width, mean, sigma, scaled):
    count, keys = 3000, 5
    found = SoftmaxDraws(keys, count, 1).sizes(width, scaled=scaled, mean=mean, sigma=sigma)
    weights, slopes = by_vectors(width, scaled, mean, sigma, keys)
    # Shares of one sample below the quantiles of another of the same size.
    bound = 4.5 * math.sqrt(2 * 0.25 / count)
    for mine, theirs in ((found.most, weights.amax(1)), (found.gradient, slopes)):
        for share in (0.1, 0.5, 0.9):
            below = float((np.asarray(mine) < float(theirs.quantile(share))).mean())
            assert abs(below - share) < bound


def test_gradients_are_those_of_the_claim():
    mine = SoftmaxDraws(16, 2000, 0).sizes(64, scaled=True).gradient
    theirs = gradients(64, True, 2000, 0)
    assert abs(float((np.asarray(mine) < float(theirs.median())).mean()) - 0.5) < 4.5 * math.sqrt(0.5 / 2000)


def test_one_query_by_a_call_of_attention():
    weights, sizes = attended(11, scaled=True, keys=7, seed=3, mean=0.5, sigma=1.5)
    assert len(weights) == 7
    assert math.fsum(weights) == pytest.approx(1)
    assert sizes.most[0] == pytest.approx(max(weights), rel=1e-12)
    again, _ = attended(11, scaled=True, keys=7, seed=3, mean=0.5, sigma=1.5)
    assert weights == again
    # The same scores, √11 times as large.
    plain, _ = attended(11, scaled=False, keys=7, seed=3, mean=0.5, sigma=1.5)
    ratio = math.log(plain[0] / plain[1]) / math.log(weights[0] / weights[1])
    assert ratio == pytest.approx(math.sqrt(11))


@pytest.mark.parametrize("keys", [2, 256])
@pytest.mark.parametrize("width", [1, 1024])
def test_quantiles_are_finite_and_in_order(keys, width):
    for mean, sigma in ((0.0, 1.0), (2.0, 3.0), (-2.0, 0.1)):
        for scaled in (False, True):
            sizes = SoftmaxDraws(keys, 50, 0).sizes(width, scaled=scaled, mean=mean, sigma=sigma)
            found = sizes.quantiles()
            assert set(found) == set(MEASURES)
            for low, median, high in found.values():
                assert 0 <= low <= median <= high < math.inf
