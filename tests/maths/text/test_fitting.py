"""Sums and products of shapes: what fits, what is said where it does not, and what is suggested."""

import pytest

from qkv.errors import IllTyped
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Add, Contract, Hadamard, Multiply, Number, Outer, Special, Transpose, Written

S = {
    "x": "scalar",
    "n": "natural",
    "m": "natural",
    "u": "vector[d]",
    "v": "vector[d]",
    "s": "vector[n]",
    "w": "vector[3]",
    "A": "matrix[d,d]",
    "Q": "matrix[n,d]",
    "K": "matrix[n,d]",
    "B": "matrix[k,1]",
    "r": "matrix[1,3]",
    "M": "matrix[8,d]",
    "Z": "matrix[12,d]",
}

REFUSED = [
    ("u + s", "u is a vector of size d and s is a vector of size n: they cannot be added", "u + s", ""),
    ("s + u", "s is a vector of size n and u is a vector of size d: they cannot be added", "s + u", ""),
    ("2 (u + x)", "u is a vector of size d and x is a scalar: they cannot be added", "u + x", "u + x·𝟏_d"),
    ("2 (x + u)", "x is a scalar and u is a vector of size d: they cannot be added", "x + u", "x·𝟏_d + u"),
    ("2 (u + 1)", "u is a vector of size d and 1 is a scalar: they cannot be added", "u + 1", "u + 𝟏_d"),
    ("2 (u + 2)", "u is a vector of size d and 2 is a scalar: they cannot be added", "u + 2", "u + 2·𝟏_d"),
    ("A + x", "A is a d×d matrix and x is a scalar: they cannot be added", "A + x", "A + x I_d"),
    ("A + 1", "A is a d×d matrix and 1 is a scalar: they cannot be added", "A + 1", "A + I_d"),
    ("Q + x", "Q is an n×d matrix and x is a scalar: they cannot be added", "Q + x", ""),
    ("M + x", "M is an 8×d matrix and x is a scalar: they cannot be added", "M + x", ""),
    ("Z + x", "Z is a 12×d matrix and x is a scalar: they cannot be added", "Z + x", ""),
    ("Q + K^T", "Q is an n×d matrix and Kᵀ is a d×n matrix: they cannot be added", "Q + K^T", "Q + K"),
    ("Q + Q^T", "Q is an n×d matrix and Qᵀ is a d×n matrix: they cannot be added", "Q + Q^T", ""),
    ("K^T + Q", "Kᵀ is a d×n matrix and Q is an n×d matrix: they cannot be added", "K^T + Q", "Kᵀ + Qᵀ"),
    ("Q + A", "Q is an n×d matrix and A is a d×d matrix: they cannot be added", "Q + A", ""),
    ("u + v + x - u", "u is a vector of size d and x is a scalar: they cannot be added", "u + v + x", "u + v + x·𝟏_d"),
    ("A + u", "A is a d×d matrix and u is a vector of size d: they cannot be added", "A + u", ""),
    ("w + r", "w is a vector of size 3 and r is a row of size 3: they cannot be added", "w + r", ""),
    ("x + u v", "u v: two columns have no product", "u v", "uᵀv"),
    ("u s", "u s: two columns of sizes d and n have no product", "u s", "u sᵀ"),
    (r"u \cdot s", "u s: two columns of sizes d and n have no product", r"u \cdot s", "u sᵀ"),
    ("Q s", "Q s: (n×d)(n) do not fit", "Q s", "Qᵀs"),
    ("u Q", "u Q: (d)(n×d) do not fit", "u Q", "Q u"),
    ("u B", "u B: (d)(k×1) do not fit", "u B", "u Bᵀ"),
    ("B u", "B u: (k×1)(d) do not fit", "B u", "B uᵀ"),
    ("A Q", "A Q: (d×d)(n×d) do not fit", "A Q", "A Qᵀ"),
    ("Q K", "Q K: (n×d)(n×d) do not fit", "Q K", "Q Kᵀ"),
    ("u^T s", "uᵀs: (1×d)(n) do not fit", "u^T s", "s uᵀ"),
    ("u^T Q", "uᵀQ: (1×d)(n×d) do not fit", "u^T Q", "uᵀQᵀ"),
    ("M Z", "M Z: (8×d)(12×d) do not fit", "M Z", "M Zᵀ"),
    ("w Q", "w Q: (3)(n×d) do not fit", "w Q", ""),
    (
        r"1 + u \odot s",
        "⊙ wants two of one shape, and u is a vector of size d, s a vector of size n",
        r"u \odot s",
        "",
    ),
    (r"A \odot Q", "⊙ wants two of one shape, and A is a d×d matrix, Q an n×d matrix", r"A \odot Q", ""),
    (r"u \otimes A", "⊗ is the outer product of two vectors", r"u \otimes A", ""),
    (r"A \otimes u", "⊗ is the outer product of two vectors", r"A \otimes u", ""),
    ("1 + x / u", "u is a vector of size d, and nothing is divided by one", "u", ""),
    ("x / r", "r is a row of size 3, and nothing is divided by one", "r", ""),
    ("A / Q", "Q is an n×d matrix, and nothing is divided by one", "Q", ""),
    ("x / A", "A is a d×d matrix, and nothing is divided by one", "x / A", "x A⁻¹"),
    ("Q / A", "A is a d×d matrix, and nothing is divided by one", "Q / A", "Q A⁻¹"),
    ("u^T / A", "A is a d×d matrix, and nothing is divided by one", "u^T / A", "uᵀA⁻¹"),
    ("s / A", "A is a d×d matrix, and nothing is divided by one", "A", ""),
    ("x / O(n)", "a class of growth stands alone: it is not divided", "x / O(n)", ""),
    ("O(n) / x", "a class of growth stands alone: it is not divided", "O(n) / x", ""),
    ("x O(n)", "a class of growth stands alone: nothing multiplies it", "x O(n)", ""),
    ("O(n) x", "a class of growth stands alone: nothing multiplies it", "O(n) x", ""),
    (
        r"O(n) + \Theta(n)",
        "a class of growth stands alone: nothing is added to it; write one of the whole",
        r"O(n) + \Theta(n)",
        "",
    ),
    ("n + O(n)", "a class of growth stands alone: nothing is added to it; write one of the whole", "n + O(n)", ""),
]


