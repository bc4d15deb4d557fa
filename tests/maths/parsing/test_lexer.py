"""Numbers, brackets, styles, blocks and runs of letters."""

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Number, Part, symbols_of

S = {
    "q": "vector[d]",
    "k": "vector[d]",
    "x": "scalar",
    "n": "natural",
    "Q": "matrix[n,d]",
    "mu": "vector[d]",
    "z": "random vector[d] ~ N(mu, I)",
}


SAME = [
    ("1024", r"1\,024", "1 024", "1~024", "1{,}024", "1\u00a0024", "1\u2009024", "1\u202f024", r"1\;024"),
    ("12345678.5", r"12\,345\,678.5", "12 345 678.5"),
    ("1024 n", r"1\,024\,n", "1{,}024n"),
    ("(1024, 3)", "(1 024, 3)"),
    ("(1, 24, 3)", "[1 24 3]"),
    ("(2, 3, -5)", "[2., 3., -5.]", r"\begin{bmatrix}2.\\3.\\-5.\end{bmatrix}", r"\left[2., 3., -5.\right]"),
    ("0.0015 x", "1.5e-3x", "1.5e-3 x"),
    ("2.5e-3", "2.5 e-3"),
    ("2 e^2", "2e^2", "2e^{2}"),
    ("q_1", "q[1]", r"\mathbf{q}[1]", "q [1]", r"q\left[1\right]"),
    ("q_2 k_2", "q[2]k[2]"),
    ("Q_{i,j}", "Q[i,j]", "Q[i, j]", "Q[i][j]"),
    ("Q_{i:}", "Q[i,:]"),
    ("Q_{:1}", "Q[:,1]"),
    (r"\sum_i q_i k_i", r"\sum_i q[i] k[i]"),
    ("q_{t+1}", "q[t+1]", "q[t + 1]"),
    (
        "x = n",
        r"x = n \quad (4)",
        r"x = n \tag{4}",
        "x = n, (4)",
        "x = n. (4)",
        r"x = n.\qquad (4.2)",
        r"x = n \hfill (4a)",
    ),
    (
        "x = n",
        r"\begin{equation} x = n, \quad (4) \end{equation}",
        r"$$x = n \quad \text{(4)}$$",
        r"\[x = n \quad (4).\]",
    ),
    ("x n", r"\Rightarrow x n", r"\implies xn", r"\therefore x n", "∴ x n", "⇒ x n", "⟹ x n", r"\iff x n", "=> x n"),
    ("q^T k", "q⊤k", "q⊤ k", r"q^{\top} k"),
    (r"Var(z^T q)", r"\mathbb{V}[z^T q]", r"\mathbb V(z^T q)", r"\mathbb{V}\left[z^T q\right]"),
]


