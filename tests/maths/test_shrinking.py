"""Sizes that are too large to try are tried at small ones, where they are sizes and nothing else."""

from __future__ import annotations

import pytest

from qkv.maths.comparison.bounds import holds
from qkv.maths.comparison.trial import counted_indices, is_polynomial, shrink, sizes_are_hidden, sizes_of, with_sizes
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Index, Sum, walk

LARGE = {
    "x": "vector[768]",
    "y": "vector[768]",
    "A": "matrix[768,768]",
    "B": "matrix[768,3072]",
    "z": "vector[4096]",
    "f": "map vector[4096] -> vector[768]",
    "r": "random vector[4096] ~ N(z, s^2 I)",
    "s": "positive",
}


def sizes(gold: str, answer: str, step: int = 0):
    found = shrink(parse(gold, LARGE), parse(answer, LARGE), step)
    return None if found is None else dict(found.sizes)


def test_large_sizes_become_small_ones_in_order_and_as_even_as_they_were():
    assert sizes("x^T A y", "1") == {768: 4}
    assert sizes("x^T B B^T y + z^T z", "1") == {768: 4, 3072: 6, 4096: 8}
    assert sizes("x^T A y", "1", step=1) == {768: 6}
    odd = shrink(parse("v^T v", {"v": "vector[769]"}), parse("1", {}))
    assert odd is not None
    assert dict(odd.sizes) == {769: 3}


def test_what_is_a_number_too_stays():
    assert sizes(r"\|x\|^2/768", "z^T z") == {4096: 4}
    assert sizes(r"\|x\|^2/768", "1") is None
    assert sizes("x_{10} + x_3", "1") == {768: 12}
    assert sizes("x_{700}", "1") is None
    short = {"v": "vector[7]", "w": "vector[11]"}
    found = shrink(parse("v^T v + w^T w", short), parse("1", {}))
    assert found is not None
    assert dict(found.sizes) == {11: 9}


@pytest.mark.parametrize(
    ("gold", "answer", "kind", "evidence"),
    [
        ("x^T A y", "y^T A^T x", "equal", "proved"),
        ("x^T A y", "x^T A^T y", "conditional", "refuted"),
        ("A B", "2 A B", "different", "refuted"),
        ("softmax(A x)", "softmax(x)", "different", "refuted"),
        (r"\max(softmax(A x))", r"1/\sum_j e^{(A x)_j - \max(A x)}", "equal", "tested"),
        (r"\max(z)", r"\min(z)", "conditional", "refuted"),
        ("f(z)", "f(2z)", "different", "refuted"),
        (r"\operatorname{Var}(r^T z)", "s^2 z^T z", "equal", "proved"),
        (r"\operatorname{Var}(r^T z)", "s z^T z", "different", "refuted"),
        (r"\operatorname{tr}(I_{768})", "768", "equal", "proved"),
    ],
)
def test_verdicts_on_large_sizes(gold, answer, kind, evidence):
    verdict = compare(gold, answer, LARGE)
    assert (verdict.kind, verdict.evidence) == (kind, evidence)


def test_the_sizes_that_were_tried_are_named():
    wrong = compare("A B", "2 A B", LARGE)
    assert "with 4 in place of 768 and 6 in place of 3072" in wrong.reason
    assert wrong.counterexample is not None
    assert len(wrong.counterexample.point["B"][0]) == 6
    right = compare(r"\max(softmax(A x))", r"1/\sum_j e^{(A x)_j - \max(A x)}", LARGE)
    assert "with 4 in place of 768" in right.reason
    assert "in place of 4096" in holds(r"\|z\|", "<=", r"\|z\|_1", LARGE).reason


