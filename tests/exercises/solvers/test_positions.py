"""Sinusoidal and rotary positions against NumPy and by their properties."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.exercises import Asked, CannotSolve, Exercise, Given
from qkv.exercises.solving import answer
from qkv.maths import compare


def solved(quantity, object="", row=None, extra=(), **roles):  # noqa: A002
    givens = [Given(role=role, value=value) for role, value in roles.items()]
    return answer(Exercise(givens=[*givens, *extra]), Asked(quantity=quantity, object=object, row=row))


def sinusoids(positions, width, base=10000.0):
    pairs = np.arange(width) // 2 * 2
    angles = np.array(positions)[:, None] / base ** (pairs / width)
    return np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles))


@pytest.mark.parametrize(("length", "width"), [(5, 6), (53, 14)])
def test_matrix(length, width):
    found = solved("sinusoidal", length=length, width=width)
    assert np.allclose(np.array(found.value, float), sinusoids(range(length), width))
    assert found.derivation.holds
    other = solved("sinusoidal", length=length, width=width, base=100)
    assert np.allclose(np.array(other.value, float), sinusoids(range(length), width, 100.0))


def test_rows_and_entries():
    row = solved("sinusoidal", position=3, width=6)
    assert np.allclose(row.value, sinusoids([3], 6)[0])
    assert row.derivation.holds
    assert solved("sinusoidal", row=3, width=6).text == row.text
    entries = solved("sinusoidal", "0,1", position=3, width=6)
    assert list(entries.items) == ["p_0", "p_1"]
    assert entries.items["p_1"].value == row.value[1]
    assert compare(entries.text, entries.text, entries.symbols)
    assert solved("sinusoidal", "PE(3, 4)", width=6).value == row.value[4]
    with pytest.raises(CannotSolve, match="dimension 6"):
        solved("sinusoidal", "6", position=3, width=6)


def test_half_precision():
    found = solved("sinusoidal", position=3, width=2, dtype="float16")
    assert found.value == tuple(sinusoids([3], 2)[0].astype(np.float16).astype(float))


def rotate(vector, position, halves=False):
    width = len(vector)
    places = np.arange(width).reshape(2, -1).T if halves else np.arange(width).reshape(-1, 2)
    found = np.zeros(width)
    for i, (first, second) in enumerate(places):
        turn = position * 10000.0 ** (-2 * i / width)
        found[first] = vector[first] * np.cos(turn) - vector[second] * np.sin(turn)
        found[second] = vector[first] * np.sin(turn) + vector[second] * np.cos(turn)
    return found


def test_rotary_neighbours_and_halves():
    found = solved("rotary", vector=[1, 2, 3, -4, 0, 5], position=3)
    assert np.allclose(found.value, rotate([1, 2, 3, -4, 0, 5], 3))
    assert np.allclose(found.also[0].value, rotate([1, 2, 3, -4, 0, 5], 3, halves=True))
    assert found.derivation.holds
    plain = solved("rotary", vector=[1, 2], position=3)
    assert not plain.also
    assert np.allclose(plain.value, rotate([1, 2], 3))


def test_scores_depend_on_the_distance_alone():
    def score(m, n):
        places = [Given(symbol="m", role="position", value=m), Given(symbol="n", role="position", value=n)]
        return solved("rotary", "score", extra=places, query=[1, 2, 0, 1], key=[3, -1, 2, 2])

    assert score(2, 5).text == score(7, 10).text
    assert score(0, 0).value == 3
    assert score(2, 5).derivation.holds


def test_a_given_angle():
    turned = solved("rotary", extra=[Given(symbol=r"\theta", role="other", value="pi/3")], vector=[1, 0])
    assert np.allclose(turned.value, [0.5, 3**0.5 / 2])
    with pytest.raises(CannotSolve, match="even"):
        solved("rotary", vector=[1, 2, 3], position=1)
