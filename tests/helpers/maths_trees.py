"""Random typed trees, rewritings that keep their value, and their values: an oracle for normal forms."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from qkv.maths.tree import (
    Add,
    Call,
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
    Shape,
    Size,
    Special,
    Sum,
    Symbol,
    Transpose,
    Type,
)
from tests.helpers.maths_chance import covariance, expectation, slope

SIZES = {"d": 3, "n": 2}
AXES: tuple[Size, ...] = ("d", "n", 2)


def _symbol(name: str, kind: str, *shape: Size) -> Symbol:
    return Symbol(shape, name, Type(kind, shape))


SCALARS = [_symbol("x", "scalar"), _symbol("y", "scalar"), _symbol("p", "positive"), _symbol("z", "nonnegative")]
SCALARS += [_symbol(name, "natural") for name in SIZES]
VECTORS = {size: [_symbol(f"{name}{size}", "vector", size) for name in "uv"] for size in AXES}
MATRICES = {shape: [_symbol("M{}{}".format(*shape), "matrix", *shape)] for shape in product(AXES, AXES)}
NAMED = {symbol.name: symbol for symbol in SCALARS}


def _random(name: str, mean: Symbol, covariance: Node, *, normal: bool) -> Symbol:
    kind = "vector" if mean.shape else "scalar"
    return Symbol(mean.shape, name, Type(kind, mean.shape, Law(mean, covariance, normal)))


def _laws() -> dict[str, Symbol]:
    """Random names of both kinds, whose laws share their parameters with the trees around them."""
    p, spread = NAMED["p"], _symbol("C", "matrix", 2, 2)
    square = Power((), p, Number((), Fraction(2)))
    found = [
        _random("X", NAMED["x"], square, normal=True),
        _random("Y", NAMED["y"], p, normal=False),
        _random("U", VECTORS["n"][0], Multiply(("n", "n"), (p, Special(("n", "n"), "identity"))), normal=True),
        _random("V", VECTORS[2][1], spread, normal=False),
    ]
    return {symbol.name: symbol for symbol in found}


RANDOM = _laws()
MAPS = {
    "phi": Symbol((), "phi", Type("map", ("d",), arguments=(("n",),))),
    "sim": Symbol((), "sim", Type("map", (), arguments=(("n",), ()))),
}
SYMBOLS = [*SCALARS, *(v for group in VECTORS.values() for v in group), *(m for g in MATRICES.values() for m in g)]
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "abs": np.abs,
    "sign": np.sign,
    "sqrt": np.sqrt,
    "relu": lambda v: np.maximum(v, 0),
}
SCALAR_OF: dict[str, Callable[..., Any]] = {
    "norm": lambda v: np.sqrt((v**2).sum()),
    "norm1": lambda v: np.abs(v).sum(),
    "norm_inf": lambda v: np.abs(v).max(),
    "sum": np.sum,
    "trace": np.trace,
    "argmax": lambda v: np.argmax(v) + 1.0,
    "det": np.linalg.det,
}


def whole(value: int | Fraction) -> Number:
    return Number((), Fraction(value))


def length(size: Size) -> int:
    return size if isinstance(size, int) else SIZES[size]


def draw_values(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    values: dict[str, Any] = {}
    for symbol in SYMBOLS:
        drawn = rng.normal(size=tuple(map(length, symbol.shape)))
        values[symbol.name] = np.abs(drawn) + 0.1 if symbol.type.kind in ("positive", "nonnegative") else drawn
    half = rng.normal(size=(2, 2))
    turn = rng.normal(size=(SIZES["d"], SIZES["n"]))
    values["C"] = half @ half.T + 0.1 * np.eye(2)
    values["phi"] = lambda v: np.tanh(turn @ v)
    values["sim"] = lambda v, s: np.cos(v[0] + 2 * v[-1]) + np.sin(s)
    return values | SIZES


def evaluate(node: Node, values: dict[str, Any]) -> Any:
    """The value of a tree, by numpy; indices that are bound are among the values."""

    def of(inner: Node) -> Any:
        return evaluate(inner, values)

    def at(index: Node | None) -> Any:
        return slice(None) if index is None else int(of(index)) - 1

    match node:
        case Number(value=value):
            return np.float64(value)
        case Symbol(name=name) | Index(name=name):
            return np.float64(values[name]) if not node.shape else values[name]
        case Special(name="identity"):
            return np.eye(length(node.shape[0]))
        case Special():
            return np.ones(tuple(map(length, node.shape)))
        case Add(terms=terms):
            return sum(map(of, terms))
        case Multiply(factors=factors):
            return math.prod(map(of, factors), start=np.float64(1))
        case Divide(top=top, bottom=bottom):
            return of(top) / of(bottom)
        case Contract(left=left, right=right):
            return (of(left) @ of(right)).reshape(tuple(map(length, node.shape)))
        case Outer(left=left, right=right):
            return np.outer(of(left), of(right))
        case Hadamard(left=left, right=right):
            return of(left) * of(right)
        case Power(base=base, exponent=exponent):
            return np.linalg.matrix_power(of(base), int(of(exponent))) if node.shape else of(base) ** of(exponent)
        case Transpose(body=body):
            value = of(body)
            return value[None, :] if value.ndim == 1 else value.T if len(node.shape) == 2 else value[0]
        case Part(body=body, indices=indices):
            return of(body)[tuple(map(at, indices))]
        case Delta(left=left, right=right):
            return np.float64(of(left) == of(right))
        case Sum():
            return _sum(node, values)
        case Expect(body=body):
            return expectation(body, values, evaluate)
        case Covariance():
            return covariance(node, values, evaluate)
        case Derivative():
            return slope(node, values, evaluate)
        case Call(map=Symbol(name=name), arguments=arguments):
            return values[name](*map(of, arguments))
        case Call(name=name, arguments=arguments):
            return _call(name, [of(argument) for argument in arguments])
    raise TypeError(type(node))


def _call(name: str, arguments: list[Any]) -> Any:
    first = arguments[0]
    if name in ("max", "min"):
        return getattr(np, name)(first if len(arguments) == 1 else np.array(arguments))
    if name == "softmax":
        return np.exp(first) / np.exp(first).sum(-1, keepdims=True)
    if name == "diag":
        return np.diag(first)
    return (ELEMENTWISE | SCALAR_OF)[name](first)


def _sum(node: Sum, values: dict[str, Any]) -> Any:
    total = (np.ones if node.product else np.zeros)(tuple(map(length, node.shape)))
    for places in product(*(range(1, length(index.size) + 1) for index in node.indices)):
        inner = values | {index.name: place for index, place in zip(node.indices, places, strict=True)}
        pairs = [(sign, evaluate(a, inner), evaluate(b, inner)) for sign, a, b in node.conditions]
        if all(a < b if sign == "<" else a != b for sign, a, b in pairs):
            total = total * evaluate(node.body, inner) if node.product else total + evaluate(node.body, inner)
    return total


class Trees:
    """Random trees, and random rewritings that keep their value, from one generator."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bound = 0

    def shape(self) -> Shape:
        return tuple(self.chance.choices(AXES, k=self.chance.choice((0, 0, 1, 2))))

    def index(self, size: Size) -> Index:
        self.bound += 1
        return Index((), f"i{self.bound}", size)

    def leaf(self, shape: Shape, bound: tuple[Index, ...] = ()) -> Node:
        pick = self.chance.choice
        if len(shape) == 2:
            return Special(shape, "identity") if shape[0] == shape[1] and pick((0, 0, 1)) else pick(MATRICES[shape])
        if len(shape) == 1:
            return pick([*VECTORS[shape[0]], Special(shape, "ones")])
        index = pick(bound) if bound else None
        if index is not None and pick((0, 1)):
            return pick([Part((), vector, (index,)) for vector in VECTORS[index.size]] + [index])
        return pick([*SCALARS, *map(whole, (1, 2, -1, 3, Fraction(1, 2)))])

    def tree(self, shape: Shape, depth: int, bound: tuple[Index, ...] = ()) -> Node:
        if depth <= 0:
            return self.leaf(shape, bound)
        pick, axis = self.chance.choice, self.chance.choice(AXES)

        def sub(*inner: Size) -> Node:
            return self.tree(inner, depth - 1, bound)

        ways: list[Callable[[], Node]] = [
            lambda: self.leaf(shape, bound),
            lambda: Add(shape, (sub(*shape), sub(*shape))),
            lambda: Multiply(shape, (sub(), sub(*shape))),
            lambda: Divide(shape, sub(*shape), sub()),
            lambda: Call(shape, pick(list(ELEMENTWISE)), (sub(*shape),)),
            lambda: self.sum(shape, depth, bound),
        ]
        if not shape:
            ways += [
                lambda: Power((), sub(), whole(pick((2, 2, 3, -1, -2, Fraction(1, 2), Fraction(-1, 2))))),
                lambda: Contract((), Transpose((1, axis), sub(axis)), sub(axis)),
                lambda: Call((), pick(("norm", "norm1", "norm_inf", "sum", "max", "min", "argmax")), (sub(axis),)),
                lambda: Call((), "trace", (sub(axis, axis),)),
                lambda: Call((), pick(("max", "min")), tuple(sub() for _ in range(pick((2, 3))))),
                lambda: self.part(depth, bound),
            ]
        if len(shape) == 1:
            ways += [
                lambda: Contract(shape, sub(*shape, axis), sub(axis)),
                lambda: Call(shape, "diag", (sub(*shape, *shape),)),
            ]
        if len(shape) == 2:
            ways += [
                lambda: Contract(shape, sub(shape[0], axis), sub(axis, shape[1])),
                lambda: Outer(shape, sub(shape[0]), sub(shape[1])),
                lambda: Transpose(shape, sub(*shape[::-1])),
            ]
            if shape[0] == shape[1]:
                ways += [
                    lambda: Power(shape, sub(*shape), whole(pick((2, -1)))),
                    lambda: Call(shape, "diag", (sub(shape[0]),)),
                ]
        if shape:
            ways += [lambda: Hadamard(shape, sub(*shape), sub(*shape)), lambda: Call(shape, "softmax", (sub(*shape),))]
        return pick(ways)()

    def sum(self, shape: Shape, depth: int, bound: tuple[Index, ...]) -> Node:
        first = self.index(self.chance.choice(AXES))
        if self.chance.random() < 0.6:
            return Sum(shape, (first,), self.tree(shape, depth - 1, (*bound, first)))
        second = self.index(first.size)
        body = self.tree(shape, depth - 1, (*bound, first, second))
        return Sum(shape, (first, second), body, ((self.chance.choice(("<", "!=")), first, second),))

    def part(self, depth: int, bound: tuple[Index, ...]) -> Node:
        if not bound:
            return Part((), self.tree((2,), depth - 1), (whole(self.chance.choice((1, 2))),))
        one, other = self.chance.choice(bound), self.chance.choice(bound)
        if one.size == other.size and self.chance.random() < 0.3:
            return Delta((), one, other)
        return Part((), self.tree((one.size, other.size), depth - 1, bound), (one, other))

    def rewritten(self, node: Node) -> Node:
        """Return a tree with the same value that is written differently in places."""
        return (
            self._step(_rebuilt(node, self.rewritten)) if self.chance.random() < 0.7 else _rebuilt(node, self.rewritten)
        )

    def _step(self, node: Node) -> Node:
        shape, pick = node.shape, self.chance.choice
        match node:
            case Add(terms=terms):
                return Add(shape, terms[::-1])
            case Multiply(factors=(scalar, Add(terms=terms))):
                return Add(shape, tuple(Multiply(shape, (scalar, term)) for term in terms))
            case Multiply(factors=factors):
                return Multiply(shape, factors[::-1])
            case Divide(top=top, bottom=bottom):
                return Multiply(shape, (Power((), bottom, whole(-1)), top))
            case Contract(left=left, right=right) if len(shape) == 2:
                turned = [Transpose(side.shape[::-1], side) for side in (right, left)]
                return Transpose(shape, Contract(shape[::-1], *turned))
            case Contract(left=left, right=right) if len(shape) == 1:
                k = self.index(right.shape[0])
                return Sum(shape, (k,), Multiply(shape, (Part((), right, (k,)), Part(shape, left, (None, k)))))
            case Contract(left=Transpose(body=left), right=right):
                outer = Outer((*left.shape, *right.shape), left, right)
                return pick([Call((), "trace", (outer,)), Call((), "sum", (Hadamard(left.shape, right, left),))])
            case Outer(left=left, right=right):
                return Transpose(shape, Outer(shape[::-1], right, left))
            case Hadamard(left=left, right=right):
                return Hadamard(shape, right, left)
            case Power(base=base, exponent=Number(value=value)) if not shape and value == 2:
                return Multiply((), (base, base))
            case Power(base=base, exponent=Number(value=value)) if not shape and value < 0:
                return Divide((), whole(1), Power((), base, whole(-value)))
            case Sum(indices=indices, body=Add(terms=terms), conditions=conditions):
                return Add(shape, tuple(Sum(shape, indices, term, conditions) for term in terms))
            case Sum(indices=indices, body=body, conditions=(("!=", a, b),)):
                return Add(shape, tuple(Sum(shape, indices, body, (("<", *pair),)) for pair in ((a, b), (b, a))))
            case Call(name="norm", arguments=(vector,)):
                return Call((), "sqrt", (Contract((), Transpose((1, *vector.shape), vector), vector),))
            case Call(name="relu", arguments=(body,)) if not shape:
                return Call((), "max", (whole(0), body))
            case Call(name="softmax", arguments=(body,)):
                return Call(
                    shape, "softmax", (Add(shape, (body, Multiply(shape, (whole(2), Special(shape, "ones"))))),)
                )
            case Call(name="trace", arguments=(body,)):
                return Call((), "trace", (Transpose(body.shape[::-1], body),))
        return node

    def altered(self, node: Node) -> Node:
        """The tree with one of its leaves changed, which usually changes its value."""
        spots = _paths(node)
        return _replaced(node, self.chance.choice(spots), self.leaf) if spots else node


