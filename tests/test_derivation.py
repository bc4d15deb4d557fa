"""A derivation checks each step against the text before it in its chain, with the symbols of the chain."""

import pytest

from qkv.derivation import Derivation, Step, chain, describe

NUMBERS = {"q": "vector[2] = (2, 3)", "k": "vector[2] = (5, 7)"}


def kinds(derivation: Derivation) -> list[str | None]:
    return [None if verdict is None else describe(verdict)[0] for verdict in derivation.checks]


def test_a_chain_on_numbers_is_proved() -> None:
    derivation = Derivation.of(
        chain("the score", "q^T k", "2*5 + 3*7", "31", reason="component by component", value=31)
    )
    assert derivation.steps[-1].value == 31
    assert not derivation.holds  # the symbols are not declared
    derivation = Derivation.of(derivation.steps, symbols=NUMBERS)
    assert kinds(derivation) == [None, "proved", "proved"]
    assert derivation.holds
    assert derivation.proved


def test_a_wrong_step_says_why() -> None:
    derivation = Derivation.of(chain("", "k + k", "3 k"), symbols={"k": "natural"})
    kind, why = describe(derivation.checks[1])
    assert kind == "different"
    assert why
    assert not derivation.holds


def test_words_within_a_chain_do_not_hide_a_wrong_step() -> None:
    for last, right in (("10", True), ("11", False)):
        steps = (Step("2*5", relation=""), Step("", "the other term is 0"), Step(last))
        assert Derivation(steps).holds is right


def test_words_begin_a_chain_without_a_comparison() -> None:
    steps = (*chain("first", "1 + 1", "2"), *chain("a remark", reason="masked keys get weight 0"), Step("3"), Step("3"))
    assert kinds(Derivation(steps)) == [None, "proved", None, None, "proved"]


@pytest.mark.parametrize(("shown", "right"), [("0.33", True), ("0.333", True), ("0.34", False)])
def test_a_rounded_number_follows_where_its_digits_are_right(shown: str, right: bool) -> None:
    assert Derivation((Step("1/3", relation=""), Step(shown, relation="~"))).holds is right


def test_a_bound_must_be_attained() -> None:
    tight = Step("2", relation="<=", attained={"x": 1})
    loose = Step("3", relation="<=", attained={"x": 1})
    for step, right in ((tight, True), (loose, False)):
        derivation = Derivation((Step("2 x - x^2 + 1", relation=""), step), {"x": "scalar"})
        assert derivation.holds is right


def test_a_sum_of_derivations_keeps_the_symbols_of_each() -> None:
    first = Derivation((Step("s + s"), Step("2 s")), {"s": "scalar"})
    second = Derivation((Step("s^T s"), Step(r"\|s\|^2")), {"s": "vector[n]"}, shown=True)
    both = first + second
    assert both.holds
    assert both.shown
    assert kinds(both) == [None, "proved", None, "proved"]
    assert [each.holds for each in both.chains()] == [True, True]
    assert [len(each.steps) for each in both.chains()] == [2, 2]


def test_latex_has_a_line_for_each_chain() -> None:
    steps = (*chain("mean", r"\sqrt{d} / d", "d^{-1/2}"), *chain("words", reason="no formula"), Step("1/3", "", ""))
    derivation = Derivation((*steps, Step("0.33", relation="~")), {"d": "natural"})
    first, second = derivation.latex().splitlines()
    assert " = " in first
    assert second == r"\frac{1}{3} \approx 0.33"
