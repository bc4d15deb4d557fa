"""Every line on scores is proved, and each piece of its evidence can fail."""

from fractions import Fraction

import pytest

from qkv.maths.moments import VECTOR_MEAN
from qkv.theory.scores import _attended, _conditional, _confident, _enumerated, _sampled, predicted


@pytest.fixture(scope="module")
def claim(made):
    return made("scores")


def test_it_is_proved(claim):
    failing = [
        (line.text, str(check))
        for line, check in zip(claim.derivation.steps, claim.checks, strict=True)
        if check is not None and (check.kind, check.evidence) != ("equal", "proved")
    ]
    assert failing == []


def test_formulas_that_forget_something_are_refuted_by_enumeration():
    def uncorrelated(q, k):
        mean, variance = predicted(q, k)
        return mean, variance - q.covariance[0][1] * k.covariance[0][1]

    def scalar_mean(q, k):
        _, variance = predicted(q, k)
        return len(q.mean) * q.mean[0] * k.mean[0], Fraction(variance)

    assert [e.kind for e in _enumerated(uncorrelated)] == ["tested", "refuted"]
    assert [e.kind for e in _enumerated(scalar_mean)] == ["refuted", "tested"]


def test_samples_refute_another_spread():
    assert {e.kind for e in _sampled(0, 60_000, errors=0.0)} == {"refuted"}


def test_a_variance_without_the_keys_mean_is_outside_the_interval():
    assert [e.kind for e in _confident(0, 60_000, forgotten=1.0)] == ["tested", "refuted"]


def test_an_answer_that_is_right_or_wrong_without_condition_is_no_conditional():
    assert not _conditional("", r"\mu^T \mu", r"\|\mu\|^2", VECTOR_MEAN).holds
    assert not _conditional("", r"\mu^T \mu", r"2 \mu^T \mu", VECTOR_MEAN).holds


def test_weights_without_a_scale_or_with_its_sign_lost_are_refuted():
    def unscaled(q, k, scale):
        return (q @ k.T * (1.0 if scale is None else scale)).softmax(-1)

    def without_sign(q, k, scale):
        return (q @ k.T * abs(scale or 11**-0.5)).softmax(-1)

    assert [e.kind for e in _attended(0)] == ["tested", "tested"]
    assert [e.kind for e in _attended(0, weigh=unscaled)] == ["refuted", "tested"]
    assert [e.kind for e in _attended(0, weigh=without_sign)] == ["tested", "refuted"]


def test_solutions_are_corrected(claim):
    assert {c.document.split(" ")[0].strip(",") for c in claim.corrections} == {"scaling", "saturation"}


def test_figure_is_seeded(claim):
    svg = claim.figure()
    assert svg == claim.figure()
    assert "width d" in svg
