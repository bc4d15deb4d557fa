"""The code of a notebook runs, and computes what the solution says."""

import contextlib
import io

import numpy as np
import pytest

from qkv.maths import parse
from qkv.problems import named
from qkv.problems.by_hand.given import given
from qkv.problems.printing.recomputed import cells, source
from qkv.render import Code
from tests.helpers import toy_problem

SYMBOLS = {"W": "matrix[2,3]", "x": "vector[2]", "z": "vector[3]", "s": "scalar"}
ROOM = {
    "W": np.array([[1.0, 0, 2], [0, 1, -3]]), "x": np.array([2.0, 3]), "z": np.array([0.5, -1, 2]), "s": 4.0, "np": np,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("W^T x", [2, 3, -5]),
        ("x^T x / s", 13 / 4),
        ("z_2 s", -4),
        ("W_{2,3} + 1/2", -2.5),
        ("x^T W z", 2 * 0.5 - 3 - 10),
        ("-2 x", [-4, -6]),
        ("s^2 - (s - 1)^2", 7),
        (r"\sqrt{s} (1, 2)", [2, 4]),
        ("[[1, 2], [3, 4]] x", [8, 18]),
        (r"\frac{x^T x}{s + 1}", 13 / 5),
        ("argmax(z)", 3),
    ],
)
def test_numpy_means_what_the_tree_does(text, value):
    made = source(parse(text, SYMBOLS), ROOM)
    assert made is not None
    assert np.allclose(eval(made, dict(ROOM)), value)


def test_what_has_no_plain_form_is_left_out():
    assert source(parse("W^T x", SYMBOLS), {"W": ""}) is None
    assert source(parse(r"\sum_i x_i", SYMBOLS), ROOM) is None


def run(problem):
    said, room = io.StringIO(), {}
    code = [block.text for block in cells(problem.solve()) if isinstance(block, Code)]
    with contextlib.redirect_stdout(said):
        for text in code:
            exec(compile(text, "cell", "exec"), room)
    return code, said.getvalue()


def test_a_notebook_runs(monkeypatch):
    toy_problem.install(monkeypatch)
    code, said = run(toy_problem.make(4))
    assert len(code) == 3
    assert "q = [" in said
    assert said.count(" right: ") == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_attention_by_hand_is_computed_again(seed):
    code, said = run(named("by-hand", seed))
    assert sum(text.count("same(") for text in code) >= 10
    assert "wrong" not in said


def test_a_problem_without_numbers_has_its_answers_checked():
    code, said = run(named("scaling", 3))
    assert len(code) == 1
    assert "wrong" not in said


def test_numbers_that_64_bits_do_not_hold_are_floats():
    rows = given(q=[[10**29, 1], [1, 1]], k="1 2; 3 1e20", v="1 2; 3 4")
    done: dict = {}
    for block in cells(rows.solve()):
        if isinstance(block, Code):
            exec(block.text, done)
    assert done["q"].dtype == float
