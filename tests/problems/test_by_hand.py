"""By hand: the documents' numbers, variants against NumPy, planted mistakes, and answers as people write them."""

import re
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from qkv.maths import compare
from qkv.problems import MISCONCEPTIONS
from qkv.problems.by_hand.family import make, recognised
from qkv.problems.by_hand.given import given
from qkv.problems.reading.literals import numbers_of

SEEDS = range(15)


@pytest.fixture(scope="module")
def document():
    return make(None)


@pytest.fixture(scope="module")
def variants():
    return [make(seed) for seed in SEEDS]


def plain(matrix):
    return np.array([[float(entry) for entry in row] for row in matrix])


def reworked(problem):
    """Queries, keys, values, scores of the asked token and output by NumPy, from the statement's own formulas."""
    texts = [block.maths.source for block in problem.statement if hasattr(block, "maths")]
    read = {}
    for text in texts:
        name, _, literal = text.partition(" = ")
        found = numbers_of(literal)
        assert found is not None
        read[name] = plain(found[0])
    columns = problem.structure[7] if len(problem.structure) > 7 else False
    x = read["X"].T if columns else np.concatenate([read[name] for name in sorted(read) if name.startswith("x_")])
    q, k, v = (x @ read[f"W_{letter}"] for letter in "QKV")
    return x, q, k, v


def test_the_numbers_of_the_document(document):
    found = document.solve().summary
    assert found["b"] == "z_{3,1} = 2; z_{3,2} = 8; z_{3,3} = -20"
    for vector in ("q_1 = (2, 3, -5)", "q_3 = (1, -2, 8)", "k_1 = (-6, 0, 1)", "k_2 = (0, 0, 1)", "k_3 = (4, 0, -3)",
                   "v_1 = (16, 27)", "v_2 = (-8, 0)", "v_3 = (8, -18)"):  # fmt: skip
        assert vector in found["a"]
    assert document.check("c", "[-7.94, 0.067]")
    assert document.check("d", r"Q = X W_Q \in \mathbb{R}^{3 \times 3}, K = X W_K: 3x3, V = X W_V: 3x2")
    weights = {"a": "vector[3] = softmax((2, 8, -20))"}
    for name, printed in (("a_1", "0.00247"), ("a_2", "0.99753"), ("a_3", r"6.90 \times 10^{-13}")):
        assert compare(name, printed, weights)


def test_the_documents_second_query_is_wrong_in_its_last_sign(document):
    """2·(-1) - 3·0 is -2; 002 prints 2."""
    assert "q_2 = (-1, 0, -2)" in document.solve().summary["a"]
    printed = document.part("a").answer.text.replace("q_2 = (-1, 0, -2)", "q_2 = (-1, 0, 2)")
    outcome = document.check("a", printed)
    assert outcome.kind == "wrong"
    assert [name for name, item in outcome.items.items() if not item] == ["q_2"]


def test_the_documents_printed_proof(document):
    printed = r"""\begin{aligned} (\mathbf{AV})_i &= \left[a_{i,1}\mathbf{v}_{1,1} + a_{i,2}\mathbf{v}_{2,1} +
    a_{i,3}\mathbf{v}_{3,1} \quad a_{i,1}\mathbf{v}_{1,2} + a_{i,2}\mathbf{v}_{2,2} + a_{i,3}\mathbf{v}_{3,2} \right] \\
    &= \sum_{j=1}^3 a_{i,j} \begin{bmatrix} \mathbf{v}_{j,1} & \mathbf{v}_{j,2} \end{bmatrix} \\
    &= \sum_{j=1}^3 a_{i,j} \mathbf{v}_j^T \end{aligned}"""
    assert document.check("f", printed)


def test_variants_agree_with_numpy(variants):
    for problem in variants:
        tokens, _, width, _, token, scaled, causal, *_ = problem.structure
        _, q, k, v = reworked(problem)
        told = problem.part("a").answer
        for letter, rows in (("q", q), ("k", k), ("v", v)):
            for place in range(tokens):
                assert told.items[f"{letter}_{place + 1}"].gold == f"({', '.join(str(round(e)) for e in rows[place])})"
        scores = (q @ k.T)[token - 1] / (np.sqrt(width) if scaled else 1)
        seen = token if causal else tokens
        golds = [Fraction(item.gold) for item in problem.part("b").answer.items.values()]
        assert [float(gold) for gold in golds] == pytest.approx(scores[:seen])
        powers = np.exp(scores[:seen] - scores[:seen].max())
        output = (powers / powers.sum()) @ v[:seen]
        found = numbers_of(problem.part("c").answer.text)
        assert found is not None
        assert [float(entry) for entry in found[0][0]] == pytest.approx(output, rel=6e-5)


