"""What trees say of their names, and sizes as polynomials."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.algebra.functions import power
from qkv.maths.algebra.indices import Scope, scope_of, size_poly
from qkv.maths.algebra.monomials import Head, NotNormal, add, atom, multiply, number, scale
from qkv.maths.parsing.parse import parse

NAMES = {
    "x": "scalar", "s": "vector[n]", "K": "matrix[n,d/h]", "n": "natural", "y": "scalar = x^2", "z": "scalar = y + 1",
    "mu": "vector[n]", "Sigma": "matrix[n,n]", "q": "random vector[n] ~ N(mu, Sigma)",
    "r": "vector[n] = q + s", "phi": "map vector[e] -> vector[f]", "v": "vector[e]", "g": "natural = 2 n",
}  # fmt: skip
N, D, H = (atom(Head("name", name, (), "natural")) for name in "ndh")


def test_names_of_sizes_are_naturals() -> None:
    assert scope_of(parse("s", NAMES)).naturals == {"n"}
    assert scope_of(parse("K", NAMES)).naturals == {"n", "d", "h"}
    assert scope_of(parse(r"\phi(v)", NAMES)).naturals == {"e", "f"}
    assert scope_of(parse(r"\sum_{i=1}^{n} i", {"n": "natural"})).naturals == {"n"}
    assert scope_of(parse("x", NAMES)).naturals == set()
    assert scope_of(parse("x", NAMES), parse("s", NAMES)).naturals == {"n"}


def test_definitions_and_laws_are_gone_through() -> None:
    scope = scope_of(parse("z + r_1", NAMES))
    assert set(scope.definitions) == {"z", "y", "r"}
    assert set(scope.laws) == {"q"}
    assert scope.symmetric == {"Sigma"}
    assert scope.naturals == {"n"}
    assert scope_of(parse("s_1", NAMES)).laws == {}


def test_scopes_inside_each_other() -> None:
    scope = Scope(naturals={"n"})
    inner = scope.within({"i": ("o", 1)}).within({"j": ("c", 2)})
    assert inner.bound == {"i": ("o", 1), "j": ("c", 2)}
    assert inner.within({"i": ("c", 3)}).bound == {"i": ("c", 3), "j": ("c", 2)}
    assert inner.outside().bound == {}
    assert inner.naturals == inner.outside().naturals == {"n"}
    held = inner.holding("x").holding("y")
    assert held.held == {"x", "y"}
    assert held.bound == inner.bound
    assert scope.bound == {}


@pytest.mark.parametrize(
    ("size", "poly"),
    [
        (3, number(3)),
        ("n", N),
        ("n+1", add(N, number(1))),
        ("n-2", add(N, number(-2))),
        ("2*n", scale(N, 2)),
        ("d/h", multiply(D, power(H, -1))),
        ("n^2", multiply(N, N)),
        ("n*d/2", scale(multiply(N, D), Fraction(1, 2))),
        (0, {}),
    ],
)
def test_sizes(size: int | str, poly: dict) -> None:
    assert size_poly(size, Scope()) == poly


def test_sizes_that_are_defined_are_what_they_stand_for() -> None:
    scope = scope_of(parse("g", NAMES))
    assert size_poly("g", scope) == scale(N, 2)
    assert size_poly("g+n", scope) == scale(N, 3)
    with pytest.raises(NotNormal, match="cannot be read"):
        size_poly("n+", Scope())
