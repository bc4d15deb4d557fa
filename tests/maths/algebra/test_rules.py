"""Rules for several factors of one product."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from qkv.maths.algebra.monomials import DELTA, LESS, Factor, Head, add, atom, build, freeze, multiply, number, scale
from qkv.maths.algebra.normal import same
from qkv.maths.parsing.parse import parse

NAMES = {
    "s": "vector[n]", "w": "vector[m]", "F": "matrix[n,n]", "x": "scalar", "y": "scalar", "a": "scalar", "b": "scalar",
    "n": "natural", "m": "natural", "u": "vector[n]", "Sigma": "matrix[n,n]", "z": "nonnegative", "A": "matrix[n,n]",
    "q": "random vector[n] ~ N(u, Sigma)", "t": "vector[3]", "W": "matrix[n,m]",
}  # fmt: skip

PROVED = {
    "[i < j]": [
        (r"\sum_{i>j} s_i s_j", r"\sum_{i<j} s_i s_j"),
        (r"\sum_{i<j} s_i s_j", r"\frac12 ((\sum_i s_i)^2 - s^T s)"),
        (r"\sum_{i<j} s_i s_j^2 + \sum_{i>j} s_i s_j^2", r"\sum_{i \ne j} s_i s_j^2"),
        (r"\sum_{i<j} s_i^2 s_j + \sum_{i>j} s_i^2 s_j + \sum_i s_i^3", r"\sum_i s_i^2 \sum_j s_j"),
        (r"\sum_{i<j} (s_i + s_j)", r"(n - 1) \sum_i s_i"),
        (r"\sum_{i<j<k} s_i s_j s_k", r"\sum_{k>j>i} s_k s_i s_j"),
        (r"\sum_{i<j<k} s_i s_j s_k", r"\sum_{i<j} s_i s_j \sum_{k>j} s_k"),
        (r"\sum_{i<j} F_{ij} + \sum_{i>j} F_{ij}", r"\operatorname{sum}(F) - \operatorname{tr}(F)"),
        (r"\sum_{i<j} F_{ij} F_{ji}", r"\sum_{i>j} F_{ij} F_{ji}"),
        (r"\sum_{i<j} F_{ij} F_{ji}", r"\frac12 (\operatorname{tr}(F^2) - \sum_i F_{ii}^2)"),
        (r"(\sum_{i<j} s_i^2 s_j)(\sum_{k>l} w_k^2 w_l)", r"(\sum_{l<k} w_l w_k^2)(\sum_{j>i} s_i^2 s_j)"),
        (r"(\sum_{i<j} s_i^2 s_j)(\sum_{i>j} s_i^2 s_j)", r"(\sum_{i<j} s_i s_j^2)(\sum_{i<j} s_i^2 s_j)"),
        (r"s_i \sum_{j<i} u_j", r"s_i (\sum_j u_j - u_i - \sum_{j>i} u_j)"),
    ],
    "sign and value": [
        (r"\operatorname{sign}(x) |x|", "x"),
        (r"\operatorname{sign}(x) x", "|x|"),
        (r"\operatorname{sign}(x)^2 x", "x"),
        (r"\operatorname{sign}(x)^2 |x|", "|x|"),
        (r"\operatorname{sign}(x) x^3", "|x|^3"),
        (r"\operatorname{sign}(x) |x|^3", "x^3"),
        (r"\operatorname{sign}(x) x y", "|x| y"),
        (r"\operatorname{sign}(a - b) |a - b|", "a - b"),
        (r"\operatorname{sign}(a - b) |a - b|^3", "(a - b)^3"),
        (r"\operatorname{sign}(a - b) |b - a|", "a - b"),
        (r"\sum_i \operatorname{sign}(s_i) s_i", r"\sum_i |s_i|"),
        (r"\sum_i \operatorname{sign}(s_i) |s_i|", r"\sum_i s_i"),
        (r"\sum_i \operatorname{sign}(s_i)^2 s_i", r"\sum_i s_i"),
        (r"\sum_i \operatorname{sign}(s_i) s_i w_1", r"w_1 \|s\|_1"),
        (r"\sum_{i,j} \operatorname{sign}(F_{ij}) F_{ij}", r"\sum_{i,j} |F_{ij}|"),
        (r"\sum_j \operatorname{sign}(W_{ij}) W_{ij}", r"\sum_j |W_{ij}|"),
        (r"\sum_i \operatorname{sign}(F_{ii}) F_{ii}", r"\sum_i |F_{ii}|"),
        (r"\operatorname{sign}(\Sigma_{ij}) \Sigma_{ji} + 0 E[q_1]", r"|\Sigma_{ij}|"),
        (r"\sum_{i,j} \operatorname{sign}(\Sigma_{ij}) \Sigma_{ji} s_i + 0 E[q_1]", r"\sum_{i,j} |\Sigma_{ij}| s_i"),
    ],
    "a sum over itself": [
        (r"\sum_j softmax(F)_{ij}", "1"),
        (r"\sum_{i,j} softmax(F)_{ij} s_i", r"\sum_i s_i"),
        (r"\sum_j softmax(2s)_j", "1"),
        (r"\sum_j \frac{3\exp(s_j)}{\sum_k 2\exp(s_k)}", r"\frac32"),
        (r"\sum_j \frac{s_j x}{\sum_k s_k}", "x"),
        (r"\sum_j \frac{s_j^2}{\sum_k s_k^2}", "1"),
        (r"\sum_j \frac{s_j}{(\sum_k s_k)^2}", r"\frac{1}{\sum_k s_k}"),
        (r"\sum_j \frac{s_j u_j}{\sum_k u_k s_k}", "1"),
        (r"\sum_{i,j} \frac{s_i s_j}{(\sum_k s_k)^2}", "1"),
        (r"\sum_{i,j} \frac{F_{ij}}{\sum_k F_{ik}}", "n"),
        (r"\sum_{i,j} \frac{F_{ij} s_i}{\sum_k F_{ik}}", r"\sum_i s_i"),
    ],
    "a matrix and its inverse, in any order": [
        (r"\sum_j F_{ij} (F^{-1})_{jk} s_k", r"\delta_{ik} s_k"),
        (r"\sum_j (F^{-1})_{ij} F_{jk} s_k", r"\delta_{ik} s_k"),
        (r"\sum_{i,j} s_i F_{ij} (F^{-1})_{ji}", r"\sum_i s_i"),
        (r"\sum_{j} \Sigma_{ji} (\Sigma^{-1})_{jk} s_k + 0 E[q_1]", r"\delta_{ik} s_k"),
        (r"u^T \Sigma^{-1} \Sigma u + 0 E[q_1]", "u^T u"),
    ],
}  # fmt: skip

UNPROVED = [
    (r"\sum_{i<j} s_i s_j^2", r"\sum_{i>j} s_i s_j^2"),
    (r"\sum_{i<j} s_i s_j", r"\sum_{i \ne j} s_i s_j"),
    (r"\sum_{i<j} F_{ij}", r"\sum_{i>j} F_{ij}"),
    (r"\sum_{i<j<k} s_i s_j^2 s_k^3", r"\sum_{i<j<k} s_i s_j^3 s_k^2"),
    (r"(\sum_{i<j} s_i^2 s_j)(\sum_{k<l} w_k^2 w_l)", r"(\sum_{i<j} s_i^2 s_j)(\sum_{k>l} w_k^2 w_l)"),
    (r"\operatorname{sign}(x) y", "|y|"),
    (r"\operatorname{sign}(x) |y|", "y"),
    (r"\operatorname{sign}(x) x", "x"),
    (r"\operatorname{sign}(x)^2 x", "|x|"),
    (r"\operatorname{sign}(x)/x", "1/|x|^2"),
    (r"\operatorname{sign}(s_1) s_2", "|s_2|"),
    (r"\operatorname{sign}(s_1) |s_2|", "s_2"),
    (r"\sum_i \operatorname{sign}(s_i) \sum_j s_j", r"\|s\|_1"),
    (r"\sum_{i,j} softmax(F)_{ij} s_j", r"\sum_i s_i"),
    (r"\sum_i softmax(F)_{ij}", "1"),
    (r"\sum_j \frac{s_j^2}{\sum_k s_k}", "1"),
    (r"\sum_j \frac{s_j}{\sum_k s_k^2}", "1"),
    (r"\sum_j \frac{s_j}{\sqrt{\sum_k s_k}}", "1"),
    (r"\sum_j \frac{s_j u_j}{\sum_k s_k}", r"\sum_j u_j"),
    (r"\sum_{i,j} \frac{F_{ij}}{\sum_k F_{kj}} s_i", r"\sum_i s_i"),
    (r"\sum_{i,j} \frac{F_{ji}}{\sum_k F_{ik}}", "n"),
    (r"\sum_j F_{ji} (F^{-1})_{jk} s_k", r"\delta_{ik} s_k"),
    (r"\sum_j F_{ij} (F^{-1})_{jk} s_j", r"\delta_{ik} s_k"),
    (r"\sum_j F_{jj} (F^{-1})_{jk} s_k", "s_k"),
    (r"\sum_j F_{ij} (A^{-1})_{jk} s_k", r"\delta_{ik} s_k"),
    (r"\sum_j F_{ij}^2 (F^{-1})_{jk} s_k", r"\delta_{ik} s_k"),
]  # fmt: skip


@pytest.mark.parametrize("topic", PROVED)
def test_what_meets_in_a_product(topic: str) -> None:
    for left, right in PROVED[topic]:
        assert same(parse(left, NAMES), parse(right, NAMES)), (left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"\operatorname{sign}(F_{ij}) F_{ji}", "|F_{ji}|"),
        (r"\operatorname{sign}(F_{ij}) F_{ji}", "|F_{ij}|"),
        (r"\operatorname{sign}(F_{12}) F_{21}", "|F_{21}|"),
        (r"\operatorname{sign}(F_{ij}) |F_{ji}|", "F_{ji}"),
        (r"\sum_{i,j} \operatorname{sign}(F_{ij}) F_{ji}", r"\sum_{i,j} |F_{ij}|"),
        (r"\operatorname{sign}(\max(F_{ij}, s_i, s_j)) \max(F_{ji}, s_i, s_j)", r"|\max(F_{ij}, s_i, s_j)|"),
    ],
)  # fmt: skip
def test_the_sign_of_an_entry_says_nothing_of_the_entry_across_the_diagonal(left: str, right: str) -> None:
    assert not same(parse(left, NAMES), parse(right, NAMES))
    assert same(*(parse(side.replace("ji", "ij").replace("21", "12"), NAMES) for side in (left, right)))


def test_what_does_not_meet() -> None:
    for left, right in UNPROVED:
        assert not same(parse(left, NAMES), parse(right, NAMES)), (left, right)


ONE, OTHER = freeze(atom(Head("name", "n", (), "natural"))), freeze(atom(Head("name", "m", (), "natural")))


def pair(first: int, turned: bool, head: str) -> list[Factor]:
    """[i < j] a_i b_j² or [j < i] a_i b_j² with bound indices i = first and j = first + 1."""
    i, j = ("b", first), ("b", first + 1)
    less = Factor(LESS, (j, i) if turned else (i, j))
    return [less, Factor(Head("name", head), (i,)), Factor(Head("name", head), (j,), Fraction(2))]


@pytest.mark.parametrize(("one", "other", "swapped"), list(product((False, True), repeat=3)))
def test_each_of_two_pairs_is_put_in_order(one: bool, other: bool, swapped: bool) -> None:
    sizes = {0: ONE, 1: ONE, 2: ONE, 3: ONE}
    apart = [build(Fraction(1), pair(0, turned, head), {0: ONE, 1: ONE}) for turned, head in ((one, "v"), (other, "w"))]
    factors = [pair(0, one, "v"), pair(2, other, "w")]
    together = build(Fraction(1), [*factors[swapped], *factors[not swapped]], sizes)
    assert together == multiply(*apart)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_pair_of_different_sizes_is_left_alone(turned: bool, first: bool) -> None:
    unlike = [Factor(LESS, (("b", 0), ("b", 1)))]
    alike = pair(2, turned, "v")
    sizes = {0: ONE, 1: OTHER, 2: ONE, 3: ONE}
    together = build(Fraction(1), [*unlike, *alike] if first else [*alike, *unlike], sizes)
    apart = build(Fraction(1), unlike, {0: ONE, 1: OTHER}), build(Fraction(1), pair(0, turned, "v"), {0: ONE, 1: ONE})
    assert together == multiply(*apart)
    assert apart[0] != build(Fraction(1), [Factor(LESS, (("b", 1), ("b", 0)))], {0: ONE, 1: OTHER})


def test_of_less_and_more_one_is_kept() -> None:
    i, j = ("f", "i"), ("f", "j")
    less, more, equal = atom(LESS, (i, j)), atom(LESS, (j, i)), atom(DELTA, (i, j))
    assert more == add(number(1), scale(less, -1), scale(equal, -1))
    assert atom(LESS, (("c", 2), ("c", 3))) == number(1)
    assert atom(LESS, (("c", 3), ("c", 2))) == {}
    assert multiply(less, less) == less
    assert atom(LESS, (i, i)) == {}
    assert multiply(less, equal) == {}
