"""Substitution of names in trees, definitions and laws, and rebuilding every kind of node."""

from __future__ import annotations

import pytest

from qkv.maths.parsing.parse import parse
from qkv.maths.tree import (
    Add,
    Derivative,
    Expect,
    Index,
    Law,
    Multiply,
    Part,
    Relation,
    Sum,
    Symbol,
    Type,
    children,
    free_indices,
    names,
    parts_of,
    rebuilt,
    substitute,
    symbols_of,
    walk,
)

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
    with pytest.raises(ValueError, match="with respect to which a derivative"):
        substitute(Derivative((), X, X), {"x": Add((), (Y, Y))})
    assert substitute(Derivative((), X, X), {"x": Y}) == Derivative((), Y, Y)


def test_free_indices_are_those_that_no_sum_binds():
    i, j = Index((), "i", "d"), Index((), "j", "d")
    body = Multiply((), (Part((), U, (i,)), Part((), U, (j,))))
    assert list(free_indices(body)) == ["i", "j"]
    assert list(free_indices(Sum((), (i,), body))) == ["j"]
    assert list(free_indices(Sum((), (i, j), body))) == []


NAMES = {
    "x": "scalar", "y": "scalar", "u": "vector[d]", "v": "vector[d]", "A": "matrix[d,d]", "s": "vector[n]",
    "q": "random vector[d] ~ N(u, A)", "g": "map vector[d] -> scalar", "z": "scalar = x + y", "i": "index[n]",
}  # fmt: skip
EVERY = [
    "(x, y)", "x + y", "x y", r"\max(x, y)", "x = y", "x < y", "x/y", "x^y", "A u", "u v^T", r"u \odot v",
    r"\delta_{ij} s_i s_j", "Cov(q, q)", "A^T", "E[q]", r"\pm x", "O(x)", "A_{12}", "A_{1,:}", "u_1",
    r"\frac{\partial x^2}{\partial x}", r"\sum_i s_i", r"\sum_{i<j} s_i s_j", r"\prod_{i=1}^n s_i", "g(u)", r"\|u\|",
    r"\sum_{j<i} s_j",
]  # fmt: skip


@pytest.mark.parametrize("text", EVERY)
def test_every_kind_of_node_is_rebuilt(text):
    node = parse(text, NAMES)
    seen = []

    def noted(child):
        seen.append(child)
        return child

    assert rebuilt(node, noted) == node
    kept = node.indices if isinstance(node, Sum) else ()
    below, met = ([child for child in some if child not in kept] for some in (children(node), seen))
    assert sorted(map(repr, below)) == sorted(map(repr, met))


@pytest.mark.parametrize("text", EVERY)
def test_names_are_replaced_wherever_they_stand(text):
    node = parse(text, NAMES)
    other = {name: Symbol(s.shape, f"{name}_1", s.type) for name, s in symbols_of(node).items() if name in "xyusvA"}
    changed = substitute(node, other)
    assert not set(other) & names(changed)
    assert {symbol.name for symbol in other.values()} <= names(changed)
    back = {symbol.name: symbols_of(node)[name] for name, symbol in other.items()}
    assert substitute(changed, back) == node


def test_members_of_a_chain_are_changed_one_by_one():
    chain = Relation((), (X, Y, X), ("=", "<="))
    assert rebuilt(chain, lambda node: Y) == Relation((), (Y, Y, Y), ("=", "<="))
    assert substitute(chain, {"x": Y}) == Relation((), (Y, Y, Y), ("=", "<="))


def test_what_is_walked_is_in_reading_order():
    node = parse("x + z y + g(u) q_1", NAMES)
    assert list(symbols_of(node)) == ["x", "z", "y", "g", "u", "q", "A"]
    assert [n.name for n in walk(parse("y + x y", NAMES)) if isinstance(n, Symbol)] == ["y", "x", "y"]
    assert list(symbols_of(parse("y", NAMES), parse("x", NAMES))) == ["y", "x"]
    random = parse("q", NAMES)
    assert [part.name for part in parts_of(random)] == ["u", "A"]
    assert parts_of(parse("x", NAMES)) == ()
    assert parts_of(parse("z", NAMES)) == (parse("z", NAMES).type.definition,)


def test_free_indices_of_definitions_and_conditions():
    assert list(free_indices(parse("u_k v_l", NAMES))) == ["k", "l"]
    assert list(free_indices(parse("u_k", NAMES), parse("v_l u_k", NAMES))) == ["k", "l"]
