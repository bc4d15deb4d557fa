"""Nodes, shapes and chains that texts become; refusals and suggestions."""

from fractions import Fraction

import pytest

from qkv.errors import IllTyped, MathsError, Unreadable
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing import elaborate
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import (
    Add,
    Call,
    Constant,
    Contract,
    Hadamard,
    Index,
    Multiply,
    Number,
    Order,
    Outer,
    PlusMinus,
    Relation,
    Special,
    Symbol,
    Transpose,
    Written,
)

S = {
    "x": "scalar",
    "y": "positive",
    "n": "natural",
    "u": "vector[d]",
    "s": "vector[n]",
    "A": "matrix[d,d]",
    "Q": "matrix[n,d]",
    "B": "matrix[k,1]",
    "r": "matrix[1,3]",
    "phi": "map vector[d] -> scalar",
    "sigma": "positive",
    "i": "index[n]",
}


@pytest.mark.parametrize(
    ("text", "shape", "entries"),
    [
        ("(1, 4, 3)", (3,), [1, 4, 3]),
        ("[1, 4, 3]", (3,), [1, 4, 3]),
        ("[1; 4; 3]", (3,), [1, 4, 3]),
        ("[1 4 3]", (3,), [1, 4, 3]),
        ("[1 -4 3]", (3,), [1, -4, 3]),
        ("[1 024]", (2,), [1, 24]),
        ("[1e3 2]", (2,), [1000, 2]),
        ("[[1, 2], [3, 4]]", (2, 2), [1, 2, 3, 4]),
        ("((1, 2), (3, 4), (5, 6))", (3, 2), [1, 2, 3, 4, 5, 6]),
        ("(1, 2; 3, 4)", (2, 2), [1, 2, 3, 4]),
        ("[1 2; 3 4]", (2, 2), [1, 2, 3, 4]),
        ("[[1, 2, 3]]", (1, 3), [1, 2, 3]),
        ("((1, 2, 3))", (3,), [1, 2, 3]),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", (2, 2), [1, 2, 3, 4]),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", (1, 2), [1, 2]),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", (2,), [1, 2]),
        (r"\left[\begin{matrix} 1 \\ 2 \end{matrix}\right]", (2,), [1, 2]),
        (r"\begin{pmatrix} 1 \cr 2 \cr \end{pmatrix}", (2,), [1, 2]),
    ],
)
def test_what_is_written_out(text, shape, entries) -> None:
    tree = parse(text, S)
    assert isinstance(tree, Written)
    assert tree.shape == shape
    assert [entry.value for entry in tree.entries] == entries  # pyright: ignore
    start, stop = tree.span
    assert text[start] in "([\\"
    for entry in tree.entries:
        assert start < entry.span[0] < entry.span[1] < stop
        assert Fraction(text[slice(*entry.span)]) == entry.value  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("1 + (1, 2; 3)", "the rows of this matrix have 2 and 1 entries", "(1, 2; 3)"),
        ("1 + [[1, 2], [3]]", "an entry is a scalar, and (1, 2) is a vector of size 2", "[1, 2]"),
        ("1 + (u, 1)", "an entry is a scalar, and u is a vector of size d", "u"),
        ("1 + [1; A]", "an entry is a scalar, and A is a d×d matrix", "A"),
        (r"1 + \begin{pmatrix} 1 & u \end{pmatrix}", "an entry is a scalar, and u is a vector of size d", "u"),
        (
            r"1 + \begin{pmatrix} 1 & 2 \\ 3 \end{pmatrix}",
            "the rows of this matrix have 2 and 1 entries",
            r"\begin{pmatrix} 1 & 2 \\ 3 \end{pmatrix}",
        ),
        (r"1 + \langle A, Q \rangle", "⟨ , ⟩ is the product of two vectors of one size", r"\langle A, Q \rangle"),
        (r"1 + \langle u, A \rangle", "⟨ , ⟩ is the product of two vectors of one size", r"\langle u, A \rangle"),
        (r"1 + \langle A, u \rangle", "⟨ , ⟩ is the product of two vectors of one size", r"\langle A, u \rangle"),
        (r"1 + \langle x, y \rangle", "⟨ , ⟩ is the product of two vectors of one size", r"\langle x, y \rangle"),
        (r"1 + \langle u, s \rangle", "u s: two columns of sizes d and n have no product", r"\langle u, s \rangle"),
        ("1 + O(u)", "a rate of growth is a scalar, and this is a vector of size d", "O(u)"),
        (r"1 + \Theta(A)", "a rate of growth is a scalar, and this is a d×d matrix", r"\Theta(A)"),
        (r"x + \mathbf{1}", "x is a scalar and 𝟏 is a vector of size ?: they cannot be added", r"x + \mathbf{1}"),
        ("1 + \\phi", "φ is a map: write φ(x)", "\\phi"),
        (
            r"\sum_j 1",
            "nothing says how far j runs: declare it as index[n], or write the range of the sum",
            r"\sum_j 1",
        ),
    ],
)
def test_what_makes_no_sense(text, reason, place) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, S)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        (r"1 + \{1, 2\}", "an interval or a set is an answer by itself, not a part of an expression", r"\{1, 2\}"),
        ("(x = 2) + 1", "a relation inside an expression is not read", "x = 2"),
        ("x + 1e401", "this exponent is beyond ±400", "1e401"),
        ("x + 1e-401", "this exponent is beyond ±400", "1e-401"),
        ("x + 1e000400", "this exponent is beyond ±400", "1e000400"),
        (r"x \mathbf{1}", "nothing says of what size 𝟏 is: write 1_d", r"\mathbf{1}"),
        (r"x \mathbf{0}", "nothing says of what size 𝟎 is: write 0_d", r"\mathbf{0}"),
        ("x I", "nothing says of what size I is: write I_d", "I"),
        ("I", "nothing says of what size I is: write I_d", "I"),
        (r"I \ne 0", "nothing says of what size I is: write I_d", "I"),
    ],
)
def test_what_is_not_read(text, reason, place) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, S)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("7", 7, None),
        ("0.250", Fraction(1, 4), Fraction(1, 1000)),
        (".5", Fraction(1, 2), Fraction(1, 10)),
        ("12.", 12, None),
        ("2.5e3", 2500, 100),
        ("2.50E-3", Fraction(1, 400), Fraction(1, 100_000)),
        ("2e3", 2000, None),
        ("2e+3", 2000, None),
        ("1e-3", Fraction(1, 1000), None),
        ("1e400", 10**400, None),
        ("1e-400", Fraction(1, 10**400), None),
        ("1e00400", 10**400, None),
        ("12 345.5", Fraction(24691, 2), Fraction(1, 10)),
        ("6.90 \\times 10^{-13}", Fraction(69, 10**14), Fraction(1, 10**15)),
        ("6.9 \\cdot 10^2", 690, 10),
        ("6.9 10^2", 690, 10),
    ],
)
def test_numbers(text, value, unit) -> None:
    number = parse(text, {})
    assert isinstance(number, Number)
    assert (number.value, number.unit, number.rounded) == (value, unit, False)


