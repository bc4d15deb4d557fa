"""Formulas as text are rectangles with every sign of the formula, and wide chains break at relations."""

import re
import subprocess
import sys

import pytest

from qkv.maths import parse
from qkv.render.layout import boxes as boxes_of
from qkv.render.layout import in_columns, with_sizes
from qkv.render.to_text import broken, drawn, has_grid, in_text, pretty, side_by_side


def test_indices_are_small_where_there_are_such_signs():
    symbols = {"q_1": "vector[d]", "k_j": "vector[d]", "W_Q": "matrix[d,d]", "d_model": "natural"}
    assert in_text("$q_1^T k_j$, $W_Q$ and $d_model$", symbols) == "q₁ᵀkⱼ, W_Q and d_model"
    assert pretty("x_{1,2} x_12 x_{i+1} x_ab") == "x₁,₂ x₁₂ x_{i+1} x_ab"
    assert pretty("0.00000012 0.0012 10.00000001") == "1.2×10⁻⁷ 0.0012 10.00000001"


def test_rich_is_not_loaded():
    program = "import sys, qkv.render.to_text; print('rich' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "False"


SYMBOLS = {"W": "matrix[2,3] = [[1,0,2],[0,1,-3]]", "x": "vector[2] = (2,3)", "q": "vector[3] = W^T x"}


def lines(text, columns=True, labels=False):
    node = parse(text, SYMBOLS)
    node = in_columns(node) if columns else node
    return [line.rstrip() for line in drawn(boxes_of(with_sizes(node) if labels else node)).lines]


def test_a_matrix_times_a_vector_is_drawn_as_one_writes_it():
    assert lines("q = [[1,0],[0,1],[2,-3]] (2,3) = (2,3,-5)") == [
        "    ⎡ 1   0 ⎤         ⎡  2 ⎤",
        "q = ⎢ 0   1 ⎥ ⎡ 2 ⎤ = ⎢  3 ⎥",
        "    ⎣ 2  −3 ⎦ ⎣ 3 ⎦   ⎣ −5 ⎦",
    ]


def test_sizes_stand_beneath_the_names_of_a_product():
    drawing = lines("q = W^T x", labels=True)
    assert [line.split() for line in drawing] == [["q", "=", "Wᵀ", "x"], ["3×2"]]
    assert drawing[1].index("3×2") == drawing[0].index("Wᵀ")


def test_fractions_roots_and_sums():
    assert lines(r"\frac{1}{2}") == ["1", "─", "2"]
    assert lines(r"\sum_{i=1}^3 q_i^2") == [" 3", " ∑  qᵢ²", "i=1"]
    assert lines(r"\sqrt{2} + \sqrt{1 + x_1}") == ["√2 + √(1 + x₁)"]


def test_every_node_is_drawn_as_a_rectangle(samples):
    for name, node in samples.items():
        drawing = drawn(boxes_of(node))
        assert len({len(line) for line in drawing.lines}) == 1, name
        assert 0 <= drawing.base < len(drawing.lines), name
        assert "".join(drawing.lines).strip(), name


def test_a_chain_goes_on_below_and_loses_nothing():
    box = boxes_of(parse(" = ".join(["[[1,2],[3,4]]"] * 6), {}))
    whole = drawn(box)
    for width in (60, 30, 20):
        parts = broken(box, width)
        assert all(part.width <= width for part in parts)
        assert len(parts) > 1
        assert sum(re.sub(r"\s", "", "".join(part.lines)).count("⎡") for part in parts) == 6
    assert broken(box, whole.width) == (whole,)


@pytest.mark.parametrize("width", [12, 20, 40, 80])
def test_formulas_are_next_to_each_other_while_they_fit(width):
    made = [boxes_of(parse(f"[[{n},2],[3,4]]", {})) for n in range(5)]
    rows = list(side_by_side(made, width))
    assert all(row.width <= width for row in rows)
    assert sum("".join(row.lines).count("⎡") for row in rows) == 5
    assert len(rows) == {12: 5, 20: 3, 40: 2, 80: 1}[width]


def test_what_needs_more_than_a_line():
    assert has_grid(boxes_of(parse("2 [[1,2],[3,4]]", {})))
    assert not has_grid(boxes_of(parse("(1, 2)", {})))