def test_a_long_vector_is_not_written_out():
    verdict = compare(r"\|x\|_1/768", r"\max(x)", LARGE)
    assert verdict.kind == "different"
    assert "x = (1, 2, 3, …, 768)" in verdict.reason


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        (r"\sum_{i=1}^{10} i", "55", "equal"),
        (r"\sum_{i=1}^{10} i", "10", "different"),
        (r"\max(\sum_{i=1}^{100} i, 50)", "50", "different"),
        (r"\max(\sum_{i=1}^{100} i, 50)", "5050", "equal"),
        (r"\max(\sum_{i=1}^{20} 2, 10)", "40", "equal"),
        (r"\sum_j e^{0 x_j} + \max(x)", r"2 \cdot 384 + \max(x)", "equal"),
    ],
)
def test_a_size_that_may_come_out_as_a_number_is_not_made_small(gold, answer, kind):
    assert compare(gold, answer, LARGE).kind == kind


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (r"\sum_{i=1}^{20} i", ["i"]),
        (r"\sum_{i=1}^{20} 1", ["i"]),
        (r"\sum_i x_i", []),
        (r"\sum_i i x_i", ["i"]),
        (r"\sum_{i,j} x_i y_j", []),
        (r"\sum_{i,j} i x_i y_j", ["i"]),
        (r"\sum_{i<j} x_i y_j", ["i", "j"]),
        (r"\sum_i \delta_{ij} x_i y_j", []),
    ],
)
def test_which_indices_of_a_sum_are_numbers(text, names):
    node = next(n for n in walk(parse(text, LARGE)) if isinstance(n, Sum))
    assert [index.name for index in counted_indices(node)] == names


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("x^T A y", True),
        ("3 x^T A y", True),
        (r"\|x\|^2 + 7", True),
        (r"\operatorname{tr}(A) + 5", True),
        (r"\operatorname{sum}(x) + 5", True),
        (r"\sum_i x_i y_i + 5", True),
        (r"\sum_i x_i i + 5", False),
        (r"\prod_i x_i + 5", False),
        (r"\exp(x_1) + 5", False),
        (r"\exp(x_1) + 2", True),
        (r"\exp(x_1) + 1/2", True),
        (r"\exp(x_1) - 1", True),
        (r"\exp(x_{12})", True),
        (r"\mathbf{1}^T x + 5", False),
        ("s^{-1} + 5", False),
        ("s^3 + 5", True),
    ],
)
def test_numbers_that_may_come_out_of_a_size(text, fine):
    assert sizes_are_hidden(parse(text, LARGE)) is fine


def test_kinds_of_nodes_that_make_polynomials():
    kinds = {r"\|x\|": True, r"\max(x)": False, r"\|x\|_1": False, r"\mathbf{0}_3": True, r"\mathbf{1}_3": False,
             "s^2": True, "s^{-1}": False, "s^s": False, "x": True, "x/s": True}  # fmt: skip
    assert {text: is_polynomial(parse(text, LARGE)) for text in kinds} == kinds


def test_sizes_are_changed_everywhere():
    def left(text):
        return {size for n in walk(with_sizes(parse(text, LARGE), {768: 4, 4096: 6})) for size in sizes_of(n)}

    assert left("x^T A y") <= {1, 4}
    assert left("A B") == {4, 3072}
    assert left("f(z)") == {4, 6}
    assert left("E[r]") == {6}
    assert left(r"\sum_i x_i") == {4}
    assert left(r"\sum_{i,j} x_i y_j") == {4}
    changed = with_sizes(parse(r"\sum_i x_i", LARGE), {768: 4})
    assert {n.size for n in walk(changed) if isinstance(n, Index)} | {i.size for i in changed.indices} == {4}
    defined = {**LARGE, "w": "vector[768] = 2 x"}
    assert {size for n in walk(with_sizes(parse("w", defined), {768: 4})) for size in sizes_of(n)} == {4}


def test_where_nothing_is_made_small():
    assert sizes("s", "s") is None
    short = {"v": "vector[8]", "w": "vector[9]"}
    assert shrink(parse("v", short), parse("v", short)) is None
    nine = shrink(parse("w", short), parse("w", short))
    assert nine is not None
    assert dict(nine.sizes) == {9: 3}
    assert str(nine) == "3 in place of 9"
    assert sizes("x_{16}", "x_1") is None
    assert sizes("x_{15}", "x_1") == {768: 16}
    written_out = {"v": "vector[12]"}
    assert shrink(parse("v^T (1,2,3,4,5,6,7,8,9,10,11,12)", written_out), parse("1", {})) is None
