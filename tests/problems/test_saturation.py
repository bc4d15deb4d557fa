"""Unscaled scores: the document's lines, the Jacobian against differences in float64, words, reading."""

import re
from fractions import Fraction

import numpy as np
import pytest

from qkv.maths import compare
from qkv.problems.saturation.family import make, recognised
from qkv.problems.saturation.numbers import Case, fraction
from qkv.theory.saturation import jacobian_norm
from tests.helpers.problem_checks import assert_proved, assert_sound, assert_varied, told

SEEDS = range(12)


@pytest.fixture(scope="module")
def document():
    return make(None)


def test_variants_are_sound(document):
    for problem in (document, *map(make, SEEDS)):
        assert_sound(problem)


@pytest.mark.slow
def test_steps_are_proved(document):
    for problem in (document, *map(make, range(1, 4))):
        assert_proved(problem)


def test_neighbours_differ_and_nothing_repeats():
    assert_varied(map(make, range(300)))


def test_the_documents_lines(document):
    norm = r"\sum_{i=1}^n a_i^2 (1 - a_i)^2 + 2 \sum_{1 \leq i < j \leq n} a_i^2 a_j^2"
    assert document.check("a(i)", r"E(s_i) = 0, \text{Var}(s_i) = d_{\text{head}}")
    jacobian = r"\text{diag}(\mathbf{a}) - \mathbf{a} \mathbf{a}^T"
    assert document.check("a(ii)", rf"\frac{{\partial \mathbf{{a}}^T}}{{\partial \mathbf{{s}}}} = {jacobian}")
    assert document.check("a(iii)", norm)
    last = r"< \epsilon^2 + (n-1)\epsilon^2 + 2 \frac{n(n-1)}{2} \epsilon^2 \leq n^2 \epsilon^2"
    assert document.check("a(iv)", last)


def test_numbers_agree_with_differences_in_float64():
    def softmax(scores):
        weights = np.exp(scores - scores.max())
        return weights / weights.sum()

    for counts in ((1, 2), (3, 1, 2), (5, 1, 1, 2)):
        case = Case(counts)
        scores = np.log(np.array(counts, dtype=float))
        step = 1e-6
        moved = [softmax(scores + step * unit) - softmax(scores - step * unit) for unit in np.eye(len(counts))]
        table = np.stack(moved).T / (2 * step)
        assert np.array(case.jacobian(), dtype=float) == pytest.approx(table, abs=1e-8)
        assert sum((entry**2 for row in case.jacobian() for entry in row), Fraction(0)) == jacobian_norm(case.exact)


def test_sizes_traces_and_eigenvalues_agree_with_numpy():
    for seed in SEEDS:
        problem = make(seed)
        if problem.structure[0] != "numbers":
            continue
        counts = [int(found) for found in re.findall(r"ln (\d+)", problem.symbols[problem.structure[-1]])]
        a = np.array(counts, dtype=float) / sum(counts)
        table = np.diag(a) - np.outer(a, a)
        row, column = problem.structure[3] - 1, problem.structure[4] - 1
        ratio = (counts[row] / counts[column],)
        wanted = {
            "entry": table[row, column],
            "size": (table**2).sum(),
            "trace": np.trace(table),
            "largest": table.max(),
            "spectral": np.linalg.eigvalsh(table).max(),
        }
        for ask, part in zip(problem.structure[1], problem.parts, strict=True):
            if ask in wanted:
                assert compare(part.answer.text, f"{wanted[ask]:.6f}", {}), (seed, ask)
            if ask == "temperature":
                assert any(compare(part.answer.text, f"{ratio[0] ** power:.6f}", {}) for power in (2, 3))


@pytest.mark.parametrize(
    ("part", "answer", "kind", "mistake"),
    [
        ("a(i)", "mean 0 and variance d_{head}", "right", None),
        ("a(i)", "The mean is 0 and the variance is d_head.", "right", None),
        ("a(i)", r"E(s_i)=0 and Var(s_i)=\sqrt{d_{\text{head}}}", "wrong", "standard deviation for variance"),
        ("a(i)", "Var(s) = d_head", "incomplete", None),
        ("a(ii)", r"\frac{\partial a_i}{\partial s_j} = a_i(\delta_{ij}-a_j)", "right", None),
        ("a(ii)", r"\frac{\partial a}{\partial s}", "incomplete", None),
        ("a(ii)", "a a^T - diag(a)", "wrong", "sign turned"),
        ("a(ii)", "J_ij = a_i(1-a_i) if i=j else -a_i a_j", "right", None),
        ("a(ii)", "a_i(1-a_i) if i = j, otherwise -a_i a_j", "right", None),
        ("a(ii)", "for i=j: a_i(1-a_i); for i≠j: -a_i a_j", "right", None),
        ("a(ii)", "a_i(1-a_i) if i≠j else -a_i a_j", "wrong", None),
        ("a(ii)", "a_i(1-a_i) if i=j else 0", "wrong", None),
        ("a(ii)", "-a_i a_j unless i=j", "incomplete", None),
        ("a(ii)", "diag(a)-a^T a", "wrong", None),
        ("a(iii)", r"\|a\|^2 - 2\sum_i a_i^3 + \|a\|^4", "right", None),
        ("a(iv)", r"4\epsilon^2", "right", None),
        ("a(iv)", r"n\epsilon^2", "wrong", "only the diagonal"),
        ("a(v)", "The softmax becomes one-hot and gradients vanish.", "right", None),
        ("a(v)", "softmax saturates but gradients do not vanish", "wrong", None),
        ("a(v)", "gradients explode because scores are large", "wrong", "gradients explode"),
        ("a(v)", "The softmax would be flat.", "wrong", "softmax flattens"),
        ("a(v)", "I do not know", "unread", None),
    ],
)
def test_answers(document, part, answer, kind, mistake):
    outcome = document.check(part, answer)
    assert outcome.kind == kind, outcome
    assert (mistake in outcome.misconceptions) if mistake else not outcome.misconceptions


def test_a_name_that_ends_an_answer_is_no_article(document):
    assert "-aᵀa is a scalar" in document.check("a(ii)", "diag(a)-a^T a").reason


def test_own_questions_are_read_back():
    for seed in SEEDS:
        problem = make(seed)
        found = recognised(told(problem))
        assert found is not None, seed
        assert list(found[1].solve().summary.values()) == list(problem.solve().summary.values()), seed


def test_questions_in_other_words():
    asked = recognised("Why does attention scale its scores by 1/sqrt(d_k)? What happens without it?")
    assert asked is not None
    assert "d_k" in asked[1].symbols
    asked = recognised("Derive the Jacobian of p = softmax(z) for n logits and its Frobenius norm.")
    assert asked is not None
    assert asked[1].parts[0].answer.text == r"\operatorname{diag}(p) - p p^T"


@pytest.mark.parametrize(
    "text",
    [
        "",
        r"Suppose $q, k \sim N(\mu, \sigma^2 I)$. Define $E[q^T k]$ and $Var(q^T k)$. What should $s$ be?",
        "Rewrite kernel attention with a feature map instead of softmax.",
        "softmax " * 9_000,
    ],
)
def test_other_questions_are_left_alone(text):
    assert recognised(text) is None


def test_fractions():
    assert [fraction(Fraction(*pair)) for pair in ((1, 2), (-3, 4), (4, 2))] == [r"\frac{1}{2}", r"-\frac{3}{4}", "2"]
