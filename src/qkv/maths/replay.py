"""Replay a certificate: check every step of a proof by rules that share only the tree with the prover.

A step names a rule and a place in one of two trees and gives what stands there afterwards; the rule decides whether
both mean the same wherever they are defined. At the end the two trees must be equal as polynomials of their entries, in
which every function that no step rewrote is an unknown, and they must be defined in the same places. Nothing is
evaluated at points.

Entries are sums of terms: a coefficient, bound variables, and powers of atoms. A slot is ("v", k), a variable that a
sum or an axis binds, ("f", name), a free index, or ("c", k), a whole number. A variable is bound once, so that no
renaming can capture it; two sums are equal if a renaming of their bound variables makes them equal.
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
from qkv.maths.tree import Certificate, Step, parts, with_subtree

WORK = 60_000
WRITTEN_OUT, LARGEST_POWER = 12, 12
ONE, HALF = Fraction(1), Fraction(1, 2)
MINUS = t.Number((), Fraction(-1))
NO_LAW = t.Law(MINUS, MINUS, False)
ENTRYWISE = frozenset({"exp", "log", "abs", "sign", "relu", "floor", "ceil", "factorial", "sin", "cos", "tan"})
NOT_NEGATIVE = frozenset({"abs", "exp", "relu", "norm", "norm_F", "norm1", "norm_inf"})
KINKED = frozenset({"abs", "relu", "max", "min", "norm1", "norm_inf", "floor", "ceil", "sign", "argmax"})


class Refused(ValueError):
    """A certificate that does not prove its claim, with the reason."""


def require(fine: bool, reason: str) -> None:
    if not fine:
        raise Refused(reason)


def replay(certificate: Certificate) -> None:
    """Check a certificate.

    Raises:
        Refused: If a step does not follow from its rule, or the steps do not prove the claim.
    """
    trees = {"gold": certificate.gold, "answer": certificate.answer}
    check, done = Replayer(certificate), False
    try:
        check.require_same_domains(certificate.gold, certificate.answer)
        for step in certificate.steps:
            require(not done, "a step after the end")
            if (step.side, step.rule) == ("both", "multiply"):
                trees = {side: check.multiplied(tree, step) for side, tree in trees.items()}
                continue
            if (step.side, step.rule, step.place) == ("both", "equal", ()):
                check.env, done = {}, step.result == trees["answer"]
                require(check.same_arrays(trees["gold"], trees["answer"]), "the two sides are not equal at the end")
                continue
            require(step.side in trees and step.rule in RULES, f"no rule {step.rule} for {step.side}")
            before = check.enter(trees[step.side], step.place)
            require(before != step.result and before.shape == step.result.shape, "nothing changes, or the shape does")
            check.require_defined(step.result)
            RULES[step.rule](check, before, step.result)
            trees[step.side] = with_subtree(trees[step.side], step.place, step.result)
    except Refused:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        raise Refused(f"the certificate is malformed: {type(problem).__name__}") from None
    require(done, "the steps do not come to an end")


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


class Replayer:
    """What is known of the names of one claim, and the arithmetic of their entries."""

    def __init__(self, certificate: Certificate) -> None:
        self.left, self.fresh = WORK, count()
        self.sizes: dict[Slot, Poly] = {}
        self.symbols = t.symbols_of(certificate.gold, certificate.answer)
        self.free = t.free_indices(certificate.gold, certificate.answer)
        self.symmetric = certificate.symmetric
        self.env: dict[str, Slot] = {}
        self.unfolding = False  # whether functions and names stand for their definitions
        self.given: list[Need] = []
        self.inverted: list[t.Node] = []

    def spend(self, units: int = 1) -> None:
        self.left -= units
        require(self.left >= 0, "the certificate takes too much work to check")

    # Indices and sizes

    def variable(self, size: t.Size | Poly) -> Slot:
        slot = ("v", next(self.fresh))
        self.sizes[slot] = size if isinstance(size, tuple) else self.size(size)
        return slot

    def slots_of(self, shape: t.Shape) -> Iterator[Slots]:
        """Slots that cover every entry of an array: numbers along short axes, one variable along others."""
        short = [isinstance(size, int) and size <= WRITTEN_OUT for size in shape]
        numbers = [[("c", k + 1) for k in range(int(size))] if s else [] for s, size in zip(short, shape, strict=True)]
        axes = [row if s else [self.variable(size)] for row, s, size in zip(numbers, short, shape, strict=True)]
        return product(*axes)

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
            return self.outside(symbol.type.definition)
        return lone(Atom("name", name))

    def outside(self, node: t.Node, at: Slots = ()) -> Poly:
        """The entry of a definition or a law: no index around its use is visible, and functions are unfolded."""
        env, unfolding = self.env, self.unfolding
        self.env, self.unfolding = {}, True
        try:
            return self.entry(node, at)
        finally:
            self.env, self.unfolding = env, unfolding

    def range_of(self, slot: Slot) -> Poly:
        """The size of what a slot runs over; a number as a size is itself."""
        if slot[0] == "c":
            return number(slot[1])
        if slot not in self.sizes:
            index, symbol = self.free.get(slot[1]), self.symbols.get(slot[1])
            size = index.size if index is not None else symbol.type.shape[0] if symbol and symbol.type.shape else None
            if size is None:
                raise Refused(f"nothing says how far {slot[1]} runs")
            self.sizes[slot] = self.size(size)
        return self.sizes[slot]

    def same_size(self, x: Slot, y: Slot) -> bool:
        return self.range_of(x) == self.range_of(y) or self.equal(self.range_of(x), self.range_of(y))

    def within(self, slot: Slot, size: Poly) -> bool:
        """Whether a slot certainly lies between 1 and `size`."""
        gap = self.add(size, scale(self.range_of(slot), -1))
        return (slot[0] != "c" or slot[1] > 0) and self.sign(gap) > 0

    def enter(self, node: t.Node, place: tuple[int, ...]) -> t.Node:
        """The node at a place; the ranges of the indices that are bound around it are noted."""
        self.env = {}
        for position in place:
            for index in node.indices if isinstance(node, t.Sum | t.Table) else ():
                self.env[index.name] = self.variable(index.size)
            below = parts(node)
            require(0 <= position < len(below), f"there is no place {place}")
            node = below[position]
        return node

    def inside(self, names: Mapping[str, Slot], made: Callable[[], Any]) -> Any:
        """What `made` gives where `names` are bound."""
        before, self.env = self.env, {**self.env, **names}
        try:
            return made()
        finally:
            self.env = before

    # Arithmetic of sums of terms

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
        size = self.sizes[slot]
        if (
            len(users) > 1
            or (users and (users[0][0].kind != "place" or users[0][1] not in (1, 2, 3, 4)))
            or not self.sign(size)
        ):
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
                if start in (None, slot) or start in inner or not inner <= set(bound) or used & {*inner, slot}:
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

    # Equality up to the names of bound variables

    def alike(self, a: Term, b: Term) -> bool:
        """Whether two terms are the same but for their coefficients."""
        if term_outline(a) != term_outline(b):
            return False
        return any(True for _ in self.matched_terms(a, b, dict.fromkeys(a.bound), frozenset(b.bound)))

    def same_atom(self, a: Atom, b: Atom) -> bool:
        return outline(a) == outline(b) and any(True for _ in self.matched_atoms(a, b, {}, frozenset()))

    def matched_terms(self, a: Term, b: Term, opened: Renaming, others: Others) -> Iterator[Renaming]:
        for found, rest in self.matched_factors(a.factors, b.factors, opened, others):
            if rest:
                continue
            unused = [slot for slot in a.bound if found.get(slot) is None]
            free = [slot for slot in b.bound if slot not in found.values()]
            for order in permutations(free):
                if all(self.same_size(x, y) for x, y in zip(unused, order, strict=True)):
                    yield {**found, **dict(zip(unused, order, strict=True))}
                    break

    def matched_factors(
        self, left: Factors, right: Factors, opened: Renaming, others: Others
    ) -> Iterator[tuple[Renaming, Factors]]:
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

    def matched_args(
        self, left: tuple[Array, ...], right: tuple[Array, ...], opened: Renaming, others: Others
    ) -> Iterator[Renaming]:
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
                rest = self.without_order(rest)
            else:
                atom, low = below
                rest = self.add(*(self.term(m.coefficient, m.bound, (*m.factors, (atom, -low))) for m in rest))
        return not rest and rest is not None

    def denominator(self, poly: Poly) -> tuple[Atom, Fraction] | None:
        """A sum that is divided by, and its lowest power, without bound variables."""
        low = [(k, a) for m in poly for a, k in m.factors if a.kind == "poly" and variables(a).isdisjoint(m.bound)]
        atoms = [atom for power, atom in low if power < 0]
        return (atoms[0], min(k for k, a in low if self.same_atom(a, atoms[0]))) if atoms else None

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

    # Signs and powers

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
        known = (have for sign, have, free in self.given if sign != "!=" and not free and len(have) == len(poly))
        return any(not self.subtract(poly, have) for have in known)

    def term_signs(self, poly: Poly) -> int:
        best = 0
        for term in poly:
            known = min((self.factor_sign(atom, power) for atom, power in term.factors), default=2)
            if known == 2 and any(self.sign(self.sizes[slot]) < 2 for slot in term.bound):
                known = 1
            if term.coefficient < 0 or known == 0:
                return 0
            best = max(best, known)
        return best

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
        known = 0
        if atom.kind == "name" and not atom.slots:
            known = {"positive": 2, "nonnegative": 1}.get(self.symbols[atom.name].type.kind, 0)
        return known or int(self.is_given(lone(atom)))

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
        values = [term.coefficient for term in poly]
        content = Fraction(gcd(*(v.numerator for v in values)), lcm(*(v.denominator for v in values)))
        body = Atom("poly", "", (), (Array((), scale(poly, 1 / content)),))
        return self.multiply(self.numeric_power(content, e), self.raised(body, e))

    def term_power(self, term: Term, e: Fraction) -> Poly:
        if e.denominator == 1:
            require(abs(e) <= 1000 or abs(term.coefficient) == 1, "a number to a power that is too large")
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

    def numeric_power(self, value: Fraction, e: Fraction) -> Poly:
        """A positive rational to a rational power, by prime factors."""
        if e.denominator == 1:
            return number(value ** int(e))
        factors: list[tuple[Atom, Fraction]] = []
        for whole, way in ((value.numerator, 1), (value.denominator, -1)):
            p = 2
            while whole > 1:
                self.spend()
                p = p if p * p <= whole else whole
                while whole % p == 0:
                    factors.append((Atom("prime", str(p)), way * e))
                    whole //= p
                p += 1
        return self.term(ONE, (), tuple(factors))

    def absolute(self, poly: Poly) -> Poly:
        """|x| of a product, factor by factor; of a sum, an atom."""
        if self.sign(poly):
            return poly
        if len(poly) != 1 or poly[0].bound:
            return self.function("abs", poly if poly[0].coefficient > 0 else scale(poly, -1))
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

    def function(self, name: str, inner: Poly) -> Poly:
        """A function of a scalar as an unknown."""
        require(bool(inner) or name != "log", "the logarithm of zero has no value")
        if not inner and name == "abs":
            return ()
        return self.atom("abs" if name == "abs" else "call", "" if name == "abs" else name, (), (Array((), inner),))

    # From trees to entries

    def entry(self, node: t.Node, at: Slots = ()) -> Poly:
        """The entry of a tree at one slot for each axis; functions are unknowns unless they are being unfolded."""
        self.spend()
        match node:
            case t.Number():
                return number(node.value)
            case t.Constant(name="e" | "pi"):
                return self.atom("call", "pi") if node.name == "pi" else self.exponential(number(1))
            case t.Symbol() if node.type.definition is not None and self.unfolding:
                return self.outside(node.type.definition, at)
            case t.Symbol(type=t.Type(kind="index"), shape=()):
                return self.atom("place", "", (("f", node.name),))
            case t.Symbol():
                return self.atom("name", node.name, at)
            case t.Index():
                return self.atom("place", "", (self.slot(node),))
            case t.Special(name="identity"):
                return self.atom("delta", "", at)
            case t.Special():
                return number(node.name == "ones")
            case t.Written():
                return self.written_entry(node, at)
            case t.Table():
                names = dict(zip((index.name for index in node.indices), at, strict=True))
                return self.inside(names, lambda: self.entry(node.body))
            case t.Add():
                return self.add(*(self.entry(term, at) for term in node.terms))
            case t.Multiply():
                return self.multiply(*(self.entry(factor, at if factor.shape else ()) for factor in node.factors))
            case t.Divide():
                return self.multiply(self.entry(node.top, at), self.power(self.entry(node.bottom), -1))
            case t.Contract(left=left, right=right):
                rows = len(node.shape) - (len(right.shape) - 1)
                first = at[:rows] if rows else (("c", 1),) * (len(left.shape) - 1)
                both = lambda k: self.multiply(self.entry(left, first + k), self.entry(right, k + at[rows:]))  # noqa: E731
                return self.summed(left.shape[-1:], both)
            case t.Outer():
                return self.multiply(self.entry(node.left, at[:1]), self.entry(node.right, at[1:]))
            case t.Hadamard():
                return self.multiply(self.entry(node.left, at), self.entry(node.right, at))
            case t.Transpose(body=body):
                turned = at[::-1] if len(body.shape) == len(at) == 2 else at[1:]
                return self.entry(body, turned if len(at) == 2 else (("c", 1), at[0]))
            case t.Part():
                return self.part_entry(node, at)
            case t.Power():
                return self.power_entry(node, at)
            case t.Sum():
                return self.sum_entry(node, at)
            case t.Delta():
                return self.atom("delta", "", (self.slot(node.left), self.slot(node.right)))
            case t.Call():
                return self.call_entry(node, at)
            case t.Expect() | t.Covariance() | t.Derivative():
                return self.atom("call", type(node).__name__, at, map(self.array, parts(node)))
        raise Refused(f"{type(node).__name__} has no entries")

    def slot(self, node: t.Node) -> Slot:
        if isinstance(node, t.Number) and node.value.denominator == 1:
            return ("c", int(node.value))
        named = isinstance(node, t.Index) or (isinstance(node, t.Symbol) and node.type.kind == "index")
        require(named, "a subscript that is computed")
        name = getattr(node, "name", "")
        return self.env.get(name, ("f", name)) if isinstance(node, t.Index) else ("f", name)

    def array(self, node: t.Node) -> Array:
        axes = tuple(self.variable(size) for size in node.shape)
        return Array(axes, self.entry(node, axes))

    def summed(self, shape: t.Shape, body: Callable[[Slots], Poly]) -> Poly:
        """Σ of `body` over all positions of a shape."""
        return self.add(*(self.bind(body(at), (slot for slot in at if slot[0] == "v")) for at in self.slots_of(shape)))

    def written_entry(self, node: t.Written, at: Slots) -> Poly:
        made = []
        for item, where in zip(node.entries, product(*(range(1, int(size) + 1) for size in node.shape)), strict=True):
            marks = [self.atom("delta", "", (slot, ("c", k))) for slot, k in zip(at, where, strict=True)]
            made.append(self.multiply(*marks, self.entry(item)) if all(marks) else ())
        return self.add(*made)

    def part_entry(self, node: t.Part, at: Slots) -> Poly:
        rest = list(at)
        if len(node.indices) == 2 and node.indices[1] is None and node.indices[0] is not None and len(at) == 2:
            rest = rest[1:]  # the row as (1, d)
        indices = (*node.indices, *[None] * (len(node.body.shape) - len(node.indices)))
        return self.entry(node.body, tuple(rest.pop(0) if index is None else self.slot(index) for index in indices))

    def power_entry(self, node: t.Power, at: Slots) -> Poly:
        above = self.entry(node.exponent)
        exponent = constant(above)
        if not node.shape:
            base = self.entry(node.base)
            if exponent is not None:
                return self.power(base, exponent)
            return self.atom("call", "power", (), (Array((), base), Array((), above)))
        if exponent == -1:
            base = self.array(node.base)
            require(bool(base.body), "the inverse of zero has no value")
            return self.atom("inverse", "", at, (base,))
        require(exponent in range(LARGEST_POWER), "a matrix to a power that is not read")
        chain: t.Node = t.Special(node.shape, "identity")
        for _ in range(int(exponent or 0)):
            chain = t.Contract(node.shape, chain, node.base)
        return self.entry(chain, at)

    def sum_entry(self, node: t.Sum, at: Slots) -> Poly:
        names, sizes = [index.name for index in node.indices], tuple(index.size for index in node.indices)
        require(not node.product, "a product of many factors")

        def term() -> Poly:
            kept = [self.condition(sign, self.slot(a), self.slot(b)) for sign, a, b in node.conditions]
            return self.multiply(*kept, self.entry(node.body, at)) if all(kept) else ()

        return self.summed(sizes, lambda slots: self.inside(dict(zip(names, slots, strict=True)), term))

    def condition(self, sign: str, x: Slot, y: Slot) -> Poly:
        """1 where the relation of two indices holds, else 0."""
        require(sign in ("=", "!=", "<", ">", "<=", ">="), f"a sum under the condition {sign}")
        x, y = (y, x) if sign in (">", "<=") else (x, y)
        found = self.atom("delta" if sign in ("=", "!=") else "less", "", (x, y))
        return found if sign in ("=", "<", ">") else self.subtract(number(1), found)

    def call_entry(self, node: t.Call, at: Slots) -> Poly:
        if node.map is not None:
            return self.atom("map", node.map.name, at, map(self.array, node.arguments))
        if node.name == "less":
            return self.atom("less", "", map(self.slot, node.arguments))
        if self.unfolding or node.name in ("sqrt", "trace", "sum", "diag"):
            found = self.unfolded(node, at)
            if found is not None:
                return found
        if node.name in ENTRYWISE:
            return self.function(node.name, self.entry(node.arguments[0], at))
        if node.name == "softmax":
            below = self.variable(node.shape[-1])
            inner = self.entry(node.arguments[0], (*at[:-1], below))
            return self.atom("call", "softmax", at[-1:], (Array((below,), inner),))
        return self.atom("call", node.name, at, map(self.array, node.arguments))

    def unfolded(self, node: t.Call, at: Slots) -> Poly | None:
        """What a function is by its definition and the laws of exp, abs and roots; None if it stays an unknown."""
        first, whole = node.arguments[0], node.arguments[0].shape
        match node.name:
            case "sqrt":
                return self.power(self.entry(first, at), HALF)
            case "exp":
                return self.exponential(self.entry(first, at))
            case "abs":
                return self.absolute(self.entry(first, at))
            case "relu":
                return scale(self.add(self.entry(first, at), self.absolute(self.entry(first, at))), HALF)
            case "softmax":
                below = self.summed(whole[-1:], lambda k: self.exponential(self.entry(first, at[:-1] + k)))
                return self.multiply(self.exponential(self.entry(first, at)), self.power(below, -1))
            case "norm" | "norm_F":
                return self.power(self.squares(first), HALF)
            case "norm1":
                return self.summed(whole, lambda at: self.absolute(self.entry(first, at)))
            case "trace" | "sum":
                shape, twice = (whole[:1], 2) if node.name == "trace" else (whole, 1)
                return self.summed(shape, lambda at: self.entry(first, at * twice))
            case "diag" if len(at) == 2:
                return self.multiply(self.atom("delta", "", at), self.entry(first, at[:1]))
            case "diag":
                return self.entry(first, at * 2)
            case "max" | "min" if len(node.arguments) == 2 and not whole:
                a, b = map(self.entry, node.arguments)
                gap = self.absolute(self.subtract(a, b))
                return scale(self.add(a, b, gap if node.name == "max" else scale(gap, -1)), HALF)
        return None

    def squares(self, node: t.Node) -> Poly:
        return self.summed(node.shape, lambda at: self.power(self.entry(node, at), 2))

    def same_arrays(self, a: t.Node, b: t.Node) -> bool:
        """Whether all entries of two trees of one shape are equal."""
        sizes = zip(a.shape, b.shape, strict=False)
        if len(a.shape) != len(b.shape) or not all(x == y or self.equal(self.size(x), self.size(y)) for x, y in sizes):
            return False
        return all(self.equal(self.entry(a, at), self.entry(b, at)) for at in self.slots_of(a.shape))

    def multiplied(self, node: t.Node, step: Step) -> t.Node:
        """A side times a matrix whose inverse is written in the claim."""
        require(step.result in self.inverted and step.place in ((0,), (1,)), "no inverse of this matrix is written")
        first, second = (step.result, node) if step.place == (0,) else (node, step.result)
        require(len(node.shape) == 2 and first.shape[1] == second.shape[0], "the matrix does not fit")
        return t.Contract((first.shape[0], second.shape[1]), first, second)

    # Domains

    def require_same_domains(self, gold: t.Node, answer: t.Node) -> None:
        """Refuse if one tree may be undefined where the other is defined; note what is under roots.

        A declared name has a value of its kind, so what its definition needs is given. An inverse that is written
        exists, unless the form of the matrix shows that it is singular.
        """
        self.unfolding, given = True, []
        for symbol in self.symbols.values():
            definition = symbol.type.definition
            kind = {"positive": ">", "natural": ">", "nonnegative": ">="}.get(symbol.type.kind)
            if definition is not None:
                given += self.needs(definition, {})
                given += self.split_need(kind, self.entry(definition), frozenset()) if kind else ()
        self.given += given
        sides = [list(self.needs(node, {})) for node in (gold, answer)]
        for mine, other in (sides, sides[::-1]):
            for need in mine:
                fine = any(self.implies(have, need) for have in (*other, *given)) or self.is_rank_one_factor(need)
                require(fine, "one side may be undefined where the other has a value")
        self.given += [*sides[0], *sides[1]]
        self.unfolding = False

    def require_defined(self, result: t.Node) -> None:
        """Refuse the result of a step that may be undefined where the claim is defined."""
        self.unfolding, env, inverted = True, self.env, list(self.inverted)
        needs = list(self.needs(result, env))
        self.unfolding, self.env, self.inverted = False, env, inverted
        fine = all(any(self.implies(have, need) for have in self.given) for need in needs)
        require(fine, "the result of a step may be undefined")

    def needs(self, node: t.Node, env: Mapping[str, Slot]) -> Iterator[Need]:
        """What must hold for a tree to have a value."""
        self.env = dict(env)
        free = frozenset(slot for slot in env.values() if slot[0] == "v")
        match node:
            case t.Divide(bottom=bottom):
                yield from self.need("!=", bottom, (), free)
            case t.Power() if node.shape:
                if constant(self.entry(node.exponent)) not in range(LARGEST_POWER):
                    require(self.may_have_inverse(node.base), "an inverse of what has too low a rank")
                    self.inverted.append(node.base)
            case t.Power():
                above = self.entry(node.exponent)
                value = constant(above)
                signs = {">": value is None and not (self.is_whole(above) and self.sign(above))}
                signs |= {"!=": value is not None and value < 0}
                signs |= {">=": value is not None and value.denominator % 2 == 0}
                for sign in (sign for sign, wanted in signs.items() if wanted):
                    yield from self.need(sign, node.base, (), free)
            case t.Call(name="log" | "sqrt", map=None):
                at = tuple(self.variable(size) for size in node.shape)
                yield from self.need(">" if node.name == "log" else ">=", node.arguments[0], at, free | set(at))
            case t.Call(name="norm" | "norm_F", map=None):
                self.given.append((">=", self.squares(node.arguments[0]), free))
            case t.Call(name="factorial" | "tan", map=None):
                yield (node.name, self.entry(node.arguments[0]), free)
            case t.Derivative():
                yield from self.slope_needs(node.body, free)
        if isinstance(node, t.Sum | t.Table):
            env = {**env, **{index.name: self.variable(index.size) for index in node.indices}}
        for child in parts(node):
            yield from self.needs(child, env)

    def slope_needs(self, body: t.Node, free: Others) -> Iterator[Need]:
        """What a derivative needs beyond the value: roots and norms are smooth away from zero."""
        smooth = {id(n.base) for n in t.walk(body) if isinstance(n, t.Power) and self.tree_sign(n)}
        for node in t.walk(body):
            called = node.name if isinstance(node, t.Call) and node.map is None and id(node) not in smooth else ""
            require(called not in KINKED, "a derivative of a function with kinks")
            root = isinstance(node, t.Power) and not node.shape and constant(self.entry(node.exponent))
            if called in ("sqrt", "norm", "norm_F") and not node.shape:
                yield from self.need(">", parts(node)[0] if called == "sqrt" else node, (), free)
            elif isinstance(root, Fraction) and root.denominator != 1 and isinstance(node, t.Power):
                yield from self.need(">", node.base, (), free)

    def need(self, sign: str, node: t.Node, at: Slots, free: Others) -> Iterator[Need]:
        """The needs of a sign of an entry; names that show it are not unfolded."""
        self.unfolding = False
        known = self.sign(self.entry(node, at)) or self.tree_sign(node)
        self.unfolding = True
        inner = self.entry(node, at)
        if known == 0 or (known == 1 and sign != ">="):
            yield from self.split_need(sign, inner, free)
        elif not self.sign(inner):
            self.given.append((">=", inner, free))

    def tree_sign(self, node: t.Node) -> int:
        """1 if the form of a scalar tree shows that it is not negative."""
        match node:
            case t.Power(exponent=t.Number(value=value), shape=()):
                return int(value.denominator % 2 == 0 or (value.denominator == 1 and value % 2 == 0))
            case t.Add(shape=()) | t.Multiply(shape=()) | t.Divide(shape=()):
                return int(all(self.tree_sign(child) or self.sign(self.entry(child)) for child in parts(node)))
            case t.Sum(shape=()):
                names = {index.name: self.variable(index.size) for index in node.indices}
                return self.inside(names, lambda: self.tree_sign(node.body))
            case t.Contract(left=t.Transpose(body=left), right=right, shape=()):
                return int(left == right)
        return int(isinstance(node, t.Call) and node.map is None and node.name in NOT_NEGATIVE)

    def is_whole(self, poly: Poly) -> bool:
        """Whether a sum is a whole number."""
        factors = [pair for term in poly for pair in term.factors]
        whole = all(self.is_natural(atom) and k.denominator == 1 and k > 0 for atom, k in factors)
        return whole and all(term.coefficient.denominator == 1 for term in poly)

    def may_have_inverse(self, node: t.Node) -> bool:
        """Whether a matrix has full rank for some values of its names, at every size, as far as its form tells."""
        match node:
            case t.Symbol():
                return node.type.definition is None or self.may_have_inverse(node.type.definition)
            case t.Contract(left=left, right=right):
                fixed = isinstance(left.shape[-1], int) and not isinstance(node.shape[0], int)
                return not fixed and all(self.may_have_inverse(m) for m in (left, right) if m.shape == node.shape)
            case t.Add():
                return any(map(self.may_have_inverse, node.terms))
            case t.Multiply() | t.Divide() | t.Transpose():
                return all(self.may_have_inverse(child) for child in parts(node) if len(child.shape) == 2)
            case t.Sum():
                return all(isinstance(index.size, str) for index in node.indices)
        return isinstance(node, t.Power | t.Written | t.Table) or getattr(node, "name", "") in ("identity", "diag")

    def split_need(self, sign: str, poly: Poly, free: Others) -> Iterator[Need]:
        """A need in its simplest parts; what is certain is left out."""
        known = self.sign(poly)
        if known == 2 or (known and sign == ">="):
            return
        sign = "!=" if known and sign == ">" else sign
        if constant(poly) is not None:
            require(bool(poly) and sign == "!=", "one of the two has no value anywhere")
            return
        alone = poly[0] if len(poly) == 1 and not poly[0].bound else Term(ONE)
        open_ = [(atom, k) for atom, k in alone.factors if self.atom_sign(atom) < 2]
        for atom, k in open_ if sign == "!=" or len(open_) == 1 else ():
            way = ONE if alone.coefficient > 0 else -ONE
            if atom.kind in ("poly", "abs") and (sign == "!=" or (way > 0 and atom.kind == "poly")):
                yield from self.split_need(sign, atom.args[0].body, free)
            elif sign == "!=":
                yield (sign, lone(atom), free)
            elif k.denominator == 1 and k % 2 == 0:
                require(way > 0, "a root of what is not positive")
                yield from self.split_need("!=", lone(atom), free) if sign == ">" else ()
            else:
                yield (sign, scale(lone(atom), way), free) if k.denominator == 1 else (sign, poly, free)
        if not open_ or (sign != "!=" and len(open_) > 1):
            yield (sign, poly, free)

    def is_rank_one_factor(self, need: Need) -> bool:
        """Whether 1 + vᵀA⁻¹u ≠ 0 is needed where (A + u vᵀ)⁻¹ is written: det(A + u vᵀ) = det(A)(1 + vᵀA⁻¹u)."""
        for base in self.inverted if need[0] == "!=" else ():
            terms = base.terms if isinstance(base, t.Add) and len(base.terms) == 2 else ()
            for rest, outer in permutations(terms, 2):
                if not isinstance(outer, t.Outer):
                    continue
                inverse, factor = t.Power(base.shape, rest, MINUS), number(1)
                if isinstance(rest, t.Multiply) and isinstance(rest.factors[-1], t.Special):
                    inverse, factor = rest.factors[-1], self.multiply(*map(self.entry, rest.factors[:-1]))
                row = t.Contract((1, base.shape[1]), t.Transpose((1, base.shape[0]), outer.right), inverse)
                form = self.add(factor, self.entry(t.Contract((), row, outer.left)))
                if len(form) == len(need[1]) and not self.subtract(need[1], form):
                    return True
        return False

    def implies(self, have: Need, need: Need) -> bool:
        stronger = {">": (">",), ">=": (">", ">="), "!=": (">", "!=")}.get(need[0], (need[0],))
        flips = (1, -1) if need[0] == have[0] == "!=" else (1,) if have[0] in stronger else ()
        pairs = ((self.monic(need[1]), scale(self.monic(have[1]), flip)) for flip in flips)
        found = (self.matched_polys(left, right, dict.fromkeys(need[2]), have[2]) for left, right in pairs)
        return any(True for matched in found for _ in matched)

    def monic(self, poly: Poly) -> Poly:
        """The sum divided by the size of its largest coefficient and by positive factors of all its terms."""
        for atom in {atom for term in poly for atom, _ in term.factors if self.atom_sign(atom) == 2}:
            low = min(next((k for a, k in term.factors if a == atom), Fraction(0)) for term in poly)
            if low and all(variables(atom).isdisjoint(term.bound) for term in poly):
                poly = self.add(*(self.term(m.coefficient, m.bound, (*m.factors, (atom, -low))) for m in poly))
        return scale(poly, 1 / max(abs(term.coefficient) for term in poly)) if poly else poly


def by_definition(check: Replayer, before: t.Node, after: t.Node) -> None:
    """A name becomes its definition; a function what it stands for, by the laws of exp, abs and roots."""
    if isinstance(before, t.Symbol):
        require(before.type.definition == after, "this is not the definition of the name")
        return
    require(isinstance(before, t.Call) and before.map is None, "nothing to unfold")
    check.unfolding = True
    require(check.same_arrays(before, after), "not what the function stands for")
    check.unfolding = False


def by_logarithm(check: Replayer, before: t.Node, after: t.Node) -> None:
    """log x = Σ c log(y) + z because x = Π y^c · exp(z); what is under the logarithms is positive."""
    if not isinstance(before, t.Call) or before.name != "log":
        raise Refused("not a logarithm")
    for at in check.slots_of(before.shape):
        made = check.exponential(check.entry(after, at))
        require(check.equal(made, check.entry(before.arguments[0], at)), "not the logarithms of the factors")


def by_power(check: Replayer, before: t.Node, after: t.Node) -> None:
    """A root is the number of the same sign with the same power; |x| is the nonnegative number with the square x²."""
    for at in check.slots_of(before.shape):
        result = check.entry(after, at)
        if isinstance(before, t.Call) and before.name in ("sqrt", "abs"):
            inner, exponent = check.entry(before.arguments[0], at), HALF if before.name == "sqrt" else ONE
            degree = 2
        elif isinstance(before, t.Power) and not before.shape:
            inner, above = check.entry(before.base), check.entry(before.exponent)
            require(constant(above) is not None, "a power that is not a number")
            exponent = constant(above) or Fraction(0)
            degree = exponent.denominator
        else:
            raise Refused("no root and no power")
        same = check.equal(check.power(result, degree), check.power(inner, exponent * degree))
        require(same and (degree % 2 == 1 or check.sign(result) > 0), "not the root")


def by_expectation(check: Replayer, before: t.Node, after: t.Node) -> None:
    """E is linear; independent names separate; moments by the law of each name; Cov(x, y) = E[xy] − E[x] E[y]."""
    for at in check.slots_of(before.shape):
        if isinstance(before, t.Expect):
            made = mean(check, check.entry(before.body, at))
        elif isinstance(before, t.Covariance):
            cut = len(before.left.shape)
            left, right = check.entry(before.left, at[:cut]), check.entry(before.right, at[cut:])
            made = check.multiply(mean(check, left), mean(check, right))
            made = check.subtract(mean(check, check.multiply(left, right)), made)
        else:
            raise Refused("not an expectation")
        require(check.equal(made, check.entry(after, at)), "not the expectation")


def laws(check: Replayer, atom: Atom) -> frozenset[str]:
    """The random names in an atom."""
    symbol = check.symbols.get(atom.name)
    if atom.kind == "name" and symbol is not None:
        inner = symbol.type.definition
        hidden = inner is not None and any(s.type.law is not None for s in t.symbols_of(inner).values())
        require(not hidden, "an expectation of a name that is not unfolded")
        return frozenset([atom.name]) if symbol.type.law is not None else frozenset()
    if is_call(atom, "Expect", "Covariance"):
        return frozenset()
    return frozenset().union(*(laws(check, a) for arg in atom.args for term in arg.body for a, _ in term.factors))


def mean(check: Replayer, poly: Poly) -> Poly:
    """The expectation of a sum of polynomials, exponentials and absolute values of linear forms."""
    return check.add(*(mean_of_term(check, term) for term in poly))


def mean_of_term(check: Replayer, term: Term) -> Poly:
    groups: dict[str, list[Slots]] = {}
    fixed, forms, exponent = [], [], ()
    for atom, power in term.factors:
        if not laws(check, atom):
            fixed.append((atom, power))
        elif atom.kind == "name" and power.denominator == 1 and power > 0:
            groups.setdefault(atom.name, []).extend([atom.slots] * int(power))
        elif is_call(atom, "exp"):
            exponent = check.add(exponent, scale(atom.args[0].body, power))
        else:
            require(atom.kind == "abs" and power == 1, "an expectation that is not of a polynomial")
            forms.append((atom.args[0].body, False))
    forms += [(exponent, True)] if exponent else []
    require(bool(groups) + len(forms) < 2, "an expectation of several functions")
    made = [check.term(ONE, (), tuple(fixed)), *(moment(check, name, tuple(at)) for name, at in groups.items())]
    for form, above in forms:  # linear in normal names
        for inner in form:
            moving = [(atom, k) for atom, k in inner.factors if laws(check, atom)]
            plain = len(moving) <= 1 and all(atom.kind == "name" and k == 1 for atom, k in moving)
            normal = all((check.symbols[atom.name].type.law or NO_LAW).normal for atom, _ in moving)
            require(plain and normal, "not linear in normal names")
        centre = mean(check, form)
        spread = check.subtract(mean(check, check.multiply(form, form)), check.multiply(centre, centre))
        if above:
            made.append(check.exponential(check.add(centre, scale(spread, HALF))))
            continue
        require(not centre, "the mean of an absolute value around another mean than zero")
        below = check.power(check.atom("call", "pi"), -1)
        made.append(check.power(scale(check.multiply(spread, below), 2), HALF))
    return check.bind(scale(check.multiply(*made), term.coefficient), term.bound)


def moment(check: Replayer, name: str, slots: tuple[Slots, ...]) -> Poly:
    """E of a product of components: the mean of the first times the rest, plus its covariance with each other one."""
    if not slots:
        return number(1)
    law, first, rest = check.symbols[name].type.law or NO_LAW, slots[0], slots[1:]
    require(law.normal or len(slots) <= 2, "a moment that the law does not give")
    made = [check.multiply(check.outside(law.mean, first), moment(check, name, rest))]
    for k, other in enumerate(rest):
        pair = check.outside(law.covariance, first + other)
        made.append(check.multiply(pair, moment(check, name, rest[:k] + rest[k + 1 :])))
    return check.add(*made)


def by_derivative(check: Replayer, before: t.Node, after: t.Node) -> None:
    """The product rule and the chain rule, by one component of a name."""
    if not isinstance(before, t.Derivative):
        raise Refused("not a derivative")
    target, cut = before.target, len(before.body.shape)
    symbol = target.body if isinstance(target, t.Part) else target
    if not isinstance(symbol, t.Symbol) or symbol.name in check.symmetric:
        raise Refused("a derivative by what is not a free name")
    kind = symbol.type
    require(kind.definition is None and kind.law is None and kind.kind not in ("natural", "index"), "no free name")
    hidden = any(isinstance(node, t.Expect | t.Covariance) for node in t.walk(before.body))
    require(not hidden, "a derivative of an expectation")
    for at in check.slots_of(before.shape):
        rest, indices = list(at[cut:]), target.indices if isinstance(target, t.Part) else ()
        indices = (*indices, *[None] * (len(symbol.shape) - len(indices)))
        chosen = tuple(rest.pop(0) if index is None else check.slot(index) for index in indices)
        made = differentiated(check, check.entry(before.body, at[:cut]), symbol.name, chosen)
        require(not rest and check.equal(made, check.entry(after, at)), "not the derivative")


def differentiated(check: Replayer, poly: Poly, name: str, slots: Slots) -> Poly:
    made = []
    for term in poly:
        for place, (atom, power) in enumerate(term.factors):
            rest = (*term.factors[:place], *term.factors[place + 1 :], (atom, power - 1))
            outer = check.term(term.coefficient * power, (), rest)
            made.append(check.bind(check.multiply(outer, slope(check, atom, name, slots)), term.bound))
    return check.add(*made)


def slope(check: Replayer, atom: Atom, name: str, slots: Slots) -> Poly:
    if atom.kind == "name":
        definition = check.symbols[atom.name].type.definition if atom.name in check.symbols else None
        require(definition is None or name not in t.names(definition), "a derivative of a name that is not unfolded")
        pairs = zip(atom.slots, slots, strict=True) if atom.name == name else ()
        return check.multiply(*(check.atom("delta", "", pair) for pair in pairs)) if atom.name == name else ()
    bodies = [differentiated(check, arg.body, name, slots) for arg in atom.args]
    if not any(bodies):
        return ()
    require(len(bodies) == 1 and not atom.args[0].axes, "a derivative that is not known")
    require(atom.kind == "poly" or is_call(atom, "exp", "log"), "a derivative that is not known")
    outer = lone(atom) if is_call(atom, "exp") else check.power(atom.args[0].body, -1 if atom.kind == "call" else 0)
    return check.multiply(outer, bodies[0])


def by_inverse(check: Replayer, before: t.Node, after: t.Node) -> None:
    """A matrix is the inverse if its product with the matrix is the identity."""
    if not isinstance(before, t.Power) or len(before.shape) != 2 or before.exponent != MINUS:
        raise Refused("not an inverse")
    chain = t.Contract(before.shape, before.base, after)
    require(check.same_arrays(chain, t.Special(before.shape, "identity")), "the product is not the identity")


_ALL = (by_definition, by_logarithm, by_power, by_expectation, by_derivative, by_inverse)
RULES = {rule.__name__.removeprefix("by_"): rule for rule in _ALL}
