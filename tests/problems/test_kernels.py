"""Attention with kernels: the document's answers, costs against `qkv.cost`, features by brute force, reading."""

from itertools import combinations_with_replacement

import pytest

from qkv.cost import count
from qkv.maths import compare, parse
from qkv.maths.values.evaluate import evaluate
from qkv.problems.kernels.answers import rate_in
from qkv.problems.kernels.costs import linear_part, softmax_part
from qkv.problems.kernels.family import make, recognised
from qkv.problems.kernels.features import FeatureMap, profile
from qkv.problems.kernels.parts import map_part, squared_kernel_assumed
from qkv.problems.kernels.setting import Setting
from qkv.similarity import Polynomial
from tests.helpers.problem_checks import assert_proved, assert_sound, assert_varied, told

SEEDS = range(3)


@pytest.fixture(scope="module")
def document():
    return make(None)


def test_the_documents_parts(document):
    assert [part.name for part in document.parts] == ["a", "b(i)", "b(ii)", "b(iii)", "c", "d"]
    assert document.part("b.i").answer.text == "(q^T k + 1)^2"
    assert document.part("d").answer.text == "time: O(N D^3); space: O(N D^2 + D^3)"


@pytest.mark.slow
def test_variants_are_sound(document):
    for problem in (document, *map(make, SEEDS)):
        assert_sound(problem)


@pytest.mark.slow
def test_steps_are_proved(document):
    for problem in (document, *map(make, range(4))):
        assert_proved(problem)


def test_neighbours_differ_and_nothing_repeats():
    assert_varied(map(make, range(200)))


@pytest.mark.parametrize(("backend", "degree"), [("reference", 2), ("linear", 2), ("linear", 3)])
def test_costs_are_those_of_the_cost_model(backend, degree):
    setting = Setting(degree=degree, tied=False)
    problem = make(None) if backend == "reference" else None
    part = softmax_part(setting, "c") if backend == "reference" else linear_part(setting, "d")
    similarity = Polynomial(degree, 1.0) if backend == "linear" else None
    time = count("N D", "N D", "N M", backend=backend, similarity=similarity).theta("flops")
    assert part.answer.items["time"].check(repr(time)), time
    if problem is not None:
        assert problem.part("c").answer.text == part.answer.text
        assert part.answer.items["space"].check(repr(count("N D", "N D", "N M", backend=backend).theta("space")))


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("constant", [0, 1])
def test_monomials_are_counted_by_brute_force(degree, constant):
    setting = Setting(degree=degree, constant=constant)
    for width in (1, 2, 3, 5):
        lowest = 0 if constant else degree
        brute = sum(len(list(combinations_with_replacement(range(width), n))) for n in range(lowest, degree + 1))
        assert evaluate(parse(setting.features, {"D": f"natural = {width}"}), {}, {}) == brute


def test_the_feature_map_is_the_kernel():
    for constant in (0, 1):
        listed = ["x_1^2", "x_2^2", r"\sqrt{2} x_1 x_2", *([r"\sqrt{2} x_1", r"\sqrt{2} x_2", "1"] if constant else [])]
        assert FeatureMap(constant, "").check(f"[{', '.join(listed)}]").condition == "D = 2"
        product = " + ".join(f"({one}) ({one.replace('x', 'y')})" for one in listed)
        names = dict.fromkeys(("x_1", "x_2", "y_1", "y_2"), "scalar")
        assert compare(f"(x_1 y_1 + x_2 y_2 + {constant})^2", product, names)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("[q1^2, …, qD^2, √2 q1 q2, …, √2 q_{D-1} q_D, √2 q1, …, √2 qD, 1]", True),
        (r"\left[\operatorname{vec}(q q^\top), \sqrt{2}\, q, 1\right]", True),
        ("[q_i^2, sqrt(2) q_i q_j (i<j), sqrt(2) q_i, 1]", True),
        ("[x_1^2, x_1x_2, x_2x_1, …, x_D^2, √2 x_1, …, √2 x_D, 1]", True),
        ("[q_1^2, ..., q_D^2, q_1 q_2, ..., 1]", False),
        ("q ⊗ q", False),
        ("[q, 1]", False),
        ("[q_1^2, sqrt(2) q_1 q_2, sqrt(2) q_1, sqrt(2) q_2, 1]", False),
    ],
)
def test_feature_maps_in_many_forms(document, answer, right):
    assert bool(document.check("b(ii)", answer)) is right


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (r"$\phi(x) = [x_i x_j]_{i,j=1}^D$ concatenated with $\sqrt2 x$ and $1$", "right"),
        (r"$\phi(x) = \mathrm{vec}(\bar{x}\bar{x}^\top)$ with $\bar{x} = [x; 1]$", "right"),
        ("phi(x) = z ⊗ z where z = (x, 1)", "right"),
        (r"$1$, $\sqrt{2}x_i$ for each i, $x_i^2$ for each i, and $\sqrt{2}x_ix_j$ for all $i<j$.", "right"),
        (r"$\phi(x) = (1, \sqrt{2} x^\top, \text{vec}(x x^\top)^\top)^\top$", "right"),
        (r"$1$, $x_i$, $x_i^2$, and $x_ix_j$ for all $i<j$.", "wrong"),
        (r"$\phi(x) = \mathrm{vec}(\bar{x}\bar{x}^\top)$ with $\bar{x} = [x; 2]$", "wrong"),
        ("φ(x) collects 2 x_i x_j for every i, j, √2·x_i for every i and a constant 1.", "wrong"),
        ("The feature map has D features", "wrong"),
        ("There are $D^2+D+1$ features", "incomplete"),
        ("the kernel trick", "unread"),
    ],
)
def test_feature_maps_in_words(document, answer, kind):
    assert document.check("b(ii)", answer).kind == kind


