"""Explanations in words: ideas, negations, and what is put where."""

import random

import pytest

from qkv.problems.judging.prose import Idea, Ideas
from qkv.problems.judging.wording import denied, normalised, sentences

NO_GRADIENT = Ideas(
    (
        Idea(
            "that no gradient passes",
            (
                r"(?:gradients?|derivatives?) … (?:0|zero|vanish\w*)",
                r"no gradients?",
                r"gradients? … can not (?:flow|pass)",
                r"not differentiable|non ?differentiable",
            ),
            "The derivative is zero almost everywhere.",
        ),
    ),
    (Idea("that it trains as before", (r"train\w* … (?:as before|as well|unchanged)",)),),
)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("The derivative is zero almost everywhere", "right"),
        ("Argmax isn't differentiable", "right"),
        ("gradients cannot flow through", "right"),
        ("No gradient reaches the projections", "right"),
        ("Without a softmax the gradients vanish", "right"),
        (r"$\nabla_q \text{out} = 0$ almost everywhere", "right"),
        ("gradients do not vanish", "wrong"),
        ("It is not the case that gradients vanish", "wrong"),
        ("The gradient being zero is not true.", "wrong"),
        ("argmax is differentiable", "unread"),
        ("The gradient is zero, yet training goes on as before", "wrong"),
        ("", "unread"),
    ],
)
def test_what_is_said_and_what_is_denied(said, kind):
    assert NO_GRADIENT.check(said).kind == kind


def test_missing_ideas_are_named():
    both = Ideas((Idea("the first", ("apple",)), Idea("the second", ("pear",))))
    outcome = both.check("an apple")
    assert outcome.kind == "incomplete"
    assert "the second" in outcome.reason
    assert Ideas(both.ideas, least=1).check("an apple")


def test_the_same_mistake_in_other_words():
    assert NO_GRADIENT.same("It trains as before.", "training works as well, I think")
    assert not NO_GRADIENT.same("It trains as before.", "it does not train as before")


@pytest.mark.parametrize(
    ("sentence", "part", "taken_back"),
    [
        ("the sum is not necessarily zero", "zero", True),
        ("the sum can never be zero", "zero", True),
        ("if we do not scale, gradients vanish", "gradients vanish", False),
        ("it is not untrue, the sum is zero", "zero", False),
        ("the sum is zero", "zero", False),
        ("vanishing is not the case", "vanishing", True),
    ],
)
def test_negations(sentence, part, taken_back):
    start = sentence.index(part)
    assert denied(sentence, start, start + len(part), False) is taken_back


def test_signs_are_words():
    assert normalised(r"$\sum_j s \neq 0$ and **x** ≥ 1") == "sum _j s is not equal to 0 and x is at least 1"
    assert sentences("One, i.e. two. Three\n- four") == ("one, ie two.", "three", "- four")


def test_no_text_raises_or_hangs():
    draw = random.Random(0)
    signs = [*"…\\${}|&;.,\n()[]≠ᵀ∇\u202e", "not", "no", "never", "zero", "gradient", "encoder", "padding"]
    for _ in range(200):
        text = " ".join(draw.choice(signs) for _ in range(draw.randrange(60)))
        NO_GRADIENT.check(text)
    NO_GRADIENT.check("not " * 4_000)
    NO_GRADIENT.check("encoder | " * 1_500)
