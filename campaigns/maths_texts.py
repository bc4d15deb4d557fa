"""Valid, nearly valid and invalid texts for the parser of mathematics, and what it promises for each."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence

from qkv.errors import IllTyped, Unreadable
from qkv.maths.parsing.parse import DEEPEST, depth, parse
from qkv.maths.tree import Node, children

SYMBOLS = {
    "mu": "vector[d]",
    "sigma": "positive",
    "x": "scalar",
    "gamma": "scalar",
    "d": "natural",
    "q": "random vector[d] ~ N(mu, sigma^2 I)",
    "k": "random vector[d] ~ (mu, sigma^2 I)",
    "Q": "matrix[n,d]",
    "K": "matrix[n,d]",
    "V": "matrix[n,v]",
    "A": "matrix[n,n]",
    "s": "vector[n]",
    "a": "vector[n] = softmax(s)",
    "W_Q": "matrix[d,v]",
    "phi": "map vector[d] -> vector[F]",
    "Sigma": "matrix[d,d]",
}
VALID = (
    r"\mu^T\mu",
    r"d\sigma^4 + 2\sigma^2\mu^\top\mu",
    r"\mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d}}\right)V",
    r"\sum_{i=1}^{d} \mu_i^2",
    "Σ_i μ_i²",
    "‖μ‖² + ||q||_2^2 - |x|",
    r"\frac{\partial a_i}{\partial s_j}",
    r"a_i(\delta_{ij} - a_j)",
    r"\mathbb{E}[q^T k] = \sum_i \mu_i^2",
    r"\operatorname{Var}(q^\top k)",
    r"\phi(q)^T\phi(k)",
    r"\sum_{1 \le i < j \le n} A_{ij}",
    r"\sum_{j \le i} A_{ij} V_j",
    r"\begin{bmatrix}1 & 2\\ 3 & 4\end{bmatrix}",
    "[1 4 3]",
    "[[1, 2], [3, 4]]",
    r"6.90 \times 10^{-13}",
    r"x \approx 0.25",
    r"O(n^2 d + n \log n)",
    r"\pm\sqrt{d}",
    r"\operatorname{diag}(a) - a a^T",
    r"A^{-1} + \gamma I",
    r"\frac{\exp(s_i)}{\sum_j \exp(s_j)}",
    r"\mathbf{1}^T s / n",
    r"\max_j s_j + \prod_{i=1}^n s_i",
    r"\mu \odot \mu - 2 (\mu \odot q)",
    r"\operatorname{tr}(\Sigma A_{12})",
    r"\log_2 n + e^{-x} + \sqrt[3]{x}",
    r"s_{t-1}^2 + A_{t+1,2} - s_{n-2t+1}",
    r"\sum_{i=2}^{d} \mu_i^2 + \sum_{i=0}^{n-1} x^i - \sum_{t=1}^{n-1} s_{t+1}",
    r"\begin{aligned} x &= \binom{n}{2} \\ &= {n^2 - n \over 2} \end{aligned}",
    "||x|-|gamma|| + s_i(I_{ij} - s_j)",
    r"\mathbb{E}_{q,k}\!\left[q^T k\right]",
    r"\boxed{x = 1\,024 + q[1] - Q[i,:] k}, \quad (4)",
    r"s_i(\mathbf 1[i = j] - s_j) + log2(n)",
    r"\left[\begin{array}{c}1.\\2.\end{array}\right]",
    r"\Rightarrow {\rm softmax}(s) = \phi(Q_{i\cdot})",
    "q⊤ 1 + 0^T k + 1.5e-3x",
)
_SPLIT = re.split(
    "[ \n]+",
    r"""\mu \sigma \frac \sqrt \sum_i \sum_{i=1}^{d} \left( \right) ^T ^\top _i _{ij} ^{ _{ { } ( ) [ ] | || \| \exp
\log \max \text{ \mathbf \mathbb{E}[ O( \begin{bmatrix} \end{bmatrix} \\ & , ; : . ' ! + - * / = < > \le \ne \approx
\over \binom \! \begin{aligned} \end{aligned} _{i+1}
\pm \odot \otimes \partial \infty \cdot \langle \rangle \foo \in ^* ^\dagger \prime \hat \operatorname{tr}
mu sigma x d q k Q K V A s a W_Q phi Sigma I e E T i j n 0 1 2 12 0.5 1e9 1e999999 10^ ^2^2 1_d
μ σ Σ ² ᵀ ‖ √ · × ∑ ∂ ≈ ± 𝟏 𝐪 ₁ ᵢ ∞ $ ~ ` @ # % " ?""",
)
PIECES = [
    *_SPLIT,
    " ",
    "\n",
    "the answer is",
    "\\",
    "\u0430",
    "\u0391",
    "\u202e",
    "\u200b",
    "\x00",
    "\u05e9",
    "\U0001f600",
]
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[A-Za-z]+|\d+(?:\.\d+)?|\s+|.", re.DOTALL)
WRAPPERS = [
    *(("(", ")"), ("\\sqrt{", "}"), ("\\frac{1}{", "}"), ("x^{", "}"), ("2(x+", ")^2"), ("\\exp(", ")"), ("|", "|")),
    *(("\\|", "\\|"), ("[", "]"), ("\\sqrt ", ""), ("\\log ", ""), ("\\sum_i ", ""), ("-", ""), ("\\frac1", "")),
    *(("\\mathbf{", "}"), ("x_{", "}"), ("\\text{", "}"), ("E[", "]"), ("O(", ")"), ("{", "}"), ("∂", "")),
]


def mutated(draw: random.Random, texts: Sequence[str] = VALID) -> str:
    """A text, valid by default, with pieces removed, repeated, swapped, inserted or wrapped."""
    text = draw.choice(texts)
    for _ in range(draw.randint(1, 4)):
        at, to = sorted((draw.randint(0, len(text)), draw.randint(0, len(text))))
        match draw.randrange(5):
            case 0:
                text = text[:at] + text[to:]
            case 1:
                text = text[:to] + text[at:]
            case 2:
                text = text[:at] + draw.choice(PIECES) + text[at:]
            case 3:
                text = text[:at] + "(" + text[at:to] + ")" + text[to:]
            case 4:
                other = draw.choice(texts)
                text = text[:at] + other[draw.randint(0, len(other)) :]
    return text


def whole_pieces(text: str) -> list[tuple[int, int]]:
    """Spans of the words, signs and bracketed parts: what can be removed without leaving a bracket open."""
    found, opened = [], []
    for token in _TOKEN.finditer(text):
        start, stop = token.span()
        if token[0] in ("(", "[", "{"):
            opened.append((start, stop))
        elif token[0] in (")", "]", "}"):
            if opened:
                outer, inner = opened.pop()
                found += [(outer, stop), (inner, start)]
        else:
            found.append((start, stop))
    return found or [(0, len(text))]


def grafted(draw: random.Random, texts: Sequence[str] = VALID) -> str:
    """A text with pieces of other texts: often well formed, seldom well typed."""
    text = draw.choice(texts)
    for _ in range(draw.randint(1, 3)):
        at, to = draw.choice(whole_pieces(text))
        other = draw.choice(VALID)
        start, stop = draw.choice(whole_pieces(other))
        match draw.randrange(4):
            case 0 | 1:
                text = text[:at] + other[start:stop] + text[to:]
            case 2:
                before, after = draw.choice(WRAPPERS)
                text = text[:at] + before + text[at:to] + after + text[to:]
            case 3:
                text = text[:to] + draw.choice(("", " + ", " = ", "_", "^", " \\cdot ")) + other[start:stop] + text[to:]
    return text


def jumbled(draw: random.Random) -> str:
    glue = draw.choice(("", " "))
    return glue.join(draw.choice(PIECES) for _ in range(draw.randint(1, 25)))


def any_characters(draw: random.Random) -> str:
    ranges = ((0x20, 0x7E), (0x20, 0x7E), (0, 0x3FF), (0x2000, 0x2BFF), (0x1D400, 0x1D7FF), (0, 0xD7FF))
    return "".join(chr(draw.randint(*draw.choice(ranges))) for _ in range(draw.randint(0, 30)))


def nested(draw: random.Random) -> str:
    before, after = draw.choice(WRAPPERS)
    times = draw.choice((2, 5, 12, 30, 59, 61, 100, 300))
    return before * times + draw.choice(("x", "mu", "", "s_i", "1")) + after * draw.choice((times, times, times - 1))


def grown(draw: random.Random, shape: str = "", level: int = 3) -> str:
    """A well-typed text: a scalar (""), a vector of d or n, a matrix "dd", "nd" or "nn"."""

    def more(of: str = "") -> str:
        return grown(draw, of, level - 1)

    leaves = {
        "": ("x", "\\sigma", "d", "n", "2", "0.5", "3e-2", "\\gamma", "μ_2", "A_{12}", "s_1", "\\pi", "1.50"),
        "d": ("mu", "q", "k", "1_d", "K_3", "Q_{1}", "\\mathbf{0}_d"),
        "n": ("s", "a", "A_2", "\\mathbf{1}_n", "V_{:,1}"),
        "dd": ("Sigma", "I_d", "\\Sigma"),
        "nd": ("Q", "K"),
        "nn": ("A", "I_n"),
    }
    if level == 0:
        return draw.choice(leaves[shape])
    size = shape[:1] or draw.choice("dn")
    rules = {
        "": (
            lambda: f"({more(size)})^T ({more(size)})",
            lambda: f"\\|{more(size)}\\|^2",
            lambda: f"\\frac{{{more()}}}{{{more()}}}",
            lambda: f"({more()})^{{{more()}}}",
            # Not the letter of the next rule: inside a sum over i, i ≠ j would mean that i.
            lambda: f"\\sum_{{l=1}}^{{{size}}} ({more(size)})_l",
            lambda: f"\\sum_{{i \\ne j}} ({more(size)})_i ({more(size)})_j",
            lambda: f"\\sqrt{{{more()}}}",
            lambda: f"tr({more(size * 2)})",
            lambda: f"max({more()}, {more()})",
            lambda: f"\\lvert {more()} \\rvert",
            lambda: f"E[{more()}]",
            lambda: f"Cov({more()}, {more()})",
            lambda: f"({more()})/({more()})",
            lambda: f"exp({more()}) {more()}",
        ),
        "v": (
            lambda: f"({more(size * 2)})({more(size)})",
            lambda: f"({more(size)}) \\odot ({more(size)})",
            lambda: f"softmax({more(size)})",
            lambda: f"diag({more(size * 2)})",
            lambda: f"({more(size * 2)})_1",
        ),
        "m": (
            lambda: f"({more(shape)})({more(shape[1:] * 2)})",
            lambda: f"({more(shape[:1])})({more(shape[1:])})^T",
            lambda: f"softmax({more(shape)})",
            lambda: f"({more(shape)})^T" if shape != "nd" else f"(({more(shape)})^T)^T",
        ),
        "any": (
            lambda: f"{more(shape)} + {more(shape)}",
            lambda: f"{more(shape)} - ({more(shape)})",
            lambda: f"-({more(shape)})",
            lambda: f"({more()}) ({more(shape)})",
            lambda: f"({more(shape)}) / ({more()})",
            lambda: f"-2 \\cdot ({more(shape)})",
        ),
    }
    return draw.choice(rules["any"] + rules[("", "v", "m")[len(shape)]])()


KINDS = (mutated, grafted, jumbled, any_characters, nested, grown)


def every_part(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from every_part(child)


def check(text: str, symbols: Mapping[str, str] = SYMBOLS) -> Node | None:
    """A tree with valid shapes that is not too deep, or None for one of the two errors with a place inside the text."""
    refused = None
    try:
        node = parse(text, symbols)
    except (Unreadable, IllTyped) as error:
        refused = error
    if refused is not None:
        start, stop = refused.span
        assert refused.reason
        assert 0 <= start <= stop <= max(1, len(refused.source))
        return None
    assert depth(node) <= DEEPEST
    for part in every_part(node):
        assert len(part.shape) <= 2
        assert all(isinstance(size, int | str) for size in part.shape)
    return node
