"""Expectations of sums of monomials: linear, split over independent names, moments by the law of each name."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from qkv.maths.algebra.budget import spend
from qkv.maths.algebra.existence import has_mean
from qkv.maths.algebra.heads import closed, random_names
from qkv.maths.algebra.indices import entry
from qkv.maths.algebra.labelling import Factor, Frozen, Ix, Monomial
from qkv.maths.algebra.monomials import Poly, add, atom, bind, build, multiply, number, subtract, unbind
from qkv.maths.algebra.scope import Scope
from qkv.maths.tree import Law


def expectation(poly: Poly, scope: Scope) -> Poly:
    """E[poly]; what has no moment that is known stays E[...], closed."""
    sure: Poly = {}
    doubtful: dict[frozenset[str], Poly] = {}
    for monomial, coefficient in poly.items():
        names = _doubted(monomial, scope)
        (doubtful.setdefault(names, {}) if names else sure)[monomial] = coefficient
    # A zero times what may have no mean is not zero: such a product stays together.
    parts = [_apart(part, scope) or _together(part) for part in doubtful.values()]
    return add(_apart(sure, scope), *parts)


def covariance(left: Poly, right: Poly, scope: Scope) -> Poly:
    """Cov(x, y) = E[xy] − E[x] E[y]."""
    both = multiply(left, right)
    found = subtract(expectation(both, scope), multiply(expectation(left, scope), expectation(right, scope)))
    if found or not any(_doubted(monomial, scope) for monomial in (*left, *right, *both)):
        return found
    return subtract(_together(both), multiply(_together(left), _together(right)))


def _apart(poly: Poly, scope: Scope) -> Poly:
    """The expectation of each term, by the means of what is independent in it."""
    parts = []
    for monomial, coefficient in poly.items():
        still, random, opens = _split(monomial)
        value = build(coefficient, still, {})
        for names, group in independent(random):
            value = multiply(value, _group(names, group, scope))
        parts.append(_bound(value, opens))
    return add(*parts)


def _together(poly: Poly) -> Poly:
    """The expectation of each term, with all that is random in it in one."""
    parts = []
    for monomial, coefficient in poly.items():
        still, random, opens = _split(monomial)
        parts.append(_bound(multiply(build(coefficient, still, {}), _opaque(random)), opens))
    return add(*parts)


def _split(monomial: Monomial) -> tuple[list[Factor], list[Factor], dict[Ix, Frozen]]:
    """The factors that are not random, those that are, and the sizes of the indices that were bound."""
    factors, opens = unbind(monomial)
    return (
        [factor for factor in factors if not random_names(factor.head)],
        [factor for factor in factors if random_names(factor.head)],
        opens,
    )


def _bound(poly: Poly, opens: dict[Ix, Frozen]) -> Poly:
    for index, size in opens.items():
        poly = bind(poly, index, size)
    return poly


def _doubted(monomial: Monomial, scope: Scope) -> frozenset[str]:
    """The random names of the factors that may have no mean."""
    _, random, _ = _split(monomial)
    heavy = frozenset(name for name, law in scope.laws.items() if not law.normal)
    doubted = [names for names, group in independent(random) if not has_mean(group, heavy)]
    return frozenset().union(*doubted)


def _opaque(factors: list[Factor]) -> Poly:
    if not factors:
        return number(1)
    factor, _ = closed("expect", [build(Fraction(1), factors, {})])
    return atom(factor.head, factor.slots)


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
    return _opaque(factors)


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
