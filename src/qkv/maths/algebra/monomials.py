"""Sums of monomials in index notation: canonical products, adding, multiplying, binding an index.

A factor is (head, slots, exponent). An index is a pair (kind, key): "b" bound by the monomial (summed over), "c" a
whole number, "f" free by name, "o" open (to be bound by an outer sum), "v" a symbolic value. Inside the arguments of a
head, "p" is a slot of the head and "r" an axis of an argument that is a vector or matrix. The arguments of a head are
closed, so that renaming an index never changes them.

Work is counted, so that a verdict does not depend on the speed of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache
from itertools import count
from math import comb
from typing import Any, NamedTuple, TypeAlias

WORK = 20_000


class TooLarge(ValueError):
    """The normal form takes more work than allowed."""


class NotNormal(ValueError):
    """A tree without a normal form: ±, an asymptotic class, a relation, a division by zero."""


class NoValue(NotNormal):
    """A tree without a value anywhere: a division by zero, the inverse or the logarithm of zero."""


_work_left: ContextVar[list[int] | None] = ContextVar("left", default=None)
_under_roots: ContextVar[set[Any] | None] = ContextVar("rooted", default=None)


@contextmanager
def budget(units: int = WORK) -> Iterator[None]:
    """Limit the work inside to `units`; a nested budget is separate."""
    left, rooted = _work_left.set([units]), _under_roots.set(set())
    try:
        yield
    finally:
        _work_left.reset(left)
        _under_roots.reset(rooted)


def note_root(head: Any, slots: tuple[Any, ...]) -> None:
    """Record that this is under an even root or a logarithm, so that it is nonnegative wherever all is defined."""
    seen = _under_roots.get()
    if seen is not None and all(kind in "cfov" for kind, _ in slots):
        seen.add((head, slots))


def has_root(head: Any, slots: tuple[Any, ...]) -> bool:
    """Whether this is recorded as under a root, at these indices."""
    return (head, slots) in (_under_roots.get() or ())


def root_count() -> int:
    """The number of recorded heads under roots, without those with open indices, whose names change."""
    return sum(all(kind != "o" for kind, _ in slots) for _, slots in _under_roots.get() or ())


def spend(units: int = 1) -> None:
    """Count `units` of work against the current budget, if any; raises TooLarge."""
    left = _work_left.get()
    if left is None:
        return
    left[0] -= units
    if left[0] < 0:
        raise TooLarge("this expression is too large to be brought to its normal form")


Ix: TypeAlias = tuple[str, Any]


class Head(NamedTuple):
    """A factor without its indices.

    `sign` is what is known of it: "real" (nothing), "nonnegative", "positive" or "natural" (1, 2, 3, ...). `symmetry`
    lists the permutations of the slots that change nothing; `weight` counts the heads inside.
    """

    kind: str
    name: str = ""
    args: tuple[Any, ...] = ()
    sign: str = "real"
    symmetry: tuple[tuple[int, ...], ...] = ()
    weight: int = 1


class Factor(NamedTuple):
    head: Head
    slots: tuple[Ix, ...] = ()
    exponent: Fraction = Fraction(1)


class Monomial(NamedTuple):
    """A product of factors; `sizes` are the sizes of its bound indices ("b", 0), ("b", 1), ..."""

    factors: tuple[Factor, ...] = ()
    sizes: tuple[Any, ...] = ()


Frozen: TypeAlias = tuple[tuple[Monomial, Fraction], ...]


def rename_factor(factor: Factor, mapping: Mapping[Ix, Ix]) -> Factor:
    if not mapping or not factor.slots:
        return factor
    return factor._replace(slots=tuple(mapping.get(ix, ix) for ix in factor.slots))


def least_order(head: Head, slots: tuple[Ix, ...]) -> tuple[Ix, ...]:
    """The smallest of the equivalent orders of the slots."""
    if not head.symmetry:
        return slots
    return min(tuple(slots[j] for j in order) for order in head.symmetry)


def canonical(factors: Iterable[Factor], sizes: Mapping[int, Frozen]) -> Monomial:
    """The monomial with its bound indices numbered canonically."""
    factors = list(factors)
    if not sizes:
        return Monomial(tuple(sorted(factors)))
    group = {k: k for k in sizes}

    def root(k: int) -> int:
        while group[k] != k:
            k = group[k]
        return k

    for factor in factors:
        bound = [ix[1] for ix in factor.slots if ix[0] == "b"]
        for k in bound[1:]:
            group[root(k)] = root(bound[0])
    loose, parts = [], {root(k): ([], []) for k in sizes}
    for k in sizes:
        parts[root(k)][1].append(k)
    for factor in factors:
        bound = next((ix[1] for ix in factor.slots if ix[0] == "b"), None)
        (loose if bound is None else parts[root(bound)][0]).append(factor)
    pieces = []
    for piece, members in parts.values():
        found, tries = _canonical_component(tuple(sorted(piece)), tuple((k, sizes[k]) for k in members))
        spend(tries)
        pieces.append(found)
    pieces.sort()
    placed, all_sizes = sorted(loose), []
    for piece, piece_sizes in pieces:
        moved: dict[Ix, Ix] = {("b", k): ("b", k + len(all_sizes)) for k in range(len(piece_sizes))}
        placed.extend(rename_factor(factor, moved) for factor in piece)
        all_sizes.extend(piece_sizes)
    return Monomial(tuple(placed), tuple(all_sizes))


@lru_cache(maxsize=4096)
def _canonical_component(factors: tuple[Factor, ...], sized: tuple[tuple[int, Frozen], ...]) -> tuple[Any, int]:
    """One connected component with bound indices numbered from 0: colours are refined, ties are tried and counted."""
    sizes = dict(sized)
    rank = {head: place for place, head in enumerate(sorted({factor.head for factor in factors}))}
    # Hashing a large head is slow: heads are ranked once, not at every try.
    ranked = [(rank[factor.head], factor) for factor in factors]
    best: list[Any] = []
    tries = 0

    def leaf(order: dict[int, int]) -> None:
        moved: dict[Ix, Ix] = {("b", k): ("b", place) for k, place in order.items()}
        rows = []
        for kind, (head, slots, exponent) in ranked:
            rows.append((kind, exponent, least_order(head, tuple(moved.get(ix, ix) for ix in slots)), head))
        rows.sort(key=lambda row: row[:3])
        key = [row[:3] for row in rows]
        if not best or key < best[0]:
            best[:] = [key, rows, sorted(order, key=order.__getitem__)]

    def refine(colour: dict[int, int]) -> dict[int, int]:
        while True:
            seen: dict[int, list[Any]] = {k: [] for k in sizes}
            for kind, (head, slots, exponent) in ranked:
                view = [(ix[0], colour[ix[1]]) if ix[0] == "b" else ix for ix in slots]
                for place, ix in enumerate(slots):
                    if ix[0] == "b":
                        near = tuple(sorted(view)) if head.symmetry else tuple(view)
                        seen[ix[1]].append((kind, exponent, -1 if head.symmetry else place, near))
            marks = {k: (colour[k], sorted(seen[k])) for k in sizes}
            ranks = _ranked(marks)
            if len(set(ranks.values())) == len(set(colour.values())):
                return ranks
            colour = ranks

    def search(colour: dict[int, int]) -> None:
        nonlocal tries
        tries += 1
        if tries > 1000:
            raise TooLarge("too many ways to name the indices of one product")
        colour = refine(colour)
        cells: dict[int, list[int]] = {}
        for k, value in colour.items():
            cells.setdefault(value, []).append(k)
        tied = next((cells[value] for value in sorted(cells) if len(cells[value]) > 1), None)
        if tied is None:
            leaf({k: place for place, k in enumerate(sorted(colour, key=colour.__getitem__))})
            return
        for chosen in tied:
            search({k: 2 * value + (k in tied and k != chosen) for k, value in colour.items()})

    search(_ranked(sizes))
    _, rows, order = best
    named = tuple(Factor(head, slots, exponent) for _, exponent, slots, head in rows)
    return (named, tuple(sizes[k] for k in order)), tries


def _ranked(marks: Mapping[int, Any]) -> dict[int, int]:
    """The rank of each mark among the distinct ones."""
    places: list[Any] = []
    for mark in sorted(marks.values()):
        if not places or places[-1] != mark:
            places.append(mark)
    return {k: places.index(mark) for k, mark in marks.items()}


Poly: TypeAlias = dict[Monomial, Fraction]
UNIT = Monomial()
DELTA = Head("delta", sign="nonnegative", symmetry=((0, 1), (1, 0)))
LESS = Head("less", sign="nonnegative")
PLACE = Head("place", sign="natural")
_fresh = count()


def fresh() -> Ix:
    """A new open index."""
    return ("o", next(_fresh))


def number(value: Fraction | int) -> Poly:
    return {UNIT: Fraction(value)} if value else {}


def constant(poly: Poly) -> Fraction | None:
    """The value of a sum that is a number, else None."""
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
                factors = [*a.factors, *(rename_factor(factor, moved) for factor in b.factors)]
                parts.append(build(x * y, factors, dict(enumerate(a.sizes + b.sizes))))
        product = add(*parts)
    return product


def times(poly: Poly, coefficient: Fraction, extra: Iterable[Factor]) -> Poly:
    """Each term times the same factors, which are merged with the term's own before any sum is expanded."""
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
        factors = [rename_factor(factor, {index: ("b", k)}) for factor in monomial.factors]
        parts.append(build(coefficient, factors, {**dict(enumerate(monomial.sizes)), k: size}))
    return add(*parts)


