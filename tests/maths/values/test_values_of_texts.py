"""What texts come to at one point, worked out by hand or by numpy."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from qkv.maths.parsing.parse import parse
from qkv.maths.values.arithmetic import Undefined, Unevaluable
from qkv.maths.values.evaluate import evaluate, evaluate_with_error

SYMBOLS = {
    "x": "scalar",
    "y": "positive",
    "n": "natural",
    "u": "vector[3]",
    "v": "vector[3]",
    "w": "vector[n]",
    "A": "matrix[3,3]",
    "B": "matrix[2,3]",
    "c": "scalar = x + 1",
    "i": "index[3]",
    "f": "map vector[3] -> scalar",
    "g": "map vector[3], scalar -> vector[3]",
    "m": "vector[2]",
    "S": "matrix[2,2]",
    "q": "random vector[2] ~ N(m, S)",
    "p": "random vector[2] ~ (m, S)",
}
VALUES = {
    "x": 5,
    "y": Fraction(1, 4),
    "u": (1, 2, 4),
    "v": (3, -1, 2),
    "w": (7, 8),
    "A": ((2, 1, 0), (1, 3, 1), (0, 1, 1)),
    "B": ((1, 2, 3), (4, 5, 6)),
    "i": 2,
    "f": lambda vector: vector[0] * vector[1] + vector[2],
    "g": lambda vector, number: tuple(number * entry for entry in vector),
    "m": (1, -2),
    "S": ((2, 1), (1, 3)),
}
SIZES = {"n": 2}
U, V, A, B = (np.array(VALUES[name]) for name in ("u", "v", "A", "B"))
INVERSE = np.linalg.inv(A)


def value(text: str):
    return evaluate(parse(text, SYMBOLS), SIZES, VALUES)


EXACT = [
    ("x + y", Fraction(21, 4)),
    ("c", 6),
    ("n", 2),
    ("i", 2),
    ("u_i", 2),
    ("u_n", 2),
    ("A_{i,3}", 1),
    ("A_i", (1, 3, 1)),
    ("A_{i:}", ((1, 3, 1),)),
    ("A_{:i}", (1, 3, 1)),
    ("B_{:3}", (3, 6)),
    ("B_2", (4, 5, 6)),
    ("B_{2:}", ((4, 5, 6),)),
    ("u + v", (4, 1, 6)),
    ("2 u", (2, 4, 8)),
    ("u/2", (Fraction(1, 2), 1, 2)),
    ("u^T v", 9),
    ("u v^T", ((3, -1, 2), (6, -2, 4), (12, -4, 8))),
    (r"u \odot v", (3, -2, 8)),
    ("B u", (17, 38)),
    ("u^T A", ((4, 11, 6),)),
    ("u^T A v", 12 - 11 + 12),
    ("u^T", ((1, 2, 4),)),
    ("B^T", ((1, 4), (2, 5), (3, 6))),
    ("A^2", tuple(map(tuple, (A @ A).tolist()))),
    ("A^0", ((1, 0, 0), (0, 1, 0), (0, 0, 1))),
    (r"\mathbf{1}_3", (1, 1, 1)),
    (r"\mathbf{0}_n", (0, 0)),
    (r"\mathbf{1}_{2 \times 3}", ((1, 1, 1), (1, 1, 1))),
    ("I_n", ((1, 0), (0, 1))),
    ("(x, y)", (5, Fraction(1, 4))),
    ("[[1, 2, 3], [4, 5, x]]", ((1, 2, 3), (4, 5, 5))),
    ("[[1, 2, 3]]", ((1, 2, 3),)),
    (r"\max(v)", 3),
    (r"\min(v)", -1),
    (r"\max(x, y, 7)", 7),
    (r"\min(x, y, 7)", Fraction(1, 4)),
    ("argmax(v)", 1),
    ("argmax(u)", 3),
    (r"\|v\|_1", 6),
    (r"\|v\|_\infty", 3),
    (r"\|v\|^2", 14),
    (r"\|v\|^4", 196),
    (r"\|B\|_F^2", 91),
    (r"\|(3, 4)\|", 5),
    (r"\|-2\|", 2),
    ("|x - 7|", 2),
    ("abs(v)", (3, 1, 2)),
    ("relu(v)", (3, 0, 2)),
    ("sign(v)", (1, -1, 1)),
    (r"\sqrt{y}", Fraction(1, 2)),
    (r"\operatorname{tr}(A)", 6),
    (r"\det(A)", 3),
    ("diag(A)", (2, 3, 1)),
    ("diag(v)", ((3, 0, 0), (0, -1, 0), (0, 0, 2))),
    ("sum(B)", 21),
    ("sum(x)", 5),
    (r"\sum_j u_j v_j", 9),
    (r"\sum_j w_j", 15),
    (r"\prod_j u_j", 8),
    (r"\sum_{j<l} u_j u_l", 2 + 4 + 8),
    (r"\sum_{j \ne l} u_j u_l", 28),
    (r"\sum_{j} u_j A_j", (2 * 1 + 1 * 2, 1 + 6 + 4, 2 + 4)),
    (r"\sum_{j<i} u_j", 1),
    (r"\sum_{j=2}^{1} x", 0),
    (r"\sum_j \delta_{ij} u_j", 2),
    (r"\delta_{i,2} + \delta_{i,1}", 1),
    ("f(u)", 6),
    ("g(u, x)", (5, 10, 20)),
    (r"\frac{\partial x^3}{\partial x}", 75),
    (r"\frac{\partial^2 x^3}{\partial x^2}", 30),
    (r"\frac{\partial c^2}{\partial x}", 12),
    (r"\frac{\partial (u^T A u)}{\partial u}", tuple(((A + A.T) @ U).tolist())),
    (r"\frac{\partial (u^T A u)}{\partial u_2}", ((A + A.T) @ U).tolist()[1]),
    (r"\frac{\partial (A u)}{\partial u}", tuple(map(tuple, A.tolist()))),
    (r"\frac{\partial (B u)}{\partial u}", tuple(map(tuple, B.tolist()))),
    (r"\frac{\partial (u^T A v)}{\partial A}", tuple(map(tuple, np.outer(U, V).tolist()))),
    (r"\frac{\partial (u^T A v)}{\partial A_{12}}", -1),
    (r"\frac{\partial (u^T A v)}{\partial A_2}", (6, -2, 4)),
    (r"\frac{\partial (x u)}{\partial x}", (1, 2, 4)),
    (r"\frac{\partial (x y)}{\partial y}", 5),
    (r"\frac{\partial v}{\partial u}", ((0, 0, 0),) * 3),
    (r"\frac{\partial^2 (u^T A u)}{\partial u \partial u^T}", tuple(map(tuple, (A + A.T).tolist()))),
    ("E[q]", (1, -2)),
    ("E[q^T q]", 5 + 5),
    ("E[q_1 q_2]", -2 + 1),
    ("E[q q^T]", ((3, -1), (-1, 7))),
    ("Var(q)", ((2, 1), (1, 3))),
    ("Var(q_1)", 2),
    ("Cov(q_1, q_2)", 1),
    ("Cov(q, p)", ((0, 0), (0, 0))),
    ("E[q^T p]", 5),
    ("E[x]", 5),
    ("E[q_1^4]", 1 + 6 * 2 + 3 * 4),
    ("E[p_1^2]", 3),
    (r"E[\|q\|^4]", None),
    (r"\frac{\partial E[q^T q]}{\partial m_1}", 2),
    (r"\frac{\partial E[q_1^2]}{\partial S_{11}}", 1),
]


@pytest.mark.parametrize(("text", "wanted"), EXACT)
def test_exact_values(text, wanted) -> None:
    if wanted is None:  # E‖q‖⁴ = (m·m + tr S)² + 2 tr S² + 4 m·S m
        m, s = np.array([1, -2]), np.array([[2, 1], [1, 3]])
        wanted = int((m @ m + np.trace(s)) ** 2 + 2 * np.trace(s @ s) + 4 * m @ s @ m)
    found = value(text)
    assert found == wanted

    def numbers(held) -> list:
        return [each for part in held for each in numbers(part)] if isinstance(held, tuple) else [held]

    assert all(isinstance(number, Fraction) for number in numbers(found))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"\exp(x)", math.exp(5)),
        (r"\log(x)", math.log(5)),
        (r"\sqrt{x}", math.sqrt(5)),
        (r"\pi", math.pi),
        ("e", math.e),
        (r"\|v\|", math.sqrt(14)),
        (r"\|B\|_F", math.sqrt(91)),
        ("x^y", 5**0.25),
        ("softmax(v)", np.exp(V) / np.exp(V).sum()),
        ("softmax(B)", np.exp(B) / np.exp(B).sum(axis=1, keepdims=True)),
        ("exp(v)", np.exp(V)),
        ("log(u)", np.log(U)),
        ("sqrt(u)", np.sqrt(U)),
        ("A^{-1}", INVERSE),
        ("A^{-2}", INVERSE @ INVERSE),
        (r"\frac{\partial e^{x^2/10}}{\partial x}", math.exp(2.5)),
        (r"\frac{\partial \log x}{\partial x}", 0.2),
        (r"\frac{\partial 2^x}{\partial x}", 32 * math.log(2)),
        (r"\frac{\partial \|u\|}{\partial u}", U / math.sqrt(21)),
    ],
)
def test_values_that_are_not_exact(text, wanted) -> None:
    found = np.array(value(text), dtype=object).astype(float)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize(
    ("text", "values", "kind", "said"),
    [
        ("u_i", {**VALUES, "i": 4}, Undefined, "i is out of range"),
        ("u_i", {**VALUES, "i": 0}, Undefined, "i is out of range"),
        ("u_n", {**VALUES, "u": (1, 2, 3), "n": 4}, Undefined, "a subscript that is out of range"),
        ("w_3", VALUES, Undefined, "a subscript that is out of range"),
        ("u_i", {"u": (1, 2, 3)}, Unevaluable, "the index i has no value"),
        ("x + 1", {}, Unevaluable, "x has no value"),
        ("f(u)", {"u": (1, 2, 3)}, Unevaluable, "f is a map of which nothing is known"),
        ("f(u)", {"u": (1, 2, 3), "f": 3}, Unevaluable, "f is a map of which nothing is known"),
        (r"\pm x", VALUES, Unevaluable, "PlusMinus has no single value"),
        ("x = y", VALUES, Unevaluable, "Relation has no single value"),
        ("O(n)", VALUES, Unevaluable, "Order has no single value"),
        (r"\infty x", VALUES, Undefined, "infinity is no number"),
        ("q_1", VALUES, Unevaluable, "q has no value"),
        ("A^{65}", VALUES, Unevaluable, "no small whole number"),
        ("x/(x - 5)", VALUES, Undefined, "division by zero"),
        ("e^{e^{e^{e^5}}}", VALUES, Undefined, "too large"),
    ],
)
def test_what_has_no_value(text, values, kind, said) -> None:
    with pytest.raises(kind, match=said):
        evaluate(parse(text, SYMBOLS), {"n": 4} if text == "u_n" else SIZES, values)


def test_errors_are_those_of_grids_only() -> None:
    assert evaluate_with_error(parse("x", SYMBOLS), SIZES, VALUES) == (5, Decimal(0))
    normal = {"g": "random scalar ~ N(0, 1)"}
    found, error = evaluate_with_error(parse("E[e^g]", normal), {}, {})
    assert 0 < error < Decimal("1e-20")
    assert float(found) == pytest.approx(math.exp(0.5), rel=1e-15)
    assert evaluate_with_error(parse("E[g^2]", normal), {}, {}) == (1, Decimal(0))


def test_digits_are_those_that_are_asked_for() -> None:
    tree = parse(r"\sqrt 2", {})
    for precision in (10, 60, 200):
        found = evaluate(tree, {}, {}, precision=precision)
        assert len(str(found)) == precision + 1
    assert str(evaluate(tree, {}, {}, precision=10)) == "1.414213562"


def test_an_index_is_bound_by_its_sum_and_given_outside() -> None:
    tree = parse(r"u_i + \sum_i u_i", {"u": "vector[3]", "i": "index[3]"})
    assert evaluate(tree, {}, {"u": (1, 2, 4), "i": 3}) == 11
    nested = parse(r"\sum_i u_i \sum_j u_j \delta_{ij}", {"u": "vector[3]"})
    assert evaluate(nested, {}, {"u": (1, 2, 4)}) == 21


def test_a_product_over_nothing_and_a_sum_over_nothing() -> None:
    symbols = {"u": "vector[n]", "A": "matrix[n,2]", "i": "index[n]"}
    values = {"u": (3,), "A": ((1, 2),), "i": 1}
    assert evaluate(parse(r"\sum_{j<i} u_j", symbols), {"n": 1}, values) == 0
    assert evaluate(parse(r"\prod_{j<i} u_j", symbols), {"n": 1}, values) == 1
    assert evaluate(parse(r"\sum_{j<i} A_j", symbols), {"n": 1}, values) == (0, 0)


def test_vectors_of_one_entry() -> None:
    symbols = {"z": "vector[n]", "A": "matrix[n,n]"}
    values = {"z": (3,), "A": ((5,),)}
    for text, wanted in [
        ("argmax(z)", 1),
        ("diag(z)", ((3,),)),
        ("diag(A)", (5,)),
        ("tr(A)", 5),
        ("det(A)", 5),
        ("max(z)", 3),
        ("A z", (15,)),
        ("z^T z", 9),
        ("z z^T", ((9,),)),
        ("A^T", ((5,),)),
        ("A_1", (5,)),
        ("A_{:1}", (5,)),
        ("A_{1:}", ((5,),)),
        ("A_{1,1}", 5),
        (r"\frac{\partial (A z)}{\partial z}", ((5,),)),
    ]:
        assert evaluate(parse(text, symbols), {"n": 1}, values) == wanted, text
