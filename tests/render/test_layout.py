"""Layout keeps the meaning: the boxes, converted to LaTeX and parsed, are equal to the original text."""

import pytest

from qkv.maths import compare, parse
from qkv.render import Document, Formula, Maths, html, latex, markdown, pdf
from qkv.render import layout as b
from qkv.render.layout import boxes, has_matrix, in_columns
from qkv.render.layout import latex_source as written
from qkv.render.to_typst import markup

SYMBOLS = {
    **dict.fromkeys(("mu", "q", "k", "x'", "mu_q"), "vector[d]"),
    **dict.fromkeys(("Q", "K", "V"), "matrix[n,d]"),
    **dict.fromkeys(("A", "B"), "matrix[d,d]"),
    **dict.fromkeys(("s", "t", "gamma", "x"), "scalar"),
    "sigma": "positive",
    "d_model": "natural",
    "a": "vector[n]",
    "sim": "map vector[d], vector[d] -> scalar",
}
TEXTS = [
    r"\mu^T\mu",
    r"(\mu^T\mu) q",
    r"(\mu^T\mu)(q^T k)",
    r"q (\mu^T k)",
    r"q \mu^T k",
    r"q^T A B k - (A q)^T k",
    r"q^T (A + B) k",
    r"(A B)^T (A^T)^{-1}",
    r"A (2 B) q / s",
    r"\sum_{i=1}^{d} \mu_i^2 + s",
    r"(\sum_i \mu_i) s - s \sum_i \mu_i",
    r"(\sum_i \mu_i)^2 - \sum_{i<j} \mu_i \mu_j",
    r"\sum_{i \ne j} (\mu_i + \mu_j)",
    r"\prod_{i=1}^{d} (\mu_i + 1)",
    r"\sum_i (\mu_i \sum_j q_j k_i)",
    r"\frac{s + t}{s - t} (s - t)",
    r"(\frac{s}{t})^2 - (-s)^3",
    r"-s - (-t) - (s - t) + (-2) x",
    r"s^{t+1} (s^2)^t",
    r"2 \cdot 3^x \cdot 2^{-x}",
    r"\|\mu + q\|^2 - \|\mu\|_1 \|\mu\|_\infty",
    r"\mathrm{softmax}(\frac{Q K^T}{\sqrt{d}}) V",
    r"(Q K^T)_{ij}",
    r"Q_i^T K_j + Q_{i,1}",
    r"\mathrm{diag}(a) - a a^T",
    r"\mu \odot (q \odot k)",
    r"|\gamma| \sqrt{d} + \sqrt{s^2 + 1}",
    r"\exp(-s^2) \log(1 + \sigma)",
    r"\max(s, t) \mathrm{tr}(A) - \mathrm{tr}(A B)",
    r"sim(q, k) - sim(k, q)",
    r"\mathbf{1}^T \mu + d_{model}",
    r"x'^T \mu_q",
    r"0.250 + s",
    r"\frac{1}{2} s \frac{3}{4}",
    r"(1, -4, \frac{3}{2})",
    r"[[1, 2, 3], [4, 5, s]]",
    r"O(n^2 d)",
]


def box_latex(box):
    match box:
        case b.Letter(text="𝟏"):
            return r"\mathbf{1}"
        case b.Letter(text=text) | b.Numeral(text=text):
            return text
        case b.Word(text=text):
            return rf"\mathrm{{{text}}}"
        case b.Sign(text=text):
            names = {b.TIMES: " ", b.APPLY: "", "⊤": r"\top", "⊙": r"\odot", "≠": r"\ne", "−": "-", "·": r"\cdot "}
            return f" {names.get(text, text)} "
        case b.Row(parts=parts):
            return " ".join(map(box_latex, parts))
        case b.Scripts(base=base, below=below, above=b.Sign(text="′")):
            return f"{box_latex(base)}'" + (f"_{{{box_latex(below)}}}" if below else "")
        case b.Scripts(base=base, below=below, above=above):
            lower, upper = (f"_{{{box_latex(below)}}}" if below else ""), (f"^{{{box_latex(above)}}}" if above else "")
            return f"{box_latex(base)}{lower}{upper}"
        case b.Over(top=top, bottom=bottom):
            return rf"\frac{{{box_latex(top)}}}{{{box_latex(bottom)}}}"
        case b.Root(body=body):
            return rf"\sqrt{{{box_latex(body)}}}"
        case b.Fence(body=b.Grid(rows=rows)):
            inside = r" \\ ".join(" & ".join(map(box_latex, row)) for row in rows)
            return rf"\begin{{bmatrix}}{inside}\end{{bmatrix}}"
        case b.Fence(left=left, body=body, right=right):
            bars = {"‖": (r"\lVert ", r"\rVert "), "|": (r"\lvert ", r"\rvert ")}
            opening, closing = bars.get(left, (left, right))
            return f"{opening}{box_latex(body)}{closing}"
        case b.Big(sign=sign, below=below, above=above):
            upper = f"^{{{box_latex(above)}}}" if above else ""
            name = {"∑": r"\sum", "∏": r"\prod"}[sign]
            return f"{name}_{{{box_latex(below)}}}{upper}"


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_drawn_means_what_was_written(text):
    drawn = box_latex(boxes(parse(text, SYMBOLS)))
    verdict = compare(text, drawn, SYMBOLS)
    assert verdict.kind == "equal", (drawn, str(verdict))


SIZED_SYMBOLS = {"X": "matrix[3,2]", "W": "matrix[2,5]", "M": "matrix[n,d]", "x": "vector[2]"}


@pytest.mark.parametrize(
    ("text", "count"),
    [("X W", 2), ("X W = X W", 4), ("M = [[1,2],[3,4]]", 1), ("x = (1, 2)", 0), ("W^T x", 1), ("x^T x", 0), ("X", 1)],
)
def test_a_size_stands_where_a_lecturer_writes_it(text, count):
    symbols = {**SIZED_SYMBOLS, "M": "matrix[2,2]"}
    assert written(parse(text, symbols), True).count("underset") == count
    assert "underset" not in written(parse(text, symbols), False)


def test_a_transposed_matrix_has_its_own_size():
    assert r"\underset{5 \times 2}{W^\top}" in written(parse("W^T x", SIZED_SYMBOLS), True)
    assert r"\underset{n \times d}{M}" in written(parse("M", SIZED_SYMBOLS), True)


def test_every_writer_shows_them():
    document = Document("t", (Formula(Maths("X W", SIZED_SYMBOLS, labels=True)),))
    assert html(document).count("<munder>") == 2
    assert latex(document).count("underset") == markdown(document).count("underset") == 2
    assert markup(document).count("limits(") == 2
    assert pdf(document).startswith(b"%PDF")


def test_columns():
    node = in_columns(parse("[[1,2],[3,4]] (5, 6) + (7, 8)", {}))
    assert r"\begin{pmatrix} 5 \\ 6 \end{pmatrix}" in written(node, False)
    assert "(7, 8)" not in written(node, False)
    row = in_columns(parse("(1, 2)^T (3, 4)", {}))
    assert r"\begin{pmatrix} 1 & 2 \end{pmatrix}" in written(row, False)
    assert has_matrix(parse("2 [[1,2],[3,4]]", {}))
    assert not has_matrix(parse("(1, 2)", {}))
