"""Subscript arithmetic against enumeration; components, powers, transposes and refusals."""

from fractions import Fraction
from itertools import product

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.parsing.parse import parse
from qkv.maths.parsing.scripts import LinearIndex, always_within, linear_index, simplify_index
from qkv.maths.tree import (
    Add,
    Call,
    Delta,
    Divide,
    Hadamard,
    Index,
    Multiply,
    Node,
    Number,
    Part,
    Power,
    Special,
    Symbol,
    Transpose,
    Type,
)

FIRST, SECOND = Index((), "i", 4), Index((), "j", 3)


N, X = Symbol((), "n", Type("natural")), Symbol((), "x", Type("scalar"))


def number(value: int | str) -> Number:
    return Number((), Fraction(value))


def total(*terms: Node) -> Add:
    return Add((), terms)


def times(*factors: Node) -> Multiply:
    return Multiply((), factors)


@pytest.mark.parametrize(
    ("node", "names", "often"),
    [
        (total(FIRST, number(1)), ("i",), (1,)),
        (total(FIRST, SECOND), ("i", "j"), (1, 1)),
        (total(FIRST, times(number(-1), SECOND)), ("i", "j"), (1, -1)),
        (total(FIRST, FIRST), ("i",), (2,)),
        (total(FIRST, times(number(-1), FIRST)), (), ()),
        (times(number(2), number(3), FIRST), ("i",), (6,)),
        (total(N, number(1)), (), ()),
        (total(times(number(2), N), FIRST), ("i",), (1,)),
    ],
)
def test_what_is_counted(node, names, often) -> None:
    found = linear_index(node)
    assert found is not None
    assert tuple(index.name for index in found.indices) == names
    assert found.times == often


@pytest.mark.parametrize(
    "node",
    [
        FIRST,
        number(1),
        N,
        Divide((), FIRST, number(2)),
        total(FIRST, X),
        total(FIRST, number("1/2")),
        total(FIRST, Number((), Fraction(1), Fraction(1, 10))),
        times(FIRST, SECOND),
        times(number("1/2"), FIRST),
        times(N, FIRST),
        total(FIRST, Divide((), N, number(2))),
    ],
)
def test_what_is_no_counting(node) -> None:
    assert linear_index(node) is None
    assert simplify_index(node) == node


def test_what_is_left_of_a_sum() -> None:
    found = linear_index(total(FIRST, N, number(2)))
    assert found is not None
    assert found.rest == total(N, number(2))
    alone = linear_index(total(FIRST, SECOND))
    assert alone is not None
    assert alone.rest == number(0)


@pytest.mark.parametrize(
    ("node", "simple"),
    [
        (total(FIRST, number(1), number(-1)), FIRST),
        (total(number(2), number(1)), number(3)),
        (times(number(2), number(3)), number(6)),
        (total(FIRST, times(number(-1), FIRST)), number(0)),
        (total(number(-1), FIRST), total(FIRST, number(-1))),
        (total(FIRST, number(1), number(-2)), total(FIRST, number(-1))),
        (total(FIRST, SECOND), total(FIRST, SECOND)),
        (total(FIRST, N), total(FIRST, N)),
        (times(number(2), FIRST), times(number(2), FIRST)),
        (times(number(1), FIRST), FIRST),
        (total(times(number(2), FIRST), number(1)), total(times(number(2), FIRST), number(1))),
    ],
)
def test_the_simplest_form(node, simple) -> None:
    assert simplify_index(node) == simple
    assert simplify_index(Add((), node.terms, span=(3, 9))).span == (3, 9) if isinstance(node, Add) else True