def test_a_power_of_ten_scales_the_last_scalar_of_a_product() -> None:
    tree = parse(r"x \cdot 6.9 \times 10^2", S)
    assert [getattr(factor, "value", None) for factor in tree.factors] == [None, 690]  # pyright: ignore
    vector = parse(r"6.9 u \times 10^2", S)
    assert vector.shape == ("d",)
    assert vector.factors[0].value == 690  # pyright: ignore
    assert parse(r"6 \times 10^2", S) != parse("600", S)
    assert parse(r"6.9 \times 10^{401}", S).factors[0].value == Fraction(69, 10)  # pyright: ignore
    assert parse(r"6.9 \times 10^{1/2}", S).factors[0].value == Fraction(69, 10)  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "made", "name"),
    [
        ("e", Constant, "e"),
        (r"\pi", Constant, "pi"),
        ("pi", Constant, "pi"),
        (r"\infty", Constant, "infinity"),
        ("∞", Constant, "infinity"),
        ("inf", Constant, "infinity"),
        ("infinity", Constant, "infinity"),
        ("x", Symbol, "x"),
        ("i", Index, "i"),
        ("I_n", Special, "identity"),
    ],
)
def test_names_that_mean_something_by_themselves(text, made, name) -> None:
    tree = parse(text, {} if made is Constant else S)
    assert isinstance(tree, made)
    assert tree.name == name  # pyright: ignore
    for letter in ("e", "pi"):
        assert isinstance(parse(letter, {letter: "scalar"}), Symbol)


