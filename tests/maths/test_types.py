"""Declarations: types, what they imply, and what is refused."""

from __future__ import annotations

import pytest

from qkv.errors import OptionError, OptionTypeError
from qkv.maths.parsing.parse import parse
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
        ({"a": "scalar = b", "b": "scalar = a"}, "without cycles"),
        ({"a": "scalar = a + 1"}, "without cycles"),
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


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("matrix[X,n]", ("X", "n")),
        ("matrix[n,X]", ("n", "X")),
        ("matrix[X,X]", ("X", "X")),
        ("matrix[(n+1), d]", ("n+1", "d")),
        ("matrix[2(n+1), d]", None),
        ("matrix(n, d)", ("n", "d")),
        ("matrix [n, d]", ("n", "d")),
        ("vector[d_{model}]", ("d_model",)),
        (r"vector[\text{dim}]", ("dim",)),
        ("vector[n^2]", ("n^2",)),
        ("vector[2*n]", ("2*n",)),
        ("vector[d/2]", ("d/2",)),
        ("vector[n-1]", ("n-1",)),
        ("real", ()),
        ("  scalar  ", ()),
        ("index[3]", (3,)),
    ],
)
def test_sizes_are_read(text, shape) -> None:
    found = declare({"x": text}).types["x"].shape
    assert found == (("2*n+2", "d") if shape is None else shape)


@pytest.mark.parametrize(
    ("text", "arguments", "shape"),
    [
        ("map vector[d] -> scalar", (("d",),), ()),
        ("map vector[d] → vector[F]", (("d",),), ("F",)),
        ("map scalar -> scalar", ((),), ()),
        ("map real, positive, natural, nonnegative -> real", ((), (), (), ()), ()),
        ("map matrix[n, d], vector[d] -> matrix[d,n]", (("n", "d"), ("d",)), ("d", "n")),
        ("map vector(d) -> matrix(d, 2)", (("d",),), ("d", 2)),
    ],
)
def test_maps_are_read(text, arguments, shape) -> None:
    found = declare({"f": text})
    assert found.maps == {"f"}
    assert found.types["f"] == Type("map", shape, arguments=arguments)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vectors[d]",
        "vector[d",
        "matrix[]",
        "vector[d] x",
        "vector[d][n]",
        "matrix[d]",
        "matrix[d,n,m]",
        "matrix",
        "index",
        "index[n,d]",
        "scalar x",
        "scalar[]",
        "natural[3]",
        "map",
        "map vector[d]",
        "map -> scalar",
        "map vector[d] ->",
        "map vector[d] -> map",
        "map vector[d] -> index[n]",
        "map index[n] -> scalar",
        "map vector -> scalar",
        "map vector[d] x -> scalar",
        "map scalar[d] -> scalar",
        "map random scalar -> scalar",
        "map vector[d] -> scalar = 3",
        "random scalar ~ N(0, 1) = 3",
        "Vector[d]",
    ],
)
def test_what_is_no_type(text) -> None:
    with pytest.raises(OptionError) as caught:
        declare({"f": text, "x": "scalar"})
    wanted = (
        "wanted a type: scalar, positive, nonnegative, natural, vector[d], matrix[n,d], index[n], "
        "map vector[d] -> scalar, or random vector[d] ~ N(mu, sigma^2 I)."
    )
    assert str(caught.value) == f"symbols['f']: got {text!r}, {wanted}"


@pytest.mark.parametrize("text", ["random vector[d]", "scalar ~ N(0, 1)", "random matrix[d,d] ~ N(0, 1)",
                                  "random natural ~ N(0, 1)", "random index[n] ~ N(0, 1)"])  # fmt: skip
def test_what_is_random_has_a_law_and_nothing_else_has(text) -> None:
    with pytest.raises(OptionError) as caught:
        declare({"f": text})
    wanted = "wanted random scalar or random vector[d], then ~ and its law."
    assert str(caught.value) == f"symbols['f']: got {text!r}, {wanted}"


LAWS = [
    ("random scalar ~ N(0, 1)", True),
    ("random scalar ~ (0, 1)", False),
    ("random scalar ∼ N(0, 1)", True),
    (r"random scalar \sim N(0, 1)", True),
    (r"random scalar ~ \mathcal{N}(0, 1)", True),
    (r"random scalar ~ \mathcal N(0, 1)", True),
    (r"random scalar ~ \mathcal{N}\left(0, 1\right)", True),
    ("random scalar ~ 𝒩(0, 1)", True),
    ("random   scalar ~ N (0, 1)", True),
    ("random real ~ N(0, 1)", True),
    ("random scalar ~ N(0,\n  1)", True),
]