@pytest.mark.parametrize(("text", "reason", "place", "suggestion"), REFUSED)
def test_what_does_not_fit(text, reason, place, suggestion) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, S)
    assert (caught.value.reason, caught.value.suggestion) == (reason, suggestion)
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize(
    ("text", "shape", "made"),
    [
        ("u v^T", ("d", "d"), Outer),
        ("u s^T", ("d", "n"), Outer),
        (r"u \otimes s", ("d", "n"), Outer),
        ("s r", ("n", 3), Outer),
        ("Q u", ("n",), Contract),
        ("Q A", ("n", "d"), Contract),
        ("u^T v", (), Contract),
        (r"u \cdot v", (), Contract),
        ("r w", (), Contract),
        (r"u \odot v", ("d",), Hadamard),
        (r"Q \odot K", ("n", "d"), Hadamard),
        (r"x \odot u", ("d",), Multiply),
        (r"u \odot x", ("d",), Multiply),
        (r"x \otimes u", ("d",), Multiply),
        ("u x", ("d",), Multiply),
        ("x Q x", ("n", "d"), Multiply),
        ("2 x", (), Multiply),
        ("B^T", (1, "k"), Transpose),
        ("r^T", (3,), Transpose),
    ],
)
def test_what_a_product_is(text, shape, made) -> None:
    tree = parse(text, S)
    assert tree.shape == shape
    assert isinstance(tree, made)


