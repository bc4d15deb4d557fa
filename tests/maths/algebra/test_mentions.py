"""Which names a head holds, and putting something else in place of a name."""

from __future__ import annotations

import pytest

from qkv.maths.algebra.derivative import averaged_names, names_of_head, replace_name
from qkv.maths.algebra.indices import entry, scope_of
from qkv.maths.algebra.monomials import Poly, number
from qkv.maths.parsing.parse import parse

NAMES = {
    "x": "scalar", "y": "scalar", "s": "vector[n]", "w": "vector[n]", "A": "matrix[n,n]", "n": "natural",
    "q": "random vector[n] ~ N(s, A)", "e": "random scalar ~ N(x, 1)", "g": "map vector[n] -> scalar",
}  # fmt: skip


def poly(text: str) -> Poly:
    node = parse(text, NAMES)
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
