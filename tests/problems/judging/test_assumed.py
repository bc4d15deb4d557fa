"""Conditions on sizes, read from words and signs."""

import pytest

from qkv.maths import compare
from qkv.problems.judging.assumed import conditions_in

SIZES = dict.fromkeys(("N", "D", "n_s", "n_t"), "natural")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("as long as N is at least D", "N ≥ D"),
        (r"for $N \ge D$", "N ≥ D"),
        ("once D <= N", "N ≥ D"),
        ("with N = D", "N = D"),
        (r"$n_s = n_t = n$", "n_s = n_t = n"),
        ("n_{s} ≈ n_{t}", "n_s = n_t"),
    ],
)
def test_a_condition_is_read(text, words):
    assert words in [found for found, _ in conditions_in(text, SIZES)]


@pytest.mark.parametrize("text", ["", "O(N D^2)", "N D", "time = O(N)", "as large as you like", "= = N", "N^2 > D^2"])
def test_no_condition(text):
    assert not list(conditions_in(text, SIZES))


def test_what_holds_under_it():
    ((_, types),) = conditions_in("N >= D", SIZES)
    assert compare("O(N D^2 + D^3)", "O(N D^2)", types).kind == "equal"
    assert compare("O(N D^2 + D^3)", "O(D^3)", types).kind == "different"
