"""Argmax attention: the document's example, variants against NumPy, planted mistakes, answers in many words."""

from itertools import pairwise

import numpy as np
import pytest

from qkv.maths import compare
from qkv.problems import MISCONCEPTIONS
from qkv.problems.argmax.family import Lookup, lookup_part, make, recognised
from qkv.problems.argmax.training import KINDS, training_part
from qkv.problems.exact import exact
from qkv.problems.reading.literals import matrices_in, numbers_of
from qkv.theory.argmax import KEYS, QUERY, VALUES

SEEDS = range(15)


@pytest.fixture(scope="module")
def document():
    return make(None)


def told(problem):
    """The statement as somebody would put it into a chat."""
    lines = []
    for block in problem.statement:
        if hasattr(block, "maths"):
            lines.append(f"${block.maths.source}$")
        else:
            lines.append("".join(f"${p.source}$" if hasattr(p, "source") else p.text for p in block.words))
    return "\n".join([*lines, *(f"({part.name}) {part.ask}" for part in problem.parts)])


def test_the_document(document):
    assert document.solve().summary["a"] == "scores (3, 11, 5, 2), index 2, output (1, 4, 3)"
    named = dict(matrices_in(told(document)))
    assert named["q"][0] == QUERY
    assert [named[f"k_{n}"][0] for n in range(1, 5)] == [tuple(row) for row in KEYS]
    assert [named[f"v_{n}"][0] for n in range(1, 5)] == [tuple(row) for row in VALUES]


def test_variants_agree_with_numpy():
    for seed in SEEDS:
        problem = make(seed)
        n, _, _, best, similarity, tied, _, rows = problem.structure
        named = {name: np.array(found, dtype=float) for name, found in matrices_in(told(problem))}
        keys = named["K"] if rows else np.concatenate([named[f"k_{place + 1}"] for place in range(n)])
        values = named["V"] if rows else np.concatenate([named[f"v_{place + 1}"] for place in range(n)])
        query = named["q"][0]
        scores = keys @ query if similarity == "dot" else -((keys - query) ** 2).sum(1)
        assert int(scores.argmax()) + 1 == best
        assert (np.sort(scores)[-1] == np.sort(scores)[-2]) == tied
        answer = problem.part("a").answer
        assert np.array(numbers_of(answer.output.gold)[0][0], dtype=float) == pytest.approx(values[best - 1])
        assert np.array(numbers_of(answer.scores.gold)[0][0], dtype=float) == pytest.approx(scores)


def test_own_answers_are_right_and_planted_ones_are_named(document):
    for problem in (document, *map(make, SEEDS)):
        for part in problem.parts:
            assert part.check(part.answer.text), (problem.seed, part.name)
            assert part.misconceptions
            for known in part.misconceptions:
                assert known.name in MISCONCEPTIONS
                outcome = part.check(known.planted)
                assert outcome.kind == "wrong", known
                assert known.name in outcome.misconceptions, (problem.seed, known)


def test_every_link_of_every_step_holds(document):
    for problem in (document, *map(make, range(4))):
        for solved in problem.solve().parts:
            for step in solved.steps:
                for left, right in pairwise(step.chain):
                    assert compare(left, right, step.symbols).evidence == "proved", (problem.seed, left, right)


def test_neighbours_differ_in_structure_and_no_statement_comes_twice():
    problems = [make(seed) for seed in range(60)]
    assert all(a.structure != b.structure for a, b in pairwise(problems))
    assert len({told(problem) for problem in problems}) == len(problems)


def test_hints_do_not_tell_the_answer():
    for seed in SEEDS:
        part = make(seed).part("a")
        assert not any(part.answer.output.gold in hint for hint in part.hints)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("(1, 4, 3)", "right"),
        ("v_2", "right"),
        (r"\text{Output} = \mathbf{v}_2 = \begin{bmatrix} 1 \\ 4 \\ 3 \end{bmatrix}", "right"),
        ("s_1 = 3, s_2 = 11, s_3 = 5, s_4 = 2. The maximum is 11, at index 2, so we return v_2 = [1,4,3]^T", "right"),
        ("The scores are 3, 11, 5, 2; the output is [1, 4, 3]", "right"),
        ("It returns the second value.", "right"),
        ("The scores are 3, 12, 5, 2; the output is [1, 4, 3]", "wrong"),
        ("scores (3, 11, 5, 2), index 3, output (0, -1, 4)", "wrong"),
        ("the best key has index 2", "incomplete"),
        ("no idea", "unread"),
        ("", "unread"),
    ],
)
def test_lookups_as_people_write_them(document, answer, kind):
    assert document.check("a", answer).kind == kind


