"""Parts that are asked together: each has its own text where the answer is taken apart, and its own mistakes."""

import pytest

from qkv import problems
from qkv.errors import OptionError
from qkv.problems.several import taken_apart

FAMILIES = ("kernels", "heads", "saturation")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_answers_of_all_make_the_answer_of_the_whole(name):
    problem = problems.bank()[name]
    for letter in {part.name[0] for part in problem.parts if "(" in part.name}:
        whole = problem.part(letter)
        outcome = whole.check(whole.answer.text)
        assert outcome.kind == "right", (name, letter, outcome)
        assert list(outcome.items) == [part.name for part in problem.parts if part.name.startswith(letter)]
        assert whole.points == sum(problem.part(each).points for each in outcome.items)
        assert whole.answer.same(whole.answer.text, whole.answer.text)


def test_what_is_left_out_is_incomplete_and_mistakes_are_named():
    problem = problems.bank()["heads"]
    first = problem.part("d(i)")
    assert problem.check("d", f"(i) {first.answer.text}").kind == "incomplete"
    assert problem.check("d", "").kind == "unread"


def test_norms_are_asked_one_at_a_time_and_together():
    problem = problems.bank()["norms"]
    assert problem.check("a(i)", "(i), (iii)").kind == "right"
    assert problem.check("a(ii)", "(i), (ii)").kind == "right"
    assert problem.check("a", "Layer norm: (i), (iii). Batch norm: (i), (ii).").kind == "right"
    assert problem.check("a", "Layer norm: (i), (ii). Batch norm: (i), (ii).").kind == "wrong"
    with pytest.raises(OptionError):
        problem.part("z")


@pytest.mark.parametrize(
    ("answer", "pieces"),
    [
        ("(i) x (ii) y", ["x", "y"]),
        ("1) x\n2) y", ["x", "y"]),
        ("x\ny", ["x", "y"]),
        ("(ii) y", ["", "y"]),
        ("x", ["x", "x"]),
    ],
)
def test_taking_apart(answer, pieces):
    assert taken_apart(answer, ["(i)", "(ii)"]) == pieces
