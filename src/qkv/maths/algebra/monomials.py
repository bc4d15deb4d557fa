"""Sums of monomials in index notation: adding, multiplying, binding an index, and what becomes of one product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import count
from math import comb
from typing import TypeAlias

from qkv.maths.algebra.budget import spend
from qkv.maths.algebra.labelling import Factor, Frozen, Head, Ix, Monomial, canonical, least, renamed

Poly: TypeAlias = dict[Monomial, Fraction]
UNIT = Monomial()
DELTA = Head("delta", sign="nonnegative", symmetry=((0, 1), (1, 0)))
LESS = Head("less", sign="nonnegative")
PLACE = Head("place", sign="natural")
_fresh = count()


def fresh() -> Ix:
    """An open index that nobody else has."""
    return ("o", next(_fresh))


def number(value: Fraction | int) -> Poly:
    return {UNIT: Fraction(value)} if value else {}


def constant(poly: Poly) -> Fraction | None:
    """The value of a sum that is a plain number."""
    if not poly:
        return Fraction(0)
    return poly[UNIT] if len(poly) == 1 and UNIT in poly else None


def freeze(poly: Poly) -> Frozen:
    return tuple(sorted(poly.items()))


def add(*polys: Poly) -> Poly:
    total: Poly = {}
    for poly in polys:
        for monomial, coefficient in poly.items():
            value = total.get(monomial, 0) + coefficient
            if value:
                total[monomial] = Fraction(value)
            else:
                total.pop(monomial, None)
    return total


def scale(poly: Poly, value: Fraction | int) -> Poly:
    return {monomial: coefficient * value for monomial, coefficient in poly.items()} if value else {}


def subtract(a: Poly, b: Poly) -> Poly:
    return add(a, scale(b, -1))


def atom(head: Head, slots: Iterable[Ix] = (), exponent: Fraction | int = 1) -> Poly:
    return build(Fraction(1), [Factor(head, tuple(slots), Fraction(exponent))], {})


def multiply(*polys: Poly) -> Poly:
    product = number(1)
    for poly in polys:
        if constant(poly) is not None:
            product = scale(product, poly.get(UNIT, Fraction(0)))
            continue
        if constant(product) is not None:
            product = scale(poly, product.get(UNIT, Fraction(0)))
            continue
        parts = []
        for a, x in product.items():
            for b, y in poly.items():
                shift = len(a.sizes)
                moved = {("b", k): ("b", k + shift) for k in range(len(b.sizes))}
                factors = [*a.factors, *(renamed(factor, moved) for factor in b.factors)]
                parts.append(build(x * y, factors, dict(enumerate(a.sizes + b.sizes))))
        product = add(*parts)
    return product


def times(poly: Poly, coefficient: Fraction, extra: Iterable[Factor]) -> Poly:
    """Each term times the same factors, which meet the term's own before any sum is multiplied out."""
    extra = list(extra)
    return add(
        *(
            build(value * coefficient, [*monomial.factors, *extra], dict(enumerate(monomial.sizes)))
            for monomial, value in poly.items()
        )
    )


def bind(poly: Poly, index: Ix, size: Frozen) -> Poly:
    """Σ over an open index of the given size."""
    parts = []
    for monomial, coefficient in poly.items():
        k = len(monomial.sizes)
        factors = [renamed(factor, {index: ("b", k)}) for factor in monomial.factors]
        parts.append(build(coefficient, factors, {**dict(enumerate(monomial.sizes)), k: size}))
    return add(*parts)


def unbind(monomial: Monomial) -> tuple[list[Factor], dict[Ix, Frozen]]:
    """The factors with open indices for the bound ones, and the size of each of these."""
    opens = {("b", k): fresh() for k in range(len(monomial.sizes))}
    return [renamed(factor, opens) for factor in monomial.factors], {
        opens["b", k]: size for k, size in enumerate(monomial.sizes)
    }


def rename(poly: Poly, mapping: Mapping[Ix, Ix]) -> Poly:
    """Other names for indices; where two become one, or one a number, the heads are made anew."""
    return add(
        *(
            build(
                coefficient, [renamed(factor, mapping) for factor in monomial.factors], dict(enumerate(monomial.sizes))
            )
            for monomial, coefficient in poly.items()
        )
    )


def indices_of(poly: Poly) -> set[Ix]:
    """Every index in sight but the bound ones."""
    return {ix for monomial in poly for factor in monomial.factors for ix in factor.slots if ix[0] != "b"}


# Filled by functions.py: what a head of this kind becomes when its slots change or its exponent leaves its range.
REMAKE: dict[str, Callable[[Head, tuple[Ix, ...]], Poly]] = {}
EXPAND: dict[str, tuple[Callable[[Factor], bool], Callable[[Factor], Poly]]] = {}
TOGETHER: list[Callable[[Fraction, list[Factor], dict[int, Frozen]], Poly | None]] = []