def test_norms_of_columns_and_rows() -> None:
    assert parse("|r|", S) == parse(r"\|r^T\|", S)
    assert parse("|u^T|", S) == parse(r"\|u\|", S)
    with pytest.raises(IllTyped, match="of a matrix is not read"):
        parse("|B|", S)
    with pytest.raises(IllTyped, match="of a matrix is not read"):
        parse("|Q|", S)


def test_products_in_angles() -> None:
    assert parse(r"\langle Q, Q \rangle", S) == parse(r"\operatorname{tr}(Q^T Q)", S)
    assert parse(r"\langle u, u \rangle", S) == parse("u^T u", S)
    assert parse(r"\langle Q, Q \rangle", S).span == (0, 20)


@pytest.mark.parametrize(
    ("text", "reason", "suggestion"),
    [
        ("1 + X", "X is not declared; x is, and case matters", "x"),
        ("1 + SIGMA", "SIGMA is not declared; σ is, and case matters", "σ"),
        ("1 + sigmma", "sigmma is not declared; x, y, n, u, s, A, Q, B, r, φ, σ, i, … are", "σ"),
        ("1 + softer(x)", "softer is not declared; x, y, n, u, s, A, Q, B, r, φ, σ, i, … are", ""),
        ("1 + dett(A)", "dett is not declared; the function det is known", ""),
        ("1 + softmx(u)", "softmx is not declared; the function softmax is known", ""),
        ("1 + lo", "lo is not declared; x, y, n, u, s, A, Q, B, r, φ, σ, i, … are", ""),
        ("1 + zeta", "ζ is not declared; x, y, n, u, s, A, Q, B, r, φ, σ, i, … are", ""),
        ("1 + x'", "x' is not declared, and a prime is part of a name", "xᵀ or x"),
        ("1 + z_1", "z_1 is not declared; x, y, n, u, s, A, Q, B, r, φ, σ, i, … are", ""),
        ("1 + z_{ab}", "z_ab is not declared; x, y, n, u, s, A, Q, B, r, φ, σ, i, … are", ""),
    ],
)
def test_undeclared_names(text, reason, suggestion) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, S)
    assert (caught.value.reason, caught.value.suggestion) == (reason, suggestion)


def test_how_many_names_are_listed() -> None:
    with pytest.raises(Unreadable) as caught:
        parse("1 + zeta", {})
    assert caught.value.reason == "ζ is not declared"
    for count in (1, 2, 12, 13):
        letters = "abcfghjklmnop"[:count]
        with pytest.raises(Unreadable) as caught:
            parse("1 + zeta", dict.fromkeys(letters, "scalar"))
        listed = ", ".join(letters[:12]) + (", …" if count > 12 else "")
        assert caught.value.reason == f"ζ is not declared; {listed} {'is' if count == 1 else 'are'}"


def test_two_letters_are_too_few_to_be_like_a_name() -> None:
    with pytest.raises(Unreadable) as caught:
        parse("1 + qo", {"qoo": "scalar"})
    assert caught.value.suggestion == ""
    with pytest.raises(Unreadable) as caught:
        parse("1 + qoop", {"qoo": "scalar"})
    assert caught.value.suggestion == "qoo"


