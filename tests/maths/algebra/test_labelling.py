"""Bound indices get names that depend only on what a product means."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations, permutations

import pytest

from qkv.maths.algebra.monomials import Factor, Head, Monomial, TooLarge, budget, canonical, least_order, rename_factor

A, V, W = (Head("name", name) for name in "Avw")
S = Head("name", "S", symmetry=((0, 1), (1, 0)))
N, M = (((Monomial((Factor(Head("name", name, (), "natural")),)), Fraction(1)),) for name in "nm")
FREE = ("f", "i")


def at(head: Head, *places: int, power: int = 1) -> Factor:
    return Factor(head, tuple(("b", place) for place in places), Fraction(power))


PRODUCTS = [
    ([at(A, 0, 1), at(V, 0), at(W, 1)], 2),
    ([at(A, 0, 1), at(A, 1, 0)], 2),
    ([at(A, 0, 1), at(A, 1, 2), at(A, 2, 0)], 3),
    ([at(A, 0, 1), at(A, 1, 2), at(A, 2, 3)], 4),
    ([at(S, 0, 1), at(S, 1, 2), at(V, 2)], 3),
    ([at(S, 0, 1), at(S, 1, 2), at(S, 2, 3), at(S, 3, 0)], 4),
    ([at(V, 0), at(V, 1), at(V, 2, power=2)], 3),
    ([at(V, 0), at(W, 1), at(A, 2, 2)], 3),
    ([Factor(A, (("b", 0), FREE)), Factor(A, (FREE, ("b", 1))), at(V, 0), at(V, 1)], 2),
    ([at(A, 0, 1), at(A, 0, 1, power=2)], 2),
]


@pytest.mark.parametrize(("factors", "count"), PRODUCTS)
def test_any_names_of_bound_indices_give_the_same_product(factors: list[Factor], count: int) -> None:
    sizes = dict.fromkeys(range(count), N)
    wanted = canonical([f._replace(slots=least_order(f.head, f.slots)) for f in factors], sizes)
    draw = random.Random(count)
    for order in permutations(range(count)):
        moved = [rename_factor(factor, {("b", k): ("b", order[k]) for k in range(count)}) for factor in factors]
        moved = [f._replace(slots=least_order(f.head, f.slots)) for f in moved]
        draw.shuffle(moved)
        assert canonical(moved, sizes) == wanted
    assert sorted(ix[1] for f in wanted.factors for ix in set(f.slots) if ix[0] == "b")
    assert {ix[1] for f in wanted.factors for ix in f.slots if ix[0] == "b"} == set(range(count))
    assert wanted.sizes == (N,) * count


def test_products_that_differ_stay_apart() -> None:
    forms = [canonical(factors, dict.fromkeys(range(count), N)) for factors, count in PRODUCTS]
    assert len(set(forms)) == len(forms)
    two = {0: N, 1: N}
    assert canonical([at(A, 0, 1), at(V, 0)], two) != canonical([at(A, 0, 1), at(V, 1)], two)
    assert canonical([at(S, 0, 1), at(V, 0)], two) == canonical([at(S, 0, 1), at(V, 1)], two)
    assert canonical([at(A, 0, 1, power=2), at(A, 1, 0)], two) != canonical([at(A, 0, 1, power=2), at(A, 0, 1)], two)
    three = dict.fromkeys(range(3), N)
    ring, fan = [at(A, 0, 1), at(A, 1, 2), at(A, 2, 0)], [at(A, 0, 1), at(A, 1, 2), at(A, 0, 2)]
    assert canonical(ring, three) != canonical(fan, three)


def test_sizes_go_with_their_indices() -> None:
    one = canonical([at(V, 0), at(W, 1)], {0: N, 1: M})
    assert one == canonical([at(V, 1), at(W, 0)], {0: M, 1: N})
    assert one != canonical([at(V, 0), at(W, 1)], {0: M, 1: N})
    assert sorted(one.sizes) == sorted((N, M))
    pair = canonical([at(A, 0, 1)], {0: N, 1: M})
    assert pair == canonical([at(A, 1, 0)], {0: M, 1: N})
    assert pair != canonical([at(A, 0, 1)], {0: M, 1: N})


def test_without_bound_indices_factors_are_only_sorted() -> None:
    factors = [Factor(W, (FREE,)), Factor(A, (FREE, FREE)), Factor(V)]
    assert canonical(factors, {}) == Monomial(tuple(sorted(factors)))
    assert canonical([*factors, at(V, 0)], {0: N}).factors[:3] == tuple(sorted(factors))


def test_the_least_order_of_slots() -> None:
    i, j = ("f", "i"), ("f", "j")
    assert least_order(S, (j, i)) == (i, j) == least_order(S, (i, j))
    assert least_order(A, (j, i)) == (j, i)
    assert rename_factor(Factor(A, (i, j)), {i: j}) == Factor(A, (j, j))
    assert rename_factor(Factor(V), {i: j}) == Factor(V)
    assert Head("name") == Head("name", "", (), "real", (), 1)
    assert Factor(V) == Factor(V, (), Fraction(1))


def test_what_has_too_many_symmetries_is_given_up() -> None:
    alike = [at(S, i, j) for i, j in combinations(range(7), 2)]
    with pytest.raises(TooLarge, match="too many ways to name"):
        canonical(alike, dict.fromkeys(range(7), N))


def test_ties_that_are_tried_are_paid_for() -> None:
    ring = [at(A, k, (k + 1) % 6) for k in range(6)]
    sizes = dict.fromkeys(range(6), N)
    with budget(6), pytest.raises(TooLarge):
        canonical(ring, sizes)
    with budget(7):
        canonical(ring, sizes)
