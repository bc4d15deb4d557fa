"""Where a function of something random turns over: a grid is no way to its expectation there, or there is none."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from qkv.maths.tree import Call, Divide, Node, Number, Power
from qkv.maths.values.arithmetic import Undefined, Unevaluable, sign, subtract
from qkv.maths.values.arrays import entries
from qkv.maths.values.elementary import argmax


class Turns:
    """On which side each node of a body is; where one is seen on two sides, the grid is given up."""

    def __init__(self) -> None:
        self.sides: dict[tuple[Any, ...], Any] = {}

    def note(self, key: tuple[Any, ...], node: Node, value: Any) -> None:
        found = side(node, value)
        if found is None or self.sides.setdefault(key, found) == found:
            return
        if isinstance(node, (Divide, Power)):
            raise Undefined("an expectation of a quotient by what may be zero")
        raise Unevaluable("an expectation of what has a kink")


def side(node: Node, value: Any) -> Any:
    """What must stay the same for `node` to be smooth: the sign of what it divides by, the place of a maximum."""
    match node:
        case Divide():
            return sign(value)
        case Power(exponent=Number(value=exponent)) if exponent < 0 or exponent.denominator > 1:
            return None if isinstance(value, tuple) else sign(value)
        case Call(name="abs" | "relu" | "sign" | "norm1" | "norm_inf" | "sqrt"):
            return tuple(map(sign, entries(value)))
        case Call(name="max"):
            return argmax(tuple(entries(value)))
        case Call(name="min"):
            return argmax(tuple(subtract(Fraction(0), entry) for entry in entries(value)))
        case Call(name="argmax"):
            rows = value[0] if isinstance(value[0][0], tuple) else value
            return tuple(map(argmax, rows))
    return None