def test_a_text_that_names_no_constant_takes_both_kernels():
    asked = (
        "Attention with kernels: the output is a mean of the values weighted by sim.\n(a) What is sim(q, k) for the "
        "quadratic kernel?\n(b) Give its feature map."
    )
    found = recognised(asked)
    assert found is not None
    for answer in ("(q^T k)^2", "(q^T k + 1)^2"):
        assert found[1].check("a", answer), answer
    for answer in ("vec(x x^T)", r"[vec(x x^T), \sqrt{2} x, 1]"):
        assert found[1].check("b", answer), answer
    assert not found[1].check("a", "(q^T k)^3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "answer", "kind", "mistake"),
    [
        ("a", "sim(q,k) > 0 for all q, k", "right", None),
        ("a", r"$\sum_j sim(q_i, k_j) \neq 0$", "incomplete", None),
        ("a", "nonnegative, and for every query at least one is positive", "right", None),
        ("a", r"$sim(q,k) \ge 0$", "incomplete", None),
        ("a", "It suffices that the kernel is nonnegative", "wrong", "nonnegative is enough"),
        ("a", "sim should be symmetric", "wrong", None),
        ("a", "The sum must be positive, since we use a squared kernel.", "right", "squared kernel assumed"),
        ("b(i)", "(1 + q·k)^2", "right", None),
        ("b(i)", "(q^T k)^2", "wrong", "constant left out of the kernel"),
        ("b(i)", "Without a constant, $(q^T k)^2$", "conditional", "constant left out of the kernel"),
        ("b(iii)", r"\frac{\sum_j \phi(q_i)^T \phi(k_j) v_j}{\sum_j \phi(q_i)^T \phi(k_j)}", "right", None),
        (
            "b(iii)",
            (
                r"V'_i = \frac{\phi(Q_{i\cdot}) \sum_{j=1}^N \phi(K_{j\cdot})^T V_{j\cdot}}"
                r"{\phi(Q_{i\cdot}) \sum_{j=1}^N \phi(K_{j\cdot})^T}"
            ),
            "right",
            None,
        ),
        ("b(iii)", r"\sum_j \phi(Q_i)^T \phi(K_j) V_j", "wrong", "normalisation left out"),
        ("c", "Time O(N^2 (D+M)), space O(N^2 + ND + NM)", "right", None),
        ("c", "O(N^2 max(D,M)) time and O(N^2 + N max(D,M)) memory", "right", None),
        ("c", "time: O(N^2 D), space: O(N^2 + ND), assuming M ≈ D", "right", None),
        ("c", "time: O(N^2 D); space: O(N^2 + ND)", "conditional", None),
        ("c", "Time: $O(N^2 D)$\nSpace: $O(N^2)$", "wrong", "queries, keys and values not counted in space"),
        ("d", "time O(ND^3), space O(ND^2 + D^3)", "right", None),
        ("d", "time O(ND^3); space O(D^3 + ND)", "conditional", None),
        ("d", "Time: O(N D^2), space: O(ND + D^2)", "wrong", "d features instead of d squared"),
        ("d", "fast", "unread", None),
    ],
)
def test_answers(document, part, answer, kind, mistake):
    outcome = document.check(part, answer)
    assert outcome.kind == kind, outcome
    assert (mistake in outcome.misconceptions) if mistake else not outcome.misconceptions


def test_a_square_may_be_spoken_of_without_being_assumed():
    assert not squared_kernel_assumed("The sum must not be 0. A square, for example, may be.")


def test_costs_of_two_kinds_in_one_text(document):
    softmax = "Standard softmax attention:\n- Time: O(N^2 D + N^2 M)\n- Space: O(N^2 + ND + NM)"
    both = f"{softmax}\n\nLinearized attention:\n- Time: O(N D^3)\n- Space: O(N D^2 + D^3)"
    assert document.check("c", both)
    assert document.check("d", both)


def test_rates_and_profiles_of_nonsense():
    assert rate_in(r"$\mathcal{O}(N") == "O(N)"
    assert profile("words") is None
    assert map_part(Setting(), "b").check("∑∑∑ ]]] , … ,").kind == "unread"


def test_own_questions_are_read_back():
    for seed in (3, 7, 11):
        problem = make(seed)
        found = recognised(told(problem))
        assert found is not None
        assert found[1].solve().summary == problem.solve().summary, seed


def test_questions_in_other_words():
    text = (
        "In kernel attention the similarity of query and key is sim(q,k). (a) When is the output finite? (b) Give the "
        "feature map of the kernel (q^T k)^2. (c) How does the time complexity of softmax attention grow with L, d and "
        "m? (d) and of the linearized kernel attention?"
    )
    found = recognised(text)
    assert found is not None
    summary = found[1].solve().summary
    assert summary["c"] == "time: O(L^2 d + L^2 m)"
    assert summary["d"] == "time: O(L d^2 m)"
    assert r"\sqrt{2} q_1" in summary["b"]
    assert not summary["b"].endswith("1]")


@pytest.mark.parametrize("text", ["", "A convolution with kernel size 3 and attention", "attention " * 9_000])
def test_other_questions_are_left_alone(text):
    assert recognised(text) is None
