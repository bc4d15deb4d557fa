"""One thing in two notations: read, compared both ways, written and read again, every part in its place."""

import dataclasses
from collections.abc import Iterator

import pytest

from qkv.errors import IllTyped, QkvError, Unreadable
from qkv.maths import compare, latex, parse, plain
from qkv.maths.tree import Node

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
SAME = [
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


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_notations_are_one_thing(one: str, other: str) -> None:
    assert compare(one, other, SYMBOLS).kind == "equal"
    assert compare(other, one, SYMBOLS).kind == "equal"


@pytest.mark.parametrize("text", dict.fromkeys(text for pair in SAME for text in pair))
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
        ("1 + n!", Unreadable, "!", "factorials are not read"),
        (r"1 + \sum_{j=1}^{\infty} 2^{-j}", IllTyped, r"\infty", "a sum runs to"),
        ("1 + x₁", IllTyped, "x₁", "no components"),
        ("2 v u", IllTyped, "v u", "two columns have no product"),
        ("v + A", IllTyped, "v + A", "vector"),
        ("phi(A)", IllTyped, "A", "matrix"),
    ],
)
def test_what_cannot_be_read_is_pointed_at(text: str, error: type[QkvError], place: str, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        parse(text, SYMBOLS)
    start, stop = caught.value.span
    assert place in text[start:stop]
    assert stop - start <= max(len(place), 4) + 8
