"""Maps take a row as the vector that it is, and give a row of it."""

import pytest

from qkv.errors import IllTyped
from qkv.maths.reading import parse
from qkv.maths.verdict import compare

S = {
    "Q": "matrix[n,D]",
    "K": "matrix[n,D]",
    "V": "matrix[n,M]",
    "q": "vector[D]",
    "phi": "map vector[D] -> vector[F]",
    "sim": "map vector[D], vector[D] -> scalar",
}


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (r"\phi(Q_{i\cdot})", (1, "F")),
        (r"\phi(q^T)", (1, "F")),
        (r"\phi(Q_i)", ("F",)),
        (r"\text{sim}(Q_{i\cdot}, K_{j\cdot})", ()),
        (r"\text{sim}(Q_i, K_{j\cdot})", ()),
        (r"\phi(Q_{i\cdot})\sum_j\phi(K_{j\cdot})^T V_{j\cdot}", (1, "M")),
    ],
)
def test_shapes(text, shape) -> None:
    assert parse(text, S).shape == shape


def test_rows_and_columns_say_the_same() -> None:
    first = r"\sum_j \phi(Q_{i\cdot})\phi(K_{j\cdot})^T V_{j\cdot}"
    assert compare(first, r"\phi(Q_{i\cdot})\sum_j\phi(K_{j\cdot})^T V_{j\cdot}", S).kind == "equal"
    assert compare(first, r"\sum_j \phi(Q_i)^T\phi(K_j) V_{j\cdot}", S).kind == "equal"
    assert compare(r"\text{sim}(Q_i, K_j)", r"\text{sim}(Q_{i\cdot}, K_{j\cdot})", S).evidence == "proved"


def test_a_row_of_another_size_does_not_fit() -> None:
    with pytest.raises(IllTyped, match="φ takes a vector of size D"):
        parse(r"\phi(V_{i\cdot})", S)
