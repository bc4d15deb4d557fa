"""Many spellings of one tree, shapes, and refusals with their position."""

import dataclasses
from collections.abc import Iterator

import pytest

from qkv.errors import IllTyped, MathsError, OptionTypeError, QkvError, Unreadable
from qkv.maths import compare, latex, plain
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Constant, Index, Node, Number, Order, PlusMinus, Relation, Written

S = {
    "mu": "vector[d]",
    "mu_q": "vector[d]",
    "sigma": "positive",
    "sigma_q": "positive",
    "x": "scalar",
    "gamma": "scalar",
    "d": "natural",
    "b": "natural",
    "h": "natural",
    "d_model": "natural",
    "q": "random vector[d] ~ N(mu, sigma^2 I)",
    "k": "random vector[d] ~ N(mu, sigma^2 I)",
    "Q": "matrix[n,d]",
    "K": "matrix[n,d]",
    "V": "matrix[n,v]",
    "A": "matrix[n,n]",
    "X": "matrix[n,D]",
    "W_Q": "matrix[D,d]",
    "s": "vector[n]",
    "a": "vector[n] = softmax(s)",
    "w": "vector[3]",
    "phi": "map vector[d] -> vector[F]",
    "sim": "map vector[d], vector[d] -> scalar",
}


SAME = [
    (
        r"\mu^T\mu",
        r"\mu^\top \mu",
        "mu^T mu",
        "μᵀμ",
        r"\boldsymbol{\mu}^{\mathsf T}\vec\mu",
        r"\mu\cdot\mu",
        "mu.T @ mu",
        "mu . mu",
    ),
    ("w_2", "w2", "w_{2}"),
    ("s_{12}^2 w_1", "s12^2 w1"),
    ("x 2", "x2"),
    (r"\mu^T\mu", r"\langle\mu,\mu\rangle", "$\\mu \\cdot \\mu$.", r"\boxed{\mu^T\mu}", r"\(\mu^T\mu\)", "**μᵀμ**"),
    (
        "‖μ‖²",
        r"\|\mu\|^2",
        "||mu||^2",
        r"\lVert\mu\rVert_2^2",
        r"\left\|\mu\right\|_{2}^{2}",
        r"\|\mu\|^2_2",
        "norm(mu)^2",
    ),
    ("d_model", r"d_{\text{model}}", "d_{model}", r"d_\mathrm{model}", r"d_{\mathrm{model}}"),
    ("mu_q", r"\mu_q", r"\mu_{q}", "μ_q", r"\mathbf{\mu}_q"),
    ("sigma_q^2", r"\sigma^2_q", r"\sigma_{q}^{2}", "σ_q²"),
    ("bd/h", "b d / h", r"b\,d/h", "b*d/h", r"b \times d / h"),
    ("XW_Q", "X W_Q", r"X W_{Q}", r"\mathbf X\mathbf W_Q", "X @ W_Q"),
    ("1/2d", r"(1/2) d", r"\frac{1}{2}d", r"\frac12 d", r"\tfrac12 d", "½ d"),
    (r"\sum_{i=1}^{d} \mu_i^2", "Σ_i μ_i²", "sum_i mu_i^2", "sum_{i=1}^d mu_i^2", r"\sum\limits_i \mu_{i}^2", "Σ μ_i²"),
    (r"\sum_{i<j} A_{ij}", r"\sum_{1 \le i < j \le n} A_{i,j}"),
    (
        r"\mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d}}\right)V",
        "softmax(QK^T/sqrt(d))V",
        r"\text{softmax}(Q K^T/√d) V",
    ),
    ("(1,4,3)", "[1,4,3]", "[1,4,3]^T", "[1 4 3]", r"\begin{bmatrix}1\\4\\3\end{bmatrix}", "[1; 4; 3]"),
    ("[[1,2],[3,4]]", "[1 2; 3 4]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\\\end{bmatrix}"),
    ("6.90e-13", r"6.90 \times 10^{-13}", "6.90·10^-13", "6.90 × 10⁻¹³", "6.90*10^{-13}"),
    ("exp(-x)", "e^{-x}", "e^-x", r"\exp(-x)", r"\exp -x", r"\exp\left(-x\right)", r"\mathrm{exp}[-x]"),
    ("E[q^T k]", r"\mathbb{E}[q^\top k]", r"\mathbb E(q^T k)", "𝔼[qᵀk]", r"\mathbb{E}\left[q^T k\right]"),
    ("Var(q^T k)", r"\operatorname{Var}[q^T k]", r"\text{Var}\left(q^\top k\right)", "Cov(q^T k, q^T k)"),
    ("tr(A)", r"\operatorname{tr} A", r"\mathrm{trace}(A)", r"\text{tr}(A)"),
    ("mu_1", r"\mu_{1}", "μ₁", "(mu)_1"),
    ("A_{12}", "A_{1,2}", "A_12"),
    ("Q_i^T K_j", r"Q_i \cdot K_j", r"Q_{i}^\top K_{j}"),
    (r"\mu\mu^T", r"\mu \otimes \mu", "μμᵀ"),
    (r"\mathbf{1}_d", "1_d", r"\mathbf 1_{d}", r"\mathbb{1}_d", "𝟏_d"),
    (r"\mathbf{1}^T\mu", "1_d^T mu", "1^T mu", r"\mathbb{1}^\top\mu"),
    (r"\sigma^2 I_d", "σ² I_d", r"\sigma^2\mathbf{I}_d", r"\sigma^2 I_{d \times d}"),
    (r"\log_2 n", r"\frac{\log n}{\log 2}", "log_2(n)", r"\ln(n)/\ln(2)"),
    (r"\arg\max_j s_j", r"\operatorname{argmax}(s)", "argmax s", r"\operatorname*{arg\,max}_j s_j"),
    (r"\frac{\partial a_i}{\partial s_j}", "∂a_i/∂s_j", r"\frac{\partial}{\partial s_j} a_i"),
    (r"s_i \sum_{j\le i} A_{ij}", r"s_i \sum_{j=1}^{i} A_{ij}"),
    (r"\sum_ie^{s_i}", r"\sum_i e^{s_i}"),
    (r"x \mp d", r"x \pm (-d)"),
    (r"Q\mu \odot K q + s", r"((Q\mu) \odot (K q)) + s", "Qμ ⊙ Kq + s"),
    (r"Q\mu \otimes K q", r"(Q\mu)(K q)^T"),
    (r"s \odot -A s / x \odot s", r"(s \odot ((-A s)/x)) \odot s"),
    ("x", r"\mathit{x}", "𝑥", "𝐱"),
    (r"\sum_{i=2}^{d} \mu_i^2", r"\sum_{i=1}^{d} \mu_i^2 - \mu_1^2", r"\sum_{2 \le i \le d} \mu_i^2"),
    (r"\sum_{j=2}^{i} A_{ij}", r"\sum_{j \le i} A_{ij} - A_{i1}"),
    (r"\sum_{i=0}^{n-1} s_{i+1}", r"\sum_i s_i"),
    (r"\sum_{i=0}^{n-1} x^i", r"\sum_{i=1}^{n} x^{i-1}"),
    (
        "O(d^2)",
        r"O\!\left(d^2\right)",
        r"O \left( d^2 \right)",
        r"\mathcal{O}\,(d^2)",
        r"O\mathopen{}\bigl(d^2\bigr)",
        "O~(d^2)",
    ),
    (r"\Theta(n)", r"\Theta\bigl(n\bigr)", r"\Theta\!\left(n\right)", r"\Theta\;\Big( n \Big)"),
    ("softmax(s)", r"\operatorname{softmax}\!\left(s\right)", r"\mathrm{softmax}\,\bigl(s\bigr)"),
    ("exp(x)", r"\exp\Bigl(x\Bigr)", r"\exp\!\left(x\right)", r"\exp\hspace{1pt}(x)"),
    (
        "E[q^T k]",
        r"E\!\left[q^T k\right]",
        r"\mathbb{E}_{q,k}[q^T k]",
        r"E_{q,k}\,[q^T k]",
        r"\mathbb E_{k,q}\!\bigl[q^T k\bigr]",
        r"\mathbb{E}_{q,k \sim p}[q^T k]",
        r"\mathbb{E}_{q \sim p, k \sim p}[q^T k]",
    ),
    (
        r"a_i(\delta_{ij} - a_j)",
        "a_i(I_{ij} - a_j)",
        "a_i(δ_ij - a_j)",
        r"a_i(\delta_{i,j} - a_j)",
        r"a_i(\mathbf{I}_{ij} - a_j)",
    ),
    ("s_{i-1}", "s_{-1+i}", "s_{(i-1)}", "s_{i+1-2}", "sᵢ₋₁"),
    ("µ^T µ", "μᵀμ"),
    ("[2, 3, -5]", "[2 3 -5]", "[2 3 −5]", "(2, 3, -5)"),
    ("[1e-3, -2, 3]", "[1e-3 -2 3]"),
    ("x/d", r"\dfrac xd", r"\cfrac{x}{d}", r"\nicefrac{x}{d}", r"{x \over d}", r"x \over d"),
    (r"\gamma^{x/d}", r"\gamma^{x \over d}"),
    ("|(|x| + 1)|", "||x|+1|", r"\left|\left|x\right|+1\right|", r"\lvert\lvert x\rvert + 1\rvert"),
    ("|(|x| - |d|)|", "||x|-|d||"),
    (r"\binom{n}{2}", "n(n-1)/2", r"\binom n2", r"\dbinom{n}{2}"),
    (r"\mu^T\mu", r"\mu^{\intercal}\mu"),
    ("x = d", r"\begin{aligned} x &= d \end{aligned}", r"\begin{align*} x &= d. \\ \end{align*}"),
    (
        "x = d + 1 = n",
        r"\begin{aligned} x &= d \\[4pt] &\quad + 1 \\ &= n \end{aligned}",
        r"$$\begin{split} x &= d + 1, \\ &= n.\end{split}$$",
    ),
]


