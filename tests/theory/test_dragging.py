"""Drags: torch's norms against the definitions in NumPy, and slopes against what moves."""

import math

import numpy as np
import pytest

from qkv.errors import OptionError, ShapeError
from qkv.theory.normalisation import drag

X = [[1.0, 2.0, 4.0, 9.0], [3.0, -1.0, 0.0, 2.0], [5.0, 1.0, 2.0, -4.0]]
CASES = [("layer", True), ("layer", False), ("batch", True), ("batch", False)]


def normalised(x: np.ndarray, kind: str, training: bool, start: np.ndarray) -> np.ndarray:
    if kind == "batch" and not training:
        mean, variance = start.mean(0, keepdims=True), start.var(0, ddof=1, keepdims=True)
    else:
        axis = 1 if kind == "layer" else 0
        mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return -1.5 * (x - mean) / np.sqrt(variance + 0.25) + 2.0


@pytest.mark.parametrize(("kind", "training"), CASES)
def test_a_drag_is_the_definition_before_and_after(kind: str, training: bool) -> None:
    moved = drag(X, 1, 2, -0.7, kind=kind, training=training, epsilon=0.25, gamma=-1.5, beta=2.0)
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
    assert [each.length for each in moved.normalised] == pytest.approx([each.said for each in moved.normalised])
    assert all(each.mean == pytest.approx(2.0) for each in moved.normalised)
    assert (moved.stored is None) == bool(moved.normalised)


def test_slopes_that_vanish_by_chance_are_told_from_those_that_are_not_there() -> None:
    # Of two numbers only the order is left where ε is nothing beside their spread.
    two = drag([[1.0, 500.0]], 0, 0, 0.0, epsilon=1e-12)
    assert not np.any(two.depends)
    assert np.all(two.expected)
    assert not np.any(drag(X, 0, 0, 1.0, gamma=0.0).depends)


def test_one_vector_is_evaluated_with_the_variance_of_a_new_layer() -> None:
    one = drag([[3.0, -1.0]], 0, 1, 0.5, kind="batch", training=False, epsilon=3.0, gamma=2.0, beta=1.0)
    assert one.stored == ([3.0, -1.0], [1.0, 1.0])
    assert one.before == [[1.0, 1.0]]
    assert one.after == [[1.0, 1.5]]
    assert one.depends == one.expected


def test_constant_input_comes_out_as_the_shift() -> None:
    flat = drag([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]], 0, 0, 0.0, beta=0.5)
    assert flat.after[0] == [0.5] * 3
    assert flat.normalised[0].length == flat.normalised[0].said == 0
    assert flat.normalised[1].said == pytest.approx(math.sqrt(3), rel=1e-4)


def test_what_cannot_be_normalised_is_refused() -> None:
    with pytest.raises(ShapeError, match="one vector"):
        drag([[1.0, 2.0]], 0, 0, 1.0, kind="batch")
    with pytest.raises(OptionError, match="layer or batch"):
        drag(X, 0, 0, 1.0, kind="group")
    with pytest.raises(ShapeError, match="vectors as rows"):
        drag([], 0, 0, 1.0)
