"""Answers are found in a reply however models dress them, and nothing else is taken for one."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.tutor.replies import LONGEST, answers, judged
from tests.helpers.tutor_toy import make

DRESSES = [
    "Answer (a): {}",
    "Answer a: {}",
    "answer (A) : {}",
    "**Answer (a):** {}",
    "**Answer (a)**: {}",
    "- **Answer (a): {}**",
    "### Answer (a): {}",
    "> Answer (a): {}",
    "Final answer (a): {}",
    "Answer to part (a): {}",
    "Answer (1a): {}",
    r"\textbf{{Answer (a):}} {}",
    r"\text{{Answer (a): }} {}",
    "Answer (a): ${}$",
    "Answer (a): $$\n{}\n$$",
    r"Answer (a): \boxed{{{}}}",
    "Answer (a):\n{}",
    "Answer (a):\n\n{}",
    "Answer (a):\n```\n{}\n```",
    "Answer (a): {}\nI hope that this helps!",
    "Answer (a): {}\n\nLet me know if 99 is unclear.",
    "Answer (a): 99\nWait, that is wrong.\nAnswer (a): {}",
    "<think>Answer (a): 99</think>Answer (a): {}",
    "The answer to all this follows: 99.\nAnswer (a): {}",
    "Answer (b): 99\nAnswer (a): {}\nAnswer (c): 99",
    "Answer (b): 99; Answer (a): {}; Answer (c): 99",
    "Answer (a): {}\r\nAnswer (b): 99\r\n",
]


@pytest.mark.parametrize("dress", DRESSES)
def test_an_answer_is_read_in_every_dress(dress):
    part = make(0).part("a")
    given = answers(dress.format(12), ["a", "b", "c"])["a"]
    text, outcome = judged(part, given)
    assert outcome, (text, outcome)
    assert judged(part, answers(dress.format(13), ["a", "b", "c"])["a"])[1].kind == "wrong"


@pytest.mark.parametrize(
    "reply", ["", "12", "It is 12.", "(a) 12", "Answer: 12", "Answer (z): 12", "Answer (a):", "Answer (a) 12"]
)
def test_without_the_form_there_is_no_answer(reply):
    assert "a" not in answers(reply, ["a", "b"])
    assert judged(make(0).part("a"), None)[1].kind == "unread"


def test_an_answer_of_several_lines_is_one():
    part = make(0).part("c")
    given = answers("Answer (c): x = 2\ny = 3\n\nThat is all.", ["a", "b", "c"])["c"]
    assert judged(part, given) == ("x = 2\ny = 3", part.check("x = 2; y = 3"))
    assert judged(part, answers("Answer (c): x = 2\n\ny = 3", ["c"])["c"])[1].kind == "incomplete"


def test_parts_of_parts_keep_their_names():
    found = answers("Answer b(i): 1\nAnswer (b)(ii): 2\nAnswer 4(c): 3", ["b(i)", "b(ii)", "c"])
    assert {name: each.line for name, each in found.items()} == {"b(i)": "1", "b(ii)": "2", "c": "3"}


@given(st.text(max_size=300))
def test_no_text_raises(text):
    found = answers(text, ["a", "b"])
    assert set(found) <= {"a", "b"}
    assert all(each.line and each.paragraph.startswith(each.line) for each in found.values())


@pytest.mark.parametrize(
    "piece",
    [" ", "\t", "\n", "*", "| ", "<think>", "answer ", "Answer (a", "Answer (a): ", ", final ", "```", r"\text{", "$"],
)
def test_the_longest_reply_is_read_in_time(piece):
    start = time.process_time()
    answers(piece * (2 * LONGEST // len(piece)), ["a", "b"])
    assert time.process_time() - start < 2  # a step for each pair of signs would take minutes
