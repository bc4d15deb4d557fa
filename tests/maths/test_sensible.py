"""Declarations that can be read and make no sense are refused with what is the matter."""

from __future__ import annotations

import pytest

from qkv.errors import OptionError
from qkv.maths.types import declare

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
