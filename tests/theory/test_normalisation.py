"""Normalisation: dependence by Jacobians, length by torch's module, and wrong statements refuted."""

import math

import numpy as np
import pytest

from qkv.errors import OptionError, ShapeError
from qkv.maths import compare
from qkv.theory.normalisation import (
    CASES,
    change_input,
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
    assert length(0, 7, formula=lambda gamma, d, shrunk: gamma * math.sqrt(d)).kind == "refuted"
    assert length(0, 7, 0.5, formula=lambda gamma, d, shrunk: abs(gamma) * math.sqrt(d)).kind == "refuted"
    assert length(0, 7, formula=lambda gamma, d, shrunk: abs(gamma) * math.sqrt(d - 1)).kind == "refuted"


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
    place = next(n for n, line in enumerate(claim.derivation.steps) if line.text == r"|\gamma| \sqrt{d}")
    verdict = compare(claim.derivation.steps[place - 1].text, r"\gamma \sqrt{d}", claim.symbols)
    assert verdict.kind == "conditional"


def test_figure_names_its_axes() -> None:
    svg = figure()
    assert "σ of the input" in svg
    assert "ε = 0" in svg


X = [[1.0, 2.0, 4.0, 9.0], [3.0, -1.0, 0.0, 2.0], [5.0, 1.0, 2.0, -4.0]]
KINDS = [("layer", True), ("layer", False), ("batch", True), ("batch", False)]


def normalised(x: np.ndarray, kind: str, training: bool, start: np.ndarray) -> np.ndarray:
    if kind == "batch" and not training:
        mean, variance = start.mean(0, keepdims=True), start.var(0, ddof=1, keepdims=True)
    else:
        axis = 1 if kind == "layer" else 0
        mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return -1.5 * (x - mean) / np.sqrt(variance + 0.25) + 2.0


@pytest.mark.parametrize(("kind", "training"), KINDS)
def test_a_drag_is_the_definition_before_and_after(kind: str, training: bool) -> None:
    moved = change_input(X, 1, 2, -0.7, kind=kind, training=training, epsilon=0.25, gamma=-1.5, beta=2.0)
    start = np.array(X)
    end = start.copy()
    end[1, 2] -= 0.7
    np.testing.assert_allclose(moved.before, normalised(start, kind, training, start), atol=1e-12)
    np.testing.assert_allclose(moved.after, normalised(end, kind, training, start), atol=1e-12)
    for row, column in ((1, 2), (0, 0)):
        up, down = start.copy(), start.copy()
        up[row, column] += 1e-5
        down[row, column] -= 1e-5
        by_hand = (normalised(up, kind, training, start) - normalised(down, kind, training, start)) / 2e-5
        np.testing.assert_allclose(np.array(moved.jacobian)[:, :, row, column], by_hand, atol=1e-8)
    assert moved.depends == moved.expected
    assert [[change != 0 for change in line] for line in moved.difference] == [
        [entry[1][2] for entry in line] for line in moved.expected
    ]
    assert [each.length for each in moved.normalised] == pytest.approx([each.predicted for each in moved.normalised])
    assert all(each.mean == pytest.approx(2.0) for each in moved.normalised)
    assert (moved.stored is None) == bool(moved.normalised)


def test_slopes_that_vanish_by_chance_are_told_from_those_that_are_not_there() -> None:
    # Of two numbers only the order is left where ε is negligible against their deviation.
    two = change_input([[1.0, 500.0]], 0, 0, 0.0, epsilon=1e-12)
    assert not np.any(two.depends)
    assert np.all(two.expected)
    assert not np.any(change_input(X, 0, 0, 1.0, gamma=0.0).depends)


def test_one_vector_is_evaluated_with_the_variance_of_a_new_layer() -> None:
    one = change_input([[3.0, -1.0]], 0, 1, 0.5, kind="batch", training=False, epsilon=3.0, gamma=2.0, beta=1.0)
    assert one.stored == ([3.0, -1.0], [1.0, 1.0])
    assert one.before == [[1.0, 1.0]]
    assert one.after == [[1.0, 1.5]]
    assert one.depends == one.expected


def test_constant_input_comes_out_as_the_shift() -> None:
    flat = change_input([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]], 0, 0, 0.0, beta=0.5)
    assert flat.after[0] == [0.5] * 3
    assert flat.normalised[0].length == flat.normalised[0].predicted == 0
    assert flat.normalised[1].predicted == pytest.approx(math.sqrt(3), rel=1e-4)


def test_what_cannot_be_normalised_is_refused() -> None:
    with pytest.raises(ShapeError, match="one vector"):
        change_input([[1.0, 2.0]], 0, 0, 1.0, kind="batch")
    with pytest.raises(OptionError, match="layer or batch"):
        change_input(X, 0, 0, 1.0, kind="group")
    with pytest.raises(ShapeError, match="vectors as rows"):
        change_input([], 0, 0, 1.0)
