"""The value of a normal form in numbers, without the algebra that made it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from qkv.maths.algebra.monomials import Frozen, Head, Ix
from qkv.maths.algebra.normal import Normal
from tests.helpers.maths_chance import average
from tests.helpers.maths_trees import ELEMENTWISE, MAPS, RANDOM, evaluate, length


def evaluate_normal(form: Normal, values: dict[str, Any]) -> Any:
    """The value of a normal form, by numpy: an array of the tree's shape."""
    shape = tuple(map(length, form.shape))
    found = np.full(shape, np.nan)
    for at, poly in form.entries:
        free = [ix for ix in at if ix[0] == "f"]
        for places in product(*(range(1, shape[at.index(ix)] + 1) for ix in free)):
            where = dict(zip(free, places, strict=True))
            found[tuple(_place(ix, where) - 1 for ix in at)] = _value(poly, where, values)
    return found


def _place(ix: Ix, where: dict[Ix, int]) -> int:
    return ix[1] if ix[0] == "c" else where[ix]


def _value(poly: Frozen, where: dict[Ix, int], values: dict[str, Any]) -> Any:
    total = np.float64(0)
    for (factors, sizes), coefficient in poly:
        for places in product(*(range(1, round(float(_value(size, {}, values))) + 1) for size in sizes)):
            inner = where | {("b", k): place for k, place in enumerate(places)}
            heads = [_head(factor.head, [_place(ix, inner) for ix in factor.slots], values) for factor in factors]
            powers = [head ** float(factor.exponent) for head, factor in zip(heads, factors, strict=True)]
            total = total + math.prod(powers, start=np.float64(coefficient))
    return total


def _head(head: Head, slots: list[int], values: dict[str, Any]) -> Any:
    out = {"inverse": 2, "map": int(head.name.rpartition("/")[2] or 0) if head.kind == "map" else 0}.get(head.kind, 0)
    own: dict[Ix, int] = {("p", k): place for k, place in enumerate(slots[out:])}

    def argument(k: int, *axes: int) -> Any:
        return _value(head.args[k], own | {("r", axis): place for axis, place in enumerate(axes)}, values)

    def along(k: int) -> range:
        return range(1, round(float(argument(k))) + 1)

    match head.kind:
        case "name" | "random":
            return np.float64(values[head.name][tuple(k - 1 for k in slots)] if slots else values[head.name])
        case "delta" | "less":
            return np.float64(slots[0] == slots[1] if head.kind == "delta" else slots[0] < slots[1])
        case "place":
            return np.float64(slots[0])
        case "prime":
            return np.float64(head.args[0])
        case "sum":
            return argument(0)
        case "exp" | "log" | "abs" | "sign":
            return ELEMENTWISE[head.kind](argument(0))
        case "max":
            return np.max(np.array([argument(k) for k in range(len(head.args))]))
        case "power":
            return argument(0) ** argument(1)
        case "largest":
            return np.max(np.array([argument(0, k) for k in along(1)]))
        case "argmax":
            return np.argmax(np.array([argument(0, k) for k in along(1)])) + 1.0
        case "inverse":
            matrix = [[argument(0, i, j) for j in along(1)] for i in along(1)]
            return np.linalg.inv(matrix)[slots[0] - 1, slots[1] - 1]
        case "det":
            return np.linalg.det([[argument(0, i, j) for j in along(1)] for i in along(1)])
        case "product":
            return math.prod(argument(0, k) for k in along(1))
        case "map":
            bodies = [partial(argument, k) for k in range(len(head.args))]
            return _map(head.name.rpartition("/")[0], bodies, values)[tuple(k - 1 for k in slots[:out])]
        case "expect":
            symbols = [RANDOM[name] for name in sorted(_random_in(head))]
            return average(symbols, values, evaluate, lambda drawn: _value(head.args[0], own, drawn))
    raise TypeError(head.kind)


def _map(name: str, bodies: list[Callable[..., Any]], values: dict[str, Any]) -> Any:
    """A map of arguments that are given entry by entry."""
    arguments = []
    for shape, body in zip(MAPS[name].type.arguments, bodies, strict=True):
        sides = [range(1, length(size) + 1) for size in shape]
        flat = np.array([body(*places) for places in product(*sides)])
        arguments.append(flat.reshape(tuple(map(len, sides))))
    return np.asarray(values[name](*arguments))


def _random_in(head: Head) -> set[str]:
    """The random names that an expectation is over."""
    heads = (
        [] if head.kind == "prime" else [f.head for arg in head.args for monomial, _ in arg for f in monomial.factors]
    )
    own = {inner.name for inner in heads if inner.kind == "random"}
    return own.union(*(_random_in(inner) for inner in heads if inner.kind != "expect"))
