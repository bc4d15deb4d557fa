"""Which names a head holds, and putting something else in place of a name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from qkv.maths.functions import rebuilt
from qkv.maths.monomials import Head, Ix, Poly, add, bind, build, multiply, unbind
from qkv.maths.powers import power


@lru_cache(maxsize=4096)
def names(head: Head) -> frozenset[str]:
    """Every declared name in a head and its arguments."""
    if head.kind in ("name", "random"):
        return frozenset([head.name])
    return frozenset().union(*(names(f.head) for arg in _sums(head) for m, _ in arg for f in m.factors))


@lru_cache(maxsize=4096)
def random_names(head: Head) -> frozenset[str]:
    """The random names on whose values a head depends; an expectation depends on none."""
    if head.kind == "random":
        return frozenset([head.name])
    if head.kind == "expect":
        return frozenset()
    return frozenset().union(*(random_names(f.head) for arg in _sums(head) for m, _ in arg for f in m.factors))


def _sums(head: Head) -> tuple:
    return () if head.kind == "prime" else head.args


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
