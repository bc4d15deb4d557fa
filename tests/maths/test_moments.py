"""Simplified trees, bilinear forms, and means and variances against enumeration and sampling."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from qkv.errors import OptionError
from qkv.maths import compare, parse
from qkv.maths.moments import (
    ANY_LAW,
    DEEPEST,
    SCALAR_MEAN,
    STANDARD,
    VECTOR_MEAN,
    Discrete,
    ExactMoments,
    MomentStep,
    dimension,
    dot,
    enumerate_moments,
    form_of,
    is_identity,
    is_zero,
    moments,
    monte_carlo,
    number,
    plus,
    product,
    random_symbols,
    resolve,
    sample_moments,
    split,
    times,
    trace,
    transposed,
    zero_of,
)
from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Divide,
    Expect,
    Index,
    Law,
    Multiply,
    Number,
    Outer,
    Part,
    Power,
    Special,
    Sum,
    Symbol,
    Transpose,
    Type,
)
from qkv.maths.values.evaluate import evaluate

SIZES = {"d": 3, "e": 2}


SIGMA = Symbol((), "sigma", Type("positive"))


U, V = (Symbol(("d",), name, Type("vector", ("d",))) for name in "uv")


W = Symbol(("e",), "w", Type("vector", ("e",)))


A = Symbol(("d", "e"), "A", Type("matrix", ("d", "e")))


IDENTITY, ONES, ZEROS = Special(("d", "d"), "identity"), Special(("d",), "ones"), Special(("d",), "zeros")


VALUES = {"sigma": Fraction(5), "u": (1, 2, 3), "v": (7, -1, 4), "w": (2, -3), "A": ((1, 2), (3, 4), (-5, 6))}


def value(node):
    return evaluate(node, SIZES, VALUES)


def test_powers_of_one_base_join():
    square = Power((), SIGMA, number(2))
    assert times(square, square) == Power((), SIGMA, number(4))
    assert times(SIGMA, Power((), SIGMA, number(-1))) == number(1)
    assert value(times(square, number(3), Power((), SIGMA, number(-3)))) == Fraction(3, 5)


def test_zeros_and_identities_disappear():
    assert plus(U, ZEROS) == U
    assert product(IDENTITY, U) == U
    assert times(number(0), U) == ZEROS
    assert dot(U, ZEROS) == number(0) == trace(zero_of(("d", "d")))
    assert is_zero(product(transposed(A), ZEROS))
    assert plus(U, times(number(-1), U)) == ZEROS


def test_equal_terms_are_gathered():
    assert plus(dot(U, V), dot(U, V)) == Multiply((), (number(2), dot(U, V)))


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (dot(times(number(2), U), times(SIGMA, V)), 2 * 5 * (7 - 2 + 12)),
        (dot(ONES, ONES), 3),
        (trace(times(SIGMA, IDENTITY)), 15),
        (trace(Outer(("d", "d"), U, V)), 17),
        (dot(U, product(A, W)), 1 * -4 + 2 * -6 + 3 * -28),
        (dot(product(transposed(A), U), W), 1 * -4 + 2 * -6 + 3 * -28),
        (trace(product(A, transposed(A))), 1 + 4 + 9 + 16 + 25 + 36),
        (dot(U, product(Outer(("d", "d"), U, V), V)), 14 * 66),
        (trace(product(Outer(("d", "d"), U, V), Outer(("d", "d"), V, U))), 66 * 14),
        (trace(transposed(Contract(("d", "d"), A, Transpose(("e", "d"), A)))), 91),
    ],
)
def test_values(built, expected):
    assert value(built) == expected


def test_transposing_twice_changes_nothing():
    for node in (A, Outer(("d", "e"), U, W), IDENTITY, U, times(SIGMA, A)):
        assert transposed(transposed(node)) == node
    assert transposed(A).shape == ("e", "d")
    assert transposed(U).shape == (1, "d")


def test_sizes_become_scalars():
    assert dimension(7) == number(7)
    assert dimension("d_k") == Symbol((), "d_k", Type("natural"))
    assert evaluate(dimension("n+1"), {"n": 4}, {"n": 4}) == 5


COLUMN, ROW = (Symbol(shape, "m", Type("matrix", shape)) for shape in (("d", 1), (1, "d")))


B = Symbol(("e", "d"), "B", Type("matrix", ("e", "d")))


def test_shapes_of_transposes():
    assert transposed(COLUMN) == Transpose((1, "d"), COLUMN)
    assert transposed(ROW) == Transpose(("d",), ROW)
    assert transposed(A) == Transpose(("e", "d"), A)
    assert transposed(Special((1, "d"), "ones")) == ONES
    assert transposed(ONES) == Transpose((1, "d"), ONES)
    assert transposed(Special(("d", "e"), "zeros")) == Special(("e", "d"), "zeros")
    assert transposed(Transpose(("e", "d"), A)) == A
    assert transposed(Outer(("d", "e"), U, W)) == Outer(("e", "d"), W, U)
    turned = Contract(("d", "d"), Transpose(("d", "e"), B), Transpose(("e", "d"), A))
    assert transposed(Contract(("d", "d"), A, B)) == turned
    assert transposed(Contract(("d",), A, W)) == Transpose((1, "d"), Contract(("d",), A, W))
    assert transposed(times(SIGMA, A)) == Multiply(("e", "d"), (SIGMA, Transpose(("e", "d"), A)))


def test_products_know_their_shapes():
    assert product(Transpose((1, "d"), U), V) == Contract((), Transpose((1, "d"), U), V)
    assert product(A, W) == Contract(("d",), A, W)
    assert product(A, B) == Contract(("d", "d"), A, B)
    assert product(A, Special(("e",), "zeros")) == ZEROS
    assert product(Transpose((1, "d"), U), ZEROS) == number(0)
    assert product(zero_of(("d", "e")), B) == Special(("d", "d"), "zeros")
    assert product(A, Special(("e", "e"), "identity")) == A
    assert product(Outer(("d", "e"), U, W), W) == Multiply(("d",), (dot(W, W), U))
    assert product(Outer(("d", "e"), U, W), B) == Outer(("d", "d"), U, Contract(("d",), Transpose(("d", "e"), B), W))
    assert product(times(number(2), A), times(SIGMA, W)) == Multiply(("d",), (number(2), SIGMA, Contract(("d",), A, W)))


def test_dots_and_traces():
    assert dot(SIGMA, number(3)) == Multiply((), (number(3), SIGMA))
    assert dot(U, V) == Contract((), Transpose((1, "d"), U), V)
    assert dot(ONES, ONES) == dimension("d")
    assert dot(times(number(2), U), V) == Multiply((), (number(2), dot(U, V)))
    square = Symbol(("d", "d"), "S", Type("matrix", ("d", "d")))
    assert trace(square) == Call((), "trace", (square,))
    assert trace(IDENTITY) == dimension("d")
    assert trace(Special((3, 3), "identity")) == number(3)
    assert trace(Outer(("d", "d"), U, V)) == dot(V, U)
    assert trace(times(SIGMA, square)) == Multiply((), (SIGMA, trace(square)))


def test_what_a_product_is_split_into():
    scaled = Divide(("d",), times(number(3), U), SIGMA)
    assert split(scaled) == ([number(3), Power((), SIGMA, number(-1))], U)
    assert split(U) == ([], U)
    assert split(SIGMA) == ([SIGMA], None)
    named = Symbol(("d",), "n", Type("vector", ("d",), definition=times(SIGMA, U)))
    assert split(named) == ([SIGMA], U)
    kept = Symbol(("d",), "n", Type("vector", ("d",), definition=plus(U, V)))
    assert split(kept) == ([], kept)
    assert resolve(Symbol((), "t", Type("scalar", definition=SIGMA))) == SIGMA


def test_numbers_and_powers_of_a_product():
    x = Symbol((), "x", Type("scalar"))
    assert times() == number(1)
    assert times(number(2), x, number(3)) == Multiply((), (number(6), x))
    assert times(x, SIGMA, x) == Multiply((), (Power((), x, number(2)), SIGMA))
    assert times(x, Power((), SIGMA, number(-1))) == Divide((), x, SIGMA)
    assert times(Power((), x, number(-1)), Power((), SIGMA, number(-2))) == Divide(
        (), number(1), Multiply((), (x, Power((), SIGMA, number(2))))
    )
    assert times(Power((), number(2), number(-2)), x) == Multiply((), (number(Fraction(1, 4)), x))
    assert times(Power((), number(2), number(Fraction(1, 2))), x) == Multiply(
        (), (Power((), number(2), number(Fraction(1, 2))), x)
    )
    assert times(number(0), x) == number(0)
    assert times(Number((), Fraction(1, 2), Fraction(1, 10)), x) == Multiply(
        (), (Number((), Fraction(1, 2), Fraction(1, 10)), x)
    )


def test_sums_keep_their_terms_in_order():
    x = Symbol((), "x", Type("scalar"))
    assert plus(x, number(2), SIGMA) == Add((), (x, number(2), SIGMA))
    assert plus(Add((), (x, SIGMA)), x) == Add((), (Multiply((), (number(2), x)), SIGMA))
    assert plus(times(number(3), x, SIGMA), times(x, SIGMA)) == Multiply((), (number(4), x, SIGMA))
    assert plus(x) == x
    assert plus(number(0)) == number(0)
    assert plus(times(number(2), U), times(number(-2), U)) == ZEROS
    assert is_zero(Multiply((), (x, number(0))))
    assert is_zero(Symbol((), "n", Type("scalar", definition=number(0))))
    assert not is_zero(x)
    assert is_identity(Symbol(("d", "d"), "n", Type("matrix", ("d", "d"), definition=IDENTITY)))
    assert not is_identity(ONES)
    assert dimension("x'") == Symbol((), "x'", Type("natural"))
    assert evaluate(dimension("d*e'"), {"d": 4, "e'": 3}, {}) == 12


LAW = Law(ZEROS, IDENTITY, True)


Q, K = (Symbol(("d",), name, Type("vector", ("d",), LAW)) for name in "qk")


SQUARE = Symbol(("d", "d"), "A", Type("matrix", ("d", "d")))


VECTOR = Symbol(("d",), "b", Type("vector", ("d",)))


def row(node):
    return Transpose((1, *node.shape), node)


def dotted(left, right):
    return Contract((), row(left), right)


def test_names_come_in_reading_order_and_means_are_sure():
    assert list(random_symbols(Add((), (dotted(K, VECTOR), dotted(Q, K))))) == ["k", "q"]
    assert random_symbols(dotted(Expect(("d",), Q), VECTOR)) == {}


def test_parts_of_a_form():
    middle = Contract((), Contract((1, "d"), row(Q), SQUARE), K)
    form = form_of(Add((), (middle, Multiply((), (number(3), dotted(VECTOR, Q))), number(5))), "")
    assert form.pairs == {("q", "k"): SQUARE}
    assert form.linear == {"q": Multiply(("d",), (number(3), VECTOR))}
    assert form.constant == number(5)


def test_the_other_order_is_the_transpose():
    form = form_of(Add((), (dotted(Q, K), Contract((), Contract((1, "d"), row(K), SQUARE), Q))), "")
    assert form.pairs == {("q", "k"): Add(("d", "d"), (IDENTITY, Transpose(("d", "d"), SQUARE)))}


def test_what_cancels_is_gone():
    form = form_of(Add((), (dotted(Q, K), Multiply((), (number(-1), dotted(K, Q))))), "")
    assert form.pairs == {}


def test_squares_are_refused():
    with pytest.raises(OptionError, match="multiplied by itself"):
        form_of(dotted(Q, Q), "q^T q")


C = Symbol((), "c", Type("scalar"))


X, Y = (Symbol((), name, Type("scalar", (), Law(number(0), number(1), True))) for name in "xy")


def parts(node):
    form = form_of(node, "")
    return form.constant, form.linear, form.pairs


def test_a_sum_of_entries_is_a_product_with_ones():
    assert parts(Call((), "sum", (Q,))) == (number(0), {"q": Special(("d",), "ones")}, {})
    shifted = Call((), "sum", (Add(("d",), (Q, VECTOR)),))
    assert form_of(shifted, "").constant == Contract((), row(Special(("d",), "ones")), VECTOR)
    assert form_of(shifted, "").linear == {"q": Special(("d",), "ones")}


def test_terms_of_one_name_are_added():
    twice = dotted(VECTOR, Add(("d",), (Q, Contract(("d",), SQUARE, Q))))
    assert parts(twice)[1] == {
        "q": Contract(("d",), Transpose(("d", "d"), Add(("d", "d"), (IDENTITY, SQUARE))), VECTOR)
    }
    apart = Add((), (dotted(VECTOR, Q), dotted(Contract(("d",), SQUARE, VECTOR), Q)))
    assert parts(apart)[1] == {"q": Add(("d",), (VECTOR, Contract(("d",), SQUARE, VECTOR)))}
    assert parts(Add((), (dotted(VECTOR, Q), Multiply((), (number(-1), dotted(VECTOR, Q))))))[1] == {}


def test_quotients_by_what_is_sure():
    share = Multiply(("d",), (Divide((), number(1), C), VECTOR))
    assert parts(Divide((), dotted(VECTOR, Q), C))[1] == {"q": share}
    assert parts(dotted(VECTOR, Divide(("d",), Q, C)))[1] == {"q": share}
    with pytest.raises(OptionError, match="x occurs in something that is not linear in it"):
        form_of(Divide((), C, X), "c/x")
    with pytest.raises(OptionError, match="q, x occurs in something that is not linear in it"):
        form_of(dotted(VECTOR, Divide(("d",), Q, X)), "b^T q/x")


def test_random_scalars():
    assert parts(X) == (number(0), {"x": number(1)}, {})
    assert parts(Multiply((), (number(3), X, C))) == (number(0), {"x": Multiply((), (number(3), C))}, {})
    assert parts(Multiply((), (X, Y)))[2] == {("x", "y"): number(1)}
    assert parts(Multiply((), (Y, X)))[2] == {("y", "x"): number(1)}
    assert parts(Multiply((), (X, Add((), (Y, C))))) == (number(0), {"x": C}, {("x", "y"): number(1)})
    assert parts(Multiply((), (X, dotted(VECTOR, Q))))[2] == {("x", "q"): VECTOR}
    assert parts(dotted(VECTOR, Multiply(("d",), (X, VECTOR))))[1] == {"x": dotted(VECTOR, VECTOR)}
    assert parts(dotted(Q, Multiply(("d",), (X, VECTOR))))[2] == {("q", "x"): VECTOR}
    assert parts(dotted(Multiply(("d",), (X, VECTOR)), Multiply(("d",), (Y, VECTOR))))[2] == {
        ("x", "y"): dotted(VECTOR, VECTOR)
    }
    assert parts(dotted(Multiply(("d",), (C, X, VECTOR)), VECTOR))[1] == {
        "x": Multiply((), (C, dotted(VECTOR, VECTOR)))
    }
    shifted = dotted(VECTOR, Multiply(("d",), (Add((), (X, C)), VECTOR)))
    assert parts(shifted) == (
        Multiply((), (C, dotted(VECTOR, VECTOR))),
        {"x": dotted(VECTOR, VECTOR)},
        {},
    )


def test_rows_and_sums_over_an_index():
    left = Contract((), Contract((1, "d"), row(Q), SQUARE), VECTOR)
    assert parts(left)[1] == {"q": Contract(("d",), SQUARE, VECTOR)}
    i = Index((), "i", "d")

    def at(node):
        return Part((), node, (i,))

    assert parts(Sum((), (i,), Multiply((), (at(Q), at(VECTOR)))))[1] == {"q": VECTOR}
    assert parts(Sum((), (i,), at(Q)))[1] == {"q": Special(("d",), "ones")}
    assert parts(Sum((), (i,), Multiply((), (C, at(Q), at(K)))))[2] == {("q", "k"): Multiply(("d", "d"), (C, IDENTITY))}
    for body in (
        Multiply((), (at(Q), at(VECTOR), at(VECTOR))),
        Multiply((), (at(Q), i)),
        Multiply((), (X, C)),
        Multiply((), (at(Q), Part((), SQUARE, (i, i)))),
    ):
        with pytest.raises(OptionError, match="the sum over i is not a dot product"):
            form_of(Sum((), (i,), body), "")
    for other in (Sum((), (i,), at(Q), product=True), Sum((), (i,), at(Q), (("<", i, number(2)),))):
        with pytest.raises(OptionError, match="not linear"):
            form_of(other, "")


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (Multiply((), (X, Y, X)), "three or more random factors"),
        (Multiply((), (dotted(Q, K), X)), "three or more random factors"),
        (Multiply((), (X, dotted(Q, K))), "three or more random factors"),
        (Multiply((), (dotted(Q, K), dotted(Q, K))), "three or more random factors"),
        (Multiply((), (X, X)), "x is multiplied by itself"),
        (dotted(Q, Multiply(("d",), (X, K))), "a vector is multiplied by more than one random factor"),
        (
            dotted(VECTOR, Multiply(("d",), (X, Y, VECTOR))),
            "a vector is multiplied by more than one random factor",
        ),
        (
            dotted(VECTOR, Multiply(("d",), (dotted(VECTOR, Q), VECTOR))),
            "a vector is multiplied by more than one random factor",
        ),
        (Call((), "exp", (X,)), "x occurs in something that is not linear in it"),
        (dotted(VECTOR, Call(("d",), "exp", (Q,))), "q occurs in something that is not linear in it"),
    ],
)
def test_what_is_no_such_form_is_refused(node, why):
    with pytest.raises(OptionError, match=why):
        form_of(node, "the text")


def test_refusals_name_the_text_and_the_shape():
    with pytest.raises(OptionError, match=r"expression.*the text"):
        form_of(Multiply((), (X, X)), "the text")
    with pytest.raises(OptionError, match="a scalar"):
        form_of(Q, "q")


def test_depth_and_the_number_of_terms_are_limited():
    names = [Symbol((), f"x{k}", X.type) for k in range(201)]
    assert len(form_of(Add((), tuple(names[:200])), "").linear) == 200
    with pytest.raises(OptionError, match="more than 200 terms"):
        form_of(Add((), tuple(names)), "")

    def nested(node, depth):
        for _ in range(depth):
            node = Add(node.shape, (node,))
        return node

    assert form_of(nested(X, DEEPEST), "").linear == {"x": number(1)}
    with pytest.raises(OptionError, match="nested too deeply"):
        form_of(nested(X, DEEPEST + 1), "")
    assert form_of(dotted(VECTOR, nested(Q, DEEPEST - 1)), "").linear == {"q": VECTOR}
    with pytest.raises(OptionError, match="nested too deeply"):
        form_of(dotted(VECTOR, nested(Q, DEEPEST)), "")


def test_what_is_zero_is_left_out():
    form = form_of(Add((), (dotted(Q, K), dotted(ZEROS, Q))), "")
    assert form.linear == {}
    assert form_of(Multiply((), (number(0), X)), "").linear == {}
    assert list(form.names) == ["q", "k"]


FRIENDS = {
    "q": "random vector[d] ~ (mu_q, Sigma_q)",
    "k": "random vector[d] ~ (mu_k, Sigma_k)",
    "r": "random vector[e] ~ (mu_r, Sigma_r)",
    "x": "random scalar ~ (mu_x, v_x)",
    "y": "random scalar ~ (mu_y, v_y)",
    "mu_q": "vector[d]",
    "mu_k": "vector[d]",
    "mu_r": "vector[e]",
    "Sigma_q": "matrix[d,d]",
    "Sigma_k": "matrix[d,d]",
    "Sigma_r": "matrix[e,e]",
    "mu_x": "scalar",
    "mu_y": "scalar",
    "v_x": "nonnegative",
    "v_y": "nonnegative",
    "A": "matrix[d,d]",
    "B": "matrix[d,e]",
    "a": "vector[d]",
    "b": "vector[d]",
    "w": "vector[e]",
    "c": "scalar",
    "t": "positive",
}


MOMENT_SIZES = {"d": 2, "e": 3}


SURE = {
    "A": ((1, -2), (3, 5)),
    "B": ((2, 0, -1), (1, 4, 3)),
    "a": (2, -3),
    "b": (5, 1),
    "w": (1, -1, 2),
    "c": Fraction(-7, 2),
    "t": Fraction(3),
}


LAWS = {
    "q": Discrete([(1, 2), (0, -1), (-3, 1)], [1, 2, 3]),
    "k": Discrete([(0, 1), (4, -2)], [3, 1]),
    "r": Discrete([(1, 0, 2), (0, 1, -1), (-1, -1, 0)]),
    "x": Discrete([(1,), (-2,)], [2, 1]),
    "y": Discrete([(3,), (0,)], [1, 4]),
}


EXPRESSIONS = {
    "q^T k": "qk",
    "k^T q": "qk",
    r"\sum_{i=1}^d q_i k_i": "qk",
    r"c \sum_{i=1}^d q_i": "q",
    "q^T A k": "qk",
    "a^T q + c": "q",
    "q^T A k + b^T q - k^T a + c": "qk",
    r"\frac{q^T k}{t}": "qk",
    "(q + a)^T A (k - b)": "qk",
    "(A q + b)^T k": "qk",
    "2 q^T A k - k^T A q": "qk",
    "q^T B r": "qr",
    "(a^T q)(w^T r)": "qr",
    "q^T k + q^T B r + w^T r": "qkr",
    "x y": "xy",
    "x y + c x - y": "xy",
    "x a^T q": "xq",
    "(c + x)(a^T q + 1)": "xq",
    "(x a)^T q + y": "xqy",
    "c": "",
}


def point(law: Discrete, name: str, at):
    return at[0] if name in "xy" else tuple(at)


def second(law: Discrete, name: str):
    return law.covariance[0][0] if name in "xy" else law.covariance


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_formulas_are_what_enumeration_finds(expression):
    found = moments(expression, FRIENDS)
    names = EXPRESSIONS[expression]
    tree = parse(expression, FRIENDS)

    def score(**points):
        return evaluate(tree, MOMENT_SIZES, SURE | {name: point(LAWS[name], name, at) for name, at in points.items()})

    exact = enumerate_moments(score, **{name: LAWS[name] for name in names})
    values = dict(SURE)
    for name, law in LAWS.items():
        values[f"mu_{name}"] = point(law, name, law.mean)
        values[f"v_{name}" if name in "xy" else f"Sigma_{name}"] = second(law, name)
    assert evaluate(parse(found.mean, FRIENDS), MOMENT_SIZES, values) == exact.mean
    assert evaluate(parse(found.variance, FRIENDS), MOMENT_SIZES, values) == exact.variance


@pytest.mark.slow
@pytest.mark.parametrize("expression", ["q^T k", "q^T A k + b^T q - k^T a + c", "x a^T q", "q^T B r + w^T r"])
def test_every_step_follows_from_the_one_before(expression):
    steps = moments(expression, FRIENDS).steps
    assert [step.relation for step in steps].count("") == 3  # mean, deviation, variance
    for before, step in pairwise(steps):
        if step.relation == "=":
            verdict = compare(before.text, step.text, FRIENDS)
            assert (verdict.kind, verdict.evidence) == ("equal", "proved"), (before.text, step.text, verdict)


@pytest.mark.parametrize(
    ("symbols", "mean", "variance"),
    [
        (ANY_LAW, r"\mu_q^T \mu_k", r"tr(\Sigma_q \Sigma_k) + \mu_q^T \Sigma_k \mu_q + \mu_k^T \Sigma_q \mu_k"),
        (VECTOR_MEAN, r"\|\mu\|^2", r"d \sigma^4 + 2 \sigma^2 \mu^T \mu"),
        (SCALAR_MEAN, "d m^2", r"d \sigma^4 + 2 d \sigma^2 m^2"),
        (STANDARD, "0", "d"),
    ],
)
def test_documents_are_special_cases(symbols, mean, variance):
    found = moments("q^T k", symbols)
    for ours, theirs in ((found.mean, mean), (found.variance, variance)):
        verdict = compare(theirs, ours, symbols)
        assert (verdict.kind, verdict.evidence) == ("equal", "proved"), (ours, verdict)


def test_special_cases_read_well():
    assert moments("q^T k", STANDARD)[:2] == ("0", "d")
    assert "I" not in moments("q^T k", VECTOR_MEAN).variance


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("q^T q", "q is multiplied by itself"),
        ("(q^T k)(q^T a)", "three or more random factors"),
        ("x y x", "three or more random factors"),
        ("x^2", "not linear"),
        ("exp(a^T q)", "not linear"),
        ("q_1", "not linear"),
        (r"\frac{1}{x}", "not linear"),
        (r"\sum_{i=1}^d q_i k_i a_i", "not a dot product"),
        ("q + k", "a scalar"),
    ],
)
def test_what_two_moments_do_not_say_is_refused(expression, says):
    with pytest.raises(OptionError, match=says):
        moments(expression, FRIENDS)


def test_defined_names_are_what_they_stand_for():
    centred = {**VECTOR_MEAN, "mu": "vector[d] = 0", "sigma": "positive = 1"}
    found = moments("q^T k", centred)
    assert compare("d", found.variance, centred).evidence == "proved"
    assert compare("0", found.mean, centred)


def test_deep_expressions_are_refused_not_overflowed():
    deep = "q^T k"
    for _ in range(70):
        deep = f"(c ({deep}) + 1)"
    with pytest.raises((OptionError, ValueError)):
        moments(deep, FRIENDS)


def test_enumeration_is_bounded_and_exact():
    third = Discrete([(0,), (1,)], [2, 1])
    assert enumerate_moments(lambda q: q[0], q=third) == ExactMoments(Fraction(1, 3), Fraction(2, 9))
    many = Discrete([(n,) for n in range(1000)])
    with pytest.raises(OptionError, match="combinations"):
        enumerate_moments(lambda q, k: q[0] * k[0], q=many, k=many)


@pytest.mark.parametrize(("points", "chances"), [([], None), ([(1, 2), (3,)], None), ([(1,)], [-1]), ([(1,)], [0])])
def test_laws_that_are_none_are_refused(points, chances):
    with pytest.raises(OptionError):
        Discrete(points, chances)


def test_sampling_agrees_and_its_intervals_are_honest():
    mean_q, mean_k = np.array([1.0, -2.0, 0.5]), np.array([0.0, 1.0, 3.0])
    root = np.array([[1.0, 0, 0], [0.5, 2.0, 0], [-1.0, 0.3, 0.7]])
    cov_q, cov_k = root @ root.T, np.diag([1.0, 0.25, 4.0])
    variance = np.trace(cov_q @ cov_k) + mean_q @ cov_k @ mean_q + mean_k @ cov_q @ mean_k
    inside = 0
    for seed in range(40):
        found = monte_carlo(
            lambda q, k: (q * k).sum(1),
            samples=2_000,
            seed=seed,
            confidence=0.9,
            q=(mean_q, cov_q),
            k=(mean_k, cov_k),
        )
        low, high = found.variance_interval
        inside += int(low < variance < high)
        inside += int(found.mean_interval[0] < mean_q @ mean_k < found.mean_interval[1])
    assert 60 <= inside <= 79  # of 80 at 0.9 each: 72, with a standard deviation below 4
    with pytest.raises(OptionError, match="confidence"):
        monte_carlo(lambda q: q[:, 0], confidence=1.0, q=([0.0], [[1.0]]))


def test_a_sample_s_moments_by_hand():
    found = sample_moments(np.array([1.0, 2.0, 3.0, 6.0]))
    assert (found.mean, found.variance) == (3.0, pytest.approx(14 / 3))
    assert found.mean_error == pytest.approx(math.sqrt(14 / 3 / 4))
    fourth = (16 + 1 + 0 + 81) / 4
    assert found.variance_error == pytest.approx(math.sqrt((fourth - (14 / 3) ** 2) / 4))


ASKED, LINEAR, MEANS = "what is asked", "linearity of expectation", "the means"


INDEPENDENT = "linearity, and independence of what is multiplied"


LEFT, DEVIATIONS = "what is left when the mean is taken away", "every vector as its mean and a deviation"


DEFINITION = "definition of variance"


APART = "linearity; between two parts a deviation of mean zero is independent of the rest"


COVARIANCE = "definition of covariance, and independence of what is multiplied"


DERIVATIONS = {
    "x y": [
        ("", r"\mathbb{E}[x y]", ASKED),
        ("=", r"\mathbb{E}[x] \mathbb{E}[y]", INDEPENDENT),
        ("=", r"\mu_{x} \mu_{y}", MEANS),
        ("", r"x y - \mu_{x} \mu_{y}", LEFT),
        ("=", r"\mu_{y} (x - \mu_{x}) + \mu_{x} (y - \mu_{y}) + (x - \mu_{x}) (y - \mu_{y})", DEVIATIONS),
        ("", r"\operatorname{Var}(x y)", ASKED),
        ("=", r"\mathbb{E}[(x y - \mu_{x} \mu_{y})^{2}]", DEFINITION),
        (
            "=",
            (
                r"\mathbb{E}[(\mu_{y} (x - \mu_{x}))^{2}] + \mathbb{E}[(\mu_{x} (y - \mu_{y}))^{2}]"
                r" + \mathbb{E}[((x - \mu_{x}) (y - \mu_{y}))^{2}]"
            ),
            APART,
        ),
        ("=", r"v_{x} v_{y} + \mu_{y}^{2} v_{x} + \mu_{x}^{2} v_{y}", COVARIANCE),
    ],
    "a^T q + c": [
        ("", r"\mathbb{E}[a^\top q + c]", ASKED),
        ("=", r"c + \mathbb{E}[a^\top q]", LINEAR),
        ("=", r"c + a^\top \mathbb{E}[q]", LINEAR),
        ("=", r"c + a^\top \mu_{q}", MEANS),
        ("", r"(a^\top q + c) - (c + a^\top \mu_{q})", LEFT),
        ("=", r"a^\top (q - \mu_{q})", DEVIATIONS),
        ("", r"\operatorname{Var}(a^\top q + c)", ASKED),
        ("=", r"\mathbb{E}[((a^\top q + c) - (c + a^\top \mu_{q}))^{2}]", DEFINITION),
        ("=", r"\mathbb{E}[(a^\top (q - \mu_{q}))^{2}]", APART),
        ("=", r"a^\top (\Sigma_{q} a)", COVARIANCE),
    ],
    "x": [
        ("", r"\mathbb{E}[x]", ASKED),
        ("=", r"\mu_{x}", MEANS),
        ("", r"\operatorname{Var}(x)", ASKED),
        ("=", r"\mathbb{E}[(x - \mu_{x})^{2}]", DEFINITION),
        ("=", "v_{x}", COVARIANCE),
    ],
    "c": [
        ("", r"\mathbb{E}[c]", ASKED),
        ("=", "c", LINEAR),
        ("", "c - c", LEFT),
        ("=", "0", DEVIATIONS),
        ("", r"\operatorname{Var}(c)", ASKED),
        ("=", r"\mathbb{E}[(c - c)^{2}]", DEFINITION),
        ("=", "0", APART),
    ],
}


@pytest.mark.parametrize("expression", DERIVATIONS)
def test_derivations_line_by_line(expression):
    found = moments(expression, FRIENDS)
    assert [(step.relation, step.text, step.reason) for step in found.steps] == DERIVATIONS[expression]
    ends = [line for line, after in pairwise([*DERIVATIONS[expression], ("", "", "")]) if not after[0]]
    assert (found.mean, found.variance) == (ends[0][1], ends[-1][1])


@pytest.mark.parametrize(
    ("expression", "mean", "variance"),
    [
        ("2 x + 3 y", r"2 \mu_{x} + 3 \mu_{y}", "4 v_{x} + 9 v_{y}"),
        ("x - y", r"\mu_{x} - \mu_{y}", "v_{x} + v_{y}"),
        ("c x", r"c \mu_{x}", "c^{2} v_{x}"),
        ("q^T k", r"\mu_{q}^\top \mu_{k}",
         (r"\operatorname{tr}(\Sigma_{q} \Sigma_{k}) + \mu_{k}^\top (\Sigma_{q} \mu_{k})"
         r" + \mu_{q}^\top (\Sigma_{k} \mu_{q})")),
        ("x a^T q", r"\mu_{x} a^\top \mu_{q}",
         r"v_{x} a^\top (\Sigma_{q} a) + (a^\top \mu_{q})^{2} v_{x} + \mu_{x}^{2} a^\top (\Sigma_{q} a)"),
        ("(a^T q) x", r"a^\top \mu_{q} \mu_{x}",
         r"v_{x} a^\top (\Sigma_{q} a) + \mu_{x}^{2} a^\top (\Sigma_{q} a) + (a^\top \mu_{q})^{2} v_{x}"),
    ],
)  # fmt: skip
def test_texts_of_moments(expression, mean, variance):
    assert moments(expression, FRIENDS)[:2] == (mean, variance)


def test_a_step_is_equal_to_the_one_before():
    assert MomentStep("x", "why").relation == "="


def test_nothing_is_left_to_say_where_the_mean_is_zero():
    steps = moments("q^T k", STANDARD).steps
    assert [step.text for step in steps] == [
        r"\mathbb{E}[q^\top k]",
        r"\mathbb{E}[q]^\top \mathbb{E}[k]",
        "0",
        r"\operatorname{Var}(q^\top k)",
        r"\mathbb{E}[(q^\top k)^{2}]",
        "d",
    ]


def test_laws_on_points():
    law = Discrete([(1, 2), (3, 0), (-1, 4)], [1, 2, 1])
    assert law.chances == (Fraction(1, 4), Fraction(1, 2), Fraction(1, 4))
    assert law.mean == (Fraction(3, 2), Fraction(3, 2))
    assert law.covariance == ((Fraction(11, 4), Fraction(-11, 4)), (Fraction(-11, 4), Fraction(11, 4)))
    assert Discrete([(5,)]).chances == (1,)
    assert Discrete([(5,), (7,)], [0, 1]).mean == (7,)
    with pytest.raises(OptionError, match="one for each point"):
        Discrete([(1,), (2,)], [1])
    with pytest.raises(OptionError, match="all of one length"):
        Discrete([])


def test_limits_of_enumeration_and_sampling(monkeypatch):
    monkeypatch.setattr("qkv.maths.moments.MOST_CASES", 6)
    two, three = Discrete([(0,), (2,)]), Discrete([(0,), (3,), (6,)])
    assert enumerate_moments(lambda q, k: q[0] + k[0], q=two, k=three) == ExactMoments(Fraction(4), Fraction(7))
    with pytest.raises(OptionError, match=r"12 combinations.*at most 6"):
        enumerate_moments(lambda q, k, r: 0, q=two, k=three, r=two)
    law = ([0.0], [[1.0]])
    for samples, confidence in ((99, 0.9), (100, 0.0), (100, 1.0)):
        with pytest.raises(OptionError, match=f"samples={samples}, confidence={confidence}"):
            monte_carlo(lambda q: q[:, 0], samples=samples, confidence=confidence, q=law)
    found = monte_carlo(lambda q: q[:, 0], samples=100, confidence=0.5, q=law)
    low, high = found.mean_interval
    assert low + high == pytest.approx(2 * found.mean)
    # Half of a normal law lies within 0.6745 standard deviations.
    assert (high - low) / 2 == pytest.approx(0.67449 * math.sqrt(found.variance / 100), rel=1e-4)
    assert found == monte_carlo(lambda q: q[:, 0], samples=100, confidence=0.5, q=law)
    assert found != monte_carlo(lambda q: q[:, 0], samples=100, seed=1, confidence=0.5, q=law)
    assert sum(found.variance_interval) == pytest.approx(2 * found.variance)
