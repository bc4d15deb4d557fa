"""Planted mistakes: each differs from the right answer, and is None where it does not apply."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.exercises import Asked, Convention, Exercise, Given, Structure
from qkv.exercises.mistakes import MISTAKES, mistake
from qkv.exercises.solving import answer
from qkv.maths import compare

PLAIN = {"scale": Convention(value="none"), "index_base": Convention(value=1)}
QUERY, KEY, VALUE = [[1, 0], [2, 1], [0, 3]], [[1, 2], [0, 2], [1, 0]], [[3, 2], [4, 5], [7, 9]]
MATRICES = [Given(role=role, value=value) for role, value in (("query", QUERY), ("key", KEY), ("value", VALUE))]
LOOKUP = [Given(role="query", value=[1, 2]), *MATRICES[1:]]
NORM = [
    Given(role="input", value=[1, 2, 3, 6]),
    Given(role="gamma", value=2),
    Given(role="beta", value=1),
    Given(role="epsilon", value=1),
]

CASES = {
    "query and key swapped": (MATRICES, "scores", {}),
    "softmax over the wrong axis": (MATRICES, "output", {"row": 2}),
    "scaling where none is asked": (MATRICES, "weights", {}),
    "scores used as weights": (MATRICES, "output", {}),
    "second best taken": (LOOKUP, "argmax", {}),
    "index for value": (LOOKUP, "argmax", {}),
    "score for value": (LOOKUP, "argmax", {}),
    "key for value": (LOOKUP, "argmax", {}),
    "softmax average for argmax": (LOOKUP, "argmax", {}),
    "mask left out": (MATRICES, "output", {}),
    "rows and columns mixed up": (MATRICES, "output", {}),
    "sign turned": (MATRICES, "output", {}),
    "epsilon left out": (NORM, "layer_norm", {}),
    "unbiased variance": (NORM, "layer_norm", {}),
    "scale left out": (NORM, "layer_norm", {}),
    "shift left out": (NORM, "layer_norm", {}),
    "mean not taken off": (NORM, "layer_norm", {}),
    "divided by the variance in a norm": (NORM, "layer_norm", {}),
    "standard deviation for variance": (NORM, "norm_statistics", {"object": "layer"}),
    "sine and cosine swapped": ([Given(role="width", value=4), Given(role="position", value=2)], "sinusoidal", {}),
    "only the diagonal": ([Given(role="scores", value=[1, 2, 0])], "jacobian", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_wrong_and_readable(name):
    givens, quantity, fields = CASES[name]
    structure = Structure(mask="causal" if name == "mask left out" else "none")
    record = Exercise(givens=givens, structure=structure, conventions=PLAIN)
    asked = Asked(quantity=quantity, **fields)
    wrong, right = MISTAKES[name](record, asked), answer(record, asked)
    assert wrong is not None
    assert compare(wrong.text, wrong.text, wrong.symbols)
    assert not compare(right.text, wrong.text, right.symbols)


def test_values_of_mistakes():
    record = Exercise(givens=LOOKUP, conventions=PLAIN)
    asked = Asked(quantity="argmax")
    assert answer(record, asked).value == (3, 2)
    texts = {
        name: MISTAKES[name](record, asked) for name in ("second best taken", "index for value", "score for value")
    }
    assert {name: found and found.value for name, found in texts.items()} == {
        "second best taken": (4, 5), "index for value": 1, "score for value": 5
    }  # fmt: skip
    record = Exercise(givens=MATRICES, conventions=PLAIN)
    wrong = MISTAKES["softmax over the wrong axis"](record, Asked(quantity="weights"))
    assert wrong is not None
    assert np.allclose(np.array(wrong.value, float).sum(0), 1)
    assert MISTAKES["query and key swapped"](record, Asked(quantity="scores")).value == tuple(
        zip(*answer(record, Asked(quantity="scores")).value, strict=True)
    )


def test_mistakes_that_do_not_apply():
    record = Exercise(givens=MATRICES, conventions=PLAIN)
    for name in ("scaling left out", "mask left out", "epsilon left out", "index for value", "only the diagonal"):
        assert MISTAKES[name](record, Asked(quantity="output")) is None


def test_other_modules_add_mistakes():
    mistake("a test of mistakes")(lambda exercise, asked: answer(exercise, asked))
    try:
        assert MISTAKES["a test of mistakes"](Exercise(givens=MATRICES), Asked(quantity="scores")) is None
    finally:
        del MISTAKES["a test of mistakes"]