STYLED = {"x": "scalar", "n": "natural", "d": "natural", "d_model": "natural", "s": "vector[n]", "q": "vector[d]"}
SAME_STYLED = [
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


@pytest.mark.parametrize(
    ("symbols", "texts"),
    [*((S, texts) for texts in SAME), *((STYLED, texts) for texts in SAME_STYLED)],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_spellings_of_one_thing_read_alike(symbols, texts) -> None:
    first, *others = [parse(text, symbols) for text in texts]
    for text, other in zip(texts[1:], others, strict=True):
        assert other == first, text


@pytest.mark.parametrize(
    "text", ["2 3", "1 02", "2.5.3", "0.123 456", "1024 000", r"2\,3", "x 2 3", r"2 \cdot 3 4", "(1 2 3)", "0 024"]
)
def test_two_numbers_side_by_side_are_refused(text) -> None:
    with pytest.raises(Unreadable, match="side by side"):
        parse(text, S)


@pytest.mark.parametrize(
    "text", [r"\frac12 3", r"x^2 3", "x^-2 3", r"\sqrt2 3", r"\log_2 8", "2 10^3", "2(3)", "q_1 2"]
)
def test_a_number_that_belongs_to_something_else_may_stand_before_one(text) -> None:
    assert parse(text, S).shape == ()


@pytest.mark.parametrize("text", ["1_024", "1_3", "2_000"])
def test_digits_are_not_grouped_by_a_lower_line(text) -> None:
    with pytest.raises(Unreadable, match="grouped"):
        parse(text, S)
    assert parse(r"\mathbf{1}_{3}", S).shape == (3,)
    assert parse("1_n", S).shape == ("n",)


def test_a_point_at_the_end_of_an_entry_says_no_digits() -> None:
    entries = parse("[2., 3.50]", S).entries  # pyright: ignore[reportAttributeAccessIssue]
    assert [isinstance(entry, Number) and entry.unit is None for entry in entries] == [True, False]


def test_square_brackets_are_places_only_after_what_has_axes() -> None:
    assert parse("x[2]", S) == parse("x(2)", S)
    assert parse("q[x+1]", S) == parse("q(x+1)", S)
    assert parse("Q [1, 2]", {"Q": "matrix[3,2]"}).shape == (3,)
    assert isinstance(parse("Q[1,2]", {"Q": "matrix[3,2]"}), Part)
    with pytest.raises(IllTyped, match="from 1"):
        parse("q[0]", S)


@pytest.mark.parametrize("text", ["x (4)", "x[4]"])
def test_a_number_in_brackets_is_a_factor(text) -> None:
    assert parse(text, S) == parse("x 4", S)


@pytest.mark.parametrize(
    ("text", "opened"), [("[x)", "["), ("[Q|n]", "|"), ("f(q||q)", "||"), ("{x)", "{"), (r"\langle x)", r"\langle")]
)
def test_a_bracket_that_closes_nothing_says_what_is_open(text, opened) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, S)
    assert caught.value.reason.endswith(f"what is open is {opened}")


def test_an_ampersand_lays_out_a_chain_and_multiplies_nothing() -> None:
    assert parse(r"x &= n \\ &= 3", S) == parse("x = n = 3", S)
    with pytest.raises(Unreadable, match="& was not expected"):
        parse("x & n", S)


M = {
    **S,
    "A": "matrix[d,d]",
    "i": "index[n]",
    "w": "vector[3]",
    "Sigma": "matrix[d,d]",
    "Pi": "positive",
    "u": "vector[d]",
}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"\Sigma \mu", r"(\Sigma) \mu"),
        (r"\Sigma_{12}", r"(\Sigma)_{12}"),
        (r"\Sigma_i \mu_i", None),
        (r"\Sigma_{j=1}^{d} \mu_j", r"\sum_{j=1}^{d} \mu_j"),
        (r"\Sigma_j \mu_j", r"\sum_j \mu_j"),
        (r"\Sigma_j (\mu_j + 1)", r"\sum_j (\mu_j + 1)"),
        (r"\Sigma_{j} 2\mu_j", r"\sum_j 2\mu_j"),
        (r"\Sigma_{j < l} A_{jl}", r"\sum_{j<l} A_{jl}"),
        (r"\Sigma_{j \ne l} A_{jl}", r"\sum_{j\ne l} A_{jl}"),
        (r"\Sigma_{j \le n} x", r"\sum_{j \le n} x"),
        (r"\Sigma_{j \leq n} x", r"\sum_{j \le n} x"),
        (r"\Pi_{j=1}^{d} \mu_j", r"\prod_{j=1}^{d} \mu_j"),
        (r"\Pi_j \mu_j", r"\prod_j \mu_j"),
        (r"\Pi x", "(Pi) x"),
        (r"\Sigma_1 \cdot \mu", r"(\Sigma)_1 \cdot \mu"),
        (r"u^T \Sigma_j", r"u^T (\Sigma)_j"),
        (r"\Sigma_j \cdot u", r"(\Sigma)_j \cdot u"),
        (r"\arg\max_j w_j", "argmax(w)"),
        (r"\arg \max_j w_j", "argmax(w)"),
        (r"\arg\,\max_j w_j", "argmax(w)"),
        (r"\argmax_j w_j", "argmax(w)"),
        ("|x||n|", "|x| |n|"),
        ("||q||||k||", r"\|q\| \|k\|"),
        ("||x|+1|", "|(|x|+1)|"),
        ("|x|^2", "(|x|)^2"),
        (r"\left|x\right||n|", "|x||n|"),
        (r"\vert x\vert\vert n \vert", "|x||n|"),
        ("|x + |n||", "|(x + |n|)|"),
        ("|-x|", "|(-x)|"),
        ("x ** 2", "x^2"),
        ("mu.T mu", "mu^T mu"),
        ("(mu).T mu", "mu^T mu"),
        ("Q[1].T q", "Q_1^T q"),
        ("mu . mu", r"mu \cdot mu"),
        (r"(q) . \mu", r"q \cdot \mu"),
        ("mu . (q)", r"mu \cdot q"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac 1 2", r"\frac{1}{2}"),
        (r"\frac{1}2", r"\frac{1}{2}"),
        (r"\frac1{2}", r"\frac{1}{2}"),
        (r"\frac123", r"\frac{1}{2} \cdot 3"),
        (r"\frac12 3", r"\frac{1}{2} \cdot 3"),
        (r"\frac1x", r"\frac{1}{x}"),
        (r"\frac{x}34", r"\frac{x}{3} \cdot 4"),
        (r"\sqrt 2 3", r"\sqrt{2} \cdot 3"),
        (r"\sqrt[3]{x}", "x^{1/3}"),
        (r"\sqrt [3]", r"\sqrt{3}"),
        ("x^{-2} 3", r"x^{-2} \cdot 3"),
        ("x^-2 3", r"x^{-2} \cdot 3"),
        ("q_1 2", r"q_1 \cdot 2"),
        ("2 10^3", r"2 \cdot 10^3"),
        ("2 10**3", r"2 \cdot 10^3"),
        ("Q[n,1]", "Q_{n,1}"),
        (r"Q_{1,\cdot\,}", "Q_{1:}"),
        (r"Q_{\cdot\, 1}", "Q_{:1}"),
        (r"Q_{1 \cdot}", "Q_{1:}"),
        (r"Q_{\cdot,1}", "Q_{:1}"),
        ("Q[i, n-1]", "Q_{i,n-1}"),
        ("Q[i,j]", "Q_{ij}"),
        ("Q[:,j]", "Q_{:j}"),
        (r"Q\left[i, :\right]", "Q_{i:}"),
        ("q[n+1]", "q_{n+1}"),
        ("q[10]", "q_{10}"),
        ("Q[i][j]", "Q_{i,j}"),
        ("Q[1][2]", "Q_{1,2}"),
        ("x[2]", "x(2)"),
        ("1{,}024 x", "1024 x"),
        ("10 000", "10000"),
        ("[10 000]", "(10, 0)"),
        ("12 345 678", "12345678"),
        ("1.5 e-3", "1.5e-3"),
        ("2e^3", "2 e^3"),
        ("2E3", "2000"),
        ("1e-3x", "1e-3 x"),
        ("{} x", "x"),
        ("{ } x { }", "x"),
        (r"$x$", "x"),
        (r"\(x\)", "x"),
        (r"\[x\]", "x"),
        ("`x`", "x"),
        ("**x**", "x"),
        (r"\, x \;", "x"),
        ("x.", "x"),
        ("x,", "x"),
        ("x;", "x"),
        (r"x \;.", "x"),
        (r"=> x", "x"),
        (r"\Rightarrow x", "x"),
        (r"\Longrightarrow x", "x"),
        (r"\therefore x", "x"),
        (r"\iff x", "x"),
        (r"\implies x", "x"),
        (r"x = n.\quad (4.2a)", "x = n"),
        (r"x = n \hfill (12)", "x = n"),
        (r"x = n \qquad \text{(4)}", "x = n"),
        (r"x = n, \mathrm{(4)}", "x = n"),
    ],
)
def test_signs_numbers_and_places(text, same) -> None:
    if same is not None:
        assert parse(text, M) == parse(same, M)
    else:  # i is declared, and Σ_i with it a row of Σ
        with pytest.raises(IllTyped):
            parse(text, M)


