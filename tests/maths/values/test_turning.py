"""Where a function of something random turns over: what has to stay on one side for a grid to be trusted."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.tree import Call, Divide, Node, Number, Power, Symbol, Type
from qkv.maths.values.arithmetic import Undefined, Unevaluable
from qkv.maths.values.evaluate import Sides, side_of

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
