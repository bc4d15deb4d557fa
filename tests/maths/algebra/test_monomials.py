"""Sums of monomials, canonical bound indices, clearing denominators, and the work budget."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations, permutations

import pytest

from qkv.maths.algebra.functions import exponential, power
from qkv.maths.algebra.heads import closed
from qkv.maths.algebra.monomials import (
    DELTA,
    PLACE,
    UNIT,
    Factor,
    Head,
    Monomial,
    Poly,
    TooLarge,
    add,
    atom,
    bind,
    budget,
    build,
    canonical,
    clearing_factor,
    constant,
    freeze,
    fresh,
    has_root,
    indices_of,
    is_stale,
    least_order,
    multiply,
    note_root,
    number,
    outputs,
    power_sum,
    rename,
    rename_factor,
    root_count,
    scale,
    spend,
    subtract,
    times,
    unbind,
    vanishes,
)

HERE, THERE, OPEN = ("f", "i"), ("f", "j"), ("o", -7)


X, Y = (atom(Head("name", name)) for name in "xy")


V, W, A = Head("name", "v"), Head("name", "w"), Head("name", "A")


N = atom(Head("name", "n", (), "natural"))


SIZE = freeze(N)


def test_numbers() -> None:
    assert number(0) == {} == scale(X, 0)
    assert number(3) == {UNIT: Fraction(3)}
    assert constant({}) == 0
    assert constant(number(Fraction(1, 2))) == Fraction(1, 2)
    assert constant(X) is None
    assert constant(add(X, number(1))) is None
    assert multiply() == number(1)
    assert multiply(number(2), number(3), X, number(Fraction(1, 6))) == X
    assert multiply(X, {}, Y) == {}
    assert multiply(number(2), add(X, Y)) == add(scale(X, 2), scale(Y, 2)) == multiply(add(X, Y), number(2))


def test_sums_and_products() -> None:
    assert subtract(add(X, Y), Y) == X
    assert subtract(X, X) == {}
    assert multiply(add(X, Y), subtract(X, Y)) == subtract(multiply(X, X), multiply(Y, Y))
    assert times(add(X, Y), Fraction(3), [Factor(Head("name", "x"))]) == scale(multiply(X, add(X, Y)), 3)
    assert multiply(atom(Head("name", "x"), (), -1), X) == number(1)
    assert freeze(add(Y, X)) == freeze(add(X, Y))


def test_a_bound_index_has_no_name() -> None:
    other = fresh()
    one, two = (bind(multiply(atom(V, (ix,)), atom(W, (ix,))), ix, SIZE) for ix in (OPEN, other))
    assert one == two
    ((monomial, coefficient),) = one.items()
    assert coefficient == 1
    assert monomial.sizes == (SIZE,)
    assert {slot for factor in monomial.factors for slot in factor.slots} == {("b", 0)}
    assert indices_of(one) == set()
    assert indices_of(atom(A, (HERE, THERE))) == {HERE, THERE}
    factors, opens = unbind(monomial)
    assert list(opens.values()) == [SIZE]
    (ix,) = opens
    assert ix[0] == "o"
    assert {slot for factor in factors for slot in factor.slots} == {ix}


def test_bound_indices_of_two_factors_stay_apart() -> None:
    total = bind(atom(V, (OPEN,)), OPEN, SIZE)
    squares = bind(atom(V, (OPEN,), 2), OPEN, SIZE)
    square = multiply(total, total)
    assert square != squares
    ((monomial, _),) = square.items()
    assert len(monomial.sizes) == 2
    other = fresh()
    both = bind(bind(multiply(atom(V, (OPEN,)), atom(V, (other,))), OPEN, SIZE), other, SIZE)
    assert both == square
    assert multiply(total, X, total) == multiply(X, square)


def test_what_nothing_depends_on_is_counted() -> None:
    assert bind(X, OPEN, SIZE) == multiply(N, X)
    assert bind(bind(number(1), OPEN, SIZE), fresh(), SIZE) == multiply(N, N)
    place = atom(PLACE, (OPEN,))
    assert bind(place, OPEN, SIZE) == scale(add(multiply(N, N), N), Fraction(1, 2))
    ((monomial, _),) = bind(atom(PLACE, (OPEN,), 5), OPEN, SIZE).items()
    assert monomial.sizes == (SIZE,)
    mixed = bind(multiply(place, atom(V, (OPEN,))), OPEN, SIZE)
    assert next(iter(mixed)).sizes == (SIZE,)
    # One index is summed away, the other stays.
    other = fresh()
    two = bind(bind(multiply(atom(V, (OPEN,)), atom(PLACE, (other,))), OPEN, SIZE), other, SIZE)
    assert two == multiply(bind(atom(V, (OPEN,)), OPEN, SIZE), bind(place, OPEN, SIZE))


@pytest.mark.parametrize("degree", range(5))
@pytest.mark.parametrize("size", [1, 2, 5])
def test_sums_of_powers(size: int, degree: int) -> None:
    assert power_sum(number(size), degree) == number(sum(k**degree for k in range(1, size + 1)))
    named = power_sum(N, degree)
    assert sum(c * size ** sum(f.exponent for f in m.factors) for m, c in named.items()) == sum(
        k**degree for k in range(1, size + 1)
    )


def test_a_delta_puts_one_index_in_the_place_of_another() -> None:
    def delta(x: tuple, y: tuple) -> dict:
        return atom(DELTA, (x, y))

    assert delta(HERE, HERE) == number(1)
    assert delta(("c", 1), ("c", 1)) == number(1)
    assert delta(("c", 1), ("c", 2)) == {}
    assert delta(HERE, THERE) == delta(THERE, HERE)
    assert multiply(delta(HERE, THERE), delta(HERE, THERE)) == delta(HERE, THERE)
    assert multiply(delta(HERE, THERE), atom(V, (HERE,))) == multiply(delta(HERE, THERE), atom(V, (THERE,)))
    assert multiply(delta(HERE, ("c", 2)), atom(V, (HERE,))) == multiply(delta(HERE, ("c", 2)), atom(V, (("c", 2),)))
    assert multiply(delta(HERE, ("c", 2)), atom(V, (HERE,))) != multiply(delta(HERE, ("c", 2)), atom(V, (("c", 1),)))
    assert multiply(delta(HERE, ("c", 2)), atom(V, (("c", 2),))) != atom(V, (("c", 2),))
    assert bind(multiply(delta(OPEN, THERE), atom(V, (OPEN,))), OPEN, SIZE) == atom(V, (THERE,))
    assert bind(multiply(delta(THERE, OPEN), atom(V, (OPEN,))), OPEN, SIZE) == atom(V, (THERE,))
    assert bind(multiply(delta(OPEN, ("c", 3)), atom(V, (OPEN,))), OPEN, SIZE) == atom(V, (("c", 3),))
    assert bind(delta(OPEN, THERE), OPEN, SIZE) == number(1)
    assert multiply(delta(HERE, THERE), delta(THERE, ("f", "k"))) == multiply(
        delta(HERE, THERE), delta(HERE, ("f", "k"))
    )


def test_a_delta_of_two_bound_indices_leaves_one() -> None:
    other = fresh()
    body = multiply(atom(DELTA, (OPEN, other)), atom(V, (OPEN,)), atom(W, (other,)))
    both = bind(bind(body, OPEN, SIZE), other, SIZE)
    assert both == bind(multiply(atom(V, (OPEN,)), atom(W, (OPEN,))), OPEN, SIZE)


def test_a_head_is_made_anew_where_its_slots_become_one_or_a_number() -> None:
    body = exponential(multiply(atom(V, (HERE,)), atom(W, (THERE,))))
    assert rename(body, {THERE: HERE}) == exponential(multiply(atom(V, (HERE,)), atom(W, (HERE,))))
    assert rename(body, {THERE: ("c", 2)}) == exponential(multiply(atom(V, (HERE,)), atom(W, (("c", 2),))))
    assert rename(body, {THERE: ("f", "k")}) != body
    ((monomial, _),) = body.items()
    (factor,) = monomial.factors
    assert not is_stale(factor)
    assert is_stale(factor._replace(slots=(HERE, HERE)))
    assert is_stale(factor._replace(slots=(HERE, ("c", 1))))
    assert not is_stale(Factor(A, (HERE, HERE)))
    swapped = rename(multiply(X, body, body), {THERE: HERE})
    assert swapped == multiply(X, exponential(scale(multiply(atom(V, (HERE,)), atom(W, (HERE,))), 2)))
    other = fresh()
    bound = bind(bind(multiply(body, atom(DELTA, (HERE, THERE))), HERE, SIZE), THERE, SIZE)
    assert bound == bind(exponential(multiply(atom(V, (other,)), atom(W, (other,)))), other, SIZE)


def test_the_slots_of_an_entry_may_be_equal() -> None:
    body = multiply(atom(A, (("r", 0), ("r", 1))), X)
    inverse, _ = closed("inverse", [body, N], out=(HERE, HERE))
    assert outputs(inverse.head) == 2
    assert not is_stale(inverse)
    entry, _ = closed("map", [X], name="g/1", out=(("c", 1),))
    assert outputs(entry.head) == 1
    assert not is_stale(entry)
    assert outputs(Head("map", "g/0", args=((),))) == 0
    assert outputs(Head("exp", "", ((),))) == 0


def test_a_product_is_the_same_in_any_order() -> None:
    factors = [Factor(A, (("b", 0), ("b", 1))), Factor(V, (("b", 1),)), Factor(W, (("b", 0),), Fraction(2))]
    sizes = {0: SIZE, 1: SIZE}
    one = build(Fraction(2), factors, sizes)
    assert one == build(Fraction(2), factors[::-1], sizes)
    swapped = [f._replace(slots=tuple(("b", 1 - ix[1]) for ix in f.slots)) for f in factors]
    assert one == build(Fraction(2), swapped, sizes)
    assert build(Fraction(0), factors, sizes) == {}
    assert one != build(Fraction(2), [factors[0], Factor(V, (("b", 0),)), Factor(W, (("b", 1),), Fraction(2))], sizes)


def test_zero_powers_vanish() -> None:
    assert atom(Head("name", "x"), (), 0) == number(1)
    assert build(Fraction(1), [Factor(V, (HERE,)), Factor(V, (HERE,), Fraction(-1))], {}) == number(1)
    assert Monomial() == UNIT


S = Head("name", "S", symmetry=((0, 1), (1, 0)))


SIZE_N, SIZE_M = (((Monomial((Factor(Head("name", name, (), "natural")),)), Fraction(1)),) for name in "nm")


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
    (
        [
            Factor(A, (("b", 0), FREE)),
            Factor(A, (FREE, ("b", 1))),
            at(V, 0),
            at(V, 1),
        ],
        2,
    ),
    ([at(A, 0, 1), at(A, 0, 1, power=2)], 2),
]


@pytest.mark.parametrize(("factors", "count"), PRODUCTS)
def test_any_names_of_bound_indices_give_the_same_product(factors: list[Factor], count: int) -> None:
    sizes = dict.fromkeys(range(count), SIZE_N)
    wanted = canonical([f._replace(slots=least_order(f.head, f.slots)) for f in factors], sizes)
    draw = random.Random(count)
    for order in permutations(range(count)):
        moved = [rename_factor(factor, {("b", k): ("b", order[k]) for k in range(count)}) for factor in factors]
        moved = [f._replace(slots=least_order(f.head, f.slots)) for f in moved]
        draw.shuffle(moved)
        assert canonical(moved, sizes) == wanted
    assert sorted(ix[1] for f in wanted.factors for ix in set(f.slots) if ix[0] == "b")
    assert {ix[1] for f in wanted.factors for ix in f.slots if ix[0] == "b"} == set(range(count))
    assert wanted.sizes == (SIZE_N,) * count


def test_products_that_differ_stay_apart() -> None:
    forms = [canonical(factors, dict.fromkeys(range(count), SIZE_N)) for factors, count in PRODUCTS]
    assert len(set(forms)) == len(forms)
    two = {0: SIZE_N, 1: SIZE_N}
    assert canonical([at(A, 0, 1), at(V, 0)], two) != canonical([at(A, 0, 1), at(V, 1)], two)
    assert canonical([at(S, 0, 1), at(V, 0)], two) == canonical([at(S, 0, 1), at(V, 1)], two)
    assert canonical([at(A, 0, 1, power=2), at(A, 1, 0)], two) != canonical([at(A, 0, 1, power=2), at(A, 0, 1)], two)
    three = dict.fromkeys(range(3), SIZE_N)
    ring, fan = (
        [at(A, 0, 1), at(A, 1, 2), at(A, 2, 0)],
        [at(A, 0, 1), at(A, 1, 2), at(A, 0, 2)],
    )
    assert canonical(ring, three) != canonical(fan, three)


def test_sizes_go_with_their_indices() -> None:
    one = canonical([at(V, 0), at(W, 1)], {0: SIZE_N, 1: SIZE_M})
    assert one == canonical([at(V, 1), at(W, 0)], {0: SIZE_M, 1: SIZE_N})
    assert one != canonical([at(V, 0), at(W, 1)], {0: SIZE_M, 1: SIZE_N})
    assert sorted(one.sizes) == sorted((SIZE_N, SIZE_M))
    pair = canonical([at(A, 0, 1)], {0: SIZE_N, 1: SIZE_M})
    assert pair == canonical([at(A, 1, 0)], {0: SIZE_M, 1: SIZE_N})
    assert pair != canonical([at(A, 0, 1)], {0: SIZE_M, 1: SIZE_N})


def test_without_bound_indices_factors_are_only_sorted() -> None:
    factors = [Factor(W, (FREE,)), Factor(A, (FREE, FREE)), Factor(V)]
    assert canonical(factors, {}) == Monomial(tuple(sorted(factors)))
    assert canonical([*factors, at(V, 0)], {0: SIZE_N}).factors[:3] == tuple(sorted(factors))


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
        canonical(alike, dict.fromkeys(range(7), SIZE_N))


def test_ties_that_are_tried_are_paid_for() -> None:
    ring = [at(A, k, (k + 1) % 6) for k in range(6)]
    sizes = dict.fromkeys(range(6), SIZE_N)
    with budget(6), pytest.raises(TooLarge):
        canonical(ring, sizes)
    with budget(7):
        canonical(ring, sizes)


Z = atom(Head("name", "z"))


def over(*names: Poly, times: int = 1) -> Poly:
    return power(add(*names), -times)


@pytest.mark.parametrize(
    ("poly", "zero"),
    [
        ({}, True),
        (number(1), False),
        (X, False),
        (add(multiply(X, over(X, Y)), multiply(Y, over(X, Y)), number(-1)), True),
        (add(multiply(X, over(X, Y)), multiply(Y, over(X, Y)), number(1)), False),
        (add(multiply(X, X, over(X, Y, times=2)), scale(multiply(Y, Y, over(X, Y, times=2)), -1),
             scale(multiply(X, over(X, Y)), -1), multiply(Y, over(X, Y))), True),
        (add(over(X, Y), over(X, scale(Y, -1)), scale(multiply(X, over(X, Y), over(X, scale(Y, -1))), -2)), True),
        (add(over(X, Y), over(Y, Z), scale(multiply(add(X, Z), over(X, Y), over(Y, Z)), -1)), False),
        (add(over(X, Y), scale(over(Y, Z), -1), multiply(add(X, scale(Z, -1)), over(X, Y), over(Y, Z))), True),
    ],
)  # fmt: skip
def test_denominators_are_cleared(poly: Poly, zero: bool) -> None:
    assert vanishes(poly) is zero


def test_the_denominator_is_the_lowest_power() -> None:
    assert clearing_factor(add(X, Y)) is None
    assert clearing_factor(power(add(X, Y), Fraction(1, 2))) is None
    assert clearing_factor(power(X, -1)) is None
    found = clearing_factor(add(over(X, Y), over(X, Y, times=3), X))
    assert found is not None
    assert found.exponent == 3
    assert found.head.kind == "sum"
    half = clearing_factor(power(add(X, Y), Fraction(-1, 2)))
    assert half is not None
    assert half.exponent == Fraction(1, 2)


HEAD = Head("name", "x")


def test_a_budget_is_spent() -> None:
    with budget(3):
        spend()
        spend(2)
        with pytest.raises(TooLarge, match="too large to be brought to its normal form"):
            spend(1)
    spend(10**9)


def test_a_budget_inside_another_counts_on_its_own() -> None:
    with budget(2):
        with budget(5):
            spend(5)
        spend(2)
        with pytest.raises(TooLarge):
            spend()


def test_roots_are_remembered_at_their_indices() -> None:
    assert not has_root(HEAD, ())
    note_root(HEAD, ())
    assert not has_root(HEAD, ())
    with budget():
        assert root_count() == 0
        note_root(HEAD, ())
        note_root(HEAD, (("f", "i"),))
        note_root(HEAD, (("c", 1), ("v", "n")))
        note_root(HEAD, (("b", 0),))
        note_root(HEAD, (("f", "i"), ("p", 0)))
        assert has_root(HEAD, ())
        assert has_root(HEAD, (("f", "i"),))
        assert not has_root(HEAD, (("f", "j"),))
        assert not has_root(HEAD, (("b", 0),))
        assert not has_root(HEAD, (("f", "i"), ("p", 0)))
        assert root_count() == 3
        note_root(HEAD, (("o", 4),))
        assert has_root(HEAD, (("o", 4),))
        assert root_count() == 3
        with budget():
            assert not has_root(HEAD, ())
        assert has_root(HEAD, ())
    assert not has_root(HEAD, ())
    assert root_count() == 0