def test_a_declared_sum_sign_with_a_separate_index() -> None:
    both = {**M, "Sigma_q": "matrix[d,d]", "Pi_q": "positive", "Sigma_p": "matrix[d,d]", "Pi_p": "positive"}
    assert parse(r"\Sigma_q \mu", both) == parse(r"(\Sigma_q) \mu", both)
    assert parse(r"\Sigma_q \mu", both).shape == ("d",)
    assert parse(r"\Pi_q \mu", both).factors[0].name == "Pi_q"  # pyright: ignore
    assert parse(r"\Sigma_p \mu", both) == parse(r"(\Sigma_p) \mu", both)
    assert parse(r"\Pi_p \mu", both).factors[0].name == "Pi_p"  # pyright: ignore
    assert parse(r"\Sigma_l \mu_l", both) == parse(r"\sum_l \mu_l", both)
    for word in (r"\sigma", r"\pi"):
        assert parse(rf"{word}_j \mu_j", {**M, word: "vector[d]"}).factors[0].shape == ()  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("x ! !", "! is not a sign that qkv reads here", "!"),
        ("2'", "a prime belongs to the name before it; the transpose is written ^T", "'"),
        ("(x)'", "a prime belongs to the name before it; the transpose is written ^T", "'"),
        ('x + "', '" is not a sign that qkv reads here', '"'),
        ("x # n", "# is not a sign that qkv reads here", "#"),
        ("x : n", ": is not a sign that qkv reads here", ":"),
        ("x + 2 . 3", ". is not a sign that qkv reads here", "."),
        ("q .k", ". is not a sign that qkv reads here", "."),
        ("q. k", ". is not a sign that qkv reads here", "."),
        ("5.x", ". is not a sign that qkv reads here", "."),
        (r"x + \frac.5{2}", r"a decimal in a fraction needs braces: \frac{0.5}{d}", ".5"),
        ("x + 1_024", r"digits are not grouped by _: write 1000, or \mathbf{1}_{3} for ones", "1"),
        ("x + (1 2)", "two numbers are side by side: write the product, or one number", "2"),
        ("x + 1 02", "two numbers are side by side: write the product, or one number", "02"),
        ("x + 01 024", "two numbers are side by side: write the product, or one number", "024"),
        (r"x + \prime", "a prime belongs to the name before it: x'", r"\prime"),
        (r"x + \foo", r"\foo is not a command that qkv reads", r"\foo"),
        (r"x + \arg n", r"\arg is not a command that qkv reads", r"\arg"),
        (r"x + \@", r"\@ is not a command that qkv reads", r"\@"),
        ("x + \\", "a backslash at the end commands nothing", "\\"),
        ("x ; n", "; was not expected here", ";"),
        ("x + ", "the text is incomplete", "+"),
        ("x + n n +", "the text is incomplete", "+"),
        ("* x", "* was not expected here", "*"),
        (r"x \cdot \times n", "× was not expected here", r"\times"),
        (r"x \frac \le 2", "≤ was not expected here", r"\le"),
        ("x + ()", ") was not expected here", ")"),
        (r"\frac{x} \mu_", "the text is incomplete", "_"),
        (r"1 + q_{1 : \mu}", "μ was not expected here", r"\mu"),
        (r"2 + \frac x", "the text is incomplete", "x"),
        (r"x \langle n \mu \rangle", "⟩ was not expected here", r"\rangle"),
        ("x^2^3", "two upper indices on one thing: show by brackets what is raised to what", "^3"),
        (r"x^\frac12^3", "two upper indices on one thing: show by brackets what is raised to what", "^3"),
        ("", "the text is empty", ""),
        ("  ", "the text is empty", "  "),
        ("$ $", "the text is empty", "$ $"),
    ],
)
def test_signs_that_are_refused(text, reason, place) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, M)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize(
    "inside",
    ["2", "x", r"\pi", "q^T", r"u^{\top}", "(x)", "[x]", "{x}", r"\{x\}", r"\|q\|", r"\langle q, \mu\rangle",
     r"\sqrt{x}", r"\lVert q \rVert", r"\lvert x \rvert", "q_1", "x^2", r"\begin{matrix} 1 \\ 2 \end{matrix}",
     "0_d", "1_d"],
)  # fmt: skip
def test_a_bar_closes_after_whatever_ends(inside) -> None:
    for text, same in ((f"|{inside}|", rf"\lvert {inside} \rvert"), (f"||{inside}||", rf"\lVert {inside} \rVert")):
        assert parse(text, M) == parse(same, M)
        assert parse(f"{text} x", M) == parse(f"{same} x", M)
        assert parse(rf"x {text}\top", M) == parse(f"x {same}", M)
        assert parse(f"{text}.T x", M) == parse(f"{same} x", M)
    assert parse(rf"{inside} \\ + {inside}", M) == parse(f"{inside} + {inside}", M)
    with pytest.raises(Unreadable, match="the lines of a block go on"):
        parse(rf"{inside} \\ {inside}", M)