def test_within_agrees_with_counting_every_place() -> None:
    for a, b, rest, size in product((-2, -1, 0, 1, 2), (-1, 0, 1, 2), range(-3, 9), (1, 3, 5, 8)):
        kept = [(index, Fraction(count)) for index, count in ((FIRST, a), (SECOND, b)) if count]
        counted = LinearIndex(tuple(index for index, _ in kept), tuple(count for _, count in kept), number(rest))
        ends = [range(1, index.size + 1) for index, _ in kept]
        values = [sum(c * v for (_, c), v in zip(kept, at, strict=True)) + rest for at in product(*ends)]
        assert always_within(counted, size) is all(1 <= value <= size for value in values), (a, b, rest, size)


@pytest.mark.parametrize(
    ("node", "size", "inside"),
    [
        (total(Index((), "i", "n"), number(0)), "n", True),
        (total(Index((), "i", "n"), number(1)), "n", False),
        (total(Index((), "i", "n"), number(1)), "n+1", True),
        (total(Index((), "i", "n-1"), number(1)), "n", True),
        (total(N, number(1), times(number(-1), Index((), "i", "n"))), "n", True),
        (total(N, times(number(-1), Index((), "i", "n"))), "n", False),
        (total(N, number(2), times(number(-1), Index((), "i", "n"))), "n", False),
        (total(N, number(2), times(number(-1), Index((), "i", "n"))), "n+1", True),
        (total(N, number(-1)), "n", False),
        (total(N, number(0)), "n", True),
        (total(N, number(0)), "m", False),
        (total(N, number(0)), "n+m", True),
        (total(Index((), "i", "m"), number(0)), "n", False),
        (total(Index((), "i", "m"), Index((), "j", "n")), "m+n", True),
        (total(Index((), "i", "n"), number(0)), None, False),
        (total(Index((), "i", "n/2"), number(0)), "n", True),
    ],
)
def test_within_sizes_that_are_names(node, size, inside) -> None:
    counted = linear_index(node)
    assert counted is not None
    assert always_within(counted, size) is inside


