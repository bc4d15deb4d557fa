"""Arithmetic in lower indices, against counting every place."""

from fractions import Fraction
from itertools import product

import pytest

from qkv.maths.parsing.scripts import LinearIndex, always_within, linear_index, simplify_index
from qkv.maths.tree import Add, Divide, Index, Multiply, Node, Number, Symbol, Type

FIRST, SECOND = Index((), "i", 4), Index((), "j", 3)
N, X = Symbol((), "n", Type("natural")), Symbol((), "x", Type("scalar"))


def number(value: int | str) -> Number:
    return Number((), Fraction(value))


def total(*terms: Node) -> Add:
    return Add((), terms)


def times(*factors: Node) -> Multiply:
    return Multiply((), factors)


@pytest.mark.parametrize(
    ("node", "names", "often"),
    [
        (total(FIRST, number(1)), ("i",), (1,)),
        (total(FIRST, SECOND), ("i", "j"), (1, 1)),
        (total(FIRST, times(number(-1), SECOND)), ("i", "j"), (1, -1)),
        (total(FIRST, FIRST), ("i",), (2,)),
        (total(FIRST, times(number(-1), FIRST)), (), ()),
        (times(number(2), number(3), FIRST), ("i",), (6,)),
        (total(N, number(1)), (), ()),
        (total(times(number(2), N), FIRST), ("i",), (1,)),
    ],
)
def test_what_is_counted(node, names, often) -> None:
    found = linear_index(node)
    assert found is not None
    assert tuple(index.name for index in found.indices) == names
    assert found.times == often


@pytest.mark.parametrize(
    "node",
    [
        FIRST,
        number(1),
        N,
        Divide((), FIRST, number(2)),
        total(FIRST, X),
        total(FIRST, number("1/2")),
        total(FIRST, Number((), Fraction(1), Fraction(1, 10))),
        times(FIRST, SECOND),
        times(number("1/2"), FIRST),
        times(N, FIRST),
        total(FIRST, Divide((), N, number(2))),
    ],
)
def test_what_is_no_counting(node) -> None:
    assert linear_index(node) is None
    assert simplify_index(node) == node


def test_what_is_left_of_a_sum() -> None:
    found = linear_index(total(FIRST, N, number(2)))
    assert found is not None
    assert found.rest == total(N, number(2))
    alone = linear_index(total(FIRST, SECOND))
    assert alone is not None
    assert alone.rest == number(0)


@pytest.mark.parametrize(
    ("node", "simple"),
    [
        (total(FIRST, number(1), number(-1)), FIRST),
        (total(number(2), number(1)), number(3)),
        (times(number(2), number(3)), number(6)),
        (total(FIRST, times(number(-1), FIRST)), number(0)),
        (total(number(-1), FIRST), total(FIRST, number(-1))),
        (total(FIRST, number(1), number(-2)), total(FIRST, number(-1))),
        (total(FIRST, SECOND), total(FIRST, SECOND)),
        (total(FIRST, N), total(FIRST, N)),
        (times(number(2), FIRST), times(number(2), FIRST)),
        (times(number(1), FIRST), FIRST),
        (total(times(number(2), FIRST), number(1)), total(times(number(2), FIRST), number(1))),
    ],
)
def test_the_simplest_form(node, simple) -> None:
    assert simplify_index(node) == simple
    assert simplify_index(Add((), node.terms, span=(3, 9))).span == (3, 9) if isinstance(node, Add) else True


def test_within_agrees_with_counting_every_place() -> None:
    for a, b, rest, size in product((-2, -1, 0, 1, 2), (-1, 0, 1, 2), range(-3, 9), (1, 3, 5, 8)):
        kept = [(index, Fraction(count)) for index, count in ((FIRST, a), (SECOND, b)) if count]
        counted = LinearIndex(tuple(index for index, _ in kept), tuple(count for _, count in kept), number(rest))
        ends = [range(1, index.size + 1) for index, _ in kept]
        values = [sum(c * v for (_, c), v in zip(kept, at, strict=True)) + rest for at in product(*ends)]
        assert always_within(counted, size) is all(1 <= value <= size for value in values), (a, b, rest, size)


@pytest.mark.parametrize(
    ("node", "size", "inside"),
    [
        (total(Index((), "i", "n"), number(0)), "n", True),
        (total(Index((), "i", "n"), number(1)), "n", False),
        (total(Index((), "i", "n"), number(1)), "n+1", True),
        (total(Index((), "i", "n-1"), number(1)), "n", True),
        (total(N, number(1), times(number(-1), Index((), "i", "n"))), "n", True),
        (total(N, times(number(-1), Index((), "i", "n"))), "n", False),
        (total(N, number(2), times(number(-1), Index((), "i", "n"))), "n", False),
        (total(N, number(2), times(number(-1), Index((), "i", "n"))), "n+1", True),
        (total(N, number(-1)), "n", False),
        (total(N, number(0)), "n", True),
        (total(N, number(0)), "m", False),
        (total(N, number(0)), "n+m", True),
        (total(Index((), "i", "m"), number(0)), "n", False),
        (total(Index((), "i", "m"), Index((), "j", "n")), "m+n", True),
        (total(Index((), "i", "n"), number(0)), None, False),
        (total(Index((), "i", "n/2"), number(0)), "n", True),
    ],
)
def test_within_sizes_that_are_names(node, size, inside) -> None:
    counted = linear_index(node)
    assert counted is not None
    assert always_within(counted, size) is inside
