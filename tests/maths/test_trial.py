"""How long points are tried, what is said where they come to no end, and how a counterexample is made simple."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.comparison import trial
from qkv.maths.comparison.trial import (
    Outcome,
    decide,
    differ,
    differing_values,
    is_proved,
    is_slow,
    may_be_undefined,
    simplified,
    try_as_sets,
    try_points,
    try_with,
    whole_power,
)
from qkv.maths.parsing.parse import parse
from qkv.maths.values.arithmetic import Undefined, Unevaluable
from qkv.maths.values.points import Point, vocabulary

S = {
    "x": "scalar",
    "y": "scalar",
    "c": "positive",
    "n": "natural",
    "u": "vector[d]",
    "i": "index[d]",
    "A": "matrix[d,d]",
    "q": "random vector[d] ~ N(u, I)",
    "f": "map scalar -> scalar",
}


def tree(text: str):
    return parse(text, S)


class Asked:
    """An answer that is given at every point, and how often it was asked for."""

    def __init__(self, *answers) -> None:
        self.answers, self.places = answers, []

    def __call__(self, place: Point):
        self.places.append(place)
        answer = self.answers[min(len(self.places), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("text", "times"), [("x", 10), ("x^2 u", 10), ("|x|", 60), (r"\max(x, y)", 60), ("2", 1), ("|-2|", 1), ("n", 10)]
)
def test_how_often_two_have_to_agree(text, times) -> None:
    asked = Asked(True)
    outcome = try_with(vocabulary(tree(text)), asked, lambda place: None)
    assert (outcome.equal, outcome.evidence, outcome.valued) == (True, "tested", True)
    assert len(asked.places) == times


def test_enough_and_most_are_taken_as_they_are_given() -> None:
    words = vocabulary(tree("x + y"))
    asked = Asked(True)
    assert try_with(words, asked, lambda place: None, enough=3).equal
    assert len(asked.places) == 3
    asked = Asked(True)
    outcome = try_with(words, asked, lambda place: None, most=5)
    assert (outcome.equal, outcome.why) == (None, "there are too few points at which both have a value")
    assert outcome.valued
    assert len(asked.places) == 5
    assert try_with(words, Asked(True), lambda place: None, most=6).equal
    asked = Asked(True)
    assert try_with(vocabulary(tree("u^T u")), asked, lambda place: None, enough=1).equal
    assert len({place.sizes["d"] for place in asked.places}) == 3
    asked = Asked(True)
    assert try_with(vocabulary(tree("u^T u")), asked, lambda place: None, enough=1, fixed={"d": 2}).equal
    assert len(asked.places) == 1


def test_one_difference_is_enough() -> None:
    asked = Asked(True, True, False)
    outcome = try_with(vocabulary(tree("x")), asked, lambda place: place)  # pyright: ignore
    assert (outcome.equal, outcome.evidence, outcome.valued) == (False, "refuted", True)
    assert outcome.counterexample is asked.places[2]
    assert len(asked.places) == 3


def test_what_is_in_the_way_is_said() -> None:
    words = vocabulary(tree("x"))
    asked = Asked(Undefined("nowhere"))
    outcome = try_with(words, asked, lambda place: None)
    assert (outcome.equal, outcome.why, outcome.valued) == (None, "nowhere", False)
    assert len(asked.places) == 50
    asked = Asked(Unevaluable("no way"))
    outcome = try_with(words, asked, lambda place: None)
    assert (outcome.equal, outcome.why, outcome.valued) == (None, "no way", True)
    assert len(asked.places) == 8
    outcome = try_with(words, Asked(None), lambda place: None)
    assert outcome.why == "the digits that qkv computes with do not tell the two apart"
    assert (outcome.equal, outcome.valued) == (None, True)
    outcome = try_with(vocabulary(tree("|x|")), asked := Asked(Undefined("nowhere")), lambda place: None)
    assert len(asked.places) == 90
    some = Asked(Undefined("here not"), True, True, True, True, True, True, Undefined("here not"))
    assert try_with(words, some, lambda place: None).equal
    few = Asked(Undefined("here not"), True, True, True, True, True, Undefined("here not"))
    assert try_with(words, few, lambda place: None).equal is None
    later = Asked(True, Unevaluable("no way"))
    assert try_with(words, later, lambda place: None).equal is None
    assert len(later.places) == 50


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("E[e^{q_1}]", True),
        ("Var(e^{q_1})", True),
        (r"E[\|q\|]", True),
        (r"E[\|q\|^3]", True),
        (r"E[\|q\|^2]", False),
        (r"E[\|q\|^4]", False),
        ("E[sum(q)]", False),
        ("E[tr(q q^T)]", False),
        ("E[diag(q)]", False),
        ("E[q^T q]", False),
        ("e^x", False),
        (r"E[q_1] + e^x", False),
        ("Cov(q_1, |q_1|)", True),
    ],
)
def test_what_takes_a_grid_is_slow(text, found) -> None:
    assert is_slow(tree(text)) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x / 2", True),
        ("x^{-1}", True),
        ("x^{1/2}", True),
        ("x^y", True),
        (r"\log x", True),
        ("x^0", True),
        ("x^2", False),
        ("e^x", False),
        ("x y", False),
        ("|x|", False),
    ],
)
def test_what_may_have_no_value_divides(text, found) -> None:
    assert may_be_undefined(tree(text)) is found
    assert may_be_undefined(tree("y"), tree(text)) is found


def test_whole_powers() -> None:
    for text, one, two in [("x^2", True, True), ("x^3", True, False), ("x^4", True, True), ("x^0", False, False)]:
        assert whole_power(tree(text)) is one  # pyright: ignore
        assert whole_power(tree(text), 2) is two  # pyright: ignore
    for text in ("x^{-2}", "x^{1/2}", "x^y"):
        assert not whole_power(tree(text))  # pyright: ignore


@pytest.mark.parametrize(
    ("gold", "answer", "equal", "evidence"),
    [
        ("x + y", "y + x", True, "proved"),
        ("x", "x + 1", False, "refuted"),
        (r"\max(x^2, y^2)", r"\max(|x|, |y|)^2", True, "tested"),
        ("1/(x - x)", "1/(x - x)", None, None),
        (r"\log(-x^2)", r"\log(-x^2)", None, None),
    ],
)
def test_decisions(gold, answer, equal, evidence) -> None:
    outcome = decide(tree(gold), tree(answer))
    assert (outcome.equal, outcome.evidence) == (equal, evidence)
    assert differ(tree(gold), tree(answer)) is (equal is False)
    assert (outcome.counterexample is not None) is (equal is False)
    if equal is None:
        assert outcome.why


def test_what_is_proved_is_found_without_points() -> None:
    assert is_proved(tree("(x + y)^2"), tree("x^2 + 2xy + y^2"))
    assert not is_proved(tree("(x + y)^2"), tree("x^2 + y^2"))
    assert not is_proved(tree("(x + y)^9"), tree("(y + x)^9 (x + 1) / (1 + x)"), 1)


def test_a_witness_is_shown_only_where_it_is_asked_for() -> None:
    assert str(try_points(tree("x"), tree("2x")).counterexample) == "x = 2: 2 against 4"
    unseen = try_points(tree("x"), tree("2x"), witness=False)
    assert (unseen.equal, unseen.counterexample) == (False, None)
    assert try_points(tree("x"), tree("y"), fixed={"x": ("as", "y")}).equal
    assert try_points(tree("x"), tree("3"), fixed={"x": Fraction(3)}).equal


@pytest.mark.parametrize(
    ("golds", "answers", "equal"),
    [
        (("x", "-x"), ("-x", "x"), True),
        (("x", "-x"), ("x", "-x"), True),
        (("x", "-x"), ("|x|", "-|x|"), True),
        (("x", "-x"), ("x", "x"), False),
        (("x", "y"), ("x", "-y"), False),
        (("x", "-x"), ("y", "-y"), False),
    ],
)
def test_pairs_of_values_in_either_order(golds, answers, equal) -> None:
    outcome = try_as_sets(list(map(tree, golds)), list(map(tree, answers)))
    assert outcome.equal is equal
    assert (outcome.counterexample is not None) is (not equal)


def test_values_apart_take_the_digits_that_they_need() -> None:
    place = Point({}, {})
    assert differing_values(place, tree("1"), tree("2")) == [1, 2]
    first, second = differing_values(place, tree("e^{100}"), tree("e^{100} + 10^{-50}"))
    assert first != second
    assert len(str(first)) > 100
    same = differing_values(place, tree(r"\sqrt 2"), tree(r"2^{1/2}"))
    assert same[0] == same[1]


def test_a_point_is_made_simpler_while_the_two_differ() -> None:
    gold, answer = tree("x + 3y"), tree("x + 4y")
    words = vocabulary(gold, answer)
    found = simplified(words, Point({}, {"x": Fraction(17, 5), "y": Fraction(-9, 7)}), gold, answer)
    assert all(abs(value) in (1, 2, 3) for value in found.values.values())
    gold, answer = tree("|x|"), tree("x")
    words = vocabulary(gold, answer)
    found = simplified(words, Point({}, {"x": Fraction(-9, 7)}), gold, answer)
    assert found.values["x"] == -1


def test_an_outcome_says_nothing_by_itself() -> None:
    assert Outcome(None) == Outcome(None, None, None, "", None, False)
    assert trial.with_sizes_noted(Outcome(True), None) == Outcome(True)


CHANCE = {
    "x": "random scalar ~ N(0, 1)", "y": "random scalar ~ N(0, 1)", "w": "random scalar ~ N(0, 1)", "c": "scalar",
    "q": "random vector[n] ~ N(0, S)", "S": "matrix[n,n]", "n": "natural",
}  # fmt: skip


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"E[(\sqrt{x})^2]", "0"),
        (r"E[(\sqrt{x y})^2]", "0"),
        (r"E[(\sqrt{1 + x})^2]", "1"),
        (r"E[(\sqrt{x^2 - 5})^2]", "-4"),
        (r"E[w \operatorname{sign}(\sqrt{x})]", "0"),
        (r"E[\sum_i (\sqrt{q_i})^2]", "0"),
        (r"\operatorname{Cov}((\sqrt{x})^2, x)", "1"),
        (r"E[(x^{1/2})^2]", "0"),
    ],
)
def test_a_root_of_what_chance_makes_negative_is_not_averaged_away(gold: str, answer: str) -> None:
    assert decide(parse(gold, CHANCE), parse(answer, CHANCE)).equal is None


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"E[(\sqrt{1 + x^2})^2]", "2"),
        (r"E[(\sqrt{c + x^2})^2]", "c + 1"),
        (r"E[(\sqrt{c} x)^2]", "c"),
        (r"E[w \sqrt{|x|}]", "0"),
        (r"E[(\sqrt{q^T S q})^2]", r"\operatorname{tr}(S^2)"),
        (r"E[\|q\|^2]", r"\operatorname{tr}(S)"),
    ],
)
def test_a_root_that_has_a_value_somewhere_whatever_chance_does_is_averaged(gold: str, answer: str) -> None:
    assert decide(parse(gold, CHANCE), parse(answer, CHANCE)).evidence == "proved"