S = {
    "x": "scalar",
    "y": "positive",
    "n": "natural",
    "m": "natural",
    "u": "vector[d]",
    "v": "vector[d]",
    "s": "vector[n]",
    "w": "vector[3]",
    "A": "matrix[d,d]",
    "Q": "matrix[n,d]",
    "r": "matrix[1,3]",
    "i": "index[n]",
    "sigma": "scalar",
    "sigma_q": "positive",
}


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("u_1", ()),
        ("u_{12}", ()),
        ("A_{12}", ()),
        ("A_{1,2}", ()),
        ("A_{10}", ("d",)),
        ("A_{123}", ("d",)),
        ("Q_1", ("d",)),
        ("Q_{1:}", (1, "d")),
        ("Q_{:1}", ("n",)),
        ("Q_{:}", ("n", "d")),
        ("Q_{:,:}", ("n", "d")),
        (r"Q_{1\cdot}", (1, "d")),
        (r"Q_{\cdot 1}", ("n",)),
        (r"Q_{\cdot, 1}", ("n",)),
        (r"Q_{1, \cdot}", (1, "d")),
        ("Q_{*1}", ("n",)),
        ("Q_{1*}", (1, "d")),
        ("Q_{*,1}", ("n",)),
        ("u_{:}", ("d",)),
        ("w_3", ()),
        ("u_X v_X", ()),
        ("j u_j", ()),
        ("j' u_{j'}", ()),
        ("u_{X'} v_{X'}", ()),
        ("w_n", ()),
        ("w_{n+1}", ()),
        ("s_i", ()),
        ("r_2", ()),
        ("r_{1,2}", ()),
        ("(u^T)_1", ()),
        ("(u^T)_{1,1}", ()),
        ("A_1^T", (1, "d")),
        ("u_1^T", ()),
        ("x^T", ()),
        ("e^{u}", ("d",)),
        ("A^{-1}", ("d", "d")),
        ("A^{-T}", ("d", "d")),
        ("I_3", (3, 3)),
        ("I_n", ("n", "n")),
        ("I_{3,3}", (3, 3)),
        (r"I_{n \times n}", ("n", "n")),
        (r"\mathbf{1}_3", (3,)),
        (r"\mathbf{1}_{2,3}", (2, 3)),
        (r"\mathbf{1}_{n \times m}", ("n", "m")),
        (r"\mathbf{0}_{n+1}", ("n+1",)),
        ("0_{2,3}", (2, 3)),
    ],
)
def test_shapes(text, shape) -> None:
    assert parse(text, S).shape == shape


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("A^T_{12}", "(A^T)_{12}"),
        ("A^T_1", "(A^T)_1"),
        (r"A^\top_{1,2}", "(A^T)_{1,2}"),
        ("Q^T_{12} + 1", "(Q^T)_{1,2} + 1"),
        ("u^T_1", "u_1"),
        ("(u^T)_1", "u_1"),
        ("w^2_1", "(w_1)^2"),
        ("w_1^2", "(w_1)^2"),
        ("A^2_{12}", "(A_{1,2})^2"),
        (r"\sigma^2_q", "(sigma_q)^2"),
        (r"\sigma_q^2", "(sigma_q)^2"),
        (r"\sigma^{2}_{q}", "(sigma_q)^2"),
        ("A_{12}", "A_{1,2}"),
        ("r_2", "(r^T)_2"),
        ("A^{-T}", "(A^{-1})^T"),
        (r"u^{\odot 2}", r"u \odot u"),
        (r"A^{\odot 2}", r"A \odot A"),
        ("e^x", r"\exp(x)"),
        ("e^{-x}", r"\exp(-x)"),
        ("e^-x", r"\exp(-x)"),
        ("x^(n+1)", "x^{n+1}"),
        ("x^{-1}", "x^-1"),
        ("1^T u", r"\mathbf{1}^T u"),
        ("0^T u", r"\mathbf{0}^T u"),
        ("2^T u", "2 u"),
        ("I_{ij}", r"\delta_{ij}"),
        ("I_{i,j}", r"\delta_{i,j}"),
        (r"\mathbf{1}_{i=j}", r"\delta_{ij}"),
        (r"\mathbf{1}_{i=1}", r"\delta_{i,1}"),
        (r"\mathbf{1}_{1=i}", r"\delta_{1,i}"),
        ("u^T^T", "(u^T)^T"),
    ],
)
def test_ways_to_write_one_thing(text, same) -> None:
    assert parse(text, S) == parse(same, S)


def test_what_is_made() -> None:
    for text, made in [
        ("A_{12}", Part),
        ("A^2", Power),
        ("A^T", Transpose),
        (r"A^{\odot 2}", Hadamard),
        (r"\delta_{ij}", Delta),
        ("I_{ij}", Delta),
        ("I_n", Special),
        (r"\mathbf{0}_3", Special),
        ("e^x", Call),
        ("2^x", Power),
    ]:
        assert isinstance(parse(text, S), made), text
    entry = parse("A_{12}", S)
    assert [index.value for index in entry.indices] == [1, 2]  # pyright: ignore
    assert parse("A_{:2}", S).indices == (None, Number((), 2))  # pyright: ignore
    assert parse("A_{2:}", S).indices == (Number((), 2), None)  # pyright: ignore


def test_names_of_ones_zeros_and_the_identity() -> None:
    assert [parse(text, S).name for text in (r"\mathbf{1}_3", r"\mathbf{0}_3", "I_3")] == ["ones", "zeros", "identity"]  # pyright: ignore
    assert isinstance(parse("I_{ij}", {**S, "I": "matrix[n,n]"}), Part)
    assert isinstance(parse(r"\delta_{i}", {**S, "delta": "vector[n]"}), Part)
    assert isinstance(parse(r"\delta_{i}", {"delta": "vector[n]"}), Part)
    assert parse("e^2", {"e": "scalar"}) == parse("(e)^2", {"e": "scalar"})
    assert isinstance(parse("e^2", {"e": "scalar"}), Power)
    assert parse("e_2", {"e": "vector[3]"}).shape == ()


