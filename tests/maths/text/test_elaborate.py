"""Lists, matrices, roots, products in angles, numbers and names: what each part of a text is made into."""

from fractions import Fraction

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.parsing import elaborate
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Call, Constant, Index, Number, Order, PlusMinus, Special, Symbol, Written

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
        (r"x \mathbf{1}", "nothing says of what size 𝟏 is: write 1_d", r"\mathbf{1}"),
        (r"x \mathbf{0}", "nothing says of what size 𝟎 is: write 0_d", r"\mathbf{0}"),
        ("x I", "nothing says of what size I is: write I_d", "I"),
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
        (r"1 + \{1, 2\}", "a set of several values is not read", r"\{1, 2\}"),
        ("(x = 2) + 1", "a relation inside an expression is not read", "x = 2"),
        ("x + 1e401", "this exponent is beyond ±400", "1e401"),
        ("x + 1e-401", "this exponent is beyond ±400", "1e-401"),
        ("x + 1e000400", "this exponent is beyond ±400", "1e000400"),
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
def test_names_that_nobody_declared(text, reason, suggestion) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, S)
    assert (caught.value.reason, caught.value.suggestion) == (reason, suggestion)


def test_how_many_names_are_listed() -> None:
    with pytest.raises(IllTyped) as caught:
        parse("1 + zeta", {})
    assert caught.value.reason == "ζ is not declared"
    for count in (1, 2, 12, 13):
        letters = "abcfghjklmnop"[:count]
        with pytest.raises(IllTyped) as caught:
            parse("1 + zeta", dict.fromkeys(letters, "scalar"))
        listed = ", ".join(letters[:12]) + (", …" if count > 12 else "")
        assert caught.value.reason == f"ζ is not declared; {listed} {'is' if count == 1 else 'are'}"


def test_two_letters_are_too_few_to_be_like_a_name() -> None:
    with pytest.raises(IllTyped) as caught:
        parse("1 + qo", {"qoo": "scalar"})
    assert caught.value.suggestion == ""
    with pytest.raises(IllTyped) as caught:
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
    with pytest.raises(IllTyped, match="z is not declared"):
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