def test_signs_before_terms() -> None:
    assert parse("+x", S) == parse("x", S)
    assert parse("x - -n", S) == parse("x - (-n)", S)
    assert parse(r"x \cdot -n", S) == parse(r"x \cdot (-n)", S)
    plus, minus = parse(r"\pm x", S), parse(r"\mp x", S)
    assert isinstance(plus, PlusMinus)
    assert isinstance(minus, PlusMinus)
    assert plus.body == parse("x", S)
    assert minus.body == parse("-x", S)
    for text in ("1 - x", r"1 \pm x", r"1 \mp x"):
        last = parse(text, S).terms[-1]  # pyright: ignore
        assert text[slice(*last.span)] == text[2:], text


def test_names_in_orders_are_naturals_and_nowhere_else() -> None:
    order = parse("O(z + n)", S)
    assert isinstance(order, Order)
    assert [term.type.kind for term in order.body.terms] == ["natural", "natural"]  # pyright: ignore
    with pytest.raises(Unreadable, match="z is not declared"):
        parse("O(z) = z", S)
    assert parse("O(e^2)", {}).body.base.type.kind == "natural"  # pyright: ignore
    assert parse("O(z_1)", {}).body.name == "z_1"  # pyright: ignore


def test_roots() -> None:
    assert parse(r"\sqrt{u}", S) == Call(("d",), "sqrt", (parse("u", S),))
    assert parse(r"\sqrt[3]{x}", S) == parse("x^{1/3}", S)
    assert parse(r"\sqrt[n]{x}", S) == parse("x^{1/n}", S)


def test_reading_stops_after_too_many_steps(monkeypatch) -> None:
    monkeypatch.setattr(elaborate, "_MOST_STEPS", 10)
    assert parse("x + x + x + x + x", {"x": "scalar", "h": "scalar"}).shape == ()
    with pytest.raises(Unreadable, match="too many steps"):
        parse("x + x + x + x + x + x + x + x + x + x + x", {"x": "scalar", "h": "scalar"})


ARITHMETIC = {
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
        "⊙ takes two factors of one shape, and u is a vector of size d, s a vector of size n",
        r"u \odot s",
        "",
    ),
    (r"A \odot Q", "⊙ takes two factors of one shape, and A is a d×d matrix, Q an n×d matrix", r"A \odot Q", ""),
    (r"u \otimes A", "⊗ is the outer product of two vectors", r"u \otimes A", ""),
    (r"A \otimes u", "⊗ is the outer product of two vectors", r"A \otimes u", ""),
    ("1 + x / u", "u is a vector of size d, and nothing is divided by one", "u", ""),
    ("x / r", "r is a row of size 3, and nothing is divided by one", "r", ""),
    ("A / Q", "Q is an n×d matrix, and nothing is divided by one", "Q", ""),
    ("x / A", "A is a d×d matrix, and nothing is divided by one", "x / A", "x A⁻¹"),
    ("Q / A", "A is a d×d matrix, and nothing is divided by one", "Q / A", "Q A⁻¹"),
    ("u^T / A", "A is a d×d matrix, and nothing is divided by one", "u^T / A", "uᵀA⁻¹"),
    ("s / A", "A is a d×d matrix, and nothing is divided by one", "A", ""),
    ("x / O(n)", "an asymptotic class cannot be divided: write one class of the whole quotient", "x / O(n)", ""),
    ("O(n) / x", "an asymptotic class cannot be divided: write one class of the whole quotient", "O(n) / x", ""),
    ("x O(n)", "an asymptotic class cannot be multiplied: write one class of the whole product", "x O(n)", ""),
    ("O(n) x", "an asymptotic class cannot be multiplied: write one class of the whole product", "O(n) x", ""),
    (
        r"O(n) + \Theta(n)",
        "nothing can be added to an asymptotic class: write one class of the whole sum",
        r"O(n) + \Theta(n)",
        "",
    ),
    ("n + O(n)", "nothing can be added to an asymptotic class: write one class of the whole sum", "n + O(n)", ""),
]


