"""Points cover signs, sizes and coincident indices; drawn values; agreement at a point."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from qkv.maths.comparison.trial import try_points
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Type
from qkv.maths.values import points as points_module
from qkv.maths.values.arithmetic import PlainNumber, Unevaluable, entries
from qkv.maths.values.points import (
    Point,
    agree_at,
    agree_to_digits,
    definite_matrix,
    differences,
    draw_array,
    draw_natural,
    draw_scalar,
    entry_count,
    filled_array,
    gap_vanishes,
    hashed,
    index_places,
    near_constant,
    points,
    random_map,
    roughly_agree,
    vocabulary,
)

SYMBOLS = {
    "x": "scalar",
    "y": "scalar",
    "z": "scalar",
    "n": "natural",
    "m": "natural",
    "d": "natural",
    "u": "vector[d]",
    "i": "index[d]",
    "j": "index[d]",
    "k": "index[d]",
    "S": "matrix[d,d]",
    "q": "random vector[d] ~ N(u, S)",
}


def places(text: str, count: int = 40):
    return list(points(vocabulary(parse(text, SYMBOLS)), count))


def test_the_first_point_is_simple():
    first = places(r"x + y + u^T u + n")[0]
    assert first.sizes["d"] == 2
    assert first.values["u"] == (1, 2)
    assert (first.values["x"], first.values["y"]) == (2, 3)
    assert places("x + y") == places("x + y")


def test_three_numbers_have_every_pattern_of_signs_among_the_first_nine():
    signs = {tuple(place.values[name] > 0 for name in "xyz") for place in places("x + y + z", 9)}
    assert signs == set(itertools.product((True, False), repeat=3))


def test_magnitudes_zero_and_naturals():
    sizes = {abs(place.values["x"]) for place in places("x + y", 120)}
    assert {Fraction(1, 10), Fraction(1, 2), 1, 2, 3, 7, 10, 100, 0} <= sizes
    naturals = {place.sizes["n"] for place in places("n + m", 60)}
    assert {1, 2, 100} <= naturals
    lengths = {place.sizes["d"] for place in places("u^T u", 40)}
    assert 1 in lengths
    assert max(lengths) < 10


def test_indices_of_one_size_coincide_in_every_way():
    patterns = set()
    for place in places(r"\delta_{ij}\delta_{jk}", 12):
        i, j, k = (place.values[name] for name in "ijk")
        patterns.add((i == j, j == k, i == k))
    assert len(patterns) == 5


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\max(n,2)", "n"),
        (r"\min(n,7)", "n"),
        (r"\max(x,x^2)", "x^2"),
        (r"\max(x,y,0)", r"\max(x,y)"),
        (r"\max(\|u\|^2,1)", r"\|u\|^2"),
        (r"\min(n,512)", "n"),
        (r"relu(x-100)", "0"),
        (r"\min((m+1)^n,1000000)", "(m+1)^n"),
        (r"Cov(q_i,q_j)", "0"),
        (r"\delta_{ij}\delta_{jk}", "0"),
        (r"\delta_{ij} u_i u_j", "u_i u_j"),
    ],
)
def test_what_holds_only_at_tame_points_is_refuted(gold, answer):
    verdict = compare(gold, answer, SYMBOLS)
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")
    assert verdict.counterexample is not None
    assert compare(gold, answer, {**SYMBOLS, "a": "scalar", "b": "vector[d]"}) == verdict


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\prod_{k=1}^n \max(-1, \det(S S))", r"\prod_{k=1}^n \max(\det(S S), 1)"),
        (r"\max(\det S, 1)", r"\det S"),
        (r"\max(\mathrm{tr}(S), 1)", r"\mathrm{tr}(S)"),
        (r"\max(E[q^T q], 1)", r"E[q^T q]"),
        (r"\min(\det S, 1000000)", r"\det S"),
    ],
)
def test_what_holds_only_for_covariances_of_ordinary_size_is_refuted(gold, answer):
    symbols = {**SYMBOLS, "q": "random vector[d] ~ N(0, S)"}
    verdict = compare(gold, answer, symbols)
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")
    assert "they agree where" not in verdict.reason


def test_what_has_a_value_only_at_positive_numbers_is_tried_there():
    assert compare(r"\sqrt x\sqrt y", r"\sqrt{xy}", SYMBOLS).condition == "x ≥ 0 and y ≥ 0"
    assert compare(r"\log(xy) + |x|", r"\log x + \log y + |x|", SYMBOLS).condition == "x > 0 and y > 0"
    assert compare(r"\max(\log x, \log y)", r"\log\max(x, y)", SYMBOLS).kind == "conditional"


def test_a_counterexample_near_a_literal_is_simplified_to_it():
    assert str(compare(r"\min(n,512)", "n", SYMBOLS).counterexample) == "n = 513: 512 against 513"


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
    assert {near_constant(constants, attempt) for attempt in range(100)} >= {999, 1000, 1001}
    assert min(near_constant((Fraction(1, 2),), attempt) for attempt in range(100)) > 0


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
    assert points_module.choose("abc", 1, "x", "size") in "abc"
    assert {points_module.choose("abc", attempt, "x", "size") for attempt in range(50)} == set("abc")


PLAIN_SYMBOLS = {"x": "scalar", "y": "positive"}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("e^{-200}", "0"),
        ("e^{-1000}", "e^{-2000}"),
        ("1 + e^{-200} x", "1"),
        ("e^{1000}", "e^{1000} + 1"),
        ("(1 + 10^{-20})^{1/2}", "1 + 10^{-20}/2"),
        (r"\max(e^{-200}, 0)", "0"),
    ],
)
def test_what_stays_with_more_digits_is_a_difference(gold, answer):
    verdict = compare(gold, answer, PLAIN_SYMBOLS)
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\max(\sqrt{2y} - \sqrt 2\sqrt y, -1)", "0"),
        (r"|\log(y^2) - 2\log y| + 1", "1"),
        (r"\max(e^{-200 x^2}, 0)", "e^{-200 x^2}"),
    ],
)
def test_what_shrinks_with_more_digits_is_none(gold, answer):
    assert compare(gold, answer, PLAIN_SYMBOLS).kind != "different"


def test_where_digits_run_out_nothing_is_said():
    verdict = compare("e^{100000}", "e^{100000} + 1", {})
    assert (verdict.kind, verdict.evidence) == ("unreadable", None)
    assert "digits" in verdict.reason


def test_values_that_look_the_same_are_told_apart():
    assert "which differ by 1.00" in compare("e^{1000}", "e^{1000} + 1", {}).reason
    assert "1 against 1.00000000000001" in compare("1", "1 + 10^{-14} \\cdot \\sqrt{1}", {}).reason.replace(
        "100000000000001/100000000000000", "1.00000000000001"
    )


def pairs(*numbers: str) -> list[tuple[PlainNumber, PlainNumber]]:
    """Numbers that are exact or not, two and two."""
    exact = [Fraction(one) if "." not in one else Decimal(one) for one in numbers]
    return list(zip(exact[::2], exact[1::2], strict=True))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("1", "0", True),
        ("1e-10", "1e-50", True),
        ("1e-10", "1.1e-50", None),
        ("1e-10", "1e-10", False),
        ("1", "1.0000009", False),
        ("1", "1.000002", None),
        ("1.0000009", "1", False),
        ("1", "0.5", None),
    ],
)
def test_a_difference_stays_or_vanishes(before, after, found) -> None:
    assert gap_vanishes(Decimal(before), Decimal(after)) is found


@pytest.mark.parametrize(
    ("numbers", "error", "found"),
    [
        (("1", "1"), "1e-20", True),
        (("1.0", "1.00000000000000000009"), "1e-20", True),
        (("1.0", "1.0000000000000000002"), "1e-20", None),
        (("1", "2"), "1e-20", False),
        (("1.0", "1.00005"), "1e-20", None),
        (("1.0", "1.0002"), "1e-20", False),
        (("1.0", "1.0002"), "1e-5", None),
        (("1", "1"), "1e-6", None),
        (("1", "1"), "9e-7", True),
        (("1", "1", "1", "2"), "1e-20", False),
        (("1.0", "1.05"), "1e-3", False),
        (("1.0", "1.02"), "1e-3", None),
    ],
)
def test_what_is_only_known_roughly(numbers, error, found) -> None:
    assert roughly_agree(pairs(*numbers), Decimal(error)) is found


def test_relative_differences_and_digits() -> None:
    assert differences(pairs("1", "3", "2.5", "2"), 60) == [2, Decimal("0.5")]
    assert agree_to_digits(Decimal("1.0000"), Decimal("1.0001"), 4)
    assert not agree_to_digits(Decimal("1.0000"), Decimal("1.0001"), 5)
    assert agree_to_digits(Fraction(-1000), Fraction(-1001), 3)
    assert not agree_to_digits(Fraction(1000), Fraction(-1000), 3)


@pytest.mark.parametrize(
    ("gold", "answer", "found"),
    [
        ("x", "x", True),
        ("x", "x + 1", False),
        (r"\sqrt{x}^2", "x", True),
        (r"\sqrt{x}", "1.4142135623730951", False),
        (r"e^{x}", r"e^{x} + 10^{-70}", False),
        (r"e^{10000} - e^{10000}", "0", None),
        ("e^{100000}", "e^{100000} + 1", None),
        ("(x, 1)", "(x, 2)", False),
        ("(1, x)", "(1, x)", True),
        (r"\max(\sqrt 2 - 1.41421356, 0)", r"\sqrt 2 - 1.41421356", True),
    ],
)
def test_two_values_at_a_point(gold, answer, found) -> None:
    place = Point({}, {"x": Fraction(2)})
    trees = [parse(text, {"x": "scalar"}) for text in (gold, answer)]
    assert agree_at(place, *trees) is found


def test_a_zero_that_no_digits_show() -> None:
    place = Point({}, {"x": Fraction(2)})
    tree = parse(r"e^{10000} - e^{10000} + x", {"x": "scalar"})
    assert agree_at(place, tree, parse("x", {"x": "scalar"})) is not False


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"f(\max(a, b))", r"\max(f(a), f(b))"),
        (r"f(\min(a, b))", r"\min(f(a), f(b))"),
        ("(a^2)^b", "a^{2b}"),
        ("0^a", "0"),
        (r"\max(a, 10^6)", "10^6"),
        (r"\max(a, 10^6)", "a"),
        (r"\max(\max(s), 1000)", "1000"),
        ("|a - 3|", "3 - a"),
        (r"|a + 10^{-4}|", "|a| + 10^{-4}"),
        (r"\sum_{i=1}^{n-2} 1 + b - b", "n - 2"),
        (r"\prod_{i=1}^{n-2} 2 + b - b", "2^{n-2}"),
        (r"\sum_{i=1}^{n-d} 1 + b - b", "n - d"),
        (r"argmax(s)", "n + 1 - argmax(-s)"),
    ],
)
def test_what_holds_at_many_points_is_still_refuted(gold, answer) -> None:
    names = {
        "a": "scalar",
        "b": "scalar",
        "f": "map scalar -> scalar",
        "s": "vector[n]",
        "n": "natural",
        "d": "natural",
    }
    assert try_points(parse(gold, names), parse(answer, names)).equal is False


def test_the_first_points_have_sizes_of_one_and_both_orders() -> None:
    names = {"A": "matrix[n,d]"}
    sizes = [(p.sizes["n"], p.sizes["d"]) for p in points(vocabulary(parse("A A^T", names)), 10)]
    assert (1, 1) in sizes
    assert any(n < d for n, d in sizes)
    assert any(n > d for n, d in sizes)
    later = [(p.sizes["n"], p.sizes["d"]) for p in points(vocabulary(parse("A A^T", names)), 10)]
    assert any(n == 1 < d for n, d in later)
    assert any(d == 1 < n for n, d in later)


def test_ties_are_tried() -> None:
    tree = parse(r"\max(s)", {"s": "vector[n]"})
    drawn = [p.values["s"] for p in points(vocabulary(tree), 60)]
    assert sum(len(s) > 1 and s.count(max(s)) > 1 for s in drawn) > 2


def test_maps_go_up_and_down() -> None:
    tree = parse("f(x)", {"f": "map scalar -> scalar", "x": "scalar"})
    maps = [p.values["f"] for p in points(vocabulary(tree), 30)]
    rises = [[f(Fraction(k + 1)) > f(Fraction(k)) for k in range(-3, 3)] for f in maps]
    assert any(map(all, rises))
    assert any(not any(rise) for rise in rises)
    assert any(any(rise) and not all(rise) for rise in rises)


def test_huge_and_tiny_constants_are_no_trouble() -> None:
    names = {"x": "scalar"}
    assert vocabulary(parse(r"\max(x, e^{e^{20}})", names)).constants == ()
    assert vocabulary(parse(r"\max(x, 10^{-6})", names)).constants == (Fraction(1, 10**6),)
    assert vocabulary(parse(r"\max(x, 10^6)", names)).constants == (Fraction(10**6),)
