"""A ledger adds up its lines, numbers or symbols, and converts to JSON."""

import numpy as np
import pytest
import sympy

from qkv.cost import count, symbols
from qkv.cost.ledger import Ledger, Line, as_sizes, quotient
from qkv.errors import OptionError


def test_a_ledger_adds_up_its_lines() -> None:
    lines = Line("one", 2, 3, 5, True), Line("two", 7, 11, 13)
    ledger = Ledger("both", lines, inputs=17, outputs=19, extra=23)
    assert (ledger.flops, ledger.products, ledger.elementwise) == (9, 2, 7)
    assert (ledger.read, ledger.written, ledger.traffic, ledger.space) == (14, 18, 32, 59)
    assert ledger.intensity == 9 / 32
    assert Ledger("nothing moves", (Line("one", 5),)).intensity == float("inf")
    assert lines[0].traffic == 8
    assert ledger.line("two") is lines[1]
    with pytest.raises(OptionError, match=r"^name: .*one of one, two"):
        ledger.line("three")
    assert ledger.as_dict() == {
        "name": "both",
        "flops": 9,
        "products": 2,
        "elementwise": 7,
        "read": 14,
        "written": 18,
        "extra": 23,
        "space": 59,
        "inputs": 17,
        "outputs": 19,
        "lines": [
            {"name": "one", "flops": 2, "read": 3, "written": 5, "product": True},
            {"name": "two", "flops": 7, "read": 11, "written": 13, "product": False},
        ],
    }


def test_formulas_become_text_in_json() -> None:
    n = symbols("n")
    found = Ledger("a formula", (Line("one", n**2, product=True),), inputs=3).as_dict()
    assert found["flops"] == "n²"
    assert found["inputs"] == 3
    assert found["lines"] == [{"name": "one", "flops": "n²", "read": 0, "written": 0, "product": True}]


def test_a_ledger_again_and_again_holds_no_more() -> None:
    ledger = Ledger("once", (Line("one", 2, 3, 5, True), Line("two", 7, 11, 13)), inputs=17, outputs=19, extra=23)
    thrice = ledger.times(3)
    assert thrice == Ledger("once", (Line("one", 6, 9, 15, True), Line("two", 21, 33, 39)), 51, 57, 23)
    assert ledger.times(3, "thrice").name == "thrice"


def test_theta_of_a_quantity_that_is_none_is_refused() -> None:
    ledger = count("n d", "n d", "n d")
    with pytest.raises(OptionError, match=r"^quantity: .*flops, products"):
        ledger.theta("time")
    n, d = symbols("n d")
    assert ledger.theta() == ledger.theta("flops") == n**2 * d
    assert ledger.theta("traffic") == n * d
    assert count("n d", "m d", "m d").theta("traffic", [("n", "m")]) == symbols("m") * d


def test_names_symbols_and_foreign_integers_are_sizes() -> None:
    n = symbols("n")
    assert as_sizes("n", sympy.Symbol("n"), n, np.int64(7), 5) == (n, n, n, 7, 5)
    assert type(as_sizes(np.int64(7))[0]) is int
    assert as_sizes(True, 2.5) == (True, 2.5)
    assert type(as_sizes(True)[0]) is bool


def test_quotients_are_exact() -> None:
    n = symbols("n")
    assert quotient(2**80, 2**10) == 2**70
    assert type(quotient(12, 4)) is int
    assert quotient(n, 4) == n / 4
    assert quotient(12, n) == 12 / n
