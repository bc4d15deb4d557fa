"""Expectations of sums of monomials: linear, split over independent names, moments by the law of each name."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from qkv.maths.budget import spend
from qkv.maths.heads import closed
from qkv.maths.indices import entry
from qkv.maths.mentions import random_names
from qkv.maths.monomials import Factor, Ix, Poly, add, atom, bind, build, multiply, number, subtract, unbind
from qkv.maths.scope import Scope
from qkv.maths.tree import Law


def expectation(poly: Poly, scope: Scope) -> Poly:
    """E[poly]; what has no moment that is known stays E[...], closed."""
    parts = []
    for monomial, coefficient in poly.items():
        factors, opens = unbind(monomial)
        still = [factor for factor in factors if not random_names(factor.head)]
        value = build(coefficient, still, {})
        for names, group in independent([factor for factor in factors if random_names(factor.head)]):
            value = multiply(value, _group(names, group, scope))
        for index, size in opens.items():
            value = bind(value, index, size)
        parts.append(value)
    return add(*parts)


def covariance(left: Poly, right: Poly, scope: Scope) -> Poly:
    """Cov(x, y) = E[xy] − E[x] E[y]."""
    together = expectation(multiply(left, right), scope)
    return subtract(together, multiply(expectation(left, scope), expectation(right, scope)))


def independent(factors: Sequence[Factor]) -> list[tuple[frozenset[str], list[Factor]]]:
    """The factors in groups that share no random name."""
    groups: list[tuple[frozenset[str], list[Factor]]] = []
    for factor in factors:
        names, members = random_names(factor.head), [factor]
        apart = []
        for other, group in groups:
            if other & names:
                names, members = names | other, group + members
            else:
                apart.append((other, group))
        groups = [*apart, (names, members)]
    return groups


def _group(names: frozenset[str], factors: list[Factor], scope: Scope) -> Poly:
    plain = all(f.head.kind == "random" and f.exponent.denominator == 1 and f.exponent > 0 for f in factors)
    if plain and len(names) == 1:
        law = scope.laws[next(iter(names))]
        slots = [factor.slots for factor in factors for _ in range(int(factor.exponent))]
        if len(slots) <= 2 or law.normal:
            return moment(law, slots, scope)
    factor, _ = closed("expect", [build(Fraction(1), factors, {})])
    return atom(factor.head, factor.slots)


def moment(law: Law, slots: Sequence[tuple[Ix, ...]], scope: Scope) -> Poly:
    """E of a product of components: the first by its mean, or paired with each of the others.

    For a normal law this is Isserlis' theorem with means; up to two components it holds for every law.
    """
    outer = scope.outside()
    known: dict[tuple[tuple[Ix, ...], ...], Poly] = {(): number(1)}

    def of(slots: tuple[tuple[Ix, ...], ...]) -> Poly:
        if slots in known:
            return known[slots]
        spend(1)
        first, rest = slots[0], slots[1:]
        total = multiply(entry(law.mean, first, outer), of(rest))
        for k, other in enumerate(rest):
            pair = entry(law.covariance, first + other, outer)
            if pair:
                total = add(total, multiply(pair, of(rest[:k] + rest[k + 1 :])))
        known[slots] = total
        return total

    return of(tuple(sorted(slots)))
