"""Numbers and matrices as people write them; nothing long takes long."""

import time
from fractions import Fraction

import pytest

from qkv.problems.reading.literals import cells_of, matrices_in, number_of, numbers_of, split_outside


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("− 3", -3),
        ("+2", 2),
        ("1/2", Fraction(1, 2)),
        ("-1/2", Fraction(-1, 2)),
        (".5", Fraction(1, 2)),
        ("2.", 2),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"\tfrac12", Fraction(1, 2)),
        ("1e-3", Fraction(1, 1000)),
        (r"6.90 \times 10^{-3}", Fraction(69, 10_000)),
        (r"\, 4", 4),
        ("$7$", 7),
    ],
)
def test_numbers(text, value):
    assert number_of(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "x", "nan", "inf", "1/0", "1e999", "2 3", "1" * 50, "٣", "0x10", "1_000", "__import__('os')", "--1", "1//2"],
)
def test_what_is_no_number(text):
    assert number_of(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "[[1, 0, 2], [0, 1, -3]]",
        "((1, 0, 2), (0, 1, -3))",
        "[1 0 2; 0 1 -3]",
        r"\begin{bmatrix} 1 & 0 & 2 \\ 0 & 1 & -3 \end{bmatrix}",
        r"\begin{pmatrix}1&0&2\\0&1&-3\\\end{pmatrix}",
        r"\left[\begin{array}{ccc} 1 & 0 & 2 \\[2pt] 0 & 1 & -3 \end{array}\right]",
    ],
)
def test_one_matrix_in_many_layouts(text):
    name, rows = matrices_in(f"Let W_Q = {text}.")[0]
    assert name == "W_Q"
    assert rows == ((1, 0, 2), (0, 1, -3))


@pytest.mark.parametrize(
    "text",
    [
        "(2, 3)",
        "[2, 3]",
        "[2 3]",
        "[2, 3]^T",
        r"(2, 3)^\top",
        "[[2], [3]]",
        r"\begin{bmatrix} 2 \\ 3 \end{bmatrix}",
        "(2, 3)ᵀ",
    ],
)
def test_one_vector_in_many_layouts(text):
    assert numbers_of(text) == (((2, 3),), True)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("x_1", "x_1"),
        ("x1", "x_1"),
        ("x₁", "x_1"),
        (r"\mathbf{x}_1", "x_1"),
        (r"\mathbf x_{1}", "x_1"),
        ("W^Q", "W_Q"),
        ("WQ", "W_Q"),
        (r"\mathbf{W}_Q", "W_Q"),
        (r"W_{\mathrm{Q}}", "W_Q"),
        ("q", "q"),
        ("**K**", "K"),
        (r"\vec{v}_2", "v_2"),
    ],
)
def test_names(label, name):
    assert [found for found, _ in matrices_in(f"here {label} = (2, 3), there")] == [name]


def test_sets_of_vectors_have_a_row_each():
    text = r"$\mathbf{K} = \left\{ \begin{bmatrix} 1 \\ 2 \end{bmatrix}, \begin{bmatrix} 0 \\ 3 \end{bmatrix} \right\}$"
    assert matrices_in(text) == [("K", ((1, 2), (0, 3)))]
    assert matrices_in("V = {(1, 2), (0, 3)}") == [("V", ((1, 2), (0, 3)))]


def test_the_first_factor_of_a_product_is_no_value():
    assert matrices_in(r"q_1 = \begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix} \begin{bmatrix} 2 \\ 3 \end{bmatrix}") == []


def test_ragged_rows_and_words_are_no_matrix():
    assert matrices_in("A = [[1, 2], [3]], B = [[a, b]], C = (see below)") == []
    assert cells_of("") is None


def test_splitting_leaves_brackets_alone():
    assert split_outside("(1, 2), [3, 4], 5", ",") == ["(1, 2)", " [3, 4]", " 5"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "junk",
    [
        "(" * 60_000,
        "(" * 1000 + "1" + ")" * 1000,
        r"\begin{bmatrix}" * 4000,
        "q=[[" * 15_000,
        r"K=\{" * 15_000,
        "x_1 = (" * 9000,
        " " * 60_000,
        "q" * 60_000,
    ],
)
def test_junk_takes_no_time(junk):
    begun = time.perf_counter()
    matrices_in(junk)
    numbers_of(junk)
    assert time.perf_counter() - begun < 2
