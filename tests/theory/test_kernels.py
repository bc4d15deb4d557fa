"""Kernels: when sums vanish, features, costs; each piece of evidence can be refuted."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.maths import compare
from qkv.theory.kernels import (
    Counted,
    added_epsilon,
    by_scores,
    by_sums,
    classes,
    counted_runs,
    decoding,
    enough,
    figure,
    formulas,
    kernel_is_features,
    linear_backend,
    listing_subscripts,
    quadratic_features,
    vanishing,
)


@pytest.fixture(scope="module")
def claim(made):
    return made("kernels")


def test_every_line_is_proved_and_growth_is_tested(claim) -> None:
    assert claim.holds
    for line, check in zip(claim.derivation.steps, claim.checks, strict=True):
        assert check is None or check.evidence == ("tested" if "Theta" in line.text else "proved"), line.text


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
        ("reference", "flops", r"\Theta(N^2 D)"),
        ("reference", "space", r"\Theta(N^2)"),
        ("linear", "flops", r"\Theta(N D^3)"),
        ("linear", "space", r"\Theta(N D^2 + D^3)"),
    ],
)
def test_the_rates_of_the_published_solution_are_refuted(said) -> None:
    assert [evidence.kind for evidence in classes([said])] == ["refuted"]


def test_one_line_with_another_number_is_refuted(claim) -> None:
    place = next(n for n, line in enumerate(claim.derivation.steps) if line.text == r"\frac{(D + 1)(D + 2)}{2}")
    verdict = compare(claim.derivation.steps[place - 1].text, r"\frac{D^2}{2}", claim.symbols)
    assert not verdict
    assert verdict.counterexample


def test_figure_shows_where_sums_begin_to_pay() -> None:
    assert "equal at N = 2145" in figure()


@pytest.mark.parametrize("width", [1, 2, 3, 7, 11])
def test_number_of_features(width: int) -> None:
    assert len(quadratic_features(width)) == (width + 1) * (width + 2) // 2


def rows(length: int, width: int):
    return st.lists(st.lists(st.integers(-5, 5), min_size=width, max_size=width), min_size=length, max_size=length)


@settings(max_examples=30)
@given(rows(2, 3), rows(5, 3), rows(5, 2))
def test_both_orders_are_one_function(queries, keys, values) -> None:
    if any(all(sum(a * b for a, b in zip(q, k, strict=True)) == -1 for k in keys) for q in queries):
        return  # the sum below the fraction vanishes
    exact = [[[Counted(one) for one in row] for row in matrix] for matrix in (queries, keys, values)]
    assert by_scores(*exact) == by_sums(*exact)


def test_counts_are_those_of_the_cost_model() -> None:
    assert [evidence.kind for evidence in counted_runs(0)] == ["tested"] * 3
    assert [evidence.kind for evidence in counted_runs(1, 7, 2, 3)] == ["tested"] * 3


def test_a_rewrite_that_is_none_is_refuted() -> None:
    def halved(queries, keys, values):
        return [[one / 2 for one in row] for row in by_sums(queries, keys, values)]

    assert counted_runs(0, rewritten=halved)[0].kind == "refuted"
    assert counted_runs(0, rewritten=by_scores)[2].kind == "refuted", "the answer is right, the work is not"


def test_no_difference_is_hidden_by_floats() -> None:
    one = [[Counted(Fraction(1, 3))]]
    assert by_sums(one, one, one) == [[Fraction(1, 3)]]


def test_linear_backend_with_an_epsilon_is_refuted() -> None:
    def with_epsilon(q, k, v):
        sim = (q @ k.T + 1) ** 2
        return (sim @ v) / (sim.sum(-1, keepdim=True) + 1e-6)

    assert linear_backend(0, 7, 5, 3).kind == "tested"
    assert linear_backend(0, 7, 5, 3, with_epsilon).kind == "refuted"


def test_right_subscripts_are_no_mistake() -> None:
    assert listing_subscripts().kind == "tested"
    assert listing_subscripts(values="bhn,bnv->bhv").kind == "refuted"
    assert listing_subscripts(output="bhv,hvd->bd").kind == "refuted"


def test_decoding_without_scaling_or_without_a_cache_is_refuted() -> None:
    assert decoding(0).kind == "tested"
    assert decoding(0, scaled=False).kind == "refuted"
    assert decoding(0, kept_cache=False).kind == "refuted"
