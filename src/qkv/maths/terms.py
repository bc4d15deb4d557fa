"""Sums of terms, the arithmetic of the replayer: products, sums over indices, equality up to bound variables, signs.

Entries are sums of terms: a coefficient, bound variables, and powers of atoms. A slot is ("v", k), a variable that a
sum or an axis binds, ("f", name), a free index, or ("c", k), a whole number. A variable is bound once, so that no
renaming can capture it; two sums are equal if a renaming of their bound variables makes them equal. Nothing here is
shared with the prover or with the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import count, permutations, product
from math import comb, gcd, lcm
from typing import Any, NamedTuple, TypeAlias

from qkv.maths import tree as t

WORK = 60_000
WRITTEN_OUT, LARGEST_POWER = 12, 12
ONE, HALF = Fraction(1), Fraction(1, 2)
NOT_NEGATIVE = frozenset({"abs", "exp", "relu", "norm", "norm_F", "norm1", "norm_inf"})


class Refused(ValueError):
    """A certificate that does not prove its claim, with the reason."""


def require(fine: bool, reason: str) -> None:
    if not fine:
        raise Refused(reason)


Slot: TypeAlias = tuple[str, Any]
Slots: TypeAlias = tuple[Slot, ...]


class Atom(NamedTuple):
    """What is raised to powers: a name at slots, or a function of arguments."""

    kind: str
    name: str = ""
    slots: Slots = ()
    args: tuple[Array, ...] = ()


Factors: TypeAlias = tuple[tuple[Atom, Fraction], ...]


class Term(NamedTuple):
    coefficient: Fraction
    bound: Slots = ()
    factors: Factors = ()


Poly: TypeAlias = tuple[Term, ...]


class Array(NamedTuple):
    """An argument: the entry at its axes, which it binds; a scalar has none."""

    axes: Slots
    body: Poly


Renaming: TypeAlias = dict[Slot, Slot | None]
Others: TypeAlias = frozenset[Slot]
Arrays: TypeAlias = tuple[Array, ...]
Left: TypeAlias = tuple[Renaming, Factors]
Entries: TypeAlias = Callable[[Slots], Poly]
# What must hold: a sign (">", ">=", "!="), a sum, and the variables for all values of which it must hold.
Need: TypeAlias = tuple[str, Poly, Others]


def number(value: Fraction | int) -> Poly:
    return (Term(Fraction(value)),) if value else ()


def lone(atom: Atom, power: Fraction = ONE) -> Poly:
    return (Term(ONE, (), ((atom, power),)),)


def scale(poly: Poly, value: Fraction | int) -> Poly:
    return tuple(term._replace(coefficient=term.coefficient * value) for term in poly) if value else ()


def constant(poly: Poly) -> Fraction | None:
    if not poly:
        return Fraction(0)
    return poly[0].coefficient if len(poly) == 1 and not poly[0].factors and not poly[0].bound else None


def is_call(atom: Atom, *names: str) -> bool:
    return atom.kind == "call" and atom.name in names


@lru_cache(maxsize=8192)
def outline(atom: Atom) -> tuple[Any, ...]:
    """What equal atoms have in common, whatever their bound variables are called."""
    slots = tuple(sorted("*" if kind == "v" else f"{kind}{key}" for kind, key in atom.slots))
    args = tuple(sorted((len(arg.axes), tuple(sorted(map(term_outline, arg.body)))) for arg in atom.args))
    return atom.kind, atom.name, slots, args


def term_outline(term: Term) -> tuple[Any, ...]:
    return len(term.bound), tuple(sorted((outline(atom), power) for atom, power in term.factors))


@lru_cache(maxsize=8192)
def variables(atom: Atom) -> Others:
    """Every slot in an atom, those that its arguments bind included."""
    inner = (a for arg in atom.args for term in arg.body for a, _ in term.factors)
    return frozenset(atom.slots).union(*map(variables, inner))


def renamed_term(term: Term, mapping: Mapping[Slot, Slot]) -> Term:
    factors = tuple((renamed_atom(atom, mapping), power) for atom, power in term.factors)
    return Term(term.coefficient, tuple(mapping.get(slot, slot) for slot in term.bound), factors)


def renamed_atom(atom: Atom, mapping: Mapping[Slot, Slot]) -> Atom:
    slots = tuple(mapping.get(slot, slot) for slot in atom.slots)
    args = tuple(Array(arg.axes, tuple(renamed_term(term, mapping) for term in arg.body)) for arg in atom.args)
    return Atom(atom.kind, atom.name, slots, args)


class Arithmetic:
    """What is known of the names of one claim, and the arithmetic of their entries.

    Args:
        certificate: The claim.
        definition: The value of a scalar definition.
    """

    def __init__(self, certificate: t.Certificate, definition: Callable[[t.Node], Poly]) -> None:
        self.left, self.fresh = WORK, count()
        self.sizes: dict[Slot, Poly] = {}
        self.symbols = t.symbols_of(certificate.gold, certificate.answer)
        self.free = t.free_indices(certificate.gold, certificate.answer)
        self.symmetric = certificate.symmetric
        self.definition = definition
        self.given: list[Need] = []

    def spend(self, units: int = 1) -> None:
        self.left -= units
        require(self.left >= 0, "the certificate takes too much work to check")

    def variable(self, size: t.Size | Poly) -> Slot:
        slot = ("v", next(self.fresh))
        self.sizes[slot] = size if isinstance(size, tuple) else self.size(size)
        return slot

    def slots_of(self, shape: t.Shape) -> Iterator[Slots]:
        """Slots that cover every entry of an array: numbers along short axes, one variable along others."""
        short = [size if isinstance(size, int) and size <= WRITTEN_OUT else None for size in shape]
        numbers = [None if size is None else [("c", k + 1) for k in range(size)] for size in short]
        return product(*(row or [self.variable(size)] for row, size in zip(numbers, shape, strict=True)))

    def size(self, size: t.Size) -> Poly:
        """A size from its text: terms of names with whole powers."""
        if isinstance(size, int):
            return number(size)
        total: list[Poly] = []
        for sign, body in re.findall(r"([+-]?)([^+-]+)", size):
            factors = [number(-1 if sign == "-" else 1)]
            for operator, piece, power in re.findall(r"([*/]?)([^*/^]+)(?:\^(\d+))?", body):
                base = number(int(piece)) if piece.isdigit() else self.size_name(piece)
                factors.append(self.power(base, int(power or 1) * (-1 if operator == "/" else 1)))
            total.append(self.multiply(*factors))
        return self.add(*total)

    def size_name(self, name: str) -> Poly:
        symbol = self.symbols.get(name)
        if symbol is not None and symbol.type.definition is not None:
            return self.definition(symbol.type.definition)
        return lone(Atom("name", name))

    def range_of(self, slot: Slot) -> Poly:
        """The size of what a slot runs over; a number as a size is itself."""
        if slot[0] == "c":
            return number(slot[1])
        if slot not in self.sizes:
            index = self.free.get(slot[1])
            self.sizes[slot] = self.size(index.size if index else self.symbols[slot[1]].type.shape[0])
        return self.sizes[slot]

    def same_size(self, x: Slot, y: Slot) -> bool:
        return self.range_of(x) == self.range_of(y) or self.equal(self.range_of(x), self.range_of(y))

    def within(self, slot: Slot, size: Poly) -> bool:
        """Whether a slot certainly lies between 1 and `size`."""
        return (slot[0] != "c" or slot[1] > 0) and self.sign(self.subtract(size, self.range_of(slot))) > 0

    def add(self, *polys: Poly) -> Poly:
        kept: dict[Any, list[Term]] = {}
        for term in (term for poly in polys for term in poly):
            same = kept.setdefault(term_outline(term), [])
            for place, other in enumerate(same):
                if (other.factors == term.factors and other.bound == term.bound) or self.alike(term, other):
                    total = other.coefficient + term.coefficient
                    same[place : place + 1] = [other._replace(coefficient=total)] if total else []
                    break
            else:
                same.append(term)
        return tuple(term for same in kept.values() for term in same)

    def subtract(self, a: Poly, b: Poly) -> Poly:
        return self.add(a, scale(b, -1))

    def multiply(self, *polys: Poly) -> Poly:
        result = number(1)
        for poly in polys:
            made = [self.expanded(a.coefficient, a.bound, a.factors, poly) for a in result]
            result = self.add(*made) if len(made) != 1 else made[0]
        return result

    def expanded(self, coefficient: Fraction, bound: Slots, factors: Factors, value: Poly) -> Poly:
        """A product in which one factor is a sum."""
        made = []
        for term in value:
            self.spend(1 + len(factors))
            term = self.renewed(term)
            made.append(self.term(coefficient * term.coefficient, bound + term.bound, factors + term.factors))
        return self.add(*made) if len(made) != 1 else made[0]

    def renewed(self, term: Term) -> Term:
        """The term with new bound variables, so that none occurs twice in a product."""
        return renamed_term(term, {s: self.variable(self.sizes[s]) for s in term.bound}) if term.bound else term

    def remade(self, poly: Poly) -> Poly:
        """A sum whose slots were renamed, simplified again."""
        made = []
        for term in poly:
            factors = (self.remade_power(atom, power) for atom, power in term.factors)
            made.append(self.bind(self.multiply(number(term.coefficient), *factors), term.bound))
        return self.add(*made)

    def remade_power(self, atom: Atom, power: Fraction) -> Poly:
        args = tuple(Array(arg.axes, self.remade(arg.body)) for arg in atom.args)
        return self.power(args[0].body, power) if atom.kind == "poly" else self.raised(atom._replace(args=args), power)

    def bind(self, poly: Poly, slots: Iterable[Slot]) -> Poly:
        """Σ over variables."""
        slots = tuple(slots)
        return self.add(*(self.term(m.coefficient, m.bound + slots, m.factors) for m in poly)) if slots else poly

    def raised(self, atom: Atom, power: Fraction) -> Poly:
        return self.term(ONE, (), ((atom, power),))

    def atom(self, kind: str, name: str = "", slots: Iterable[Slot] = (), args: Iterable[Array] = ()) -> Poly:
        return self.raised(Atom(kind, name, tuple(slots), tuple(args)), ONE)

    def term(self, coefficient: Fraction, bound: Slots, factors: Factors) -> Poly:
        """One product in its simplest form: like atoms merged, deltas applied, unused sums counted."""
        self.spend()
        merged: list[tuple[Atom, Fraction]] = []
        for atom, power in factors:
            if self.is_symmetric(atom):
                atom = atom._replace(slots=tuple(sorted(atom.slots)))
            for place, (other, before) in enumerate(merged):
                if other == atom or (atom.args and self.same_atom(atom, other)):
                    merged[place] = (other, before + power)
                    break
            else:
                merged.append((atom, power))
        kept = tuple((atom, power) for atom, power in merged if power)
        for place, (atom, power) in enumerate(kept):
            rest = kept[:place] + kept[place + 1 :]
            if atom.kind == "delta" and power > 0:
                gone = self.contracted(atom, bound)
                if gone:
                    inner = tuple((renamed_atom(a, gone), k) for a, k in rest)
                    made = self.remade((Term(coefficient, (), inner),))
                    return self.bind(made, (slot for slot in bound if slot not in gone))
            simpler = self.simpler(atom, power, bound, rest)
            if simpler is not None:
                return self.expanded(coefficient, bound, simpler[1], simpler[0])
        for slot in bound:
            for rule in (self.counted, self.own_sum, self.own_inverse):
                found = rule(slot, coefficient, bound, kept)
                if found is not None:
                    return found
        return (Term(coefficient, bound, kept),)

    def is_symmetric(self, atom: Atom) -> bool:
        return len(atom.slots) == 2 and (atom.kind == "delta" or (atom.kind == "name" and atom.name in self.symmetric))

    def contracted(self, delta: Atom, bound: Slots) -> dict[Slot, Slot]:
        """The renaming by which a delta of a bound variable disappears, if the other slot lies in its range."""
        x, y = delta.slots
        for gone, other in ((x, y), (y, x)):
            if x != y and gone in bound and self.within(other, self.sizes[gone]):
                return {gone: other}
        return {}

    def simpler(self, atom: Atom, power: Fraction, bound: Slots, rest: Factors) -> tuple[Poly, Factors] | None:
        """A rule for one factor: the sum in its place, and the other factors."""
        if atom.kind in ("delta", "less") and power > 0:
            x, y = atom.slots
            if x[0] == y[0] == "c" or x == y:
                return number((x == y) if atom.kind == "delta" else x[0] == "c" and x[1] < y[1]), rest
            if power != 1:
                return number(1), (*rest, (atom, ONE))
            if atom.kind == "delta":
                keep, drop = (x, y) if x[0] == "c" or (x[0] == "f" and y[0] == "v") else (y, x)
                if any(drop in variables(other) for other, _ in rest):
                    return number(1), (*((renamed_atom(a, {drop: keep}), k) for a, k in rest), (atom, ONE))
            else:
                ranks = [-1 if slot in bound else "vfc".index(slot[0]) for slot in (x, y)]
                if ranks[0] > ranks[1] or (ranks[0] == ranks[1] >= 0 and x > y):
                    return self.turned(atom), rest
        if atom.kind == "place" and atom.slots[0][0] == "c":
            return self.power(number(atom.slots[0][1]), power), rest
        if atom.kind == "prime" and not 0 <= power < 1:
            return number(Fraction(int(atom.name)) ** int(power // 1)), (*rest, (atom, power % 1))
        if (atom.kind == "abs" and not 0 <= power < 2) or (atom.kind == "poly" and power >= 1):
            steps = power // 2 * 2 if atom.kind == "abs" else power // 1
            return self.power(atom.args[0].body, steps), (*rest, (atom, power - steps))
        return None

    def turned(self, less: Atom) -> Poly:
        """[x < y] = 1 − [x = y] − [y < x]."""
        others = (less._replace(slots=less.slots[::-1]), less._replace(kind="delta"))
        return (Term(ONE), *(Term(Fraction(-1), (), ((atom, ONE),)) for atom in others))

    def counted(self, slot: Slot, coefficient: Fraction, bound: Slots, kept: Factors) -> Poly | None:
        """Σ over a variable that no factor uses, or that is used as a number only, if its size is not negative."""
        users = tuple(pair for pair in kept if slot in variables(pair[0]))
        size, known = self.sizes[slot], all(atom.kind == "place" and k in (1, 2, 3, 4) for atom, k in users)
        if len(users) > 1 or not known or not self.sign(size):
            return None
        sums: list[Poly] = []
        for k in range(int(users[0][1]) + 1 if users else 1):  # (n + 1)^(k+1) − 1 = Σ_j C(k+1, j) S_j
            top = self.add(self.power(self.add(size, number(1)), k + 1), number(-1))
            lower = (scale(total, -comb(k + 1, j)) for j, total in enumerate(sums))
            sums.append(scale(self.add(top, *lower), Fraction(1, k + 1)))
        others = tuple(other for other in bound if other != slot)
        return self.expanded(coefficient, others, tuple(pair for pair in kept if pair not in users), sums[-1])

    def own_sum(self, slot: Slot, coefficient: Fraction, bound: Slots, kept: Factors) -> Poly | None:
        """Σ_j f_ij / Σ_k f_ik = 1, also where i is bound."""
        users = tuple(pair for pair in kept if slot in variables(pair[0]))
        for below, power in kept:
            if below.kind != "poly" or power > -1 or (below, power) in users or len(below.args[0].body) != 1:
                continue
            inner = below.args[0].body[0]
            if len(inner.bound) == 1 and self.alike(Term(ONE, (slot,), users), inner):
                rest = tuple(pair for pair in kept if pair not in users and pair != (below, power))
                others = tuple(other for other in bound if other != slot)
                return self.term(coefficient / inner.coefficient, others, (*rest, (below, power + 1)))
        return None

    def own_inverse(self, slot: Slot, coefficient: Fraction, bound: Slots, kept: Factors) -> Poly | None:
        """Σ_j M_ij (M⁻¹)_jk = δ_ik, and the same from the right; of a sum M its longest term is replaced."""
        for inverse, power in kept:
            if inverse.kind != "inverse" or power != 1 or inverse.slots.count(slot) != 1:
                continue
            end = inverse.slots.index(slot)
            outer, axes = inverse.slots[1 - end], inverse.args[0].axes
            row, column = axes if end == 0 else axes[::-1]
            kinds = {term: [atom.kind for atom, _ in term.factors] for term in inverse.args[0].body}
            matrix = sorted(kinds, key=lambda term: ("delta" in kinds[term], -len(kinds[term])))
            longest = self.renewed(matrix[0])
            rest = tuple(pair for pair in kept if pair != (inverse, power))
            fixed = {outer}.union(*(variables(a) for term in matrix for a, _ in term.factors))
            opened: Renaming = {**dict.fromkeys(longest.bound), row: None, column: slot}
            others = frozenset(s for atom, _ in rest for s in variables(atom))
            for found, left in self.matched_factors(longest.factors, rest, opened, others):
                start, inner = found[row], {found[x] for x in longest.bound}
                used = fixed.union(*(variables(atom) for atom, _ in left))
                fitting = self.same_size(slot, row) and start not in (slot, *inner) and inner <= set(bound)
                if start is None or not fitting or used & {*inner, slot}:
                    continue
                size = tuple(s for s in bound if s not in inner and s != slot)
                value = coefficient / longest.coefficient
                made = [self.term(value, size, (*left, (Atom("delta", "", (start, outer)), ONE)))]
                for term in map(self.renewed, matrix[1:]):
                    moved = renamed_term(term, {row: start, column: slot})
                    factors = (*left, *moved.factors, (inverse, power))
                    made.append(self.term(-value * term.coefficient, (*size, slot, *moved.bound), factors))
                return self.add(*made)
        return None

    def alike(self, a: Term, b: Term) -> bool:
        """Whether two terms are the same but for their coefficients."""
        if term_outline(a) != term_outline(b):
            return False
        return any(True for _ in self.matched_terms(a, b, dict.fromkeys(a.bound), frozenset(b.bound)))

    def same_atom(self, a: Atom, b: Atom) -> bool:
        return outline(a) == outline(b) and any(True for _ in self.matched_atoms(a, b, {}, frozenset()))

    def matched_terms(self, a: Term, b: Term, opened: Renaming, others: Others) -> Iterator[Renaming]:
        for found, rest in self.matched_factors(a.factors, b.factors, opened, others):
            if rest or not {found[slot] for slot in a.bound if found.get(slot)} <= set(b.bound):
                continue
            free = [slot for slot in b.bound if slot not in found.values()]
            for slot in (slot for slot in a.bound if found.get(slot) is None):
                same = next((other for other in free if self.same_size(slot, other)), None)
                free = [other for other in free if other != same]
                found = {**found, slot: same}
            if None not in (found[slot] for slot in a.bound):
                yield found

    def matched_factors(self, left: Factors, right: Factors, opened: Renaming, others: Others) -> Iterator[Left]:
        """The renamings that find every factor of `left` in `right`, with what is left of `right`."""
        if not left:
            yield opened, right
            return
        atom, power = left[0]
        for place, (other, k) in enumerate(right):
            if k != power or (other.kind, other.name) != (atom.kind, atom.name):
                continue
            self.spend()
            for found in self.matched_atoms(atom, other, opened, others):
                yield from self.matched_factors(left[1:], right[:place] + right[place + 1 :], found, others)

    def matched_atoms(self, a: Atom, b: Atom, opened: Renaming, others: Others) -> Iterator[Renaming]:
        if (a.kind, a.name, len(a.args), len(a.slots)) != (b.kind, b.name, len(b.args), len(b.slots)):
            return
        orders = [(a.slots, a.args), *([(a.slots[::-1], a.args)] if self.is_symmetric(a) else [])]
        if a.kind == "inverse":  # the inverse of a transpose is the transpose of the inverse
            orders.append((a.slots[::-1], (a.args[0]._replace(axes=a.args[0].axes[::-1]),)))
        if is_call(a, "max", "min") and len(a.args) < 5:
            orders = [(a.slots, args) for args in permutations(a.args)]
        for slots, args in orders:
            found = self.matched_slots(slots, b.slots, opened, others)
            if found is not None:
                yield from self.matched_args(args, b.args, found, others)

    def matched_slots(self, left: Slots, right: Slots, opened: Renaming, others: Others) -> Renaming | None:
        for x, y in zip(left, right, strict=True):
            known = opened.get(x, x)
            if known is None and y in others and y not in opened.values() and (y[0] == "c" or self.same_size(x, y)):
                opened = {**opened, x: y}
            elif known != y:
                return None
        return opened

    def matched_args(self, left: Arrays, right: Arrays, opened: Renaming, others: Others) -> Iterator[Renaming]:
        if not left:
            yield opened
            return
        axes = list(zip(left[0].axes, right[0].axes, strict=False))
        if len(left[0].axes) == len(right[0].axes) and all(self.same_size(x, y) for x, y in axes):
            for found in self.matched_polys(left[0].body, right[0].body, {**opened, **dict(axes)}, others):
                yield from self.matched_args(left[1:], right[1:], found, others)

    def matched_polys(self, left: Poly, right: Poly, opened: Renaming, others: Others) -> Iterator[Renaming]:
        if not left and not right:
            yield opened
        for place, other in enumerate(right if len(left) == len(right) else ()):
            if left[0].coefficient == other.coefficient and term_outline(left[0]) == term_outline(other):
                self.spend()
                kept = {x: y for x, y in opened.items() if y not in other.bound}
                inner: Renaming = {**kept, **dict.fromkeys(left[0].bound)}
                for found in self.matched_terms(left[0], other, inner, others | set(other.bound)):
                    yield from self.matched_polys(left[1:], right[:place] + right[place + 1 :], found, others)

    def equal(self, a: Poly, b: Poly) -> bool:
        """Whether two sums are equal wherever both are defined, after multiplying by their denominators."""
        rest: Poly | None = self.subtract(a, b)
        for _ in range(12):
            if not rest:
                return rest is not None
            below = self.denominator(rest)
            if below is None:
                ordered = self.without_order(rest)
                rest = self.squared(rest) if ordered is None else ordered
            else:
                atom, low = below
                rest = self.add(*(self.term(m.coefficient, m.bound, (*m.factors, (atom, -low))) for m in rest))
        return not rest and rest is not None

    def denominator(self, poly: Poly) -> tuple[Atom, Fraction] | None:
        """A sum that is divided by, and its lowest power, without bound variables."""
        low = [(k, a) for m in poly for a, k in m.factors if a.kind == "poly" and variables(a).isdisjoint(m.bound)]
        atoms = [atom for power, atom in low if power < 0]
        return (atoms[0], min(k for k, a in low if self.same_atom(a, atoms[0]))) if atoms else None

    def squared(self, poly: Poly) -> Poly | None:
        """a² − b² for a − b, which are zero together because neither a nor b is negative; None if that is not known."""
        a, b = sorted((m for m in poly), key=lambda m: -m.coefficient) if len(poly) == 2 else (Term(ONE), Term(ONE))
        sides = ((a,), scale((b,), -1))
        roots = any(k.denominator % 2 == 0 for m in poly for _, k in m.factors)
        fine = roots and all(map(self.sign, sides))
        return self.subtract(*(self.power(side, 2) for side in sides)) if fine else None

    def without_order(self, poly: Poly) -> Poly | None:
        """The sum with one [x < y] of two bound variables turned, where that cancels; None if there is none."""
        for place, term in enumerate(poly):
            rest = poly[:place] + poly[place + 1 :]
            for n, (atom, _) in enumerate(term.factors):
                if atom.kind != "less" or not set(atom.slots) <= set(term.bound):
                    continue
                others = term.factors[:n] + term.factors[n + 1 :]
                flipped = term._replace(factors=(*others, (atom._replace(slots=atom.slots[::-1]), ONE)))
                value = self.turned(atom)
                if self.alike(flipped, term):  # so that it is half of what is off the diagonal
                    return self.add(rest, self.expanded(term.coefficient / 2, term.bound, others, value[::2]))
                if any(self.alike(flipped, other) for other in rest):
                    return self.add(rest, self.expanded(term.coefficient, term.bound, others, value))
        return None

    def sign(self, poly: Poly) -> int:
        """2 if a sum is positive, 1 if it is nonnegative, 0 if neither is known; naturals are at least 1."""
        found = self.term_signs(poly) if poly else 1
        if found or self.is_given(poly):
            return found or 1
        whole = all(self.is_natural(a) and k > 0 and k.denominator == 1 for term in poly for a, k in term.factors)
        if not whole or any(term.bound for term in poly) or len(poly) > 12:
            return 0
        shifted = []  # 1 + t, t >= 0, for each natural
        for term in poly:
            above = (self.power(self.add(number(1), lone(a._replace(kind="above"))), k) for a, k in term.factors)
            shifted.append(self.multiply(number(term.coefficient), *above))
        return self.term_signs(self.add(*shifted))

    def is_given(self, poly: Poly) -> bool:
        """Whether a sum is under a root or a logarithm of the claim."""
        random = any(laws(self, atom) for term in poly for atom, _ in term.factors)
        known = (have for sign, have, free in self.given if sign in (">", ">=") and not free and len(have) == len(poly))
        return not random and any(not self.subtract(poly, have) for have in known)

    def term_signs(self, poly: Poly) -> int:
        found = []
        for term in poly:
            known = min((self.factor_sign(atom, power) for atom, power in term.factors), default=2)
            empty = known == 2 and any(self.sign(self.sizes[slot]) < 2 for slot in term.bound)
            found.append(0 if term.coefficient < 0 else 1 if empty else known)
        return max(found) if min(found, default=0) else 0

    def is_natural(self, atom: Atom) -> bool:
        symbol = self.symbols.get(atom.name)
        named = atom.kind == "name" and not atom.slots
        return atom.kind == "place" or (named and (symbol is None or symbol.type.kind in ("natural", "index")))

    def factor_sign(self, atom: Atom, power: Fraction) -> int:
        even = power.denominator % 2 == 0 or (power.denominator == 1 and power % 2 == 0)
        return self.atom_sign(atom) or int(even)

    def atom_sign(self, atom: Atom) -> int:
        if atom.kind in ("prime", "place") or is_call(atom, "exp", "softmax", "argmax", "pi") or self.is_natural(atom):
            return 2
        if atom.kind in ("delta", "less", "abs", "above") or (atom.kind == "call" and atom.name in NOT_NEGATIVE):
            return 1
        if atom.kind == "poly":
            return self.sign(atom.args[0].body)
        kind = self.symbols[atom.name].type.kind if atom.kind == "name" and not atom.slots else ""
        return {"positive": 2, "nonnegative": 1}.get(kind, 0) or int(self.is_given(lone(atom)))

    def power(self, poly: Poly, power: Fraction | int) -> Poly:
        """A sum to a rational power, valid wherever it is defined."""
        e = Fraction(power)
        if e in (0, 1):
            return poly if e else number(1)
        if not poly:
            require(e > 0, "a division by zero has no value")
            return ()
        if len(poly) == 1 and not poly[0].bound:
            return self.term_power(poly[0], e)
        if e.denominator == 1 and e > 0:
            require(e <= LARGEST_POWER, "a power that is too large to multiply out")
            return self.multiply(*([poly] * int(e)))
        content, rest = self.content(poly)
        if len(rest) == 1 and not rest[0].bound:
            return self.multiply(self.term_power(content, e), self.term_power(rest[0], e))
        body = Atom("poly", "", (), (Array((), rest),))
        return self.multiply(self.term_power(content, e), self.raised(body, e))

    def content(self, poly: Poly) -> tuple[Term, Poly]:
        """A positive factor of all terms, and the rest."""
        value = Fraction(gcd(*(m.coefficient.numerator for m in poly)), lcm(*(m.coefficient.denominator for m in poly)))
        common: list[tuple[Atom, Fraction]] = []
        for atom in {atom: None for atom, _ in poly[0].factors if self.atom_sign(atom) == 2}:
            low = min(next((k for a, k in term.factors if a == atom), Fraction(0)) for term in poly)
            if low and all(variables(atom).isdisjoint(term.bound) for term in poly):
                common.append((atom, low))
        inverse = tuple((atom, -low) for atom, low in common)
        rest = self.add(*(self.term(m.coefficient / value, m.bound, (*m.factors, *inverse)) for m in poly))
        return Term(value, (), tuple(common)), rest

    def term_power(self, term: Term, e: Fraction) -> Poly:
        if e.denominator == 1:
            size = term.coefficient.numerator.bit_length() + term.coefficient.denominator.bit_length()
            require(abs(e) <= 1000 and abs(e) * size < 100_000, "a number to a power that is too large")
            return self.term(term.coefficient ** int(e), (), tuple((atom, k * e) for atom, k in term.factors))
        outer, stuck = [self.numeric_power(abs(term.coefficient), e)], []
        for atom, k in term.factors:
            if self.atom_sign(atom) or (atom.kind == "poly" and k.denominator % 2 == 0):
                outer.append(self.raised(atom, k * e))
            elif k.denominator == 1 and k % 2 == 0:
                outer.append(self.power(self.absolute(lone(atom)), k * e))
            else:
                stuck.append((atom, k))
        if stuck or term.coefficient < 0:
            inner = (Term(Fraction(1 if term.coefficient > 0 else -1), (), tuple(stuck)),)
            outer.append(lone(Atom("poly", "", (), (Array((), inner),)), e))
        return self.multiply(*outer)

    def primes(self, value: Fraction) -> Iterator[tuple[int, int]]:
        """The prime factors of a positive number, one by one, each with the power 1 or -1."""
        for whole, way in ((value.numerator, 1), (value.denominator, -1)):
            p = 2
            while whole > 1:
                self.spend()
                p = p if p * p <= whole else whole
                if whole % p == 0:
                    yield p, way
                    whole //= p
                else:
                    p += 1

    def numeric_power(self, value: Fraction, e: Fraction) -> Poly:
        """A positive rational to a rational power."""
        if e.denominator == 1:
            return number(value ** int(e))
        return self.term(ONE, (), tuple((Atom("prime", str(p)), way * e) for p, way in self.primes(value)))

    def absolute(self, poly: Poly) -> Poly:
        """|x| of a product, factor by factor; of a sum, an atom."""
        if self.sign(poly):
            return poly
        if len(poly) != 1 or poly[0].bound:
            first = min(poly, key=term_outline)
            return self.function("abs", scale(poly, 1 if first.coefficient > 0 else -1))
        made = [number(abs(poly[0].coefficient))]
        for atom, k in poly[0].factors:
            known = self.factor_sign(atom, k)
            made.append(self.raised(atom, k) if known else self.power(self.function("abs", lone(atom)), k))
        return self.multiply(*made)

    def exponential(self, poly: Poly) -> Poly:
        """exp of a sum as a product over its terms: exp(c m) = exp(m)^c, and exp(c log y) = y^c."""
        made = [number(1)]
        for term in poly:
            atom, k = term.factors[0] if len(term.factors) == 1 and not term.bound else (None, 0)
            if atom is not None and is_call(atom, "log") and k == 1:
                made.append(self.power(atom.args[0].body, term.coefficient))
            else:
                inner = Array((), (term._replace(coefficient=ONE),))
                made.append(self.raised(Atom("call", "exp", (), (inner,)), term.coefficient))
        return self.multiply(*made)

    def logarithm(self, poly: Poly) -> Poly:
        """log of a sum; of a product, the sum of the logarithms of what is known to be positive."""
        require(bool(poly), "the logarithm of zero has no value")
        content, rest = self.content(poly)
        alone = rest[0].factors if len(rest) == 1 and not any(term.bound for term in rest) else ()
        made = [scale(self.function("log", number(p)), way) for p, way in self.primes(content.coefficient)]
        stuck: list[tuple[Atom, Fraction]] = []
        for atom, k in (*content.factors, *alone):
            if is_call(atom, "exp"):
                made.append(scale(atom.args[0].body, k))
            elif self.atom_sign(atom) or k.denominator % 2 == 0:
                inner = atom.args[0].body if atom.kind == "poly" else lone(atom)
                made.append(scale(self.function("log", inner), k))
            elif k.denominator == 1 and k % 2 == 0:
                made.append(scale(self.function("log", self.absolute(lone(atom))), k))
            else:
                stuck.append((atom, k))
        several, sign = len(rest) > 1 or any(m.bound for m in rest), min(m.coefficient for m in rest)
        if several or stuck or sign < 0:
            made.append(self.function("log", rest if several else (Term(sign, (), tuple(stuck)),)))
        return self.add(*made)

    def function(self, name: str, inner: Poly) -> Poly:
        """A function of a scalar as an unknown."""
        require(bool(inner) or name != "log", "the logarithm of zero has no value")
        kind = ("abs", "") if name == "abs" else ("call", name)
        return self.atom(*kind, (), (Array((), inner),)) if inner or name != "abs" else ()

    def summed(self, shape: t.Shape, body: Callable[[Slots], Poly]) -> Poly:
        """Σ of `body` over all positions of a shape."""
        return self.add(*(self.bind(body(at), (slot for slot in at if slot[0] == "v")) for at in self.slots_of(shape)))

    def larger(self, a: Poly, b: Poly, sign: int) -> Poly:
        """The larger of two, or the smaller for the sign -1."""
        return scale(self.add(a, b, scale(self.absolute(self.subtract(a, b)), sign)), HALF)

    def is_whole(self, poly: Poly) -> bool:
        """Whether a sum is a whole number."""
        factors = [pair for term in poly for pair in term.factors]
        whole = all(self.is_natural(atom) and k.denominator == 1 and k > 0 for atom, k in factors)
        return whole and all(term.coefficient.denominator == 1 for term in poly)

    def monic(self, poly: Poly) -> Poly:
        """The sum divided by the size of its largest coefficient and by positive factors of all its terms."""
        rest = self.content(poly)[1]
        return scale(rest, 1 / max(abs(term.coefficient) for term in rest))


def laws(sums: Arithmetic, atom: Atom) -> frozenset[str]:
    """The random names in an atom."""
    if atom.kind == "name" and atom.name in sums.symbols:
        kind = sums.symbols[atom.name].type
        hidden = kind.definition is not None and any(s.type.random for s in t.symbols_of(kind.definition).values())
        require(not hidden, "an expectation of a name that is not unfolded")
        return frozenset([atom.name]) if kind.random else frozenset()
    if is_call(atom, "Expect", "Covariance"):
        return frozenset()
    return frozenset().union(*(laws(sums, a) for arg in atom.args for term in arg.body for a, _ in term.factors))
