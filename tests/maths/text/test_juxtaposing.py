"""What a bare 1 or 0 means beside a row, and products of written lists."""

import pytest

from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse

S = {"q": "vector[d]", "x": "scalar", "Q": "matrix[n,d]"}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("q^T 1", r"q^T \mathbf{1}"),
        ("q^T \\cdot 1", r"q^T \mathbf{1}_d"),
        ("1^T Q 1", r"\mathbf{1}^T Q \mathbf{1}"),
        ("q^T 1 x", r"x q^T \mathbf{1}"),
        ("0^T q", r"\mathbf{0}^T q"),
        ("q^T 0", r"q^T \mathbf{0}"),
        ("(q^T 1)^2", r"(\sum_i q_i)^2"),
    ],
)
@pytest.mark.parametrize("expected", [None, ()])
def test_a_bare_number_after_a_row_is_a_vector(text, same, expected) -> None:
    assert parse(text, S, expected=expected).shape == ()
    assert compare(same, text, S).evidence == "proved"


def test_a_bare_number_elsewhere_is_a_number() -> None:
    assert parse("1 q^T", S).shape == (1, "d")
    assert parse("2 q^T", S).shape == parse("q^T 2", S).shape == (1, "d")
    assert parse("q^T 1.0", S).shape == (1, "d")


@pytest.mark.parametrize("text", [r"[1,1,2]\cdot[1,2,0]^T", r"[1,1,2]^T\cdot[1,2,0]", r"(1,1,2)\cdot(1,2,0)"])
def test_a_dot_between_written_lists_is_their_dot_product(text) -> None:
    assert compare("3", text, {}).kind == "equal"
