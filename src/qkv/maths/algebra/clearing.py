"""Whether a sum of monomials is zero: denominators are multiplied through before it is given up."""

from __future__ import annotations

from fractions import Fraction

from qkv.maths.algebra.monomials import Factor, Head, Ix, Poly, times

ROUNDS = 8


def vanishes(poly: Poly) -> bool:
    """True: zero wherever it is defined."""
    for _ in range(ROUNDS):
        if not poly:
            return True
        below = denominator(poly)
        if below is None:
            return False
        # Where the sum is defined its denominators are not zero, so the product is zero only where the sum is.
        poly = times(poly, Fraction(1), [below])
    return not poly


def denominator(poly: Poly) -> Factor | None:
    """A power of a sum, without bound indices, that clears the lowest power of it in the terms."""
    lowest: dict[tuple[Head, tuple[Ix, ...]], Fraction] = {}
    for monomial in poly:
        for head, slots, exponent in monomial.factors:
            if head.kind == "sum" and exponent < 0 and all(ix[0] != "b" for ix in slots):
                key = (head, slots)
                lowest[key] = min(lowest.get(key, exponent), exponent)
    if not lowest:
        return None
    (head, slots), exponent = min(lowest.items())
    return Factor(head, slots, -exponent)
