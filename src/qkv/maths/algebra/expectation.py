"""Expectations of sums of monomials: linear, split over independent names, moments by the law of each name.

A product with a factor that has no mean (1/y, exp(y²)) has none, whatever the means of its other factors. Laws are
assumed to have all moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from qkv.maths.algebra.functions import is_whole
from qkv.maths.algebra.heads import arguments, by_terms, closed, factor_sign, random_names, sign_of
from qkv.maths.algebra.indices import Scope, entry
from qkv.maths.algebra.monomials import (
    Factor,
    Frozen,
    Ix,
    Monomial,
    Poly,
    add,
    atom,
    bind,
    build,
    multiply,
    number,
    spend,
    subtract,
    unbind,
)
from qkv.maths.tree import Law

UNKNOWN, FASTER = float("inf"), 1e9
# Bounded functions.
BOUNDED = frozenset({"sign", "less", "delta", "argmax"})


def has_mean(factors: Iterable[Factor], heavy: frozenset[str] = frozenset()) -> bool:
    """Whether the product of the factors certainly has a mean; False if that is not found.

    `heavy` are names whose laws are only known to have moments: exp(y) may have no mean for them.
    """
    return all(growth(factor, heavy) < UNKNOWN for factor in without_softmax_weights(list(factors)))


def growth(factor: Factor, heavy: frozenset[str] = frozenset()) -> float:
    """An upper bound of the power of the random names that a factor grows with; UNKNOWN if it may have no value.

    FASTER: an exponential of linear growth, or xⁿ, which have a mean but grow faster than any fixed power.
    """
    head, _, exponent = factor
    if not random_names(head):
        return 0
    if head.kind == "random":
        return float(exponent) if exponent > 0 and exponent.denominator == 1 else UNKNOWN
    args = [dict(body) for body in head.args]
    within = max((_growth(arg, heavy) for arg in args), default=0)
    if head.kind == "exp":
        return FASTER if within <= (0 if random_names(head) & heavy else 1) else UNKNOWN
    if exponent < 0:
        return FASTER if _inverse_bounded(head.kind, args, heavy) else UNKNOWN
    if within == UNKNOWN or (exponent.denominator != 1 and head.sign == "real"):
        return UNKNOWN
    if head.kind in BOUNDED:
        return 0
    # A map is only known to have values and moments; its exponential may have no mean.
    if head.kind in ("product", "det", "map"):
        return FASTER
    if head.kind == "power":
        return FASTER if is_whole(args[1]) and sign_of(args[1]) == "positive" else UNKNOWN
    # At most a multiple of their largest argument.
    if head.kind in ("max", "largest", "sum", "abs") or (head.kind == "log" and _bounded_from_zero(args[0], heavy)):
        return _times_exponent(within, float(exponent))
    return UNKNOWN


def _inverse_bounded(kind: str, args: list[Poly], heavy: frozenset[str]) -> bool:
    """Whether 1 over a head has all moments: its argument has values and is bounded away from zero."""
    if not all(map(_has_value, args)):
        return False
    if kind == "max":
        return any(_bounded_from_zero(arg, heavy) for arg in args)
    return kind == "argmax" or (kind in ("sum", "abs", "largest", "product") and _bounded_from_zero(args[0], heavy))


def _has_value(poly: Poly) -> bool:
    """Whether a sum certainly has a value for all values of its random names."""
    return all(_factor_has_value(factor) for monomial in poly for factor in monomial.factors)


def _factor_has_value(factor: Factor) -> bool:
    head, _, exponent = factor
    if not random_names(head):
        return True
    if head.sign == "real" and exponent.denominator != 1:
        return False
    if exponent < 0 and head.sign not in ("positive", "natural"):
        return False
    args = [dict(body) for body in head.args]
    if head.kind == "log" and sign_of(args[0]) != "positive":
        return False
    if head.kind == "power" and not (is_whole(args[1]) and sign_of(args[1]) == "positive"):
        return False
    return head.kind != "inverse" and all(map(_has_value, args))


def _growth(poly: Poly, heavy: frozenset[str]) -> float:
    return max((sum(growth(factor, heavy) for factor in monomial.factors) for monomial in poly), default=0)


def _times_exponent(power: float, exponent: float) -> float:
    return power if power >= FASTER else power * exponent


def _bounded_from_zero(poly: Poly, heavy: frozenset[str]) -> bool:
    """Whether a sum is at least a positive constant, or an exponential of linear growth."""
    if sign_of(poly) != "positive":
        return False
    for monomial in by_terms(poly):
        random = [factor for factor in monomial.factors if random_names(factor.head)]
        known = all(factor.head.kind == "exp" and growth(factor, heavy) < UNKNOWN for factor in random)
        if known and all(factor_sign(factor) == "positive" for factor in monomial.factors):
            return True
    return False


def without_softmax_weights(factors: list[Factor]) -> list[Factor]:
    """The factors without weights between 0 and 1, f_i / Σ_j f_j, such as those of a softmax."""
    for place, below in enumerate(factors):
        if below.head.kind != "sum" or below.exponent > -1:
            continue
        (inside,) = arguments(below.head, below.slots)
        if sign_of(inside) != "positive" or not _has_value(inside):
            continue
        # The 1 in 1 + exp(y) matches every product, so it is tried last; else exp(y) would remain.
        for monomial, coefficient in sorted(inside.items(), key=lambda term: -len(term[0].factors)):
            left = (
                _remove_factors(factors[:place] + factors[place + 1 :], *unbind(monomial)) if coefficient > 0 else None
            )
            if left is not None:
                return without_softmax_weights([*left, below._replace(exponent=below.exponent + 1)])
    return [factor for factor in factors if factor.exponent]


def _remove_factors(factors: list[Factor], wanted: list[Factor], opens: Iterable[Ix]) -> list[Factor] | None:
    """The factors without the wanted ones, for some values of the open indices; None if some are missing."""
    opens = set(opens)
    if not wanted:
        return factors
    head, slots, exponent = wanted[0]
    for place, (other, at, k) in enumerate(factors):
        if other != head or not (k >= exponent if exponent > 0 else k <= exponent):
            continue
        found = dict(zip(slots, at, strict=True))
        if any(ix not in opens and ix != now for ix, now in zip(slots, at, strict=True)):
            continue
        if any(found[ix] != now for ix, now in zip(slots, at, strict=True)):
            continue
        rest = [f._replace(slots=tuple(found.get(ix, ix) for ix in f.slots)) for f in wanted[1:]]
        others = [*factors[:place], factors[place]._replace(exponent=k - exponent), *factors[place + 1 :]]
        return _remove_factors(others, rest, opens - set(found))
    return None


def expectation(poly: Poly, scope: Scope) -> Poly:
    """E[poly]; a part without a known moment stays a closed head E[...]."""
    sure: Poly = {}
    doubtful: dict[frozenset[str], Poly] = {}
    for monomial, coefficient in poly.items():
        names = _doubtful_names(monomial, scope)
        (doubtful.setdefault(names, {}) if names else sure)[monomial] = coefficient
    # Zero times a factor that may have no mean is not zero: such a product is not split.
    parts = [_split_expectation(part, scope) or _joint_expectation(part) for part in doubtful.values()]
    return add(_split_expectation(sure, scope), *parts)


def covariance(left: Poly, right: Poly, scope: Scope) -> Poly:
    """Cov(x, y) = E[xy] − E[x] E[y]."""
    both = multiply(left, right)
    found = subtract(expectation(both, scope), multiply(expectation(left, scope), expectation(right, scope)))
    if found or not any(_doubtful_names(monomial, scope) for monomial in (*left, *right, *both)):
        return found
    return subtract(_joint_expectation(both), multiply(_joint_expectation(left), _joint_expectation(right)))


def _split_expectation(poly: Poly, scope: Scope) -> Poly:
    """The expectation of each term, as the product over its independent groups."""
    parts = []
    for monomial, coefficient in poly.items():
        fixed, random, opens = _split_random(monomial)
        value = build(coefficient, fixed, {})
        for names, group in independent_groups(random):
            value = multiply(value, _group_mean(names, group, scope))
        parts.append(_bind_all(value, opens))
    return add(*parts)


def _joint_expectation(poly: Poly) -> Poly:
    """The expectation of each term, with all its random factors in one head."""
    parts = []
    for monomial, coefficient in poly.items():
        fixed, random, opens = _split_random(monomial)
        parts.append(_bind_all(multiply(build(coefficient, fixed, {}), _expectation_head(random)), opens))
    return add(*parts)


def _split_random(monomial: Monomial) -> tuple[list[Factor], list[Factor], dict[Ix, Frozen]]:
    """The factors that are not random, the random ones, and the sizes of the opened indices."""
    factors, opens = unbind(monomial)
    return (
        [factor for factor in factors if not random_names(factor.head)],
        [factor for factor in factors if random_names(factor.head)],
        opens,
    )


def _bind_all(poly: Poly, opens: dict[Ix, Frozen]) -> Poly:
    for index, size in opens.items():
        poly = bind(poly, index, size)
    return poly


def _doubtful_names(monomial: Monomial, scope: Scope) -> frozenset[str]:
    """The random names of the factors that may have no mean."""
    _, random, _ = _split_random(monomial)
    heavy = frozenset(name for name, law in scope.laws.items() if not law.normal)
    doubted = [names for names, group in independent_groups(random) if not has_mean(group, heavy)]
    return frozenset().union(*doubted)


def _expectation_head(factors: list[Factor]) -> Poly:
    if not factors:
        return number(1)
    factor, _ = closed("expect", [build(Fraction(1), factors, {})])
    return atom(factor.head, factor.slots)


def independent_groups(factors: Sequence[Factor]) -> list[tuple[frozenset[str], list[Factor]]]:
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


def _group_mean(names: frozenset[str], factors: list[Factor], scope: Scope) -> Poly:
    plain = all(f.head.kind == "random" and f.exponent.denominator == 1 and f.exponent > 0 for f in factors)
    if plain and len(names) == 1:
        law = scope.laws[next(iter(names))]
        slots = [factor.slots for factor in factors for _ in range(int(factor.exponent))]
        if len(slots) <= 2 or law.normal:
            return moment(law, slots, scope)
    return _expectation_head(factors)


def moment(law: Law, slots: Sequence[tuple[Ix, ...]], scope: Scope) -> Poly:
    """E of a product of components: the first one's mean times the rest, plus its covariance with each of the others.

    For a normal law this is Isserlis' theorem with means; for up to two components it holds for every law.
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