@pytest.mark.parametrize("texts", SAME, ids=lambda texts: texts[0])
def test_spellings_of_one_thing_read_alike(texts) -> None:
    first, *others = [parse(text, S) for text in texts]
    for text, other in zip(texts[1:], others, strict=True):
        assert other == first, text


SHAPES = [
    (r"\mu^T\mu", ()),
    (r"\mu\mu^T", ("d", "d")),
    (r"\mu^T", (1, "d")),
    ("QK^T", ("n", "n")),
    ("softmax(QK^T)V", ("n", "v")),
    ("Q_i", ("d",)),
    (r"Q_{i\cdot}", (1, "d")),
    ("Q_{:j}", ("n",)),
    ("(QK^T)_{ij}", ()),
    ("[QK^T]_{ij}", ()),
    (r"\sum_j a_j V_j", ("v",)),
    ("diag(a) - aa^T", ("n", "n")),
    ("diag(A)", ("n",)),
    (r"\phi(q)", ("F",)),
    (r"\phi(q)^T\phi(k)", ()),
    ("sim(Q_i, K_j)", ()),
    ("Cov(q, k)", ("d", "d")),
    (r"\frac{\partial a}{\partial s}", ("n", "n")),
    (r"\frac{\partial a}{\partial s_2}", ("n",)),
    ("d mu", ("d",)),
    ("mu - 0", ("d",)),
    (r"\mu - x\mathbf 1", ("d",)),
    ("A + x I", ("n", "n")),
    (r"\mu \odot q", ("d",)),
    ("A^{-1} A^2", ("n", "n")),
    ("k(x+1)", ("d",)),
    ("exp(QK^T)", ("n", "n")),
]


