"""Numbers, places in square brackets, equation numbers and what stands before and after a text."""

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.reading import parse
from qkv.maths.tree import Number, Part

S = {
    "q": "vector[d]",
    "k": "vector[d]",
    "x": "scalar",
    "n": "natural",
    "Q": "matrix[n,d]",
    "mu": "vector[d]",
    "z": "random vector[d] ~ N(mu, I)",
}

SAME = [
    ("1024", r"1\,024", "1 024", "1~024", "1{,}024", "1\u00a0024", "1\u2009024", "1\u202f024", r"1\;024"),
    ("12345678.5", r"12\,345\,678.5", "12 345 678.5"),
    ("1024 n", r"1\,024\,n", "1{,}024n"),
    ("(1024, 3)", "(1 024, 3)"),
    ("(1, 24, 3)", "[1 24 3]"),
    ("(2, 3, -5)", "[2., 3., -5.]", r"\begin{bmatrix}2.\\3.\\-5.\end{bmatrix}", r"\left[2., 3., -5.\right]"),
    ("0.0015 x", "1.5e-3x", "1.5e-3 x"),
    ("2.5e-3", "2.5 e-3"),
    ("2 e^2", "2e^2", "2e^{2}"),
    ("q_1", "q[1]", r"\mathbf{q}[1]", "q [1]", r"q\left[1\right]"),
    ("q_2 k_2", "q[2]k[2]"),
    ("Q_{i,j}", "Q[i,j]", "Q[i, j]", "Q[i][j]"),
    ("Q_{i:}", "Q[i,:]"),
    ("Q_{:1}", "Q[:,1]"),
    (r"\sum_i q_i k_i", r"\sum_i q[i] k[i]"),
    ("q_{t+1}", "q[t+1]", "q[t + 1]"),
    (
        "x = n",
        r"x = n \quad (4)",
        r"x = n \tag{4}",
        "x = n, (4)",
        "x = n. (4)",
        r"x = n.\qquad (4.2)",
        r"x = n \hfill (4a)",
    ),
    (
        "x = n",
        r"\begin{equation} x = n, \quad (4) \end{equation}",
        r"$$x = n \quad \text{(4)}$$",
        r"\[x = n \quad (4).\]",
    ),
    ("x n", r"\Rightarrow x n", r"\implies xn", r"\therefore x n", "∴ x n", "⇒ x n", "⟹ x n", r"\iff x n", "=> x n"),
    ("q^T k", "q⊤k", "q⊤ k", r"q^{\top} k"),
    (r"Var(z^T q)", r"\mathbb{V}[z^T q]", r"\mathbb V(z^T q)", r"\mathbb{V}\left[z^T q\right]"),
]


@pytest.mark.parametrize("texts", SAME, ids=lambda texts: texts[0])
def test_spellings_of_one_thing_read_alike(texts) -> None:
    first, *others = [parse(text, S) for text in texts]
    for text, other in zip(texts[1:], others, strict=True):
        assert other == first, text


@pytest.mark.parametrize(
    "text", ["2 3", "1 02", "2.5.3", "0.123 456", "1024 000", r"2\,3", "x 2 3", r"2 \cdot 3 4", "(1 2 3)", "0 024"]
)
def test_two_numbers_side_by_side_are_refused(text) -> None:
    with pytest.raises(Unreadable, match="side by side"):
        parse(text, S)


@pytest.mark.parametrize(
    "text", [r"\frac12 3", r"x^2 3", "x^-2 3", r"\sqrt2 3", r"\log_2 8", "2 10^3", "2(3)", "q_1 2"]
)
def test_a_number_that_belongs_to_something_else_may_stand_before_one(text) -> None:
    assert parse(text, S).shape == ()


@pytest.mark.parametrize("text", ["1_024", "1_3", "2_000"])
def test_digits_are_not_grouped_by_a_lower_line(text) -> None:
    with pytest.raises(Unreadable, match="grouped"):
        parse(text, S)
    assert parse(r"\mathbf{1}_{3}", S).shape == (3,)
    assert parse("1_n", S).shape == ("n",)


def test_a_point_at_the_end_of_an_entry_says_no_digits() -> None:
    entries = parse("[2., 3.50]", S).entries  # pyright: ignore[reportAttributeAccessIssue]
    assert [isinstance(entry, Number) and entry.unit is None for entry in entries] == [True, False]


def test_square_brackets_are_places_only_after_what_has_axes() -> None:
    assert parse("x[2]", S) == parse("x(2)", S)
    assert parse("q[x+1]", S) == parse("q(x+1)", S)
    assert parse("Q [1, 2]", {"Q": "matrix[3,2]"}).shape == (3,)
    assert isinstance(parse("Q[1,2]", {"Q": "matrix[3,2]"}), Part)
    with pytest.raises(IllTyped, match="from 1"):
        parse("q[0]", S)


@pytest.mark.parametrize("text", ["x (4)", "x[4]"])
def test_a_number_in_brackets_beside_something_is_a_factor(text) -> None:
    assert parse(text, S) == parse("x 4", S)


@pytest.mark.parametrize(
    ("text", "opened"), [("[x)", "["), ("[Q|n]", "|"), ("f(q||q)", "||"), ("{x)", "{"), (r"\langle x)", r"\langle")]
)
def test_a_bracket_that_closes_nothing_says_what_is_open(text, opened) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, S)
    assert caught.value.reason.endswith(f"what is open is {opened}")


def test_an_ampersand_lays_out_a_chain_and_multiplies_nothing() -> None:
    assert parse(r"x &= n \\ &= 3", S) == parse("x = n = 3", S)
    with pytest.raises(Unreadable, match="& was not expected"):
        parse("x & n", S)
