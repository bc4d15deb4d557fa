"""Normal forms as people read them when they look for a fault."""

from __future__ import annotations

import pytest

from qkv.maths.algebra.normal import normal
from qkv.maths.parsing.parse import parse

NAMES = {
    "x": "scalar", "y": "scalar", "a": "scalar", "b": "scalar", "s": "vector[n]", "F": "matrix[n,n]", "n": "natural",
    "t": "vector[3]", "phi": "map vector[n] -> vector[n]", "g": "map scalar -> scalar", "m": "vector[n]",
    "q": "random vector[n] ~ (m, F)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0", "0"),
        ("3", "3"),
        ("1", "1"),
        ("x", "x"),
        ("-x", "-1 x"),
        ("-x/2", "-1/2 x"),
        ("2x^2 - 1/3", "-1/3 + 2 x^2"),
        ("x y", "x y"),
        (r"\sqrt 2", "2^1/2"),
        (r"\pi", "pi"),
        (r"\exp(x)", "exp(x)"),
        (r"\log(x)^2", "log(x)^2"),
        ("1/(a + b)", "sum(a + b)^-1"),
        (r"\|t\|", "sum(t[=1]^2 + t[=2]^2 + t[=3]^2)^1/2"),
        ("s", "s[#0]"),
        ("t", "t[=1], t[=2], t[=3]"),
        ("s_3", "s[=3]"),
        ("s_i", "s[i]"),
        (r"\exp(s_i)", "exp(s[p0])[i]"),
        (r"\sum_i s_i", "Σ s[1]"),
        (r"s^T F s", "Σ F[1,2] s[1] s[2]"),
        (r"\sum_{i<j} s_i s_j^2", "Σ less[1,2] s[1] s[2]^2"),
        (r"\phi(s)_2", "map:phi/1(s[r0])[=2]"),
        ("g(x)", "map:g/0(x)"),
        (r"\max(s)", "largest(s[r0], n)"),
        (r"F^{-1}", "inverse(F[r0,r1], n)[#0,#1]"),
        ("q_1", "q[=1]"),
        (r"E[\exp(q_1)]", "expect(exp(q[=1]))"),
        (r"\max(x, y, a)", "max(a, x, y)"),
    ],
)
def test_normal_forms_are_shown(text: str, shown: str) -> None:
    assert repr(normal(parse(text, NAMES))) == f"Normal({shown})"
