"""Powers, roots, absolute values, exponentials, logarithms, signs and maxima."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.algebra.functions import (
    absolute,
    is_whole,
    largest,
    logarithm,
    numeric_power,
    power,
    prime_factors,
    reduce_denominators,
    split_content,
    square_root,
    symbolic_power,
)
from qkv.maths.algebra.monomials import Head, NoValue, TooLarge, add, atom, multiply, number, scale
from qkv.maths.algebra.normal import NotNormal, normal, same
from qkv.maths.parsing.parse import parse

NAMES = {
    "a": "scalar", "b": "scalar", "x": "scalar", "y": "scalar", "z": "nonnegative", "p": "positive", "r": "positive",
    "n": "natural", "m": "natural", "s": "vector[n]", "A": "matrix[n,n]", "phi": "map vector[n] -> vector[n]",
    "c": "scalar", "u": "vector[n]", "v": "vector[n]",
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


@pytest.mark.slow
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


HALF, THIRD = Fraction(1, 2), Fraction(1, 3)


Y = atom(Head("name", "y"))


R = atom(Head("name", "r", (), "positive"))


PROVED_POWERS = {
    "roots of products": [
        (r"\sqrt{x^2 y}", r"|x| \sqrt{y}"),
        (r"\sqrt{x^3}", r"|x| \sqrt{x}"),
        (r"\sqrt{x^4}", "x^2"),
        (r"\sqrt{x^6}", "|x|^3"),
        (r"\sqrt{x^{-2}}", "1/|x|"),
        (r"\sqrt{8 p^3}", r"2\sqrt 2 p \sqrt p"),
        (r"\sqrt{p r}", r"\sqrt p \sqrt r"),
        (r"\sqrt{x^2 p}", r"|x| \sqrt p"),
        (r"\sqrt{x^3 y^3}", r"|x y| \sqrt{x y}"),
        (r"\sqrt{-x^3}", r"-x \sqrt{-x}"),
        (r"\sqrt{-4 x y}", r"2\sqrt{-x y}"),
        (r"(p^{1/3})^3", "p"),
        (r"(p^2)^{1/3} p^{1/3}", "p"),
        (r"x^{1/3} x^{1/3} x^{1/3}", "x"),
        (r"\sqrt{\sqrt{p}}", "p^{1/4}"),
        (r"\sqrt{\sqrt{x^2}}", r"\sqrt{|x|}"),
        (r"\sqrt{x}^4", "x^2"),
        (r"\sqrt{z}^2", "z"),
        (r"\sqrt{x y}^2", "x y"),
    ],
    "roots of numbers": [
        (r"\sqrt{72}", r"6\sqrt 2"),
        (r"\sqrt{2} \sqrt{6}", r"2\sqrt 3"),
        (r"\sqrt{9/4}", "3/2"),
        (r"\sqrt{1/2}", r"\sqrt{2}/2"),
        (r"2^{3/2}", r"2\sqrt 2"),
        (r"2^{-1/2}", r"\sqrt 2/2"),
        (r"(2^{1/2})^3", r"2\sqrt 2"),
        (r"8^{1/3}", "2"),
        (r"4^{-3/2}", "1/8"),
        (r"12^{1/3} 18^{1/3}", "6"),
    ],
    "sums to a power": [
        ("(a + b)^3", "a^3 + 3a^2 b + 3a b^2 + b^3"),
        (r"\frac{(a + b)^3}{(a + b)^2}", "a + b"),
        (r"\frac{a^2 - b^2}{a - b}", "a + b"),
        (r"\frac{1}{2a + 2b}", r"\frac12 \frac{1}{a + b}"),
        (r"\frac{1}{x a + x b}", r"\frac{1}{x} \frac{1}{a + b}"),
        (r"\frac{x}{x^2 + x y}", r"\frac{1}{x + y}"),
        (r"\sqrt{p a + p b}", r"\sqrt p \sqrt{a + b}"),
        (r"\sqrt{4a + 8b}", r"2\sqrt{a + 2b}"),
        (r"\sqrt{x^2 a + x^2 b}", r"|x| \sqrt{a + b}"),
        (r"\sqrt{x^3 a + x^3 b}", r"|x| \sqrt{x a + x b}"),
        (r"\sqrt{(a + b)^2}", "|a + b|"),
        (r"\sqrt{a + b}^2", "a + b"),
        (r"\sqrt{a + b} (a + b)", "(a + b)^{3/2}"),
        (r"\frac{1}{\sqrt{a + b}}", r"\frac{\sqrt{a + b}}{a + b}"),
        (r"\sqrt{\frac{1}{a + b}}", r"\frac{1}{\sqrt{a + b}}"),
        (r"\frac{1}{\frac{a}{b} + 1}", r"\frac{b}{a + b}"),
        (r"\frac{1}{1 + \frac{1}{1 + x}}", r"\frac{1 + x}{2 + x}"),
        (r"\frac{1}{1 - \frac{x}{x + y}}", r"\frac{x + y}{y}"),
        (r"\frac{1}{\frac{1}{x + 1} - \frac{1}{x - 1}}", r"-\frac{(x + 1)(x - 1)}{2}"),
        (r"\sqrt{\frac{a}{a + b} + \frac{b}{a + b} + 3}", "2"),
    ],
    "squares that are seen": [
        (r"\sqrt{\frac{p^2}{4} + p r + r^2}", r"\frac p2 + r"),
        (r"\sqrt{9x^2 + 6x + 1}", "|3x + 1|"),
        (r"\sqrt{x^2 - 4x y + 4y^2}", "|x - 2y|"),
        (r"\frac{1}{x^2 - 4x y + 4y^2}", r"\frac{1}{(2y - x)^2}"),
        (r"\sqrt{p - 2\sqrt{p r} + r}", r"|\sqrt p - \sqrt r|"),
        (r"\sqrt{x^2 y^2 + 2 x y + 1}", "|x y + 1|"),
        (r"\sqrt{n^2 + 4n + 4}", "n + 2"),
    ],
    "absolute values": [
        ("|-3x|", "3|x|"),
        ("|x y|", "|x| |y|"),
        ("|x/y|", "|x|/|y|"),
        ("|p x|", "p|x|"),
        ("|x^2|", "x^2"),
        ("|x^3|", "x^2|x|"),
        ("|x a - x b|", "|x| |b - a|"),
        ("|2a - 4b|", "2|2b - a|"),
        ("|-p - r|", "p + r"),
        ("|p + z|", "p + z"),
        ("|x^2 + y^4|", "x^2 + y^4"),
        (r"|\exp(x) + z|", r"\exp(x) + z"),
        ("|0 x|", "0"),
        (r"|\|u\||", r"\|u\|"),
    ],
    "what a root or a logarithm says of what stands under it": [
        (r"\sqrt{a} |a|", r"\sqrt a a"),
        (r"\sqrt{x + y} |x + y|", r"\sqrt{x + y} (x + y)"),
        (r"\sqrt{x - y} |y - x|", r"\sqrt{x - y} (x - y)"),
        (r"\log(x) |x|", r"\log(x) x"),
        (r"\log(x + y) |x + y|", r"\log(x + y) (x + y)"),
        (r"\sqrt{x} \sqrt{y} |x y|", r"\sqrt{x y} x y"),
        (r"\sqrt{x} \sqrt{x^2}", r"\sqrt{x} x"),
        (r"\sqrt{u_1} |u_1|", r"\sqrt{u_1} u_1"),
        (r"\sqrt{x^n}", "(x^n)^{1/2}"),
        (r"\sqrt{x^n} |x^n|", r"\sqrt{x^n} x^n"),
        (r"\sqrt{(x^2)^3}", "|x|^3"),
    ],
}  # fmt: skip


UNPROVED_POWERS = [
    (r"\sqrt{x^2 y}", r"x \sqrt y"),
    (r"\sqrt{x^6}", "x^3"),
    (r"\sqrt{x^3}", r"x^2"),
    (r"\sqrt{2}", "2"),
    (r"\sqrt{2} \sqrt{3}", "6"),
    (r"\sqrt{a + b}", r"\sqrt a + \sqrt b"),
    (r"\sqrt{x^2 a + x^2 b}", r"x \sqrt{a + b}"),
    (r"\sqrt{(a + b)^2}", "a + b"),
    (r"\frac{1}{1 + \frac{1}{1 + x}}", r"\frac{1 + x}{1 + 2x}"),
    (r"\sqrt{x^2 + 3x y + y^2}", "|x + y|"),
    (r"\sqrt{x^2 + 2x y + 2y^2}", "|x + y|"),
    (r"\sqrt{9x^2 + 3x + 1}", "|3x + 1|"),
    (r"\sqrt{p - \sqrt{p r} + r}", r"|\sqrt p - \sqrt r|"),
    ("|x - y|", "x - y"),
    ("|p + x|", "p + x"),
    ("|p - r|", "p - r"),
    ("|x^2 - y^4|", "x^2 - y^4"),
    ("|x^3|", "x^3"),
    (r"\sqrt{a} |b|", r"\sqrt a b"),
    (r"\sqrt{x + y} |x - y|", r"\sqrt{x + y} (x - y)"),
    (r"\log(x) |y|", r"\log(x) y"),
    (r"x^{1/3} |x|", "x^{4/3}"),
]  # fmt: skip


@pytest.mark.parametrize("topic", PROVED_POWERS)
def test_powers_and_roots(topic: str) -> None:
    for left, right in PROVED_POWERS[topic]:
        assert same(parse(left, NAMES), parse(right, NAMES)), (left, right)


def test_what_loses_a_sign_or_a_term_is_not_proved() -> None:
    for left, right in UNPROVED_POWERS:
        assert not same(parse(left, NAMES), parse(right, NAMES)), (left, right)


def test_the_root_of_a_square_with_fractions() -> None:
    quarter = Fraction(1, 4)
    whole = add(scale(multiply(X, X), quarter), multiply(X, Y), multiply(Y, Y))
    root = square_root(whole)
    assert root in (add(scale(X, HALF), Y), scale(add(scale(X, HALF), Y), -1))
    assert square_root(add(scale(multiply(X, X), Fraction(1, 3)), multiply(X, Y), multiply(Y, Y))) is None
    assert square_root(add(scale(multiply(X, X), Fraction(2, 9)), multiply(X, Y), multiply(Y, Y))) is None


@pytest.mark.parametrize(
    "poly",
    [
        add(multiply(X, X), multiply(Y, Y)),
        add(multiply(X, X), scale(multiply(X, Y), 2), scale(multiply(Y, Y), -1)),
        add(multiply(X, X), multiply(X, Y), multiply(Y, Y)),
        add(multiply(X, X), scale(X, 2), Y),
        add(multiply(X, X), scale(Y, 2), number(1)),
        add(X, scale(multiply(power(P, HALF), X), 2), P),
    ],
)
def test_what_is_no_square(poly: dict) -> None:
    assert square_root(poly) is None


def test_roots_of_what_is_positive_may_stand_in_a_square() -> None:
    root = square_root(add(P, scale(power(multiply(P, R), HALF), -2), R))
    assert root in [scale(add(power(P, HALF), scale(power(R, HALF), -1)), flip) for flip in (1, -1)]


@pytest.mark.parametrize(
    ("whole", "factors"),
    [
        (1, []),
        (2, [(2, 1)]),
        (9, [(3, 2)]),
        (25, [(5, 2)]),
        (360, [(2, 3), (3, 2), (5, 1)]),
        (2 * 1999**2, [(2, 1), (1999, 2)]),
        (2003**2, [(2003, 2)]),
        (2003**3, [(2003, 3)]),
        (6 * 2003**2, [(2, 1), (3, 1), (2003, 2)]),
        (2003 * 2011, [(2003 * 2011, 1)]),
        (3 * 10007, [(3, 1), (10007, 1)]),
    ],
)
def test_prime_factors(whole: int, factors: list[tuple[int, int]]) -> None:
    assert prime_factors(whole) == factors


def test_powers_of_numbers() -> None:
    assert numeric_power(Fraction(8, 27), THIRD) == number(Fraction(2, 3))
    assert numeric_power(Fraction(8, 27), -THIRD) == number(Fraction(3, 2))
    assert power(number(2), HALF) == numeric_power(Fraction(2), HALF) != number(1)
    assert multiply(power(number(2), HALF), power(number(2), HALF)) == number(2)
    assert power(number(-2), 3) == number(-8)
    assert power({}, 2) == {}
    assert power({}, 0) == number(1)
    assert power(X, 0) == number(1)
    with pytest.raises(NoValue):
        power({}, -1)


def test_what_may_be_pulled_out() -> None:
    poly = add(scale(multiply(X, X, Y), 6), scale(multiply(X, Y, Y), Fraction(4, 3)))
    assert split_content(poly, whole=True) == (
        scale(multiply(X, Y), Fraction(2, 3)),
        add(scale(X, 9), scale(Y, 2)),
    )
    assert split_content(poly, whole=False) == (number(Fraction(2, 3)), scale(poly, Fraction(3, 2)))
    squares = add(multiply(X, X, X, Y), multiply(X, X, X))
    assert split_content(squares, whole=False) == (multiply(X, X), add(multiply(X, Y), X))
    assert split_content(add(multiply(P, X), P), whole=False) == (
        P,
        add(X, number(1)),
    )
    assert split_content(add(X, Y), whole=True) == (number(1), add(X, Y))


def test_what_depends_on_an_index_inside_is_not_pulled_out() -> None:
    one, other = (atom(Head("name", "v", (), "positive"), [("o", place)]) for place in (-1, -2))
    poly = add(multiply(one, other, X), multiply(one, other))
    assert split_content(poly, whole=True) == (multiply(one, other), add(X, number(1)))
    assert split_content(poly, whole=True, inside=frozenset([("o", -1)])) == (other, add(multiply(one, X), one))


def test_what_is_zero_after_all_has_no_content() -> None:
    below = power(add(X, Y), -1)
    zero = add(multiply(X, below), multiply(Y, below), number(-1))
    assert split_content(zero, whole=True) == (number(1), zero)
    assert split_content(scale(zero, 3), whole=False) == (number(1), scale(zero, 3))
    with pytest.raises(NoValue):
        power(zero, -1)


def test_a_sum_that_is_a_multiple_of_its_denominator_is_shorter() -> None:
    below = power(add(X, Y), -1)
    assert reduce_denominators(add(multiply(X, below), multiply(Y, below))) == number(1)
    assert reduce_denominators(add(multiply(X, X, below), multiply(X, Y, below))) == X
    assert reduce_denominators(scale(add(multiply(X, below), multiply(Y, below)), -2)) == number(-2)
    assert reduce_denominators(add(multiply(X, below, below), multiply(Y, below, below))) == below
    apart = add(multiply(X, below), scale(multiply(Y, below), 2))
    assert reduce_denominators(apart) == apart
    assert reduce_denominators(add(X, Y)) == add(X, Y)


def test_absolute_values_of_sums() -> None:
    assert absolute({}) == {}
    assert absolute(scale(P, -2)) == scale(P, 2)
    assert absolute(add(X, scale(Y, -1))) == absolute(add(Y, scale(X, -1)))
    assert absolute(scale(add(X, Y), -3)) == scale(absolute(add(X, Y)), 3)


def test_powers_that_are_too_large() -> None:
    names = {"x": "scalar", "y": "scalar"}
    assert same(parse("(x + y)^{40} - (x + y)^{40}", names), parse("0", names))
    for text in ("(x + y)^{41}", "2^{10001}"):
        with pytest.raises(TooLarge):
            normal(parse(text, names))
    normal(parse("x^{20000}", names))
    normal(parse("(-1)^{10001}", names))
