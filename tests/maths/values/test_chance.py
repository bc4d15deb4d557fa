"""Expectations at points: what a grid can give, and what it must not."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.values.arithmetic import Dual, Polynomial, Undefined, Unevaluable
from qkv.maths.values.evaluate import Variable, evaluate, expectation, ldl, random_vector

SYMBOLS = {
    "m": "scalar",
    "s": "positive",
    "mu": "vector[d]",
    "g": "random scalar ~ N(0, 1)",
    "h": "random scalar ~ N(m, s^2)",
    "p": "random scalar ~ (m, s^2)",
    "w": "random vector[d] ~ (mu, s^2 I)",
}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("E[|g|]", "0.7937"),
        ("E[|g|]", "0.9"),
        ("E[sign(g) g]", "0.7937"),
        ("E[relu(h)]", "m"),
        ("E[1/g]", "0"),
        ("E[g/h]", "0"),
        ("E[g/h]", "E[g/h]"),
        ("E[p^3]", "m^3 + 3 m s^2"),
        (r"E[\exp(p)]", r"\exp(m + s^2/2)"),
        ("E[(w^T w)^2]", r"(\mu^T\mu + d s^2)^2"),
    ],
)
def test_no_verdict_on_what_has_no_value_or_no_way_to_one(gold, answer):
    verdict = compare(gold, answer, SYMBOLS)
    assert (verdict.kind, verdict.evidence) == ("unreadable", None)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"E[\exp(h)]", r"\exp(m + s^2/2)"),
        ("E[p^2]", "m^2 + s^2"),
        ("E[w^T w]", r"\mu^T\mu + d s^2"),
    ],
)
def test_what_is_smooth_or_of_second_order_is_evaluated(gold, answer):
    assert compare(gold, answer, SYMBOLS)
    assert compare(gold, f"2 ({answer})", SYMBOLS).kind == "different"


def matrix(*rows: tuple[int, ...]) -> tuple[tuple[Fraction, ...], ...]:
    return tuple(tuple(map(Fraction, row)) for row in rows)


@pytest.mark.parametrize(
    "covariance",
    [
        matrix((4,)),
        matrix((4, 2), (2, 3)),
        matrix((1, 1), (1, 1)),
        matrix((0, 0), (0, 2)),
        matrix((2, 0, 0), (0, 3, 0), (0, 0, 0)),
        matrix((1, 2, 3), (2, 8, 10), (3, 10, 22)),
        matrix((1, 1, 2), (1, 1, 2), (2, 2, 5)),
        matrix((0, 0, 0), (0, 1, 1), (0, 1, 1)),
    ],
)
def test_a_covariance_is_a_triangle_times_a_diagonal_times_its_mirror(covariance) -> None:
    lower, middle = ldl(covariance)
    size = range(len(covariance))
    for i in size:
        assert lower[i][i] == 1
        assert all(lower[i][j] == 0 for j in size if j > i)
        for j in size:
            assert sum(lower[i][k] * middle[k] * lower[j][k] for k in size) == covariance[i][j]  # pyright: ignore


@pytest.mark.parametrize(
    ("covariance", "said"),
    [
        (matrix((1, 2), (3, 1)), "a covariance that is not symmetric"),
        (matrix((0, 1), (1, 1)), "no covariance"),
        (matrix((-1,)), "a negative variance"),
        (matrix((1, 2), (2, 1)), "a negative variance"),
    ],
)
def test_what_is_no_covariance(covariance, said) -> None:
    with pytest.raises(Undefined, match=said):
        ldl(covariance)


def test_moments_of_a_normal_variable() -> None:
    variable = Variable(Fraction(3), True)
    assert [variable.moment(order) for order in range(9)] == [1, 0, 3, 0, 27, 0, 405, 0, 105 * 81]


def test_a_name_is_its_mean_and_a_triangle_times_variables() -> None:
    drawn = random_vector("q", (Fraction(1), Fraction(2)), matrix((4, 2), (2, 3)), normal=True)
    assert [(v.variance, v.normal) for v in drawn.variables] == [(4, True), (2, True)]
    assert drawn.at([Fraction(1), Fraction(1)]) == (2, Fraction(7, 2))
    assert drawn.at([Fraction(0), Fraction(1)]) == (1, 3)
    assert drawn.symbolic() == (
        Polynomial({((("q", 0), 1),): Fraction(1), (): Fraction(1)}),
        Polynomial({((("q", 0), 1),): Fraction(1, 2), ((("q", 1), 1),): Fraction(1), (): Fraction(2)}),
    )
    number = random_vector("z", Fraction(5), Fraction(9), normal=False)
    assert number.at([Fraction(2)]) == 7
    assert number.scalar
    assert not number.variables[0].normal
    still = random_vector("z", Fraction(5), Fraction(0), normal=True)
    assert still.symbolic() == 5


def test_an_expectation_takes_its_own_variables_and_leaves_others() -> None:
    a, b = ("a", 0), ("b", 0)
    variables = {a: Variable(Fraction(2), True)}
    body = Polynomial(
        {
            ((a, 2), (b, 1)): Fraction(3),
            ((a, 1), (b, 1)): Fraction(7),
            ((b, 2),): Fraction(5),
            ((a, 4),): Fraction(1),
            (): Fraction(1),
        }
    )
    assert expectation(body, variables) == Polynomial(
        {((b, 1),): Fraction(6), ((b, 2),): Fraction(5), (): Fraction(13)}
    )
    assert expectation(Fraction(4), variables) == 4
    both = {a: Variable(Fraction(2), True), b: Variable(Fraction(1), True)}
    assert expectation(body, both) == 5 + 12 + 1


def test_an_expectation_needs_no_more_than_is_known() -> None:
    q = [("q", place) for place in range(3)]
    loose = {name: Variable(Fraction(2), False) for name in q}
    assert expectation(Polynomial({((q[0], 2),): Fraction(3)}), loose) == 6
    assert expectation(Polynomial({((q[0], 1), (q[1], 1)): Fraction(3)}), loose) == 0
    for monomial in (((q[0], 3),), ((q[0], 1), (q[1], 2)), ((q[0], 1), (q[1], 1), (q[2], 1))):
        with pytest.raises(Unevaluable, match="only the mean and covariance of q are known"):
            expectation(Polynomial({monomial: Fraction(1)}), loose)
    mixed = {**loose, ("z", 0): Variable(Fraction(3), True)}
    assert expectation(Polynomial({((q[0], 2), (("z", 0), 4)): Fraction(1)}), mixed) == 2 * 27


def test_slopes_of_an_expectation() -> None:
    a = ("a", 0)
    moving = {
        a: Variable(Dual(1, Fraction(4), Fraction(1)), True)
    }  # E[a²] is its variance, E[a⁴] three times its square
    assert expectation(Polynomial({((a, 2),): Fraction(1)}), moving) == Dual(1, Fraction(4), Fraction(1))
    assert expectation(Polynomial({((a, 4),): Fraction(1)}), moving) == Dual(1, Fraction(48), Fraction(24))
    still = {a: Variable(Fraction(4), True)}
    body = Dual(1, Polynomial({((a, 2),): Fraction(1)}), Polynomial({((a, 2),): Fraction(2), (): Fraction(1)}))
    assert expectation(body, still) == Dual(1, Fraction(4), Fraction(9))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("E[e^g]", math.exp(0.5)),
        ("E[e^{2g}]", math.exp(2)),
        ("E[e^{h}]", math.exp(3 + 2)),
        ("E[e^{g + h}]", math.exp(0.5 + 3 + 2)),
        ("E[g e^g]", math.exp(0.5)),
        ("E[e^{-g^2}]", 1 / math.sqrt(3)),
        ("Var(e^g)", math.exp(2) - math.exp(1)),
        ("Cov(g, e^g)", math.exp(0.5)),
        (r"E[\log(1 + e^{g})] - E[\log(1 + e^{-g})]", 0),
    ],
)
def test_expectations_on_a_grid(text, value) -> None:
    found = evaluate(parse(text, SYMBOLS), {}, {"m": Fraction(3), "s": Fraction(2)})
    assert float(found) == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("E[e^p]", Unevaluable, "only the mean and covariance of p are known"),
        ("E[p^3]", Unevaluable, "only the mean and covariance of p are known"),
        ("E[|g|]", Unevaluable, "what has a kink"),
        (r"E[\max(g, 0)]", Unevaluable, "what has a kink"),
        (r"E[\min(g, 0)]", Unevaluable, "what has a kink"),
        ("E[1/g]", Undefined, "division by zero|by what may be zero"),
        (r"E[\log g]", Undefined, "a logarithm of what is not positive"),
        ("E[e^{v_1 + v_2 + v_3}]", Unevaluable, "too many dimensions"),
        ("g", Unevaluable, "g has no value"),
    ],
)
def test_expectations_without_a_value(text, kind, said) -> None:
    symbols = {**SYMBOLS, "v": "random vector[3] ~ N(0, I)"}
    with pytest.raises(kind, match=said):
        evaluate(parse(text, symbols), {}, {"m": Fraction(3), "s": Fraction(2)})
