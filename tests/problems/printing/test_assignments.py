"""An assignment comes apart at its questions, however they are numbered, and nowhere else."""

import pytest

from qkv.problems.printing.assignments import MOST, left_off, questions, recognised
from tests.helpers import toy_problem

BODY = "Some words.\n\n(a) Compute.\n\n1. Define this.\n2. Define that.\n"


@pytest.mark.parametrize(
    "start",
    ["# {} First thing", "## {}. First thing", "### Problem {}: First thing", "**{}. First thing**", "{} First thing",
     "{}. First thing", "Question {}", "**Problem {}.** First thing", "## Exercise {} - First thing",
     "## User: {}. First thing"],
)  # fmt: skip
def test_numbers_part_questions(start):
    text = f"A course\n\n{start.format(1)}\n\n{BODY}\n{start.format(2)}\n\n{BODY}\n{start.format(4)}\n\n{BODY}"
    found = questions(text)
    assert [each.number for each in found] == ["1", "2", "4"]
    assert all("Define that." in each.text for each in found)
    assert all(each.title in ("First thing", "") for each in found)


def test_headings_below_are_no_questions():
    text = "## 1. One\n\n#### 1(a) Part\n\n##### 1. Step\n\n### 1(b) Part\n\n## 2(b) Part\n\n## 2. Two\n\nwords"
    assert [each.label for each in questions(text)] == ["1 (One)", "2 (Two)"]


def test_code_is_no_heading():
    assert [each.number for each in questions("# 1 One\n```\n# 2 not this\n```\n# 2 Two\n")] == ["1", "2"]


def test_headings_without_numbers_and_nothing_at_all():
    assert [each.label for each in questions("# Sheet\n\n## Heads\n\nx\n\n## Norms\n\ny")] == ["Heads", "Norms"]
    assert [each.text for each in questions("only words")] == ["only words"]
    assert questions(" \n ") == ()


@pytest.mark.parametrize("text", ["#" * 100_000, "1 A\n" * 3000, "# 1 x\n" * 3000, "```\n" * 9999, "**1 " * 50_000])
def test_anything_is_read_and_bounded(text):
    assert len(questions(text)) <= MOST


def test_what_is_not_read_is_counted():
    assert left_off("\n\n".join(f"# {n} Thing\n\nwords" for n in range(1, MOST + 101))) == 100
    assert left_off("\n".join(f"{n}. thing here" for n in range(1, MOST + 4))) == 3
    assert left_off("# 1 One\n\n# 2 Two") == left_off("words") == 0


def test_each_is_recognised_or_not(monkeypatch):
    toy_problem.install(monkeypatch)
    found = recognised("# 1 One\n\na toy question\n\n# 2 Two\n\nsomething else")
    assert [(question.number, match and match.problem.name) for question, match in found] == [("1", "toy"), ("2", None)]
    parts = recognised("a toy question\n\n1. Define this.\n2. Define that.")
    assert len(parts) == 1
    assert parts[0][1] is not None
