"""Derivatives against known ones, and replacing a name in a sum."""

from __future__ import annotations

import pytest

from qkv.maths.algebra.derivative import averaged_names, names_of_head, replace_name
from qkv.maths.algebra.indices import entry, scope_of
from qkv.maths.algebra.monomials import Poly, number
from qkv.maths.algebra.normal import NotNormal, normal, same
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Derivative

NAMES = {
    "s": "vector[n]", "x": "scalar", "y": "scalar", "p": "positive", "u": "vector[d]", "v": "vector[d]",
    "A": "matrix[d,d]", "a": "vector[n] = softmax(s)", "phi": "map vector[d] -> vector[f]", "n": "natural",
    "B": "matrix[d,d]", "Q": "matrix[n,d]", "t": "vector[3]", "G": "matrix[2,2]", "g": "map scalar -> scalar",
    "Sigma": "matrix[d,d]", "e": "random vector[d] ~ N(u, Sigma)",
}  # fmt: skip


PROVED = {
    "what is plain": [
        (r"\frac{\partial a_i}{\partial s_j}", r"a_i (\delta_{ij} - a_j)"),
        (r"\frac{\partial a_i}{\partial s_i}", r"a_i (1 - a_i)"),
        (r"\frac{\partial \log(\sum_j \exp(s_j))}{\partial s_i}", r"a_i"),
        (r"\frac{\partial (x^3 + x y)}{\partial x}", r"3x^2 + y"),
        (r"\frac{\partial \sqrt{p}}{\partial p}", r"\frac{1}{2\sqrt{p}}"),
        (r"\frac{\partial (1/x)}{\partial x}", r"-1/x^2"),
        (r"\frac{\partial \exp(x y)}{\partial x}", r"y \exp(x y)"),
        (r"\frac{\partial \|u\|^2}{\partial u_i}", r"2 u_i"),
        (r"\frac{\partial \|u\|}{\partial u_i}", r"u_i / \|u\|"),
        (r"\frac{\partial (u^T v)}{\partial v_i}", r"u_i"),
        (r"\frac{\partial (u^T A u)}{\partial u_i}", r"((A + A^T) u)_i"),
        (r"\frac{\partial (u^T A v)}{\partial A_{ij}}", r"u_i v_j"),
        (r"\frac{\partial |x|}{\partial x} |x|", r"x"),
        (r"\frac{\partial \operatorname{argmax}(s)}{\partial s_i}", r"0"),
        (r"\frac{\partial 2^x}{\partial x}", r"2^x \log 2"),
    ],
    "powers by their base, by their exponent and by both": [
        (r"\frac{\partial x^y}{\partial y}", r"x^y \log x"),
        (r"\frac{\partial x^y}{\partial x}", r"y x^{y-1}"),
        (r"\frac{\partial x^x}{\partial x}", r"x^x (\log x + 1)"),
        (r"\frac{\partial p^x}{\partial x}", r"p^x \log p"),
        (r"\frac{\partial x^n}{\partial x}", r"n x^{n-1}"),
        (r"\frac{\partial (x + y)^{-2}}{\partial x}", r"-2/(x + y)^3"),
        (r"\frac{\partial \sqrt{x^2 + y}}{\partial x}", r"x/\sqrt{x^2 + y}"),
    ],
    "chains and products": [
        (r"\frac{\partial \log(x^2 + y)}{\partial x}", r"2x/(x^2 + y)"),
        (r"\frac{\partial (x \exp(x))}{\partial x}", r"(1 + x)\exp(x)"),
        (r"\frac{\partial (\exp(x)/x)}{\partial x}", r"\exp(x)(x - 1)/x^2"),
        (r"\frac{\partial |x - y|}{\partial y}", r"-\operatorname{sign}(x - y)"),
        (r"\frac{\partial |x y|}{\partial y}", r"\operatorname{sign}(y)|x|"),
        (r"\frac{\partial \max(x, y)}{\partial x}", r"(1 + \operatorname{sign}(x - y))/2"),
        (r"\frac{\partial relu(x)}{\partial x} x", r"relu(x)"),
        (r"\frac{\partial^2 x^3}{\partial x^2}", r"6x"),
        (r"\frac{\partial^2 (x^2 y^2)}{\partial x \partial y}", r"4 x y"),
    ],
    "what is constant almost everywhere": [
        (r"\frac{\partial \operatorname{sign}(x)}{\partial x}", r"0"),
        (r"\frac{\partial (\operatorname{sign}(x) y)}{\partial y}", r"\operatorname{sign}(x)"),
        (r"\frac{\partial (\delta_{ij} s_i s_j)}{\partial s_k}", r"\delta_{ij} (\delta_{ik} s_j + \delta_{jk} s_i)"),
        (r"\frac{\partial \sum_{i<j} s_i s_j}{\partial s_k}", r"\sum_i s_i - s_k"),
        (r"\frac{\partial \sum_{i<j} s_i s_j^2}{\partial s_k}", r"\sum_{j>k} s_j^2 + 2 s_k \sum_{i<k} s_i"),
        (r"\frac{\partial \sum_i i s_i}{\partial s_3}", r"3"),
        (r"\frac{\partial g(x)}{\partial y}", r"0"),
    ],
    "by a vector, a matrix, a row and a component of what is written out": [
        (r"\frac{\partial (A u)}{\partial u}", r"A"),
        (r"\frac{\partial u}{\partial u}", r"I_d"),
        (r"\frac{\partial \operatorname{tr}(A B)}{\partial A}", r"B^T"),
        (r"\frac{\partial \operatorname{tr}(A)}{\partial A}", r"I_d"),
        (r"\frac{\partial \|A\|_F^2}{\partial A}", r"2A"),
        (r"\frac{\partial softmax(s)}{\partial s}", r"\operatorname{diag}(a) - a a^T"),
        (r"\frac{\partial \sum_{i,j} Q_{ij} v_j}{\partial Q_{kl}}", r"v_l"),
        (r"\frac{\partial \sum_{i,j} Q_{ij} v_j}{\partial Q_k}", r"v"),
        (r"\frac{\partial (Q v)_1}{\partial Q_1}", r"v"),
        (r"\frac{\partial (Q v)_1}{\partial Q_2}", r"0 v"),
        (r"\frac{\partial t}{\partial t_2}", r"(0, 1, 0)"),
        (r"\frac{\partial \prod_{i=1}^3 t_i}{\partial t_2}", r"t_1 t_3"),
        (r"\frac{\partial \det(G)}{\partial G_{12}}", r"-G_{21}"),
    ],
}  # fmt: skip