@pytest.mark.parametrize(("text", "shape"), SHAPES)
def test_shapes(text, shape) -> None:
    assert parse(text, S).shape == shape


ILL_TYPED = [
    ("d mu^2", "μ^2: a vector has no square; did you mean μᵀμ?", "mu^2"),
    (r"d\mu^2", "μ^2: a vector has no square; did you mean μᵀμ?", r"\mu^2"),
    ("q k", "q k: two columns have no product; did you mean qᵀk or q kᵀ?", "q k"),
    ("QK", "(n×d)(n×d) do not fit; did you mean Q Kᵀ?", "QK"),
    ("A mu", "(n×n)(d) do not fit", "A mu"),
    ("Q s", "(n×d)(n) do not fit; did you mean Qᵀs?", "Q s"),
    ("mu + x", "they cannot be added; did you mean μ + x·𝟏_d?", "mu + x"),
    ("mu + s", "a vector of size d and s is a vector of size n", "mu + s"),
    ("N", "N is not declared; n is, and case matters", "N"),
    ("z", "z is not declared", "z"),
    ("2 sigmma", "sigmma is not declared", "sigmma"),
    ("mu'mu", "a prime is part of a name", "mu'"),
    (r"\sum_{i=1}^{n} \mu_i", "i runs to n but μ has d components", "i"),
    (r"\sum_{i=1}^{3} \mu_i", "i runs to 3 but μ has d components", "i"),
    ("w_5", "w has 3 components, and there is no number 5", "5"),
    ("x_i", "x_i is not declared", "x_i"),
    ("mu_{ij}", "takes one index, not 2", "mu_{ij}"),
    ("x/mu", "nothing is divided by one", "mu"),
    ("exp(phi)", "φ is a map: write φ(x)", "phi"),
    ("2^phi", "φ is a map: write φ(x)", "phi"),
    ("phi(s)", "φ takes a vector of size d, and s is a vector of size n", "s"),
    ("tr(Q)", "trace takes a square matrix", "tr(Q)"),
    ("||A||", "did you mean ‖A‖_F?", "||A||"),
    ("Q^2", "is not square and has no powers", "Q^2"),
    ("max(0, mu)", "did you mean relu(μ)?", "max(0, mu)"),
    ("softmax(x)", "x is a scalar", "softmax(x)"),
    ("x^mu", "an exponent is a scalar", "mu"),
    (r"\log_q n", "the base of a logarithm is a scalar", "q"),
    ("1 + O(n)", "asymptotic class", "1 + O(n)"),
    (r"\mu*\mu", "μ μ: two columns have no product; did you mean μᵀμ or μ μᵀ?", r"\mu*\mu"),
    ("x + q k", "did you mean qᵀk?", "q k"),
    (r"\sum_i s_{i+1}", "nothing says how far i runs, so that i + 1 may lie outside of s", "i+1"),
    (r"\sum_{i=1}^{n} s_{i-1}", "i runs to n, so that i - 1 may lie outside of s", "i-1"),
    ("mu_{x+1}", "an index is a letter or a whole number, and x + 1 is an expression", "x+1"),
    (r"\mu_{s_i - 1}", "an index is a letter or a whole number", "s_i - 1"),
]


