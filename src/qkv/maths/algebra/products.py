"""Products over an index."""

from __future__ import annotations

from fractions import Fraction

from qkv.maths import tree as t
from qkv.maths.algebra.budget import NotNormal
from qkv.maths.algebra.functions import exponential, symbolic_power
from qkv.maths.algebra.heads import arguments, closed, sign_of, single
from qkv.maths.algebra.indices import condition, entry, place_of, places
from qkv.maths.algebra.monomials import (
    Ix,
    Poly,
    atom,
    bind,
    constant,
    freeze,
    fresh,
    indices_of,
    multiply,
    number,
    rename,
    scale,
)
from qkv.maths.algebra.powers import power
from qkv.maths.algebra.scope import Scope, size_poly


def product_over(node: t.Sum, scope: Scope) -> Poly:
    """Π: written out along short ranges; else a power, an exponential of a sum, or a factor of its own."""
    return _over(list(node.indices), node, scope)


def _over(indices: list[t.Index], node: t.Sum, scope: Scope) -> Poly:
    if not indices:
        return entry(node.body, (), scope) if _kept(node, scope) else number(1)
    first, rest = indices[0], indices[1:]
    written = places(first.size)
    if written is not None:
        return multiply(*(_over(rest, node, scope.within({first.name: ("c", k)})) for k in written))
    index = fresh()
    size = size_poly(first.size, scope)
    return _long(_over(rest, node, scope.within({first.name: index})), index, size)


def _kept(node: t.Sum, scope: Scope) -> bool:
    for relation, left, right in node.conditions:
        holds = constant(condition(relation, place_of(left, scope), place_of(right, scope)))
        if holds is None:
            raise NotNormal("a product under a condition has a normal form only when it is written out")
        if not holds:
            return False
    return True


def _long(body: Poly, index: Ix, size: Poly) -> Poly:
    if index not in indices_of(body):
        return symbolic_power(body, size)
    alone = single(body)
    if alone is None:
        return _opaque(body, index, size)
    monomial, coefficient = alone
    parts = [symbolic_power(number(coefficient), size)]
    for head, slots, exponent in monomial.factors:
        factor = atom(head, slots)
        if index not in slots:
            parts.append(symbolic_power(atom(head, slots, exponent), size))
        elif head.kind == "exp":
            inside = scale(arguments(head, slots)[0], exponent)
            parts.append(exponential(bind(inside, index, freeze(size))))
        elif exponent.denominator == 1 or head.sign != "real":
            parts.append(power(_opaque(factor, index, size), exponent))
        else:
            parts.append(_opaque(atom(head, slots, exponent), index, size))
    return multiply(*parts)


def _opaque(body: Poly, index: Ix, size: Poly) -> Poly:
    closed_body = rename(body, {index: ("r", 0)})
    factor, _ = closed("product", [closed_body, size], sign=sign_of(body))
    return atom(factor.head, factor.slots, Fraction(1))