@pytest.mark.parametrize(
    "opening",
    [r"\langle", r"\{", r"\|", r"\lVert", r"\lvert", r"\vert", r"\lbrace", r"\begin", "||", "|", "‖", "⟨", "("],
)
def test_what_is_never_closed_is_named_whole(opening) -> None:
    text = f"x + {opening}{{matrix}} x" if opening == r"\begin" else f"x + {opening} q"
    with pytest.raises(Unreadable) as caught:
        parse(text, S)
    assert caught.value.reason == f"{opening} is never closed"
    assert text[slice(*caught.value.span)].strip() == opening


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
        parse(rf"\begin{{{name}}} 1 & x > 0 \\ 0 & x < 0 \end{{{name}}}", STYLED)


V = {
    **STYLED,
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
        (r"x + \mathbf", r"\mathbf has no argument", r"\mathbf"),
        (r"x + \text{the model}", "words in a sentence are not read, only mathematics", r"\text{the model}"),
        (r"x + \mbox{or} x", "words in a sentence are not read, only mathematics", r"\mbox{or}"),
        (r"x + \hat", r"\hat goes over one name", r"\hat"),
        (r"x + \hat{2}", r"\hat goes over one name", r"\hat"),
        (r"x + \widetilde{x + n}", r"\widetilde goes over one name", r"\widetilde"),
        (r"x + \mathbb{R}", "a set of numbers is not an expression: give the value itself", r"\mathbb{R}"),
        (r"x + \mathbb{N}", "a set of numbers is not an expression: give the value itself", r"\mathbb{N}"),
        (r"x + \mathbb{Z}", "a set of numbers is not an expression: give the value itself", r"\mathbb{Z}"),
        (r"x + \mathbb{Q}", "a set of numbers is not an expression: give the value itself", r"\mathbb{Q}"),
        (r"x + \mathbb{C}", "a set of numbers is not an expression: give the value itself", r"\mathbb{C}"),
        (r"x + ℕ", "a set of numbers is not an expression: give the value itself", "ℕ"),
        (r"x + \begin{foo} x \end{foo}", r"only matrices are read between \begin and \end", r"\begin"),
        (r"x + \begin x", r"only matrices are read between \begin and \end", r"\begin"),
        (r"x + \begin{cases} 1 & n \end{cases}", "a value by cases is not read: give one expression", "&"),
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
    with pytest.raises(Unreadable, match=r"words in a sentence are not read|reads like words"):
        parse(rf"x \text{{{word}}} n", V)
    with pytest.raises(Unreadable, match=r"words in a sentence are not read|reads like words"):
        parse(rf"x = 2 \mathrm{{ {word} }} n", V)
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
    declared = {**STYLED, "y_1": "scalar", "d_ab": "scalar"}
    assert parse(rf"\{style}{{y\_1}} x", declared) == parse("y_1 x", declared)
    assert parse(rf"\{style}{{d\_model}}", declared) == parse("d_model", declared)
    assert parse(rf"\{style}{{d\_a\_b}}", declared) == parse("d_ab", declared)
    assert parse("d_model", {r"\text{d\_model}": "natural"}).name == "d_model"  # pyright: ignore


SPELT = {"n": "natural", "d": "natural", "x": "scalar", "s": "vector[n]", "c": "scalar", "i_max": "index[n]"}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("log2(n)", r"\log_2 n"),
        ("log2 n", r"\log_2 n"),
        ("n log10(n)", r"n \log_{10}(n)"),
        (r"\text{log2}(n)", r"\log_2(n)"),
        (r"\operatorname{log10} n", r"\log_{10} n"),
        ("log 2 n", r"\log(2n)"),
        ("O(n lg n)", "O(n log n)"),
        (r"O(n \lg n)", "O(n log n)"),
        ("O(bnd)", "O(b n d)"),
        ("O(bd(n+1))", "O(b d (n+1))"),
        ("O(nd_model)", "O(n d_model)"),
        ("O(seq_len^2 d)", r"O(d\,\text{seq_len}^2)"),
        ("s_{i_max}", r"s_{i_{\max}}"),
    ],
)
def test_spellings_of_one_thing(text, same) -> None:
    assert compare(same, text, SPELT).kind == "equal"


