"""Sheets are split into questions with the labels that are printed."""

import random
import time

import pytest

from qkv.documents import read_document
from qkv.exercises.sheets.splitting import Question, split


def questions(text: str, name: str = "sheet.md") -> list[Question]:
    return split(read_document(text, name=name))


def labels(found: list[Question]) -> list[str]:
    return [label for each in found for label in (each.label, *labels(list(each.parts)))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("## 3. Scores\n\nCompute them.\n\n## 4. Weights\n\nFind them.", ["3", "4"]),
        ("### Question A (14 Marks)\n**(b)** [7 Marks] Compute the output.", ["A", "A(b)"]),
        ("12.1 What is a head?\n\n12.2 Compute q.", ["12.1", "12.2"]),
        ("Exercise 7.4 Consider h = 5 heads. What is d?\n\nExercise 7.5 Why?", ["7.4", "7.5"]),
        ("**Question 2:** How many?\n\n**Question 3 [sharding]:** How large?", ["2", "3"]),
        ("Problem 3 (10 points)\nFind q.\nProblem 4. Find k.", ["3", "4"]),
        ("1.Scores\nLet q be.\n(a) (3pts)What is A?\n(b)What is B?\n2.Weights\nFind them.", ["1", "1(a)", "1(b)", "2"]),
        ("1. What is q?\n2. What is k?", ["1", "2"]),
        ("1) What is q?\n   a) Why?\n   b) How?\n2) What is k?", ["1", "1(a)", "1(b)", "2"]),
        ("5. Kernels\n(b) Consider this.\n(i) Derive it.\n(ii) Prove it.\n(c) Why?",
         ["5", "5(b)", "5(b)(i)", "5(b)(ii)", "5(c)"]),
        ("Q1. Find q.\nQ2. Find k.", ["1", "2"]),
        ("Problem 2\nFind this.\nPart 1\nCompute q.\nPart 2\nCompute k.", ["2", "2 Part 1", "2 Part 2"]),
        ("Let q = 1. (a) Compute q. (b) Find k.", ["a", "b"]),
        ("A model has 3 layers. How many parameters? How large is the cache?", [""]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["sheet.md", "sheet.txt"])
def test_labels_as_printed(text: str, expected: list[str], name: str) -> None:
    if name == "sheet.txt":
        text = text.replace("**", "").replace("## ", "").replace("#", "")
    assert labels(questions(text, name)) == expected


TASK = """## 17_score-vectors

Write a function that scores vectors.

Example input:

```python
print(score([1, 2]))
```

Test 1:

```python
print(score([5, 7]))
```

Test 2:

```python
print(score([3]))
```
"""


def test_cases_of_a_task_are_parts_and_its_example_is_not() -> None:
    (task,) = questions(TASK)
    assert labels([task]) == ["17", "17 Test 1", "17 Test 2"]
    assert "[1, 2]" not in task.text
    assert all("[1, 2]" not in part.context and "scores vectors" in part.context for part in task.parts)
    assert "score([3])" in task.parts[1].text


def test_shared_material_is_context() -> None:
    text = (
        "## Problems\n\nA model:\n\n| name | value |\n|---|---|\n| layers | 7 |\n\n"
        "**Question 1:** How many?\n\n**Question 2:** Why?"
    )
    found = questions(text)
    assert labels(found) == ["1", "2"]
    assert all("| layers | 7 |" in each.context for each in found)


def test_a_worked_question_is_not_the_context_of_the_next_heading() -> None:
    found = questions("## 1. Worked\n\nLet X = [1]. Compute it.\n\n### Question 1\nWhy?\n\n### Question 2\nHow?")
    assert labels(found) == ["1", "Question 1", "2"]
    assert "X = [1]" not in found[2].context


def test_lists_that_ask_nothing_stay_in_the_text() -> None:
    text = "**Question 4:** The steps are:\n\n1. gather the rows\n2. multiply them\n\nHow long does it take?"
    (question,) = questions(text)
    assert not question.parts
    assert "gather the rows" in question.text
    assert question.text.endswith("How long does it take?")


def test_text_after_a_list_belongs_to_the_question() -> None:
    (question,) = questions("**Question 4:** Shard it.\n\n1. What is the bound?\n2. How many?\n\nWhat is the latency?")
    assert [part.text for part in question.parts] == ["What is the bound?", "How many?"]
    assert question.text.endswith("What is the latency?")
    assert len(question.pieces) == 2


@pytest.mark.parametrize("marks", [("⃝", "⃝"), ("- [ ] ", "- [ ] "), ("A) ", "B) "), ("(a) ", "(b) "), ("○", "○")])
def test_options(marks: tuple[str, str]) -> None:
    (question,) = questions(f"Question 1: Which shape has it?\n\n{marks[0]}[h, d]\n{marks[1]}[b, n]")
    assert [option.text for option in question.options] == ["[h, d]", "[b, n]"]
    assert question.text == "Which shape has it?"
    assert not question.parts


def test_hints_solutions_and_contributors_are_no_text() -> None:
    text = (
        "1. What is the output?\nHint: for example, argmax of [1, 3] is [0, 1]\n2. Why? (Hint: can we learn it?)\n"
        "Solution: it is 7.\nContributors:\n• Ada\n• Bo"
    )
    first, second = questions(text, "sheet.txt")
    assert first.text == "What is the output?"
    assert second.text == "Why?"


def test_references_to_parts_are_no_labels() -> None:
    text = "1. Scores\n(a) Find q.\n(b) Continue the setting of part\n(a), where q = 1. What is k?\n(c) Why?"
    assert labels(questions(text, "sheet.txt")) == ["1", "1(a)", "1(b)", "1(c)"]


def test_blanks_listed_with_the_letters_of_parts() -> None:
    text = "3.Heads\n(a) Fill in the blanks.\n(a)\n(b)\n(c)d_model\n(b) What must change?\n4.More\nWhy?"
    assert labels(questions(text, "sheet.txt")) == ["3", "3(a)", "3(b)", "4"]


def test_spans_hold_what_is_said() -> None:
    draw = random.Random(3)
    words = ["scores", "weights", "outputs", "heads", "masks"]
    for _ in range(30):
        parts = draw.randrange(2, 6)
        sheet = "".join(
            f"{number}. The {draw.choice(words)}\n\nLet n = {number}.\n\n"
            + "".join(f"({'abcdef'[part]}) What are the {draw.choice(words)}?\n\n" for part in range(parts))
            for number in range(1, draw.randrange(2, 5))
        )
        document = read_document(sheet, name="sheet.md")
        found = split(document)
        assert all(len(each.parts) == parts for each in found)
        for each in found:
            for leaf in each.parts:
                assert document.text[slice(*leaf.locate((0, len(leaf.text))))] == leaf.text
                assert leaf.span[0] <= leaf.pieces[0][0]
                assert leaf.pieces[-1][1] <= leaf.span[1]


LONG = "".join(f"{at}. What is it?\n\n" for at in range(1, 999))


@pytest.mark.slow
def test_long_sheets_take_bounded_time() -> None:
    began = time.perf_counter()
    for text in ("(a) What is A?\n" * 4000, "1. What?\n" * 4000, LONG):
        questions(text, "sheet.txt")
        questions(text)
    assert time.perf_counter() - began < 10