@pytest.mark.parametrize(("text", "said", "place"), ILL_TYPED)
def test_what_makes_no_sense_is_said_where_it_stands(text, said, place) -> None:
    with pytest.raises(MathsError) as caught:
        parse(text, S)
    error = caught.value
    assert isinstance(error, Unreadable if "is not declared" in error.reason else IllTyped)
    assert said in str(error)
    assert text[slice(*error.span)] == place
    assert str(error).splitlines()[-1].strip("^ ") == ""


UNREADABLE = [
    ("", "the text is empty"),
    ("the answer is d", "words"),
    ("n and d", "words"),
    ("I don't know", "words"),
    ("yes", "words"),
    ("(x", "( is never closed"),
    ("x)", ") closes nothing"),
    ("(x]", "] closes nothing"),
    (r"\frac{x}{d", "never closed"),
    (r"\foo x", r"\foo is not a command"),
    ("x^*", "the transpose is written ^T"),
    (r"A^\dagger", "the transpose is written ^T"),
    (r"x \in \mathbb{R}", "after ∈"),
    (r"\mathbb{R}^d", "set of numbers"),
    (r"1 + \dots + n", "write the sum"),
    ("x^2^3", "two upper indices"),
    ("2 +", "the text is incomplete"),
    ("* 2", "was not expected"),
    (r"\frac.5{2}", "a decimal in a fraction needs braces"),
    (r"\binom .5x", "a decimal in a fraction needs braces"),
    (r"\binom{n}{d}", "a binomial coefficient is read up to"),
    (r"\mathbb{E}_q[q^T k]", "an expectation over q alone is not read; k is random as well"),
    (r"Cov_k(q_1, k_1)", "an expectation over k alone is not read; q is random as well"),
    (r"\mathbb{E}_{q \sim \mathcal{N}(0, 1)}[q_1]", "a law below an expectation is not read"),
    (r"s_{i \sim j}", "a relation inside an expression"),
    (r"\mathbb{E}_x[q^T k]", "must be random"),
    (r"\begin{aligned} x &= d \\ n &= b \end{aligned}", "go on from each other"),
    (r"\begin{aligned} x", r"\begin is never closed"),
    (r"x \end{aligned}", "ends no block"),
    (r"x \cdot \cdot", "· was not expected"),
    ("2 . 3", ". is not a sign"),
    ("mu.mu", ". is not a sign"),
    (r"\sum_{i=7}^{n} x", "a sum runs from 1"),
    (r"\sum_{i=b}^{n} x", "a sum runs from 1"),
    (r"\sum_{i=0}^{n-1} s_i", "components are counted from 1"),
    (r"\sum_{j=3}^{i} A_{ij}", "a sum runs from 1"),
    ("\u0430 + d", "CYRILLIC SMALL LETTER A, which only looks like a"),
    ("Α + d", "only looks like A"),
    ("x\u202ed", "direction of writing"),
    ("x\u200bd", "does not print"),
    ("x\x07", "does not print"),
    ("x" * 2001, "2,001 characters are too many"),
    ("(" * 61 + "x" + ")" * 61, "nested more than 60 deep"),
    (r"\sqrt " * 300 + "x", "nested too deeply"),
    ("1e999999", "exponent is beyond"),
    (r"\sum_{i=2}^{99999} i", "at most 200 terms"),
]


