"""Laws of gaps and sizes against closed forms and against one another."""

import math

import numpy as np
import torch

from qkv.theory.saturation import drawn_sizes, gradients, median_bound, top_gap_density, trained


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
