"""The claim on saturation holds line by line, and each piece of its evidence can fail."""

from fractions import Fraction

import pytest

from qkv.theory.saturation import _all_cases, _in_probability, _in_training, jacobian_norm, partitions, saturation


@pytest.fixture(scope="module")
def claim():
    return saturation(draws=60_000, steps=2)


def test_every_line_follows(claim):
    failing = [
        (line.text, str(check))
        for line, check in zip(claim.derivation, claim.checks, strict=True)
        if check is not None and check.kind != "equal"
    ]
    assert failing == []


def test_equalities_are_proved(claim):
    tried = [
        line.text
        for line, check in zip(claim.derivation, claim.checks, strict=True)
        if check is not None and line.relation == "=" and check.evidence != "proved"
    ]
    assert tried == []


def test_its_evidence_holds(claim):
    assert [e for e in claim.evidence if not e.holds] == []


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


def test_another_width_has_another_probability():
    assert _in_probability(0, 20_000, width=256)[0].kind == "refuted"


def test_norm_of_equal_weights():
    assert jacobian_norm([Fraction(1, 3)] * 3) == Fraction(2, 9)


def test_figure_is_seeded(claim):
    svg = claim.figure()
    assert "median" in svg
