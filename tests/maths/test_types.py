"""Declarations: what types say, what they imply, and what is refused."""

import pytest

from qkv.errors import OptionError, OptionTypeError
from qkv.maths.reading import parse
from qkv.maths.tree import Multiply, Special, Type
from qkv.maths.types import declare


@pytest.mark.parametrize(
    ("text", "kind", "shape"),
    [
        ("scalar", "scalar", ()),
        ("positive", "positive", ()),
        ("nonnegative", "nonnegative", ()),
        ("natural", "natural", ()),
        ("vector[d]", "vector", ("d",)),
        (" vector [ d ] ", "vector", ("d",)),
        ("vector(7)", "vector", (7,)),
        ("matrix[n,d]", "matrix", ("n", "d")),
        ("matrix[n + 1, 2d]", "matrix", ("n+1", "2*d")),
        ("matrix[1+n, d/h]", "matrix", ("n+1", "d/h")),
        ("matrix[3, d_model]", "matrix", (3, "d_model")),
        ("index[n]", "index", ("n",)),
    ],
)
def test_types_are_read(text, kind, shape) -> None:
    made = declare({"x": text}).types["x"]
    assert (made.kind, made.shape) == (kind, shape)


def test_names_have_one_spelling() -> None:
    written = (r"\mu", "μ", r"\boldsymbol{\mu}", r"\mu_q", r"d_{\text{model}}", "x'", r"\hat{y}", "W_{Q}")
    for text in written:
        assert parse(text, {text: "scalar"}).shape == ()
    assert set(declare({r"\mu_{q}": "scalar", "μ": "scalar"}).types) == {"mu_q", "mu"}


def test_sizes_are_naturals_unless_declared() -> None:
    types = declare({"Q": "matrix[n,d_k]", "phi": "map vector[D] -> vector[F+1]"}).types
    assert {types[name].kind for name in ("n", "d_k", "D", "F")} == {"natural"}


def test_a_size_that_is_defined_is_its_definition() -> None:
    symbols = {"h": "natural", "d_k": "natural", "m": "natural = h d_k", "W": "matrix[m,m]", "Z": "matrix[n, h d_k]"}
    assert parse("Z W", symbols).shape == parse("Z", symbols).shape


def test_laws() -> None:
    def declared(text: str) -> Type:
        return declare({"mu": "vector[d]", "s": "positive", "S": "matrix[d,d]", "x": text}).types["x"]

    law = declared("random vector[d] ~ N(mu, s^2 I)").law
    assert law is not None
    assert law.normal
    assert (law.mean.shape, law.covariance.shape) == (("d",), ("d", "d"))
    loose = declared("random vector[d] ~ (0, S)").law
    assert loose is not None
    assert not loose.normal
    assert loose.mean == Special(("d",), "zeros")
    short = declared("random vector[d] ∼ \\mathcal{N}(s, s^2)").law
    assert short is not None
    assert isinstance(short.mean, Multiply)
    assert short.mean.factors[-1] == Special(("d",), "ones")
    assert short.covariance == law.covariance
    assert declared("random scalar ~ N(0, s^2)").law is not None


def test_maps_and_definitions() -> None:
    made = declare({"phi": "map vector[d], matrix[n,d] -> scalar"}).types["phi"]
    assert (made.arguments, made.shape) == ((("d",), ("n", "d")), ())
    symbols = {"s": "vector[n]", "a": "vector[n] = softmax(s)", "c": "positive = 1", "b": "vector[n] = c a"}
    types = declare(symbols).types
    assert types["b"].definition is not None
    assert types["b"].definition.shape == ("n",)


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        ({"x": "vectr[d]"}, "wanted a type"),
        ({"x": "vector"}, "wanted a type"),
        ({"x": "vector[d,n]"}, "wanted a type"),
        ({"x": "vector in R^d"}, "wanted a type"),
        ({"x": "scalar[d]"}, "wanted a type"),
        ({"x": "vector[0]"}, "whole number from 1"),
        ({"x": "vector[sqrt(d)]"}, "whole number from 1"),
        ({"2x": "scalar"}, "wanted a name"),
        ({"mu": "scalar", "μ": "scalar"}, "declared already"),
        ({"x": "random vector[d]"}, "its law"),
        ({"x": "vector[d] ~ N(0, I)"}, "its law"),
        ({"x": "random vector[d] ~ U(0, 1)"}, "a law"),
        ({"m": "vector[n]", "x": "random vector[d] ~ N(m, I)"}, "a mean that is a vector of size n"),
        ({"m": "vector[d]", "x": "random vector[d] ~ N(m, m)"}, "a covariance that is a vector"),
        ({"a": "scalar = b", "b": "scalar = a"}, "lead back"),
        ({"a": "scalar = a + 1"}, "lead back"),
        ({"s": "vector[n]", "a": "scalar = s"}, "which is a vector of size n"),
        ({"a": "scalar = z"}, "z is not declared"),
        ({"f": "map vector[d]"}, "wanted a type"),
        ({f"x_{i}": "scalar" for i in range(201)}, "at most 200"),
    ],
)
def test_what_makes_no_sense_is_refused(symbols, said) -> None:
    with pytest.raises(OptionError, match="symbols") as caught:
        declare(symbols)
    assert said in str(caught.value)


@pytest.mark.parametrize("symbols", [None, ["x"], {"x": 3}, {3: "scalar"}])
def test_symbols_are_texts(symbols) -> None:
    with pytest.raises(OptionTypeError, match="symbols"):
        declare(symbols)


def test_a_long_chain_of_definitions_is_refused_and_not_followed() -> None:
    chain = {f"x_{i}": f"scalar = x_{i + 1} + 1" for i in range(150)} | {"x_150": "scalar"}
    with pytest.raises(OptionError):
        declare(chain)


def test_declarations_are_read_once() -> None:
    assert declare({"x": "vector[d]"}) is declare({"x": "vector[d]"})
