"""Heads with sums as arguments: a function of a sum that cannot be expanded is a factor by itself.

`closed` orders the slots canonically, so that equal functions are equal heads whatever their indices are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import permutations, product

from qkv.maths.algebra.monomials import (
    Factor,
    Frozen,
    Head,
    Ix,
    Monomial,
    Poly,
    TooLarge,
    add,
    atom,
    build,
    freeze,
    has_root,
    indices_of,
    multiply,
    number,
    outputs,
    rename,
    scale,
    spend,
)

MOST_WEIGHT = 1000
SIGNS = {"positive": 2, "nonnegative": 1, "real": 0}
# The most terms and the highest degree of a sum whose sign is sought by writing 1 + t for each natural.
MOST_TERMS = 12
HIGHEST_DEGREE = 6


def closed(
    kind: str,
    args: Sequence[Poly],
    *,
    name: str = "",
    out: tuple[Ix, ...] = (),
    sign: str = "real",
    even: bool = False,
    odd: bool = False,
    unordered: bool = False,
) -> tuple[Factor, int]:
    """The factor `kind` of `args`, and its sign.

    `even`: the sign of the argument does not matter; `odd`: it can be factored out; `unordered`: the order of the
    arguments does not matter.
    """
    weight = 1 + sum(factor.head.weight for arg in args for monomial in arg for factor in monomial.factors)
    if weight > MOST_WEIGHT:
        raise TooLarge("one function contains too many terms")
    found = sorted({ix for arg in args for ix in indices_of(arg) if ix[0] != "c" and ix[0] != "r"})
    marks = {ix: _index_mark(ix, args, unordered) for ix in found}
    blocks: dict[object, list[Ix]] = {}
    for ix in sorted(found, key=lambda ix: marks[ix]):
        blocks.setdefault(repr(marks[ix]), []).append(ix)
    best: tuple[Frozen, ...] = ()
    least_key, sign_found, orders = None, 1, []
    for chosen in product(*(permutations(block) for block in blocks.values())):
        order = tuple(ix for block in chosen for ix in block)
        spend(len(args) + weight // 16)
        mapping: dict[Ix, Ix] = {ix: ("p", place) for place, ix in enumerate(order)}
        plain = [rename(arg, mapping) for arg in args]
        for flip in (1, -1) if even or odd else (1,):
            bodies = tuple(freeze(scale(body, flip)) for body in plain)
            if unordered:
                bodies = tuple(sorted(bodies))
            # Of a sum and its negative, keep the one that begins with a plus.
            key = tuple(tuple((monomial, -value) for monomial, value in body) for body in bodies)
            if least_key is None or key < least_key:
                best, least_key, sign_found, orders = bodies, key, flip, [order]
            elif key == least_key and (even or flip == sign_found) and order not in orders:
                orders.append(order)
    first, shift = orders[0], len(out)
    symmetry = tuple(sorted((*range(shift), *(shift + first.index(ix) for ix in order)) for order in orders))
    head = Head(kind, name, best, sign, symmetry if len(symmetry) > 1 else (), weight)
    return Factor(head, out + first), 1 if even else sign_found


def _index_mark(ix: Ix, args: Sequence[Poly], unordered: bool) -> list[tuple[object, ...]]:
    """The occurrences of an index, without its name."""
    return sorted(
        (
            0 if unordered else n,
            len(monomial.factors),
            factor.head,
            -1 if factor.head.symmetry else place,
            factor.exponent,
        )
        for n, arg in enumerate(args)
        for monomial in arg
        for factor in monomial.factors
        for place, slot in enumerate(factor.slots)
        if slot == ix
    )


def arguments(head: Head, slots: tuple[Ix, ...]) -> list[Poly]:
    """The arguments of a head with its slots substituted."""
    mapping: dict[Ix, Ix] = {("p", k): ix for k, ix in enumerate(slots[outputs(head) :])}
    return [rename(dict(body), mapping) for body in head.args]


def heads_within(head: Head) -> list[Head]:
    """The heads in the arguments of a head."""
    args = () if head.kind == "prime" else head.args
    return [factor.head for arg in args for monomial, _ in arg for factor in monomial.factors]


@lru_cache(maxsize=4096)
def random_names(head: Head) -> frozenset[str]:
    """The random names on whose values a head depends; an expectation depends on none."""
    if head.kind == "random":
        return frozenset([head.name])
    if head.kind == "expect":
        return frozenset()
    return frozenset().union(*map(random_names, heads_within(head)))


def single_monomial(poly: Poly) -> tuple[Monomial, Fraction] | None:
    """The monomial and coefficient of a sum of one term without bound indices, else None."""
    if len(poly) != 1:
        return None
    ((monomial, coefficient),) = poly.items()
    return None if monomial.sizes else (monomial, coefficient)


def sign_of(poly: Poly) -> str:
    """The known sign of a sum: "positive", "nonnegative" or "real" (unknown)."""
    return _sign_by_terms(by_terms(poly))


def by_terms(poly: Poly) -> Poly:
    """The sum, or the sum with 1 + t for each natural if only that shows its sign term by term."""
    above = _shifted_naturals(poly) if _sign_by_terms(poly) == "real" else None
    return poly if above is None else above


def _shifted_naturals(poly: Poly) -> Poly | None:
    """The sum with 1 + t, t >= 0, for each natural; None if there are no naturals, or too many terms."""
    rising = [
        coefficient > 0 and any(map(_is_natural_power, monomial.factors)) for monomial, coefficient in poly.items()
    ]
    if len(poly) > MOST_TERMS or not any(rising):
        return None
    parts = []
    for monomial, coefficient in poly.items():
        rest = [factor for factor in monomial.factors if not _is_natural_power(factor)]
        shifted = []
        for head, slots, k in filter(_is_natural_power, monomial.factors):
            above = atom(head._replace(kind="above", sign="nonnegative"), slots)
            shifted += [add(number(1), above)] * int(min(k, HIGHEST_DEGREE + 1))
        if len(shifted) > HIGHEST_DEGREE:
            return None
        parts.append(multiply(build(coefficient, rest, dict(enumerate(monomial.sizes))), *shifted))
    return add(*parts)


def _is_natural_power(factor: Factor) -> bool:
    """Whether a factor is a positive whole power of a natural that no sum binds."""
    head, slots, k = factor
    return head.sign == "natural" and k.denominator == 1 and k > 0 and all(ix[0] != "b" for ix in slots)


def _sign_by_terms(poly: Poly) -> str:
    if not poly:
        return "nonnegative"
    worst = 0
    for monomial, coefficient in poly.items():
        known = min((SIGNS[factor_sign(factor)] for factor in monomial.factors), default=2)
        if coefficient < 0 or known == 0:
            return "real"
        worst = max(worst, known)
    return "positive" if worst == 2 else "nonnegative"


def known_sign(head: Head, slots: tuple[Ix, ...]) -> str:
    """The known sign of a head; a head under a root is nonnegative wherever that is defined."""
    if head.sign == "natural":
        return "positive"
    return "nonnegative" if head.sign == "real" and has_root(head, slots) else head.sign


def factor_sign(factor: Factor) -> str:
    head, slots, exponent = factor
    known = known_sign(head, slots)
    if known != "real":
        return known
    # An even root and an even power are nonnegative.
    return "nonnegative" if exponent.denominator % 2 == 0 or exponent.numerator % 2 == 0 else "real"
