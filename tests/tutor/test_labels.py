"""A tutor's turn is cut where its labels are, and nowhere else."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from qkv.tutor.asserted import asserted
from qkv.tutor.formulas import equations, formulas
from qkv.tutor.labels import sections
from qkv.tutor.markup import untagged


def cut(text: str, parts: Collection[str] = "abc", **kind: bool) -> list[tuple[str, str]]:
    return [(each.part, each.text.strip(" \n.,;*")) for each in sections(text, parts, **kind)]


WRITTEN = [
    "(a) {} \n(b) {}",
    "a) {}\nb) {}",
    "a. {}\nb. {}",
    "**(a)** {}\n\n**(b)** {}",
    "- (a) {}\n- (b) {}",
    "#### Part (a)\n{}\n#### Part (b)\n{}",
    "Part a: {}\nPart b: {}",
    "**Part (a):** {}\n\n**Part (b):** {}",
    "**Answer (a):** {}\n**Answer (b):** {}",
    "1(a) {}\n1(b) {}",
    "### 1a) {}\n### 1b) {}",
    "Q1(a): {}\nQ1(b): {}",
    "(a) {}, (b) {}",
    "For part (a): {}\nFor part (b): {}",
]


@pytest.mark.parametrize("written", WRITTEN)
def test_labels_as_people_write_them(written):
    assert cut(written.format("$x = 1$", "$y = 2$")) == [("a", "$x = 1$"), ("b", "$y = 2$")]


@pytest.mark.parametrize(
    "text",
    ["From part (b), Var = d", "A vector is good", "I think (a) is wrong", "a = 3 and b = 4", "By (b) it is so",
     "```\n(a) code\n(b) code\n```", "An answer to part b was given"],
)  # fmt: skip
def test_what_is_no_label(text):
    assert cut(text) == [("", text)]


def test_romans_below_a_letter():
    parts = ["a", "bi", "bii", "c"]
    assert cut("(b)(i) x\n(ii) y\n(c) z", parts) == [("bi", "x"), ("bii", "y"), ("c", "z")]
    assert cut("(b) (i) x; (ii) y", parts) == [("bi", "x"), ("bii", "y")]
    assert cut("(i) x\n(ii) y", ["ai", "aii"]) == [("ai", "x"), ("aii", "y")]
    # Options of a choice are no parts.
    assert cut("(a) (i) and (iii)\n(b) z", ["a", "b"]) == [("a", "(i) and (iii)"), ("b", "z")]


def test_a_label_of_several_parts_gives_way_to_theirs():
    assert cut("#### 4(a)-(c) Shapes\n- (a) x\n- (b) y\n- (c) z")[1:] == [("a", "x"), ("b", "y"), ("c", "z")]


def test_a_summary_is_known_as_one():
    found = sections("Part (a)\nlong\n\n### Summary of answers\n- (a) x\n- (b) y", "ab")
    assert [(each.part, each.summary) for each in found if each.part] == [("a", False), ("a", True), ("b", True)]


def test_numbers_are_parts_only_when_asked():
    assert cut("1. x\n2. y") == [("", "1. x\n2. y")]
    assert cut("1. x\n2. y", numbered=True) == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize(
    "denied",
    [
        "Definitely not $y$.",
        "My earlier answer $y$ was wrong.",
        "You wrote $y$, which is wrong.",
        "That would only be $y$ if it were a scalar.",
        "A common mistake is to write $y$.",
        "Is it $y$?",
        "I misread it and said $y$.",
    ],
)
def test_what_is_denied_or_quoted_is_not_claimed(denied):
    for text in (f"The answer is $x$. {denied}", f"{denied} The answer is $x$."):
        assert [span.text for said in asserted(text) for span in formulas(said.text)] == ["x"]


@pytest.mark.parametrize(
    "text", ["It is $x$, not $y$.", "It is not $y$ but $x$.", "I said $y$, but the correct answer is $x$."]
)
def test_a_sentence_that_denies_one_thing_claims_the_other(text):
    assert [span.text for said in asserted(text) for span in formulas(said.text)] == ["x"]


def test_formulas_of_every_kind():
    text = r"$a$ and \(b\) and $$c$$ and \[d\]" + "\n\\begin{align}e\\end{align}"
    assert [each.text for each in formulas(text)][:4] == ["a", "b", "c", "d"]
    assert equations(r"\begin{aligned} a &= b \\ &= c, \\ d &= e \end{aligned}") == ["a = b = c", "d = e"]


def test_html_is_taken_off_and_mathematics_stays():
    assert untagged("a < b, $x<y$ and y > z") == "a < b, $x<y$ and y > z"
    page = untagged("<style>x</style><ul><li>one</li><li>two</li></ul><pre><code>f()</code></pre>&alpha;")
    assert "- one" in page
    assert "```\nf()\n```" in page
    assert "α" in page
    assert "style" not in page
    assert untagged("<script>never closed") == "never closed"


def test_brackets_of_a_formula_are_no_labels():
    assert cut("The root is sqrt(d), and f(a) = g(b)", "abd") == [("", "The root is sqrt(d), and f(a) = g(b)")]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("(k + 1)<sup>n</sup>", "(k + 1)^{n}"),
        ("n<sub>t</sub> d<sub>model</sub><sup>2</sup>", "n_{t} d_{model}^{2}"),
        ("the 4<sup>th</sup> layer<sup></sup>", "the 4th layer"),
        ("2<sup><i>n</i></sup> &lt; 3&nbsp;+&nbsp;1", "2^{n} < 3 + 1"),
        ("<sup>" * 3 + "x", "x"),
    ],
)
def test_raised_and_lowered_text_becomes_formulas(page, text):
    assert untagged(page) == text


def test_bare_romans_belong_to_the_letter_that_was_asked():
    said = "(i) x\n(ii) y"
    assert [each.part for each in sections(said, ["a", "bi", "bii"], within="b")] == ["bi", "bii"]
    assert [each.part for each in sections(said, ["ai", "aii", "bi", "bii"])] == [""]