def test_a_declared_t_is_an_exponent_of_numbers_and_a_transpose_of_vectors() -> None:
    with_t = {**S, "T": "natural"}
    assert isinstance(parse("x^T", with_t), Power)
    assert isinstance(parse("u^T", with_t), Transpose)
    assert isinstance(parse("A^T", with_t), Transpose)
    assert isinstance(parse(r"x^{T+1}", with_t), Power)
    assert parse(r"x^\top", with_t) == parse("x", with_t)


ILL_TYPED = [
    ("1 + u_{1,2}", "u is a vector of size d and takes one index, not 2", "u_{1,2}", ""),
    ("1 + u_{ij}", "u is a vector of size d and takes one index, not 2", "u_{ij}", ""),
    ("1 + A_{1,2,3}", "A is a d×d matrix and takes two indices, not 3", "A_{1,2,3}", ""),
    ("1 + x_1", "x_1 is not declared", "x_1", ""),
    ("1 + x_{ij}", "x_ij is not declared", "x_{ij}", ""),
    ("1 + (x y)_1", "x y is a scalar, which has no components", "(x y)_1", ""),
    ("1 + w_0", "components are counted by whole numbers from 1", "0", ""),
    ("1 + w_{1.5}", "components are counted by whole numbers from 1", "1.5", ""),
    ("1 + w_{-1}", "components are counted by whole numbers from 1", "-1", ""),
    ("1 + w_4", "w has 3 components, and there is no number 4", "4", ""),
    ("1 + w_{2+2}", "w has 3 components, and there is no number 4", "2+2", ""),
    ("1 + w_{1/2}", "an index is a letter or a whole number, and 1/2 is an expression", "1/2", ""),
    ("1 + w_x", "an index is a letter or a whole number, and x is a scalar", "x", ""),
    ("1 + w_u", "an index is a letter or a whole number, and u is a vector of size d", "u", ""),
    ("1 + w_{u_1}", "an index is a letter or a whole number, and u_1 is an expression", "u_1", ""),
    ("1 + w_{x+1}", "an index is a letter or a whole number, and x + 1 is an expression", "x+1", ""),
    ("1 + w_i", "i runs to n but w has 3 components", "i", ""),
    ("s_j w_j", "j runs to n but w has 3 components", "j", ""),
    (r"s_j w_l \delta_{jl}", "j runs to n and l runs to 3", r"\delta_{jl}", ""),
    (
        r"\sum_j w_{j+1}",
        "nothing says how far j runs, so that j + 1 may lie outside of w, which has 3 components",
        "j+1",
        "",
    ),
    (
        r"\sum_{j=1}^{3} w_{j+1}",
        "j runs to 3, so that j + 1 may lie outside of w, which has 3 components",
        "j+1",
        "",
    ),
    (
        r"\sum_{j=1}^{2} w_{2-j}",
        "j runs to 2, so that 2 - j may lie outside of w, which has 3 components",
        "2-j",
        "",
    ),
    (
        r"\sum_{j=1}^{n} s_{n-j}",
        "j runs to n, so that n - j may lie outside of s, which has n components",
        "n-j",
        "",
    ),
    (r"1 + I_{2 \times 3}", "the identity is square", r"I_{2 \times 3}", ""),
    ("1 + I_{n,m}", "the identity is square", "I_{n,m}", ""),
    ("1 + I_{2,3,4}", "more than two sizes", "_{2,3,4}", ""),
    (r"1 + \mathbf{1}_{2 \times 3 \times 4}", "more than two sizes", r"_{2 \times 3 \times 4}", ""),
    ("1 + I_u", "this is not a size", "u", ""),
    (r"1 + \mathbf{1}_{\log(n)}", "this is not a size", r"\log(n)", ""),
    (r"1 + \delta_{i}", "δ takes two indices, as in δ_{ij}", r"\delta_{i}", ""),
    (r"1 + \delta_{ijk}", "δ takes two indices, as in δ_{ij}", r"\delta_{ijk}", ""),
    (r"1 + \delta_{i:}", "δ takes two indices, as in δ_{ij}", r"\delta_{i:}", ""),
    (r"1 + \delta_{:i}", "δ takes two indices, as in δ_{ij}", r"\delta_{:i}", ""),
    (r"1 + \delta_{i,u}", "only indices are compared here", r"\delta_{i,u}", ""),
    (r"1 + \delta_{u,i}", "only indices are compared here", r"\delta_{u,i}", ""),
    ("1 + A^{1/2}", "A^{1/2}: a matrix has whole powers only", "A^{1/2}", ""),
    ("1 + A^{x}", "A^x: a matrix has whole powers only", "A^{x}", ""),
    ("A + Q^2", "Q^2: an n×d matrix is not square and has no powers", "Q^2", "QᵀQ"),
    ("1 + Q^3", "Q^3: an n×d matrix is not square and has no powers", "Q^3", ""),
    ("1 + Q^{-1}", "Q^{-1}: an n×d matrix is not square and has no powers", "Q^{-1}", ""),
    ("1 + u^2", "u^2: a vector has no square", "u^2", "uᵀu"),
    ("1 + u^3", "u^3: a vector has no powers", "u^3", ""),
    ("1 + u^{-1}", "u^{-1}: a vector has no powers", "u^{-1}", ""),
    ("1 + (u^T)^2", "(uᵀ)^2: a row has no square", "(u^T)^2", "uᵀu"),
    ("1 + (u^T)^3", "(uᵀ)^3: a row has no powers", "(u^T)^3", ""),
    ("1 + r^2", "r^2: a row has no square", "r^2", "(rᵀ)ᵀrᵀ"),
    ("1 + r^3", "r^3: a row has no powers", "r^3", ""),
    ("1 + x^u", "x^u: an exponent is a scalar, and this is a vector of size d", "u", ""),
    ("1 + x^{A}", "x^A: an exponent is a scalar, and this is a d×d matrix", "A", ""),
    ("1 + A_{1}^2", "A_1^2: a vector has no square", "A_{1}^2", "A_1ᵀA_1"),
    (r"1 + \sqrt[n]{u}", "this root is taken of scalars only", r"\sqrt[n]{u}", ""),
    (r"1 + \sqrt[u]{x}", "this root is taken of scalars only", r"\sqrt[u]{x}", ""),
]


