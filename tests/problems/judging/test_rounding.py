"""Expressions with rounded numbers: right within their own rounding, and no further."""

import random

import pytest

from qkv.problems.judging.rounding import within_own_rounding

SYMBOLS = {"a": "vector[3] = softmax((2, 4, 3))", "v": "matrix[3,2] = [[16, 27], [-8, 1], [5, -3]]"}
GOLD = "a_1 v_1 + a_2 v_2 + a_3 v_3"
WEIGHTS = (0.09003057317038046, 0.6652409557748219, 0.24472847105479764)


@pytest.mark.parametrize("places", [3, 4, 5, 7])
def test_honest_rounding_is_right_and_a_slip_is_not(places):
    honest = [round(weight, places) for weight in WEIGHTS]
    text = " + ".join(f"{weight:.{places}f} v_{n}" for n, weight in enumerate(honest, 1))
    assert within_own_rounding(GOLD, text, SYMBOLS)
    draw = random.Random(places)
    for _ in range(4):
        slipped = list(honest)
        slipped[draw.randrange(3)] += draw.choice((-1, 1)) * 20 * 10**-places
        text = " + ".join(f"{weight:.{places}f} v_{n}" for n, weight in enumerate(slipped, 1))
        assert not within_own_rounding(GOLD, text, SYMBOLS)


@pytest.mark.parametrize(
    "answer", ["", "?", "v_1", "(1.2, 3.4)", "0.1 v_1", "0 v_1 + 1 v_2", "1.0 v_2 + 0.0 v_1", "0.5 w"]
)
def test_what_does_not_count(answer):
    assert not within_own_rounding(GOLD, answer, SYMBOLS)