@pytest.mark.parametrize("text", ["lg n", r"\lg n", "lg(n)"])
def test_lg_has_no_base_outside_of_an_order(text) -> None:
    with pytest.raises(Unreadable, match="base 2 to some"):
        parse(text, SPELT)
    assert parse("lg", {"l": "scalar", "g": "scalar"}) == parse("l g", {"l": "scalar", "g": "scalar"})


@pytest.mark.parametrize("word", ["sinh", "cot", "foo", "gelu"])
def test_a_word_before_a_bracket_is_one_word(word) -> None:
    with pytest.raises(Unreadable, match=f"^{word} is not declared"):
        parse(f"{word}(x)", SPELT)
    with pytest.raises(Unreadable, match=f"{word} is not a function"):
        parse(f"O(n {word}(n))", SPELT)


def test_functions_are_no_products_of_declared_letters() -> None:
    letters = dict.fromkeys("sincotaxh", "scalar")
    for text in ("cot(x)", "cosh x", "sinh(x)"):
        with pytest.raises(Unreadable, match="is not declared"):
            parse(text, letters)
    assert parse("cs(x)", letters) == parse("c s (x)", letters)


def test_a_function_that_is_nearly_spelt_right_is_named() -> None:
    with pytest.raises(Unreadable, match="the function softmax is known"):
        parse("softmx(s)", SPELT)


