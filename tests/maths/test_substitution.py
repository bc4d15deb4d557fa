"""Replacing names, in definitions and laws too."""

from __future__ import annotations

import pytest

from qkv.maths.substitution import free_indices, names, substitute
from qkv.maths.tree import Add, Derivative, Expect, Index, Law, Multiply, Part, Sum, Symbol, Type

X, Y = (Symbol((), name, Type("scalar")) for name in "xy")
U = Symbol(("d",), "u", Type("vector", ("d",)))


def test_definitions_and_laws_are_gone_through():
    random = Symbol((), "r", Type("scalar", law=Law(X, X, True)))
    defined = Symbol((), "z", Type("scalar", definition=Add((), (X, random))))
    assert names(defined) == {"z", "x", "r"}
    changed = substitute(Expect((), defined), {"x": Y})
    assert names(changed) == {"z", "y", "r"}
    assert substitute(changed, {"y": X}) == Expect((), defined)


def test_a_name_that_is_differentiated_by_stays():
    with pytest.raises(ValueError, match="differentiated"):
        substitute(Derivative((), X, X), {"x": Add((), (Y, Y))})
    assert substitute(Derivative((), X, X), {"x": Y}) == Derivative((), Y, Y)


def test_free_indices_are_those_that_no_sum_binds():
    i, j = Index((), "i", "d"), Index((), "j", "d")
    body = Multiply((), (Part((), U, (i,)), Part((), U, (j,))))
    assert list(free_indices(body)) == ["i", "j"]
    assert list(free_indices(Sum((), (i,), body))) == ["j"]
    assert list(free_indices(Sum((), (i, j), body))) == []