@pytest.mark.parametrize(("text", "reason", "place", "suggestion"), ILL_TYPED)
def test_indices_that_make_no_sense(text, reason, place, suggestion) -> None:
    with pytest.raises(Unreadable if "not declared" in reason else IllTyped) as caught:
        parse(text, S)
    assert (caught.value.reason.partition(";")[0], caught.value.suggestion) == (reason.partition(";")[0], suggestion)
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("1 + u_1_2", "two lower indices on one thing: write x_{i,j}", "_2"),
        ("1 + x^{1,2}", "an upper index is one exponent", "^{1,2}"),
        ("1 + x^{2}^{3}", "two upper indices on one thing: show by brackets what is raised to what", "^{3}"),
        (r"1 + u^{\odot 3}", "entry by entry only squares are read", r"u^{\odot 3}"),
        (r"1 + u^{\odot n}", "entry by entry only squares are read", r"u^{\odot n}"),
        (r"1 + \mathbf{1}_{1=1}", "below a 1 two indices are compared, or an index and a number", "1=1"),
        (r"1 + \mathbf{1}_{x=1}", "below a 1 two indices are compared, or an index and a number", "x=1"),
        (r"1 + \mathbf{1}_{i=x}", "below a 1 two indices are compared, or an index and a number", "i=x"),
        (r"1 + \mathbf{1}_{i<j}", "a relation inside an expression is not read", "i<j"),
        (r"1 + \mathbf{0}_{i=j}", "a relation inside an expression is not read", "i=j"),
        ("1 + x^*", "* as an upper index is not read; the transpose is written ^T", "*"),
        ("1 + x^{*}", "* as an upper index is not read; the transpose is written ^T", "*"),
        (r"1 + x^\dagger", "† as an upper index is not read; the transpose is written ^T", r"\dagger"),
        (r"1 + x^{\star}", "* as an upper index is not read; the transpose is written ^T", r"\star"),
        ("1 + I_{2:}", "this index is not read", "2:"),
        ("1 + A_{[1 2]}", "two numbers are side by side: write the product, or one number", "2"),
        ("1 + x^{[1 2]}", "two numbers are side by side: write the product, or one number", "2"),
    ],
)
def test_indices_that_are_not_read(text, reason, place) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, S)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize(
    "text",
    [
        r"\sum_{j=1}^{2} w_{j+1}",
        r"\sum_{j=1}^{2} w_{4-j}",
        r"\sum_{j=1}^{2} w_{3-j}",
        r"\sum_{j=1}^{n} s_{n+1-j}",
        r"\sum_{j=1}^{2}\sum_{l=1}^{1} w_{j+l}",
        r"\sum_{j=1}^{2}\sum_{l=1}^{1} w_{j-l+1}",
        "s_{i+1}",
        "s_{i-1}",
        "s_{j+1} s_j",
    ],
)
def test_counting_that_stays_inside(text) -> None:
    assert parse(text, S).shape == ()


