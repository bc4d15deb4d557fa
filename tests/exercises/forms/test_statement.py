"""Sentences around answers."""

import pytest

from qkv.exercises import variant
from qkv.exercises.checking import check
from qkv.exercises.forms.statement import without_question

QUESTION = r"Let $\eta = 0$ and $\tau = 3$. What is the variance of the score $x^T y$, in terms of $d$?"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"The variance of the score \( x^T y \) is \( 9 d \).", r"\( 9 d \)"),
        (r"So, the variance of the score $x^T y$ when \(\eta = 0\), and \(\tau = 3\) is equal to $9 d$", "$9 d$"),
        (r"The variance of the score $x^T y$ when $\tau = 30$ is $9 d$.", None),
        ("The variance of the score is $9 d$.", None),
        ("The mean of the score $x^T y$ is $9 d$.", None),
        ("the variance is $9 d$", None),
        ("$9 d$", None),
        ("", None),
    ],
)
def test_the_words_of_the_question_before_an_answer(text, answer):
    assert without_question(text, QUESTION) == (text if answer is None else answer)


def test_such_an_answer_is_judged():
    exercise = variant("scaling", seed=0)
    case = r"when \(\theta = 0\), \(\eta = 0\), and \(\tau = 3\)"
    for said, kind in ((r"81 d_k", "right"), ("0", "wrong"), ("not 0", "unread"), ("perhaps 0", "unread")):
        assert check(exercise, "b", rf"The variance of the score \( x^T y \) {case} is \( {said} \).").kind == kind
    assert check(exercise, "a", r"The variance of the score $x^T y$ is $81 d_k$.").kind == "unread"