@pytest.mark.parametrize(("text", "normal"), LAWS)
def test_laws_are_read(text, normal) -> None:
    made = declare({"x": text}).types["x"]
    assert made.random
    assert made.kind == "scalar"
    law = made.law
    assert law is not None
    assert law.normal is normal
    assert (law.mean, law.covariance) == (parse("0", {}), parse("1", {}))


def test_what_stands_between_the_commas_of_a_law() -> None:
    symbols = {"A": "matrix[d,d]", "X": "vector[d]", "s": "positive", "g": "map scalar, scalar -> scalar"}
    types = declare(
        {
            **symbols,
            "p": "random vector[d] ~ N(X, s^2 A)",
            "q": "random vector[d] ~ N(A_{:,1}, A)",
            "r": "random scalar ~ N(g(s, s), s)",
            "t": "random vector[2] ~ N([1, 2], [[1, 0], [0, s]])",
            "v": "random vector[d] ~ N(0, 1)",
            "w": "random vector[d] ~ N(2 s, 3 s)",
        }
    ).types
    laws = {name: types[name].law for name in "pqrtvw"}
    for name, mean, covariance in [
        ("p", "X", "s^2 A"),
        ("q", "A_{:,1}", "A"),
        ("r", "g(s, s)", "s"),
        ("t", "(1, 2)", "[[1, 0], [0, s]]"),
        ("v", r"\mathbf{0}_d", "1 I_d"),
        ("w", r"2 s \mathbf{1}_d", "3 s I_d"),
    ]:
        law = laws[name]
        assert law is not None
        assert law.mean == parse(mean, symbols), name
        assert law.covariance == parse(covariance, symbols), name


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        ({"x": "random scalar ~ N(0)"}, "symbols['x']: got 'N(0)', wanted a law: N(mean, covariance)"),
        ({"x": "random scalar ~ N(0, 1, 2)"}, "wanted a law: N(mean, covariance) or (mean, covariance)."),
        ({"x": "random scalar ~ N 0, 1"}, "wanted a law: N(mean, covariance) or (mean, covariance)."),
        ({"x": "random scalar ~ N(z, 1)"}, "symbols['x']: got 'z', wanted something readable: z is not declared"),
        ({"x": "scalar = (1"}, "symbols['x']: got '(1', wanted something readable: ( is never closed"),
        ({"x": "scalar = (1, 2)"}, "symbols['x']: got (1, 2), which is a vector of size 2, wanted a scalar."),
        ({"x": "vector[3] = (1, 2)"}, "got (1, 2), which is a vector of size 2, wanted a vector of size 3."),
        ({"i": "index[3] = (1, 2)"}, "got (1, 2), which is a vector of size 2, wanted a scalar."),
        ({"x": "vector[0]"}, "symbols['x']: got the size '0', wanted a whole number from 1, d or n+1."),
        ({"x": "vector[-1]"}, "got the size '-1', wanted a whole number from 1, d or n+1."),
        ({"x": "vector[1.5]"}, "got the size '1.5', wanted a whole number from 1, d or n+1."),
        ({"x": "vector[1/2]"}, "got the size '1/2', wanted a whole number from 1, d or n+1."),
        ({"x": "vector[log d]"}, "got the size 'log d'"),
        ({"x": "vector[d)"}, "wanted a type"),
        ({"x": "vector[]"}, "symbols['x']: got '', wanted something readable: the text is empty."),
        ({"x": "vector()"}, "symbols['x']: got '', wanted something readable: the text is empty."),
        ({"x": "matrix[n,]"}, "symbols['x']: got '', wanted something readable: the text is empty."),
        ({"x": "map vector[] -> scalar"}, "symbols['x']: got '', wanted something readable: the text is empty"),
        ({"x": "scalar" + " " * 500}, "symbols['x']: got 506 characters, wanted at most 500."),
        ({"a": "scalar = b", "b": "scalar = a"}, "got a → b → a, wanted definitions without cycles"),
        ({"x y z!": "scalar"}, "symbols: got 'x y z!', wanted a name such as mu, W_Q, d_model or x'."),
        ({"x": "scalar", " x": "scalar"}, "symbols: got ' x', wanted each name once, and x is declared already."),
        ({f"x_{i}": "scalar" for i in range(201)}, "symbols: got 201 names, wanted at most 200."),
        ({"s": "scalar = " + "-(1+" * 20 + "1" + ")" * 20}, "got a deep definition, wanted one that is less nested."),
    ],
)
def test_reasons(symbols, said) -> None:
    with pytest.raises(OptionError) as caught:
        declare(symbols)
    assert said in str(caught.value)