@pytest.mark.parametrize(("text", "reason", "place", "suggestion"), REFUSED)
def test_what_does_not_fit(text, reason, place, suggestion) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, ARITHMETIC)
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
    tree = parse(text, ARITHMETIC)
    assert tree.shape == shape
    assert isinstance(tree, made)


def test_scalars_come_before_what_they_multiply() -> None:
    tree = parse("x Q 2 u n", ARITHMETIC)
    assert tree == parse("x 2 n (Q u)", ARITHMETIC)
    assert isinstance(tree, Multiply)
    assert [factor.shape for factor in tree.factors] == [(), (), (), ("n",)]
    assert parse("2 u^T v x", ARITHMETIC) == parse("2 (u^T v) x", ARITHMETIC)


@pytest.mark.parametrize("zero", ["0", r"\mathbf{0}"])
@pytest.mark.parametrize(("other", "shape"), [("u", ("d",)), ("A", ("d", "d")), ("u^T", (1, "d")), ("w", (3,))])
def test_a_zero_takes_the_shape_of_what_it_is_added_to(zero, other, shape) -> None:
    for text, place in ((f"{other} + {zero}", 1), (f"{zero} + {other}", 0)):
        tree = parse(text, ARITHMETIC)
        assert isinstance(tree, Add)
        assert tree.terms[place] == Special(shape, "zeros")
        assert text[slice(*tree.terms[place].span)] == zero
        assert tree.shape == tree.terms[1 - place].shape == shape
    assert parse("x + 0", ARITHMETIC).terms[1] == Number((), 0)  # pyright: ignore


def test_a_written_list_is_transposed_to_fit_a_sum() -> None:
    assert parse("w + [1, 2, 3]^T", ARITHMETIC) == parse("w + (1, 2, 3)", ARITHMETIC)
    assert parse("[1, 2, 3]^T + w", ARITHMETIC) == parse("(1, 2, 3) + w", ARITHMETIC)
    row = parse("r + [1, 2, 3]^T", ARITHMETIC)
    assert row.shape == (1, 3)
    assert isinstance(row.terms[1], Transpose)  # pyright: ignore
    assert parse("r + w^T", ARITHMETIC).shape == (1, 3)


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
    tree = parse(text, ARITHMETIC)
    assert isinstance(tree, Multiply)
    assert [factor.value if isinstance(factor, Number) else factor.name for factor in tree.factors] == factors  # pyright: ignore
    assert isinstance(parse("-0.50", ARITHMETIC), Number)
    assert parse("-0.50", ARITHMETIC).unit == parse("0.01", ARITHMETIC).value  # pyright: ignore


def test_sums_of_sums_are_one_sum_and_orders_are_one_order() -> None:
    assert parse("x + (n + m) - x", ARITHMETIC) == parse("x + n + m - x", ARITHMETIC)
    assert len(parse("(u + v) + (u + u)", ARITHMETIC).terms) == 4  # pyright: ignore
    assert parse("O(n) + O(m) + O(n^2)", ARITHMETIC) == parse("O(n + m + n^2)", ARITHMETIC)
    assert parse(r"\Theta(n) + \Theta(m)", ARITHMETIC).kind == "Theta"  # pyright: ignore


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
        parse(text, ARITHMETIC)
    assert caught.value.suggestion == suggestion
    start, stop = caught.value.span
    for one in suggestion.split(" or "):
        parse(text[:start] + one + text[stop:], ARITHMETIC)


CHAINS = {"q": "vector[d]", "k": "vector[d]", "a": "vector[n]", "x": "scalar"}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["q" + "ᵀ" * 1000, "q" + "^T" * 500, "2" + "/x" * 900, "x" + r"/x" * 400 + "= x"])
def test_what_is_too_deep_is_refused_before_anything_recurses(text) -> None:
    with pytest.raises(Unreadable, match="nested too deeply"):
        parse(text, CHAINS)
    assert compare("x", text, CHAINS).kind == "unreadable"