@pytest.mark.parametrize(("text", "said"), UNREADABLE, ids=[text[:20] for text, _ in UNREADABLE])
def test_what_is_no_mathematics_is_refused_with_a_reason(text, said) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, S)
    assert said in caught.value.reason


def test_nested_brackets_within_the_limit_are_read() -> None:
    assert parse("(" * 59 + "x" + ")" * 59, S) == parse("x", S)


def test_places_point_into_what_the_caller_wrote() -> None:
    with pytest.raises(IllTyped) as caught:
        parse("σ² + μ²", S)
    assert "σ² + μ²"[slice(*caught.value.span)] == "μ²"
    assert str(caught.value).splitlines()[-2:] == ["  σ² + μ²", "       ^^"]


def test_numbers_keep_their_digits() -> None:
    assert (parse("0.250", S).unit, parse("1/4", S).shape, parse("7", S).unit) == (parse("0.001", S).value, (), None)  # pyright: ignore
    assert [parse(text, S).rounded for text in ("≈ 0.25", "0.25")] == [True, False]  # pyright: ignore
    assert parse("-0.25", S).value == -parse("0.25", S).value  # pyright: ignore


def test_chains() -> None:
    chain = parse(r"E[q^T k] = \sum_i \mu_i^2 = \|\mu\|^2", S)
    assert isinstance(chain, Relation)
    assert chain.signs == ("=", "=")
    assert parse(r"y = \sqrt d", S) == parse("√d", S)
    assert parse(r"\text{Attention}(Q,K,V) = softmax(QK^T)V", S) == parse("softmax(QK^T)V", S)
    assert parse("x \\le d", S).signs == ("<=",)  # pyright: ignore


def test_orders_take_names_that_are_not_declared() -> None:
    assert isinstance(parse("O(N^2 D + seq)", {}), Order)
    assert parse(r"\mathcal{O}(n d_{ff})", {}) == parse("O(n d_ff)", {})
    assert parse(r"\Theta(nd)", {}).kind == "Theta"  # pyright: ignore


def test_what_a_letter_means_depends_on_what_is_declared() -> None:
    assert isinstance(parse("e", {}), Constant)
    assert parse("e", {"e": "scalar"}).name == "e"  # pyright: ignore
    assert parse(r"\Sigma_i \mu_i", S) == parse(r"\sum_i \mu_i", S)
    with_sigma = {**S, "Sigma": "matrix[d,d]"}
    assert parse(r"\Sigma \mu", with_sigma).shape == ("d",)
    assert parse(r"\Sigma_{12}", with_sigma).shape == ()
    assert parse("Σ_i μ_i", with_sigma) == parse(r"\sum_i \mu_i", with_sigma)
    assert parse("x^T", {"x": "scalar", "T": "natural"}).shape == ()
    assert parse("E", {"E": "matrix[2,3]"}).shape == (2, 3)


