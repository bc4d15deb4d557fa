"""Derivatives by rule, beside what is known of them."""

from __future__ import annotations

import pytest

from qkv.maths.normal import NotNormal, normal, same
from qkv.maths.reading import parse

NAMES = {
    "s": "vector[n]", "x": "scalar", "y": "scalar", "p": "positive", "u": "vector[d]", "v": "vector[d]",
    "A": "matrix[d,d]", "a": "vector[n] = softmax(s)", "phi": "map vector[d] -> vector[f]", "n": "natural",
}  # fmt: skip

PROVED = [
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
]  # fmt: skip

UNPROVED = [
    (r"\frac{\partial a_i}{\partial s_j}", r"a_i (\delta_{ij} - a_i)"),
    (r"\frac{\partial a_i}{\partial s_j}", r"-a_i a_j"),
    (r"\frac{\partial \|u\|}{\partial u_i}", r"u_i"),
    (r"\frac{\partial (u^T A u)}{\partial u_i}", r"2 (A u)_i"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), PROVED)
def test_derivatives(left: str, right: str) -> None:
    assert same(parse(left, NAMES), parse(right, NAMES))


@pytest.mark.parametrize(("left", "right"), UNPROVED)
def test_wrong_derivatives_are_not_proved(left: str, right: str) -> None:
    assert not same(parse(left, NAMES), parse(right, NAMES))


def test_the_frobenius_norm_of_the_softmax_jacobian() -> None:
    jacobian = r"\|\operatorname{diag}(a) - a a^T\|_F^2"
    assert same(parse(jacobian, NAMES), parse(r"\sum_i a_i^2 - 2\sum_i a_i^3 + (\sum_i a_i^2)^2", NAMES))


def test_with_respect_to_a_name_that_has_a_definition() -> None:
    assert same(parse(r"\frac{\partial (a^T a)}{\partial a_i}", NAMES), parse("2 a_i", NAMES))


def test_the_derivative_of_an_unknown_map_is_not_guessed() -> None:
    node = parse(r"\frac{\partial \phi(u)_j}{\partial u_i}", NAMES)
    with pytest.raises(NotNormal):
        normal(node)
