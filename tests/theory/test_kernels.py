"""Kernels: when sums vanish, features, costs; each piece of evidence can be refuted."""

from fractions import Fraction

import pytest

from qkv.maths import compare
from qkv.theory.kernels import (
    added_epsilon,
    classes,
    enough,
    figure,
    formulas,
    kernel_is_features,
    quadratic_features,
    vanishing,
)


@pytest.fixture(scope="module")
def claim(made):
    return made("kernels")


def test_every_line_is_proved(claim) -> None:
    assert claim.proved


def test_a_sum_of_both_signs_can_cancel() -> None:
    assert enough().kind == "proved"
    assert enough((-1, 0, 1)).kind == "refuted"


def test_other_keys_do_not_vanish() -> None:
    assert vanishing().kind == "tested"
    assert vanishing(((-1.0, 0.0), (1.0, 3.0))).kind == "refuted"


def test_nothing_added_leaves_everything() -> None:
    assert added_epsilon(Fraction(0)).kind == "refuted", "the share that is left is 1, not 1%"


def test_features_with_a_wrong_factor_or_one_too_many_are_refuted() -> None:
    assert kernel_is_features().kind == "proved"
    assert kernel_is_features(features=lambda d: {**quadratic_features(d), (0, d): 1}).kind == "refuted"
    assert kernel_is_features(features=lambda d: {**quadratic_features(d), (d, d + 1): 0}).kind == "refuted"


def test_wrong_counts_are_refuted() -> None:
    assert formulas().holds
    assert formulas(softmax="2 N^2 (D + M)").kind == "refuted"
    assert formulas(linear="N (D + 1)(D + 2)(2 M + 3)").kind == "refuted"


@pytest.mark.parametrize(
    "said",
    [
        ("dense", "flops", r"\Theta(N^2 D)"),
        ("dense", "space", r"\Theta(N^2)"),
        ("linear", "flops", r"\Theta(N D^3)"),
        ("linear", "space", r"\Theta(N D^2 + D^3)"),
    ],
)
def test_the_rates_of_the_document_are_refuted(said) -> None:
    assert [evidence.kind for evidence in classes([said])] == ["refuted"]


def test_one_line_with_another_number_is_refuted(claim) -> None:
    place = next(n for n, line in enumerate(claim.derivation) if line.text == r"\frac{(D + 1)(D + 2)}{2}")
    verdict = compare(claim.derivation[place - 1].text, r"\frac{D^2}{2}", claim.symbols)
    assert not verdict
    assert verdict.counterexample


def test_figure_shows_where_sums_begin_to_pay() -> None:
    assert "equal at N = 2145" in figure()