def test_indices_are_declared_or_written_out() -> None:
    declared = parse("i", {"i": "index[5]"})
    assert isinstance(declared, Index)
    assert declared.size == 5
    assert parse(r"\sum_{i=2}^{4} i", {}) == parse("2 + 3 + 4", {})


def test_expected_says_what_nothing_else_does() -> None:
    assert parse("0", S, expected=("d",)).shape == ("d",)
    assert parse(r"\mathbf 1", S, expected=("d",)).shape == ("d",)
    assert parse("x I", S, expected=("d", "d")).shape == ("d", "d")
    assert isinstance(parse("0", S), Number)


def test_two_values_and_written_rows() -> None:
    assert isinstance(parse(r"\pm\sqrt d", S), PlusMinus)
    row = parse("[[1, 2, 3]]", S)
    assert isinstance(row, Written)
    assert row.shape == (1, 3)
    assert parse("(1, 2, 3)^T w", S).shape == ()


def test_digits_behind_a_letter_are_its_index_where_that_is_a_name() -> None:
    assert parse("x2", {"x": "scalar", "x_2": "vector[3]"}).shape == (3,)
    assert parse("x2", {"x": "scalar", "x_1": "vector[3]"}) == parse("x2", {"x": "scalar"})
    assert parse("v2", {"v": "matrix[4,3]"}).shape == (3,)
    with pytest.raises(IllTyped):
        parse("v5", {"v": "matrix[4,3]"})


def test_what_was_read_is_read_once() -> None:
    assert parse("mu^T mu", S) is parse("mu^T mu", dict(S))
    assert parse("0", S, expected=("d",)) != parse("0", S)


def test_a_text_is_a_text() -> None:
    with pytest.raises(OptionTypeError, match="text"):
        parse(3, S)  # pyright: ignore[reportArgumentType]


SYMBOLS = {
    "x": "scalar",
    "y": "nonnegative",
    "c": "positive",
    "n": "natural",
    "v": "vector[p]",
    "u": "vector[p]",
    "w": "vector[3]",
    "A": "matrix[p,p]",
    "i": "index[p]",
    "mu": "vector[p]",
    "sigma": "positive",
    "Sigma": "matrix[p,p]",
    "Pi": "positive",
    "q": "random vector[p] ~ N(mu, sigma^2 I)",
    "k": "random vector[p] ~ N(mu, sigma^2 I)",
    "t": "random scalar ~ N(0, 1)",
    "phi": "map vector[p] -> vector[F]",
}


