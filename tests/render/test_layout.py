"""What is drawn means what was written: the boxes, read again as LaTeX, are equal to the text that they came from."""

import pytest

from qkv.maths import compare, parse
from qkv.render import layout as b
from qkv.render.layout import boxes

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


def latex(box):
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
            return " ".join(map(latex, parts))
        case b.Scripts(base=base, below=below, above=b.Sign(text="′")):
            return f"{latex(base)}'" + (f"_{{{latex(below)}}}" if below else "")
        case b.Scripts(base=base, below=below, above=above):
            lower, upper = (f"_{{{latex(below)}}}" if below else ""), (f"^{{{latex(above)}}}" if above else "")
            return f"{latex(base)}{lower}{upper}"
        case b.Over(top=top, bottom=bottom):
            return rf"\frac{{{latex(top)}}}{{{latex(bottom)}}}"
        case b.Root(body=body):
            return rf"\sqrt{{{latex(body)}}}"
        case b.Fence(body=b.Grid(rows=rows)):
            inside = r" \\ ".join(" & ".join(map(latex, row)) for row in rows)
            return rf"\begin{{bmatrix}}{inside}\end{{bmatrix}}"
        case b.Fence(left=left, body=body, right=right):
            bars = {"‖": (r"\lVert ", r"\rVert "), "|": (r"\lvert ", r"\rvert ")}
            opening, closing = bars.get(left, (left, right))
            return f"{opening}{latex(body)}{closing}"
        case b.Big(sign=sign, below=below, above=above):
            upper = f"^{{{latex(above)}}}" if above else ""
            name = {"∑": r"\sum", "∏": r"\prod"}[sign]
            return f"{name}_{{{latex(below)}}}{upper}"


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_drawn_means_what_was_written(text):
    drawn = latex(boxes(parse(text, SYMBOLS)))
    verdict = compare(text, drawn, SYMBOLS)
    assert verdict.kind == "equal", (drawn, str(verdict))
