"""max_j, argmax_j and softmax_j of something with j in it: of the vector whose components that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from qkv.maths.substitution import free_indices
from qkv.maths.text import calling, summing
from qkv.maths.text.saying import named
from qkv.maths.text.shaping import fit
from qkv.maths.text.syntax import Syntax
from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Divide,
    Expect,
    Hadamard,
    Index,
    Multiply,
    Node,
    Number,
    Part,
    Power,
    Special,
    Sum,
    Transpose,
)

if TYPE_CHECKING:
    from qkv.maths.text.elaborate import Elaborator

_ENTRYWISE = frozenset(("exp", "log", "relu", "sign", "sqrt", "abs"))


def over(elaborator: Elaborator, part: Syntax, lower: Syntax, arguments: Callable[[], list[Node]]) -> Node:
    """A function with an index below it; `arguments` reads what it is of, in which the index is bound."""
    name, before = str(part[0]), elaborator.scope
    index = summing.single(elaborator, lower, part)
    elaborator.scope = {**before, index.name: index}
    given = arguments()
    elaborator.scope = before
    shown = named(index.name)
    if len(given) != 1 or given[0].shape:
        if name == "softmax":
            return calling.known_call(elaborator, name, given, part.span)
        elaborator.unreadable(f"{name} over {shown} is of one scalar with {shown} in it, as in {name}_j s_j", part.span)
    if index.name not in free_indices(given[0]):
        elaborator.unreadable(f"{shown} does not stand in what {name} is over", part.span)
    vector = lifted(given[0], index)
    if name != "softmax":
        elaborator.bound[index.name] = name
        return Call((), name, (vector,), span=part.span)
    place = summing.other(elaborator, index.name, lower.span)
    if isinstance(place, Index):
        fit(place.size, index.size)
    return Part((), Call(vector.shape, name, (vector,), span=part.span), (place,), span=part.span)


def lifted(node: Node, index: Index) -> Node:
    """The vector whose components are this scalar, as `index` runs."""

    def constant(*parts: Node) -> bool:
        return index.name not in free_indices(*parts)

    def places(part: Node | None) -> bool:
        return isinstance(part, Index) and part.name == index.name

    shape, span = (index.size,), node.span
    if constant(node):
        return Multiply(shape, (node, Special(shape, "ones", span=span)), span=span)
    match node:
        case Part(body=body, indices=(j,)) if len(body.shape) == 1 and places(j) and constant(body):
            return body
        case Part(body=body, indices=(Node() as i, j)) if places(j) and constant(body, i):
            return Part(shape, body, (i,), span=span)
        case Part(body=body, indices=(j, Node() as i)) if places(j) and constant(body, i):
            return Part(shape, body, (None, i), span=span)
        case Add(terms=terms):
            return Add(shape, tuple(lifted(term, index) for term in terms), span=span)
        case Multiply(factors=factors):
            fixed = [factor for factor in factors if constant(factor)]
            moving = [lifted(factor, index) for factor in factors if not constant(factor)]
            vector = reduce(lambda left, right: Hadamard(shape, left, right, span=span), moving)
            return Multiply(shape, (*fixed, vector), span=span) if fixed else vector
        case Divide(top=top, bottom=bottom) if constant(bottom):
            return Divide(shape, lifted(top, index), bottom, span=span)
        case Power(base=base, exponent=Number(value=two)) if two == 2:
            vector = lifted(base, index)
            return Hadamard(shape, vector, vector, span=span)
        case Call(name=name, arguments=(argument,), map=None) if name in _ENTRYWISE and not argument.shape:
            return Call(shape, name, (lifted(argument, index),), span=span)
        case Sum(body=body, conditions=(), product=False):
            return replace(node, shape=shape, body=lifted(body, index))
        case Expect(body=body):
            return Expect(shape, lifted(body, index), span=span)
        case Contract(left=left, right=Part(body=rows, indices=(j,))) if places(j) and constant(left, rows):
            column = left.body if isinstance(left, Transpose) else Transpose(left.shape[1:], left, span=span)
            return Contract(shape, rows, column, span=span)
        case Contract(left=Transpose(body=Part(body=rows, indices=(j,))), right=right) if places(j):
            if constant(rows, right):
                return Contract(shape, rows, right, span=span)
    # Anything else times the j-th column of the identity, summed.
    column = Part(shape, Special((index.size, index.size), "identity", span=span), (index,), span=span)
    return Sum(shape, (index,), Multiply(shape, (node, column), span=span), span=span)