def test_limits_are_reached() -> None:
    assert len(declare({f"x_{i}": "scalar" for i in range(200)}).types) == 200
    assert declare({"x": "scalar" + " " * 494}).types["x"] == Type("scalar")
    chain = {f"x_{i}": f"scalar = x_{i + 1}" for i in range(20)} | {"x_20": "scalar"}
    assert declare(chain).types["x_0"].definition is not None


def test_names_that_only_sizes_mention() -> None:
    symbols = {
        "h": "natural",
        "k": "natural",
        "A": "matrix[hk, n_1 + d']",
        "f": "map vector[p], matrix[q, r] -> vector[s]",
    }
    found = declare(symbols)
    assert set(found.types) == {*symbols, "n_1", "d'", "p", "q", "r", "s"}
    assert len(found.types) == 10
    assert found.types["A"].shape[0] == "h*k"
    assert list(found.types)[:4] == ["h", "k", "A", "f"]
    assert "h" in found.types
    assert "hk" not in found.types
    assert all(found.types[name] == Type("natural") for name in "pqrs")
    assert declare(found) is found


@pytest.mark.parametrize("size", ["d_{i+1}", "d_{i-1}", "d_{i/j}", "d_{2.5}", "d_{:}", "d_{(i)}", "d_{|i|}", "d_{i<j}"])
def test_a_size_that_is_no_name_for_its_lower_index_is_refused(size) -> None:
    with pytest.raises(OptionError, match="wanted a whole number from 1, d or n\\+1"):
        declare({"x": f"vector[{size}]"})


SYMBOLS = {
    "mu": "vector[d]",
    "A": "matrix[d,d]",
    "B": "matrix[d,d]",
    "S": "matrix[d,d]",
    "s": "positive",
}


@pytest.mark.parametrize(
    "covariance",
    ["S", "2 S", "S/2", "s^2 I", "A A^T", "A^T A", "A S A^T", "A S A^T + I", "S + s^2 I", "diag(mu)", r"\mu\mu^T"],
)
def test_a_covariance_that_is_symmetric_by_its_form(covariance):
    declare({**SYMBOLS, "q": f"random vector[d] ~ N(mu, {covariance})"})


@pytest.mark.parametrize("covariance", ["A + B", "A B", "A B A", "A^2", "A S B^T", "A + B + I"])
def test_one_that_is_not(covariance):
    with pytest.raises(OptionError, match=r"need not be symmetric.*declare a name"):
        declare({**SYMBOLS, "q": f"random vector[d] ~ N(mu, {covariance})"})


def test_sums_and_products_of_what_are_covariances_themselves():
    laws = {"q": "random vector[d] ~ N(mu, A)", "k": "random vector[d] ~ N(mu, B)"}
    for covariance in ("A + B", "A B A", "A^2"):
        declare({**SYMBOLS, **laws, "v": f"random vector[d] ~ N(mu, {covariance})"})


@pytest.mark.parametrize(
    "symbols",
    [
        {"q": "random scalar ~ N(0, 1)", "k": "random scalar ~ N(q, 1)"},
        {"q": "random scalar ~ N(0, -1)"},
        {"q": "random vector[d] ~ N(0, -I)"},
        {"q": "random vector[2] ~ N(0, [[1, 2], [2, 3]])"},
        {"p": "positive = -1"},
        {"p": "positive = 0"},
        {"p": "nonnegative = -1/2"},
        {"n": "natural = 1.5"},
        {"v": "vector[1.5]"},
    ],
)
def test_numbers_out_of_their_domain_and_laws_that_lean_on_each_other(symbols):
    with pytest.raises(OptionError):
        declare(symbols)


def test_numbers_at_the_edge_of_their_domain():
    declare({"a": "nonnegative = 0", "q": "random scalar ~ N(0, 0)", "n": "natural = 3", "p": "positive = 1/2"})
