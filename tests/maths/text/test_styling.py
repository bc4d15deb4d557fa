"""Styles and blocks: what only changes how a text looks."""

import pytest

from qkv.errors import Unreadable
from qkv.maths.parsing.parse import parse

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


V = {
    **S,
    "u": "vector[d]",
    "w": "vector[3]",
    "z": "random vector[d] ~ N(0, I)",
    "x_hat": "scalar",
    "x_bar": "scalar",
    "x_tilde": "scalar",
    "mu_hat": "vector[d]",
    "y_1": "scalar",
    "model": "scalar",
}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"\mathbb{E}[z]", "E[z]"),
        (r"\mathbbm{E}[z]", "E[z]"),
        (r"\mathds{E}[z]", "E[z]"),
        (r"\mathbb{V}[z]", "Var(z)"),
        (r"\mathbb{E} z", "E[z]"),
        (r"\mathbbm{E} z", "E[z]"),
        (r"\mathds{E} z", "E[z]"),
        (r"x^{\mathbf{n}}", "x^n"),
        (r"x^\mathbf{n}", "x^n"),
        (r"x^{\text{n}}", "x^n"),
        (r"\mathcal{O}(n)", "O(n)"),
        (r"\mathbf{1}^T u", "1_d^T u"),
        (r"u + \boldsymbol{0}", "u + 0_d"),
        (r"u^{\mathrm T} q", "u^T q"),
        (r"u^{\mathsf{T}} q", "u^T q"),
        (r"u^\mathsf{T} q", "u^T q"),
        (r"u^{\mathbf{\top}} q", "u^T q"),
        (r"u^{\text{T}} q", "u^T q"),
        (r"\mathsf{arg\,max} w", "argmax w"),
        (r"\operatorname{arg max} w", "argmax w"),
        (r"\operatorname{arg\max} w", "argmax w"),
        (r"\operatorname{argmax} w", "argmax w"),
        (r"\mathop{\rm argmax}_j w_j", "argmax w"),
        (r"\mathit{softmax}(u)", "softmax(u)"),
        (r"\mathbf{x n}", "x n"),
        (r"\text{y_1}", "y_1"),
        (r"\text{model}", "model"),
        (r"\hat x", r"\hat{x}"),
        (r"\bar x", r"\overline{x}"),
        (r"\tilde{x}", r"\widetilde x"),
        (r"\hat{\mu}", r"\widehat{\mu}"),
        (r"\hat{\mathbf{\mu}}", r"\hat\mu"),
        (r"\begin{alignat}{2} x &= n \end{alignat}", "x = n"),
        (r"\begin{alignedat}{2} x &= n \end{alignedat}", "x = n"),
        (r"\begin{align} x &= n \end{align}", "x = n"),
        (r"\begin{eqnarray} x &=& n \end{eqnarray}", "x = n"),
        (r"\begin{multline} x \\ = n \end{multline}", "x = n"),
        (r"\begin{gather*} x = n \end{gather*}", "x = n"),
        (r"\begin{split} x &= n, \\ &= d. \end{split}", "x = n = d"),
        (r"x = n \\ = d", "x = n = d"),
        (r"x \\[2pt] {} + n", "x + n"),
        (r"x \\ \quad - n", "x - n"),
        (r"x \\ \cdot n", "x n"),
        (r"x \\ \times n", r"x \times n"),
        (r"q \\ \odot u", r"q \odot u"),
        (r"q \\ \otimes u", r"q \otimes u"),
        (r"x \\ \pm n", r"x \pm n"),
        (r"x \\ \le n", r"x \le n"),
        (r"x \\ \approx n", r"x \approx n"),
        (r"x \\ / n", "x / n"),
        (r"x \\ < n", "x < n"),
        (r"x \\ != n", "x != n"),
        (r"x \\ := n", "x = n"),
        (r"x + \\ n", "x + n"),
        (r"x &+ n", "x + n"),
        (r"x \\", "x"),
        (r"\begin{pmatrix} 1 \\[4pt] 2 \end{pmatrix}", "(1, 2)"),
        (r"\begin{pmatrix} 1 \\[-0.5em] 2 \end{pmatrix}", "(1, 2)"),
        (r"\begin{array}{c|c} 1 & 2 \end{array}", "[[1, 2]]"),
        (r"\begin{psmallmatrix} 1 & 2 \end{psmallmatrix}", "[[1, 2]]"),
        (r"\begin{bsmallmatrix} 1 & 2 \end{bsmallmatrix}", "[[1, 2]]"),
        (r"\begin{Bmatrix} 1 & 2 \end{Bmatrix}", "[[1, 2]]"),
        (r"\begin{aligned} x &= \begin{pmatrix} 1 & 2 \end{pmatrix} w \\ &= n \end{aligned}", "x = [[1, 2]] w = n"),
    ],
)
def test_styles_and_blocks(text, same) -> None:
    symbols = {**V, "w": "vector[2]"} if "[[1, 2]] w" in same else V
    assert parse(text, symbols) == parse(same, symbols)


