"""Which products of random things are sure to have a mean."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.algebra.expectation import FASTER, UNKNOWN, growth, has_mean, without_softmax_weights
from qkv.maths.algebra.indices import entry, scope_of
from qkv.maths.algebra.monomials import Factor, Head
from qkv.maths.algebra.normal import same
from qkv.maths.parsing.parse import parse

NAMES = {
    "x": "random scalar ~ N(0, 1)", "y": "random scalar ~ N(0, 1)", "w": "random scalar ~ N(0, 1)",
    "q": "random vector[n] ~ N(0, I)", "c": "scalar", "p": "positive", "n": "natural", "u": "vector[n]",
    "A": "matrix[n,n]", "g": "map scalar -> scalar", "z": "nonnegative",
}  # fmt: skip


def factors_of(text: str) -> list[Factor]:
    """The factors of what is one product."""
    node = parse(text, NAMES)
    ((monomial, _),) = entry(node, (), scope_of(node)).items()
    return list(monomial.factors)


POWERS = [
    ("c", 0),
    ("1/p", 0),
    (r"\sqrt{c}", 0),
    ("c^n", 0),
    ("x", 1),
    ("x^3", 3),
    ("1/x", UNKNOWN),
    (r"\operatorname{sign}(x)", 0),
    (r"\operatorname{sign}(x + \log y)", UNKNOWN),
    (r"\operatorname{argmax}(q)", 0),
    (r"\max(x, x^2, c)", 2),
    (r"\max(q)", 1),
    (r"\max(q)^2", 2),
    (r"\max(x, 1/y, c)", UNKNOWN),
    ("g(x^2)", FASTER),
    ("g(x)^2", FASTER),
    ("g(1/x)", UNKNOWN),
    ("x^n", FASTER),
    ("(1/x + y)^n", UNKNOWN),
    ("x^c", UNKNOWN),
    (r"\prod_{i=1}^n (q_i + 1)", FASTER),
    (r"\det(q q^T + A)", FASTER),
    (r"\exp(x)", FASTER),
    (r"\exp(c x)", FASTER),
    (r"1/\exp(x)", FASTER),
    (r"\exp(|x|)", FASTER),
    (r"\exp(\sqrt{1 + x^2})", FASTER),
    (r"\exp(x^2)", UNKNOWN),
    (r"\exp(x y)", UNKNOWN),
    (r"\exp(\exp(x))", UNKNOWN),
    (r"\log(1 + x^2)", 2),
    (r"\log(1 + x)", UNKNOWN),
    (r"\log(x^2 + z)", UNKNOWN),
    (r"|x|", 1),
    (r"\sqrt{|x|}", 0.5),
    (r"|x^3 - y|", 3),
    (r"|\exp(x) - y|", FASTER),
    (r"\sqrt{1 + x^2}", 1),
    (r"\sqrt{1 + x^4}", 2),
    (r"\sqrt{1 + x}", UNKNOWN),
    (r"\sqrt{\exp(x) + 1}", FASTER),
    (r"1/(1 + x)", UNKNOWN),
    (r"1/(1 + x^2)", FASTER),
    (r"1/(p + x^2)^2", FASTER),
    (r"1/(c^2 + x^2)", UNKNOWN),
    (r"1/(1 + \exp(x))", FASTER),
    (r"1/(\exp(x) + \exp(2y))", FASTER),
    (r"1/(\exp(x y) + x^2)", UNKNOWN),
    (r"1/(\exp(x) y^2 + 1)", FASTER),
]  # fmt: skip


@pytest.mark.parametrize("start", range(0, len(POWERS), 12))
def test_what_a_factor_grows_by(start: int) -> None:
    for text, power in POWERS[start : start + 12]:
        found = factors_of(text)
        assert max(map(growth, found), default=0) == power, text
        assert has_mean(found) == (power < UNKNOWN), text


@pytest.mark.parametrize(
    "text",
    [
        r"1/\max(q)", "1/x^n", r"1/\prod_{i=1}^n q_i", r"1/\det(q q^T + A)", r"1/\max(x, x^2, c)", "1/g(x)",
        r"1/\log(1 + x^2)", r"1/\operatorname{sign}(\max(x, 0))", r"1/(1 + \log(x)^2)", r"1/\prod_{i=1}^n q_i^2",
    ],
)  # fmt: skip
def test_one_over_what_may_be_zero_or_without_a_value_has_no_mean(text: str) -> None:
    assert not has_mean(factors_of(text))
    assert not same(parse(f"E[y {text}]" if "y" not in text else f"E[w {text}]", NAMES), parse("0", NAMES))


@pytest.mark.parametrize(
    "text",
    [
        r"1/\max(1 + x^2, x, c)",
        r"1/\max_i (1 + q_i^2)",
        r"1/\prod_{i=1}^n (1 + q_i^2)",
        r"1/\operatorname{argmax}(q)",
    ],
)
def test_one_over_what_is_kept_from_zero_has_a_mean(text: str) -> None:
    assert has_mean(factors_of(text))
    assert same(parse(f"E[w {text}]", NAMES), parse("0", NAMES))


@pytest.mark.parametrize(
    "text", [r"\exp(g(x))", r"\exp(\max(q)^2)", r"\exp(\log(1 + x^2)^2)", r"\exp(\max(x, y, c)^3)"]
)
def test_the_exponential_of_what_may_grow_fast_has_no_mean(text: str) -> None:
    assert not has_mean(factors_of(text))
    assert not same(parse(f"E[w {text}]", NAMES), parse("0", NAMES))


def test_what_is_positive_only_for_the_naturals_is_kept_from_zero_by_what_is_left_at_one() -> None:
    # At n = 1 nothing is left but exp(x y), and 1/exp(x y) has no mean.
    assert not has_mean(factors_of(r"1/(n \exp(x) - \exp(x) + \exp(x y))"))
    assert has_mean(factors_of(r"1/(n \exp(x y) - \exp(x y) + \exp(x))"))


def test_an_exponential_under_a_law_of_which_only_mean_and_variance_are_known_has_no_mean() -> None:
    names = {**NAMES, "v": "random scalar ~ (0, 1)"}
    zero = parse("0", names)
    for text in (r"\exp(c v)", r"\frac{1}{\exp(v) + \exp(2v)}", r"\exp(v + x)"):
        assert not same(parse(f"E[w {text}]", names), zero), text
        assert same(parse(f"E[w {text.replace('v', 'y')}]", names), zero), text
    for text in ("v^2", r"\exp(\operatorname{sign}(v))", r"\frac{\exp(v)}{1 + \exp(v)}"):
        assert same(parse(f"E[w {text}]", names), zero), text


def test_a_weight_of_what_has_no_value_is_no_weight() -> None:
    for text in (r"\frac{\exp(\sqrt{x})}{1 + \exp(\sqrt{x})}", r"\frac{1}{1 + \exp(\log(x)^2)}"):
        assert not has_mean(factors_of(text)), text
        assert not same(parse(f"E[w {text}]", NAMES), parse("0", NAMES)), text


def test_a_mean_is_a_number() -> None:
    assert growth(factors_of(r"E[g(x)]")[0]) == 0


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{1}{1 + \exp(x^2)}",
        r"\frac{\exp(x^2)}{1 + \exp(x^2)}",
        r"\frac{\exp(x^2)}{(1 + \exp(x^2))^2}",
        r"\frac{\exp(x^2)}{\exp(y^2) + \exp(x^2)}",
        r"\frac{\exp(y^2)}{\exp(y^2) + \exp(x^2)}",
        r"\frac{\exp(x^2)}{3\exp(y^2) + 2\exp(x^2)}",
        r"\frac{\exp(x^2)\exp(x y)}{\exp(y^2) + \exp(x^2)\exp(x y)}",
        r"softmax(q \odot q)_i",
        r"softmax(q \odot q)_i softmax(q \odot q)_j",
        r"softmax(q (q \odot u)^T)_{ij}",
        r"softmax(q \odot q \odot u)_i",
        r"\frac{\exp(q_i^2) \exp(u_i q_i^3)}{\sum_j \exp(q_j^2) \exp(u_j q_j^3)}",
        r"\frac{\exp(x^2)^2}{(\exp(x^2) + \exp(y^2))^2}",
    ],
)  # fmt: skip
def test_weights_between_0_and_1_are_bounded_whatever_they_are_of(text: str) -> None:
    assert not without_softmax_weights(factors_of(text))
    assert has_mean(factors_of(text))
    assert same(parse(f"E[w {text}]", NAMES), parse("0", NAMES))


@pytest.mark.parametrize(
    "text",
    [
        r"\exp(x^2)",
        r"\frac{\exp(x^2)}{1 + \exp(y^2)}",
        r"\frac{\exp(x^2)^2}{1 + \exp(x^2)}",
        r"\frac{\exp(x^2)}{\exp(x^2) - 1}",
        r"\frac{\exp(x^2)}{c + \exp(x^2)}",
        r"\frac{\exp(x^2)}{\exp(x^2) - \exp(y^2)}",
        r"\frac{\exp(q_j^2)}{\sum_i \exp(u_i q_i^2)}",
        r"\frac{\exp(q_i q_j)}{\sum_k \exp(q_k q_l)}",
        r"\frac{\exp(x^2)}{1 + \exp(x^2) \exp(y^2)}",
        r"\frac{\exp(q_1^2)}{\sum_i \exp(u_i q_i^2)}",
        r"\frac{\exp(x^2)}{\sqrt{1 + \exp(x^2)}}",
        r"\frac{\exp(x^2)}{x (1 + \exp(x^2))}",
    ],
)  # fmt: skip
def test_what_is_no_such_weight_may_be_large(text: str) -> None:
    assert not has_mean(factors_of(text))
    assert not same(parse(f"E[w {text}]", NAMES), parse("0", NAMES))


def test_only_the_factors_of_a_weight_are_taken_away() -> None:
    above, below = factors_of(r"\frac{\exp(x^2)}{\exp(y^2) + \exp(x^2)}")
    other, another = Factor(Head("random", "y"), (), Fraction(-1)), Factor(Head("random", "w"))
    for order in ([above, below, other, another], [other, below, above, another], [below, other, another, above]):
        assert without_softmax_weights(order) == [other, another]
    assert without_softmax_weights([below, other]) == [below, other]
    twice = [above._replace(exponent=Fraction(3)), other, below._replace(exponent=Fraction(-2))]
    assert without_softmax_weights(twice) == [above, other]
    half = [above, below._replace(exponent=Fraction(-1, 2))]
    assert without_softmax_weights(half) == half


def test_a_weight_stands_at_one_place() -> None:
    assert not without_softmax_weights(factors_of(r"\frac{\exp(q_i q_j u_j)}{\sum_k \exp(q_i q_k u_k)}"))
    assert len(without_softmax_weights(factors_of(r"\frac{\exp(q_l q_j u_j)}{\sum_k \exp(q_i q_k u_k)}"))) == 2
    both = r"\frac{\exp(q_i^2 u_j) \exp(q_i^3)}{\sum_k \exp(q_k^2 u_j) \exp(q_k^3)}"
    assert not without_softmax_weights(factors_of(both))
    apart = r"\frac{\exp(q_i^2 u_j) \exp(q_l^3)}{\sum_k \exp(q_k^2 u_j) \exp(q_k^3)}"
    assert len(without_softmax_weights(factors_of(apart))) == 3