def test_long_words_in_an_order_are_one_name() -> None:
    names = {part.name for part in parse("O(sequence n)", SPELT).body.factors}  # pyright: ignore[reportAttributeAccessIssue]
    assert names == {"sequence", "n"}


L = {
    "x": "scalar",
    "y": "scalar",
    "n": "natural",
    "u": "vector[d]",
    "A": "matrix[n,n]",
    "q": "random vector[d] ~ N(0, I)",
}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("xy", "x y"),
        ("nx", "n x"),
        ("xyu", "x y u"),
        ("xpi", r"x \pi"),
        ("xe^y", "x e^y"),
        ("x2", "x 2"),
        ("u2", "u_2"),
        ("u12", "u_{12}"),
        ("A12", "A_{1,2}"),
        ("x^2y", "x^2 y"),
        ("x^ny", "x^n y"),
        ("2xy^2", "2 x y^2"),
        ("u_iu_i", "u_i u_i"),
        (r"\sum_iu_i", r"\sum_i u_i"),
        (r"\sum_ie^{u_i}", r"\sum_i e^{u_i}"),
        ("A_ij", "A_{ij}"),
        ("A_ii", "A_{ii}"),
        (r"u_iu_j\delta_ij", r"u_i u_j \delta_{ij}"),
        ("u_i u_j I_ij", "u_i u_j I_{ij}"),
        ("expx", r"\exp(x)"),
        ("logn", r"\log n"),
        ("xlogn", r"x\log n"),
        ("sqrtn", r"\sqrt n"),
        ("log2(n)", r"\log_2(n)"),
        ("log2[n]", r"\log_2(n)"),
        ("log2{n}", r"\log_2(n)"),
        ("log2 n", r"\log_2 n"),
        (r"log2 \pi", r"\log_2 \pi"),
        (r"log2\left(n\right)", r"\log_2(n)"),
        (r"log2\big(n\big)", r"\log_2(n)"),
        (r"log2\Big(n\Big)", r"\log_2(n)"),
        ("log10(n)", r"\log_{10}(n)"),
        ("log2n", r"\log(2n)"),
        (r"\log2 n", r"\log(2 n)"),
        ("E(q)", "E[q]"),
        (r"E\left[q\right]", "E[q]"),
        (r"E\{q\}", "E[q]"),
        ("E_q[q]", "E[q]"),
        ("E_{q}[q]", "E[q]"),
        ("nE[q]", "n E[q]"),
        ("sum(u)", r"\operatorname{sum}(u)"),
        ("sum_i u_i", r"\sum_i u_i"),
        ("prod_i u_i", r"\prod_i u_i"),
        (r"\Sigma_i u_i", r"\sum_i u_i"),
        (r"\Pi_i u_i", r"\prod_i u_i"),
        ("O(abcd)", "O(a b c d)"),
        ("O(nlogn)", r"O(n \log n)"),
        ("O(abc)", "O(a b c)"),
        ("O(ab(n+1))", "O(a b (n+1))"),
        (r"\Omega(n)", "Ω(n)"),
        (r"O\left(n\right)", "O(n)"),
        (r"O\!\left(n\right)", "O(n)"),
        (r"O{}(n)", "O(n)"),
        ("O[n]", "O(n)"),
        ("O{n}", "O(n)"),
        (r"O\{n\}", "O(n)"),
    ],
)
def test_runs_of_letters_are_cut_up(text, same) -> None:
    assert parse(text, L) == parse(same, L)


