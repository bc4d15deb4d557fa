"""Documents of exercises: a sheet asks, its key answers the same questions, and nothing of the key is on the sheet."""

import pytest

from qkv.exercises import Asked, Exercise, Given, bank, solve
from qkv.exercises.printing import (
    TITLE,
    joined_documents,
    sheet_document,
    shown_label,
    solution_document,
    text_blocks,
)
from qkv.render import BlankLines, Code, Formula, Heading, PageBreak, Paragraph, html, latex, markdown, pdf

PLAIN = Exercise(
    givens=[Given(symbol="s", role="scores", value=[0, 0, "ln(3)"])],
    asked=[Asked(label="a", quantity="softmax"), Asked(label="b", quantity="logsumexp", text="And $\\log \\sum e^s$?")],
)


def test_text_becomes_paragraphs_formulas_and_code():
    text = "First $x$.\n\n$$x = (1, 2)$$\n\n$$y = 3$$\n\nThen\n\n```python\na = 1\n\nb = 2\n```\n\nLast."
    blocks = list(text_blocks(text, {"x": "vector[2]", "y": "scalar"}))
    assert [type(block) for block in blocks] == [Paragraph, Formula, Paragraph, Code, Paragraph]
    assert len(blocks[1].all) == 2
    assert blocks[3].text == "a = 1\n\nb = 2"


def test_an_exercise_that_is_not_of_the_bank_is_printed():
    solution = solution_document(solve(PLAIN))
    assert "s (scores, 3)" in html(solution)
    assert "Softmax?" in html(solution)
    assert r"\frac{3}{5}" in latex(solution)


def test_a_solution_shows_parts_steps_answers_and_corrections():
    exercise = bank.named("scaling")
    whole, brief = (html(solution_document(exercise, brief=brief)) for brief in (False, True))
    for words in ("Part (a), 2 points", "Answer:", "Summary of answers", "Questions to continue with"):
        assert words in whole
    assert "linearity" in whole
    assert "linearity" not in brief
    assert html(solution_document(exercise, parts=["c"])).count("Answer:") == 1
    assert "Correction" in html(solution_document(bank.named("by-hand"), parts=["b"]))


def test_a_sheet_has_a_name_line_points_sizes_and_space_to_write():
    sheet = sheet_document(["by-hand", "scaling"], [3], copy=17)
    said = markdown(sheet)
    first, second = bank.named("by-hand", 3), bank.named("scaling")
    total = sum(first.points.values()) + sum(second.points.values())
    for words in ("Name", f"/ {total}", "Copy 017", "points"):
        assert words in said
    assert sheet.title == TITLE
    assert r"\underset{" in latex(sheet)
    lines = [block for block in sheet.blocks if isinstance(block, BlankLines)]
    assert len(lines) == len(first.asked) + len(second.asked)
    assert pdf(sheet).startswith(b"%PDF")


@pytest.mark.parametrize("name", ["scaling", "argmax"])
def test_the_key_answers_and_the_sheet_does_not(name):
    exercise = bank.named(name, 5)
    sheet, key = (sheet_document([exercise], key=key, copy=2) for key in (False, True))
    assert html(key).count("Answer:") == len(exercise.asked)
    assert "Answer:" not in html(sheet)
    assert "Copy 002" in markdown(sheet)
    assert "Copy 002" in markdown(key)
    questions = [block for block in sheet.blocks if isinstance(block, Heading | Paragraph)][1:]
    assert all(block in key.blocks for block in questions)


def test_the_same_sheet_gives_the_same_bytes():
    assert pdf(sheet_document(["scaling"], [1])) == pdf(sheet_document(["scaling"], [1]))


def test_documents_are_joined_with_page_breaks():
    sheets = [sheet_document(["scaling"], [seed], copy=seed) for seed in (1, 2, 3)]
    joined = joined_documents(sheets, "All")
    assert sum(isinstance(block, PageBreak) for block in joined.blocks) == 2
    assert joined_documents(sheets[:1], "All") is sheets[0]


def test_labels_are_bracketed():
    assert [shown_label(label) for label in ("a", "b(ii)", "")] == ["(a)", "(b)(ii)", ""]