def _branches(node: Node) -> list[tuple[str, int | None, Node]]:
    found: list[tuple[str, int | None, Node]] = []
    for item in fields(node):
        value = getattr(node, item.name)
        if item.name in ("indices", "conditions", "exponent", "map", "target") or isinstance(node, Delta):
            continue
        if isinstance(value, Node):
            found.append((item.name, None, value))
        elif isinstance(value, tuple):
            found += [(item.name, k, part) for k, part in enumerate(value) if isinstance(part, Node)]
    return found


def _put(node: Node, name: str, place: int | None, value: Node) -> Node:
    if place is None:
        return replace(node, **{name: value})
    many = getattr(node, name)
    return replace(node, **{name: (*many[:place], value, *many[place + 1 :])})


def _rebuilt(node: Node, of: Callable[[Node], Node]) -> Node:
    for name, place, inner in _branches(node):
        node = _put(node, name, place, of(inner))
    return node


def _paths(node: Node) -> list[tuple[tuple[str, int | None], ...]]:
    if isinstance(node, Symbol | Number):
        return [()]
    return [((name, place), *path) for name, place, inner in _branches(node) for path in _paths(inner)]


def _replaced(node: Node, path: tuple[tuple[str, int | None], ...], leaf: Callable[[Shape], Node]) -> Node:
    if not path:
        return leaf(node.shape)
    (name, place), rest = path[0], path[1:]
    inner = getattr(node, name) if place is None else getattr(node, name)[place]
    return _put(node, name, place, _replaced(inner, rest, leaf))
