"""Every node has its span in the source, and trees of the labelled texts parse back."""

import contextlib
import dataclasses
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from qkv.errors import MathsError, QkvError
from qkv.maths import latex, plain
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Index, Node, Number, Part, Symbol, children

S = {
    "x": "scalar",
    "y": "positive",
    "n": "natural",
    "u": "vector[n]",
    "v": "vector[n]",
    "w": "vector[3]",
    "A": "matrix[n,n]",
    "Q": "matrix[n,d]",
    "K": "matrix[n,d]",
    "r": "matrix[1,n]",
    "B": "matrix[n,1]",
    "i": "index[n]",
    "q": "random vector[n] ~ N(u, I)",
    "p": "random vector[n] ~ N(u, I)",
    "f": "map vector[n] -> scalar",
    "g": "map vector[n] -> vector[n]",
}


TEXTS = [
    r"1 + \max_j u_j",
    r"1 + \max_j 2 u_j v_j",
    r"1 + \max_j (u_j + x)",
    r"1 + \max_j u_j^2",
    r"1 + \max_j \exp(u_j)",
    r"1 + \max_j |u_j|",
    r"1 + \max_j (u_j / 2)",
    r"1 + \max_j (2 / u_j)",
    r"1 + \max_j E[q_j]",
    r"1 + \max_j A_{ij}",
    r"1 + \max_j A_{ji}",
    r"1 + \max_j A_{jj}",
    r"1 + \max_j Q_i^T K_j",
    r"1 + \max_j K_j^T Q_i",
    r"1 + \max_j r A_j",
    r"1 + \max_j \sum_l A_{jl}",
    r"1 + \max_j \prod_l A_{jl}",
    r"1 + \max_j u_j^3",
    r"1 + \max_j f(A_j)",
    r"1 + \operatorname{softmax}_j(u_j)",
    r"1 + \operatorname{softmax}_j(2 u_j)",
    r"v + \operatorname{softmax}(u)",
    r"1 + \arg\max_j u_j v_j",
    r"1 + \max_j [Q K^T]_{ij}",
    r"1 + \delta_{ij} u_j",
    r"1 + 1[i = j] u_j",
    r"1 + \mathbf{1}_{i=j} u_j",
    r"1 + I_{ij} u_j",
    r"1 + u^T 1",
    r"1 + u^T 0",
    r"1 + 0^T u",
    r"1 + \mathbf{1}^T u",
    r"v + 0",
    r"A + 0",
    r"u + \mathbf{0}",
    r"A + \mathbf{0}",
    r"w + [1, 2, 3]^T",
    r"1 + [1,2,3] \cdot [1,2,3]^T",
    r"1 + \langle A, A \rangle",
    r"1 + \langle u, v \rangle",
    r"1 + \binom{n}{3}",
    r"1 + \binom{n}{0}",
    r"1 + \sqrt[3]{x}",
    r"1 + \sqrt{x}",
    r"1 + \log_2 y",
    r"1 + \log_2(y)",
    r"1 + \log^2(y)",
    r"1 + \log -x",
    r"1 + \|u\|_1",
    r"1 + \|A\|_F",
    r"1 + \|r\|",
    r"1 + |u^T|",
    r"1 + norm(u)",
    r"1 + norm_1(u)",
    r"1 + f(u)",
    r"1 + f(0)",
    r"1 + f(r)",
    r"v + g(u)",
    r"r + g(r)",
    r"r + g(A_{1:})",
    r"1 + softmax(1, 2, 3)_1",
    r"1 + \max(x, y, 2)",
    r"1 + Cov(q_1, p_1)",
    r"1 + Var(q_1)",
    r"1 + E_{q,p}[q^T p]",
    r"1 + \frac{\partial x^2}{\partial x}",
    r"1 + \frac{\partial^2 x^2 y}{\partial x \partial y}",
    r"1 + ∂x²/∂x",
    r"1 + ∂/∂x x²",
    r"v + \nabla_u (u^T u)",
    r"1 + x^{-1}",
    r"1 + e^{-x}",
    r"A + A^{-T}",
    r"A + A^{-1}",
    r"A^T + A",
    r"v + v^{\odot 2}",
    r"1 + A^T_{12}",
    r"1 + u^T_1",
    r"1 + (u^T)_1",
    r"1 + r_2",
    r"1 + A_{12}",
    r"1 + A12",
    r"1 + u2",
    r"1 + u[2]",
    r"1 + A[1][2]",
    r"1 + A[1, 2]",
    r"r + A_{1:}",
    r"v + A_{:1}",
    r"v + A_1",
    r"1 + 6.9 \times 10^{-3}",
    r"1 + x 6.9 \times 10^{-3}",
    r"1 + 2.5 e-3",
    r"1 + 1 024",
    r"1 - -x",
    r"1 - 2 x",
    r"1 - x y",
    r"1 - (x)",
    r"1 \pm x",
    r"1 \mp 2 x",
    r"A - I",
    r"O(n) + O(n^2)",
    r"\Theta(n)",
    r"1 + x \cdot -y",
    r"1 + x / -y",
    r"1 + {x \over y}",
    r"1 + u_{n-1}",
    r"1 + u_{i+1}",
    r"1 + u_{2+1}",
    r"v + 2 u \odot v",
    r"A + u \otimes v",
    r"A + u v^T",
    r"A + u r",
    r"1 + r u",
    r"1 + \|B\|_F",
    r"u + B_{:1}",
    r"x = y = 2",
    r"x \le y",
    r"\begin{pmatrix} x & y \\ 1 & 2 \end{pmatrix}",
    r"[[x, y], [1, 2]]",
    r"(x, y)",
    r"[[1, 2]]",
    r"1 + \pi + \infty",
]