def test_a_suggestion_is_one_expression_and_the_expected_shape_comes_first() -> None:
    verdict = compare("k q^T", "q k", CHAINS)
    assert "did you mean q kᵀ or qᵀk?" in verdict.reason
    assert verdict.suggestion == "q kᵀ"
    assert compare("q^T k", "q k", CHAINS).suggestion == "qᵀk"


@pytest.mark.parametrize("text", ["a^T q", "q a", "q^T a", "a q", "a + q"])
def test_only_what_makes_sense_is_suggested(text) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, CHAINS)
    for option in filter(None, caught.value.suggestion.split(" or ")):
        parse(option, CHAINS)


C = {**CHAINS, "n": "natural", "y": "scalar", "f": "map vector[d] -> scalar", "A": "matrix[d,d]"}


@pytest.mark.parametrize(
    "head",
    [
        "t",
        "(t)",
        "t_i",
        "t^2",
        "(t_1)^2",
        "t(x)",
        "t(x, y)",
        "t_1(x)",
        "t(x)_2",
        r"\text{loss}",
        r"\text{loss}(x)",
        "q^T t",
        r"f(t)",
        r"\exp(t)",
        r"\exp t",
        "|t|",
        r"\|t\|",
        r"\frac{\partial L}{\partial x}",
        r"\frac{dL}{dt}",
        r"\frac{\partial L}{\partial t}",
        r"f(x)",
    ],
)
def test_heads_that_may_go_unread(head) -> None:
    if head == "q^T t":  # no name with brackets
        with pytest.raises(MathsError):
            parse(f"{head} = y", C)
        return
    assert parse(f"{head} = y", C) == parse("y", C)
    assert parse(f"{head} ≈ 2.5", C) == parse("≈ 2.5", C)
    assert parse(f"{head} = y = n", C) == parse("y = n", C)
    with pytest.raises(MathsError):
        parse(head, C)
    with pytest.raises(MathsError):
        parse(f"y = {head}", C)
    with pytest.raises(MathsError):
        parse(rf"{head} \le y", C)


@pytest.mark.parametrize(
    "head", ["2 t", "t t", "t + 1", "-t", "t (x) y", "(t, x)", r"\frac{t}{x}", "[t; x]", r"\sqrt t"]
)
def test_what_is_no_head_must_make_sense(head) -> None:
    with pytest.raises(Unreadable, match="t is not declared"):
        parse(f"{head} = y", C)


@pytest.mark.parametrize(
    ("text", "rounded"),
    [
        ("≈ 2.5", [True]),
        (r"\approx 2.5", [True]),
        ("= 2.5", [False]),
        ("x = 2.5", [None, False]),
        ("x ≈ 2.5", [None, True]),
        ("x = 1.5 ≈ 2.5", [None, False, True]),
        ("x ≈ 1.5 = 2.5", [None, False, False]),
        ("≈ (2.5, 1)", [None]),
    ],
)
def test_what_is_rounded(text, rounded) -> None:
    tree = parse(text, C)
    members = tree.members if isinstance(tree, Relation) else (tree,)
    assert [getattr(member, "rounded", None) for member in members] == rounded
    if text == "≈ (2.5, 1)":
        assert [entry.rounded for entry in tree.entries] == [True, True]  # pyright: ignore
        assert [text[slice(*entry.span)] for entry in tree.entries] == ["2.5", "1"]  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "signs", "shape"),
    [
        ("x = y", ("=",), ()),
        ("q = k", ("=",), ("d",)),
        ("x = y ≈ n", ("=", "≈"), ()),
        (r"x \le y < n", ("<=", "<"), ()),
        ("t = x = y", ("=",), ()),
        ("= x", None, ()),
        ("x = y = n = 2", ("=", "=", "="), ()),
    ],
)
def test_signs_between_members(text, signs, shape) -> None:
    tree = parse(text, C)
    assert tree.shape == shape
    assert getattr(tree, "signs", None) == signs


