"""Text of chats as blocks: nothing said is lost, passages cover the text, and no text takes long."""

from __future__ import annotations

import itertools
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.render import Code, Document, Items, Paragraph, Table, html
from qkv.render.from_text import passages
from qkv.render.to_text import signs

PIECES = ["so it is d", "\n\n", "\n", "- one", "1. two", "| a | b |", "|---|---|", "```", "```python", "$x^2$", "$$",
          r"\[ y = \frac{1}{2} \]", "**bold**", "`code`", "# Head", "<b>", "costs $5", "\\", "{"]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=25).map(" ".join) | st.text(max_size=80)


@given(texts, st.lists(st.integers(0, 300), max_size=3))
def test_passages_follow_each_other_and_cover_what_is_said(text, ends):
    spans = [span for span, _ in passages(text, ends)]
    assert all(one[1] == two[0] for one, two in itertools.pairwise(spans))
    outside = text[: spans[0][0]] + text[spans[-1][1] :] if spans else text
    assert not outside.strip()


@given(st.lists(st.sampled_from(["word", "\n\n", "\n", "- ", "1. ", "**b**", "`c`", "```\n", "\n```\n"]), max_size=20))
def test_no_word_is_lost(pieces):
    text = "".join(pieces)
    page = html(Document("", tuple(block for _, blocks in passages(text) for block in blocks)))
    shown = re.sub(r"<[^>]*>", "", page.split("<h1>")[1])
    assert shown.count("word") == text.count("word")


def kinds(text):
    return [type(block) for _, blocks in passages(text) for block in blocks]


def test_a_line_with_a_claim_ends_a_passage():
    text = "(a) so\nit is d\n(b) so\nit is 1"
    assert [text[slice(*span)] for span, _ in passages(text, [14])] == ["(a) so\nit is d\n", "(b) so\nit is 1"]
    assert len(list(passages("```\na = 1\nb = 2\n```", [7]))) == 1
    assert len(list(passages("$$a\n= b\n$$", [5]))) == 1


def test_blocks():
    assert kinds("Hi\n\n- a\n- b\n\n```python\nx = 1\n\ny = 2\n```") == [Paragraph, Items, Code]
    assert kinds("So:\n| a | b |\n|---|---|\n| 1 | 2 |\nend") == [Paragraph, Table, Paragraph]
    ((_, (listed,)),) = passages("1. a\n2. b")
    assert listed.ordered
    ((_, (listed,)),) = passages("3. a\n4. b")
    assert not listed.ordered  # numbers that a list of the page would not have stay as words
    assert kinds("$$a\n- b\n- c$$") == [Paragraph]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (r"\frac{1}{\sqrt{d_k}}", "1/√(dₖ)"),
        (r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}", "[1, 2; 3, 4]"),
        (r"\boxed{\mathrm{Var}(q^\top k) = d}", "Var(qᵀ k) = d"),
        (r"\frac{\sum_{i} x_i^2}{2}", "(∑ᵢ xᵢ²)/2"),
    ],
)
def test_latex_is_readable(source, shown):
    assert signs(source) == shown


@pytest.mark.parametrize(
    "unit", ["$", "`", "**a", "```\n\n", "\\[ a", "\\( a", "$$ a", "- a\n", "\\frac{", "|", "# a\n"]
)
def test_no_text_takes_long(unit):
    start = time.perf_counter()
    list(passages(unit * (40_000 // len(unit))))
    assert time.perf_counter() - start < 1.5
