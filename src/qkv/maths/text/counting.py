"""Arithmetic in lower indices, as in x_{t-1}: indices, naturals and whole numbers, added."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from qkv.maths.extents import Polynomial, polynomial, size_node
from qkv.maths.text.shaping import known
from qkv.maths.tree import Add, Index, Multiply, Node, Number, Symbol


@dataclass(frozen=True)
class Linear:
    """A sum of indices and of something that holds none of them."""

    indices: tuple[Index, ...]
    times: tuple[Fraction, ...]
    rest: Node


def linear(node: Node) -> Linear | None:
    """An expression of whole numbers that counts; None where something else stands in it."""
    if not isinstance(node, Add | Multiply):
        return None
    indices: dict[str, tuple[Index, Fraction]] = {}
    rest: list[Node] = []
    for term in node.terms if isinstance(node, Add) else (node,):
        factors = term.factors if isinstance(term, Multiply) else (term,)
        numbers = [factor for factor in factors if isinstance(factor, Number)]
        if any(factor.value.denominator != 1 or factor.unit is not None for factor in numbers):
            return None
        others = [factor for factor in factors if not isinstance(factor, Number)]
        if len(others) == 1 and isinstance(index := others[0], Index):
            value = Fraction(1)
            for factor in numbers:
                value *= factor.value
            indices[index.name] = (index, value + indices.get(index.name, (index, Fraction(0)))[1])
        elif all(isinstance(factor, Symbol) and factor.type.kind == "natural" for factor in others):
            rest.append(term)
        else:
            return None
    kept = [pair for pair in indices.values() if pair[1]]
    total = Add((), tuple(rest)) if rest else Number((), Fraction(0))
    return Linear(tuple(index for index, _ in kept), tuple(times for _, times in kept), total)


def simplest(node: Node) -> Node:
    """i for i + 1 - 1, and 3 for 2 + 1."""
    counted = linear(node)
    rest = None if counted is None else polynomial(counted.rest)
    if counted is None or rest is None or not set(rest) <= {()}:
        return node
    if not counted.indices:
        return Number((), rest.get((), Fraction(0)), span=node.span)
    if counted.times == (1,) and not rest:
        (index,) = counted.indices
        return Index((), index.name, index.size, span=node.span)
    if counted.times == (1,) and isinstance(node, Add):
        (index,) = counted.indices
        return Add((), (index, Number((), rest[()], span=node.span)), span=node.span)
    return node


def within(counted: Linear, size: object) -> bool:
    """Whether a sum of indices, each from 1 to its end, is sure to lie from 1 to `size`; naturals are 1 at least."""
    if not isinstance(size, int | str):
        return False
    low, high = polynomial(counted.rest), polynomial(counted.rest)
    for index, times in zip(counted.indices, counted.times, strict=True):
        end = known(index.size)
        most = polynomial(size_node(end)) if isinstance(end, int | str) else None
        if most is None:
            return False
        one: Polynomial = {(): Fraction(1)}
        low = _plus(low, one if times > 0 else most, times)
        high = _plus(high, most if times > 0 else one, times)
    return _is_natural(_plus(low, {(): Fraction(1)}, Fraction(-1))) and _is_natural(
        _plus(polynomial(size_node(size)), high, Fraction(-1))
    )


def _plus(left: Polynomial | None, right: Polynomial | None, times: Fraction) -> Polynomial | None:
    if left is None or right is None:
        return None
    total = dict(left)
    for key, value in right.items():
        total[key] = total.get(key, Fraction(0)) + times * value
    return {key: value for key, value in total.items() if value}


def _is_natural(part: Polynomial | None) -> bool:
    """Whether this is never negative, as far as its signs say."""
    if part is None or any(power < 0 for key in part for _, power in key):
        return False
    return sum(part.values()) >= 0 and all(value > 0 for key, value in part.items() if key)
