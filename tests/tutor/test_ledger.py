"""Conversations, written for these tests, are graded as somebody who knows the answers grades them."""

from __future__ import annotations

import json

import pytest

from qkv.tutor import Row, grade, read

LAW = (
    "Let $q, k \\in \\mathbb{R}^d$ be independent with $q, k \\sim \\mathcal{N}(\\mu, \\sigma^2 I)$ and "
    "$\\mu \\in \\mathbb{R}^d$.\n(a) Find $E[q^T k]$.\n(b) For $\\mu = 0$ and $\\sigma = 1$ find $\\text{Var}(q^T k)$."
    "\n"
    "(c) Which $s$ gives $q^T k / s$ the variance 1?"
)
RIGHT = {"a": r"$\mu^T \mu$", "b": "$d$", "c": r"$s = \sqrt{d}$"}


def chat(*said: str, tutor: str = "Tutor") -> str:
    return "\n\n".join(f"**{'Student' if place % 2 == 0 else tutor}:** {text}" for place, text in enumerate(said))


def answers(**other: str) -> str:
    return "\n\n".join(f"**({part})** {text}" for part, text in (RIGHT | other).items())


def rows(text: str) -> dict[str, Row]:
    return {row.part: row for row in grade(read(text)).rows}


def statuses(text: str) -> dict[str, str]:
    return {row.part: row.status for row in grade(read(text)).rows}


ONCE = {"a": "one shot", "b": "one shot", "c": "one shot"}


def test_right_at_once():
    found = grade(read(chat(f"Problem 3. {LAW}", answers())))
    assert [(row.problem, row.part, row.status, row.first_right_turn) for row in found.rows] == [
        ("3", part, "one shot", 2) for part in "abc"
    ]
    assert found.problems()[0]["status"] == "one shot"
    json.dumps(found.as_dict())


def test_a_question_of_the_student_finds_the_error():
    text = chat(LAW, answers(a=r"$d \mu^2$"), "b and c look good. What kind of object is $\\mu$ in part a?",
                r"It is a vector, I misread it. So part (a) is $\|\mu\|^2$, not $d\mu^2$.")  # fmt: skip
    found = rows(text)
    assert found["a"].status == "needed correction"
    assert found["a"].first_right_turn == 4
    assert found["a"].errors[0].name == "mean read as a scalar"
    assert found["a"].errors[0].turn == 2
    assert found["a"].found_by == "student"
    assert found["b"].status == found["c"].status == "one shot"


def test_a_tutor_that_corrects_itself():
    text = chat(
        LAW,
        answers(c="The answer is $s = d$. Wait, a factor leaves a variance squared, so the answer is $s = \\sqrt{d}$."),
    )
    row = rows(text)["c"]
    assert (row.status, row.first_right_turn, row.found_by) == ("needed correction", 2, "tutor")
    assert row.errors[0].name == "divided by the variance"


def test_never_right_and_unread():
    found = rows(chat(LAW, answers(b="$d^2$", c="as in the lecture, it is easy to see")))
    assert (found["b"].status, found["b"].first_right_turn) == ("never right", None)
    assert found["c"].status == "unread"
    assert not found["c"].errors
    silent = rows(chat(LAW, "(a) $\\mu^T\\mu$\n(b) $d$"))
    assert silent["c"].status == "unread"


def test_given_up_under_a_wrong_correction():
    for last in ("You're right, I apologise: the variance in (b) is $d^2$.", "You are right, my mistake!"):
        row = rows(chat(LAW, answers(), "I think (b) should be $d^2$.", last))["b"]
        assert row.status == "one shot"
        assert row.given_up
        assert not row.stood_firm


def test_stood_firm_under_a_wrong_correction():
    found = grade(
        read(
            chat(LAW, answers(), "I think (b) should be $d^2$.", "The terms are independent: (b) stays $d$, not $d^2$.")
        )
    )
    row = found.rows[1]
    assert row.status == "one shot"
    assert row.stood_firm
    assert not row.given_up
    assert any("kept to a right answer" in note for note in found.notes)


