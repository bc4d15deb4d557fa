"""Trees as text: nice to read, and read back as the same tree (any tree: tests/properties/test_maths_text.py)."""

import pytest

from qkv.maths.parsing.parse import parse
from qkv.maths.parsing.shapes import describe_shape
from qkv.maths.printing import latex, plain

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
def test_sums_over_words_and_beside_what_is_given_read_back(text) -> None:
    node = parse(text, S)
    for write in (latex, plain):
        assert parse(write(node), S) == node