@pytest.mark.slow
def test_own_answers_are_right_and_planted_ones_are_named(document, variants):
    for problem in (document, *variants[:2]):
        for part in problem.parts:
            assert part.check(part.answer.text), (problem.seed, part.name)
            for known in part.misconceptions:
                assert known.name in MISCONCEPTIONS
                outcome = part.check(known.planted)
                assert outcome.kind == "wrong", known
                assert known.name in outcome.misconceptions, (
                    problem.seed,
                    part.name,
                    known,
                )


def test_every_link_of_every_step_holds(document):
    for problem in (document,):
        for solved in problem.solve().parts:
            assert solved.steps
            for step in solved.steps:
                for left, right in pairwise(step.chain):
                    assert compare(left, right, step.symbols), (problem.seed, left, right)
                assert not step.chain or step.latex


def test_neighbours_differ_in_structure_and_no_statement_comes_twice():
    problems = [make(seed) for seed in range(20)]
    assert all(a.structure != b.structure for a, b in pairwise(problems))
    assert len({str(problem.statement) + problem.part("b").ask for problem in problems}) == len(problems)
    assert len({problem.structure for problem in problems}) == len(problems)
    assert make(7).statement == make(7).statement


def test_hints_do_not_tell_the_answer(document, variants):
    for problem in (document, *variants):
        for part in problem.parts:
            assert len(set(part.hints)) == 3
            assert not any(part.answer.text in hint for hint in part.hints)
            assert all(re.compile(cue, re.IGNORECASE) for cue in part.cues)


@pytest.mark.parametrize(
    ("part", "answer", "kind"),
    [
        ("a", "Q: [[2,3,-5],[-1,0,-2],[1,-2,8]]; K: [[-6,0,1],[0,0,1],[4,0,-3]]; V: [[16,27],[-8,0],[8,-18]]", "right"),
        (
            "a",
            (
                "| token | q | k | v |\n|---|---|---|---|\n| 1 | (2,3,-5) | (-6,0,1) | (16,27) |\n"
                "| 2 | (-1,0,-2) | (0,0,1) | (-8,0) |\n| 3 | (1,-2,8) | (4,0,-3) | (8,-18) |"
            ),
            "right",
        ),
        ("a", "q₁ = (2, 3, -5), q₂ = (-1, 0, -2) and q₃ = (1, -2, 8)", "incomplete"),
        ("a", r"$\mathbf{q}_1^\top = \begin{bmatrix}2&3&-5\end{bmatrix}, \quad \mathbf q_2 = [1, 0, -2]^T$", "wrong"),
        ("a", "I would multiply the matrices.", "unread"),
        ("b", "z_3 = (2, 8, -20)", "right"),
        ("b", "2, 8 and -20", "right"),
        ("b", r"z_{3,1} &= \mathbf{q}_3^\top \mathbf{k}_1 = 2 \\ z_{3,2} &= 8 \\ z_{3,3} &= -20", "right"),
        ("b", r"$q_3^T k_1 = 2$, $q_3^T k_2 = 8$, $q_3^T k_3 = -20$", "right"),
        ("b", "z_{3,1} = 2, z_{3,2} = 8, z_{3,3} = 20", "wrong"),
        ("c", r"0.00247 \begin{bmatrix}16\\27\end{bmatrix} + 0.99753 \begin{bmatrix}-8\\0\end{bmatrix}", "right"),
        ("c", "0.0025*(16,27) + 0.9975*(-8,0) = (-7.94, 0.0675)", "right"),
        ("c", "(-7.94072, 0.06669)", "right"),
        ("c", r"\sum_{j=1}^3 a_{3,j} v_j", "incomplete"),
        ("c", "a_31 v_1 + a_32 v_2 + a_33 v_3", "incomplete"),
        ("c", "(-7.95, 0.067)", "wrong"),
        ("c", "0.0125 (16, 27) + 0.9875 (-8, 0)", "wrong"),
        ("d", "Q = XW_Q, K = XW_K, V = XW_V; Q and K are 3x3 and V is 3x2", "right"),
        (
            "d",
            (
                r"$Q = X W_Q \in \mathbb{R}^{N \times D_k}$, $K = X W_K \in \mathbb{R}^{N \times D_k}$, "
                r"$V = X W_V \in \mathbb{R}^{N \times D_v}$"
            ),
            "right",
        ),
        ("d", "Q = XW_Q, K = XW_K, V = XW_V", "incomplete"),
        ("d", "Q = XW_Q, K = XW_K, V = XW_V; all of them are 3x3", "wrong"),
        ("d", "Q = [[2,3,-5],[-1,0,-2],[1,-2,8]], 3x3", "incomplete"),
        ("e", "(QK^T)_ij = z_ij", "incomplete"),
        ("e", "Entry (i, j) is row i of $Q$ times column j of $K^T$, an inner product: $q_i^T k_j = z_{ij}$.", "right"),
        ("e", r"(QK^T)_{ij} = \sum_m Q_{im} K_{mj} = q_i^T k_j", "wrong"),
        ("f", r"(AV)_i = A_{i\cdot} V = \sum_j a_{ij} v_j^T", "right"),
    ],
)
def test_answers_as_people_write_them(document, part, answer, kind):
    assert document.check(part, answer).kind == kind