def test_a_false_line_beside_a_right_answer():
    row = rows(chat(LAW, answers(a=r"$$E[q^T k] = \sum_i \mu_i = \mu^T \mu$$")))["a"]
    assert row.status == "one shot"
    assert row.right_for_a_wrong_reason
    assert [error.kind for error in row.errors] == ["false line"]
    fine = rows(chat(LAW, answers(c=r"Set $d/s^2 = 1$, so $s^2 = d$ and $s = \sqrt{d}$.")))["c"]
    assert fine.status == "one shot"
    assert not fine.errors


@pytest.mark.parametrize(
    "right",
    [r"$\mu^T\mu$ (or equivalently $\|\mu\|^2$ or $\mu\cdot\mu$)", r"$$\boxed{\mu^\top\mu}$$",
     r"By linearity $E[q^T k] = \sum_i E[q_i] E[k_i] = \sum_i \mu_i^2$, so the mean is $\|\mu\|_2^2$.",
     r"Since $q$ and $k$ are independent, $$E[q^T k] = \mu^T \mu$$ where $\mu$ is the mean.",
     "the answer is mu^T mu", "E[q^T k] = ‖μ‖²",
     "\\begin{align} E[q^T k] &= \\sum_i \\mu_i^2 \\\\ &= \\mu^T\\mu \\end{align}"],
)  # fmt: skip
def test_claims_in_many_forms(right):
    assert statuses(chat(LAW, answers(a=right))) == ONCE


def test_names_that_tell_nothing_and_a_summary():
    text = chat(LAW, answers() + "\n\n### Summary of answers\n\n- (a) $\\mu^T\\mu$\n- (b) $d$\n- (c) $\\sqrt{d}$\n\n"
                "Ready for problem 2?",
                "Thanks!", "You are welcome.", tutor="Quill")  # fmt: skip
    assert statuses(text) == ONCE


def test_parts_by_number_and_without_labels():
    numbered = LAW.replace("(a)", "1.").replace("(b)", "2.").replace("(c)", "3.")
    assert statuses(chat(numbered, "1. $\\mu^T\\mu$\n2. $d$\n3. $\\sqrt{d}$")) == ONCE
    assert statuses(chat(numbered, answers())) == ONCE
    loose = r"We find $E[q^T k] = \mu^T\mu$. Then $\text{Var}(q^T k) = d$. Finally $s = \sqrt{d}$."
    assert statuses(chat(LAW, loose)) == ONCE


def test_two_problems_keep_their_numbers():
    second = (
        "## 5. Hard attention\n\nPerform argmax attention with the query $q = (1, 0, 2)$, keys $k_1 = (1, 1, 0)$, "
        "$k_2 = (0, 2, 3)$, $k_3 = (4, 0, 0)$ and values $v_1 = (1, 0)$, $v_2 = (2, 5)$, $v_3 = (7, 7)$.\n"
        "(a) Give the output.\n(b) What does argmax instead of softmax do to training?"
    )
    reply = (
        "(a) The scores are 1, 6 and 4, so the output is $v_2 = (2, 5)$.\n\n(b) The gradient of queries and keys is "
        "zero almost everywhere, so they cannot be trained."
    )
    found = grade(read(chat(f"## 2. Scores\n\n{LAW}", answers(), second, reply)))
    assert [(row.problem, row.part, row.status) for row in found.rows] == [
        ("2", "a", "one shot"), ("2", "b", "one shot"), ("2", "c", "one shot"), ("5", "a", "one shot"),
        ("5", "b", "one shot")
    ]  # fmt: skip


