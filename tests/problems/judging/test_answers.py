"""One object or several: labels, layouts, remarks, rounding; nothing in a text raises or hangs."""

import time

import pytest

from qkv.problems.judging.answers import Value, Values, squeezed

PAIR = Values({"q_1": Value("(2, 3)"), "k_1": Value("(5, 7)")})
SCORES = Values(
    {"z_{3,1}": Value("2"), "z_{3,2}": Value("8")},
    stems={"z_3": ("z_{3,1}", "z_{3,2}"), "scores": ("z_{3,1}", "z_{3,2}")},
)


@pytest.mark.parametrize(
    "answer",
    [
        "q_1 = (2, 3); k_1 = (5, 7)",
        "k1 = (5, 7), q1 = (2, 3)",
        "q₁ = (2, 3) and k₁ = (5, 7).",
        r"$\mathbf{q}_1 = \begin{bmatrix}2\\3\end{bmatrix}, \quad \mathbf{k}_1 = \begin{bmatrix}5\\7\end{bmatrix}$",
        r"\begin{aligned} \mathbf q_1^\top &= [2, 3] \\ \mathbf k_1^\top &= [5, 7] \end{aligned}",
        "- **q₁**: (2, 3)\n- **k₁**: (5, 7)",
        "q_1 = (1 + 1, 3) = (2, 3)\nk_1 = (5, 7) because the weights are the identity",
        "(2, 3); (5, 7)",
        "(2, 3)\n(5, 7)",
        "| i | q | k |\n|---|---|---|\n| 1 | (2, 3) | (5, 7) |",
        "First I thought q_1 = (0, 0).\nBut q_1 = (2, 3), k_1 = (5, 7)",
    ],
)
def test_two_vectors_in_many_layouts(answer):
    assert PAIR.check(answer).kind == "right"


@pytest.mark.parametrize(
    "answer",
    ["z_3 = (2, 8)", "scores: [2, 8]", "2, 8", "2 and 8", "(2, 8)", "z_{31} = 2, z_{32} = 8", "z₃₁ = 2; z₃₂ = 8"],
)
def test_two_numbers_in_many_layouts(answer):
    assert SCORES.check(answer).kind == "right"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("", "unread"),
        ("   ", "unread"),
        ("no idea", "unread"),
        ("q_1 = (2, 3)", "incomplete"),
        ("q_1 = (2, 3); k_1 = (5, 8)", "wrong"),
        ("q_1 = the query", "unread"),
        ("q_1 = (2, 3); k_1 = what?", "incomplete"),
    ],
)
def test_kinds(answer, kind):
    assert PAIR.check(answer).kind == kind


def test_a_name_that_is_not_declared_cannot_be_read_and_is_not_held_against_anybody():
    assert Value("2 d", {"d": "natural"}).check("2 w").kind == "unread"


def test_rounded_numbers_put_into_an_expression():
    symbols = {"a": "vector[2] = softmax((0, 2))", "v": "matrix[2,2] = [[16, 27], [-8, 0]]"}
    total = Value("a_1 v_1 + a_2 v_2", symbols, plugged=True)
    assert total.check("0.119 (16, 27) + 0.881 (-8, 0)")
    assert total.check("0.119 v_1 + 0.881 v_2")
    assert total.check("0.12 (16, 27) + 0.88 (-8, 0) = (-5.12, 3.24)")
    assert not total.check("0.12 (16, 27) + 0.88 (-8, 0) = (-5.12, 3.34)")
    assert not total.check("0.139 (16, 27) + 0.861 (-8, 0)")
    assert not Value("a_1 v_1 + a_2 v_2", symbols).check("0.119 (16, 27) + 0.881 (-8, 0)")


def test_same_knows_texts_that_cannot_be_typed():
    value = Value("X W", {"X": "matrix[3,2]", "W": "matrix[2,4]"})
    assert value.same("W X", r"\mathbf{W} \mathbf{X}")
    assert not value.same("W X", "W^T X")
    assert squeezed(r"\mathbf{W}_Q^\top \mathbf X") == squeezed("W_Q^T X")


@pytest.mark.slow
@pytest.mark.parametrize(
    "junk",
    [
        "q_1 " + " " * 59_000,
        "q_1 =" * 10_000,
        "\\quad" * 10_000,
        "\n" * 50_000,
        "(" * 50_000,
        "|" * 50_000,
        r"\\" * 20_000,
        "q_1 = (2,3) " * 4000,
        "$" * 40_000,
        "a" * 70_000,
    ],
)
def test_junk_neither_raises_nor_hangs(junk):
    begun = time.perf_counter()
    assert PAIR.check(junk).kind in ("unread", "wrong", "incomplete")
    # The right answer said over and over is right.
    assert PAIR.items["q_1"].check(junk).kind in ("unread", "wrong", "right" if "(2,3)" in junk else "unread")
    assert time.perf_counter() - begun < 8
