"""Styles and blocks: what only changes how a text looks."""

import pytest

from qkv.errors import Unreadable
from qkv.maths.reading import parse

S = {"x": "scalar", "n": "natural", "d": "natural", "d_model": "natural", "s": "vector[n]", "q": "vector[d]"}

SAME = [
    ("softmax(s)", r"{\rm softmax}(s)", r"\boldsymbol{\mathrm{softmax}}(s)", r"\mathbf{\text{softmax}}(s)"),
    ("d_model", r"d_{\rm model}", r"d_{\mathrm{model}}", r"d_{\bf model}"),
    ("q^T q", r"{\bf q}^T {\bf q}", r"\mathbf{\mathrm{q}}^T q"),
    ("x = d + n", r"\begin{aligned} x &= d + \\ & n \end{aligned}", r"\begin{gathered} x = d \\ + n \end{gathered}"),
    ("x = (d + n)", r"\begin{split} x &= \Big( d \\ &\quad + n \Big)\end{split}"),
    (
        "x = d",
        r"\begin{equation*} x = d \end{equation*}",
        r"\begin{equation}\begin{aligned}x&=d\end{aligned}\end{equation}",
    ),
]


@pytest.mark.parametrize("texts", SAME, ids=lambda texts: texts[0])
def test_spellings_of_one_thing_read_alike(texts) -> None:
    first, *others = [parse(text, S) for text in texts]
    for text, other in zip(texts[1:], others, strict=True):
        assert other == first, text


@pytest.mark.parametrize("around", [("[", "]"), ("(", ")"), (r"\{", r"\}")])
@pytest.mark.parametrize("block", ["{matrix}", "{array}{c}", "{smallmatrix}"])
def test_a_column_is_a_vector_in_any_brackets(around, block) -> None:
    name = block[: block.index("}") + 1]
    text = rf"\left{around[0]}\begin{block}1\\2\\7\end{name}\right{around[1]}"
    assert parse(text, {}) == parse("(1, 2, 7)", {})


def test_rows_and_matrices_in_brackets() -> None:
    assert parse(r"\left[\begin{array}{cc}1&2\\3&4\end{array}\right]", {}).shape == (2, 2)
    assert parse(r"\left[\begin{array}{cc}1&2\end{array}\right]", {}).shape == (1, 2)
    assert parse("[[1, 2]]", {}).shape == (1, 2)


@pytest.mark.parametrize("name", ["cases", "dcases"])
def test_cases_are_refused_as_such(name) -> None:
    with pytest.raises(Unreadable, match="by cases"):
        parse(rf"\begin{{{name}}} 1 & x > 0 \\ 0 & x < 0 \end{{{name}}}", S)
