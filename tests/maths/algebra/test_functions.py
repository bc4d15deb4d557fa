"""Exponentials, logarithms, signs, maxima and powers that are no numbers: what comes apart, and what must not."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.algebra.functions import is_whole, largest, logarithm, symbolic_power
from qkv.maths.algebra.monomials import Head, add, atom, multiply, number, scale
from qkv.maths.algebra.normal import NotNormal, normal, same
from qkv.maths.parsing.parse import parse

NAMES = {
    "a": "scalar", "b": "scalar", "x": "scalar", "y": "scalar", "z": "nonnegative", "p": "positive", "r": "positive",
    "n": "natural", "m": "natural", "s": "vector[n]", "A": "matrix[n,n]", "phi": "map vector[n] -> vector[n]",
}  # fmt: skip

PROVED = {
    "signs": [
        (r"\operatorname{sign}(p)", "1"),
        (r"\operatorname{sign}(-p - r)", "-1"),
        (r"\operatorname{sign}(0 x)", "0"),
        (r"\operatorname{sign}(x y)", r"\operatorname{sign}(x)\operatorname{sign}(y)"),
        (r"\operatorname{sign}(p x)", r"\operatorname{sign}(x)"),
        (r"\operatorname{sign}(-x)", r"-\operatorname{sign}(x)"),
        (r"\operatorname{sign}(x^2)", r"\operatorname{sign}(x)^2"),
        (r"\operatorname{sign}(x^3)", r"\operatorname{sign}(x)"),
        (r"\operatorname{sign}(1/x)", r"\operatorname{sign}(x)"),
        (r"\operatorname{sign}(-2 x^3)", r"-\operatorname{sign}(x)"),
        (r"\operatorname{sign}(2a - 2b)", r"-\operatorname{sign}(b - a)"),
        (r"\operatorname{sign}(x a + x b)", r"\operatorname{sign}(x)\operatorname{sign}(a + b)"),
        (r"\operatorname{sign}(x)^3", r"\operatorname{sign}(x)"),
        (r"\operatorname{sign}(x)^4", r"\operatorname{sign}(x)^2"),
        (r"\operatorname{sign}(x)^5", r"\operatorname{sign}(x)"),
        (r"\operatorname{sign}(z)^3", r"\operatorname{sign}(z)"),
    ],
    "absolute values": [
        (r"|x|^2", "x^2"),
        (r"|x|^3", "x^2 |x|"),
        (r"|x|^{-2}", "1/x^2"),
        (r"|x|^{-1}", r"|x|/x^2"),
        (r"|x|^{5/2}", r"x^2 \sqrt{|x|}"),
        (r"|a - b|^2", "a^2 - 2 a b + b^2"),
    ],
    "exponentials": [
        (r"\exp(a - b)", r"\exp(a)/\exp(b)"),
        (r"\exp(2x)", r"\exp(x)^2"),
        (r"\exp(x/2)", r"\sqrt{\exp(x)}"),
        (r"\exp(0 x)", "1"),
        (r"\exp(2 \log p)", "p^2"),
        (r"\exp(-\log p)", "1/p"),
        (r"\exp(\log(a + b))", "a + b"),
        (r"\exp(x \log p)", "p^x"),
        (r"\exp(\log(p)^2)", r"p^{\log p}"),
        (r"\exp(\sum_i \log(s_i))", r"\exp(\sum_j \log(s_j))"),
        ("e", r"\exp(1)"),
        ("e^x e^y", "e^{x + y}"),
    ],
    "logarithms": [
        (r"\log 12", r"2\log 2 + \log 3"),
        (r"\log(2/3)", r"\log 2 - \log 3"),
        (r"\log(9/8)", r"2\log 3 - 3\log 2"),
        (r"\log\sqrt 2", r"\frac12 \log 2"),
        (r"\log 1", "0"),
        (r"\log e", "1"),
        (r"\log(x^2)", r"2\log|x|"),
        (r"\log(x^3)", r"3\log x"),
        (r"\log(x^{-2})", r"-2\log|x|"),
        (r"\log(x y^2)", r"\log x + 2\log|y|"),
        (r"\log(-3x)", r"\log 3 + \log(-x)"),
        (r"\log(p \exp(x))", r"x + \log p"),
        (r"\log(1/p^2)", r"-2\log p"),
        (r"\log(\exp(x)^2 p^3 / r)", r"2x + 3\log p - \log r"),
        (r"\log\sqrt{a + b}", r"\frac12 \log(a + b)"),
        (r"\log(1/(p + r))", r"-\log(p + r)"),
        (r"\log(p a + p b)", r"\log p + \log(a + b)"),
        (r"\log(4a + 6b)", r"\log 2 + \log(2a + 3b)"),
        (r"\log(\exp(x) + \exp(x))", r"x + \log 2"),
        (r"\log(\sqrt{x} \sqrt{y})", r"(\log x + \log y)/2"),
    ],
    "maxima": [
        (r"\max(x, x)", "x"),
        (r"\max(1, 3, 2)", "3"),
        (r"\max(x, 1, 2)", r"\max(2, x)"),
        (r"\max(x, 2, 1)", r"\max(2, x)"),
        (r"\min(a, 1, 2)", r"\min(1, a)"),
        (r"\max(x, y)", "(x + y + |x - y|)/2"),
        (r"\min(x, y)", "(x + y - |x - y|)/2"),
        (r"\max(x, y, a)", r"\max(a, y, x, y)"),
        (r"\max(x, 1, a, 3)", r"\max(a, 3, x)"),
        (r"\sum_{i,j} \max(s_i, s_j, x) s_i", r"\sum_{i,j} \max(x, s_i, s_j) s_j"),
    ],
    "powers with names in the exponent": [
        ("x^{n+1}", "x x^n"),
        ("x^{n-1}", "x^n/x"),
        ("x^{n+m}", "x^n x^m"),
        ("x^{2n}", "(x^n)^2"),
        ("x^{2n}", "(x^2)^n"),
        ("x^{-n}", "(1/x)^n"),
        ("(x y)^n", "x^n y^n"),
        ("(-2x)^n", "(-2)^n x^n"),
        ("(x/y)^n", "x^n/y^n"),
        ("(x^2 y^3)^n", "x^{2n} y^{3n}"),
        ("p^a p^b", "p^{a+b}"),
        ("p^{a b}", "(p^a)^b"),
        ("(p r)^a", "p^a r^a"),
        ("z^a z^b", "z^{a+b}"),
        ("|z^a|", "z^a"),
        ("0^n", "0"),
        ("1^n", "1"),
        ("x^{n - n}", "1"),
        ("x^{n - n + 2}", "x^2"),
        ("4^n", "2^{2n}"),
    ],
}  # fmt: skip

UNPROVED = [
    (r"\operatorname{sign}(z)", "1"),
    (r"\operatorname{sign}(x)", "1"),
    (r"\operatorname{sign}(x)^2", "1"),
    (r"\operatorname{sign}(x)^3", r"\operatorname{sign}(x)^2"),
    (r"\operatorname{sign}(a - b)", r"\operatorname{sign}(b - a)"),
    (r"\operatorname{sign}(x + p)", r"\operatorname{sign}(x)"),
    (r"|x|^3", "x^3"),
    (r"|x|", "x"),
    (r"\log(-2)", r"\log 2"),
    (r"\log(-x)", r"-\log x"),
    (r"\log(x^2)", r"\log(x^2) + \log 2"),
    (r"\log(a + b)", r"\log a + \log b"),
    (r"\log(\exp(x) + p)", r"x + \log p"),
    (r"\exp(2\log p)", "p^3"),
    (r"\exp(\sum_i s_i)", r"\sum_i \exp(s_i)"),
    (r"\max(x, y, a)", r"\max(x, y)"),
    (r"\max(x, 1, 3)", r"\max(x, 1)"),
    (r"\min(x, 1, 3)", r"\min(x, 3)"),
    ("(x y)^a", "x^a y^a b"),
    ("|x^a|", "x^a"),
    ("(-1)^n", "1"),
    ("x^{n+2}", "2 x^n"),
    ("x^{n/2}", "x^n"),
    ("x^{n/2}", "x^{n/3}"),
    ("(x + y)^n", "x^n + y^n"),
    ("0^a", "0"),
    ("x^a", "x^b"),
]  # fmt: skip


@pytest.mark.parametrize("topic", PROVED)
def test_functions_come_apart(topic: str) -> None:
    for left, right in PROVED[topic]:
        assert same(parse(left, NAMES), parse(right, NAMES)), (left, right)
        assert normal(parse(f"({left}) - ({right})", NAMES)) == normal(parse("0", NAMES)), (left, right)


def test_what_is_not_so_is_not_proved() -> None:
    for left, right in UNPROVED:
        assert not same(parse(left, NAMES), parse(right, NAMES)), (left, right)


@pytest.mark.parametrize("text", [r"\log(a - a)", r"\log 0", r"0^{-1}", r"|a - a|^{-1}"])
def test_what_has_no_value(text: str) -> None:
    with pytest.raises(NotNormal, match="has no value"):
        normal(parse(text, NAMES))


X, P = atom(Head("name", "x")), atom(Head("name", "p", (), "positive"))
N, M = (atom(Head("name", name, (), "natural")) for name in "nm")


@pytest.mark.parametrize(
    ("poly", "whole"),
    [
        (number(3), True),
        (number(Fraction(1, 2)), False),
        ({}, True),
        (N, True),
        (multiply(N, M), True),
        (add(N, scale(M, -2), number(1)), True),
        (scale(N, Fraction(1, 2)), False),
        (X, False),
        (P, False),
        (multiply(N, X), False),
        (add(N, X), False),
        (atom(Head("name", "n", (), "natural"), (), -1), False),
        (atom(Head("name", "n", (), "natural"), (), Fraction(1, 2)), False),
        (atom(Head("name", "n", (), "natural"), (), 2), True),
    ],
)
def test_what_is_a_whole_number_for_sure(poly: dict, whole: bool) -> None:
    assert is_whole(poly) is whole


def test_numbers_among_several_are_one_number() -> None:
    assert largest([number(2), number(Fraction(5, 2)), number(1)]) == number(Fraction(5, 2))
    assert largest([X, X]) == X
    assert largest([X, number(1), X, number(0)]) == largest([X, number(1)])


def test_a_power_that_is_a_number_after_all() -> None:
    assert symbolic_power(X, number(2)) == multiply(X, X)
    assert symbolic_power({}, N) == {}
    assert symbolic_power(P, add(N, number(1))) == multiply(P, symbolic_power(P, N))


def test_the_logarithm_of_a_product_is_a_sum() -> None:
    assert logarithm(multiply(P, number(6))) == add(logarithm(P), logarithm(number(2)), logarithm(number(3)))
    assert logarithm(number(Fraction(1, 4))) == scale(logarithm(number(2)), -2)
    assert logarithm(scale(X, -1)) != scale(logarithm(X), -1)


def test_powers_that_leave_their_range_are_opened() -> None:
    for left, right in (
        ("|x|^2", "x^2"),
        ("|x|^{-2}", "1/x^2"),
        (r"\operatorname{sign}(x)^3", r"\operatorname{sign}(x)"),
        (r"\operatorname{sign}(x)^4", r"\operatorname{sign}(x)^2"),
        (r"\sqrt 2 \sqrt 2", "2"),
        (r"1/\sqrt 2", r"\sqrt 2/2"),
        (r"\sqrt{a + b}^3", r"(a + b) \sqrt{a + b}"),
        (r"(x^2)^{-1/2} x^2", "|x|"),
        (r"\sum_{i<j} s_i s_j", r"\sum_{i>j} s_i s_j"),
    ):
        assert same(parse(left, NAMES), parse(right, NAMES)), (left, right)


def test_heads_are_made_anew_where_indices_meet() -> None:
    names = {"u": "vector[3]", "v": "vector[3]", "g": "map scalar, scalar -> scalar"}
    for text, first in (
        (r"\sum_i \exp(u_i v_i)", r"\exp(u_1 v_1)"),
        (r"\sum_i |u_i + v_i|", "|u_1 + v_1|"),
        (r"\sum_i |u_i - v_i|", "|v_1 - u_1|"),
        (r"\sum_i |v_i - u_i|", "|u_1 - v_1|"),
        (r"\sum_i \operatorname{sign}(u_i + v_i)", r"\operatorname{sign}(u_1 + v_1)"),
        (r"\sum_i \log(u_i + v_i)", r"\log(u_1 + v_1)"),
        (r"\sum_i \max(u_i, v_i, 1)", r"\max(u_1, v_1, 1)"),
        (r"\sum_i 1/(u_i + v_i)", "1/(u_1 + v_1)"),
        (r"\sum_i g(u_i, v_i)", "g(u_1, v_1)"),
        (r"\sum_i u_i^{v_i}", "u_1^{v_1}"),
    ):
        rest = " + ".join(first.replace("_1", f"_{place}") for place in (1, 2, 3))
        assert same(parse(text, names), parse(rest, names)), text
        long = {name: kind.replace("3", "n") for name, kind in names.items()}
        both = text.replace(r"\sum_i ", r"\sum_i \sum_j \delta_{ij} ").replace("v_i", "v_j")
        assert same(parse(text, long), parse(both, long)), both
