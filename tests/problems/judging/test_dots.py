"""Sums with dots: filled where the terms say what stands in them, left alone where they do not."""

import pytest

from qkv.maths import compare
from qkv.problems.judging.dots import undotted

SYMBOLS = {"x": "vector[d]", "y": "vector[d]", "d": "natural"}


@pytest.mark.parametrize(
    "text",
    [
        "x_1 y_1 + x_2 y_2 + ... + x_d y_d",
        r"x_1 y_1 + \dots + x_d y_d",
        r"x_{1} y_{1} + x_{2} y_{2} + \cdots + x_{d} y_{d}",
        "x₁ y₁ + x₂ y₂ + … + x_d y_d",
        r"x^T y = x_1 y_1 + x_2 y_2 + x_3 y_3 + \ldots + x_d y_d",
    ],
)
def test_a_sum_is_what_its_terms_say(text):
    assert compare("x^T y", undotted(text), SYMBOLS).kind == "equal"


@pytest.mark.parametrize(
    "text",
    [
        "1 + ... + n",
        "x_1 + x_3 + ... + x_d",
        r"x_1 + y_2 + \dots + x_d",
        "...",
        "x_1 + ... +",
        "a, ..., b",
        "+...+" * 200,
    ],
)
def test_what_is_not_clear_is_left_alone(text):
    assert undotted(text) == text
