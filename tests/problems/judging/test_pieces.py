"""Taking an answer apart: names, rows, tables, order; and what stands around a piece."""

import pytest

from qkv.problems.judging.pieces import cleaned, in_order, labelled, stacked, tabled, tidy, without_remarks


@pytest.mark.parametrize(
    "label",
    [
        "q_1",
        "q1",
        "q_{1}",
        "q₁",
        r"\mathbf{q}_1",
        r"\mathbf q_1",
        r"\mathbf{q}_1^\top",
        "q_1^T",
        r"{\bf q}_1",
        r"\vec{q}_1",
        "**q₁**",
    ],
)
@pytest.mark.parametrize("tie", [" = ", ": ", " &= ", r" \approx ", " is "])
def test_names_and_ties(label, tie):
    assert labelled(f"first, {label}{tie}(2, 3), then more_q_1x", ["q_1"], {})["q_1"][0].startswith("(2, 3)")


def test_a_name_within_another_is_not_it():
    assert labelled("W_q_1 = 2, eq_1 = 3, q_12 = 4", ["q_1"], {}) == {}


def test_rows_of_a_matrix_and_entries_of_a_vector():
    stems = {"Q": ("q_1", "q_2")}
    assert stacked("Q = [[2, 3], [1, 0]]", ["q_1", "q_2"], stems) == {"q_1": ["(2, 3)"], "q_2": ["(1, 0)"]}
    assert stacked(r"Q = X W = \begin{bmatrix} 2 & 3 \\ 1 & 0 \end{bmatrix}", ["q_1", "q_2"], stems)["q_2"] == [
        "(1, 0)"
    ]
    assert stacked("Q = [[2, 3]]", ["q_1", "q_2"], stems) == {}


def test_tables_need_letters_above_and_numbers_at_the_side():
    assert tabled("| | query | key |\n|--|--|--|\n| x_2 | (1, 2) | (3, 4) |", ["q_2", "k_2"]) == {
        "q_2": ["(1, 2)"],
        "k_2": ["(3, 4)"],
    }
    assert tabled("| a | b |", ["q_1"]) == {}


@pytest.mark.parametrize(
    "text",
    ["2; 8; -20", "2\n8\n-20", "2, 8, -20", "2, 8 and -20", "(2, 8, -20)", "[2 8 -20]", r"2, \quad 8, \quad -20"],
)
def test_pieces_in_order(text):
    assert in_order(tidy(text), 3) == ["2", "8", "-20"]


def test_what_stands_around_a_piece():
    assert cleaned(r" & (2, 3), \quad \\ ") == "(2, 3)"
    assert cleaned("**(2, 3)**,\n- ") == "(2, 3)"
    assert without_remarks("d, since each term adds 1") == "d"
    assert without_remarks(r"2 \quad \text{by (a)}") == "2"
    assert tidy("a   b\n\n\n\nc") == "a b\n\nc"
