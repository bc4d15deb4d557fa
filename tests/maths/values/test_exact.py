"""Evaluation against numpy, which computes the same things by other means."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

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
from qkv.maths.values.arithmetic import Undefined, Unevaluable, digits, whole_root
from qkv.maths.values.evaluate import evaluate

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