def build(coefficient: Fraction, factors: Iterable[Factor], sizes: dict[int, Frozen]) -> Poly:
    """The canonical sum for one product of factors with bound indices ("b", k) of the sizes given."""
    if not coefficient:
        return {}
    merged: dict[tuple[Head, tuple[Ix, ...]], Fraction] = {}
    for head, slots, exponent in factors:
        key = (head, least(head, slots))
        merged[key] = merged.get(key, Fraction(0)) + exponent
    kept = [Factor(head, slots, exponent) for (head, slots), exponent in merged.items() if exponent]
    spend(1 + len(kept) + sum(factor.head.weight for factor in kept) // 16)
    for place, factor in enumerate(kept):
        if stale(factor):
            return opened(coefficient, kept[:place] + kept[place + 1 :], sizes, remade, factor)
        if factor.head.kind == "delta":
            settled = _settle(coefficient, factor, kept[:place] + kept[place + 1 :], sizes)
            if settled is not None:
                return settled
        elif factor.head.kind in EXPAND:
            wanted, become = EXPAND[factor.head.kind]
            if wanted(factor):
                return opened(coefficient, kept[:place] + kept[place + 1 :], sizes, become, factor)
    for rule in TOGETHER:
        result = rule(coefficient, kept, sizes)
        if result is not None:
            return result
    return _counted(coefficient, kept, sizes)


def remade(factor: Factor) -> Poly:
    """The factor made anew from its arguments with the slots that it has now."""
    from qkv.maths.algebra.powers import power

    return power(REMAKE[factor.head.kind](factor.head, factor.slots), factor.exponent)


def stale(factor: Factor) -> bool:
    """Whether a head with closed arguments has got slots that it should not have: equal ones, or numbers."""
    head, slots = factor.head, factor.slots
    if not head.args or head.kind not in REMAKE:
        return False
    own = slots[outputs(head) :]
    return len(set(own)) < len(own) or any(ix[0] == "c" for ix in own)


def outputs(head: Head) -> int:
    """How many of the slots say which entry of a vector or matrix is meant; the rest belong to the arguments."""
    return {"inverse": 2}.get(head.kind, int(head.name.rpartition("/")[2]) if head.kind == "map" else 0)


def opened(
    coefficient: Fraction,
    others: list[Factor],
    sizes: dict[int, Frozen],
    become: Callable[[Factor], Poly],
    factor: Factor,
) -> Poly:
    """The product with `factor` replaced by what it becomes, computed with the bound indices open."""
    opens: dict[Ix, Ix] = {("b", k): fresh() for k in sizes}
    rest = build(coefficient, [renamed(other, opens) for other in others], {})
    poly = multiply(rest, become(renamed(factor, opens)))
    for k, size in sizes.items():
        poly = bind(poly, opens["b", k], size)
    return poly


def _settle(coefficient: Fraction, delta: Factor, others: list[Factor], sizes: dict[int, Frozen]) -> Poly | None:
    """δ_xy: one index takes the other's place. None where nothing is left to do."""
    if delta.exponent < 0:
        return None
    x, y = delta.slots
    if x == y:
        return build(coefficient, others, sizes)
    if x[0] == y[0] == "c":
        return {}
    bound = [ix for ix in (y, x) if ix[0] == "b"]
    if bound:
        gone = bound[0]
        left = {k: size for k, size in sizes.items() if k != gone[1]}
        return build(coefficient, [renamed(other, {gone: x if gone == y else y}) for other in others], left)
    small, large = sorted((x, y), key=lambda ix: (ix[0] != "c", ix))
    if delta.exponent == 1 and not any(large in other.slots for other in others):
        return None
    moved = [renamed(other, {large: small}) for other in others]
    return build(coefficient, [*moved, delta._replace(exponent=Fraction(1))], sizes)


def _counted(coefficient: Fraction, factors: list[Factor], sizes: dict[int, Frozen]) -> Poly:
    """Bound indices that nothing uses, or only as a number, are summed away."""
    uses: dict[int, list[Factor]] = {k: [] for k in sizes}
    for factor in factors:
        for ix in set(factor.slots):
            if ix[0] == "b":
                uses[ix[1]].append(factor)
    for k, users in uses.items():
        if users and not (len(users) == 1 and users[0].head == PLACE):
            continue
        degree = users[0].exponent if users else Fraction(0)
        if degree.denominator == 1 and 0 <= degree <= 4:
            rest = [factor for factor in factors if factor not in users]
            left = {other: size for other, size in sizes.items() if other != k}
            return multiply(build(coefficient, rest, left), power_sum(dict(sizes[k]), int(degree)))
    return {canonical(factors, sizes): coefficient}


def power_sum(size: Poly, degree: int) -> Poly:
    """Σ_{i=1}^n i^degree as a polynomial of n, from (n+1)^{k+1} − 1 = Σ_j C(k+1, j) S_j.

    >>> power_sum(number(4), 2) == number(30)
    True
    """
    sums: list[Poly] = [size]
    for k in range(1, degree + 1):
        top = subtract(_whole_power(add(size, number(1)), k + 1), number(1))
        for j in range(k):
            top = subtract(top, scale(sums[j], comb(k + 1, j)))
        sums.append(scale(top, Fraction(1, k + 1)))
    return sums[degree]


def _whole_power(poly: Poly, exponent: int) -> Poly:
    return multiply(*([poly] * exponent))