def test_a_tie_takes_the_first():
    part = lookup_part(Lookup((1, 0), exact(((2, 5), (2, 7), (1, 1))), exact(((1, 2), (3, 4), (5, 6)))))
    assert part.check("(1, 2)")
    assert part.check("(3, 4)").misconceptions == ("second best taken",)


@pytest.mark.parametrize(
    ("kind", "answer", "outcome"),
    [
        ("training", "Argmax is not differentiable, so we can't backprop through it.", "right"),
        ("training", "The gradient w.r.t. queries and keys is zero almost everywhere; only values learn.", "right"),
        ("training", "It is a step function: training the attention part by gradients becomes impossible.", "right"),
        ("training", "Gradients flow normally.", "wrong"),
        ("training", "Queries, keys and values get no gradient, so nothing in the layer learns.", "wrong"),
        ("training", "I like trains.", "unread"),
        ("learners", "Queries and keys get zero gradients.", "incomplete"),
        ("learners", "W_Q and W_K have zero gradient, W_V still gets gradients.", "right"),
        ("temperature", "It tends to argmax, and the gradients vanish.", "right"),
        ("temperature", "The distribution becomes uniform.", "wrong"),
        ("straight", "Forward: hard argmax. Backward: the gradient of the softmax.", "right"),
    ],
)
def test_training_in_words(kind, answer, outcome):
    assert training_part(kind).check(answer).kind == outcome


def test_every_kind_of_training_question_takes_its_own_answer():
    for kind in KINDS:
        part = training_part(kind)
        assert part.check(part.answer.text), kind


def test_a_question_is_known_with_its_own_numbers(document):
    for problem in (document, *map(make, SEEDS)):
        found = recognised(told(problem))
        assert found is not None
        assert found[0] > 0.9
        assert found[1].part("a").answer.text == problem.part("a").answer.text, problem.seed


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("Do hard attention (argmax) with q = (1,0), k1 = (1,2), k2 = (3,1), v1 = (0,1), v2 = (5,5).", "(5, 5)"),
        (
            (
                r"Let $\mathbf q=\begin{bmatrix}1\\-1\end{bmatrix}$; $K=\begin{bmatrix}1&0\\2&2\\0&1\end{bmatrix}$,"
                r" values $V=\begin{bmatrix}1&0&0\\0&1&0\\0&0&1\end{bmatrix}$: what does argmax attention return?"
            ),
            "(1, 0, 0)",
        ),
        (
            (
                r"Argmax attention, $\mathbf{q} = [0, 1]^T$, $\mathbf{K} = \left\{ \begin{bmatrix}1\\2\end{bmatrix}, "
                r"\begin{bmatrix}4\\3\end{bmatrix} \right\}$, $\mathbf{V} = \left\{ \begin{bmatrix}1\\1\end{bmatrix}, "
                r"\begin{bmatrix} 2 \\ 7 \end{bmatrix} \right\}$."
            ),
            "(2, 7)",
        ),
    ],
)
def test_questions_in_other_layouts(text, output):
    found = recognised(text)
    assert found is not None
    assert found[1].part("a").answer.output.gold == output


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Softmax attention with q = (1, 0), K = [[1, 2], [3, 1]], V = [[0, 1], [5, 5]].",
        "Each head has one mode, so argmax attention is a good model of it: how far does a stack of layers reach?",
        "Find the argmax of x^2 - x on the interval.",
    ],
)
def test_other_questions_are_not_taken_for_this_one(text):
    assert recognised(text) is None


def test_a_question_without_numbers_is_known_by_its_words():
    found = recognised("How does using argmax instead of softmax in attention affect training by gradient descent?")
    assert found is not None
    assert 0 < found[0] < 0.9
