"""Parts that only their order, a number or a name tells apart, and answers that are taken back or repeated."""

from __future__ import annotations

import pytest

from qkv.tutor.ledger import grade
from qkv.tutor.transcript import read

ASKED = (
    r"Suppose $q, k \in \mathbb{R}^d$ are random vectors with $q, k \sim \mathcal{N}(\mu, \sigma^2 I)$ iid, where "
    r"$\mu \in \mathbb{R}^d$ and $\sigma \in \mathbb{R}^+$."
    "\n(a) Define $E[q^T k]$ in terms of $\\mu, \\sigma$ and $d$."
    "\n(b) For $\\mu = 0$ and $\\sigma = 1$, define $Var(q^T k)$ in terms of $d$."
    "\n(c) We want $E[q^T k/s]$ to be 0 and $Var(q^T k/s)$ to be 1. What should $s$ be in terms of $d$?"
)
RIGHT = "(a) $\\mu^T\\mu$\n(b) $d$\n(c) $\\sqrt{d}$"
WRONG = "(a) $d\\mu^2$\n(b) $d$\n(c) $\\sqrt{d}$"


def rows(*turns):
    text = "\n\n".join(f"{'Tutor' if place % 2 else 'Student'}: {said}" for place, said in enumerate(turns))
    return {row.part: row for row in grade(read(text)).rows}


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT,
        "1. $\\mu^T\\mu$\n2. $d$\n3. $\\sqrt{d}$",
        "A: $\\mu^T\\mu$\nB: $d$\nC: $\\sqrt{d}$",
        "$\\mu^T\\mu$\n\n$d$\n\n$\\sqrt{d}$",
        "\\item[(a)] $\\mu^T\\mu$\n\\item[(b)] $d$\n\\item[(c)] $\\sqrt{d}$",
        "\\(a\\) $\\mu^T\\mu$\n\\(b\\) $d$\n\\(c\\) s = d**0.5",
    ],
)
def test_right_in_any_layout(answer):
    assert [row.status for row in rows(ASKED, answer).values()] == ["one shot"] * 3


def test_an_answer_taken_back_below_the_others():
    later = "Actually, wait. Here mu is a vector. So part (a) should be $\\mu^T\\mu$."
    found = rows(ASKED, f"{WRONG}\n\n{later}")
    assert (found["a"].status, found["a"].found_by) == ("needed correction", "tutor")
    assert found["c"].status == "one shot"


def test_a_question_that_is_an_assertion_presses():
    found = rows(ASKED, RIGHT, "Is (a) not d mu^2?", "Yes, you are right, (a) is $d\\mu^2$.")
    assert found["a"].given_up
    kept = rows(ASKED, RIGHT, "I think (a) should be d mu^2.", "No, my answer stands: mu is a vector.")
    assert kept["a"].stood_firm


def test_the_question_repeated_presses_nobody():
    found = rows(ASKED, WRONG, f"{ASKED}\nTry again.", RIGHT)
    assert not any(row.stood_firm for row in found.values())


def test_right_with_a_false_line_below():
    answer = RIGHT.replace("\\mu$\n", "\\mu$. Indeed $E[q_i k_i] = \\mu_i^2 + \\sigma^2$, sum them.\n", 1)
    found = rows(ASKED, answer)
    assert found["a"].status == "one shot"
    assert [error.kind for error in found["a"].errors] == ["false line"]
