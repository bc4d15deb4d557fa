"""Evaluation against numpy and by hand, and expectations on a grid."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import (
    Add,
    Call,
    Constant,
    Contract,
    Covariance,
    Delta,
    Derivative,
    Divide,
    Expect,
    Hadamard,
    Index,
    Law,
    Multiply,
    Node,
    Number,
    Outer,
    Part,
    Power,
    Special,
    Sum,
    Symbol,
    Transpose,
    Type,
    Written,
)
from qkv.maths.values.arithmetic import Dual, Polynomial, Undefined, Unevaluable, digits, whole_root
from qkv.maths.values.evaluate import (
    Sides,
    Variable,
    evaluate,
    evaluate_with_error,
    expectation,
    ldl,
    random_vector,
    side_of,
)

SIZES = {"n": 3, "d": 5}


SHAPES: dict[str, tuple[str, ...]] = {
    "a": (),
    "b": (),
    "u": ("d",),
    "v": ("d",),
    "w": ("n",),
    "A": ("n", "d"),
    "B": ("d", "d"),
}


KINDS = {0: "scalar", 1: "vector", 2: "matrix"}


SYMBOLS = {name: Symbol(shape, name, Type(KINDS[len(shape)], shape)) for name, shape in SHAPES.items()}


def number(value: int | str) -> Number:
    return Number((), Fraction(value))


def values_for(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)

    def filled(shape: tuple[str, ...]) -> Any:
        return tuple(filled(shape[1:]) for _ in range(SIZES[shape[0]])) if shape else Fraction(draw.randint(-4, 4) or 1)

    return {name: filled(shape) for name, shape in SHAPES.items()}


def tree(draw: random.Random, shape: tuple[str, ...], depth: int) -> tuple[Node, Any]:
    """A random tree and what numpy makes of it, as a function of the values."""
    leaves = [name for name, s in SHAPES.items() if s == shape]
    if depth == 0 or draw.random() < 0.15:
        if not leaves or draw.random() < 0.2:
            return Special(shape, "ones") if shape else number(
                2
            ), lambda x: np.ones([SIZES[s] for s in shape]) * (1 if shape else 2)
        name = draw.choice(leaves)
        return SYMBOLS[name], lambda x: x[name]

    def below(inner: tuple[str, ...]) -> tuple[Node, Any]:
        return tree(draw, inner, depth - 1)

    kinds = ["add", "scale", "divide", "exp"]
    kinds += ["dot", "norm", "sum", "trace"] if not shape else ["hadamard"]
    kinds += {(): [], ("d",): ["apply", "part"], ("n",): ["apply"], ("n", "d"): ["outer", "product"]}.get(
        shape, ["outer"]
    )
    match draw.choice(kinds):
        case "add":
            (a, f), (b, g) = below(shape), below(shape)
            return Add(shape, (a, b)), lambda x: f(x) + g(x)
        case "scale":
            (a, f), (b, g) = below(()), below(shape)
            return Multiply(shape, (a, b)), lambda x: f(x) * g(x)
        case "divide":
            (a, f), (b, g) = below(shape), below(())
            return Divide(shape, a, Add((), (number(3), Power((), b, number(2))))), lambda x: f(x) / (3 + g(x) ** 2)
        case "exp":
            a, f = below(shape)
            return Call(shape, "relu", (a,)), lambda x: np.maximum(f(x), 0)
        case "dot":
            (a, f), (b, g) = below(("d",)), below(("d",))
            return Contract((), Transpose((1, "d"), a), b), lambda x: f(x) @ g(x)
        case "norm":
            a, f = below(("n",))
            return Power((), Call((), "norm", (a,)), number(2)), lambda x: np.sum(f(x) ** 2)
        case "sum":
            a, f = below(("d",))
            i = Index((), "i", "d")
            return Sum((), (i,), Part((), a, (i,))), lambda x: np.sum(f(x))
        case "trace":
            a, f = below(("d", "d"))
            return Call((), "trace", (a,)), lambda x: np.trace(f(x))
        case "hadamard":
            (a, f), (b, g) = below(shape), below(shape)
            return Hadamard(shape, a, b), lambda x: f(x) * g(x)
        case "apply":
            (a, f), (b, g) = below((*shape, "d")), below(("d",))
            return Contract(shape, a, b), lambda x: f(x) @ g(x)
        case "part":
            a, f = below(("n", "d"))
            return Part(shape, a, (number(2),)), lambda x: f(x)[1]
        case "product":
            (a, f), (b, g) = below(("n", "d")), below(("d", "d"))
            return Contract(shape, a, b), lambda x: f(x) @ g(x)
    (a, f), (b, g) = below(shape[:1]), below(shape[1:])
    return Outer(shape, a, b), lambda x: np.outer(f(x), g(x))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), ("d",), ("n",), ("n", "d"), ("d", "d")])
def test_random_trees_are_what_numpy_says(shape):
    for seed in range(60):
        node, oracle = tree(random.Random(seed), shape, 4)
        values = values_for(seed)
        arrays = {name: np.array(value, dtype=object).astype(float) for name, value in values.items()}
        found = np.array(evaluate(node, SIZES, values), dtype=object).astype(float)
        np.testing.assert_allclose(found, oracle(arrays), rtol=1e-9, atol=1e-9)


def test_whole_numbers_stay_exact_and_roots_of_squares_too():
    assert evaluate(Power((), number("4/9"), number("1/2")), {}, {}) == Fraction(2, 3)
    assert evaluate(Power((), number("8/27"), number("-2/3")), {}, {}) == Fraction(9, 4)
    assert [whole_root(k**3, 3) for k in range(50)] == list(range(50))
    assert whole_root(10**40 + 1, 2) is None


def test_irrational_numbers_have_their_digits():
    two = evaluate(Power((), Call((), "sqrt", (number(2),)), number(2)), {}, {})
    with digits():
        assert abs(two - 2) < Fraction(1, 10**55)
    assert abs(float(evaluate(Constant((), "pi"), {}, {})) - math.pi) < 1e-15
    assert abs(float(evaluate(Constant((), "e"), {}, {})) - math.e) < 1e-15


@pytest.mark.parametrize(
    "node",
    [
        Divide((), number(1), number(0)),
        Call((), "log", (number(-1),)),
        Call((), "sqrt", (number(-2),)),
        Power((), number(0), number(-1)),
        Part((), Written((2,), (number(1), number(2))), (number(3),)),
        Power((2, 2), Written((2, 2), tuple(map(number, (1, 2, 2, 4)))), number(-1)),
        Power((), Number((), Fraction(7)), Power((), number(10), number(40))),
    ],
)
def test_what_has_no_value_says_so(node):
    with pytest.raises((Undefined, Unevaluable)):
        evaluate(node, {}, {})


def test_a_long_sum_stops_at_its_budget():
    i, j, k = (Index((), name, "n") for name in "ijk")
    with pytest.raises(Unevaluable):
        evaluate(Sum((), (i, j, k), Multiply((), (i, j, k))), {"n": 211}, {})


def test_inverse_and_determinant():
    rows = ((2, 1, 0), (1, 3, 1), (0, 1, 5))
    matrix = Written((3, 3), tuple(number(entry) for row in rows for entry in row))
    product = evaluate(Contract((3, 3), Power((3, 3), matrix, number(-1)), matrix), {}, {})
    assert product == tuple(tuple(Fraction(i == j) for j in range(3)) for i in range(3))
    assert float(evaluate(Call((), "det", (matrix,)), {}, {})) == pytest.approx(np.linalg.det(np.array(rows)))


def test_sums_with_conditions_and_products():
    i, j = Index((), "i", "n"), Index((), "j", "n")
    body = Multiply((), (i, j))
    for n in (1, 2, 5, 7):
        wanted = sum(a * b for a in range(1, n + 1) for b in range(a + 1, n + 1))
        assert evaluate(Sum((), (i, j), body, (("<", i, j),)), {"n": n}, {}) == wanted
        assert evaluate(Sum((), (i, j), body, (("!=", i, j),)), {"n": n}, {}) == 2 * wanted
        assert evaluate(Sum((), (i,), i, product=True), {"n": n}, {}) == math.factorial(n)


def test_softmax_has_the_jacobian_that_it_has():
    s = Symbol(("n",), "s", Type("vector", ("n",)))
    a = Symbol(("n",), "a", Type("vector", ("n",), definition=Call(("n",), "softmax", (s,))))
    i, j = Index((), "i", "n"), Index((), "j", "n")
    a_i, a_j = Part((), a, (i,)), Part((), a, (j,))
    derivative = Derivative((), a_i, Part((), s, (j,)))
    formula = Multiply((), (a_i, Add((), (Delta((), i, j), Multiply((), (number(-1), a_j))))))
    values = {"s": (1, -2, 3)}
    for x in (1, 2, 3):
        for y in (1, 2, 3):
            here = {**values, "i": x, "j": y}
            assert float(evaluate(derivative, {"n": 3}, here)) == pytest.approx(
                float(evaluate(formula, {"n": 3}, here))
            )
    whole_jacobian = evaluate(Derivative(("n", "n"), a, s), {"n": 3}, values)
    assert float(whole_jacobian[0][2]) == pytest.approx(
        float(evaluate(derivative, {"n": 3}, {**values, "i": 1, "j": 3}))
    )


def test_a_second_derivative_and_the_order_of_axes():
    x = Symbol((), "x", Type("scalar"))
    cube = Power((), x, number(3))
    assert evaluate(Derivative((), Derivative((), cube, x), x), {}, {"x": 5}) == 30
    A, u = SYMBOLS["A"], SYMBOLS["u"]
    values = values_for(1)
    assert evaluate(Derivative(("n", "d"), Contract(("n",), A, u), u), SIZES, values) == values["A"]


def gaussian(name: str, mean: Node, covariance: Node, normal: bool) -> Symbol:
    return Symbol(mean.shape, name, Type("vector", mean.shape, law=Law(mean, covariance, normal)))


@pytest.mark.parametrize("normal", [True, False])
def test_the_variance_of_a_score_for_any_means_and_covariances(normal):
    d = 3
    draw = np.random.default_rng(5)
    lower = [np.tril(draw.integers(1, 4, (d, d))) for _ in range(2)]
    sigma = [L @ L.T for L in lower]
    mean = [draw.integers(-3, 4, d) for _ in range(2)]
    q, k = (
        gaussian(
            name, Symbol(("d",), f"m{name}", Type("vector")), Symbol(("d", "d"), f"S{name}", Type("matrix")), normal
        )
        for name in "qk"
    )
    score = Contract((), Transpose((1, "d"), q), k)
    values = {"mq": mean[0].tolist(), "mk": mean[1].tolist(), "Sq": sigma[0].tolist(), "Sk": sigma[1].tolist()}
    wanted = np.trace(sigma[0] @ sigma[1]) + mean[0] @ sigma[1] @ mean[0] + mean[1] @ sigma[0] @ mean[1]
    assert evaluate(Covariance((), score, score), {"d": d}, values) == int(wanted)
    assert evaluate(Expect((), score), {"d": d}, values) == int(mean[0] @ mean[1])


def test_the_covariance_of_a_number_and_a_vector_has_the_axis_of_the_vector():
    mean, spread = Symbol(("d",), "m", Type("vector")), Symbol(("d", "d"), "S", Type("matrix"))
    q = gaussian("q", mean, spread, True)
    first = Part((), q, (number(1),))
    values = {"m": (5, 7), "S": ((4, 3), (3, 9))}
    assert evaluate(Covariance(("d",), first, q), {"d": 2}, values) == (4, 3)
    assert evaluate(Covariance(("d",), q, first), {"d": 2}, values) == (4, 3)


def test_moments_of_a_normal_number_and_of_what_only_has_a_mean_and_a_variance():
    m, s = Symbol((), "m", Type("scalar")), Symbol((), "s", Type("positive"))
    values = {"m": 2, "s": 3}
    known, loose = (
        Symbol((), "x", Type("scalar", law=Law(m, Power((), s, number(2)), normal))) for normal in (True, False)
    )
    for x in (known, loose):
        assert evaluate(Expect((), Power((), x, number(2))), {}, values) == 13
    assert evaluate(Expect((), Power((), known, number(4))), {}, values) == 2**4 + 6 * 2**2 * 9 + 3 * 81
    for body in (Power((), loose, number(3)), Call((), "exp", (loose,))):
        with pytest.raises(Unevaluable, match="only the mean and covariance of x"):
            evaluate(Expect((), body), {}, values)


def test_an_expectation_of_no_polynomial_under_a_normal_law():
    m, s = Symbol((), "m", Type("scalar")), Symbol((), "s", Type("positive"))
    x = Symbol((), "x", Type("scalar", law=Law(m, Power((), s, number(2)), True)))
    found = evaluate(Expect((), Call((), "exp", (x,))), {}, {"m": Fraction(1, 3), "s": Fraction(1, 2)})
    assert float(found) == pytest.approx(math.exp(1 / 3 + 1 / 8), rel=1e-14)


RANDOM_SYMBOLS = {
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
        ("E[|g^3|]", "1.6"),
        ("E[sign(g) g]", "0.7937"),
        ("E[relu(h) |h|]", "m"),
        ("E[1/g]", "0"),
        ("E[g/h]", "0"),
        ("E[g/h]", "E[g/h]"),
        ("E[p^3]", "m^3 + 3 m s^2"),
        (r"E[\exp(p)]", r"\exp(m + s^2/2)"),
        ("E[(w^T w)^2]", r"(\mu^T\mu + d s^2)^2"),
    ],
)
def test_no_verdict_on_what_has_no_value_or_no_way_to_one(gold, answer):
    verdict = compare(gold, answer, RANDOM_SYMBOLS)
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
    assert compare(gold, answer, RANDOM_SYMBOLS)
    assert compare(gold, f"2 ({answer})", RANDOM_SYMBOLS).kind == "different"


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
        ("E[|g|]", math.sqrt(2 / math.pi)),
        (r"E[\max(g, 0)]", 1 / math.sqrt(2 * math.pi)),
        (r"E[\min(g, 0)]", -1 / math.sqrt(2 * math.pi)),
        ("E[|h|]", 2 * math.sqrt(2 / math.pi) * math.exp(-9 / 8) + 3 * math.erf(3 / math.sqrt(8))),
        ("E[h^2 e^{g}]", 13 * math.exp(0.5)),
        ("E[h e^{h/2}]", 5 * math.exp(2)),
        (r"E[\log(1 + e^{g})] - E[\log(1 + e^{-g})]", 0),
    ],
)
def test_expectations_that_are_not_polynomials(text, value) -> None:
    found = evaluate(parse(text, RANDOM_SYMBOLS), {}, {"m": Fraction(3), "s": Fraction(2)})
    assert float(found) == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("E[e^p]", Unevaluable, "only the mean and covariance of p are known"),
        ("E[p^3]", Unevaluable, "only the mean and covariance of p are known"),
        ("E[|g^3|]", Unevaluable, "what has a kink"),
        (r"E[\max(g^2, 1)]", Unevaluable, "what has a kink"),
        (r"E[\min(g, g^3)]", Unevaluable, "what has a kink"),
        ("E[1/g]", Undefined, "division by zero|by what may be zero"),
        (r"E[\log g]", Undefined, "a logarithm of what is not positive"),
        (r"E[\log(1 + e^{v_1 + v_2 + v_3})]", Unevaluable, "too many dimensions"),
        ("g", Unevaluable, "g has no value"),
    ],
)
def test_expectations_without_a_value(text, kind, said) -> None:
    symbols = {**RANDOM_SYMBOLS, "v": "random vector[3] ~ N(0, I)"}
    with pytest.raises(kind, match=said):
        evaluate(parse(text, symbols), {}, {"m": Fraction(3), "s": Fraction(2)})


X, V = Symbol((), "x", Type("scalar")), Symbol((3,), "v", Type("vector", (3,)))


ONE, TWO = Number((), Fraction(1)), Number((), Fraction(2))


def numbers(*values: int) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, values))


def power(exponent: str, base: Node = X) -> Power:
    return Power((), base, Number((), Fraction(exponent)))


@pytest.mark.parametrize(
    ("node", "value", "found"),
    [
        (Divide((), ONE, X), Fraction(-2), -1),
        (Divide((), ONE, X), Fraction(0), 0),
        (power("-1"), Fraction(5), 1),
        (power("1/2"), Fraction(-5), -1),
        (power("-1/2"), Fraction(-5), -1),
        (power("2"), Fraction(5), None),
        (power("0"), Fraction(5), None),
        (power("-1"), (numbers(1),), None),
        (Power((), X, X), Fraction(5), None),
        (Call((), "max", (V,)), (numbers(1, 3, 2),), 2),
        (Call((), "max", (X, X)), numbers(4, 3), 1),
        (Call((), "min", (V,)), (numbers(1, 3, -2),), 3),
        (Call((), "argmax", (V,)), (numbers(1, 3, 2),), (2,)),
        (Call((2,), "argmax", (V,)), ((numbers(1, 3), numbers(5, 2)),), (2, 1)),
        (Call((), "trace", (X,)), ((numbers(1),),), None),
        (X, Fraction(1), None),
    ],
)
def test_on_which_side(node, value, found) -> None:
    assert side_of(node, value) == found


@pytest.mark.parametrize("name", ["abs", "relu", "sign", "norm1", "norm_inf", "sqrt"])
def test_signs_of_all_entries(name) -> None:
    assert side_of(Call((3,), name, (V,)), (numbers(-1, 0, 4),)) == (-1, 0, 1)


@pytest.mark.parametrize("name", ["exp", "log", "softmax", "norm", "norm_F", "sum", "diag", "det"])
def test_functions_that_turn_nowhere(name) -> None:
    assert side_of(Call((3,), name, (V,)), (numbers(-1, 0, 4),)) is None


def test_two_sides_are_one_too_many() -> None:
    turns = Sides()
    kink, quotient, root = Call((), "abs", (X,)), Divide((), ONE, X), power("1/2")
    for _ in range(2):
        turns.note((1,), kink, numbers(3))
        turns.note((2,), kink, numbers(-3))
        turns.note((3,), quotient, Fraction(2))
        turns.note((4,), root, Fraction(2))
        turns.note((5,), X, Fraction(2))
    turns.note((5,), X, Fraction(-2))
    with pytest.raises(Unevaluable, match="what has a kink"):
        turns.note((1,), kink, numbers(-3))
    with pytest.raises(Undefined, match="by what may be zero"):
        turns.note((3,), quotient, Fraction(-2))
    with pytest.raises(Undefined, match="by what may be zero"):
        turns.note((4,), root, Fraction(-2))


TEXT_SYMBOLS = {
    "x": "scalar",
    "y": "positive",
    "n": "natural",
    "u": "vector[3]",
    "v": "vector[3]",
    "w": "vector[n]",
    "A": "matrix[3,3]",
    "B": "matrix[2,3]",
    "c": "scalar = x + 1",
    "i": "index[3]",
    "f": "map vector[3] -> scalar",
    "g": "map vector[3], scalar -> vector[3]",
    "m": "vector[2]",
    "S": "matrix[2,2]",
    "q": "random vector[2] ~ N(m, S)",
    "p": "random vector[2] ~ (m, S)",
}


VALUES = {
    "x": 5,
    "y": Fraction(1, 4),
    "u": (1, 2, 4),
    "v": (3, -1, 2),
    "w": (7, 8),
    "A": ((2, 1, 0), (1, 3, 1), (0, 1, 1)),
    "B": ((1, 2, 3), (4, 5, 6)),
    "i": 2,
    "f": lambda vector: vector[0] * vector[1] + vector[2],
    "g": lambda vector, number: tuple(number * entry for entry in vector),
    "m": (1, -2),
    "S": ((2, 1), (1, 3)),
}


TEXT_SIZES = {"n": 2}


U, TEXT_V, A, B = (np.array(VALUES[name]) for name in ("u", "v", "A", "B"))


INVERSE = np.linalg.inv(A)


def value(text: str):
    return evaluate(parse(text, TEXT_SYMBOLS), TEXT_SIZES, VALUES)


EXACT = [
    ("x + y", Fraction(21, 4)),
    ("c", 6),
    ("n", 2),
    ("i", 2),
    ("u_i", 2),
    ("u_n", 2),
    ("A_{i,3}", 1),
    ("A_i", (1, 3, 1)),
    ("A_{i:}", ((1, 3, 1),)),
    ("A_{:i}", (1, 3, 1)),
    ("B_{:3}", (3, 6)),
    ("B_2", (4, 5, 6)),
    ("B_{2:}", ((4, 5, 6),)),
    ("u + v", (4, 1, 6)),
    ("2 u", (2, 4, 8)),
    ("u/2", (Fraction(1, 2), 1, 2)),
    ("u^T v", 9),
    ("u v^T", ((3, -1, 2), (6, -2, 4), (12, -4, 8))),
    (r"u \odot v", (3, -2, 8)),
    ("B u", (17, 38)),
    ("u^T A", ((4, 11, 6),)),
    ("u^T A v", 12 - 11 + 12),
    ("u^T", ((1, 2, 4),)),
    ("B^T", ((1, 4), (2, 5), (3, 6))),
    ("A^2", tuple(map(tuple, (A @ A).tolist()))),
    ("A^0", ((1, 0, 0), (0, 1, 0), (0, 0, 1))),
    (r"\mathbf{1}_3", (1, 1, 1)),
    (r"\mathbf{0}_n", (0, 0)),
    (r"\mathbf{1}_{2 \times 3}", ((1, 1, 1), (1, 1, 1))),
    ("I_n", ((1, 0), (0, 1))),
    ("(x, y)", (5, Fraction(1, 4))),
    ("[[1, 2, 3], [4, 5, x]]", ((1, 2, 3), (4, 5, 5))),
    ("[[1, 2, 3]]", ((1, 2, 3),)),
    (r"\max(v)", 3),
    (r"\min(v)", -1),
    (r"\max(x, y, 7)", 7),
    (r"\min(x, y, 7)", Fraction(1, 4)),
    ("argmax(v)", 1),
    ("argmax(u)", 3),
    (r"\|v\|_1", 6),
    (r"\|v\|_\infty", 3),
    (r"\|v\|^2", 14),
    (r"\|v\|^4", 196),
    (r"\|B\|_F^2", 91),
    (r"\|(3, 4)\|", 5),
    (r"\|-2\|", 2),
    ("|x - 7|", 2),
    ("abs(v)", (3, 1, 2)),
    ("relu(v)", (3, 0, 2)),
    ("sign(v)", (1, -1, 1)),
    (r"\sqrt{y}", Fraction(1, 2)),
    (r"\operatorname{tr}(A)", 6),
    (r"\det(A)", 3),
    ("diag(A)", (2, 3, 1)),
    ("diag(v)", ((3, 0, 0), (0, -1, 0), (0, 0, 2))),
    ("sum(B)", 21),
    ("sum(x)", 5),
    (r"\sum_j u_j v_j", 9),
    (r"\sum_j w_j", 15),
    (r"\prod_j u_j", 8),
    (r"\sum_{j<l} u_j u_l", 2 + 4 + 8),
    (r"\sum_{j \ne l} u_j u_l", 28),
    (r"\sum_{j} u_j A_j", (2 * 1 + 1 * 2, 1 + 6 + 4, 2 + 4)),
    (r"\sum_{j<i} u_j", 1),
    (r"\sum_{j=2}^{1} x", 0),
    (r"\sum_j \delta_{ij} u_j", 2),
    (r"\delta_{i,2} + \delta_{i,1}", 1),
    ("f(u)", 6),
    ("g(u, x)", (5, 10, 20)),
    (r"\frac{\partial x^3}{\partial x}", 75),
    (r"\frac{\partial^2 x^3}{\partial x^2}", 30),
    (r"\frac{\partial c^2}{\partial x}", 12),
    (r"\frac{\partial (u^T A u)}{\partial u}", tuple(((A + A.T) @ U).tolist())),
    (r"\frac{\partial (u^T A u)}{\partial u_2}", ((A + A.T) @ U).tolist()[1]),
    (r"\frac{\partial (A u)}{\partial u}", tuple(map(tuple, A.tolist()))),
    (r"\frac{\partial (B u)}{\partial u}", tuple(map(tuple, B.tolist()))),
    (r"\frac{\partial (u^T A v)}{\partial A}", tuple(map(tuple, np.outer(U, TEXT_V).tolist()))),
    (r"\frac{\partial (u^T A v)}{\partial A_{12}}", -1),
    (r"\frac{\partial (u^T A v)}{\partial A_2}", (6, -2, 4)),
    (r"\frac{\partial (x u)}{\partial x}", (1, 2, 4)),
    (r"\frac{\partial (x y)}{\partial y}", 5),
    (r"\frac{\partial v}{\partial u}", ((0, 0, 0),) * 3),
    (r"\frac{\partial^2 (u^T A u)}{\partial u \partial u^T}", tuple(map(tuple, (A + A.T).tolist()))),
    ("E[q]", (1, -2)),
    ("E[q^T q]", 5 + 5),
    ("E[q_1 q_2]", -2 + 1),
    ("E[q q^T]", ((3, -1), (-1, 7))),
    ("Var(q)", ((2, 1), (1, 3))),
    ("Var(q_1)", 2),
    ("Cov(q_1, q_2)", 1),
    ("Cov(q, p)", ((0, 0), (0, 0))),
    ("E[q^T p]", 5),
    ("E[x]", 5),
    ("E[q_1^4]", 1 + 6 * 2 + 3 * 4),
    ("E[p_1^2]", 3),
    (r"E[\|q\|^4]", None),
    (r"\frac{\partial E[q^T q]}{\partial m_1}", 2),
    (r"\frac{\partial E[q_1^2]}{\partial S_{11}}", 1),
]


@pytest.mark.parametrize(("text", "wanted"), EXACT)
def test_exact_values(text, wanted) -> None:
    if wanted is None:  # E‖q‖⁴ = (m·m + tr S)² + 2 tr S² + 4 m·S m
        m, s = np.array([1, -2]), np.array([[2, 1], [1, 3]])
        wanted = int((m @ m + np.trace(s)) ** 2 + 2 * np.trace(s @ s) + 4 * m @ s @ m)
    found = value(text)
    assert found == wanted

    def numbers(held) -> list:
        return [each for part in held for each in numbers(part)] if isinstance(held, tuple) else [held]

    assert all(isinstance(number, Fraction) for number in numbers(found))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"\exp(x)", math.exp(5)),
        (r"\log(x)", math.log(5)),
        (r"\sqrt{x}", math.sqrt(5)),
        (r"\pi", math.pi),
        ("e", math.e),
        (r"\|v\|", math.sqrt(14)),
        (r"\|B\|_F", math.sqrt(91)),
        ("x^y", 5**0.25),
        ("softmax(v)", np.exp(TEXT_V) / np.exp(TEXT_V).sum()),
        ("softmax(B)", np.exp(B) / np.exp(B).sum(axis=1, keepdims=True)),
        ("exp(v)", np.exp(TEXT_V)),
        ("log(u)", np.log(U)),
        ("sqrt(u)", np.sqrt(U)),
        ("A^{-1}", INVERSE),
        ("A^{-2}", INVERSE @ INVERSE),
        (r"\frac{\partial e^{x^2/10}}{\partial x}", math.exp(2.5)),
        (r"\frac{\partial \log x}{\partial x}", 0.2),
        (r"\frac{\partial 2^x}{\partial x}", 32 * math.log(2)),
        (r"\frac{\partial \|u\|}{\partial u}", U / math.sqrt(21)),
    ],
)
def test_values_that_are_not_exact(text, wanted) -> None:
    found = np.array(value(text), dtype=object).astype(float)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize(
    ("text", "values", "kind", "said"),
    [
        ("u_i", {**VALUES, "i": 4}, Undefined, "i is out of range"),
        ("u_i", {**VALUES, "i": 0}, Undefined, "i is out of range"),
        ("u_n", {**VALUES, "u": (1, 2, 3), "n": 4}, Undefined, "a subscript that is out of range"),
        ("w_3", VALUES, Undefined, "a subscript that is out of range"),
        ("u_i", {"u": (1, 2, 3)}, Unevaluable, "the index i has no value"),
        ("x + 1", {}, Unevaluable, "x has no value"),
        ("f(u)", {"u": (1, 2, 3)}, Unevaluable, "f is a map of which nothing is known"),
        ("f(u)", {"u": (1, 2, 3), "f": 3}, Unevaluable, "f is a map of which nothing is known"),
        (r"\pm x", VALUES, Unevaluable, "PlusMinus has no single value"),
        ("x = y", VALUES, Unevaluable, "Relation has no single value"),
        ("O(n)", VALUES, Unevaluable, "Order has no single value"),
        (r"\infty x", VALUES, Undefined, "infinity is not a number"),
        ("q_1", VALUES, Unevaluable, "q has no value"),
        ("A^{65}", VALUES, Unevaluable, "not a small whole number"),
        ("x/(x - 5)", VALUES, Undefined, "division by zero"),
        ("e^{e^{e^{e^5}}}", VALUES, Undefined, "too large"),
    ],
)
def test_what_has_no_value(text, values, kind, said) -> None:
    with pytest.raises(kind, match=said):
        evaluate(parse(text, TEXT_SYMBOLS), {"n": 4} if text == "u_n" else TEXT_SIZES, values)


def test_errors_are_those_of_grids_only() -> None:
    assert evaluate_with_error(parse("x", TEXT_SYMBOLS), TEXT_SIZES, VALUES) == (5, Decimal(0))
    normal = {"g": "random scalar ~ N(0, 1)"}
    found, error = evaluate_with_error(parse("E[1/(4 + g^2)]", normal), {}, {})
    assert 0 < error < Decimal("1e-2")
    assert float(found) == pytest.approx(0.2105, rel=1e-2)
    assert evaluate_with_error(parse("E[g^2]", normal), {}, {}) == (1, Decimal(0))


def test_digits_are_those_that_are_asked_for() -> None:
    tree = parse(r"\sqrt 2", {})
    for precision in (10, 60, 200):
        found = evaluate(tree, {}, {}, precision=precision)
        assert len(str(found)) == precision + 1
    assert str(evaluate(tree, {}, {}, precision=10)) == "1.414213562"


def test_an_index_is_bound_by_its_sum_and_given_outside() -> None:
    tree = parse(r"u_i + \sum_i u_i", {"u": "vector[3]", "i": "index[3]"})
    assert evaluate(tree, {}, {"u": (1, 2, 4), "i": 3}) == 11
    nested = parse(r"\sum_i u_i \sum_j u_j \delta_{ij}", {"u": "vector[3]"})
    assert evaluate(nested, {}, {"u": (1, 2, 4)}) == 21


def test_a_product_over_nothing_and_a_sum_over_nothing() -> None:
    symbols = {"u": "vector[n]", "A": "matrix[n,2]", "i": "index[n]"}
    values = {"u": (3,), "A": ((1, 2),), "i": 1}
    assert evaluate(parse(r"\sum_{j<i} u_j", symbols), {"n": 1}, values) == 0
    assert evaluate(parse(r"\prod_{j<i} u_j", symbols), {"n": 1}, values) == 1
    assert evaluate(parse(r"\sum_{j<i} A_j", symbols), {"n": 1}, values) == (0, 0)


def test_vectors_of_one_entry() -> None:
    symbols = {"z": "vector[n]", "A": "matrix[n,n]"}
    values = {"z": (3,), "A": ((5,),)}
    for text, wanted in [
        ("argmax(z)", 1),
        ("diag(z)", ((3,),)),
        ("diag(A)", (5,)),
        ("tr(A)", 5),
        ("det(A)", 5),
        ("max(z)", 3),
        ("A z", (15,)),
        ("z^T z", 9),
        ("z z^T", ((9,),)),
        ("A^T", ((5,),)),
        ("A_1", (5,)),
        ("A_{:1}", (5,)),
        ("A_{1:}", ((5,),)),
        ("A_{1,1}", 5),
        (r"\frac{\partial (A z)}{\partial z}", ((5,),)),
    ]:
        assert evaluate(parse(text, symbols), {"n": 1}, values) == wanted, text
