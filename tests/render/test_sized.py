"""Sizes beneath matrices and vectors in columns change how a formula looks and not what it says."""

import pytest

from qkv.maths import parse
from qkv.render import Document, Formula, Maths, html, latex, markdown, pdf
from qkv.render.layout import has_matrix, in_columns
from qkv.render.layout import latex_source as written
from qkv.render.to_typst import markup

SYMBOLS = {"X": "matrix[3,2]", "W": "matrix[2,5]", "M": "matrix[n,d]", "x": "vector[2]"}


@pytest.mark.parametrize(
    ("text", "count"),
    [("X W", 2), ("X W = X W", 4), ("M = [[1,2],[3,4]]", 1), ("x = (1, 2)", 0), ("W^T x", 1), ("x^T x", 0), ("X", 1)],
)
def test_a_size_stands_where_a_lecturer_writes_it(text, count):
    symbols = {**SYMBOLS, "M": "matrix[2,2]"}
    assert written(parse(text, symbols), True).count("underset") == count
    assert "underset" not in written(parse(text, symbols), False)


def test_a_transposed_matrix_has_its_own_size():
    assert r"\underset{5 \times 2}{W^\top}" in written(parse("W^T x", SYMBOLS), True)
    assert r"\underset{n \times d}{M}" in written(parse("M", SYMBOLS), True)


def test_every_writer_shows_them():
    document = Document("t", (Formula(Maths("X W", SYMBOLS, labels=True)),))
    assert html(document).count("<munder>") == 2
    assert latex(document).count("underset") == markdown(document).count("underset") == 2
    assert markup(document).count("limits(") == 2
    assert pdf(document).startswith(b"%PDF")


def test_columns():
    node = in_columns(parse("[[1,2],[3,4]] (5, 6) + (7, 8)", {}))
    assert r"\begin{pmatrix} 5 \\ 6 \end{pmatrix}" in written(node, False)
    assert "(7, 8)" not in written(node, False)
    row = in_columns(parse("(1, 2)^T (3, 4)", {}))
    assert r"\begin{pmatrix} 1 & 2 \end{pmatrix}" in written(row, False)
    assert has_matrix(parse("2 [[1,2],[3,4]]", {}))
    assert not has_matrix(parse("(1, 2)", {}))
