"""Normalisation: dependence by Jacobians, length by torch's module, and wrong statements refuted."""

import math

import pytest

from qkv.maths import compare
from qkv.theory.normalisation import (
    CASES,
    constant_vector,
    depends,
    figure,
    gamma_for_each,
    in_a_block,
    length,
    slopes,
    vanishing_jacobian,
)


@pytest.fixture(scope="module")
def claim(made):
    return made("normalisation")


@pytest.mark.parametrize(("kind", "training"), [("layer", True), ("layer", False), ("batch", True), ("batch", False)])
def test_only_one_rule_holds_for_each(kind: str, training: bool) -> None:
    rules = {said: rule for _, _, said, rule in CASES}
    held = [said for said, rule in rules.items() if depends(kind, training, said, rule, batch=3, width=5).holds]
    assert held == [said for k, t, said, _ in CASES if (k, t) == (kind, training)]


@pytest.mark.parametrize("kind", ["layer", "batch"])
def test_three_numbers_keep_a_derivative(kind: str) -> None:
    assert vanishing_jacobian(kind).kind == "tested"
    assert vanishing_jacobian(kind, 3).kind == "refuted"


def test_two_of_everything_would_mislead() -> None:
    _, _, said, rule = CASES[0]
    assert depends("layer", True, said, rule, batch=3, width=3).kind == "tested"
    alone = depends("layer", True, "nothing", lambda *_: False, batch=3, width=2)
    assert alone.residual == 12, "a width of 2 has slopes of the order of ε, and only of ε"


def test_the_length_without_its_absolute_value_or_without_epsilon_is_refuted() -> None:
    assert length(0, 7).kind == length(0, 7, 0.5).kind == "tested"
    assert length(0, 7, said=lambda gamma, d, shrunk: gamma * math.sqrt(d)).kind == "refuted"
    assert length(0, 7, 0.5, said=lambda gamma, d, shrunk: abs(gamma) * math.sqrt(d)).kind == "refuted"
    assert length(0, 7, said=lambda gamma, d, shrunk: abs(gamma) * math.sqrt(d - 1)).kind == "refuted"


def test_other_statements_that_are_wrong_are_refuted() -> None:
    assert slopes(0, 7).kind == "tested"
    assert slopes(0, 7, kept=0).kind == "refuted"
    assert gamma_for_each(0, 7).kind == "tested"
    assert gamma_for_each(0, 7, wider=1.0).kind == "refuted"
    assert constant_vector(7).kind == "tested"
    assert constant_vector(7, epsilon=1e-5).kind == "refuted"
    assert in_a_block(0).kind == "tested"
    assert in_a_block(0, ("batch", "layer")).kind == "refuted"


def test_gamma_without_its_absolute_value_turns_the_claim_red(claim) -> None:
    place = next(n for n, line in enumerate(claim.derivation) if line.text == r"|\gamma| \sqrt{d}")
    verdict = compare(claim.derivation[place - 1].text, r"\gamma \sqrt{d}", claim.symbols)
    assert verdict.kind == "conditional"


def test_figure_names_its_axes() -> None:
    svg = figure()
    assert "σ of the input" in svg
    assert "ε = 0" in svg