def test_a_statement_in_an_attachment():
    text = chat(
        "Look at problem 4 of the sheet that I attached. What are parts a, b and c?",
        "We have $q, k \\sim N(\\mu, \\sigma^2 I)$ with $\\mu \\in \\mathbb{R}^d$, independent.\n\n#### Part (a)\n\n"
        "Find $E[q^T k]$.\n\n"
        "**Answer (a):** $d \\mu^2$\n\n#### Part (b)\n\nFind the variance of $q^T k$ for $\\mu = 0, \\sigma = 1$.\n\n"
        "**Answer (b):** $d$\n\n#### Part (c)\n\nWe divide by the scale $s$.\n\n**Answer (c):** $\\sqrt{d}$\n\n"
        "Ready for problem 5?",
    )
    found = grade(read(text))
    assert [(row.problem, row.part, row.status) for row in found.rows] == [
        ("4", "a", "never right"), ("4", "b", "one shot"), ("4", "c", "one shot")
    ]  # fmt: skip


def test_what_nobody_knows_is_said():
    found = grade(read(chat("What is the capital of France?", "Paris.")))
    assert not found.rows
    assert any("no question" in note for note in found.notes)
    foreign = grade(read("**Usuario:** ¿Me ayudas con la tarea?\n\n**Asistente:** Claro, dime el enunciado."))
    assert any("English" in note for note in foreign.notes)
    alone = grade(read("**User:** hello\n\n**User:** anybody there?"))
    assert any("only one speaker" in note for note in alone.notes)
    nobody = grade(read("hello\nno speakers at all")).notes
    assert any("no speakers are marked: begin each turn" in note and "Tutor: …" in note for note in nobody)
    assert not any("English" in note or "only one" in note or "from the words" in note for note in nobody)


@pytest.mark.parametrize("poison", ["(" * 3000, "$" * 3001, "\\[" * 1500, "\\boxed{" * 800, "(a) " * 800, "<p>" * 900])
def test_poison_is_unread_and_never_wrong(poison):
    found = rows(chat(LAW, f"(a) {poison}"))
    assert all(row.status == "unread" for row in found.values())


def test_a_question_asked_a_part_at_a_time():
    law, a, b, c = LAW.split("\n")
    first = [f"{law} {a}", r"It is $\sum_i \mu_i^2 = \mu^T \mu$.", b, "There are $d$ terms, so the variance is $d^2$."]
    then = ["Do variances of independent terms add or multiply?", "They add, so it is $d$.", c, r"By $\sqrt{d}$."]
    found = rows(chat(*first, *then))
    assert {part: (row.status, row.first_right_turn) for part, row in found.items()} == {
        "a": ("one shot", 2), "b": ("needed correction", 6), "c": ("one shot", 8)
    }  # fmt: skip


def test_choices_and_proofs_are_graded_as_well():
    asked = (
        "Question 3. (a) For an input $x_{i,j}$ of example $i$ and feature $j$, on which does the LayerNorm output "
        "$y_{i,j}$ depend, and on which the BatchNorm output? Select all that apply.\n(i) $x_{i,j}$\n"
        "(ii) $x_{i',j}$ for $i' \\neq i$\n(iii) $x_{i,j'}$ for $j' \\neq j$\n"
        "(iv) $x_{i',j'}$ for $i' \\neq i$, $j' \\neq j$\n"
        "(b) Let y = γ (x - μ1)/σ + β1 be the output of layer norm for d entries. Show that ||y - β1|| = γ sqrt(d)."
    )
    proof = "||y - β1|| = γ ||x - μ1|| / σ = γ sqrt(d σ^2)/σ = γ sqrt(d)"
    first = f"(a) LayerNorm: (i) and (ii). BatchNorm: (i) and (iii).\n\n(b) {proof}"
    then = "LayerNorm averages over features, so LayerNorm: (i) and (iii). BatchNorm: (i) and (ii)."
    found = rows(chat(asked, first, "Over which index does layer norm average in (a)?", then))
    assert (found["a"].status, found["a"].first_right_turn) == ("needed correction", 4)
    assert found["a"].errors[0].name == "layer norm over the batch"
    assert found["b"].status == "one shot"


def test_a_number_put_in_takes_nothing_back():
    row = rows(chat(LAW, answers(), "Can you give an example for (c)?", r"With $d = 64$ we get $s = \sqrt{64} = 8$."))[
        "c"
    ]
    assert row.status == "one shot"
    assert not row.given_up
    assert not row.errors
