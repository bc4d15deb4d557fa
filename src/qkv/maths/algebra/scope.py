"""What the names of a tree are known to be, and sizes as polynomials of naturals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qkv.maths import tree as t
from qkv.maths.algebra.budget import NotNormal
from qkv.maths.algebra.labelling import Head, Ix
from qkv.maths.algebra.monomials import (
    Poly,
    add,
    atom,
    multiply,
    number,
)
from qkv.maths.algebra.powers import power
from qkv.maths.algebra.symmetry import symmetric
from qkv.maths.extents import names_in, size_polynomial
from qkv.maths.values.arithmetic import Unevaluable


@dataclass
class Scope:
    """What the names of a tree are known to be, and the indices that are bound around the node at hand."""

    definitions: dict[str, t.Node] = field(default_factory=dict)
    naturals: set[str] = field(default_factory=set)
    symmetric: set[str] = field(default_factory=set)
    laws: dict[str, t.Law] = field(default_factory=dict)
    bound: Mapping[str, Ix] = field(default_factory=dict)
    held: frozenset[str] = frozenset()

    def within(self, bound: Mapping[str, Ix]) -> Scope:
        return replace(self, bound={**self.bound, **bound})

    def outside(self) -> Scope:
        """The scope of a definition or a law: no index of the place that uses it is seen there."""
        return replace(self, bound={})

    def holding(self, name: str) -> Scope:
        """A scope in which `name` stands for itself, whatever its definition."""
        return replace(self, held=self.held | {name})


def scope_of(*nodes: t.Node) -> Scope:
    """What can be learnt from the trees themselves: definitions, names of sizes; and what is symmetric."""
    scope = Scope()
    waiting, seen = list(nodes), set()
    random: list[t.Type] = []
    while waiting:
        node = waiting.pop()
        for size in (*node.shape, *([node.size] if isinstance(node, t.Index) else [])):
            scope.naturals.update(names_in(size))
        if isinstance(node, t.Symbol) and node.name not in seen:
            seen.add(node.name)
            if node.type.definition is not None:
                scope.definitions[node.name] = node.type.definition
                waiting.append(node.type.definition)
            if node.type.law is not None:
                scope.laws[node.name] = node.type.law
                random.append(node.type)
                waiting += [node.type.law.mean, node.type.law.covariance]
        if isinstance(node, t.Call) and node.map is not None:
            waiting.append(node.map)
        waiting += t.children(node)
    scope.symmetric.update(symmetric(random).known)
    return scope


def size_poly(size: t.Size, scope: Scope) -> Poly:
    """A size as a polynomial of naturals.

    >>> size_poly("n+1", Scope()) == add(size_poly("n", Scope()), number(1))
    True
    """
    try:
        terms = size_polynomial(size).items()
    except Unevaluable as problem:
        raise NotNormal(str(problem)) from None
    total = number(0)
    for key, value in terms:
        factors = [power(_size_name(name, scope), exponent) for name, exponent in key]
        total = add(total, multiply(number(value), *factors))
    return total


def _size_name(name: str, scope: Scope) -> Poly:
    if name in scope.definitions:
        from qkv.maths.algebra.indices import entry

        return entry(scope.definitions[name], (), scope.outside())
    return atom(Head("name", name, (), "natural"))
