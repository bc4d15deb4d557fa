"""Drawn scores and their predicted law, by hand and by counting."""

import math
import statistics

import numpy as np
import pytest

from qkv.theory.draws import drawn_scores, histogram, normal_curve, normal_distance, predicted_moments


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