def test_a_known_mistake_is_named_in_other_words_too(document):
    assert document.check("b", "23, 2, -20").misconceptions == ("query and key swapped",)
    assert "scaling where none is asked" in document.check("b", "(1.155, 4.619, -11.547)").misconceptions


def told(problem):
    """The statement as somebody would put it into a chat."""
    lines = []
    for block in problem.statement:
        if hasattr(block, "maths"):
            lines.append(f"${block.maths.source}$")
        else:
            lines.append("".join(f"${p.source}$" if hasattr(p, "source") else p.text for p in block.words))
    return "\n".join([*lines, *(f"({part.name}) {part.ask}" for part in problem.parts)])


def test_a_question_is_known_with_its_own_numbers(document, variants):
    for problem in (document, *variants):
        found = recognised(told(problem))
        assert found is not None
        assert found[0] > 0.9
        for part in "abcd":
            assert found[1].part(part).answer.text == problem.part(part).answer.text, (problem.seed, part)


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        (
            (
                "Attention with X = [[1,0],[0,1],[1,1]], WQ = [[1,2],[0,1]], WK = [[1,0],[1,1]], WV = [[2,0],[0,3]]. "
                "Compute softmax(QK^T) V for token 2."
            ),
            "z_{2,1} = 0; z_{2,2} = 1; z_{2,3} = 1",
        ),
        (
            (
                r"Let $W^Q = \begin{pmatrix}1&0\\0&1\end{pmatrix}$, $W^K = \begin{pmatrix}1&1\\0&1\end{pmatrix}$, "
                r"$W^V=\begin{pmatrix}1&2\\0&1\end{pmatrix}$, $x_1=(1,2)^\top$, $x_2=(0,1)^\top$. Find the queries "
                r"$q_i = W^Q x_i$, keys and values, then the attention scores of $x_2$."
            ),
            "z_{2,1} = 2; z_{2,2} = 1",
        ),
        (
            "Q = [[1,0],[0,1]], K = [[1,1],[0,2]], V = [[3,0],[0,4]]: softmax attention for token 2, divided by √2",
            r"z_{2,1} = 1/\sqrt{2}; z_{2,2} = 2/\sqrt{2}",
        ),
    ],
)
def test_questions_in_other_layouts(text, scores):
    found = recognised(text)
    assert found is not None
    assert found[1].part("b").answer.text == scores


@pytest.mark.parametrize(
    "text",
    [
        "",
        "What is the time complexity of attention?",
        "Perform argmax attention with q = (1, 0), K = [[1, 2], [3, 1]], V = [[0, 1], [5, 5]].",
        r"Suppose q, k are random vectors with law N(\mu, \sigma^2 I). Define E[q^T k] and the variance.",
        "Why is the score divided by the square root of the width before the softmax?",
        "x_1 = (1, 2) and W_Q = [[1, 2], [3, 4]]: solve W_Q y = x_1.",
    ],
)
def test_other_questions_are_not_taken_for_this_one(text):
    assert recognised(text) is None


def test_weights_that_are_not_transposed():
    text = (
        "A layer has queries q_i = W_Q x_i, and keys and values likewise. W_Q = [[1, 2], [0, 1], [1, 0]], "
        "W_K = [[1, 0], [2, 1], [0, 1]], W_V = [[1, 3], [4, 1]], x_1 = (1, 2), x_2 = (0, 1). Compute queries and the "
        "attention that token x_2 places on both. Then write Q, K and V with the data matrix X."
    )
    found = recognised(text)
    assert found is not None
    problem = found[1]
    assert problem.check("d", "Q = X W_Q^T, 2x3; K = X W_K^T, 2x3; V = X W_V^T, 2x2")
    assert problem.part("a").answer.text.startswith("q_1 = (5, 2, 1); q_2 = (2, 1, 0)")
    for part in problem.parts:
        assert part.check(part.answer.text), part.name
        for step in part.steps():
            assert all(compare(a, b, step.symbols) for a, b in pairwise(step.chain)), step
        for known in part.misconceptions:
            assert known.name in part.check(known.planted).misconceptions, known


def test_given_matrices_make_the_same_problem(document):
    own = given(x="2 3; -1 0; 1 -2", wq="1 0 2; 0 1 -3", wk="0 0 -1; -2 0 1", wv="8 0; 0 9", token=3)
    assert {part: own.part(part).answer.text for part in "abcd"} == {
        part: document.part(part).answer.text for part in "abcd"
    }