def unbind(monomial: Monomial) -> tuple[list[Factor], dict[Ix, Frozen]]:
    """The factors with open indices in place of the bound ones, and the size of each."""
    opens = {("b", k): fresh() for k in range(len(monomial.sizes))}
    return [rename_factor(factor, opens) for factor in monomial.factors], {
        opens["b", k]: size for k, size in enumerate(monomial.sizes)
    }


def rename(poly: Poly, mapping: Mapping[Ix, Ix]) -> Poly:
    """Rename indices; if two become equal, or one a number, the heads are rebuilt."""
    return add(
        *(
            build(
                coefficient,
                [rename_factor(factor, mapping) for factor in monomial.factors],
                dict(enumerate(monomial.sizes)),
            )
            for monomial, coefficient in poly.items()
        )
    )


def indices_of(poly: Poly) -> set[Ix]:
    """Every index that is not bound."""
    return {ix for monomial in poly for factor in monomial.factors for ix in factor.slots if ix[0] != "b"}


# Filled by functions.py and rules.py: how to rebuild a head whose slots changed, to expand one whose exponent left its
# range, and to simplify factors together.
REMAKE: dict[str, Callable[[Head, tuple[Ix, ...]], Poly]] = {}
EXPAND: dict[str, tuple[Callable[[Factor], bool], Callable[[Factor], Poly]]] = {}
TOGETHER: list[Callable[[Fraction, list[Factor], dict[int, Frozen]], Poly | None]] = []


