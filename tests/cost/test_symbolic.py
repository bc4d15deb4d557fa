"""Θ-classes: constants and dominated terms are dropped, and nothing else."""

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from qkv.cost.symbolic import Theta, as_size, symbols, text, theta
from qkv.errors import OptionError, QkvError

b, h, n, d = symbols("b h n d")


def test_constants_and_smaller_terms_go() -> None:
    assert theta(7 * n**2 + 3 * n + 5) == n**2
    assert theta(2 * n * d + 5 * d**2) == n * d + d**2


def test_a_size_below_the_fraction_is_at_least_one() -> None:
    assert theta(d**2 + d**2 / h) == d**2
    assert theta(b * d + b * n * d / h) == b * d + b * n * d / h, "n may be smaller or larger than h"


def test_what_is_at_most_something_else_is_used() -> None:
    assert theta(b * n * d + b * h * n) == b * n * d + b * h * n
    assert theta(b * n * d + b * h * n, at_most=[(h, d)]) == b * n * d


def test_subtracted_terms_may_not_decide() -> None:
    w = symbols("w")
    assert theta(n * w - w**2 / 2, at_most=[(w, n)]) == n * w
    with pytest.raises(OptionError, match="at_most"):
        theta(n * w - w**2 / 2)


def test_no_sum_of_powers_is_refused() -> None:
    with pytest.raises(OptionError, match="sum of products"):
        theta(2**n)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=5), st.integers(1, 99))
def test_theta_is_within_constants(powers: list[tuple[int, int, int]], factor: int) -> None:
    """Over all sizes up to 10^6 the formula stays between its class and so many times its class."""
    formula = sum(factor * b**i * n**j * d**k for i, j, k in powers)
    found = theta(formula).formula
    for values in ((1, 1, 1), (10**6, 1, 1), (1, 10**6, 1), (1, 1, 10**6), (10**6, 10**3, 7)):
        at = dict(zip((b, n, d), values, strict=True))
        exact, bound = formula.subs(at), (found.subs(at) if hasattr(found, "subs") else found)
        assert bound <= exact <= len(powers) * factor * bound
    assert theta(found) == found


def test_text_is_sorted_by_degree_and_shows_fractions() -> None:
    assert text(n / 2 + b * n**2 * 3 - d) == "3·b·n² - d + 1/2·n"
    assert text(b * n * d / h) == "b·d·n/h"
    assert text(n / (b * h)) == "n/(b·h)"
    assert text(0) == "0"
    assert text(12) == "12"
    assert repr(Theta(n**2 * d)) == "Θ(d·n²)"


def test_relations_are_transitive() -> None:
    assert theta(d**2 + h * n, at_most=[(h, n), (n, d)]) == d**2
    assert theta(d**2 + h * n, at_most=[("n", "d"), ("h", "n")]) == d**2


@pytest.mark.parametrize("at_most", [("h", "d"), "h<=d", [("h",)], [("h", 8)], [(h * d, n)], None, 5, [("h d", "d")]])
def test_relations_that_are_none_are_refused(at_most) -> None:
    with pytest.raises(QkvError):
        theta(d**2 + h * n, at_most=at_most)


@pytest.mark.parametrize("text_given", ["n**2", "__import__('os').getpid()", "", "open('x','w')"])
def test_text_is_never_evaluated(text_given: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for function in (theta, text):
        with pytest.raises(QkvError, match="SymPy expression"):
            function(text_given)
    assert not list(tmp_path.iterdir())


def test_a_user_defined_symbol_is_the_size_of_that_name() -> None:
    other = sympy.Symbol("n")
    assert as_size(other) == n
    assert as_size(2 * other + sympy.Symbol("d", real=True)) == 2 * n + d


@pytest.mark.parametrize("name", ["1x", "", "n+p", "-2", "2.5", "n n", "x:3", "n[0]"])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(QkvError):
        as_size(name)