@pytest.mark.parametrize("name", ["foo", "loss", "seq_len", "d_model", "head_dim"])
def test_a_long_name_is_one_name_where_it_is_declared(name) -> None:
    assert parse(f"x {name} x", {"x": "scalar", name: "scalar"}).factors[1].name == name  # pyright: ignore
    assert parse(f"{name}^2", {name: "scalar"}).base.name == name  # pyright: ignore
    if "_" in name:
        assert parse(f"O({name} n)", {}).body.factors[0].name == name  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("O(abcde)", {"abcde"}),
        ("O(abcd)", {"a", "b", "c", "d"}),
        ("O(seq_len)", {"seq_len"}),
        ("O(seq len)", {"s", "e", "q", "l", "n"}),
        ("O(d_model d_k)", {"d_model", "d_k"}),
        ("O(d_{ff})", {"d_ff"}),
        (r"O(n_{\text{heads}})", {"n_heads"}),
    ],
)
def test_names_in_orders(text, names) -> None:
    assert set(symbols_of(parse(text, {}))) == names


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("the x", "this reads like words, not like mathematics", "the"),
        ("x is y", "this reads like words, not like mathematics", "is"),
        ("foo bar", "this reads like words, not like mathematics", "foo"),
        ("abc", "this reads like words, not like mathematics", "abc"),
        ("I know", "this reads like words, not like mathematics", "know"),
        ("O(foo(n))", "foo is not a function that qkv reads", "foo"),
        ("O(cosh n)", "cosh is not a function that qkv reads", "cosh"),
        ("x + lg n", r"lg is of base 2 to some, of base 10 to others: write \log_2", "lg"),
        ("(" * 61 + "x" + ")" * 61, "brackets are nested more than 60 deep", "("),
        ("x + (y]", "] closes nothing that is open: what is open is (", "]"),
        ("x + y]", "] closes nothing that is open", "]"),
        (r"x + \langle y)", r") closes nothing that is open: what is open is \langle", ")"),
        ("x + |y)", ") closes nothing that is open: what is open is |", ")"),
        ("x + (y", "( is never closed", "("),
        ("x + [y", "[ is never closed", "["),
        ("x^{y", "{ is never closed", "{"),
        (r"x + \sqrt[3 y", "[ is never closed", "["),
        (r"x + \begin{pmatrix} y", r"\begin is never closed", r"\begin"),
        ("x + |y", "| is never closed", "|"),
        ("x + ((y)", "( is never closed", "("),
    ],
)
def test_what_is_refused(text, reason, place) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, L)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


