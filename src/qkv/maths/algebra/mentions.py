"""Which names a head holds, and putting something else in place of a name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from qkv.maths.algebra.functions import rebuilt
from qkv.maths.algebra.heads import random_names, within
from qkv.maths.algebra.monomials import Head, Ix, Poly, add, bind, build, multiply, unbind
from qkv.maths.algebra.powers import power


@lru_cache(maxsize=4096)
def names(head: Head) -> frozenset[str]:
    """Every declared name in a head and its arguments."""
    if head.kind in ("name", "random"):
        return frozenset([head.name])
    return frozenset().union(*map(names, within(head)))


@lru_cache(maxsize=4096)
def averaged(head: Head) -> frozenset[str]:
    """The random names that the expectations in a head are over: it depends on the laws of these."""
    inner = within(head)
    found = frozenset().union(*map(averaged, inner))
    return found.union(*map(random_names, inner)) if head.kind == "expect" else found


def replaced(poly: Poly, name: str, value: Callable[[tuple[Ix, ...]], Poly]) -> Poly:
    """The sum with value(slots) in place of each component of `name`."""
    parts = []
    for monomial, coefficient in poly.items():
        factors, opens = unbind(monomial)
        still = [factor for factor in factors if name not in names(factor.head)]
        product = build(coefficient, still, {})
        for head, slots, exponent in factors:
            if name in names(head):
                inner = (
                    value(slots)
                    if not head.args
                    else rebuilt(head, slots, lambda args: [replaced(arg, name, value) for arg in args])
                )
                product = multiply(product, power(inner, exponent))
        for index, size in opens.items():
            product = bind(product, index, size)
        parts.append(product)
    return add(*parts)