@pytest.mark.parametrize(
    "text",
    [r"\sum_{j=1}^{2}\sum_{l=1}^{2} w_{j+l}", r"\sum_{j=1}^{2}\sum_{l=1}^{3} w_{j-l+2}", r"\sum_{j=1}^{n} s_{j+m}"],
)
def test_counting_that_may_go_outside(text) -> None:
    with pytest.raises(IllTyped, match="may lie outside"):
        parse(text, S)


@pytest.mark.parametrize("text", ["e^x^2", "e^{-x}^{2}", "e^x^T^2", r"\log^2^3(y)", r"\exp^2^3(x)"])
def test_two_powers_on_e_or_on_a_function_are_refused_as_on_a_name(text) -> None:
    with pytest.raises(Unreadable, match="two upper indices on one thing"):
        parse(text, S)
    assert parse("e^u^T", S) == parse("(e^u)^T", S)


@pytest.mark.parametrize("size", ["0", "-1", "2/3", "2.5", "-n", "0 n"])
def test_what_is_below_one_or_broken_is_no_size(size) -> None:
    for text in (rf"\mathbf{{1}}_{{{size}}}", rf"\mathbf{{0}}_{{{size}}}", f"I_{{{size}}}"):
        with pytest.raises(IllTyped, match="is not a size: write a whole number from 1, or a name such as d") as caught:
            parse(text, S)
        assert text[slice(*caught.value.span)] == size
    assert parse("I_{2.0}", S).shape == (2, 2)
    assert parse(r"\mathbf{1}_{n-1}", S).shape == ("n-1",)


def test_one_component_is_no_components() -> None:
    one = {"r": "vector[1]", "s": "vector[n]"}
    for text, said in (
        ("r_2", "r has 1 component, and there is no number 2"),
        (r"\sum_{j=1}^{3} r_j", "j runs to 3 but r has 1 component"),
        (r"\sum_{j=1}^{3} r_{j+1}", "may lie outside of r, which has 1 component"),
        (r"\sum_{j=1}^{3} s_j", "j runs to 3 but s has n components"),
    ):
        with pytest.raises(IllTyped) as caught:
            parse(text, one)
        assert caught.value.reason.endswith(said)
