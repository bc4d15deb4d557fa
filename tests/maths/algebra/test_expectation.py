"""Moments against closed forms, and which products have a mean."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.algebra.expectation import FASTER, UNKNOWN, growth, has_mean, independent_groups, without_softmax_weights
from qkv.maths.algebra.heads import closed
from qkv.maths.algebra.indices import entry, scope_of
from qkv.maths.algebra.monomials import Factor, Head, atom, multiply
from qkv.maths.algebra.normal import NotNormal, normal, same
from qkv.maths.parsing.parse import parse
from qkv.maths.values.evaluate import evaluate

ANY = {
    "mu_q": "vector[d]", "mu_k": "vector[d]", "Sigma_q": "matrix[d,d]", "Sigma_k": "matrix[d,d]", "A": "matrix[d,d]",
    "q": "random vector[d] ~ (mu_q, Sigma_q)", "k": "random vector[d] ~ (mu_k, Sigma_k)", "c": "scalar",
    "u": "vector[d]", "d": "natural",
}  # fmt: skip


NORMAL = {
    "mu": "vector[d]", "sigma": "positive", "d": "natural", "m": "scalar", "s": "positive", "u": "vector[d]",
    "q": "random vector[d] ~ N(mu, sigma^2 I)", "k": "random vector[d] ~ N(mu, sigma^2 I)",
    "x": "random scalar ~ N(m, s^2)", "y": "random scalar ~ N(0, 1)", "A": "matrix[d,d]",
    "w": "random scalar ~ N(0, 1)", "t": "scalar = m^2", "z": "random scalar ~ N(t, 1)", "v": "scalar = x^2",
}  # fmt: skip


PROVED = [
    (ANY, r"E[q^T k]", r"\mu_q^T \mu_k"),
    (ANY, r"E[c q + u]", r"c \mu_q + u"),
    (ANY, r"Cov(q, q)", r"\Sigma_q"),
    (ANY, r"Cov(q, q)", r"\Sigma_q^T"),
    (ANY, r"E[q q^T]", r"\Sigma_q + \mu_q \mu_q^T"),
    (ANY, r"Cov(A q, A q)", r"A \Sigma_q A^T"),
    (ANY, r"Var(u^T q)", r"u^T \Sigma_q u"),
    (ANY, r"E[q^T A q]", r"\operatorname{tr}(A \Sigma_q) + \mu_q^T A \mu_q"),
    (ANY, r"E[\|q\|^2]", r"\operatorname{tr}(\Sigma_q) + \|\mu_q\|^2"),
    (ANY, r"Var(q^T k)", r"\operatorname{tr}(\Sigma_q\Sigma_k) + \mu_q^T\Sigma_k\mu_q + \mu_k^T\Sigma_q\mu_k"),
    (ANY, r"Cov(q^T u, k^T u)", r"0"),
    (ANY, r"E[\exp(u^T q)] E[k]", r"\mu_k E[\exp(q^T u)]"),
    (ANY, r"E[\exp(u^T q) u^T k]", r"u^T\mu_k E[\exp(u^T q)]"),
    (NORMAL, r"E[q^T k]", r"\mu^T \mu"),
    (NORMAL, r"Var(q^T k)", r"d\sigma^4 + 2\sigma^2\mu^T\mu"),
    (NORMAL, r"Var(q^T k / \sqrt{d})", r"\sigma^4 + 2\sigma^2\mu^T\mu/d"),
    (NORMAL, r"E[x^3]", r"m^3 + 3 m s^2"),
    (NORMAL, r"E[y^6]", r"15"),
    (NORMAL, r"Var(x^2)", r"2 s^4 + 4 m^2 s^2"),
    (NORMAL, r"Var(\|q\|^2)", r"2 d \sigma^4 + 4\sigma^2 \mu^T\mu"),
    (NORMAL, r"E[x y]", r"0"),
    # what is sure to have a mean leaves no doubt about a zero factor
    (NORMAL, r"E[y \exp(x)]", r"0"),
    (NORMAL, r"E[y |x|]", r"0"),
    (NORMAL, r"E[y / (1 + x^2)]", r"0"),
    (NORMAL, r"E[y \log(1 + x^2)]", r"0"),
    (NORMAL, r"E[y \, softmax(A q)_i]", r"0"),
    (NORMAL, r"E[x / w]", r"m E[1/w]"),
]  # fmt: skip


UNPROVED = [
    (ANY, r"Var(q^T k)", r"\operatorname{tr}(\Sigma_q\Sigma_k)"),
    (ANY, r"E[q q^T]", r"\Sigma_q"),
    (ANY, r"E[\exp(u^T q)]", r"\exp(u^T \mu_q)"),
    (ANY, r"E[\|q\|]", r"\|\mu_q\|"),
    (ANY, r"E[(u^T q)^3]", r"(u^T \mu_q)^3 + 3 u^T\mu_q u^T\Sigma_q u"),
    (NORMAL, r"Var(q^T k)", r"d\sigma^4"),
    (NORMAL, r"Var(q^T q)", r"d\sigma^4 + 2\sigma^2\mu^T\mu"),
    (NORMAL, r"E[x^2]", r"E[x]^2"),
    (NORMAL, r"E[1/x]", r"1/m"),
    # a zero times what may have no mean is not zero
    (NORMAL, r"E[y / w]", r"0"),
    (NORMAL, r"E[y / w^2]", r"0"),
    (NORMAL, r"E[y \log(w)]", r"0"),
    (NORMAL, r"E[y \sqrt{w}]", r"0"),
    (NORMAL, r"E[y \exp(w^2)]", r"0"),
    (NORMAL, r"E[(x - m) / w]", r"0"),
    (NORMAL, r"E[y / w + \exp(w)]", r"E[\exp(w)]"),
    (NORMAL, r"E[y / (w + 1)]", r"0"),
    (NORMAL, r"Cov(1/w, x)", r"0"),
    (NORMAL, r"Cov(1/w, y)", r"0"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "left", "right"), PROVED)
def test_moments(names: dict[str, str], left: str, right: str) -> None:
    a = parse(left, names)
    assert same(a, parse(right, names, expected=a.shape))


@pytest.mark.parametrize(("names", "left", "right"), UNPROVED)
def test_wrong_moments_are_not_proved(names: dict[str, str], left: str, right: str) -> None:
    assert not same(parse(left, names), parse(right, names))


@pytest.mark.parametrize("order", range(7))
def test_the_moments_of_a_scalar_follow_the_recurrence_of_a_normal_law(order: int) -> None:
    # E[x^{n+1}] = m E[x^n] + n s² E[x^{n-1}], by parts.
    left = parse(f"E[x^{order + 2}]", NORMAL)
    right = parse(f"m E[x^{order + 1}] + {order + 1} s^2 E[x^{order}]", NORMAL)
    assert same(left, right)
    assert "expect" not in repr(normal(left))


BY_A_PARAMETER = [
    (r"\frac{\partial}{\partial m} E[x^2]", r"2 m"),
    (r"\frac{\partial}{\partial m} E[z]", r"2 m"),
    (r"\frac{\partial}{\partial t} E[z^2]", r"2 t"),
    (r"\frac{\partial}{\partial \sigma} Var(q^T k)", r"4 d \sigma^3 + 4 \sigma \mu^T\mu"),
    (r"\frac{\partial}{\partial \mu_i} E[q^T q]", r"2 \mu_i"),
]


@pytest.mark.parametrize(("left", "right"), BY_A_PARAMETER)
def test_moments_by_a_parameter_of_their_law(left: str, right: str) -> None:
    one, other = parse(left, NORMAL), parse(right, NORMAL)
    assert same(one, other)
    point = {"m": 5, "s": 2, "sigma": 3, "mu": (1, 2, 7), "i": 2}
    assert evaluate(one, {"d": 3}, point) == evaluate(other, {"d": 3}, point) != 0


@pytest.mark.parametrize("body", [r"\exp(x)", r"\exp(v)", r"\exp(z)", r"|z| m", r"\exp(\mathbf{1}^T q)"])
def test_what_is_no_moment_is_not_constant_in_the_parameters_of_its_law(body: str) -> None:
    by = r"\mu_i" if "q" in body else "m"
    for whole in (f"E[{body}]", rf"\exp(E[{body}])"):
        with pytest.raises(NotNormal):
            same(parse(rf"\frac{{\partial}}{{\partial {by}}} {whole}", NORMAL), parse("0", NORMAL))
    # It is in what its law does not mention.
    assert same(parse(rf"\frac{{\partial}}{{\partial u_i}} E[{body}]", NORMAL), parse("0", NORMAL))


def test_an_expectation_has_no_derivative_by_what_it_averages_over() -> None:
    with pytest.raises(NotNormal):
        normal(parse(r"\frac{\partial}{\partial v} E[v^2]", NORMAL))


def test_a_variance_of_zero_still_has_a_derivative() -> None:
    names = {"c": "nonnegative", "x": "random scalar ~ N(0, c)"}
    assert evaluate(parse(r"\frac{\partial}{\partial c} E[x^2]", names), {}, {"c": 0}) == Fraction(1)


MORE = {
    "what is independent comes apart": [
        (r"E[x y \exp(w)]", r"0"),
        (r"E[x \exp(w) |y|]", r"m E[\exp(w)] E[|y|]"),
        (r"E[\exp(w) \exp(y)]", r"E[\exp(w)] E[\exp(y)]"),
        (r"E[x^2 y^2]", r"m^2 + s^2"),
        (r"E[c x]", r"c m"),
        (r"E[3]", r"3"),
        (r"E[c]", r"c"),
        (r"Var(c)", r"0"),
        (r"Var(x + c)", r"s^2"),
        (r"Var(2x - y)", r"4 s^2 + 1"),
        (r"Cov(x, y)", r"0"),
        (r"Cov(x, x + y)", r"s^2"),
        (r"Cov(x^2, x)", r"2 m s^2"),
        (r"E[E[x] x]", r"m^2"),
        (r"E[\sum_i q_i u_i]", r"\mu^T u"),
        (r"E[q_i q_j]", r"\mu_i \mu_j + \sigma^2 \delta_{ij}"),
        (r"E[q_i k_j]", r"\mu_i \mu_j"),
        (r"E[(u^T q)^4]", r"(u^T\mu)^4 + 6 (u^T\mu)^2 \sigma^2 u^T u + 3 \sigma^4 (u^T u)^2"),
        (r"E[\exp(x y)]", r"E[\exp(y x)]"),
        (r"E[x / w]", r"m E[1/w]"),
        (r"E[2/w + x]", r"2 E[1/w] + m"),
        (r"Cov(1/w, 2/w)", r"2 Var(1/w)"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("topic", MORE)
def test_more_moments(topic: str) -> None:
    names = {**NORMAL, "c": "scalar"}
    for left, right in MORE[topic]:
        assert same(parse(left, names), parse(right, names)), (left, right)


def test_more_than_two_components_need_a_normal_law() -> None:
    names = {"x": "random scalar ~ (m, v)", "m": "scalar", "v": "positive"}
    assert same(parse("E[x^2]", names), parse("m^2 + v", names))
    assert not same(parse("E[x^3]", names), parse("m^3 + 3 m v", names))
    assert "expect" in repr(normal(parse("E[x^3]", names)))
    assert "expect" not in repr(normal(parse("E[x^2]", names)))
    assert not same(parse(r"E[x^2 \exp(x)]", names), parse(r"(m^2 + v) E[\exp(x)]", names))


def test_factors_go_into_groups_that_share_no_name() -> None:
    def factor(*names: str) -> Factor:
        body = multiply(*(atom(Head("random", name)) for name in names))
        return Factor(Head("random", names[0])) if len(names) == 1 else closed("exp", [body])[0]

    a, b, c, both, other = factor("a"), factor("b"), factor("c"), factor("a", "b"), factor("b", "c")
    assert [(set(n), g) for n, g in independent_groups([a, b])] == [({"a"}, [a]), ({"b"}, [b])]
    assert [(set(n), g) for n, g in independent_groups([a, b, both])] == [({"a", "b"}, [b, a, both])]
    assert [(set(n), g) for n, g in independent_groups([a, c, both])] == [({"c"}, [c]), ({"a", "b"}, [a, both])]
    assert [set(n) for n, _ in independent_groups([both, other])] == [{"a", "b", "c"}]
    assert independent_groups([]) == []


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
