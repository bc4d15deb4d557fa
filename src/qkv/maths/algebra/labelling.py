"""One product of factors with index slots, and the canonical names of its bound indices.

A factor is (head, slots, exponent). An index is a pair (kind, key): "b" bound by the monomial (summed over), "c" a
whole number, "f" free by name, "o" open (about to be bound by somebody further out), "v" a value that is no number;
inside the arguments of a head, "p" stands for the head's own slots and "r" for the axes of an argument that is a vector
or matrix. The arguments of a head are closed, so renaming an index never looks inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from qkv.maths.algebra.budget import TooLarge, spend

Ix: TypeAlias = tuple[str, Any]


class Head(NamedTuple):
    """What a factor is, without its indices.

    `sign` is what is known of it: "real" (nothing), "nonnegative", "positive" or "natural" (1, 2, 3, ...). `symmetry`
    lists the reorderings of the slots that change nothing; `weight` counts what is inside.
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
    """`sizes` has the size of each bound index ("b", 0), ("b", 1), ..."""

    factors: tuple[Factor, ...] = ()
    sizes: tuple[Any, ...] = ()


Frozen: TypeAlias = tuple[tuple[Monomial, Fraction], ...]


def renamed(factor: Factor, mapping: Mapping[Ix, Ix]) -> Factor:
    if not mapping or not factor.slots:
        return factor
    return factor._replace(slots=tuple(mapping.get(ix, ix) for ix in factor.slots))


def least(head: Head, slots: tuple[Ix, ...]) -> tuple[Ix, ...]:
    """The smallest order of the slots among those that mean the same."""
    if not head.symmetry:
        return slots
    return min(tuple(slots[j] for j in order) for order in head.symmetry)


def canonical(factors: Iterable[Factor], sizes: Mapping[int, Frozen]) -> Monomial:
    """The monomial with its bound indices numbered in an order that depends only on what it means."""
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
        found, tries = _component(tuple(sorted(piece)), tuple((k, sizes[k]) for k in members))
        spend(tries)
        pieces.append(found)
    pieces.sort()
    placed, all_sizes = sorted(loose), []
    for piece, piece_sizes in pieces:
        moved: dict[Ix, Ix] = {("b", k): ("b", k + len(all_sizes)) for k in range(len(piece_sizes))}
        placed.extend(renamed(factor, moved) for factor in piece)
        all_sizes.extend(piece_sizes)
    return Monomial(tuple(placed), tuple(all_sizes))


@lru_cache(maxsize=4096)
def _component(factors: tuple[Factor, ...], sized: tuple[tuple[int, Frozen], ...]) -> tuple[Any, int]:
    """One connected piece, its bound indices numbered from 0: colours are refined, ties tried out and counted."""
    sizes = dict(sized)
    rank = {head: place for place, head in enumerate(sorted({factor.head for factor in factors}))}
    # A head that holds much is long to hash: it is ranked once, not at every try.
    ranked = [(rank[factor.head], factor) for factor in factors]
    best: list[Any] = []
    tries = 0

    def leaf(order: dict[int, int]) -> None:
        moved: dict[Ix, Ix] = {("b", k): ("b", place) for k, place in order.items()}
        rows = []
        for kind, (head, slots, exponent) in ranked:
            rows.append((kind, exponent, least(head, tuple(moved.get(ix, ix) for ix in slots)), head))
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
    """The place of each mark among the different ones."""
    places: list[Any] = []
    for mark in sorted(marks.values()):
        if not places or places[-1] != mark:
            places.append(mark)
    return {k: places.index(mark) for k, mark in marks.items()}
