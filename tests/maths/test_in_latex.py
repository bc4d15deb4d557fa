"""The tree in LaTeX: brackets where reading it back needs them, and nowhere else."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.parsing.parse import parse
from qkv.maths.printing import latex
from qkv.maths.tree import (
    Add,
    Call,
    Constant,
    Derivative,
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

TEXTS = [
    ("1", "1"),
    ("-1", "-1"),
    ("0.5", "0.5"),
    ("2.50", "2.50"),
    ("1e-3", "1e-3"),
    ("1.5e10", r"1.5 \times 10^{10}"),
    ("2/3", r"\frac{2}{3}"),
    (r"\frac{a}{b}", r"\frac{a}{b}"),
    ("a/b/x", r"\frac{\frac{a}{b}}{x}"),
    ("(a+b)x", "(a + b) x"),
    ("a - b", "a - b"),
    ("a - (b + x)", "a - (b + x)"),
    ("-(a+b)", "-(a + b)"),
    ("-a b", "-a b"),
    ("-2 a", "-2 a"),
    (r"2 \cdot 3", r"2 \cdot 3"),
    ("a 3", r"a \cdot 3"),
    ("a^2", "a^{2}"),
    ("a^{-1}", "a^{-1}"),
    ("a^{n+1}", "a^{n + 1}"),
    ("(a+b)^2", "(a + b)^{2}"),
    ("(a b)^2", "(a b)^{2}"),
    ("(a/b)^2", r"(\frac{a}{b})^{2}"),
    ("(-a)^2", "(-a)^{2}"),
    ("e^x", r"\exp(x)"),
    (r"\pi^2", r"\pi^{2}"),
    ("(e^x)^2", r"\exp(x)^{2}"),
    ("A u", "A u"),
    ("(A+B) u", "(A + B) u"),
    ("u^T A v", r"u^\top A v"),
    ("u v^T", r"u v^\top"),
    ("A^T", r"A^\top"),
    ("(A B)^T", r"(A B)^\top"),
    ("A^{-1}", "A^{-1}"),
    (r"u \odot v", r"u \odot v"),
    (r"(u \odot v)_1", r"(u \odot v)_{1}"),
    (r"A (u \odot v)", r"A (u \odot v)"),
    (r"(u \odot v) \odot u", r"u \odot v \odot u"),
    (r"u \odot (v \odot u)", r"u \odot (v \odot u)"),
    (r"2 (u \odot v)", r"2 (u \odot v)"),
    ("u_1", "u_{1}"),
    ("A_{12}", "A_{1,2}"),
    ("A_{1,:}", "A_{1,:}"),
    ("A_{:,2}", "A_{:,2}"),
    ("A_{ij}", "A_{i,j}"),
    ("(mu_q)_1", r"(\mu_{q})_{1}"),
    (r"\Sigma_1", r"(\Sigma)_{1}"),
    ("alpha", r"\alpha"),
    ("x'", "x'"),
    (r"\phi(u)", r"\phi(u)"),
    (r"\sqrt{a}", r"\sqrt{a}"),
    (r"\sqrt{a+b}", r"\sqrt{a + b}"),
    (r"\sqrt 2", r"\sqrt{2}"),
    (r"\|u\|", r"\lVert u \rVert"),
    (r"\|u\|_1", r"\lVert u \rVert_{1}"),
    (r"\|u\|_\infty", r"\lVert u \rVert_{\infty}"),
    (r"\|A\|_F", r"\lVert A \rVert_{F}"),
    ("|a|", r"\lvert a \rvert"),
    ("|a + |b||", r"\lvert a + \lvert b \rvert \rvert"),
    (r"\|u\| + |a|", r"\lVert u \rVert + \lvert a \rvert"),
    (r"\| \|u\| v\|", r"\lVert \lVert u \rVert v \rVert"),
    (r"|\|u\||", r"\lvert \lVert u \rVert \rvert"),
    (r"\exp(a)", r"\exp(a)"),
    (r"\log a", r"\log(a)"),
    (r"\max(a,b)", r"\max(a, b)"),
    (r"\min(u)", r"\min(u)"),
    (r"\det(A)", r"\det(A)"),
    (r"\operatorname{tr}(A)", r"\operatorname{tr}(A)"),
    ("softmax(u)", r"\operatorname{softmax}(u)"),
    (r"\operatorname{argmax}(u)", r"\operatorname{argmax}(u)"),
    (r"\operatorname{diag}(u)", r"\operatorname{diag}(u)"),
    ("relu(a)", r"\operatorname{relu}(a)"),
    (r"\operatorname{sign}(a)", r"\operatorname{sign}(a)"),
    (r"\sum_{i=1}^n s_i", r"\sum_{i=1}^{n} s_{i}"),
    (r"\sum_{i=1}^n s_i + a", r"\sum_{i=1}^{n} s_{i} + a"),
    (r"a \sum_i s_i", r"a \sum_{i=1}^{n} s_{i}"),
    (r"(\sum_i s_i) a", r"(\sum_{i=1}^{n} s_{i}) a"),
    (r"(\sum_i s_i)^2", r"(\sum_{i=1}^{n} s_{i})^{2}"),
    (r"\sum_{i<j} s_i s_j", r"\sum_{1 \le i \le n, 1 \le j \le n, i < j} s_{i} s_{j}"),
    (r"\prod_i s_i", r"\prod_{i=1}^{n} s_{i}"),
    (r"\sum_i (s_i + 1)", r"\sum_{i=1}^{n} (s_{i} + 1)"),
    (r"\sum_{i \ne j} s_i s_j", r"\sum_{1 \le i \le n, 1 \le j \le n, i \ne j} s_{i} s_{j}"),
    (r"\sum_{i,j} s_i s_j", r"\sum_{1 \le i \le n, 1 \le j \le n} s_{i} s_{j}"),
    (r"\delta_{ij} u_i u_j", r"\delta_{i,j} u_{i} u_{j}"),
    ("E[q]", r"\mathbb{E}[q]"),
    ("E[a q]", r"\mathbb{E}[a q]"),
    ("Var(u^T q)", r"\operatorname{Var}(u^\top q)"),
    ("Cov(q, q)", r"\operatorname{Var}(q)"),
    ("Cov(u^T q, v^T q)", r"\operatorname{Cov}(u^\top q, v^\top q)"),
    (r"\frac{\partial a^2}{\partial a}", r"\frac{\partial (a^{2})}{\partial a}"),
    (r"\frac{\partial (a+b)}{\partial a}", r"\frac{\partial (a + b)}{\partial a}"),
    (r"\pm a", r"\pm a"),
    (r"a \pm b", r"a \pm b"),
    ("O(n^2)", "O(n^{2})"),
    (r"\Theta(n)", r"\Theta(n)"),
    (r"\Omega(n \log n)", r"\Omega(n \log(n))"),
    ("a = b", "a = b"),
    (r"a \approx 0.5", r"a \approx 0.5"),
    (r"a \le b", r"a \le b"),
    (r"a \ge b", r"a \ge b"),
    ("a < b", "a < b"),
    ("a>b", "a > b"),
    (r"a \ne b", r"a \ne b"),
    (r"\approx 0.5", r"\approx 0.5"),
    ("(1,2,3)", "(1, 2, 3)"),
    ("[[1,2],[3,4]]", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"),
    ("[[1,2]]", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"),
    (r"\mathbf{1}_d", r"\mathbf{1}_{d}"),
    ("I_d", "I_{d}"),
    (r"\mathbf{0}_d", r"\mathbf{0}_{d}"),
    (r"\mathbf{1}_{n \times d}", r"\mathbf{1}_{n \times d}"),
    ("I_{n+1}", "I_{(n + 1)}"),
    (r"\infty", r"\infty"),
    ("head", r"\mathrm{head}"),
    ("a/(d x)", r"\frac{a}{d \cdot x}"),
    (r"\frac{1}{d x}", r"\frac{1}{d \cdot x}"),
    ("a^{b^x}", "a^{b^{x}}"),
    ("(a^b)^x", "(a^{b})^{x}"),
    ("x_hat", r"\hat{x}"),
    ("x_1", "x_{1}"),
    ("2 a/b", r"\frac{2 a}{b}"),
    ("(a/b) x", r"\frac{a}{b} x"),
    ("x (a/b)", r"x \frac{a}{b}"),
    (r"x \frac{a}{b}", r"x \frac{a}{b}"),
    ("a b^{-1}", "a b^{-1}"),
    ("-a^2", "-a^{2}"),
    ("(-2)^2", "(-2)^{2}"),
    ("(-2) a", "-2 a"),
    ("a + (-2)", "a - 2"),
    (r"\frac12 a", r"\frac{1}{2} a"),
    ("0.5 a", "0.5 a"),
    (r"1.5 \times 10^3 a", r"(1.5 \times 10^{3}) a"),
    (r"x_q'", "x_{q}'"),
    (r"\Pi_2", r"(\Pi)_{2}"),
]  # fmt: skip


@pytest.mark.parametrize("start", range(0, len(TEXTS), 12))
def test_texts(start: int) -> None:
    for text, shown in TEXTS[start : start + 12]:
        node = parse(text, NAMES)
        assert latex(node) == shown
        assert parse(shown, NAMES) == node


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
