"""The tree in Unicode text: as people write it, and read back as the same."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.parsing.parse import parse
from qkv.maths.printing import plain
from qkv.maths.tree import Call, Constant, Derivative, Divide, Multiply, Number, Special

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
    ("1.5e10", "1.5×10¹⁰"),
    ("2/3", "2/3"),
    (r"\frac{a}{b}", "a/b"),
    ("a/b/x", "a/b/x"),
    ("(a+b)x", "(a + b)x"),
    ("a - b", "a - b"),
    ("a - (b + x)", "a - (b + x)"),
    ("-(a+b)", "-(a + b)"),
    ("-a b", "-a b"),
    ("-2 a", "-2a"),
    (r"2 \cdot 3", "2·3"),
    ("a 3", "a·3"),
    ("a^2", "a²"),
    ("a^{-1}", "a⁻¹"),
    ("a^{n+1}", "a^{n + 1}"),
    ("(a+b)^2", "(a + b)²"),
    ("(a b)^2", "(a b)²"),
    ("(a/b)^2", "(a/b)²"),
    ("(-a)^2", "(-a)²"),
    ("e^x", "exp(x)"),
    (r"\pi^2", "π²"),
    ("(e^x)^2", "exp(x)²"),
    ("A u", "A u"),
    ("(A+B) u", "(A + B)u"),
    ("u^T A v", "uᵀA v"),
    ("u v^T", "u vᵀ"),
    ("A^T", "Aᵀ"),
    ("(A B)^T", "(A B)ᵀ"),
    ("A^{-1}", "A⁻¹"),
    (r"u \odot v", "u ⊙ v"),
    (r"(u \odot v)_1", "(u ⊙ v)_1"),
    (r"A (u \odot v)", "A (u ⊙ v)"),
    (r"(u \odot v) \odot u", "u ⊙ v ⊙ u"),
    (r"u \odot (v \odot u)", "u ⊙ (v ⊙ u)"),
    (r"2 (u \odot v)", "2(u ⊙ v)"),
    ("u_1", "u_1"),
    ("A_{12}", "A_{1,2}"),
    ("A_{1,:}", "A_{1,:}"),
    ("A_{:,2}", "A_{:,2}"),
    ("A_{ij}", "A_{i,j}"),
    ("(mu_q)_1", "(μ_q)_1"),
    (r"\Sigma_1", "(Σ)_1"),
    ("alpha", "α"),
    ("x'", "x'"),
    (r"\phi(u)", "φ(u)"),
    (r"\sqrt{a}", "√a"),
    (r"\sqrt{a+b}", "√(a + b)"),
    (r"\sqrt 2", "√2"),
    (r"\|u\|", "‖u‖"),
    (r"\|u\|_1", "‖u‖_1"),
    (r"\|u\|_\infty", "‖u‖_∞"),
    (r"\|A\|_F", "‖A‖_F"),
    ("|a|", "|a|"),
    ("|a + |b||", "abs(a + |b|)"),
    (r"\|u\| + |a|", "‖u‖ + |a|"),
    (r"\| \|u\| v\|", "norm(‖u‖v)"),
    (r"|\|u\||", "abs(‖u‖)"),
    (r"\exp(a)", "exp(a)"),
    (r"\log a", "log(a)"),
    (r"\max(a,b)", "max(a, b)"),
    (r"\min(u)", "min(u)"),
    (r"\det(A)", "det(A)"),
    (r"\operatorname{tr}(A)", "tr(A)"),
    ("softmax(u)", "softmax(u)"),
    (r"\operatorname{argmax}(u)", "argmax(u)"),
    (r"\operatorname{diag}(u)", "diag(u)"),
    ("relu(a)", "relu(a)"),
    (r"\operatorname{sign}(a)", "sign(a)"),
    (r"\sum_{i=1}^n s_i", "∑_{i=1}^n s_i"),
    (r"\sum_{i=1}^n s_i + a", "∑_{i=1}^n s_i + a"),
    (r"a \sum_i s_i", "a ∑_{i=1}^n s_i"),
    (r"(\sum_i s_i) a", "(∑_{i=1}^n s_i)a"),
    (r"(\sum_i s_i)^2", "(∑_{i=1}^n s_i)²"),
    (r"\sum_{i<j} s_i s_j", "∑_{1 ≤ i ≤ n, 1 ≤ j ≤ n, i < j} s_i s_j"),
    (r"\prod_i s_i", "∏_{i=1}^n s_i"),
    (r"\sum_i (s_i + 1)", "∑_{i=1}^n (s_i + 1)"),
    (r"\sum_{i \ne j} s_i s_j", "∑_{1 ≤ i ≤ n, 1 ≤ j ≤ n, i ≠ j} s_i s_j"),
    (r"\sum_{i,j} s_i s_j", "∑_{1 ≤ i ≤ n, 1 ≤ j ≤ n} s_i s_j"),
    (r"\delta_{ij} u_i u_j", "δ_{i,j} u_i u_j"),
    ("E[q]", "E[q]"),
    ("E[a q]", "E[a q]"),
    ("Var(u^T q)", "Var(uᵀq)"),
    ("Cov(q, q)", "Var(q)"),
    ("Cov(u^T q, v^T q)", "Cov(uᵀq, vᵀq)"),
    (r"\frac{\partial a^2}{\partial a}", "∂(a²)/∂a"),
    (r"\frac{\partial (a+b)}{\partial a}", "∂(a + b)/∂a"),
    (r"\pm a", "±a"),
    (r"a \pm b", "a ± b"),
    ("O(n^2)", "O(n²)"),
    (r"\Theta(n)", "Θ(n)"),
    (r"\Omega(n \log n)", "Ω(n log(n))"),
    ("a = b", "a = b"),
    (r"a \approx 0.5", "a ≈ 0.5"),
    (r"a \le b", "a ≤ b"),
    (r"a \ge b", "a ≥ b"),
    ("a < b", "a < b"),
    ("a>b", "a > b"),
    (r"a \ne b", "a ≠ b"),
    (r"\approx 0.5", "≈ 0.5"),
    ("(1,2,3)", "(1, 2, 3)"),
    ("[[1,2],[3,4]]", "[[1, 2], [3, 4]]"),
    ("[[1,2]]", "[[1, 2]]"),
    (r"\mathbf{1}_d", "𝟏_d"),
    ("I_d", "I_d"),
    (r"\mathbf{0}_d", "𝟎_d"),
    (r"\mathbf{1}_{n \times d}", "𝟏_{n×d}"),
    ("I_{n+1}", "I_{(n + 1)}"),
    (r"\infty", "∞"),
    ("head", "head"),
    ("a/(d x)", "a/(d · x)"),
    (r"\frac{1}{d x}", "1/(d · x)"),
    ("a^{b^x}", "a^{b^x}"),
    ("(a^b)^x", "(a^b)^x"),
    ("x_hat", "x_hat"),
    ("x_1", "x_1"),
    ("2 a/b", "2a/b"),
    ("(a/b) x", "a/b x"),
    ("x (a/b)", "x (a/b)"),
    (r"x \frac{a}{b}", "x (a/b)"),
    ("a b^{-1}", "a b⁻¹"),
    ("-a^2", "-a²"),
    ("(-2)^2", "(-2)²"),
    ("(-2) a", "-2a"),
    ("a + (-2)", "a - 2"),
    (r"\frac12 a", "1/2 a"),
    ("0.5 a", "0.5a"),
    (r"1.5 \times 10^3 a", "(1.5×10³)a"),
    (r"x_q'", "x_q'"),
    (r"\Pi_2", "(Π)_2"),
]  # fmt: skip


@pytest.mark.parametrize("start", range(0, len(TEXTS), 12))
def test_texts(start: int) -> None:
    for text, shown in TEXTS[start : start + 12]:
        node = parse(text, NAMES)
        assert plain(node) == shown
        assert parse(shown, NAMES) == node


def number(value: str, unit: str | None = None) -> Number:
    return Number((), Fraction(value), None if unit is None else Fraction(unit))


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