NOTATIONS = [
    (r"{\rm sum}(v)", r"\sum_j v_j"),
    ("Σ_{j=1}^3 w_j", "w_1+w_2+w_3"),
    ("Π_{j=1}^3 w_j", "w_1 w_2 w_3"),
    ("prod_{j=1}^3 w_j", "w_1 w_2 w_3"),
    ("sum_{j=1}^3 w_j", "w_1+w_2+w_3"),
    (r"\mathbb{E}[q]", r"\mu"),
    (r"\mathbf{E}[q^T k]", r"\mu^T \mu"),
    (r"E_{q \sim N}[q]", r"\mu"),
    ("v^T A u", r"\langle v, A u\rangle"),
    (r"v \otimes u", "v u^T"),
    (r"\operatorname{diag}(v) u", r"v \odot u"),
    (r"\operatorname{tr}(A^T)", r"\operatorname{tr}(A)"),
    (r"\frac{\partial}{\partial v} v^T u", "u"),
    (r"\nabla_v (v^T v)", "2v"),
    (r"\binom{n}{2}", "n(n-1)/2"),
    (r"\binom{5}{2}", "10"),
    (r"\operatorname{Var}(t)", "1"),
    ("E[t^4]", "3"),
    ("E[e^{t}]", "e^{1/2}"),
    (r"\sqrt[3]{c^3}", "c"),
    (r"\|v\|_2^2", "v^T v"),
    (r"\|v\|_1", r"\sum_j |v_j|"),
    (r"\|v\|_\infty", r"\max_j |v_j|"),
    (r"\delta_{ij}", r"\delta_{ji}"),
    (r"\sum_{j \ne l} v_j v_l", r"(\sum_j v_j)^2 - \sum_j v_j^2"),
    (r"\sum_{j<l} v_j v_l", r"\frac12((\sum_j v_j)^2 - v^Tv)"),
    (r"\sum_{j\le l} v_j v_l", r"\frac12((\sum_j v_j)^2 + v^Tv)"),
    ("1.5 x", "3x/2"),
    ("2 x y / c", "2xy/c"),
    (r"x \cdot y \times c", "xyc"),
    (r"\left(\frac{x}{2}\right)^2", r"\frac{x^2}{4}"),
    (r"\exp(x+y)", "e^x e^y"),
    (r"\log(c^2)", r"2\log c"),
    (r"\ln c", r"\log c"),
    (r"\log_2 8", "3"),
    ("x^{-1}", "1/x"),
    ("A^{-1} A v", "v"),
    ("(v^T)_2", "v_2"),
    (r"\mathbf{v}^\top\mathbf{u}", "u^T v"),
    (r"\operatorname{softmax}(w)_1", r"\frac{e^{w_1}}{e^{w_1}+e^{w_2}+e^{w_3}}"),
    (r"\sigma²", r"\sigma^2"),
    ("−x", "-x"),
    (r"\text{sign}(c)", "1"),
    ("I_3 w", "w"),
    (r"\mathbf{1}_3^T w", "w_1+w_2+w_3"),
    ("A_{12}", "A_{1,2}"),
    (r"\begin{bmatrix}0&1\\1&0\end{bmatrix}", r"\begin{pmatrix}0&1\\1&0\end{pmatrix}"),
    ("|{-3}|", "3"),
    (r"\phi(v)^T \phi(u)", r"\phi(u)^T \phi(v)"),
    (r"\operatorname{Cov}(t, t)", r"\operatorname{Var}(t)"),
    (r"\|v - u\|^2", "v^Tv - 2v^Tu + u^Tu"),
    (r"\frac{\partial^2}{\partial x^2} x^3", "6x"),
    (r"\frac{\partial}{\partial w_2} w^T w", "2 w_2"),
    (r"x \le y", r"y \ge x"),
]


def nodes(tree: Node) -> Iterator[Node]:
    yield tree
    for field in dataclasses.fields(tree):
        held = getattr(tree, field.name)
        for part in held if isinstance(held, tuple) else (held,):
            if isinstance(part, Node):
                yield from nodes(part)


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), NOTATIONS)
def test_two_notations_are_one_thing(one: str, other: str) -> None:
    assert compare(one, other, SYMBOLS).kind == "equal"
    assert compare(other, one, SYMBOLS).kind == "equal"


@pytest.mark.parametrize("text", dict.fromkeys(text for pair in NOTATIONS for text in pair))
def test_a_notation_is_written_as_it_was_meant(text: str) -> None:
    tree = parse(text, SYMBOLS)
    assert parse(latex(tree), SYMBOLS) == tree
    assert parse(plain(tree), SYMBOLS) == tree
    for node in nodes(tree):
        start, stop = node.span
        assert 0 <= start < stop <= len(text)


@pytest.mark.parametrize(
    ("text", "error", "place", "words"),
    [
        ("1 + x\u200b", Unreadable, "\u200b", "U\\+200B ZERO WIDTH SPACE"),
        ("x + \u202ey", Unreadable, "\u202e", "U\\+202E"),
        ("x + \u2066y", Unreadable, "\u2066", "U\\+2066"),
        ("x + \u05d0", Unreadable, "\u05d0", "U\\+05D0|not read"),
        ("x\u2028+ y", Unreadable, "\u2028", "U\\+2028"),
        ("x\u2029+ y", Unreadable, "\u2029", "U\\+2029"),
        (r"1 + \sum_{j=1}^{\infty} 2^{-j}", Unreadable, r"\infty", "a sum runs to"),
        ("1 + x₁", Unreadable, "x₁", "x_1 is not declared"),
        ("2 v u", IllTyped, "v u", "two columns have no product"),
        ("v + A", IllTyped, "v + A", "vector"),
    ],
)
def test_what_cannot_be_read_is_pointed_at(text: str, error: type[QkvError], place: str, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        parse(text, SYMBOLS)
    start, stop = caught.value.span
    assert place in text[start:stop]
    assert stop - start <= max(len(place), 4) + 8
