"""Trees that are put together stay plain, and mean what the operations say."""

from fractions import Fraction

import pytest

from qkv.maths.combining import dimension, dot, is_zero, number, plus, product, times, trace, transposed, zero
from qkv.maths.tree import Contract, Multiply, Outer, Power, Special, Symbol, Transpose, Type
from qkv.maths.values.exact import evaluate

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
    assert dot(U, ZEROS) == number(0) == trace(zero(("d", "d")))
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
