"""Mean, variance and divisor of a score: the documents' questions, variants against sampling-free oracles, reading."""

from fractions import Fraction

import numpy as np
import pytest

from qkv.maths import compare, parse
from qkv.maths.moments import moments
from qkv.maths.values.evaluate import evaluate
from qkv.problems.scaling.family import NAME, PROBLEMS, SCALAR, make, recognised
from tests.helpers.problem_checks import assert_proved, assert_sound, assert_varied, told

SEEDS = range(4, 7)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_documents_answers(name):
    summary = make(name, None).solve().summary
    width = "d" if name == NAME else "D_k"
    assert summary == {"a": r"\mu^T \mu" if name == NAME else r"D_k \mu^2", "b": width, "c": rf"\sqrt{{{width}}}"}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_variants_are_sound(name):
    for seed in (None, *SEEDS):
        assert_sound(make(name, seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_steps_are_proved(name):
    for seed in (None, *SEEDS):
        assert_proved(make(name, seed))


@pytest.mark.parametrize("name", PROBLEMS)
def test_neighbours_differ_and_nothing_repeats(name):
    assert_varied(make(name, seed) for seed in range(23))


def test_general_moments_are_those_of_the_maths_module():
    checked = 0
    for name in PROBLEMS:
        for seed in range(9):
            problem = make(name, seed)
            law = problem.symbols
            if problem.structure[0] in ("copies", "heads") or problem.structure[1][0] != "mean":
                continue
            q, k = (each for each, kind in law.items() if kind.startswith("random"))
            shown = told(problem)
            factor = next((n for n in (2, 3, 5) if f"${n} {q}^T {k}$" in shown), 1)
            found = moments(f"{factor} {q}^T {k}", law)
            assert compare(found.mean, problem.part("a").answer.text, law), (name, seed)
            if problem.structure[1][1] == "variance":
                assert compare(found.variance, problem.part("b").answer.text, law), (name, seed)
            checked += 1
    assert checked > 7


def test_numbers_agree_with_float64():
    found = 0
    for name, seeds in ((NAME, range(6, 60, 11)), (SCALAR, range(6, 60, 8))):
        for seed in seeds:
            problem = make(name, seed)
            if problem.structure[0] != "numbers" or problem.structure[1] != ("mean", "variance", "divisor"):
                continue
            law = {key: text.partition(" = ")[2] for key, text in problem.symbols.items() if " = " in text}
            width, mean, sigma = (np.array(eval_numbers(text)) for text in law.values())
            means = np.broadcast_to(mean, (int(width),)).astype(float)
            assert float(evaluate(parse(problem.part("a").answer.text, {}), {}, {})) == means @ means
            variance = width * sigma**4 + 2 * sigma**2 * (means @ means)
            assert float(Fraction(problem.part("b").answer.text)) == variance
            assert float(evaluate(parse(problem.part("c").answer.text, {}), {}, {})) == pytest.approx(
                np.sqrt(width) * sigma**2
            )
            found += 1
    assert found >= 2


def eval_numbers(text):
    numbers = [float(piece) for piece in text.strip("()").split(",")]
    return numbers if len(numbers) > 1 else numbers[0]


@pytest.mark.parametrize(
    ("part", "answer", "kind", "mistake"),
    [
        ("a", r"E[q^T k] = \sum_{i=1}^d \mu_i^2 = \|\mu\|_2^2", "right", None),
        ("a", r"d \mu^2", "conditional", "mean read as a scalar"),
        ("a", r"E[q]^T E[k]", "incomplete", None),
        ("a", r"\mu^T\mu + d\sigma^2", "wrong", "query and key taken for one vector"),
        ("b", r"\sqrt{d}", "wrong", "standard deviation for variance"),
        ("b", "d \\sigma^4", "right", None),
        ("c", "s = sqrt(d)", "right", None),
        ("c", r"s = \sqrt{d} \quad (\text{we take the positive root by convention})", "right", None),
        ("c", r"s = \pm\sqrt{d}", "right", None),
        ("c", r"s = \pm\sqrt{d}, and the positive one is meant", "right", None),
        ("c", r"s = -\sqrt{d}", "wrong", None),
        ("c", "s = d", "wrong", "divided by the variance"),
        ("c", "s^2 = d", "incomplete", None),
        ("c", "1", "wrong", "no scaling"),
        ("c", r"\sqrt{d_{model}}", "wrong", "model width for head width"),
        ("c", r"\frac{1}{\sqrt{d}}", "wrong", "factor for divisor"),
        ("c", "the answer to everything", "unread", None),
    ],
)
def test_answers(part, answer, kind, mistake):
    outcome = make(NAME, None).check(part, answer)
    assert outcome.kind == kind, outcome
    assert (mistake in outcome.misconceptions) if mistake else not outcome.misconceptions


def test_a_scalar_mean_read_as_a_vector():
    outcome = make(SCALAR, None).check("a", r"\mu^T \mu")
    assert outcome.kind == "wrong"
    assert outcome.misconceptions == ("mean read as a vector",)


@pytest.mark.parametrize("name", PROBLEMS)
def test_own_questions_are_read_back(name):
    for seed in (None, *SEEDS):
        problem = make(name, seed)
        confidence, found = recognised(told(problem))
        assert 0 < confidence <= 1
        assert found.name == name
        assert found.solve().summary == problem.solve().summary, seed


@pytest.mark.parametrize(
    ("text", "name", "answers"),
    [
        (
            (
                "Let q and k be d-dimensional vectors with independent entries of mean 0 and variance 1. (a) What is "
                "E[q·k]? (b) What is Var(q·k)? (c) By which s should the dot product be divided to have variance = 1?"
            ),
            NAME,
            ["0", "d", r"\sqrt{d}"],
        ),
        (
            (
                r"Suppose $\mathbf{u},\mathbf{v}\in\mathbb{R}^{d_h}$ are i.i.d. from "
                r"$\mathcal N(\nu\mathbf 1,\tau^2\mathbf I)$. (i) Compute $\mathbb E[\mathbf u^\top \mathbf v]$. "
                r"(ii) With $\nu=0,\tau=1$ compute "
                r"$\operatorname{Var}(\mathbf u^\top\mathbf v)$. (iii) What should $s$ be so that the quotient "
                r"$\mathbf u^\top\mathbf v/s$ has variance 4?"
            ),
            SCALAR,
            [r"d_h \nu^2", "d_h", r"\frac{1}{2} \sqrt{d_h}"],
        ),
        (
            "Queries x ~ N(m, ρ^2 I), keys y ~ N(c, ρ^2 I), x, y in R^n, independent. Find E[x^T y], then Var(x^T y).",
            NAME,
            ["m^T c", r"n \rho^4 + \rho^2 m^T m + \rho^2 c^T c"],
        ),
    ],
)  # fmt: skip
def test_questions_in_other_words(text, name, answers):
    found = recognised(text)
    assert found is not None
    assert found[1].name == name
    assert [part.answer.text for part in found[1].parts] == answers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "What is the variance of a normal variable?",
        "Why do we divide by sqrt(d_head), and what would be the consequence of not doing so?",
        "Perform argmax attention with the query q = [1, 1, 2]: which value is returned?",
        "q " * 30_000,
    ],
)
def test_other_questions_are_left_alone(text):
    assert recognised(text) is None
