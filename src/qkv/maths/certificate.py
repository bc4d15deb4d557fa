"""Proofs: the steps of a certificate, which `replay` checks before anything is called proved."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from qkv.maths import tree as t
from qkv.maths.replay import Refused, replay
from qkv.maths.symmetry import symmetric
from qkv.maths.tree import Certificate, Step, parts

RULES = {"exp": "exponential", "log": "logarithm", "abs": "absolute value"}
RULES |= dict.fromkeys(("softmax", "norm", "norm_F", "norm1", "relu", "max", "min", "argmax"), "definition")
MINUS_ONE = t.Number((), t.Fraction(-1))


def prove(gold: t.Node, answer: t.Node) -> Certificate | None:
    """A certificate that two trees of one shape are equal and defined in the same places; None if none is found.

    >>> x = t.Symbol(("d",), "x", t.Type("vector", ("d",)))
    >>> dot = t.Contract((), t.Transpose((1, "d"), x), x)
    >>> prove(dot, t.Power((), t.Call((), "norm", (x,)), t.Number((), t.Fraction(2))))
    Certificate(1 steps)
    """
    known = symmetric(symbol.type for symbol in t.symbols_of(gold, answer).values()).known
    every = (*steps_of("gold", gold), *steps_of("answer", answer))
    tries = [(), every] if every else [()]
    for steps in (*tries, *((*more, *every) for more in multiplications(gold, answer))):
        certificate = Certificate(gold, answer, steps, known)
        try:
            replay(certificate)
        except Refused:
            continue
        return certificate
    return None


def steps_of(side: str, node: t.Node, place: tuple[int, ...] = ()) -> Iterator[Step]:
    """A step at every node that a rule rewrites."""
    below = parts(node)
    match node:
        case t.Symbol(type=t.Type(definition=t.Node() as definition)):
            yield Step(side, "definition", place)
            below = [definition]
        case t.Call(map=None) if node.name in RULES:
            yield Step(side, RULES[node.name], place)
        case t.Power() if not isinstance(node.exponent, t.Number):
            yield Step(side, "power", place)
        case t.Expect() | t.Covariance():
            yield Step(side, "expectation", place)
        case t.Derivative():
            yield Step(side, "derivative", place)
            below = [node.body]
    for position, child in enumerate(below):
        yield from steps_of(side, child, (*place, position))


def multiplications(gold: t.Node, answer: t.Node) -> Iterator[tuple[Step, ...]]:
    """Steps that multiply both sides by matrices whose inverses are written in them."""
    found: dict[t.Node, tuple[str, tuple[int, ...]]] = {}

    def visit(side: str, node: t.Node, place: tuple[int, ...]) -> None:
        if isinstance(node, t.Power) and len(node.shape) == 2 and node.exponent == MINUS_ONE:
            found.setdefault(node.base, (side, place))
        for position, child in enumerate(parts(node)):
            visit(side, child, (*place, position))

    visit("gold", gold, ())
    visit("answer", answer, ())
    left, right = (
        [
            Step(side, f"multiply from the {way}", place)
            for base, (side, place) in found.items()
            if len(gold.shape) > end and base.shape[1 - end] == gold.shape[end]
        ]
        for end, way in ((0, "left"), (1, "right"))
    )
    for step in (*left[:3], *right[:3]):
        yield (step,)
    yield from ((a, b) for a, b in product(left[:2], right[:2]) if (a.side, a.place) != (b.side, b.place))
