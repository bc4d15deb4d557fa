"""One head for one function, and known signs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.algebra.heads import (
    arguments,
    closed,
    factor_sign,
    heads_within,
    known_sign,
    random_names,
    sign_of,
    single_monomial,
)
from qkv.maths.algebra.monomials import (
    DELTA,
    Factor,
    Head,
    TooLarge,
    add,
    atom,
    bind,
    budget,
    freeze,
    multiply,
    note_root,
    number,
    scale,
)
from qkv.maths.algebra.normal import same
from qkv.maths.parsing.parse import parse

HERE, THERE, BEYOND = (("f", name) for name in "ijk")
MATRIX, VECTOR = Head("name", "A"), Head("name", "v")
X, Y = (atom(Head("name", name)) for name in "xy")
P, Z = atom(Head("name", "p", (), "positive")), atom(Head("name", "z", (), "nonnegative"))
N, M = (atom(Head("name", name, (), "natural")) for name in "nm")
NAMES = {"A": "matrix[d,d]", "u": "vector[d]", "v": "vector[d]", "x": "scalar", "n": "natural", "m": "natural",
         "h": "natural", "p": "positive", "z": "nonnegative", "y": "scalar"}  # fmt: skip


def test_a_function_has_one_head_whatever_its_indices_are_called() -> None:
    one, _ = closed("exp", [multiply(atom(MATRIX, (HERE, THERE)), atom(VECTOR, (THERE,)))])
    other, _ = closed("exp", [multiply(atom(MATRIX, (BEYOND, HERE)), atom(VECTOR, (HERE,)))])
    turned, _ = closed("exp", [multiply(atom(MATRIX, (THERE, HERE)), atom(VECTOR, (THERE,)))])
    assert one.head == other.head != turned.head
    assert set(one.slots) == {HERE, THERE}
    assert one.slots[0] == {BEYOND: HERE, HERE: THERE}[other.slots[0]]
    assert one.head.symmetry == ()


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_slots_that_may_be_swapped_are_known(shift: int) -> None:
    out = tuple(("f", f"out{place}") for place in range(shift))
    both, _ = closed(
        "map", [multiply(atom(MATRIX, (HERE, THERE)), atom(MATRIX, (THERE, HERE)))], name=f"g/{shift}", out=out
    )
    own = tuple(range(shift))
    assert both.head.symmetry == ((*own, shift, shift + 1), (*own, shift + 1, shift))
    assert both.slots[:shift] == out
    once, _ = closed("map", [atom(MATRIX, (HERE, THERE))], name=f"g/{shift}", out=out)
    assert once.head.symmetry == ()


def test_what_goes_round_may_not_be_swapped() -> None:
    ring = multiply(*(atom(MATRIX, pair) for pair in ((HERE, THERE), (THERE, BEYOND), (BEYOND, HERE))))
    found, _ = closed("exp", [ring])
    assert set(found.head.symmetry) == {(0, 1, 2), (1, 2, 0), (2, 0, 1)}
    free, _ = closed("exp", [add(*(atom(VECTOR, (ix,)) for ix in (HERE, THERE, BEYOND)))])
    assert len(free.head.symmetry) == 6


def test_signs_are_pulled_out_or_forgotten() -> None:
    apart, opposite = add(X, scale(Y, -1)), add(Y, scale(X, -1))
    for odd, even in ((True, False), (False, True)):
        one, first = closed("f", [apart], odd=odd, even=even)
        other, second = closed("f", [opposite], odd=odd, even=even)
        assert one == other
        assert (first, second) in ([(1, -1), (-1, 1)] if odd else [(1, 1)])
    assert closed("f", [apart])[0] != closed("f", [opposite])[0]
    # Of a sum and its opposite the one that begins with a plus is kept.
    assert closed("f", [scale(X, -1)], odd=True) == (closed("f", [X])[0], -1)
    assert closed("f", [X], odd=True) == (closed("f", [X])[0], 1)


def test_an_even_function_of_a_difference_may_be_swapped_and_an_odd_one_not() -> None:
    apart = add(atom(VECTOR, (HERE,)), scale(atom(VECTOR, (THERE,)), -1))
    even, _ = closed("abs", [apart], even=True)
    assert even.head.symmetry == ((0, 1), (1, 0))
    odd, _ = closed("sign", [apart], odd=True)
    assert odd.head.symmetry == ()


def test_the_order_of_arguments_matters_unless_it_is_said_not_to() -> None:
    assert closed("max", [X, Y])[0] != closed("max", [Y, X])[0]
    assert closed("max", [X, Y], unordered=True) == closed("max", [Y, X], unordered=True)
    places = [atom(VECTOR, (ix,)) for ix in (HERE, THERE)]
    assert closed("max", places, unordered=True)[0].head.symmetry == ((0, 1), (1, 0))
    assert closed("max", places)[0].head.symmetry == ()


def test_weights_add_up_and_are_limited() -> None:
    inner, _ = closed("exp", [add(X, Y)])
    assert inner.head.weight == 3
    outer, _ = closed("exp", [multiply(atom(inner.head), X)])
    assert outer.head.weight == 5
    heavy = atom(Head("name", "w", (), "real", (), 999))
    assert closed("exp", [heavy])[0].head.weight == 1000
    with pytest.raises(TooLarge, match="one function contains too many terms"):
        closed("exp", [multiply(heavy, X)])


def test_arguments_get_their_slots_back() -> None:
    body = multiply(atom(MATRIX, (HERE, THERE)), atom(VECTOR, (THERE,)))
    found, _ = closed("exp", [body])
    assert arguments(found.head, found.slots) == [body]
    entry, _ = closed("map", [body], name="g/1", out=(BEYOND,))
    assert arguments(entry.head, entry.slots) == [body]
    inverse, _ = closed("inverse", [body, N], out=(BEYOND, BEYOND))
    assert arguments(inverse.head, inverse.slots) == [body, N]


def test_what_stands_within() -> None:
    prime = Head("prime", "", (2,), "positive")
    assert heads_within(prime) == []
    found, _ = closed("exp", [add(X, multiply(Y, Y))])
    assert sorted(heads_within(found.head)) == [Head("name", "x"), Head("name", "y")]
    chance, _ = closed("exp", [multiply(atom(Head("random", "q")), X)])
    assert random_names(chance.head) == {"q"}
    mean, _ = closed("expect", [atom(chance.head)])
    assert random_names(mean.head) == frozenset()
    assert random_names(Head("name", "q")) == frozenset()


def test_what_is_one_monomial() -> None:
    assert single_monomial(scale(X, 3)) == (next(iter(X)), Fraction(3))
    assert single_monomial(add(X, Y)) is None
    assert single_monomial({}) is None
    open_ = ("o", -1)
    assert single_monomial(bind(atom(VECTOR, (open_,)), open_, freeze(N))) is None


@pytest.mark.parametrize(
    ("poly", "sign"),
    [
        ({}, "nonnegative"),
        (number(2), "positive"),
        (number(-2), "real"),
        (X, "real"),
        (P, "positive"),
        (Z, "nonnegative"),
        (N, "positive"),
        (multiply(X, X), "nonnegative"),
        (multiply(X, X, X), "real"),
        (multiply(P, Z), "nonnegative"),
        (multiply(P, X), "real"),
        (add(P, Z), "positive"),
        (add(Z, multiply(X, X)), "nonnegative"),
        (add(P, X), "real"),
        (add(P, scale(Z, -1)), "real"),
        (add(N, number(-1)), "nonnegative"),
        (add(N, number(-2)), "real"),
        (add(scale(N, 2), number(-1)), "positive"),
        (add(multiply(N, M), scale(N, -1)), "nonnegative"),
        (add(multiply(N, M), scale(N, -1), scale(M, -1), number(1)), "nonnegative"),
        (add(multiply(N, M), scale(N, -1), scale(M, -1)), "real"),
        (add(multiply(P, N), scale(P, -1)), "nonnegative"),
        (add(multiply(Z, N), scale(Z, -1)), "nonnegative"),
        (add(multiply(X, N), scale(X, -1)), "real"),
        (add(number(3), scale(N, -1)), "real"),
        (atom(Head("name", "x"), (), Fraction(1, 2)), "nonnegative"),
        (atom(Head("name", "x"), (), Fraction(1, 3)), "real"),
        (atom(Head("name", "x"), (), Fraction(2, 3)), "nonnegative"),
        (atom(Head("name", "x"), (), -2), "nonnegative"),
        (atom(Head("name", "x"), (), -1), "real"),
        (atom(DELTA, (HERE, THERE)), "nonnegative"),
    ],
)
def test_what_is_known_of_a_sign(poly: dict, sign: str) -> None:
    assert sign_of(poly) == sign


@pytest.mark.parametrize(
    ("left", "right", "proved"),
    [
        ("|n^6 - 1|", "n^6 - 1", True),
        ("|n^2 - n|", "n^2 - n", True),
        ("|n^2 m^2 h^2 - 1|", "n^2 m^2 h^2 - 1", True),
        ("|n^3 m^2 h^2 - 1|", "n^3 m^2 h^2 - 1", False),
        ("|n^7 - 1|", "n^7 - 1", False),
        ("|n - m|", "n - m", False),
        ("|n + m - 1|", "n + m - 1", True),
        ("|2n - 1|", "2n - 1", True),
        ("|n - 2|", "n - 2", False),
        (r"|\sqrt{n} - 1|", r"\sqrt{n} - 1", False),
        ("|n/2 - 1/2|", "(n - 1)/2", True),
    ],
)
def test_signs_of_sums_of_naturals(left: str, right: str, proved: bool) -> None:
    assert same(parse(left, NAMES), parse(right, NAMES)) is proved


def test_sums_of_many_terms_are_not_looked_at() -> None:
    def many(count: int) -> dict:
        names = [atom(Head("name", f"n{place}", (), "natural")) for place in range(count - 1)]
        return add(*names, number(-1))

    assert sign_of(many(12)) == "positive"
    assert sign_of(many(13)) == "real"


def test_a_root_says_that_what_stands_under_it_is_not_negative() -> None:
    head = Head("name", "x")
    with budget():
        assert known_sign(head, ()) == "real"
        note_root(head, ())
        assert known_sign(head, ()) == "nonnegative"
        assert known_sign(VECTOR, (HERE,)) == "real"
        note_root(VECTOR, (HERE,))
        assert known_sign(VECTOR, (HERE,)) == "nonnegative"
        assert known_sign(VECTOR, (THERE,)) == "real"
        assert factor_sign(Factor(head, (), Fraction(3))) == "nonnegative"
    assert known_sign(head, ()) == "real"
    assert known_sign(Head("name", "n", (), "natural"), ()) == "positive"
    assert known_sign(Head("name", "p", (), "positive"), ()) == "positive"


@pytest.mark.parametrize(
    ("left", "right", "proved"),
    [
        (r"\sum_{i,j} \exp(A_{ij} A_{ji}) u_i v_j", r"\sum_{i,j} \exp(A_{ij} A_{ji}) u_j v_i", True),
        (r"\sum_{i,j} \exp(A_{ij}) u_i v_j", r"\sum_{i,j} \exp(A_{ij}) u_j v_i", False),
        (r"\sum_{i,j} |A_{ij} - A_{ji}| u_i v_j", r"\sum_{i,j} |A_{ij} - A_{ji}| u_j v_i", True),
        (r"\sum_{i,j} \exp(u_i v_j)", r"\sum_{i,j} \exp(u_j v_i)", True),
        (r"\sum_{i,j} \max(u_i, v_j, x)", r"\sum_{i,j} \max(x, v_i, u_j)", True),
        (r"\sum_{i,j} \exp(u_i + 2 u_j^2) v_i", r"\sum_{i,j} \exp(u_j + 2 u_i^2) v_i", False),
        (r"\exp(u_1 v_2)", r"\exp(v_2 u_1)", True),
        (r"\exp(u_1 v_2)", r"\exp(u_2 v_1)", False),
        (r"\sum_i \exp(u_i v_i)", r"\sum_i \exp(v_i u_i)", True),
    ],
)
def test_sums_of_functions_of_two_indices(left: str, right: str, proved: bool) -> None:
    assert same(parse(left, NAMES), parse(right, NAMES)) is proved


def test_symmetric_heads_inside_have_no_first_slot() -> None:
    even = Head("name", "S", symmetry=((0, 1), (1, 0)))
    for body in (lambda i, j: [atom(even, (i, j))], lambda i, j: [multiply(atom(even, (i, j)), atom(VECTOR, (i,)))]):
        forms = {closed("exp", body(i, j))[0].head for i, j in ((HERE, THERE), (THERE, HERE), (BEYOND, HERE))}
        assert len(forms) == 1
    assert closed("exp", [atom(even, (THERE, HERE))])[0].head.symmetry == ((0, 1), (1, 0))
    numbers, _ = closed("exp", [multiply(atom(MATRIX, (("c", 2), HERE)), atom(VECTOR, (("r", 0),)))])
    assert numbers.slots == (HERE,)
