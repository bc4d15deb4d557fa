"""Numbers, places in square brackets, equation numbers and what stands before and after a text."""

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Number, Part

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


@pytest.mark.parametrize("texts", SAME, ids=lambda texts: texts[0])
def test_spellings_of_one_thing_read_alike(texts) -> None:
    first, *others = [parse(text, S) for text in texts]
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
def test_a_number_in_brackets_beside_something_is_a_factor(text) -> None:
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
        ("2e3x", "2 e 3 x"),
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


def test_a_declared_sum_sign_with_an_index_of_its_own() -> None:
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
        ("x !", "factorials are not read", "!"),
        ("2'", "a prime belongs to the name before it; the transpose is written ^T", "'"),
        ("(x)'", "a prime belongs to the name before it; the transpose is written ^T", "'"),
        ('x + "', '" is no sign that qkv reads here', '"'),
        ("x # n", "# is no sign that qkv reads here", "#"),
        ("x : n", ": is no sign that qkv reads here", ":"),
        ("x + 2 . 3", ". is no sign that qkv reads here", "."),
        ("q .k", ". is no sign that qkv reads here", "."),
        ("q. k", ". is no sign that qkv reads here", "."),
        ("5.x", ". is no sign that qkv reads here", "."),
        (r"x + \frac.5{2}", r"a decimal in a fraction stands in braces: \frac{0.5}{d}", ".5"),
        ("x + 1_024", r"digits are not grouped by _: write 1000, or \mathbf{1}_{3} for ones", "1"),
        ("x + (1 2)", "two numbers stand side by side: write the product, or one number", "2"),
        ("x + 1 02", "two numbers stand side by side: write the product, or one number", "02"),
        ("x + 01 024", "two numbers stand side by side: write the product, or one number", "024"),
        (r"x + \prime", "a prime belongs to the name before it: x'", r"\prime"),
        (r"x + \foo", r"\foo is no command that qkv reads", r"\foo"),
        (r"x + \arg n", r"\arg is no command that qkv reads", r"\arg"),
        (r"x + \@", r"\@ is no command that qkv reads", r"\@"),
        ("x + \\", "a backslash at the end commands nothing", "\\"),
        ("x ; n", "; was not expected here", ";"),
        ("x + ", "this stops before it is complete", "+"),
        ("x + n n +", "this stops before it is complete", "+"),
        ("* x", "* was not expected here", "*"),
        (r"x \cdot \times n", "× was not expected here", r"\times"),
        (r"x \frac \le 2", "≤ was not expected here", r"\le"),
        ("x + ()", ") was not expected here", ")"),
        (r"\frac{x} \mu_", "this stops before it is complete", "_"),
        (r"1 + q_{1 : \mu}", "μ was not expected here", r"\mu"),
        (r"2 + \frac x", "this stops before it is complete", "x"),
        (r"x \langle n \mu \rangle", "⟩ was not expected here", r"\rangle"),
        ("x^2^3", "two upper indices on one thing: say by brackets what is raised to what", "^3"),
        (r"x^\frac12^3", "two upper indices on one thing: say by brackets what is raised to what", "^3"),
        ("", "there is nothing here to read", ""),
        ("  ", "there is nothing here to read", "  "),
        ("$ $", "there is nothing here to read", "$ $"),
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
