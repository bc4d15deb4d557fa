"""Choices: labels, numbers and words are read, and what is denied is not chosen."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from qkv.problems.judging.choices import ROMAN, Choice, Choices, Option, folded

OPTIONS = (
    Option("i", "$x_{i,j}$", True, "it is what is normalised"),
    Option("ii", "$x_{i',j}$ where $i' \\ne i$", False, "other examples are not looked at"),
    Option("iii", "$x_{i,j'}$ where $j' \\ne j$", True, "the mean is over the features"),
    Option("iv", "$x_{i',j'}$ where $i' \\ne i$ and $j' \\ne j$", False, "neither"),
)
DEPENDS = Choice(OPTIONS, several=True)
ONE = Choice((Option("A", "[h, d, q]", True, "a matrix a head"), Option("B", "[d, q]", False, "one matrix for all"),
              Option("C", "[h, q]", False, "no input width")))  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    ["(i), (iii)", "i and iii", "I, III", "(i) & (iii)", "1 and 3", "The answers are (iii) and (i).",
     "(i) and (iii), not (ii) or (iv)", "all except (ii) and (iv)", "(i) Yes; (ii) No; (iii) Yes; (iv) No",
     "**(i)** and **(iii)**", r"\text{(i), (iii)}", r"\boxed{(i), (iii)}",
     "(ii) and (iv) are wrong; (i) and (iii) apply",
     r"x_{i,j} and x_{i,j'} where j' \ne j", "$x_{i,j}$ and $x_{i,j'}$ where $j' \\neq j$",
     "It depends on (i) and (iii) but not on (ii) or (iv).", "first and third", "options i and iii",
     "not (ii), not (iv); only (i) and (iii)"],
)  # fmt: skip
def test_ways_to_say_the_right_ones(answer: str) -> None:
    assert DEPENDS.check(answer).kind == "right", DEPENDS.chosen(answer)


def test_every_subset_is_judged_as_a_set() -> None:
    for size in range(1, 5):
        for labels in combinations(ROMAN[:4], size):
            for order in permutations(labels):
                outcome = DEPENDS.check(", ".join(f"({label})" for label in order))
                assert bool(outcome) == (set(labels) == {"i", "iii"})
                for option in OPTIONS:
                    assert (option.why in outcome.reason) == (bool(outcome) == option.right if outcome else
                                                              (option.label in labels) != option.right)  # fmt: skip


@pytest.mark.parametrize(("answer", "kind"), [
    ("A", "right"), ("(a)", "right"), ("1", "right"), ("[h, d, q]", "right"), ("[h,d,q]", "right"),
    ("the first option", "right"), ("option A", "right"), ("B", "wrong"), ("[d, q]", "wrong"), ("A and B", "wrong"),
    ("hello", "unread"), ("", "unread"), ("   ", "unread"), ("(" * 5000, "unread"), ("x" * 30_000, "unread"),
    ("none of these", "wrong"),
])  # fmt: skip
def test_one_of_three(answer: str, kind: str) -> None:
    assert ONE.check(answer).kind == kind


def test_none_and_all() -> None:
    assert DEPENDS.chosen("none of them") == frozenset()
    assert DEPENDS.chosen("all of the above") == frozenset(ROMAN[:4])


def test_same_is_about_the_set() -> None:
    assert DEPENDS.same("(i), (ii)", "ii and i")
    assert not DEPENDS.same("(i), (ii)", "(i), (iii)")
    assert not DEPENDS.same("(i), (ii)", "I do not know")


def test_two_choices_in_one_answer() -> None:
    batch = Choice(tuple(Option(o.label, o.text, o.label in ("i", "ii"), o.why) for o in OPTIONS), several=True)
    both = Choices({"layer": DEPENDS, "batch": batch}, {"layer": r"layer\s*-?norm\w*", "batch": r"batch\s*-?norm\w*"})
    assert both.check(both.text.replace("layer", "layer norm").replace("batch", "batch norm"))
    assert both.check("LayerNorm: (i), (iii)\nBatchNorm: (i), (ii)")
    assert both.check("(i), (iii); (i), (ii)")
    assert both.check("layer norm: (i), (iii)").kind == "incomplete"
    swapped = both.check("LayerNorm: (i), (ii). BatchNorm: (i), (iii)")
    assert swapped.kind == "wrong"
    assert set(swapped.items) == {"layer", "batch"}
    assert both.same("layer norm: (i), (ii)", "LayerNorm: (i), (ii). BatchNorm: (i), (iii)")
    assert both.check("no idea").kind == "unread"


def test_folding_is_idempotent() -> None:
    for text in (r"**$x_{i^\prime,j}$**", "A – B", r"\text{(i)}"):
        assert folded(folded(text)) == folded(text)