UNPROVED = [
    (r"\frac{\partial a_i}{\partial s_j}", r"a_i (\delta_{ij} - a_i)"),
    (r"\frac{\partial a_i}{\partial s_j}", r"-a_i a_j"),
    (r"\frac{\partial \|u\|}{\partial u_i}", r"u_i"),
    (r"\frac{\partial (u^T A u)}{\partial u_i}", r"2 (A u)_i"),
    (r"\frac{\partial x^y}{\partial y}", r"y x^{y-1}"),
    (r"\frac{\partial x^y}{\partial x}", r"x^y \log x"),
    (r"\frac{\partial \operatorname{tr}(A B)}{\partial A}", r"B"),
    (r"\frac{\partial |x|}{\partial x}", r"1"),
    (r"\frac{\partial (Q v)_1}{\partial Q_2}", r"v"),
]  # fmt: skip


@pytest.mark.parametrize("topic", PROVED)
def test_derivatives(topic: str) -> None:
    for left, right in PROVED[topic]:
        assert same(parse(left, NAMES), parse(right, NAMES)), (left, right)


def test_wrong_derivatives_are_not_proved() -> None:
    for left, right in UNPROVED:
        assert not same(parse(left, NAMES), parse(right, NAMES)), (left, right)


def test_the_frobenius_norm_of_the_softmax_jacobian() -> None:
    jacobian = r"\|\operatorname{diag}(a) - a a^T\|_F^2"
    assert same(parse(jacobian, NAMES), parse(r"\sum_i a_i^2 - 2\sum_i a_i^3 + (\sum_i a_i^2)^2", NAMES))


def test_with_respect_to_a_name_that_has_a_definition() -> None:
    assert same(parse(r"\frac{\partial (a^T a)}{\partial a_i}", NAMES), parse("2 a_i", NAMES))


