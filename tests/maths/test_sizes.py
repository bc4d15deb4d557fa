"""Sizes of shapes: the canonical text, and parsing it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as some

from qkv.maths.sizes import (
    canonical_size,
    names_in,
    polynomial,
    size_node,
    size_of,
    size_polynomial,
    size_value,
    whole_size,
)
from qkv.maths.tree import Number, Power, Symbol, Type
from qkv.maths.values.arithmetic import Undefined, Unevaluable

NAMES: tuple[str, ...] = ("D", "d_k", "h'", "n")


def test_sizes_are_read():
    assert names_in("h*d_k+1") == ("h", "d_k")
    assert size_value("2*d/h-1", {"d": 3, "h": 4}) == Fraction(1, 2)
    assert size_value("-n+d^2", {"d": 3, "n": 4}) == 5
    assert whole_size("n+1", {"n": 6}) == 7


def test_a_size_that_is_no_length_at_a_point():
    for size, sizes in (("d/h", {"d": 5, "h": 2}), ("n-1", {"n": 1}), ("d/h", {"d": 1, "h": 0}), ("n^13", {"n": 2})):
        with pytest.raises(Undefined):
            whole_size(size, sizes)
    with pytest.raises(Unevaluable, match="the size h has no value"):
        size_value("d/h", {"d": 1})


@pytest.mark.parametrize("text", ["", "n+", "+", "n n", "2n", "n/0", "(n+1)", "n^", "n^m", "n--1", "n*", "n + 1"])
def test_what_is_not_written_like_a_size_is_refused_by_all(text):
    for read in (size_polynomial, size_node, names_in, lambda size: size_value(size, {"n": 1, "m": 1})):
        with pytest.raises(Unevaluable, match="cannot be read"):
            read(text)


POWERS = some.dictionaries(some.sampled_from(NAMES), some.sampled_from((-2, -1, 1, 2, 3)), max_size=3)
TERMS = some.dictionaries(
    POWERS.map(lambda powers: tuple(sorted(powers.items()))),
    some.builds(Fraction, some.sampled_from((-3, -1, 1, 2)), some.sampled_from((1, 2, 3))),
    max_size=4,
)


@given(TERMS, some.tuples(*(some.integers(1, 5) for _ in NAMES)))
def test_what_is_written_is_read(terms, values):
    size, sizes = canonical_size(terms), dict(zip(NAMES, values, strict=True))
    assert size_polynomial(size) == terms
    assert polynomial(size_node(size)) == terms
    assert size_of(size_node(size)) == size
    expected = Fraction(0)
    for powers, value in terms.items():
        for name, power in powers:
            value *= Fraction(sizes[name]) ** power
        expected += value
    assert size_value(size, sizes) == expected
    assert set(names_in(size)) == {name for powers in terms for name, _ in powers}


def test_factors_of_one_name_are_one_power():
    assert dict(size_polynomial("n*n")) == {(("n", 2),): 1}
    assert dict(size_polynomial("n*n^2/n*2")) == {(("n", 2),): 2}
    assert dict(size_polynomial("n/n")) == {(): 1}
    assert size_node("n") == Symbol((), "n", Type("natural"))
    assert size_node("n^2") == Power((), Symbol((), "n", Type("natural")), Number((), Fraction(2)))
    assert Type("natural").arguments == ()
