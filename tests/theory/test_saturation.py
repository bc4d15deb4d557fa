"""Equalities on saturation are proved, and each piece of its evidence can fail."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from qkv.theory.saturation import (
    _all_cases,
    _at_random,
    _differentiated,
    _in_probability,
    _in_training,
    drawn_sizes,
    gradients,
    jacobian_norm,
    median_bound,
    partitions,
    top_gap_density,
    trained,
)


@pytest.fixture(scope="module")
def claim(made):
    return made("saturation")


@pytest.mark.slow
def test_equalities_are_proved(claim):
    tried = [
        line.text
        for line, check in zip(claim.derivation.steps, claim.checks, strict=True)
        if check is not None and line.relation == "=" and check.evidence != "proved"
    ]
    assert tried == []


def test_without_cross_terms_the_norm_is_refuted():
    def diagonal(weights):
        return sum((a * (1 - a)) ** 2 for a in weights)

    assert _all_cases(norm=diagonal)[0].kind == "refuted"


def test_a_sharper_factor_is_refuted():
    assert [e.kind for e in _all_cases(factor=1)][1] == "refuted"


def test_training_in_which_nothing_vanishes_is_refuted():
    def swapped(scaled, steps, seed):
        return ([1.0] * steps, [2.0] * steps) if scaled else ([3.0] * steps, [1.0] * steps)

    assert [e.kind for e in _in_training(0, 2, run=swapped)] == ["refuted", "refuted"]


def test_equality_with_the_trace_at_two_keys_only():
    for a in partitions(6, 3):
        trace = 1 - sum(x**2 for x in a)
        assert (jacobian_norm(a) == trace**2) == (min(a) == 0)
    assert len(list(partitions(6, 3))) == 28


def test_the_derivative_of_hotter_scores_is_another():
    assert _differentiated(0)[0].kind == "tested"
    assert _differentiated(0, heat=2.0)[0].kind == "refuted"


def test_a_smaller_factor_or_scaled_scores_are_refuted_at_random():
    assert [e.kind for e in _at_random(0, 100)] == ["tested", "tested"]
    assert [e.kind for e in _at_random(0, 100, factor=1)] == ["refuted", "tested"]
    assert [e.kind for e in _at_random(0, 100, scale=1 / 32)] == ["tested", "refuted"]


def unscaled(generator, width, count, *, scaled):
    return drawn_sizes(generator, width, count, scaled=False)


def with_half_the_gap(*drawn, scaled):
    weights, gap, size = drawn_sizes(*drawn, scaled=scaled)
    return weights, gap / 2, size


def twice_as_large(*drawn, scaled):
    weights, gap, size = drawn_sizes(*drawn, scaled=scaled)
    return weights, gap, 2 * size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "refuted"),
    [
        ({"width": 256}, 0),  # another width has another probability
        ({"draw": twice_as_large}, 1),
        ({"draw": with_half_the_gap}, 2),
        ({"draw": unscaled}, 3),
    ],
)
def test_draws_of_another_law_are_refuted(wrong, refuted):
    kinds = [e.kind for e in _in_probability(0, 20_000, **wrong)]
    assert [place for place, kind in enumerate(kinds) if kind == "refuted"] == [refuted]


def test_norm_of_equal_weights():
    assert jacobian_norm([Fraction(1, 3)] * 3) == Fraction(2, 9)


def test_figure_is_seeded(claim):
    svg = claim.figure()
    assert "median" in svg


def test_density_of_the_top_gap():
    assert math.isclose(top_gap_density(2), 1 / math.sqrt(math.pi), rel_tol=1e-6)
    assert math.isclose(top_gap_density(3), 3 / (2 * math.sqrt(math.pi)), rel_tol=1e-6)


def test_the_median_must_fall_with_the_width():
    bounds = [median_bound(width, 16, 400) for width in (256, 1024, 4096)]
    assert bounds[0] > bounds[1] > bounds[2]
    assert bounds[2] < 1e-5


def test_drawn_sizes_are_those_of_vectors():
    generator = np.random.default_rng(0)
    weights, gap, size = drawn_sizes(generator, 11, 3_000, scaled=True, keys=5)
    seeded = torch.Generator().manual_seed(0)
    query, key = (torch.randn(3_000, rows, 11, generator=seeded) for rows in (1, 5))
    a = torch.softmax((query * key).sum(-1) / math.sqrt(11), 1)
    theirs = (torch.diag_embed(a) - a[:, :, None] * a[:, None, :]).flatten(1).norm(dim=1)
    assert abs(float(np.median(size)) - float(theirs.median())) < 0.03  # sizes are below 0.71; 3000 of each
    assert np.allclose(weights.sum(1), 1)
    assert np.allclose(np.sort(weights, 1)[:, -1] / np.sort(weights, 1)[:, -2], np.exp(gap))


def test_gradients_are_seeded_and_positive():
    found = gradients(7, True, 5, 3)
    assert found.shape == (5,)
    assert torch.equal(found, gradients(7, True, 5, 3))
    assert float(found.min()) > 0


def test_training_gives_one_number_a_step():
    medians, means = trained(True, 3, 0, width=13, batch=5)
    assert len(medians) == len(means) == 3
