"""What the kernels' claim runs: exact and counted, and refuted when anything in it is wrong."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.theory.kernels import (
    Tallied,
    by_scores,
    by_sums,
    counted_runs,
    decoding,
    linear_form,
    listing_subscripts,
    quadratic_features,
)


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
    exact = [[[Tallied(one) for one in row] for row in matrix] for matrix in (queries, keys, values)]
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
    one = [[Tallied(Fraction(1, 3))]]
    assert by_sums(one, one, one) == [[Fraction(1, 3)]]


def test_linear_form_with_an_epsilon_is_refuted() -> None:
    def with_epsilon(q, k, v):
        sim = (q @ k.T + 1) ** 2
        return (sim @ v) / (sim.sum(-1, keepdim=True) + 1e-6)

    assert linear_form(0, 7, 5, 3).kind == "tested"
    assert linear_form(0, 7, 5, 3, with_epsilon).kind == "refuted"


def test_right_subscripts_are_no_mistake() -> None:
    assert listing_subscripts().kind == "tested"
    assert listing_subscripts(values="bhn,bnv->bhv").kind == "refuted"
    assert listing_subscripts(output="bhv,hvd->bd").kind == "refuted"


def test_decoding_without_scaling_or_without_a_cache_is_refuted() -> None:
    assert decoding(0).kind == "tested"
    assert decoding(0, scaled=False).kind == "refuted"
    assert decoding(0, handed_on=False).kind == "refuted"