def test_scalars_come_before_what_they_multiply() -> None:
    tree = parse("x Q 2 u n", S)
    assert tree == parse("x 2 n (Q u)", S)
    assert isinstance(tree, Multiply)
    assert [factor.shape for factor in tree.factors] == [(), (), (), ("n",)]
    assert parse("2 u^T v x", S) == parse("2 (u^T v) x", S)


@pytest.mark.parametrize("zero", ["0", r"\mathbf{0}"])
@pytest.mark.parametrize(("other", "shape"), [("u", ("d",)), ("A", ("d", "d")), ("u^T", (1, "d")), ("w", (3,))])
def test_a_zero_takes_the_shape_of_what_it_is_added_to(zero, other, shape) -> None:
    for text, place in ((f"{other} + {zero}", 1), (f"{zero} + {other}", 0)):
        tree = parse(text, S)
        assert isinstance(tree, Add)
        assert tree.terms[place] == Special(shape, "zeros")
        assert text[slice(*tree.terms[place].span)] == zero
        assert tree.shape == tree.terms[1 - place].shape == shape
    assert parse("x + 0", S).terms[1] == Number((), 0)  # pyright: ignore


def test_a_written_list_is_turned_to_stand_beside_what_it_is_added_to() -> None:
    assert parse("w + [1, 2, 3]^T", S) == parse("w + (1, 2, 3)", S)
    assert parse("[1, 2, 3]^T + w", S) == parse("(1, 2, 3) + w", S)
    row = parse("r + [1, 2, 3]^T", S)
    assert row.shape == (1, 3)
    assert isinstance(row.terms[1], Transpose)  # pyright: ignore
    assert parse("r + w^T", S).shape == (1, 3)


@pytest.mark.parametrize("text", ["W [1, 2, 3]^T", "W (1, 2, 3)", "W [1; 2; 3]", r"W \cdot [1, 2, 3]^T"])
def test_a_matrix_times_a_written_list(text) -> None:
    tree = parse(text, {"W": "matrix[2,3]"})
    assert tree.shape == (2,)
    assert isinstance(tree, Contract)
    assert isinstance(tree.right, Written)
    assert parse("W [1, 2, 3]^T", {"W": "matrix[2,1]"}).shape == (2, 3)


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("-x", [-1, "x"]),
        ("-2x", [-2, "x"]),
        ("-(1x)", [-1, 1, "x"]),
        ("-(-2x)", [-1, -2, "x"]),
        ("-x n", [-1, "x", "n"]),
    ],
)
def test_a_minus_goes_into_the_number_before(text, factors) -> None:
    tree = parse(text, S)
    assert isinstance(tree, Multiply)
    assert [factor.value if isinstance(factor, Number) else factor.name for factor in tree.factors] == factors  # pyright: ignore
    assert isinstance(parse("-0.50", S), Number)
    assert parse("-0.50", S).unit == parse("0.01", S).value  # pyright: ignore


def test_sums_of_sums_are_one_sum_and_orders_are_one_order() -> None:
    assert parse("x + (n + m) - x", S) == parse("x + n + m - x", S)
    assert len(parse("(u + v) + (u + u)", S).terms) == 4  # pyright: ignore
    assert parse("O(n) + O(m) + O(n^2)", S) == parse("O(n + m + n^2)", S)
    assert parse(r"\Theta(n) + \Theta(m)", S).kind == "Theta"  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("2 u v", "2uᵀv or 2u vᵀ"),
        ("2 x u v", "2x uᵀv or 2x u vᵀ"),
        ("u 2 v", "2uᵀv or 2u vᵀ"),
        ("3 u v + 1", "3uᵀv"),
        ("2 u A", "2uᵀA"),
        ("2 A u^T", "2A u"),
        ("2 u s", "2u sᵀ"),
    ],
)
def test_a_suggestion_keeps_the_scalars_of_what_it_replaces(text, suggestion) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, S)
    assert caught.value.suggestion == suggestion
    start, stop = caught.value.span
    for one in suggestion.split(" or "):
        parse(text[:start] + one + text[stop:], S)