def build(coefficient: Fraction, factors: Iterable[Factor], sizes: dict[int, Frozen]) -> Poly:
    """The canonical sum for one product of factors with bound indices ("b", k) of the sizes given."""
    if not coefficient:
        return {}
    merged: dict[tuple[Head, tuple[Ix, ...]], Fraction] = {}
    for head, slots, exponent in factors:
        key = (head, least_order(head, slots))
        merged[key] = merged.get(key, Fraction(0)) + exponent
    kept = [Factor(head, slots, exponent) for (head, slots), exponent in merged.items() if exponent]
    spend(1 + len(kept) + sum(factor.head.weight for factor in kept) // 16)
    for place, factor in enumerate(kept):
        if is_stale(factor):
            return replace_factor(coefficient, kept[:place] + kept[place + 1 :], sizes, rebuild_factor, factor)
        if factor.head.kind == "delta":
            applied = _apply_delta(coefficient, factor, kept[:place] + kept[place + 1 :], sizes)
            if applied is not None:
                return applied
        elif factor.head.kind in EXPAND:
            wanted, become = EXPAND[factor.head.kind]
            if wanted(factor):
                return replace_factor(coefficient, kept[:place] + kept[place + 1 :], sizes, become, factor)
    for rule in TOGETHER:
        result = rule(coefficient, kept, sizes)
        if result is not None:
            return result
    return _sum_unused(coefficient, kept, sizes)


def rebuild_factor(factor: Factor) -> Poly:
    """The factor rebuilt from its arguments with its present slots."""
    from qkv.maths.algebra.functions import power

    return power(REMAKE[factor.head.kind](factor.head, factor.slots), factor.exponent)


def is_stale(factor: Factor) -> bool:
    """Whether a head with closed arguments has equal slots or numbers, so that it must be rebuilt."""
    head, slots = factor.head, factor.slots
    if not head.args or head.kind not in REMAKE:
        return False
    own = slots[outputs(head) :]
    return len(set(own)) < len(own) or any(ix[0] == "c" for ix in own)


def outputs(head: Head) -> int:
    """The number of slots that select an entry of a vector or matrix; the others belong to the arguments."""
    return {"inverse": 2}.get(head.kind, int(head.name.rpartition("/")[2]) if head.kind == "map" else 0)


def replace_factor(
    coefficient: Fraction,
    others: list[Factor],
    sizes: dict[int, Frozen],
    become: Callable[[Factor], Poly],
    factor: Factor,
) -> Poly:
    """The product with `factor` replaced by `become(factor)`, computed with the bound indices open."""
    opens: dict[Ix, Ix] = {("b", k): fresh() for k in sizes}
    rest = build(coefficient, [rename_factor(other, opens) for other in others], {})
    poly = multiply(rest, become(rename_factor(factor, opens)))
    for k, size in sizes.items():
        poly = bind(poly, opens["b", k], size)
    return poly


def _apply_delta(coefficient: Fraction, delta: Factor, others: list[Factor], sizes: dict[int, Frozen]) -> Poly | None:
    """Apply δ_xy: one index replaces the other. None if nothing is left to do."""
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
        return build(coefficient, [rename_factor(other, {gone: x if gone == y else y}) for other in others], left)
    small, large = sorted((x, y), key=lambda ix: (ix[0] != "c", ix))
    if delta.exponent == 1 and not any(large in other.slots for other in others):
        return None
    moved = [rename_factor(other, {large: small}) for other in others]
    return build(coefficient, [*moved, delta._replace(exponent=Fraction(1))], sizes)


def _sum_unused(coefficient: Fraction, factors: list[Factor], sizes: dict[int, Frozen]) -> Poly:
    """Sum over bound indices that no factor uses, or only as a number."""
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


CLEARING_ROUNDS = 8


def vanishes(poly: Poly) -> bool:
    """Whether a sum of monomials is zero wherever it is defined, after multiplying by its denominators."""
    for _ in range(CLEARING_ROUNDS):
        if not poly:
            return True
        below = clearing_factor(poly)
        if below is None:
            return False
        # Where the sum is defined its denominators are not zero, so the product is zero only if the sum is.
        poly = times(poly, Fraction(1), [below])
    return not poly


def clearing_factor(poly: Poly) -> Factor | None:
    """The power of a sum, without bound indices, that clears its lowest power in the terms."""
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
