"""Inverses, whole powers, determinants, largest entries and their positions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.algebra.matrices import inverted
from qkv.maths.algebra.monomials import NoValue, TooLarge
from qkv.maths.algebra.normal import NotNormal, normal, same
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Call, Number, Power, Transpose

NAMES = {
    "A": "matrix[d,d]", "B": "matrix[d,d]", "C": "matrix[d,d] = A + B", "G": "matrix[2,2]", "T": "matrix[3,3]",
    "J": "matrix[4,4]", "L": "matrix[5,5]", "W": "matrix[d,n]", "x": "scalar", "p": "positive", "a": "scalar",
    "b": "scalar", "u": "vector[d]", "v": "vector[d]", "s": "vector[n]", "t": "vector[3]", "d": "natural",
    "w": "vector[3] = (x, a, b)", "c": "scalar", "q": "vector[d] = p u", "y": r"scalar = \max(a, b)",
}  # fmt: skip

PROVED = {
    "a matrix and its inverse side by side": [
        ("(A + B)(A + B)^{-1}", "I_d"),
        ("(A + B)^{-1}(A + B)", "I_d"),
        ("C^{-1}(A + B)", "I_d"),
        ("(A + B) C^{-1}", "I_d"),
        ("(A + B)^T ((A + B)^{-1})^T", "I_d"),
        ("((A + B)^{-1})^T (A + B)^T", "I_d"),
        ("((A + B)^T)^{-1} (A + B)^T", "I_d"),
        ("B (A + B)^{-1} (A + B) B", "B^2"),
        ("A B (A B)^{-1}", "I_d"),
        ("A^{-1} B B^{-1} A u", "u"),
        ("u^T (A + B) (A + B)^{-1} v", "u^T v"),
        ("u^T A^{-1} A v", "u^T v"),
        ("u^T A^{-1} A", "u^T"),
        ("(A + B)^{-1} (A + B) u", "u"),
        (r"\operatorname{tr}(A^{-1} B A)", r"\operatorname{tr}(B)"),
        (r"\operatorname{tr}((A + B)^{-1} (A + B))", "d"),
        (r"\sum_j A_{ij} (A^{-1})_{jk} u_k", r"\delta_{ik} u_k"),
        (r"\sum_j A_{ji} (A^{-1})_{kj} u_k", r"\delta_{ik} u_k"),
    ],
    "inverses": [
        ("I_d^{-1}", "I_d"),
        ("(A^T)^{-1}", "(A^{-1})^T"),
        ("((A + B)^T)^{-1}", "((A + B)^{-1})^T"),
        ("(x A)^{-1}", "A^{-1}/x"),
        ("(2 x (A + B))^{-1}", r"\frac{1}{2x} (A + B)^{-1}"),
        ("(A/x)^{-1}", "x A^{-1}"),
        ("(A B)^{-1}", "B^{-1} A^{-1}"),
        ("(A^{-1})^{-1}", "A"),
        ("(A^{-2})^{-1}", "A^2"),
        (r"\operatorname{diag}(u)^{-1} \operatorname{diag}(u)", "I_d"),
        (r"(\operatorname{diag}(u)^{-1})_{11}", "1/u_1"),
        (r"(\operatorname{diag}(u)^{-1})_{12}", "0"),
        (r"\operatorname{diag}(u)^{-1} v", r"\operatorname{diag}(v) \operatorname{diag}(u)^{-1} \mathbf{1}"),
        ("(A + A^T)^{-1}", "((A + A^T)^{-1})^T"),
        ("u^T (A + A^T)^{-1} v", "v^T (A + A^T)^{-1} u"),
        ("u^T (A A^T + I)^{-1} v", "v^T (I + A A^T)^{-1} u"),
        ("u^T (A + B)^{-1} v", "v^T (A^T + B^T)^{-1} u"),
        ("u^T (A + x A^T)^{-1} v", "v^T (A^T + x A)^{-1} u"),
    ],
    "small inverses are written out": [
        (r"(G^{-1})_{11}", r"G_{22}/(G_{11} G_{22} - G_{12} G_{21})"),
        (r"(G^{-1})_{12}", r"-G_{12}/\det(G)"),
        (r"(G^{-1})_{21}", r"-G_{21}/\det(G)"),
        (r"(T^{-1})_{23} \det(T)", r"T_{13} T_{21} - T_{11} T_{23}"),
        (r"(T^{-1})_{31} \det(T)", r"T_{21} T_{32} - T_{22} T_{31}"),
        (r"(T^{-1} T)_{12}", "0"),
        (r"(T T^{-1})_{33}", "1"),
        ("[[1, 2], [3, 4]]^{-1}", "[[-2, 1], [3/2, -1/2]]"),
        ("[[2, 0, 0], [0, 0, 1], [0, 4, 0]]^{-1}", "[[1/2, 0, 0], [0, 0, 1/4], [0, 1, 0]]"),
    ],
    "whole powers": [
        ("A^0", "I_d"),
        ("A^1", "A"),
        ("A^3", "A A A"),
        ("A^{-1} A^{-1}", "A^{-2}"),
        ("A^{-2} A", "A^{-1}"),
        ("A^2 A^{-1}", "A"),
        ("A^{-3} A^3", "I_d"),
        ("(A + B)^2", "A^2 + A B + B A + B^2"),
        (r"\operatorname{tr}(A^{12})", r"\operatorname{tr}(A^5 A^7)"),
        ("[[1, 1], [0, 1]]^5", "[[1, 5], [0, 1]]"),
    ],
    "determinants": [
        (r"\det(I_d)", "1"),
        (r"\det(A B)", r"\det(B) \det(A)"),
        (r"\det(2A)", r"2^d \det(A)"),
        (r"\det(-A)", r"(-1)^d \det(A)"),
        (r"\det(x p A)", r"x^d p^d \det(A)"),
        (r"\det(A/p)", r"\det(A)/p^d"),
        (r"\det(A^{-1})", r"1/\det(A)"),
        (r"\det(A^2)", r"\det(A)^2"),
        (r"\det(A^T)", r"\det(A)"),
        (r"\det(C)", r"\det(A^T + B^T)"),
        (r"\det(A - A)", "0"),
        (r"\det(A + I)", r"\det(I + A)"),
        (r"\det(G)", "G_{11} G_{22} - G_{12} G_{21}"),
        (r"\det([[2, 7, 1], [0, 3, 5], [0, 0, 4]])", "24"),
        (r"\det([[0, 1, 0], [0, 0, 1], [1, 0, 0]])", "1"),
        (r"\det([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])", "-1"),
        (r"\det(T)", r"\det(T^T)"),
        (r"\det(2 L)", r"32 \det(L)"),
    ],
    "the largest entry": [
        (r"\max(s + x \mathbf{1})", r"x + \max(s)"),
        (r"\max(x \mathbf{1}_n)", "x"),
        (r"\max(p s)", r"p \max(s)"),
        (r"\max(2s - \mathbf{1})", r"2\max(s) - 1"),
        (r"\min(s)", r"-\max(-s)"),
        (r"\min(p s + \mathbf{1})", r"1 + p \min(s)"),
        (r"\|p s\|_\infty", r"p \|s\|_\infty"),
        (r"\|x s\|_\infty", r"|x| \|s\|_\infty"),
        (r"\|t\|_\infty", "\\max(|t_1|, |t_2|, |t_3|)"),
        (r"\max(t)", r"\max(t_3, t_1, t_2)"),
        (r"\min(t)", r"\min(t_3, t_1, t_2)"),
        (r"\max((1, 4, 2))", "4"),
        (r"\max(W s)", r"\max(W s + 0 u)"),
        (r"|\max(\exp(s))|", r"\max(\exp(s))"),
        (r"\max(x, \max(a, b))", r"\max(a, b, x)"),
        (r"\max(x, y)", r"\max(a, b, x)"),
        (r"\min(x, \min(a, b), c)", r"\min(a, b, x, c)"),
    ],
    "where the largest entry stands": [
        (r"\operatorname{argmax}((1, 5, 2))", "2"),
        (r"\operatorname{argmax}((3, 3, 2))", "1"),
        (r"\operatorname{argmax}((1, 2, 3))", "3"),
        (r"\operatorname{argmax}(\exp(s))", r"\operatorname{argmax}(s)"),
        (r"\operatorname{argmax}(\exp(2s))", r"\operatorname{argmax}(s)"),
        (r"\operatorname{argmax}(\exp(\exp(p s)))", r"\operatorname{argmax}(s)"),
        (r"\operatorname{argmax}(p s)", r"\operatorname{argmax}(s)"),
        (r"\operatorname{argmax}(s + x \mathbf{1})", r"\operatorname{argmax}(s)"),
        (r"\operatorname{argmax}(softmax(s))", r"\operatorname{argmax}(s)"),
        (r"\operatorname{argmax}(-\exp(-s))", r"\operatorname{argmax}(-\exp(-s + x \mathbf{1}))"),
        (r"\operatorname{argmax}(\mathbf{1}_n)", "1"),
        (r"|\operatorname{argmax}(s)|", r"\operatorname{argmax}(s)"),
    ],
}  # fmt: skip

UNPROVED = [
    ("(A + B)^{-1}", "A^{-1} + B^{-1}"),
    ("(A + B)^{-1}", "((A + B)^{-1})^T"),
    ("(A + B)(A + B^T)^{-1}", "I_d"),
    ("(A + B)^T (A + B)^{-1}", "I_d"),
    ("u^T (A + B)^{-1} v", "v^T (A + B)^{-1} u"),
    ("u^T (A + 2 A^T)^{-1} v", "v^T (A + 2 A^T)^{-1} u"),
    ("B (A + B)^{-1} (A + B)", "I_d"),
    (r"\sum_j A_{ji} (A^{-1})_{jk} u_k", r"\delta_{ik} u_k"),
    (r"\sum_j A_{ij} (A^{-1})_{jk} u_j", r"\delta_{ik} u_k"),
    (r"(G^{-1})_{12}", r"G_{12}/\det(G)"),
    (r"(G^{-1})_{12}", r"-G_{21}/\det(G)"),
    ("A^{-2}", "A^{-1}"),
    ("(x A)^{-1}", "x A^{-1}"),
    (r"\operatorname{diag}(u)^{-1}", r"\operatorname{diag}(u)"),
    (r"\det(A)", "1"),
    (r"\det(2A)", r"2\det(A)"),
    (r"\det(A/p)", r"\det(A)/p"),
    (r"\det(A + B)", r"\det(A) + \det(B)"),
    (r"\det(A + B)", r"\det(A + B^T)"),
    (r"\max(x s)", r"x \max(s)"),
    (r"\min(s)", r"\max(s)"),
    (r"\max(s)", r"\max(s + \mathbf{1})"),
    (r"\|s\|_\infty", r"\max(s)"),
    (r"|\max(s)|", r"\max(s)"),
    (r"\min(x, \max(a, b))", r"\min(a, b, x)"),
    (r"\max(x, \min(a, b))", r"\max(a, b, x)"),
    (r"\operatorname{argmax}(x s)", r"\operatorname{argmax}(s)"),
    (r"\operatorname{argmax}(\exp(-s))", r"\operatorname{argmax}(s)"),
    (r"\operatorname{argmax}(-\exp(s))", r"\operatorname{argmax}(s)"),
    (r"\operatorname{argmax}(s)", "1"),
    (r"\operatorname{argmax}(s)", r"\operatorname{argmax}(\exp(s) + s)"),
]  # fmt: skip


@pytest.mark.parametrize("topic", PROVED)
def test_matrices(topic: str) -> None:
    for left, right in PROVED[topic]:
        one = parse(left, NAMES)
        assert same(one, parse(right, NAMES, expected=one.shape)), (left, right)


def test_what_is_not_so_is_not_proved() -> None:
    for left, right in UNPROVED:
        one = parse(left, NAMES)
        assert not same(one, parse(right, NAMES, expected=one.shape)), (left, right)


def test_what_is_written_as_an_inverse() -> None:
    matrix = parse("A", NAMES)
    inverse = Power(("d", "d"), matrix, Number((), Fraction(-1)))
    assert inverted(inverse) == matrix
    assert inverted(Transpose(("d", "d"), inverse)) == Transpose(("d", "d"), matrix)
    assert inverted(matrix) is None
    assert inverted(Transpose(("d", "d"), matrix)) is None
    assert inverted(parse("x^{-1}", NAMES)) is None
    assert inverted(parse("A^{-2}", NAMES)) is None


def test_matrix_powers_that_have_no_normal_form() -> None:
    matrix = parse("A", NAMES)
    for exponent in (Number((), Fraction(1, 2)), parse("x", NAMES)):
        with pytest.raises(NotNormal, match="only to a whole power"):
            normal(Power(("d", "d"), matrix, exponent))
    for exponent in (13, -13):
        with pytest.raises(TooLarge):
            normal(Power(("d", "d"), matrix, Number((), Fraction(exponent))))
    with pytest.raises(NoValue, match="the inverse of zero"):
        normal(parse("(A - A)^{-1}", NAMES))
    with pytest.raises(NoValue, match="the inverse of zero"):
        normal(parse("(A - A)^{-1} (A - A)", NAMES))


def test_an_inverse_is_written_out_up_to_four_rows() -> None:
    assert "inverse" not in repr(normal(parse("(J^{-1})_{12}", NAMES)))
    assert "inverse" in repr(normal(parse("(L^{-1})_{12}", NAMES)))
    assert "det" not in repr(normal(Call((), "det", (parse("T", NAMES),))))
    assert "det" in repr(normal(parse(r"\det(L)", NAMES)))