def test_a_member_in_the_middle_may_go_unread_as_well() -> None:
    assert parse("x = t = y", C) == parse("x = y", C)
    assert parse("t = z = y", C) == parse("y", C)


@pytest.mark.parametrize(
    ("text", "expected", "shape"),
    [
        ("0", ("d",), ("d",)),
        ("0", ("d", "d"), ("d", "d")),
        (r"\mathbf{0}", ("n", "d"), ("n", "d")),
        (r"\mathbf{1}", ("d",), ("d",)),
        ("[1, 2]^T", (2,), (2,)),
        ("[1, 2]^T", None, (2,)),
        ("[1, 2]^T", (1, 2), (2,)),
        ("2 I", ("d", "d"), ("d", "d")),
        ("x", ("d",), ()),
        ("q", ("n",), ("d",)),
        ("0", (), ()),
        ("x = 0", ("d",), ("d",)),
    ],
)
def test_what_is_expected_settles_what_is_open(text, expected, shape) -> None:
    assert parse(text, C, expected=expected).shape == shape


def test_how_deep_definitions_may_go() -> None:
    chain = {"a_0": "scalar"} | {f"a_{i}": f"scalar = a_{i - 1} + 1" for i in range(1, 20)}
    with pytest.raises(Unreadable, match="nested too deeply, definitions included"):
        parse("-(1+" * 21 + "a_19" + ")" * 21, chain)
    assert parse("-(1+" * 10 + "a_19" + ")" * 10, chain).shape == ()


E = {"Q": "matrix[n,d]", "M": "matrix[d,d]", "q": "vector[d]", "r": "vector[d]", "x": "scalar"}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Q^T Q = I", "Q^T Q = I_d"),
        ("I = Q^T Q", "I_d = Q^T Q"),
        ("M M^{-1} = I", "M M^{-1} = I_d"),
        ("M = 2 I", "M = 2 I_d"),
        ("M - I = 0", r"M - I_d = \mathbf{0}_{d \times d}"),
        ("Q^T Q = I = M", "Q^T Q = I_d = M"),
        ("q - r = 0", r"q - r = \mathbf{0}_d"),
        ("0 = q - r", r"\mathbf{0}_d = q - r"),
        (r"q \ne 0", r"q \ne \mathbf{0}_d"),
        (r"q = \mathbf{1}", r"q = \mathbf{1}_d"),
        (r"M \mathbf{1} = \mathbf{1}", r"M \mathbf{1}_d = \mathbf{1}_d"),
        ("M = I, q = 0", r"M = I_d, q = \mathbf{0}_d"),
        ("I = 5", "5"),
        ("I = 0", "0"),
    ],
)
def test_in_a_relation_a_member_of_unknown_size_takes_the_shape_of_another(text, same) -> None:
    assert parse(text, E) == parse(same, E)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Q = I", "I_n is an n×n matrix, and the other side an n×d matrix"),
        ("q = I", "I is a ?×? matrix, and the other side a vector of size d"),
        ("x = I", "I is a ?×? matrix, and the other side a scalar"),
    ],
)
def test_a_clash_of_shapes_in_a_relation_is_ill_typed(text, reason) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, E)
    assert (caught.value.reason, text[slice(*caught.value.span)]) == (reason, "I")


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        ("Q^T Q = I", "I - Q^T Q = 0", "equal"),
        ("M M^{-1} = I", "M^{-1} M = I", "equal"),
        ("q - r = 0", "r - q = 0", "equal"),
        ("q - r = 0", "q = r", "equal"),
        ("q - r = 0", "q + r = 0", "different"),
        ("M = I, q = 0", "q = 0, M = I", "equal"),
        ("M^{-1} M", "I", "equal"),
    ],
)
def test_equations_with_a_member_of_unknown_size_are_compared(gold, answer, kind) -> None:
    assert compare(gold, answer, E).kind == kind
