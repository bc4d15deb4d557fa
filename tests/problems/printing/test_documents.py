"""Worked solutions as documents: every writer takes them, nothing of them is lost, and each ends with its summary."""

import io

import pytest
from rich.console import Console

from qkv.errors import OptionError
from qkv.problems.printing.documents import answered, labelled, letter_of, solution_document, spoken, statement_document
from qkv.render import Formula, Heading, Items, Maths, Paragraph, Table, html, latex, markdown, notebook, pdf, show
from tests.helpers import toy_problem


def texts(document):
    said = io.StringIO()
    show(document, Console(file=said, width=80))
    return said.getvalue()


def headings(document):
    return [block.words for block in document.blocks if isinstance(block, Heading)]


def test_a_solution_has_every_part_then_the_summary_then_what_to_ask_next():
    document = solution_document(toy_problem.make().solve())
    assert headings(document) == [
        "Part (a), 3 points", "Part (b)(i), 2 points", "Summary of answers", "Questions to go on with",
    ]  # fmt: skip
    table = next(block for block in document.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["(a)", "(b)(i)"]
    said = texts(document)
    for words in ("Step 1. Multiply. That is how q is defined", "(2, 3, -5)", "(i) q is a vector", "Answer: (i)"):
        assert words in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_brief_solution_leaves_out_why_and_keeps_the_explanation():
    said = texts(solution_document(toy_problem.make().solve(), brief=True))
    assert "That is how" not in said
    assert "It is the product." in said


def test_one_part_alone():
    document = solution_document(toy_problem.make().solve(), parts=("1b.i",))
    assert "Part (b)(i), 2 points" in headings(document)
    assert not [words for words in headings(document) if "(a)" in words]
    with pytest.raises(OptionError, match="toy has the parts a, b"):
        solution_document(toy_problem.make().solve(), parts=("z",))


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_every_writer_takes_it(seed):
    document = solution_document(toy_problem.make(seed).solve())
    assert pdf(document).startswith(b"%PDF")
    assert "<b>" not in html(document)
    assert r"\underset{3 \times 2}" in latex(document)
    assert "Summary of answers" in markdown(document)
    assert "Summary of answers" in notebook(document)
    assert ("variant 7" in document.title) == (seed == 7)


def test_a_statement_is_set_as_a_lecturer_writes_it():
    row = [Formula(Maths(f"x_{n} = ({n}, 2)", {f"x_{n}": "vector[2]"})) for n in (1, 2)]
    together, words = labelled([*row, Paragraph("and so on")])
    assert isinstance(together, Formula)
    assert len(together.all) == 2
    assert isinstance(words, Paragraph)
    assert "pmatrix" in markdown(statement_document(toy_problem.make()))


def test_letters_in_prose_need_no_declaration():
    pieces = spoken(r"token $i$, map $\phi$, $j' \ne j$, $\broken{$", {})
    trees = [piece.tree() for piece in pieces if isinstance(piece, Maths)]
    assert [tree is not None for tree in trees] == [True, True, True, False]


def test_answers_are_printed_as_mathematics_where_they_are_some():
    problem = toy_problem.make()
    pieces = answered(problem, problem.part("a"))
    assert [type(piece).__name__ for piece in pieces] == ["Maths", "Text", "Maths"]
    assert letter_of(problem.part("b(i)")) == "(b)(i)"


def test_options_stand_below_the_question():
    items = [block for block in statement_document(toy_problem.make()).blocks if isinstance(block, Items)]
    assert len(items) == 1
    assert len(items[0].items) == 2
