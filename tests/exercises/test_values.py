"""Values of givens: numbers of every kind, shapes, layouts and what is refused."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest

from qkv.exercises import CannotSolve, Convention, Exercise, Given
from qkv.exercises import values as reading


def read(value, **fields):
    return reading.read(Given(symbol="X", role="tokens", value=value, **fields))


def test_numbers_of_every_kind():
    found = read([1, 0.1, "1/3", "1e-3", "sqrt(4)", "−2", True, r"\frac{1}{2}"])
    thirds = (1, Fraction(1, 10), Fraction(1, 3), Fraction(1, 1000), 2, -2, 1, Fraction(1, 2))
    assert tuple(found) == thirds
    assert str(read("sqrt(2)")[()]).startswith("1.41421356237309504880168872")
    assert read("[[1, 2], [3, 4]]").shape == (2, 2)


@pytest.mark.parametrize("text", ["I", "I_3", "identity", r"\mathbf{I}", "$I_{3}$"])
def test_identity(text):
    found = reading.read(Given(role="key_weight", value=text), None, 3)
    assert np.array_equal(found, np.eye(3))


def test_symbols_that_have_values():
    record = Exercise(givens=[Given(symbol="a", role="other", value=3), Given(role="vector", value=["a", 1])])
    assert tuple(reading.read(record.givens[1], record)) == (3, 1)


@pytest.mark.parametrize(
    ("value", "words"),
    [([[1, 2], [3]], "rows differ"), ([1, [2]], "rows differ"), (["x y"], "number in place"), (None, "value of X"),
     ([float("nan")], "not a number"), ([{}], "number in place"), ("__import__('os')", "number in place"),
     ("9^9^9^9^9", "number in place"), ("1e999999999", "number in place")],
)  # fmt: skip
def test_what_is_no_number_is_refused(value, words):
    with pytest.raises(CannotSolve, match=words):
        read(value)


def test_a_shape_that_differs_is_refused():
    with pytest.raises(CannotSolve, match="3×2 is said"):
        read([[1, 2]], shape=(3, 2))


def test_vectors_are_stacked_by_their_index_and_columns_turned():
    rows = [Given(symbol=f"k_{i}", role="key", value=[i, 0]) for i in (3, 1, 2)]
    assert [row[0] for row in reading.stacked(Exercise(givens=rows), "key")] == [1, 2, 3]
    columns = {"layout": Convention(value="columns")}
    turned = reading.stacked(Exercise(givens=[Given(role="key", value=[[1, 2, 3]])], conventions=columns), "key")
    assert turned.shape == (3, 1)
    with pytest.raises(CannotSolve, match="shapes differ"):
        reading.stacked(Exercise(givens=[rows[0], Given(symbol="k_4", role="key", value=[1])]), "key")
    with pytest.raises(CannotSolve, match="infinite"):
        reading.stacked(Exercise(givens=[Given(role="key", value=["inf"])]), "key")


def test_a_million_entries():
    begun = time.perf_counter()
    assert read(np.ones((1000, 1000)).tolist()).dtype == float
    assert time.perf_counter() - begun < 5
    with pytest.raises(CannotSolve, match="entries"):
        read([[0.0] * 3000] * 1000)


def test_whole_numbers():
    record = Exercise(
        givens=[Given(role="heads", value="8"), Given(role="width", symbol="d"), Given(role="length", value=2.5)]
    )
    assert reading.whole(record, "heads") == 8
    assert reading.whole(record, "width") is None
    with pytest.raises(CannotSolve, match="whole"):
        reading.whole(record, "length")
