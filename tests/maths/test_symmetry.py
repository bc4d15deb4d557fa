"""Declared covariances are symmetric."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.comparison.bounds import holds
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.symmetry import (
    NONE,
    chain,
    declared_symmetric,
    scaled_names,
    symmetric,
    symmetric_in,
    symmetric_names,
    transposed,
)
from qkv.maths.tree import Call, Multiply, Number, Special, Transpose
from qkv.maths.types import declare

LAWS = ("N(mu, Sigma)", "(mu, Sigma)", "N(mu, s^2 Sigma)", "N(mu, Sigma/2)")
SYMBOLS = {
    "mu": "vector[d]",
    "Sigma": "matrix[d,d]",
    "B": "matrix[d,d]",
    "u": "vector[d]",
    "v": "vector[d]",
    "s": "positive",
}
TURNED = [
    (r"\Sigma", r"\Sigma^T"),
    (r"u^T\Sigma v", r"v^T\Sigma u"),
    (r"(\Sigma u)_i", r"\sum_j \Sigma_{ji} u_j"),
    (r"\operatorname{tr}(B\Sigma)", r"\operatorname{tr}(B^T\Sigma)"),
    (r"\max(u^T\Sigma v, \|u\|)", r"\max(\|u\|, v^T\Sigma u)"),
]


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("gold", "answer"), TURNED)
def test_a_covariance_may_be_turned_over(gold, answer, law):
    symbols = {**SYMBOLS, "q": f"random vector[d] ~ {law}"}
    assert compare(gold, answer, symbols).evidence == "proved"
    assert not compare(gold, answer, SYMBOLS)
    assert not compare(gold.replace(r"\Sigma", "C"), answer.replace(r"\Sigma", "C"), {**symbols, "C": "matrix[d,d]"})


def test_points_are_symmetric_too():
    symbols = {**SYMBOLS, "q": "random vector[d] ~ N(mu, Sigma)"}
    wrong = compare(r"u^T\Sigma v", r"2 v^T\Sigma u", symbols).counterexample
    assert wrong is not None
    assert wrong.point["Sigma"] == tuple(zip(*wrong.point["Sigma"], strict=True))
    assert holds(r"u^T\Sigma u", ">=", "0", symbols)
    assert not holds(r"u^T\Sigma u", ">=", "0", SYMBOLS)
    assert compare(r"|u^T\Sigma^3 u|", r"u^T\Sigma^3 u", symbols).kind == "equal"


def test_a_factor_of_a_covariance_is_any_matrix():
    symbols = {**SYMBOLS, "q": "random vector[d] ~ N(mu, B B^T)"}
    assert compare("Var(u^T q)", "u^T B B^T u", symbols)
    assert compare("Var(u^T q)", "u^T B B u", symbols).kind == "different"
    assert compare("u^T B^T v", "v^T B^T u", symbols).kind != "equal"
    between = {**symbols, "q": r"random vector[d] ~ (mu, B \Sigma B^T + I)"}
    assert compare("Var(u^T q)", r"u^T B\Sigma B^T u + u^T u", between)
    assert compare("Var(u^T q)", r"u^T B\Sigma B^T u + s u^T u", between).kind == "different"


NAMES = {
    "S": "matrix[d,d]", "A": "matrix[d,d]", "B": "matrix[d,d]", "D": "matrix[d,e]", "R": "matrix[e,e]", "s": "positive",
    "u": "vector[d]", "v": "vector[d]", "C": "matrix[d,d] = 2 S", "x": "scalar",
}  # fmt: skip


@pytest.mark.parametrize(
    ("covariance", "known", "names"),
    [
        ("S", "", {"S"}),
        ("2 S", "", {"S"}),
        ("S/s", "", {"S"}),
        ("s S", "", {"S"}),
        ("C", "", {"S", "C"}),
        ("S^T", "", {"S"}),
        ("S^{-1}", "", {"S"}),
        ("S^2", "", None),
        ("S^2", "S", {"S"}),
        ("S + I", "", {"S"}),
        ("A + B", "", None),
        ("A + B", "A", {"A", "B"}),
        ("A + B", "AB", {"A", "B"}),
        ("A A^T", "", set()),
        ("A^T A", "", set()),
        ("A B", "", None),
        ("A S A^T", "", {"S"}),
        ("D R D^T", "", {"R"}),
        ("A S A", "", None),
        ("A S A", "A", {"S"}),
        ("A B A", "AB", {"B"}),
        ("A A", "A", set()),
        ("(A B)(A B)^T", "", set()),
        ("(A B) S (A B)^T", "", {"S"}),
        ("u u^T", "", set()),
        ("u v^T", "", None),
        ("[[1, 2], [2, 1]]", "", set()),
        ("[[1, 2], [3, 1]]", "", None),
        ("[[1, s, 2], [s, 1, 0], [2, 0, 1]]", "", set()),
        ("s^2 I_d", "", set()),
        (r"\operatorname{diag}(u)", "", set()),
        ("softmax(S)", "", None),
        ("A A^T + S", "", {"S"}),
        ("A B + S", "", None),
        ("s", "", set()),
        ("2 s", "", set()),
        ("3", "", set()),
        (r"\exp(s)", "", set()),
    ],
)
def test_what_follows_from_the_form_of_a_covariance(covariance, known, names):
    assert symmetric_names(parse(covariance, NAMES), frozenset(known)) == names


@pytest.mark.parametrize(
    ("covariance", "names"),
    [
        ("S", {"S"}),
        ("3 S", {"S"}),
        ("S/s", {"S"}),
        ("s x S/2", {"S"}),
        ("C", {"C", "S"}),
        ("A + B", set()),
        ("A B", set()),
        ("s", set()),
        ("S^T", set()),
    ],
)
def test_the_matrix_that_a_covariance_is_a_multiple_of(covariance, names):
    assert scaled_names(parse(covariance, NAMES)) == names


def test_a_scalar_that_is_a_product_has_a_variance():
    types = declare({"s": "positive", "t": "positive", "x": "random scalar ~ N(0, 2 s t)"}).types.values()
    assert symmetric_in(types) == NONE
    assert symmetric_names(Multiply((), (Number((), Fraction(2)), parse("s", NAMES)))) == set()
    assert symmetric_names(Special(("d", "d"), "identity")) == set()
    assert symmetric_names(Call(("d", "d"), "diag", (parse("u", NAMES),))) == set()


def test_what_is_declared_holds_inside():
    types = declare({**NAMES, "q": "random vector[d] ~ N(u, S)"}).types.values()
    assert symmetric([]) == NONE
    with declared_symmetric(types):
        assert symmetric([]).known == {"S"}
        with declared_symmetric([]):
            assert symmetric([]) == NONE
        assert symmetric([]).known == {"S"}
        other = declare({**NAMES, "k": "random vector[d] ~ N(u, A)"}).types.values()
        assert symmetric(other).known == {"S", "A"}
    assert symmetric([]) == NONE


def test_laws_that_lean_on_each_other():
    laws = {"q": "random vector[d] ~ N(u, A)", "k": "random vector[d] ~ N(u, A + B)"}
    assert symmetric_in(declare({**NAMES, **laws}).types.values()).known == {"A", "B"}


def test_factors_of_a_product_in_order():
    a, b = parse("A", NAMES), parse("B", NAMES)
    assert chain(parse("A B A", NAMES)) == [a, b, a]
    assert chain(parse("(A B)^T", NAMES)) == [transposed(b), transposed(a)]
    assert chain(parse("(A B^T)^T A", NAMES)) == [b, transposed(a), a]
    assert chain(a) == [a]
    assert transposed(transposed(a)) == a
    assert transposed(parse("D", NAMES)) == Transpose(("e", "d"), parse("D", NAMES))