STYLES = (
    "mathbf", "boldsymbol", "bm", "bold", "mathrm", "mathit", "mathcal", "mathsf", "mathtt", "mathfrak", "mathscr",
    "vec", "overrightarrow", "mathbb", "mathbbm", "mathop", "pmb", "mathnormal", "symbf", "mathds", "text", "textbf",
    "textit", "textrm", "textsf", "texttt", "operatorname", "mbox", "hbox",
)  # fmt: skip
JOINING = (
    "where", "or", "and", "when", "if", "for", "with", "since", "because", "then", "thus", "hence", "therefore", "so",
    "but", "otherwise", "else",
)  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_every_style_leaves_a_name_what_it_is(style) -> None:
    for text in (rf"\{style}{{u}}", rf"\{style} u", rf"\{style}{{ u }}"):
        assert parse(text, V) == parse("u", V), text
    if style not in ("mathbb", "mathbbm", "mathds"):
        assert parse(rf"\{style}{{softmax}}(u)", V) == parse("softmax(u)", V)


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        (r"x + \mathbf", r"\mathbf stands before nothing", r"\mathbf"),
        (r"x + \text{the model}", "words in a sentence are not read, only mathematics", r"\text{the model}"),
        (r"x + \mbox{or} x", "words in a sentence are not read, only mathematics", r"\mbox{or}"),
        (r"x + \hat", r"\hat goes over one name", r"\hat"),
        (r"x + \hat{2}", r"\hat goes over one name", r"\hat"),
        (r"x + \widetilde{x + n}", r"\widetilde goes over one name", r"\widetilde"),
        (r"x + \mathbb{R}", "a set of numbers is no expression: give the value itself", r"\mathbb{R}"),
        (r"x + \mathbb{N}", "a set of numbers is no expression: give the value itself", r"\mathbb{N}"),
        (r"x + \mathbb{Z}", "a set of numbers is no expression: give the value itself", r"\mathbb{Z}"),
        (r"x + \mathbb{Q}", "a set of numbers is no expression: give the value itself", r"\mathbb{Q}"),
        (r"x + \mathbb{C}", "a set of numbers is no expression: give the value itself", r"\mathbb{C}"),
        (r"x + ℕ", "a set of numbers is no expression: give the value itself", "ℕ"),
        (r"x + \begin{foo} x \end{foo}", r"only matrices are read between \begin and \end", r"\begin"),
        (r"x + \begin x", r"only matrices are read between \begin and \end", r"\begin"),
        (r"x + \begin{cases} 1 \end{cases}", "a value by cases is not read: give one expression", r"\begin"),
        (r"\begin{pmatrix} 1 \end{aligned}", "this ends no block that is open", r"\end{aligned}"),
        (r"x \end{aligned}", "this ends no block that is open", r"\end{aligned}"),
        (r"x \end{pmatrix}", r"\end{pmatrix} closes nothing that is open", r"\end{pmatrix}"),
        (
            r"\begin{aligned} x &= 1 \\ n &= 2 \end{aligned}",
            "the lines of a block go on from each other, with = or a sign",
            r"\\",
        ),
        (r"x \\[2pt] n", "the lines of a block go on from each other, with = or a sign", r"\\[2pt]"),
        (r"x & n", "& was not expected here", "&"),
    ],
)
def test_styles_and_blocks_that_are_refused(text, reason, place) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, V)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize("word", JOINING)
def test_words_that_join_statements(word) -> None:
    with pytest.raises(Unreadable, match="words in a sentence are not read"):
        parse(rf"x \text{{{word}}} n", V)
    with pytest.raises(Unreadable, match="words in a sentence are not read"):
        parse(rf"x = 2 \mathrm{{ {word} }} n = 3", V)
    assert parse(rf"x \text{{{word}}}", {"x": "scalar", word: "scalar"}).shape == ()


def test_styled_letters_that_are_declared() -> None:
    with_e = {**V, "E": "matrix[d,d]", "T": "scalar", "O": "scalar", "V": "scalar"}
    assert parse(r"\mathbb{E}[z]", with_e) == parse("E[z]", V)
    assert parse(r"\mathbf{E} u", with_e).shape == ("d",)
    assert parse(r"\mathbf{T} x", with_e) == parse("T x", with_e)
    assert parse(r"\mathcal{O}(n)", with_e) == parse("O(n)", V)
    assert parse(r"\mathcal{O} x", with_e) == parse("O x", with_e)
    assert parse(r"\mathbb{V} x", with_e) == parse("V x", with_e)
    assert parse(r"\mathbb{V}[z]", with_e) == parse("Var(z)", V)


@pytest.mark.parametrize("style", ["text", "mathrm", "texttt", "operatorname"])
def test_an_escaped_underline_is_part_of_a_name(style) -> None:
    declared = {**S, "y_1": "scalar", "d_ab": "scalar"}
    assert parse(rf"\{style}{{y\_1}} x", declared) == parse("y_1 x", declared)
    assert parse(rf"\{style}{{d\_model}}", declared) == parse("d_model", declared)
    assert parse(rf"\{style}{{d\_a\_b}}", declared) == parse("d_ab", declared)
    assert parse("d_model", {r"\text{d\_model}": "natural"}).name == "d_model"  # pyright: ignore
