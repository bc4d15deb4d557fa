"""Sizes that are not known yet, how deep a tree is, and how shapes are said."""

from fractions import Fraction

import pytest

from qkv.maths.parsing.parse import parse
from qkv.maths.parsing.shapes import (
    UnknownSize,
    can_unify,
    depth,
    describe_shape,
    describe_size,
    resolve_sizes,
    resolved_size,
    unify,
    unify_shapes,
)
from qkv.maths.tree import Add, Index, Number, Special, Symbol, Type


def test_two_unknown_sizes_become_one() -> None:
    a, b, c = UnknownSize(), UnknownSize(), UnknownSize()
    assert can_unify(a, b)
    assert a.link is None
    assert unify(a, a)
    assert a.link is None
    assert unify(a, b)
    assert unify(c, b)
    assert unify("d", c)
    assert [resolved_size(size) for size in (a, b, c)] == ["d", "d", "d"]
    assert unify(a, "d")
    assert not unify(a, "n")
    assert not can_unify(a, 3)
    assert can_unify(b, c)
    assert can_unify("n", UnknownSize())
    assert can_unify(UnknownSize(), 7)


@pytest.mark.parametrize(("a", "b", "same"), [(3, 3, True), ("d", "d", True), (3, 4, False), ("d", "n", False)])
def test_sizes_that_are_known(a, b, same) -> None:
    assert can_unify(a, b) is unify(a, b) is same


def test_shapes_fit_wholly_or_not_at_all() -> None:
    a, b = UnknownSize(), UnknownSize()
    assert not unify_shapes((a, "d"), ("n", "m"))  # pyright: ignore
    assert a.link is None
    assert not unify_shapes((a,), ("n", "m"))  # pyright: ignore
    assert unify_shapes((a, "d"), ("n", b))  # pyright: ignore
    assert (resolved_size(a), resolved_size(b)) == ("n", "d")
    assert unify_shapes((), ())
    twice = UnknownSize()
    assert not unify_shapes((twice, twice), ("n", "m"))  # pyright: ignore


@pytest.mark.parametrize(
    ("size", "said"),
    [(3, "3"), ("d", "d"), ("mu", "μ"), ("2*alpha+n", "2*α+n"), (UnknownSize(), "?"), ("d_model", "d_model")],
)
def test_sizes_are_said(size, said) -> None:
    assert describe_size(size) == said


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((), "a scalar"),
        (("d",), "a vector of size d"),
        ((1, "d"), "a row of size d"),
        (("d", 1), "a d×1 matrix"),
        (("n", "d"), "an n×d matrix"),
        ((8, 3), "an 8×3 matrix"),
        ((18, 3), "a 18×3 matrix"),
        (("nu", 3), "a ν×3 matrix"),
        ((2, 3), "a 2×3 matrix"),
    ],
)
def test_shapes_are_said(shape, said) -> None:
    assert describe_shape(shape) == said


@pytest.mark.parametrize("letter", "8aefhilmnorsxAEFHILMNORSX")
def test_letters_that_are_spoken_with_a_vowel(letter) -> None:
    assert describe_shape((letter, "d")) == f"an {letter}×d matrix"


@pytest.mark.parametrize("letter", "2345679bcdgjkpqtuvwyzBCDGJKPQTUVWYZ")
def test_letters_that_are_not(letter) -> None:
    assert describe_shape((letter, "d")) == f"a {letter}×d matrix"


def test_depth_counts_levels_with_definitions() -> None:
    one = Number((), Fraction(1))
    two = Add((), (one, one))
    assert [depth(node) for node in (one, two, Add((), (one, two)), Add((), (two, one)))] == [1, 2, 3, 3]
    defined = Symbol((), "a", Type("scalar", definition=Add((), (one, two))))
    assert depth(defined) == 4
    assert depth(Add((), (defined, one))) == 5
    assert depth(Symbol((), "a", Type("scalar"))) == 1
    deep = one
    for _ in range(200):
        deep = Add((), (deep, one))
    assert depth(deep) == 81
    assert depth(deep, 10) == 11
    assert depth(deep, 300) == 201


def test_a_part_that_stands_in_two_depths_counts_in_the_deeper() -> None:
    one = Number((), Fraction(1))
    shared = Add((), (one, one))
    for terms in ((shared, Add((), (Add((), (shared, one)), one))), (Add((), (Add((), (shared, one)), one)), shared)):
        assert depth(Add((), terms)) == 5


def test_sizes_are_settled_all_the_way_down() -> None:
    size = UnknownSize()
    ones = Special((size,), "ones", span=(2, 3))  # pyright: ignore
    index = Index((), "i", size, span=(5, 6))  # pyright: ignore
    missing = []
    tree = Add((size,), (ones, index), span=(0, 9))  # pyright: ignore
    resolve_sizes(tree, missing.append)
    assert missing == [ones, index]
    unify(size, "d")
    missing.clear()
    done = resolve_sizes(tree, missing.append)
    assert missing == []
    assert done == Add(("d",), (Special(("d",), "ones"), Index((), "i", "d")))
    assert (done.span, done.terms[0].span, done.terms[1].span) == ((0, 9), (2, 3), (5, 6))  # pyright: ignore


def test_sizes_are_settled_in_conditions() -> None:
    total = parse(r"\sum_{i<j} s_i s_j", {"s": "vector[n]"})
    assert [index.size for _, *pair in total.conditions for index in pair] == ["n", "n"]  # pyright: ignore