def below(tree: Node):
    yield tree
    for child in children(tree):
        yield from below(child)


@pytest.mark.parametrize("text", TEXTS)
def test_every_part_stands_where_it_says(text) -> None:
    tree = parse(text, S)
    assert tree.span == (0, len(text))
    for node in below(tree):
        start, stop = node.span
        assert 0 <= start < stop <= len(text), node
        for child in children(node):
            if not isinstance(child, Index):  # one that a function binds may stand before what it is of
                assert start <= child.span[0] < child.span[1] <= stop, (node, child)
        if isinstance(node, Symbol):
            assert text[start:stop].strip("( )") == node.name
        if isinstance(node, Index):
            assert node.name in text[start:stop]


@pytest.mark.parametrize(
    ("text", "kind", "places"),
    [
        (r"1 + A_{12}", Part, ["A_{12}"]),
        (r"1 + A[1][2]", Part, ["A[1][2]"]),
        (r"1 + u2 + u_3", Part, ["u2", "u_3"]),
        ("1 + u₂", Part, ["u₂"]),
        ("(x + 10) - 2", Number, ["10", "- 2"]),
        (r"x + 6.9 \times 10^{-3}", Number, [r"6.9 \times 10^{-3}"]),
    ],
)
def test_places_of_some(text, kind, places) -> None:
    found = [node for node in below(parse(text, S)) if isinstance(node, kind)]
    assert [text[slice(*node.span)] for node in found] == places


def test_the_bound_of_a_sum_stands_for_the_sum() -> None:
    for text in (
        r"1 + \sum_{j=2}^{n} u_j",
        r"1 + \sum_{j \le i} u_j",
        r"1 + \sum_{j=2}^{3} u_j",
        r"1 + \sum_{j=0}^{n-1} x^j",
    ):
        for node in below(parse(text, S)):
            start, stop = node.span
            assert 0 <= start < stop <= len(text), (text, node)


PAIRS = [
    pair
    for path in sorted((Path(__file__).parents[1] / "labelled").glob("*.toml"))
    for pair in tomllib.loads(path.read_text(encoding="utf-8"))["pair"]
]


by_part = pytest.mark.parametrize("part", range(16))


def trees(part: int) -> Iterator[tuple[str, dict[str, str], Node]]:
    """Those of every sixteenth pair that can be read by themselves; most can."""
    read = 0
    for pair in PAIRS[part::16]:
        for text in (pair["gold"], pair["answer"]):
            with contextlib.suppress(QkvError):
                yield text, pair["symbols"], parse(text, pair["symbols"])
                read += 1
    assert read > 100


def inner(node: Node) -> Iterator[Node]:
    for field in dataclasses.fields(node):
        held = getattr(node, field.name)
        yield from (part for part in (held if isinstance(held, tuple) else (held,)) if isinstance(part, Node))


def nodes(tree: Node) -> Iterator[Node]:
    yield tree
    for part in inner(tree):
        yield from nodes(part)


@pytest.mark.slow
@by_part
def test_every_node_has_a_place_inside_that_of_what_it_is_a_part_of(part: int) -> None:
    for text, _, tree in trees(part):
        for node in nodes(tree):
            start, stop = node.span
            assert 0 <= start < stop <= len(text), (text, node)
            for child in inner(node):
                # A bound that was moved to 1 takes what it was moved by from the whole sum.
                if not (isinstance(node, Part) and isinstance(child, Number)):
                    assert start <= child.span[0] < child.span[1] <= stop, (text, node, child)


@pytest.mark.slow
@by_part
def test_the_place_of_a_name_is_that_name(part: int) -> None:
    for text, symbols, tree in trees(part):
        for node in nodes(tree):
            if isinstance(node, Symbol):
                try:
                    assert parse(text[slice(*node.span)], symbols) == node, (text, node)
                except MathsError:  # a map is no value, and a size in a declaration is no name, by itself
                    assert node.type.kind == "map" or node.name not in symbols, (text, node)


@pytest.mark.slow
@by_part
def test_what_is_written_reads_as_what_was_read(part: int) -> None:
    for text, symbols, tree in trees(part):
        assert parse(latex(tree), symbols) == tree, text
        assert parse(plain(tree), symbols) == tree, text
