"""Norms against NumPy, their gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.exercises import Asked, CannotSolve, Exercise, Given, Structure
from qkv.exercises.solving import answer
from qkv.maths import compare

RANDOM = np.random.default_rng(7)
AXES = {"layer": lambda ndim: (ndim - 1,), "rms": lambda ndim: (ndim - 1,), "batch": lambda ndim: (0, *range(2, ndim))}


def solved(quantity, object="", norm=None, **roles):  # noqa: A002
    givens = [Given(role=role, value=np.array(value).tolist()) for role, value in roles.items()]
    return answer(Exercise(givens=givens, structure=Structure(norm=norm)), Asked(quantity=quantity, object=object))


def expected(kind, values, epsilon=0.0, groups=1):
    shape = values.shape
    if kind == "group":
        values = values.reshape(shape[0], groups, -1)
        axes = (2,)
    else:
        axes = AXES[kind](values.ndim)
    mean = 0 if kind == "rms" else values.mean(axes, keepdims=True)
    variance = ((values - mean) ** 2).mean(axes, keepdims=True)
    return ((values - mean) / np.sqrt(variance + epsilon)).reshape(shape)


@pytest.mark.parametrize("kind", ["layer", "rms", "batch", "group"])
@pytest.mark.parametrize("shape", [(3, 6), (2, 6, 3), (2, 6, 3, 5)])
def test_norms_of_any_shape(kind, shape):
    values = RANDOM.integers(-5, 6, shape)
    found = solved(f"{kind}_norm", input=values, epsilon="0.001", groups=3)
    assert np.allclose(np.array(found.value, float), expected(kind, values, 0.001, 3))
    assert found.derivation.holds


@pytest.mark.parametrize("kind", ["layer", "rms", "batch", "group"])
def test_gradients(kind):
    values, upstream = RANDOM.integers(-5, 6, (3, 4)), RANDOM.integers(-2, 3, (3, 4))
    gamma = np.array([1, 2, -1, 3])
    found = solved("norm_gradient", kind, input=values, upstream=upstream, gamma=gamma, epsilon="0.01", groups=2)
    slopes = np.zeros((3, 4))
    for place in np.ndindex(3, 4):
        sides = []
        for sign in (1, -1):
            moved = values.astype(float)
            moved[place] += sign * 1e-5
            sides.append((expected(kind, moved, 0.01, 2) * gamma * upstream).sum())
        slopes[place] = (sides[0] - sides[1]) / 2e-5
    assert np.allclose(np.array(found.value, float), slopes, atol=1e-7)
    assert found.derivation.holds
    beta = solved("norm_gradient", f"{kind}, beta", input=values, upstream=upstream, epsilon=0, groups=2)
    assert np.array_equal(beta.value, upstream.sum(0))


def test_scale_and_shift():
    x, gamma, beta = [1, 2, 3, 6], [2, 1, 3, 1], ["1/2", 0, 1, 1]
    found = solved("layer_norm", input=x, gamma=gamma, beta=beta, epsilon=0)
    assert np.allclose(np.array(found.value, float), expected("layer", np.array(x)) * gamma + [0.5, 0, 1, 1])
    channels = solved("batch_norm", input=RANDOM.integers(0, 9, (2, 3, 5)), gamma=[1, 2, 3], beta=[0, 1, 2], epsilon=1)
    assert np.shape(channels.value) == (2, 3, 5)
    with pytest.raises(CannotSolve, match="does not fit"):
        solved("layer_norm", input=x, gamma=[1, 2, 3])


def test_stored_statistics():
    found = solved("batch_norm", input=[[5, 2]], running_mean=[1, 2], running_variance=[4, 1], epsilon=0)
    assert found.value == ((2, 0),)


def test_epsilon_that_is_not_said():
    found = solved("layer_norm", input=["0.001", "0.002", "0.004"])
    assert found.assumed[0].data["value"] == "0"
    assert found.also[0].convention == "epsilon 1e-5"
    nearly_equal = solved("layer_norm", input=["0.30001", "0.30002"])
    assert nearly_equal.assumed[0].data["value"] == "1e-5"
    assert nearly_equal.also[0].text == "(-1, 1)"
    assert solved("layer_norm", input=[-1, 1, 1, -1]).text == "(-1, 1, 1, -1)"
    with pytest.raises(CannotSolve, match="variance is 0"):
        solved("layer_norm", input=[2, 2])


def test_statistics():
    found = solved("norm_statistics", "layer", input=[1, 2, 3, 6])
    assert found.text == "(3, 7/2)"
    assert found.items["variance"].text == "7/2"
    assert compare(found.text, "(3, 3.5)", found.symbols)
    assert solved("norm_statistics", "", norm="batch", input=[[1, 2], [3, 5]]).text == "[[2, 7/2], [1, 9/4]]"
    assert solved("norm_statistics", "rms", input=[3, 4, 0, 0]).text == "25/4"
