"""Trees as LaTeX and as Unicode: brackets only where parsing back needs them, and the same tree again."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.parsing.parse import parse
from qkv.maths.parsing.shapes import describe_shape
from qkv.maths.printing import latex, plain
from qkv.maths.tree import (
    Add,
    Call,
    Constant,
    Derivative,
    Divide,
    Multiply,
    Number,
    Part,
    PlusMinus,
    Power,
    Relation,
    Special,
    Written,
)

NAMES = {
    "a": "scalar", "b": "scalar", "x": "scalar", "d": "natural", "n": "natural", "u": "vector[d]", "v": "vector[d]",
    "A": "matrix[d,d]", "B": "matrix[d,d]", "G": "matrix[2,2]", "mu_q": "vector[d]", "alpha": "scalar", "x'": "scalar",
    "Sigma": "vector[d]", "phi": "map vector[d] -> vector[f]", "head": "scalar", "x_hat": "scalar", "s": "vector[n]",
    "q": "random vector[d] ~ N(u, I)", "x_1": "scalar", "x_q'": "scalar", "Pi": "vector[d]", "c": "matrix[d,1]",
}  # fmt: skip


# text, in LaTeX, in Unicode
TEXTS = [
    ("1", "1", "1"),
    ("-1", "-1", "-1"),
    ("0.5", "0.5", "0.5"),
    ("2.50", "2.50", "2.50"),
    ("1e-3", "1e-3", "1e-3"),
    ("1.5e10", r"1.5 \times 10^{10}", "1.5×10¹⁰"),
    ("2/3", r"\frac{2}{3}", "2/3"),
    (r"\frac{a}{b}", r"\frac{a}{b}", "a/b"),
    ("a/b/x", r"\frac{\frac{a}{b}}{x}", "a/b/x"),
    ("(a+b)x", "(a + b) x", "(a + b)x"),
    ("a - b", "a - b", "a - b"),
    ("a - (b + x)", "a - (b + x)", "a - (b + x)"),
    ("-(a+b)", "-(a + b)", "-(a + b)"),
    ("-a b", "-a b", "-a b"),
    ("-2 a", "-2 a", "-2a"),
    (r"2 \cdot 3", r"2 \cdot 3", "2·3"),
    ("a 3", r"a \cdot 3", "a·3"),
    ("a^2", "a^{2}", "a²"),
    ("a^{-1}", "a^{-1}", "a⁻¹"),
    ("a^{n+1}", "a^{n + 1}", "a^{n + 1}"),
    ("(a+b)^2", "(a + b)^{2}", "(a + b)²"),
    ("(a b)^2", "(a b)^{2}", "(a b)²"),
    ("(a/b)^2", r"(\frac{a}{b})^{2}", "(a/b)²"),
    ("(-a)^2", "(-a)^{2}", "(-a)²"),
    ("e^x", r"\exp(x)", "exp(x)"),
    (r"\pi^2", r"\pi^{2}", "π²"),
    ("(e^x)^2", r"\exp(x)^{2}", "exp(x)²"),
    ("A u", "A u", "A u"),
    ("(A+B) u", "(A + B) u", "(A + B)u"),
    ("u^T A v", r"u^\top A v", "uᵀA v"),
    ("u v^T", r"u v^\top", "u vᵀ"),
    ("A^T", r"A^\top", "Aᵀ"),
    ("(A B)^T", r"(A B)^\top", "(A B)ᵀ"),
    ("A^{-1}", "A^{-1}", "A⁻¹"),
    (r"u \odot v", r"u \odot v", "u ⊙ v"),
    (r"(u \odot v)_1", r"(u \odot v)_{1}", "(u ⊙ v)_1"),
    (r"A (u \odot v)", r"A (u \odot v)", "A (u ⊙ v)"),
    (r"(u \odot v) \odot u", r"u \odot v \odot u", "u ⊙ v ⊙ u"),
    (r"u \odot (v \odot u)", r"u \odot (v \odot u)", "u ⊙ (v ⊙ u)"),
    (r"2 (u \odot v)", r"2 (u \odot v)", "2(u ⊙ v)"),
    ("u_1", "u_{1}", "u_1"),
    ("A_{12}", "A_{1,2}", "A_{1,2}"),
    ("A_{1,:}", "A_{1,:}", "A_{1,:}"),
    ("A_{:,2}", "A_{:,2}", "A_{:,2}"),
    ("A_{ij}", "A_{i,j}", "A_{i,j}"),
    ("(mu_q)_1", r"(\mu_{q})_{1}", "(μ_q)_1"),
    (r"\Sigma_1", r"(\Sigma)_{1}", "(Σ)_1"),
    ("alpha", r"\alpha", "α"),
    ("x'", "x'", "x'"),
    (r"\phi(u)", r"\phi(u)", "φ(u)"),
    (r"\sqrt{a}", r"\sqrt{a}", "√a"),
    (r"\sqrt{a+b}", r"\sqrt{a + b}", "√(a + b)"),
    (r"\sqrt 2", r"\sqrt{2}", "√2"),
    (r"\|u\|", r"\lVert u \rVert", "‖u‖"),
    (r"\|u\|_1", r"\lVert u \rVert_{1}", "‖u‖_1"),
    (r"\|u\|_\infty", r"\lVert u \rVert_{\infty}", "‖u‖_∞"),
    (r"\|A\|_F", r"\lVert A \rVert_{F}", "‖A‖_F"),
    ("|a|", r"\lvert a \rvert", "|a|"),
    ("|a + |b||", r"\lvert a + \lvert b \rvert \rvert", "abs(a + |b|)"),
    (r"\|u\| + |a|", r"\lVert u \rVert + \lvert a \rvert", "‖u‖ + |a|"),
    (r"\| \|u\| v\|", r"\lVert \lVert u \rVert v \rVert", "norm(‖u‖v)"),
    (r"|\|u\||", r"\lvert \lVert u \rVert \rvert", "abs(‖u‖)"),
    (r"\exp(a)", r"\exp(a)", "exp(a)"),
    (r"\log a", r"\log(a)", "log(a)"),
    (r"\max(a,b)", r"\max(a, b)", "max(a, b)"),
    (r"\min(u)", r"\min(u)", "min(u)"),
    (r"\det(A)", r"\det(A)", "det(A)"),
    (r"\operatorname{tr}(A)", r"\operatorname{tr}(A)", "tr(A)"),
    ("softmax(u)", r"\operatorname{softmax}(u)", "softmax(u)"),
    (r"\operatorname{argmax}(u)", r"\operatorname{argmax}(u)", "argmax(u)"),
    (r"\operatorname{diag}(u)", r"\operatorname{diag}(u)", "diag(u)"),
    ("relu(a)", r"\operatorname{relu}(a)", "relu(a)"),
    (r"\operatorname{sign}(a)", r"\operatorname{sign}(a)", "sign(a)"),
    (r"\sum_{i=1}^n s_i", r"\sum_{i=1}^{n} s_{i}", "∑_{i=1}^n s_i"),
    (r"\sum_{i=1}^n s_i + a", r"\sum_{i=1}^{n} s_{i} + a", "∑_{i=1}^n s_i + a"),
    (r"a \sum_i s_i", r"a \sum_{i=1}^{n} s_{i}", "a ∑_{i=1}^n s_i"),
    (r"(\sum_i s_i) a", r"(\sum_{i=1}^{n} s_{i}) a", "(∑_{i=1}^n s_i)a"),
    (r"(\sum_i s_i)^2", r"(\sum_{i=1}^{n} s_{i})^{2}", "(∑_{i=1}^n s_i)²"),
    (r"\sum_{i<j} s_i s_j", r"\sum_{1 \le i \le n, 1 \le j \le n, i < j} s_{i} s_{j}",
     "∑_{1 ≤ i ≤ n, 1 ≤ j ≤ n, i < j} s_i s_j"),
    (r"\prod_i s_i", r"\prod_{i=1}^{n} s_{i}", "∏_{i=1}^n s_i"),
    (r"\sum_i (s_i + 1)", r"\sum_{i=1}^{n} (s_{i} + 1)", "∑_{i=1}^n (s_i + 1)"),
    (r"\sum_{i \ne j} s_i s_j", r"\sum_{1 \le i \le n, 1 \le j \le n, i \ne j} s_{i} s_{j}",
     "∑_{1 ≤ i ≤ n, 1 ≤ j ≤ n, i ≠ j} s_i s_j"),
    (r"\sum_{i,j} s_i s_j", r"\sum_{1 \le i \le n, 1 \le j \le n} s_{i} s_{j}", "∑_{1 ≤ i ≤ n, 1 ≤ j ≤ n} s_i s_j"),
    (r"\delta_{ij} u_i u_j", r"\delta_{i,j} u_{i} u_{j}", "δ_{i,j} u_i u_j"),
    ("E[q]", r"\mathbb{E}[q]", "E[q]"),
    ("E[a q]", r"\mathbb{E}[a q]", "E[a q]"),
    ("Var(u^T q)", r"\operatorname{Var}(u^\top q)", "Var(uᵀq)"),
    ("Cov(q, q)", r"\operatorname{Var}(q)", "Var(q)"),
    ("Cov(u^T q, v^T q)", r"\operatorname{Cov}(u^\top q, v^\top q)", "Cov(uᵀq, vᵀq)"),
    (r"\frac{\partial a^2}{\partial a}", r"\frac{\partial (a^{2})}{\partial a}", "∂(a²)/∂a"),
    (r"\frac{\partial (a+b)}{\partial a}", r"\frac{\partial (a + b)}{\partial a}", "∂(a + b)/∂a"),
    (r"\pm a", r"\pm a", "±a"),
    (r"a \pm b", r"a \pm b", "a ± b"),
    ("O(n^2)", "O(n^{2})", "O(n²)"),
    (r"\Theta(n)", r"\Theta(n)", "Θ(n)"),
    (r"\Omega(n \log n)", r"\Omega(n \log(n))", "Ω(n log(n))"),
    ("a = b", "a = b", "a = b"),
    (r"a \approx 0.5", r"a \approx 0.5", "a ≈ 0.5"),
    (r"a \le b", r"a \le b", "a ≤ b"),
    (r"a \ge b", r"a \ge b", "a ≥ b"),
    ("a < b", "a < b", "a < b"),
    ("a>b", "a > b", "a > b"),
    (r"a \ne b", r"a \ne b", "a ≠ b"),
    (r"\approx 0.5", r"\approx 0.5", "≈ 0.5"),
    ("(1,2,3)", "(1, 2, 3)", "(1, 2, 3)"),
    ("[[1,2],[3,4]]", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "[[1, 2], [3, 4]]"),
    ("[[1,2]]", r"\begin{pmatrix} 1 & 2 \end{pmatrix}", "[[1, 2]]"),
    (r"\mathbf{1}_d", r"\mathbf{1}_{d}", "𝟏_d"),
    ("I_d", "I_{d}", "I_d"),
    (r"\mathbf{0}_d", r"\mathbf{0}_{d}", "𝟎_d"),
    (r"\mathbf{1}_{n \times d}", r"\mathbf{1}_{n \times d}", "𝟏_{n×d}"),
    ("I_{n+1}", "I_{(n + 1)}", "I_{(n + 1)}"),
    (r"\infty", r"\infty", "∞"),
    ("head", r"\mathrm{head}", "head"),
    ("a/(d x)", r"\frac{a}{d \cdot x}", "a/(d · x)"),
    (r"\frac{1}{d x}", r"\frac{1}{d \cdot x}", "1/(d · x)"),
    ("a^{b^x}", "a^{b^{x}}", "a^{b^x}"),
    ("(a^b)^x", "(a^{b})^{x}", "(a^b)^x"),
    ("x_hat", r"\hat{x}", "x_hat"),
    ("x_1", "x_{1}", "x_1"),
    ("2 a/b", r"\frac{2 a}{b}", "2a/b"),
    ("(a/b) x", r"\frac{a}{b} x", "a/b x"),
    ("x (a/b)", r"x \frac{a}{b}", "x (a/b)"),
    (r"x \frac{a}{b}", r"x \frac{a}{b}", "x (a/b)"),
    ("a b^{-1}", "a b^{-1}", "a b⁻¹"),
    ("-a^2", "-a^{2}", "-a²"),
    ("(-2)^2", "(-2)^{2}", "(-2)²"),
    ("(-2) a", "-2 a", "-2a"),
    ("a + (-2)", "a - 2", "a - 2"),
    (r"\frac12 a", r"\frac{1}{2} a", "1/2 a"),
    ("0.5 a", "0.5 a", "0.5a"),
    (r"1.5 \times 10^3 a", r"(1.5 \times 10^{3}) a", "(1.5×10³)a"),
    ("x_q'", "x_{q}'", "x_q'"),
    (r"\Pi_2", r"(\Pi)_{2}", "(Π)_2"),
]  # fmt: skip


@pytest.mark.parametrize("start", range(0, len(TEXTS), 12))
def test_texts(start: int) -> None:
    for text, in_latex, in_unicode in TEXTS[start : start + 12]:
        node = parse(text, NAMES)
        assert latex(node) == in_latex
        assert plain(node) == in_unicode
        assert parse(in_latex, NAMES) == node
        assert parse(in_unicode, NAMES) == node


def number(value: str, unit: str | None = None, rounded: bool = False) -> Number:
    return Number((), Fraction(value), None if unit is None else Fraction(unit), rounded)


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        (number("0"), "0"),
        (number("12"), "12"),
        (number("-3/7"), r"-\frac{3}{7}"),
        (number("1/8"), "125e-3"),
        (number("3", "1"), r"3 \times 10^{0}"),
        (number("2.5", "0.1"), "2.5"),
        (number("2.5", "0.01"), "2.50"),
        (number("0.025", "0.001"), "0.025"),
        (number("0", "0.001"), "0.000"),
        (number("-1.5", "0.1"), "-1.5"),
        (number("30", "10"), r"0.3 \times 10^{2}"),
        (number("1200", "100"), r"1.2 \times 10^{3}"),
        (number("250000", "1000"), r"25.0 \times 10^{4}"),
        (number("0.5", "0.1", True), r"\approx 0.5"),
    ],
)
def test_numbers(node: Number, shown: str) -> None:
    assert latex(node) == shown


def test_a_product_that_begins_with_minus() -> None:
    x, two = parse("x", NAMES), number("2")
    assert latex(Multiply((), (number("-1"), x))) == "-x"
    assert latex(Multiply((), (number("-1"), x, parse("a", NAMES)))) == "-x a"
    assert latex(Multiply((), (number("-1"), two, x))) == r"(-1) \cdot 2 x"
    assert latex(Multiply((), (number("-1"), parse("2 x", NAMES)))) == "(-1) (2 x)"
    assert latex(Multiply((), (number("-1"), parse("2 + x", NAMES)))) == "(-1) (2 + x)"
    assert latex(Multiply((), (number("-1"), parse("2/x", NAMES)))) == r"(-1) \frac{2}{x}"
    assert latex(Multiply((), (number("-3"), x))) == "-3 x"
    assert latex(Multiply((), (number("-1.0", "0.1"), x))) == "-1.0 x"
    assert latex(Multiply((), (x, number("-3")))) == "x (-3)"
    assert latex(Add((), (x, Multiply((), (number("-3"), x)), number("-2")))) == "x - 3 x - 2"
    assert latex(Add((), (Multiply((), (number("-3"), x)), x))) == "-3 x + x"
    assert latex(Add((), (x, Add((), (x, two))))) == "x + (x + 2)"
    assert latex(Add((), (PlusMinus((), x), PlusMinus((), parse("x + a", NAMES))))) == r"(\pm x) \pm (x + a)"


def test_matrices_that_are_written_out() -> None:
    one, two = number("1"), number("2")
    assert latex(Written((1,), (one,))) == r"\begin{pmatrix} 1 \end{pmatrix}"
    assert latex(Written((2, 1), (one, two))) == r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"
    assert latex(Written((1, 2), (one, two))) == r"\begin{pmatrix} 1 & 2 \end{pmatrix}"
    assert latex(Written((2,), (one, two))) == "(1, 2)"
    rounded = Written((2,), (number("0.5", "0.1", True), number("1.5", "0.1", True)))
    assert latex(rounded) == r"\approx (0.5, 1.5)"
    assert latex(Written((2,), (number("0.5", "0.1", True), one))) == "(0.5, 1)"


def test_constants_and_what_has_sizes() -> None:
    assert [latex(Constant((), name)) for name in ("pi", "e", "infinity")] == [r"\pi", "e", r"\infty"]
    two = number("2")
    assert latex(Power((), Constant((), "e"), two)) == "(e)^{2}"
    assert latex(Power((), Constant((), "pi"), two)) == r"\pi^{2}"
    assert latex(Special(("n", "d"), "zeros")) == r"\mathbf{0}_{n \times d}"
    assert latex(Special(("d", "d"), "identity")) == "I_{d}"
    assert latex(Special((3,), "ones")) == r"\mathbf{1}_{3}"
    assert latex(Special(("d*h",), "ones")) == r"\mathbf{1}_{(d h)}"


def test_parts_of_parts_and_functions() -> None:
    part = Part((), Part(("d",), parse("A", NAMES), (number("1"),)), (number("2"),))
    assert latex(part) == "(A_{1})_{2}"
    assert latex(Part(("d",), parse("A", NAMES), (None, number("2")))) == "A_{:,2}"
    assert latex(Call(("d",), "abs", (parse("u", NAMES),))) == r"\operatorname{abs}(u)"
    assert latex(Call((), "trace", (parse("A + B", NAMES),))) == r"\operatorname{tr}(A + B)"
    assert latex(Derivative((), parse("a b", NAMES), parse("u_1", NAMES))) == r"\frac{\partial (a b)}{\partial u_{1}}"


def test_chains() -> None:
    a, b, x = (parse(name, NAMES) for name in "abx")
    shown = {"=": "=", "≈": r"\approx", "<=": r"\le", "<": "<", ">=": r"\ge", ">": ">", "!=": r"\ne"}
    for sign, written in shown.items():
        assert latex(Relation((), (a, b), (sign,))) == f"a {written} b"
    assert latex(Relation((), (a, Add((), (b, x)), x), ("=", "<="))) == r"a = b + x \le x"


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        (number("-3/7"), "-3/7"),
        (number("1/8"), "125e-3"),
        (number("1200", "100"), "1.2×10³"),
        (number("3", "1"), "3×10⁰"),
        (Constant((), "pi"), "π"),
        (Constant((), "e"), "e"),
        (Constant((), "infinity"), "∞"),
        (Special(("n", "d"), "zeros"), "𝟎_{n×d}"),
        (Special(("d", "d"), "identity"), "I_d"),
        (Special((12,), "ones"), "𝟏_12"),
    ],
)
def test_what_is_not_read(node, shown: str) -> None:
    assert plain(node) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a^{10}", "a¹⁰"),
        ("a^{-23}", "a⁻²³"),
        ("a^{4567890}", "a⁴⁵⁶⁷⁸⁹⁰"),
        ("a^n", "a^n"),
        ("a^{n x}", "a^{n x}"),
        ("a^alpha", "a^{α}"),
        (r"\|u\|_1 \|v\|", "‖u‖_1 ‖v‖"),
        (r"\|\,\|u\| v\|_1", "norm_1(‖u‖v)"),
        (r"\|\,|a| v\|_\infty", "norm_∞(|a|v)"),
        ("2 a", "2a"),
        ("2.5 a", "2.5a"),
        ("a^2 b", "a²b"),
        ("a^T b", "a b"),
        ("(a + b) x", "(a + b)x"),
        ("|a| b", "|a|b"),
        ("u_1 b", "u_1 b"),
        (r"\sqrt{a b}", "√(a b)"),
        (r"\sqrt{2/3}", "√(2/3)"),
        (r"\sqrt{\pi}", "√π"),
        (r"\sqrt{12}", "√12"),
        (r"\sqrt{0.5}", "√(0.5)"),
        ("a (b/x)", "a (b/x)"),
        ("(a/b)(b/x)", "a/b (b/x)"),
        ("a/(b x)", "a/(b x)"),
        ("a/b^2", "a/b²"),
        ("(a + b)/x", "(a + b)/x"),
        (r"\frac{\sum_i s_i}{x}", "(∑_{i=1}^n s_i)/x"),
        (r"a \frac{\partial a^2}{\partial a}", "a (∂(a²)/∂a)"),
    ],
)
def test_signs_that_stand_close(text: str, shown: str) -> None:
    node = parse(text, NAMES)
    assert plain(node) == shown
    assert parse(shown, NAMES) == node


def test_what_divides_is_kept_apart() -> None:
    a, quotient = parse("a", NAMES), Divide((), parse("b", NAMES), parse("x", NAMES))
    assert plain(Multiply((), (a, quotient))) == "a (b/x)"
    assert plain(Multiply((), (quotient, a))) == "b/x a"
    matrix = Divide(("d", "d"), parse("A", NAMES), parse("x", NAMES))
    assert plain(Multiply(("d",), (a, parse("(A/x) u", NAMES)))) == "a (A/x u)"
    assert plain(matrix) == "A/x"
    assert plain(Derivative((), a, a)) == "∂a/∂a"
    assert plain(Call((), "trace", (matrix,))) == "tr(A/x)"


S = {
    "mu": "vector[d]",
    "mu_q": "vector[d]",
    "sigma": "positive",
    "x": "scalar",
    "Q": "matrix[n,d]",
    "K": "matrix[n,d]",
    "V": "matrix[n,d]",
    "A": "matrix[n,n]",
    "s": "vector[n]",
    "d_model": "natural",
    "phi": "map vector[d] -> vector[F]",
}


@pytest.mark.parametrize(
    ("text", "as_latex", "as_plain"),
    [
        ("mu^T mu", r"\mu^\top \mu", "μᵀμ"),
        ("mu mu^T", r"\mu \mu^\top", "μ μᵀ"),
        ("||mu||^2", r"\lVert \mu \rVert^{2}", "‖μ‖²"),
        ("sum_i mu_i^2", r"\sum_{i=1}^{d} \mu_{i}^{2}", "∑_{i=1}^d μ_i²"),
        ("d sigma^4 + 2 sigma^2 mu^T mu", r"d \sigma^{4} + 2 \sigma^{2} \mu^\top \mu", "d σ⁴ + 2σ²μᵀμ"),
        ("sqrt(d)", r"\sqrt{d}", "√d"),
        ("1/sqrt(d+1)", r"\frac{1}{\sqrt{d + 1}}", "1/√(d + 1)"),
        ("x - 2 d", "x - 2 d", "x - 2d"),
        ("-(x+1)", "-(x + 1)", "-(x + 1)"),
        ("(-2)^2", "(-2)^{2}", "(-2)²"),
        (r"(d\sigma)/(d \cdot x)", r"\frac{d \sigma}{d \cdot x}", "d σ/(d · x)"),
        ("x/(d+1)", r"\frac{x}{d + 1}", "x/(d + 1)"),
        (r"x/(d \cdot 2)", r"\frac{x}{d \cdot 2}", "x/(d·2)"),
        ("x/(d/2)", r"\frac{x}{\frac{d}{2}}", "x/(d/2)"),
        ("softmax(QK^T)V", r"\operatorname{softmax}(Q K^\top) V", "softmax(Q Kᵀ)V"),
        ("d_model", r"d_{\mathrm{model}}", "d_model"),
        ("phi(mu)^T phi(mu_q)", r"\phi(\mu)^\top \phi(\mu_{q})", "φ(μ)ᵀφ(μ_q)"),
        ("(QK^T)_{ij}", r"(Q K^\top)_{i,j}", "(Q Kᵀ)_{i,j}"),
        ("A^{-1}", "A^{-1}", "A⁻¹"),
        ("x <= d", r"x \le d", "x ≤ d"),
        ("≈ 0.250", r"\approx 0.250", "≈ 0.250"),
        ("≈ (0.25, 1.5)", r"\approx (0.25, 1.5)", "≈ (0.25, 1.5)"),
        ("O(n^2 D)", "O(n^{2} D)", "O(n²D)"),
        ("(1, 2)", "(1, 2)", "(1, 2)"),
        ("[[1,2],[3,4]]", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "[[1, 2], [3, 4]]"),
        (r"x \pm d", r"x \pm d", "x ± d"),
    ],
)
def test_texts_are_as_people_write_them(text, as_latex, as_plain) -> None:
    node = parse(text, S)
    assert (latex(node), plain(node)) == (as_latex, as_plain)
    assert parse(as_latex, S) == parse(as_plain, S) == node


@pytest.mark.parametrize("text", ["2.5e4", "7e-3", "0.000", "-1.50", "123456789", "6.90e-13", "1e300", "(7e-3)^2"])
def test_numbers_keep_their_digits(text) -> None:
    node = parse(text, S)
    assert parse(latex(node), S) == parse(plain(node), S) == node


def test_shapes_in_words() -> None:
    words = [describe_shape(shape) for shape in ((), (5,), ("n", "d"), (1, "d"), ("d", "d"))]
    assert words == ["a scalar", "a vector of size 5", "an n×d matrix", "a row of size d", "a d×d matrix"]


@pytest.mark.parametrize(
    "text",
    [
        r"(\sum_{j \le i} A_{ij}) V_j",  # j is given, and so it stays where i is said to run from 1 to n
        r"\sum_idma^4 x",
        r"\sum_{\mathrm{row}=1}^n s_{\mathrm{row}}",
        "∑_{1 ≤ row ≤ n, 1 ≤ col ≤ n, row < col} A_{row,col}",
    ],
)
def test_sums_over_words_and_with_given_indices_parse_back(text) -> None:
    node = parse(text, S)
    for write in (latex, plain):
        assert parse(write(node), S) == node
