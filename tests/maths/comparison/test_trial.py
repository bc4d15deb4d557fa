"""Trials at points: when they stop, simple counterexamples, and small sizes in place of large ones."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.comparison import trial
from qkv.maths.comparison.bounds import holds
from qkv.maths.comparison.trial import (
    Outcome,
    counted_indices,
    decide,
    differ,
    differing_values,
    is_polynomial,
    is_slow,
    may_be_undefined,
    shrink,
    simplified,
    sizes_are_hidden,
    sizes_of,
    try_as_sets,
    try_points,
    try_with,
    whole_power,
    with_sizes,
)
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Index, Sum, walk
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
    assert try_with(words, Asked(True), lambda place: None, most=9).equal is None
    assert try_with(words, Asked(True), lambda place: None, most=10).equal
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
    some = Asked(Undefined("here not"), *[True] * 10, Undefined("here not"))
    assert try_with(words, some, lambda place: None).equal
    few = Asked(Undefined("here not"), *[True] * 9, Undefined("here not"))
    assert try_with(words, few, lambda place: None).equal is None
    most = Asked(*[Unevaluable("no way"), True] * 9, Unevaluable("no way"))
    assert try_with(words, most, lambda place: None).equal is None
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


def test_what_is_proved_has_a_certificate() -> None:
    outcome = decide(tree("(x + y)^2"), tree("x^2 + 2xy + y^2"))
    assert (outcome.equal, outcome.evidence) == (True, "proved")
    assert outcome.certificate is not None
    assert decide(tree("(x + y)^2"), tree("x^2 + y^2")).certificate is None


def test_a_counterexample_is_made_only_on_request() -> None:
    assert str(try_points(tree("x"), tree("2x")).counterexample) == "x = 2: 2 against 4"
    unseen = try_points(tree("x"), tree("2x"), simplify=False)
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


LARGE = {
    "x": "vector[768]",
    "y": "vector[768]",
    "A": "matrix[768,768]",
    "B": "matrix[768,3072]",
    "z": "vector[4096]",
    "f": "map vector[4096] -> vector[768]",
    "r": "random vector[4096] ~ N(z, s^2 I)",
    "s": "positive",
}


def sizes(gold: str, answer: str, step: int = 0):
    found = shrink(parse(gold, LARGE), parse(answer, LARGE), step)
    return None if found is None else dict(found.sizes)


def test_large_sizes_become_small_ones_in_order_and_as_even_as_they_were():
    assert sizes("x^T A y", "1") == {768: 4}
    assert sizes("x^T B B^T y + z^T z", "1") == {768: 4, 3072: 6, 4096: 8}
    assert sizes("x^T A y", "1", step=1) == {768: 6}
    odd = shrink(parse("v^T v", {"v": "vector[769]"}), parse("1", {}))
    assert odd is not None
    assert dict(odd.sizes) == {769: 3}


def test_what_is_a_number_too_stays():
    assert sizes(r"\|x\|^2/768", "z^T z") == {4096: 4}
    assert sizes(r"\|x\|^2/768", "1") is None
    assert sizes("x_{10} + x_3", "1") == {768: 12}
    assert sizes("x_{700}", "1") is None
    short = {"v": "vector[7]", "w": "vector[11]"}
    found = shrink(parse("v^T v + w^T w", short), parse("1", {}))
    assert found is not None
    assert dict(found.sizes) == {11: 9}


@pytest.mark.parametrize(
    ("gold", "answer", "kind", "evidence"),
    [
        ("x^T A y", "y^T A^T x", "equal", "proved"),
        ("x^T A y", "x^T A^T y", "conditional", "refuted"),
        ("A B", "2 A B", "different", "refuted"),
        ("softmax(A x)", "softmax(x)", "different", "refuted"),
        (r"\max(softmax(A x))", r"1/\sum_j e^{(A x)_j - \max(A x)}", "equal", "tested"),
        (r"\max(z)", r"\min(z)", "conditional", "refuted"),
        ("f(z)", "f(2z)", "different", "refuted"),
        (r"\operatorname{Var}(r^T z)", "s^2 z^T z", "equal", "proved"),
        (r"\operatorname{Var}(r^T z)", "s z^T z", "different", "refuted"),
        (r"\operatorname{tr}(I_{768})", "768", "equal", "proved"),
    ],
)
def test_verdicts_on_large_sizes(gold, answer, kind, evidence):
    verdict = compare(gold, answer, LARGE)
    assert (verdict.kind, verdict.evidence) == (kind, evidence)


def test_the_sizes_that_were_tried_are_named():
    wrong = compare("A B", "2 A B", LARGE)
    assert "with 4 in place of 768 and 6 in place of 3072" in wrong.reason
    assert wrong.counterexample is not None
    assert len(wrong.counterexample.point["B"][0]) == 6
    right = compare(r"\max(softmax(A x))", r"1/\sum_j e^{(A x)_j - \max(A x)}", LARGE)
    assert "with 4 in place of 768" in right.reason
    assert "in place of 4096" in holds(r"\|z\|", "<=", r"\|z\|_1", LARGE).reason


def test_a_long_vector_is_not_written_out():
    verdict = compare(r"\|x\|_1/768", r"\max(x)", LARGE)
    assert verdict.kind == "different"
    assert "x = (1, 2, 3, …, 768)" in verdict.reason


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        (r"\sum_{i=1}^{10} i", "55", "equal"),
        (r"\sum_{i=1}^{10} i", "10", "different"),
        (r"\max(\sum_{i=1}^{100} i, 50)", "50", "different"),
        (r"\max(\sum_{i=1}^{100} i, 50)", "5050", "equal"),
        (r"\max(\sum_{i=1}^{20} 2, 10)", "40", "equal"),
        (r"\sum_j e^{0 x_j} + \max(x)", r"2 \cdot 384 + \max(x)", "equal"),
    ],
)
def test_a_size_that_may_come_out_as_a_number_is_not_made_small(gold, answer, kind):
    assert compare(gold, answer, LARGE).kind == kind


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (r"\sum_{i=1}^{20} i", ["i"]),
        (r"\sum_{i=1}^{20} 1", ["i"]),
        (r"\sum_i x_i", []),
        (r"\sum_i i x_i", ["i"]),
        (r"\sum_{i,j} x_i y_j", []),
        (r"\sum_{i,j} i x_i y_j", ["i"]),
        (r"\sum_{i<j} x_i y_j", ["i", "j"]),
        (r"\sum_i \delta_{ij} x_i y_j", []),
    ],
)
def test_which_indices_of_a_sum_are_numbers(text, names):
    node = next(n for n in walk(parse(text, LARGE)) if isinstance(n, Sum))
    assert [index.name for index in counted_indices(node)] == names


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("x^T A y", True),
        ("3 x^T A y", True),
        (r"\|x\|^2 + 7", True),
        (r"\operatorname{tr}(A) + 5", True),
        (r"\operatorname{sum}(x) + 5", True),
        (r"\sum_i x_i y_i + 5", True),
        (r"\sum_i x_i i + 5", False),
        (r"\prod_i x_i + 5", False),
        (r"\exp(x_1) + 5", False),
        (r"\exp(x_1) + 2", True),
        (r"\exp(x_1) + 1/2", True),
        (r"\exp(x_1) - 1", True),
        (r"\exp(x_{12})", True),
        (r"\mathbf{1}^T x + 5", False),
        ("s^{-1} + 5", False),
        ("s^3 + 5", True),
    ],
)
def test_numbers_that_may_come_out_of_a_size(text, fine):
    assert sizes_are_hidden(parse(text, LARGE)) is fine


def test_kinds_of_nodes_that_make_polynomials():
    kinds = {r"\|x\|": True, r"\max(x)": False, r"\|x\|_1": False, r"\mathbf{0}_3": True, r"\mathbf{1}_3": False,
             "s^2": True, "s^{-1}": False, "s^s": False, "x": True, "x/s": True}  # fmt: skip
    assert {text: is_polynomial(parse(text, LARGE)) for text in kinds} == kinds


def test_sizes_are_changed_everywhere():
    def left(text):
        return {size for n in walk(with_sizes(parse(text, LARGE), {768: 4, 4096: 6})) for size in sizes_of(n)}

    assert left("x^T A y") <= {1, 4}
    assert left("A B") == {4, 3072}
    assert left("f(z)") == {4, 6}
    assert left("E[r]") == {6}
    assert left(r"\sum_i x_i") == {4}
    assert left(r"\sum_{i,j} x_i y_j") == {4}
    changed = with_sizes(parse(r"\sum_i x_i", LARGE), {768: 4})
    assert {n.size for n in walk(changed) if isinstance(n, Index)} | {i.size for i in changed.indices} == {4}
    defined = {**LARGE, "w": "vector[768] = 2 x"}
    assert {size for n in walk(with_sizes(parse("w", defined), {768: 4})) for size in sizes_of(n)} == {4}


def test_where_nothing_is_made_small():
    assert sizes("s", "s") is None
    short = {"v": "vector[8]", "w": "vector[9]"}
    assert shrink(parse("v", short), parse("v", short)) is None
    nine = shrink(parse("w", short), parse("w", short))
    assert nine is not None
    assert dict(nine.sizes) == {9: 3}
    assert str(nine) == "3 in place of 9"
    assert sizes("x_{16}", "x_1") is None
    assert sizes("x_{15}", "x_1") == {768: 16}
    written_out = {"v": "vector[12]"}
    assert shrink(parse("v^T (1,2,3,4,5,6,7,8,9,10,11,12)", written_out), parse("1", {})) is None
