"""Equalities on saturation are proved, and each piece of its evidence can fail."""

from fractions import Fraction

import pytest

from qkv.theory.saturation import (
    _all_cases,
    _at_random,
    _differentiated,
    _in_probability,
    _in_training,
    drawn_sizes,
    jacobian_norm,
    partitions,
)


@pytest.fixture(scope="module")
def claim(made):
    return made("saturation")


def test_equalities_are_proved(claim):
    tried = [
        line.text
        for line, check in zip(claim.derivation, claim.checks, strict=True)
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
