"""The reader of sheets on texts of our own: what is asked, what is answered, and what is not."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from qkv.exercises.sheets import read_question, read_sheet
from qkv.exercises.solving import Solved, plain
from qkv.maths import compare

OWN = Path(__file__).parent / "own"
TEXTS = [text for path in sorted(OWN.glob("*.toml")) for text in tomllib.loads(path.read_text("utf-8"))["text"]]


def parts_of(text: str) -> list[Solved]:
    return [part for reading in read_sheet(f"{text}\n") if reading.understood for part in reading.solve().parts]


def numbers(value: Any) -> list[float]:
    return [n for each in value for n in numbers(each)] if isinstance(value, list | tuple) else [float(value)]


def test_there_are_enough_texts() -> None:
    assert len(TEXTS) >= 60
    assert len({text["id"] for text in TEXTS}) == len(TEXTS)
    assert sum(not text["quantities"] for text in TEXTS) >= 12


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text["id"])
def test_a_text_of_our_own(text: dict[str, Any]) -> None:
    parts = parts_of(text["text"])
    assert [part.asked.quantity for part in parts] == text["quantities"]
    if text.get("refused"):
        assert all(part.answer is None for part in parts)
    for part, wanted in zip(parts, text.get("answers", ()), strict=False):
        assert part.answer is not None
        assert numbers(plain(part.answer.value)) == pytest.approx(numbers(wanted), rel=2e-4, abs=1e-4)
    for part, wanted in zip(parts, text.get("texts", ()), strict=False):
        assert part.answer is not None
        same = compare(wanted, part.answer.text, dict(part.answer.symbols)).kind == "equal"
        assert same or wanted in part.answer.text


def test_a_part_takes_the_givens_of_its_question_and_its_own_replace_them() -> None:
    text = """# 1 Sizes

A model has 10 layers, 4 heads and a width of 64.

(a) What is the dimension of each head?

(b) Now let the width be 128. What is the dimension of each head?
"""
    answers = [part.answer for part in parts_of(text)]
    assert [answer.value for answer in answers if answer] == [16, 32]


def test_a_clause_that_is_not_understood_is_said() -> None:
    reading = read_question("A model has width 512 and 8 heads. What is the size of each head? Sketch a bicycle.")
    assert reading.understood
    assert [finding.code for finding in reading.findings] == ["unread_clause"]


@pytest.mark.parametrize(
    "text",
    [
        "Plot the loss curve of the experiment and compute the attention output.",
        "How many tokens did you use in your notebook?",
        "Hint: compute the softmax of [1, 2].",
        "",
    ],
)
def test_nothing_is_answered_that_was_not_asked(text: str) -> None:
    assert not read_question(text).understood
    assert not any(part.answer for part in parts_of(text))


def test_an_unread_number_keeps_a_figure_from_being_printed() -> None:
    plain_text = "A model has 2 layers, 4 heads of width 8. How many bytes is its KV cache per token in fp16?"
    odd = plain_text.replace("How many", "A flux capacitor adds 37 percent. How many")
    assert [part.asked.quantity for part in parts_of(plain_text)] == ["cache_bytes"]
    assert not parts_of(odd)


def test_a_choice_is_answered_by_its_option() -> None:
    text = """X is a 5 × 3 matrix and W_Q is a 3 × 7 matrix. What is the shape of X W_Q?

(A) [3, 7]
(B) [5, 7]
(C) [7, 5]"""
    answer = parts_of(text)[0].answer
    assert answer is not None
    assert "B" in str(answer.value) or "[5, 7]" in answer.text


@pytest.mark.slow
def test_a_long_text_is_read_in_bounded_time() -> None:
    assert not read_question("lorem ipsum with by from the " * 20_000).understood


def test_a_sheet_of_thousands_of_questions_is_read_in_part_and_says_so():
    readings = read_sheet("\n\n".join(f"{n}. Compute softmax([1, 2, {n}])." for n in range(1, 2002)))
    assert len(readings) == 301
    assert readings[-1].findings[0].code == "too_large"


def test_parts_of_a_question_share_the_constant_of_a_kernel() -> None:
    sheet = """## Question 1

Attention may use a polynomial kernel.

(a) Its degree is set to be 2 and any constant factor is set to be 1. Derive sim(q, k) for quadratic kernel attention.

(b) Derive the corresponding feature map for the quadratic kernel.
"""
    kernel, features = (reading.solve().parts[0].answer for reading in read_sheet(sheet))
    for answer in (kernel, features):
        assert answer is not None
        assert not answer.assumed


def test_the_numerator_of_a_torn_fraction_defines_nothing() -> None:
    torn = read_sheet(
        "Heads have width k= d\nh, and there are n tokens.\n\nWhat is the time complexity of attention?\n"
    )
    assert not any(each.text.startswith("k") for reading in torn for each in reading.exercise.definitions)