def test_how_deep_brackets_may_be() -> None:
    assert parse("(" * 60 + "x" + ")" * 60, L) == parse("x", L)


def test_a_declared_name_wins_over_what_a_word_means_by_itself() -> None:
    for word in ("log", "exp", "max", "tr", "sum", "sqrt", "E", "O", "pi", "Sigma", "Pi", "inf", "lg", "e", "I", "sin"):
        assert parse(f"{word} x", {word: "scalar", "x": "scalar"}).factors[0].name == word  # pyright: ignore
    assert parse("log2 x", {"log": "scalar", "x": "scalar"}) == parse("(log) 2 x", {"log": "scalar", "x": "scalar"})
    assert parse("log2", {"log_2": "scalar"}).name == "log_2"  # pyright: ignore


def test_two_letters_below_a_delta_are_two_indices() -> None:
    below = {"s": "vector[k]"}
    assert parse(r"s_n s_u \delta_nu", below) == parse(r"s_n s_u \delta_{n,u}", below)
    assert parse("s_n s_u I_nu", below) == parse(r"s_n s_u \delta_{n,u}", below)
    declared = {"delta": "vector[k]", "nu": "index[k]", "I": "vector[k]"}
    assert parse(r"\delta_nu", declared) == parse(r"\delta_{\nu}", declared)
    assert parse("I_nu", declared) == parse(r"I_{\nu}", declared)
    indices = {"A": "matrix[k,k]", "i": "index[k]", "j": "index[k]"}
    assert parse("A_ij", indices) == parse("A_{i,j}", indices)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("log3(n)", r"\log_3(n)"),
        ("log3 n", r"\log_3 n"),
        ("log16(n)", r"\log_{16}(n)"),
        ("log2.5(n)", r"\log_{2.5}(n)"),
        (r"\text{log3}(n)", r"\log_3(n)"),
        ("O(n log3(n))", r"O(n \log_3(n))"),
    ],
)
def test_any_digits_right_behind_log_are_its_base(text, same) -> None:
    assert parse(text, SPELT) == parse(same, SPELT)


@pytest.mark.parametrize("sign", [r"\cdot", r"\times", r"\div", r"\pm", r"\le", r"\ne", "+"])
def test_digits_behind_log_are_its_argument_where_a_sign_follows(sign) -> None:
    for base in ("2", "3"):
        assert parse(f"log{base} {sign} x", SPELT) == parse(rf"\log({base}) {sign} x", SPELT)
    assert parse(r"\left(log3 \right) x", SPELT) == parse(r"\log(3) x", SPELT)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"\sum_ie^{s_i}", r"\sum_{i} e^{s_i}"),
        (r"\sum_ixe^{s_i}", r"\sum_{i} x e^{s_i}"),
        (r"\sum_ije^{s_i + s_j}", r"\sum_{i,j} e^{s_i + s_j}"),
        ("s_ie^x", "s_{i} e^x"),
    ],
)
def test_a_power_of_e_right_behind_a_declared_index_is_no_index(text, same) -> None:
    declared = {**SPELT, "i": "index[n]", "j": "index[n]"}
    assert parse(text, declared) == parse(same, declared)


def test_an_e_below_stays_an_index_where_it_is_declared_and_a_letter_of_a_longer_word() -> None:
    declared = {"A": "matrix[n,n]", "i": "index[n]", "e": "index[n]"}
    assert parse("A_ie^2", declared) == parse("(A_{i,e})^2", declared)
    with pytest.raises(Unreadable, match="x_base is not declared"):
        parse("x_base^2", SPELT)
