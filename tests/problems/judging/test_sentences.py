"""Answers in sentences: what is stated counts, what is denied, taken back, supposed or given as a reason does not."""

import random
import time

import pytest

from qkv import problems
from qkv.problems.judging.cutting import unboxed
from qkv.problems.judging.sentences import claims, formulas_said

NAMES = ("d", "mu", "sigma", "s", "q", "k")

# {x} is the answer, {y} something else that is not.
FRAMES = (
    "{x}",
    "The answer is {x}.",
    "**Answer:** {x}",
    "So it is {x}, since the components are independent.",
    "Not {y}, because the entries add up; it is {x}.",
    "At first I had {y}, but that counts too much, so the correct value is {x}.",
    "I first wrote {y}, but that should be {x}.",
    "{x}, not {y}",
    "{x} (and not {y})",
    "It is {x} rather than {y}.",
    "{x} instead of {y}",
    "One might think {y}, but actually it is {x}.",
    "{y} is wrong: it is {x}.",
    "We get {x}, as every term gives the same.",
    "Each term gives one number, and together they are {x}",
    "Final answer: {x}",
    "I think it's {x}.",
    "(a) {x}",
    "Is it {y}? No, it is {x}.",
    "Hence {x}.",
    "Since q and k are independent, the answer is {x}",
    "It is {x}, which is what one expects.",
    "Die Antwort ist {x}.",
    "By linearity we obtain {x}; nothing else comes in.",
    "{x} because of independence",
    "Therefore {x}, and that is all.",
)
RIGHT = {
    "a": (
        r"\mu^\top\mu",
        r"\|\mu\|^2",
        r"\sum_{i=1}^d \mu_i^2",
        r"\mu_1^2 + \dots + \mu_d^2",
        r"\langle \mu, \mu \rangle",
    ),
    "b": ("d", r"\sum_{i=1}^d 1"),
    "c": (r"\sqrt{d}", "d^{1/2}", r"s = \sqrt{d}"),
}
WRONG = {
    "a": (r"d \|\mu\|^2", r"\mu^\top\mu + d\sigma^2", r"\sigma^2"),
    "b": (r"\sqrt{d}", "d^2", "2d", "1", r"d_{\text{model}}"),
    "c": ("d", "1", r"\frac{1}{\sqrt{d}}", "s = d", r"\sqrt{d_{model}}"),
}


@pytest.fixture(scope="module")
def scaling():
    return problems.bank()["scaling"]


@pytest.mark.parametrize("seed", range(5))
def test_frames_do_not_change_what_is_right(scaling, seed):
    draw = random.Random(seed)
    for part in "abc":
        for frame in draw.sample(FRAMES, 4):
            right, wrong = draw.choice(RIGHT[part]), draw.choice(WRONG[part])
            marks = draw.choice((("$", "$"), (r"\(", r"\)"), ("$$", "$$")))
            put = {"x": marks[0] + right + marks[1], "y": marks[0] + wrong + marks[1]}
            outcome = scaling.check(part, frame.format(**put))
            assert outcome.kind == "right", (frame, put, outcome)
            swapped = scaling.check(part, frame.format(x=put["y"], y=put["x"]))
            assert swapped.kind == "wrong", (frame, put, swapped)


@pytest.mark.parametrize("frame", FRAMES)
def test_plain_text_is_read_as_well(scaling, frame):
    assert scaling.check("c", frame.format(x="s = sqrt(d)", y="s = d")).kind == "right"
    outcome = scaling.check("c", frame.format(x="s = d", y="s = sqrt(d)"))
    assert outcome.kind == "wrong"
    assert outcome.misconceptions == ("divided by the variance",)


@pytest.mark.parametrize(
    ("part", "answer", "kind"),
    [
        ("c", "$s = \\sqrt{d}$, so that the variance is 1 and the mean is 0.", "right"),
        ("c", "s = sqrt(d); for d = 64 this is 8", "right"),
        ("c", "The variance of the score is d, so we divide by sqrt(d).", "right"),
        ("c", "The variance is $d$.", "unread"),
        ("c", "choose s so that the variance is one", "unread"),
        ("c", "$d/s^2 = 1$", "incomplete"),
        ("c", "It depends on $d$.", "unread"),
        ("b", "It grows with $d$.", "unread"),
        ("b", "The vectors have $d$ components.", "unread"),
        ("b", "It is $d$ or $\\sqrt{d}$.", "wrong"),
        ("b", "It is $\\sqrt{d}$ or $d$.", "wrong"),
        ("b", "It is $d$, or $\\sum_{i=1}^d 1$.", "right"),
        ("b", "Is it $d$?", "unread"),
        ("b", "The mean is 0 and the variance is $d$", "right"),
        ("b", "I am not sure.", "unread"),
        ("a", "$d m^2$ if all components of $\\mu$ are equal to $m$", "conditional"),
        ("a", "see part (b)", "unread"),
    ],
)
def test_what_is_only_mentioned(scaling, part, answer, kind):
    assert scaling.check(part, answer).kind == kind


def test_roles():
    text = "Not $a$, since $b$ is odd; for example $c$. With $e = 1$ we get $f$."
    assert [(each.text, each.role) for each in formulas_said(text)] == [
        ("a", ""), ("b", ""), ("c", "example"), ("e = 1", ""), ("f", "answer"),
    ]  # fmt: skip


def test_the_last_conclusion_comes_first():
    found = claims(r"First $x = 1$. Hence $y = 2$. So \[ z = 3 \implies w = 4 \]")
    assert [each.text for each in found] == ["w = 4", "z = 3", "y = 2", "x = 1"]


@pytest.mark.parametrize("text", [r"\boxed{a", "a", r"\boxed{a} b", ""])
def test_only_a_whole_box_is_opened(text):
    assert unboxed(text) == text


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "$",
        "$$$$",
        "(" * 3000,
        "not " * 2000,
        r"\boxed{" * 500,
        "a, " * 3000,
        "$x$ or " * 800,
        "=" * 4000,
        "\n" * 5000,
    ],
)
def test_junk_is_read_in_time(junk):
    start = time.perf_counter()
    formulas_said(junk, NAMES)
    assert time.perf_counter() - start < 1
