"""Questions keep their number and their parts over a whole chat, and no answer counts for another's question."""

from __future__ import annotations

import pytest

from qkv.tutor import grade, read
from qkv.tutor.matching import relabelled, statement_items
from qkv.tutor.numbering import switches

from .test_ledger import LAW, RIGHT, answers, chat

GIVEN = "$q, k \\in \\mathbb{R}^d$ are independent, $\\mathcal{N}(\\mu, I)$ each, and $\\mu \\in \\mathbb{R}^d$."
LOOKUP = (
    "(a) Perform argmax attention: q = (1, 2), k_1 = (3, 0), k_2 = (1, 1), v_1 = (5, 6), v_2 = (7, 8)."
    "\n(b) What does argmax do to training?"
)
LOST = "The gradient is zero almost everywhere, so queries and keys cannot be trained by gradient descent."


def found(text: str) -> dict[tuple[str, str], tuple[str, int | None]]:
    return {(row.problem, row.part): (row.status, row.first_right_turn) for row in grade(read(text)).rows}


def test_parts_asked_one_at_a_time_belong_to_one_problem():
    text = chat(
        f"Problem 4. {GIVEN}\n(a) Find $E[q^T k]$.\n(b) For $\\mu = 0$ find $\\text{{Var}}(q^T k)$.",
        f"(a) {RIGHT['a']}\n\n(b) {RIGHT['b']}",
        "Thanks. And part (c): by which $s$ must it be divided to have variance 1?",
        f"(c) {RIGHT['c']}",
    )
    assert found(text) == {("4", "a"): ("one shot", 2), ("4", "b"): ("one shot", 2), ("4", "c"): ("one shot", 4)}


def test_without_letters_too():
    text = chat(
        "q and k have d independent entries with mean 0 and variance 1. What is the variance of $q^T k$?",
        "It is $d$.",
        "And by what should I divide it to have variance 1?",
        r"By $\sqrt{d}$.",
    )
    assert found(text) == {("scaling", "a"): ("one shot", 2), ("scaling", "b"): ("one shot", 4)}


def test_one_turn_that_answers_two_questions():
    text = chat(
        f"Problem 1. {LAW}",
        answers(c="$s = d$"),
        f"Problem 2. {LOOKUP}",
        f"Before that, rereading problem 1: I was too quick. Part (c) should be {RIGHT['c']}.\n\nNow to problem 2.\n\n"
        f"(a) The scores are 3 and 3, the first wins: output (5, 6).\n\n(b) {LOST}",
    )
    rows = found(text)
    assert rows[("1", "c")] == ("needed correction", 4)
    assert rows[("1", "a")] == rows[("1", "b")] == ("one shot", 2)
    assert rows[("2", "a")] == rows[("2", "b")] == ("one shot", 4)


def test_a_list_of_problems_in_one_turn():
    text = chat(
        f"1. Scaling. {GIVEN}\n   a. Find $E[q^T k]$.\n   b. For $\\mu = 0$ find $\\text{{Var}}(q^T k)$.\n\n"
        "2. Argmax attention with q = (1, 0), K = [[1, 2], [3, 4]], V = [[5, 6], [7, 8]].\n   a. What is the output?",
        f"**1a.** {RIGHT['a']}\n\n**1b.** {RIGHT['b']}\n\n**2a.** The output is (7, 8).",
    )
    assert set(found(text).items()) == {(key, ("one shot", 2)) for key in (("1", "a"), ("1", "b"), ("2", "a"))}


def test_a_question_that_nobody_knows_takes_its_answers_with_it():
    text = chat(
        LAW, answers(), "(a) What is the derivative of a cube? (b) Which numbers are prime below ten, and how many of "
        "them are odd? (c) Where do parallel lines meet on a sphere?", "(a) $3x^2$\n\n(b) $4$\n\n(c) at the poles",
    )  # fmt: skip
    assert {status for status, _ in found(text).values()} == {"one shot"}
    assert len(found(text)) == 3


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It is x.\n\nBack to question 1: (b) is d.", ["", "1"]),
        ("Question 2 is next.\n\n(a) x", ["2"]),
        ("As in question 1, the terms vanish.", [""]),
        ("Shall we go on with question 2?", [""]),
        ("2a stays. But 1b I would change.", ["2", "1"]),
        ("- 1: (a) x; (b) y\n- 2: (a) z", ["1", "2"]),
        ("```\n# 1a: x\n```", [""]),
    ],
)
def test_where_a_tutor_turns_to_another_question(text, numbers):
    assert [number for number, _ in switches(text, {"1", "2"})] == numbers
    assert "".join(said for _, said in switches(text, {"1", "2"})) == text


@pytest.mark.parametrize(
    "text",
    [
        "Given x. (a) one thing? (b) another thing?",
        "Given x.\nPart (a): one thing. And part (b): another thing.",
        "Given x: (a) one thing (b) another thing",
        "Given x.\na) one thing\nb) another thing",
    ],
)
def test_parts_in_many_layouts(text):
    assert [name for name, _, _ in statement_items(relabelled(text))] == ["a", "b"]


def test_a_reference_begins_no_part():
    assert "\n(b)" not in relabelled("(a) One thing, as in (b) or by (b) below.")
