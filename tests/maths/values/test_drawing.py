"""Values that are drawn: of the kind and shape that is asked for, the same every time, and of every sort in the end."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from qkv.maths.tree import Type
from qkv.maths.values import points
from qkv.maths.values.arithmetic import Unevaluable, entries
from qkv.maths.values.points import (
    definite_matrix,
    draw_array,
    draw_natural,
    draw_scalar,
    entry_count,
    filled_array,
    hashed,
    index_places,
    near_constant,
    random_map,
)


def numbers(kind: str, *, positive: bool = False, constants=(), names="xyz", attempts=range(120)) -> list[Fraction]:
    return [
        draw_scalar(kind, name, attempt, place, constants, positive)
        for attempt in attempts
        for place, name in enumerate(names)
    ]


def test_numbers_are_of_their_kind() -> None:
    assert min(numbers("positive")) > 0
    assert min(numbers("nonnegative")) == 0
    assert min(numbers("scalar")) < 0
    assert 0 in numbers("scalar")
    assert min(numbers("scalar", positive=True)) == 0
    assert all(isinstance(number, Fraction) for number in numbers("scalar"))
    assert numbers("scalar") == numbers("scalar")


def test_the_first_numbers_are_small_whole_and_different() -> None:
    first = [draw_scalar("scalar", "x", 0, place, (), False) for place in range(6)]
    assert sorted(first) == [2, 3, 4, 5, 6, 7]
    assert [draw_scalar("scalar", "x", 0, place, (), False) for place in range(6, 12)] == first


def test_three_numbers_take_every_pattern_of_signs_soon() -> None:
    found = {
        tuple(draw_scalar("scalar", name, k, place, (), False) > 0 for place, name in enumerate("xyz"))
        for k in range(1, 9)
    }
    assert found == set(itertools.product((True, False), repeat=3))


def test_late_numbers_are_near_what_is_written() -> None:
    constants = (Fraction(1000),)
    early, late = (numbers("positive", constants=constants, attempts=range(*ends)) for ends in ((0, 9), (9, 120)))
    assert max(early) < 500
    assert {999, 1000, 1001, 2000, 500, 1_000_000} & set(late)
    assert {near_constant(constants, attempt, "x") for attempt in range(100)} >= {999, 1000, 1001}
    assert min(near_constant((Fraction(1, 2),), attempt, "x") for attempt in range(100)) > 0


def test_naturals() -> None:
    assert [draw_natural("n", attempt, 4, ()) for attempt in (0, 1)] == [4, 4]
    found = {draw_natural("n", attempt, 4, ()) for attempt in range(2, 200)}
    assert {1, 2, 3, 100} <= found
    near = {draw_natural("n", attempt, 4, (Fraction(512), Fraction(1, 2))) for attempt in range(9, 200)}
    assert {511, 512, 513} <= near
    assert min(draw_natural("n", attempt, 4, (Fraction(1),)) for attempt in range(9, 200)) == 1
    assert all(isinstance(number, int) for number in near)


def test_three_places_coincide_in_every_way() -> None:
    for length in (3, 5):
        found = [index_places("ijk", attempt, length) for attempt in range(18)]
        patterns = {(p["i"] == p["j"], p["j"] == p["k"], p["i"] == p["k"]) for p in found}
        assert len(patterns) == 5
    for attempt in range(60):
        for length in (1, 2, 4):
            assert all(1 <= place <= length for place in index_places("ijkl", attempt, length).values())
    assert {index_places("i", attempt, 4)["i"] for attempt in range(60)} == {1, 2, 3, 4}
    assert {index_places("ijkl", attempt, 4)["l"] for attempt in range(60)} == {1, 2, 3, 4}


def drawn(shape: tuple[int, ...], seed: int = 1, **options):
    return draw_array(shape, random.Random(seed), **options)


def test_arrays() -> None:
    assert drawn((4,), ordered=True) == (1, 2, 3, 4)
    assert drawn((2, 3), ordered=True) == ((1, 2, 3), (4, 5, 6))
    assert drawn((2,), ordered=True, scale=Fraction(1, 2)) == (Fraction(1, 2), 1)
    for shape in ((1,), (3,), (2, 3), (7,), (5, 5)):
        for seed in range(20):
            plain, positive, simple = (drawn(shape, seed, **o) for o in ({}, {"positive": True}, {"simple": True}))
            assert np.array(plain, dtype=object).shape == np.array(positive, dtype=object).shape == shape
            assert min(entries(positive)) > 0  # pyright: ignore
            assert 0 not in list(entries(plain))
            assert len(set(entries(plain))) == np.prod(shape) or shape == (5, 5)
            assert set(entries(simple)) <= {0, 1, 2, 3}
            assert next(entries(simple)) == 1
    signs = {entry > 0 for seed in range(20) for entry in entries(drawn((3,), seed))}  # pyright: ignore
    assert signs == {True, False}
    assert drawn((0,), simple=True) == ()


def test_how_many_entries_are_written_out() -> None:
    assert entry_count((64, 64)) == 4096
    assert entry_count(()) == 1
    with pytest.raises(Unevaluable, match="too many entries"):
        entry_count((4097,))
    assert filled_array(3, ("n", 2), {"n": 2}) == ((3, 3), (3, 3))
    assert filled_array(Fraction(1, 2), (), {}) == Fraction(1, 2)


@pytest.mark.parametrize("attempt", range(6))
def test_covariances_are_symmetric_and_definite(attempt) -> None:
    for size in range(1, 6):
        matrix = np.array(definite_matrix(size, random.Random(attempt), attempt), dtype=object).astype(float)
        assert (matrix == matrix.T).all()
        assert np.linalg.eigvalsh(matrix).min() > 0
        if attempt == 0 and size > 1:
            assert (matrix != np.diag(np.diag(matrix))).any()


def test_a_covariance_is_made_small_with_its_root() -> None:
    whole, half = (definite_matrix(3, random.Random(4), 4, scale) for scale in (Fraction(1), Fraction(1, 2)))
    assert [4 * entry for entry in entries(half)] == list(entries(whole))


def test_a_map_is_a_function_of_all_that_it_is_given() -> None:
    kind = Type("map", ("n",), arguments=((2,), ()))
    f = random_map(kind, {"n": 3}, 5)
    point = ((Fraction(1), Fraction(2)), Fraction(3))
    found = f(*point)
    assert len(found) == 3
    assert found == random_map(kind, {"n": 3}, 5)(*point)
    assert found != random_map(kind, {"n": 3}, 6)(*point)
    assert len(set(found)) == 3
    for changed in (
        ((Fraction(4), Fraction(2)), Fraction(3)),
        ((Fraction(1), Fraction(5)), Fraction(3)),
        (point[0], ONE),
    ):
        assert all(a != b for a, b in zip(f(*changed), found, strict=True))
    assert random_map(Type("map", (), arguments=((),)), {}, 1)(Fraction(2)) != 0
    g = random_map(Type("map", (), arguments=((), ())), {}, 3)
    assert g(Fraction(1), Fraction(2)) != g(Fraction(2), Fraction(1))
    values = [g(Fraction(k), Fraction(0)) for k in range(5)]
    differences = np.array(values, dtype=object)
    for _ in range(3):
        differences = np.diff(differences)
    assert set(differences) == {differences[0]}  # a polynomial of degree three
    assert differences[0] != 0


ONE = Fraction(1)


def test_mixing_tells_everything_apart() -> None:
    found = {hashed(attempt, name, what) for attempt in range(20) for name in "xy" for what in ("size", "sign")}
    assert len(found) == 80
    assert hashed(3, "x", "size") == hashed(3, "x", "size")
    assert points.choose("abc", 1, "x", "size") in "abc"
    assert {points.choose("abc", attempt, "x", "size") for attempt in range(50)} == set("abc")
