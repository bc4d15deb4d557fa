"""Products over an index: written out, as powers, as exponentials of sums, and closed."""

from __future__ import annotations

import pytest

from qkv.maths.algebra.normal import NotNormal, normal, same
from qkv.maths.parsing.parse import parse

NAMES = {
    "s": "vector[n]", "w": "vector[m]", "t": "vector[3]", "x": "scalar", "p": "positive", "n": "natural",
    "m": "natural", "A": "matrix[n,n]",
}  # fmt: skip

PROVED = {
    "what is plain": [
        (r"\prod_{i=1}^n 2", "2^n"),
        (r"\prod_{i=1}^n p", "p^n"),
        (r"\prod_{i=1}^n (x + 1)", "(x + 1)^n"),
        (r"\prod_{i=1}^n \exp(s_i x)", r"\exp(x \sum_i s_i)"),
        (r"\prod_{i=1}^n \exp(s_i)^2", r"\exp(2\sum_i s_i)"),
        (r"\prod_{i=1}^n \frac{1}{\exp(s_i)}", r"\exp(-\sum_i s_i)"),
        (r"\prod_{i=1}^n (3 p^2 \exp(s_i))", r"3^n p^{2n} \exp(\sum_i s_i)"),
        (r"\prod_{i=1}^n (s_i + 1)", r"\prod_{j=1}^n (1 + s_j)"),
        (r"\prod_{i=1}^n s_i^2", r"(\prod_{i=1}^n s_i)^2"),
        (r"\prod_{i=1}^n (x s_i)", r"x^n \prod_{i=1}^n s_i"),
        (r"\prod_{i=1}^n (-2 s_i)", r"(-2)^n \prod_i s_i"),
        (r"\prod_{i=1}^n \frac{1}{s_i}", r"1/\prod_i s_i"),
        (r"\prod_{i=1}^n \sqrt{s_i}", r"\prod_i s_i^{1/2}"),
        (r"\prod_{i=1}^n \sqrt{\exp(s_i)}", r"\exp(\sum_i s_i/2)"),
        (r"\prod_{i=1}^n |s_i|^{1/2}", r"\sqrt{\prod_i |s_i|}"),
        (r"|\prod_{i=1}^n (s_i^2 + 1)|", r"\prod_{i=1}^n (1 + s_i^2)"),
        (r"\prod_{i=1}^n A_{ij}", r"\prod_{k=1}^n A_{kj}"),
        (r"\prod_{i=1}^3 t_i", "t_1 t_2 t_3"),
        (r"\prod_{i=1}^4 i", "24"),
        (r"\prod_{i=1}^{12} x", "x^{12}"),
        (r"\prod_{i=1}^{13} x", "x^{13}"),
        (r"\prod_{i=1}^3 \prod_{j=1}^2 (t_i + j)", "(t_1 + 1)(t_1 + 2)(t_2 + 1)(t_2 + 2)(t_3 + 1)(t_3 + 2)"),
        (r"\prod_{1 \le i < j \le 3} (t_i - t_j)", "(t_1 - t_2)(t_1 - t_3)(t_2 - t_3)"),
        (r"\prod_{1 \le i \le j \le 2} (x + i + j)", "(x + 2)(x + 3)(x + 4)"),
        (r"\prod_{i=1}^n \prod_{j=1}^2 s_i", r"\prod_{i=1}^n s_i^2"),
        (r"\prod_{i=1}^2 \prod_{j=1}^n (i s_j)", r"2^n \prod_j s_j^2"),
    ],
}  # fmt: skip

UNPROVED = [
    (r"\prod_{i=1}^n (s_i + 1)", r"\prod_{j=1}^n (2 + s_j)"),
    (r"\prod_{i=1}^n s_i", r"\prod_{j=1}^n s_j^2"),
    (r"\prod_{i=1}^n s_i", r"\prod_{j=1}^m w_j"),
    (r"\prod_{i=1}^n (x s_i)", r"x \prod_{i=1}^n s_i"),
    (r"\prod_{i=1}^n (-s_i)", r"-\prod_i s_i"),
    (r"\prod_{i=1}^n x", r"\prod_{i=1}^m x"),
    (r"|\prod_{i=1}^n s_i|", r"\prod_{i=1}^n s_i"),
    (r"\prod_{i=1}^n A_{ij}", r"\prod_{i=1}^n A_{ji}"),
    (r"\prod_{i=1}^n (s_i + 1)", r"\prod_{i=1}^n s_i + 1"),
]  # fmt: skip


@pytest.mark.parametrize("topic", PROVED)
def test_products(topic: str) -> None:
    for left, right in PROVED[topic]:
        assert same(parse(left, NAMES), parse(right, NAMES)), (left, right)


def test_what_is_not_so_is_not_proved() -> None:
    for left, right in UNPROVED:
        assert not same(parse(left, NAMES), parse(right, NAMES)), (left, right)


def test_a_long_product_under_a_condition_has_no_normal_form() -> None:
    with pytest.raises(NotNormal, match="only when it is written out"):
        normal(parse(r"\prod_{i \ne j} (s_i - s_j)", NAMES))
