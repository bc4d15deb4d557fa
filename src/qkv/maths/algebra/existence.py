"""Whether a product of random things is sure to have a mean, under laws that have all their moments.

What has none (1/y, exp(y²)) makes an expectation of a product undefined, whatever the mean of the other factors is.
"""

from __future__ import annotations

from collections.abc import Iterable

from qkv.maths.algebra.functions import counts
from qkv.maths.algebra.heads import arguments, by_terms, factor_sign, random_names, sign_of
from qkv.maths.algebra.monomials import Factor, Ix, Poly, unbind

UNKNOWN, FASTER = float("inf"), 1e9
# Never farther from 0 than a number, whatever they are of.
BOUNDED = frozenset({"sign", "less", "delta", "argmax"})


def has_mean(factors: Iterable[Factor], heavy: frozenset[str] = frozenset()) -> bool:
    """Whether the product of the factors is sure to have a mean; False where it is not seen.

    `heavy` are the names of whose laws no more is known than that they have moments: exp(y) may have no mean there.
    """
    return all(growth(factor, heavy) < UNKNOWN for factor in without_weights(list(factors)))


def growth(factor: Factor, heavy: frozenset[str] = frozenset()) -> float:
    """The power of the random names that a factor grows by, at most; UNKNOWN also where it may have no value.

    An exponential of what grows linearly has a mean still, but no power, and neither has xⁿ: FASTER.
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
    # Nothing is known of a map but that it has values, and moments: exp of it may have none.
    if head.kind in ("product", "det", "map"):
        return FASTER
    if head.kind == "power":
        return FASTER if counts(args[1]) and sign_of(args[1]) == "positive" else UNKNOWN
    # No larger than a multiple of their largest argument.
    if head.kind in ("max", "largest", "sum", "abs") or (head.kind == "log" and _kept_from_zero(args[0], heavy)):
        return _times(within, float(exponent))
    return UNKNOWN


def _inverse_bounded(kind: str, args: list[Poly], heavy: frozenset[str]) -> bool:
    """Whether 1 over a head has all its moments: what it is of has values, and is kept from zero."""
    if not all(map(_has_value, args)):
        return False
    if kind == "max":
        return any(_kept_from_zero(arg, heavy) for arg in args)
    return kind == "argmax" or (kind in ("sum", "abs", "largest", "product") and _kept_from_zero(args[0], heavy))


def _has_value(poly: Poly) -> bool:
    """Whether a sum is sure to have a value wherever its random names have one, however large it may be."""
    return all(_valued(factor) for monomial in poly for factor in monomial.factors)


def _valued(factor: Factor) -> bool:
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
    if head.kind == "power" and not (counts(args[1]) and sign_of(args[1]) == "positive"):
        return False
    return head.kind != "inverse" and all(map(_has_value, args))


def _growth(poly: Poly, heavy: frozenset[str]) -> float:
    return max((sum(growth(factor, heavy) for factor in monomial.factors) for monomial in poly), default=0)


def _times(power: float, exponent: float) -> float:
    return power if power >= FASTER else power * exponent


def _kept_from_zero(poly: Poly, heavy: frozenset[str]) -> bool:
    """Whether a sum is above something positive that is not random, or an exponential of what grows linearly."""
    if sign_of(poly) != "positive":
        return False
    for monomial in by_terms(poly):
        random = [factor for factor in monomial.factors if random_names(factor.head)]
        known = all(factor.head.kind == "exp" and growth(factor, heavy) < UNKNOWN for factor in random)
        if known and all(factor_sign(factor) == "positive" for factor in monomial.factors):
            return True
    return False


def without_weights(factors: list[Factor]) -> list[Factor]:
    """The factors without those that make up weights between 0 and 1, f_i / Σ_j f_j, such as those of a softmax."""
    for place, below in enumerate(factors):
        if below.head.kind != "sum" or below.exponent > -1:
            continue
        (inside,) = arguments(below.head, below.slots)
        if sign_of(inside) != "positive" or not _has_value(inside):
            continue
        # The 1 of 1 + exp(y) is in every product: it comes last, or exp(y) would be left alone above.
        for monomial, coefficient in sorted(inside.items(), key=lambda term: -len(term[0].factors)):
            left = _taken(factors[:place] + factors[place + 1 :], *unbind(monomial)) if coefficient > 0 else None
            if left is not None:
                return without_weights([*left, below._replace(exponent=below.exponent + 1)])
    return [factor for factor in factors if factor.exponent]


def _taken(factors: list[Factor], wanted: list[Factor], opens: Iterable[Ix]) -> list[Factor] | None:
    """The factors without the wanted ones, at one place of the indices that are open; None where some are missing."""
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
        return _taken(others, rest, opens - set(found))
    return None