REFUSED = [
    (r"\frac{\partial (d u^T u)}{\partial d}", "nothing is differentiated by a size"),
    (r"\frac{\partial \det(A)}{\partial A_{ij}}", "the derivative of det has no normal form"),
    (r"\frac{\partial g(x)}{\partial x}", "the derivative of map has no normal form"),
    (r"\frac{\partial E[e^T e]}{\partial \Sigma_{ij}}", "the components of a covariance do not vary one by one"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_has_no_derivative_here(text: str, reason: str) -> None:
    with pytest.raises(NotNormal, match=reason):
        normal(parse(text, {**NAMES, "d": "natural"}))


def test_a_derivative_by_what_is_no_name_is_refused() -> None:
    body = parse("x^2 y", NAMES)
    with pytest.raises(NotNormal, match="with respect to a name or a component of one"):
        normal(Derivative((), body, parse("x y", NAMES)))
    # What is held to be itself inside is what it stands for outside.
    nested = r"\frac{\partial}{\partial a_i} (a_i \frac{\partial (a^T a)}{\partial a_i})"
    assert same(parse(nested, NAMES), parse("4 a_i", NAMES))


def test_the_derivative_of_an_unknown_map_is_not_guessed() -> None:
    node = parse(r"\frac{\partial \phi(u)_j}{\partial u_i}", NAMES)
    with pytest.raises(NotNormal):
        normal(node)


MENTION_NAMES = {
    "x": "scalar", "y": "scalar", "s": "vector[n]", "w": "vector[n]", "A": "matrix[n,n]", "n": "natural",
    "q": "random vector[n] ~ N(s, A)", "e": "random scalar ~ N(x, 1)", "g": "map vector[n] -> scalar",
}  # fmt: skip


def poly(text: str) -> Poly:
    node = parse(text, MENTION_NAMES)
    return entry(node, (), scope_of(node))


def heads(text: str) -> list:
    return [factor.head for monomial in poly(text) for factor in monomial.factors]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x", {"x"}),
        (r"\exp(x y)", {"x", "y"}),
        (r"\exp(\exp(s_1) + y)", {"s", "y"}),
        (r"\log(1 + x^2)", {"x"}),
        ("g(A w)", {"A", "w"}),
        (r"\exp(e)", {"e"}),
        (r"\sqrt 2", set()),
    ],
)
def test_names_in_heads(text: str, found: set[str]) -> None:
    assert frozenset().union(*map(names_of_head, heads(text))) == found


def test_names_that_are_averaged_over() -> None:
    assert averaged_names(heads(r"E[\exp(e)]")[0]) == {"e"}
    assert averaged_names(heads(r"\exp(E[\exp(e + q_1)])")[0]) == {"e", "q"}
    assert averaged_names(heads(r"\exp(e)")[0]) == frozenset()


@pytest.mark.parametrize(
    ("text", "name", "by", "result"),
    [
        ("x^2 + x y", "x", "y", "2y^2"),
        (r"\exp(x)", "x", "2y", r"\exp(2y)"),
        (r"\log(1 + x^2)/x", "x", "y", r"\log(1 + y^2)/y"),
        ("y", "x", "y + 1", "y"),
        (r"|x - y|", "x", "2y", "|y|"),
        (r"\operatorname{sign}(x y + 1)", "x", "-y", r"\operatorname{sign}(1 - y^2)"),
        (r"\max(x, y, 1)", "x", "y", r"\max(y, 1)"),
        (r"\exp(\exp(x))", "x", r"y", r"\exp(\exp(y))"),
        (r"\sqrt{x + 1}", "x", "y - 1", r"\sqrt y"),
        ("x^{y}", "x", "y", "y^y"),
        (r"\sum_i x s_i", "x", "y", r"y \sum_i s_i"),
        ("g(x s)", "x", "2y", "g(2 y s)"),
    ],
)
def test_scalars_are_replaced(text: str, name: str, by: str, result: str) -> None:
    assert replace_name(poly(text), name, lambda slots: poly(by)) == poly(result)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (r"\sum_i s_i^2", r"\sum_i w_i^4"),
        (r"\sum_i s_i w_i", r"\sum_i w_i^3"),
        (r"\exp(s_1)", r"\exp(w_1^2)"),
        (r"\sum_i \exp(s_i)", r"\sum_i \exp(w_i^2)"),
        (r"\sum_{i,j} A_{ij} \exp(s_i + x s_j)", r"\sum_{i,j} A_{ij} \exp(w_i^2 + x w_j^2)"),
        (r"g(s)", r"g(w \odot w)"),
        (r"(\sum_i s_i)^2", r"(\sum_i w_i^2)^2"),
        (r"\log(\sum_i s_i + 1)", r"\log(\sum_i w_i^2 + 1)"),
    ],
)
def test_components_are_replaced_at_their_places(text: str, result: str) -> None:
    def squares(slots: tuple) -> Poly:
        ((monomial, _),) = poly("w_1^2").items()
        factors = [factor._replace(slots=slots) for factor in monomial.factors]
        return {monomial._replace(factors=tuple(factors)): number(1)[next(iter(number(1)))]}

    assert replace_name(poly(text), "s", squares) == poly(result)
