"""Trees that are put together stay plain, and mean what the operations say."""

from fractions import Fraction

import pytest

from qkv.maths.moments import (
    dimension,
    dot,
    is_identity,
    is_zero,
    number,
    plus,
    product,
    resolve,
    split,
    times,
    trace,
    transposed,
    zero_of,
)
from qkv.maths.tree import Add, Call, Contract, Divide, Multiply, Number, Outer, Power, Special, Symbol, Transpose, Type
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
    assert transposed(ONES) == Special((1, "d"), "ones")
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
