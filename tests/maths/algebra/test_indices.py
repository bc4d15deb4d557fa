"""Entries of trees in index notation, scopes, sizes, and products over an index."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qkv.maths.algebra.functions import power
from qkv.maths.algebra.indices import (
    Scope,
    all_places,
    condition,
    delta,
    entry,
    place_of,
    places_of,
    scope_of,
    size_poly,
)
from qkv.maths.algebra.monomials import LESS, Head, NotNormal, TooLarge, add, atom, multiply, number, scale, subtract
from qkv.maths.algebra.normal import is_zero, normal, same
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import (
    Add,
    Call,
    Constant,
    Contract,
    Index,
    Multiply,
    Number,
    Part,
    Power,
    Sum,
    Symbol,
    Transpose,
    Type,
)

NAMES = {
    "A": "matrix[d,d]", "B": "matrix[d,d]", "Q": "matrix[n,d]", "G": "matrix[2,2]", "H": "matrix[2,2]",
    "u": "vector[d]", "v": "vector[d]", "s": "vector[n]", "w": "vector[m]", "t": "vector[3]", "x": "scalar",
    "a": "scalar", "b": "scalar", "c": "scalar", "d": "natural", "n": "natural", "m": "natural", "y": "scalar",
    "phi": "map vector[d] -> vector[f]", "pair": "map vector[d], vector[d] -> scalar", "z": "nonnegative",
    "g": "map matrix[d,d] -> matrix[d,d]", "r": "matrix[1,d]", "o": "vector[n] = x s", "T": "matrix[3,3]",
}  # fmt: skip


POINTED = {**NAMES, "i": "index[d]", "j": "index[d]", "k": "index[3]"}


PROVED = {
    "products of matrices and vectors": [
        (r"\operatorname{tr}(u v^T)", "u^T v"),
        ("(u v^T)_{ij}", "u_i v_j"),
        ("(Q^T)_{ij}", "Q_{ji}"),
        ("(Q^T Q)_{ij}", r"\sum_k Q_{ki} Q_{kj}"),
        ("(Q^T s)_i", r"\sum_k Q_{ki} s_k"),
        ("s^T Q v", r"\sum_i \sum_j s_i Q_{ij} v_j"),
        ("(s^T Q)^T", "Q^T s"),
        ("Q_2", "Q^T_{:,2}"),
        ("Q_{2,:}^T", "Q_2"),
        ("(Q v)_2", "Q_2^T v"),
        ("(G H)_{12}", "G_{11} H_{12} + G_{12} H_{22}"),
        ("r u", r"\sum_i r_{1i} u_i"),
        ("r^T x", r"x r^T"),
        (r"u \odot v \odot u", r"\operatorname{diag}(u)^2 v"),
        (r"(A \odot B)_{ij}", "A_{ij} B_{ij}"),
        ("A/x", r"\frac{1}{x} A"),
        ("x A u", "A (x u)"),
    ],
    "what is written out": [
        ("(1, 2, 3)_i (1, 0, 0)_i", "(1, 0, 0)_i"),
        ("[[1, 2], [3, 4]]_{ij}", "[[1, 3], [2, 4]]_{ji}"),
        ("[[a, b], [c, x]]_{21}", "c"),
        ("[[a, b, c], [x, 1, 2]]_{13}", "c"),
        ("[[a, b, c], [x, 1, 2]]_{21}", "x"),
        ("(a, b, c)_2", "b"),
        ("(a, b)^T (x, y)", "a x + b y"),
        ("[[a, b], [c, x]] (1, y)", "(a + b y, c + x y)"),
        (r"(1, 2, 3)^T \mathbf{1}_3", "6"),
        ("[[1, 2], [3, 4]] G", "[[G_{11} + 2G_{21}, G_{12} + 2G_{22}], [3G_{11} + 4G_{21}, 3G_{12} + 4G_{22}]]"),
    ],
    "sums": [
        (r"\sum_{i=1}^{12} i", "78"),
        (r"\sum_{i=1}^{13} i", "91"),
        (r"\sum_{i=1}^{13} i^3", "8281"),
        (r"\sum_{i=1}^{n} i^3", "n^2 (n + 1)^2/4"),
        (r"\sum_{i=1}^{n} i^4", "n(n + 1)(2n + 1)(3n^2 + 3n - 1)/30"),
        (r"\sum_{i=1}^{n} 1/i", r"\sum_{j=1}^n 1/j"),
        (r"\sum_{i=1}^{n} \sum_{j=1}^{m} i j", "n(n + 1) m(m + 1)/4"),
        (r"\sum_{i=1}^{n-1} i", "n(n - 1)/2"),
        (r"\sum_{i=1}^{2n} 1", "2n"),
        (r"\sum_{i=1}^{n} \sum_{j=1}^{3} s_i t_j", r"(t_1 + t_2 + t_3) \sum_i s_i"),
        (r"\sum_{i=1}^{3} \sum_{j<i} t_j", "2 t_1 + t_2"),
        (r"\sum_{1 \le i < j \le 3} t_i t_j", "t_1 t_2 + t_1 t_3 + t_2 t_3"),
        (r"\sum_{1 \le i \le j \le 3} t_i t_j", "t_1^2 + t_2^2 + t_3^2 + t_1 t_2 + t_1 t_3 + t_2 t_3"),
        (r"\sum_i o_i", r"x \sum_i s_i"),
        (r"\sum_i Q_{ij}", r"(Q^T \mathbf{1})_j"),
    ],
    "δ": [
        (r"\sum_{i,j} \delta_{ij} s_i", r"\sum_i s_i"),
        (r"\sum_i \delta_{i2} t_i", "t_2"),
        (r"\sum_i \delta_{ij}^2 s_i", "s_j"),
        (r"\delta_{ij} s_i", r"\delta_{ij} s_j"),
        (r"\delta_{ij}^2 s_i", r"\delta_{ij} s_j"),
        (r"\delta_{ij} \delta_{jk} s_i", r"\delta_{ik} \delta_{ij} s_k"),
    ],
    "conditions": [
        (r"\sum_{j<i} s_j + \sum_{j>i} s_j + s_i", r"\sum_j s_j"),
        (r"\sum_{j \le i} s_j + \sum_{j>i} s_j", r"\sum_j s_j"),
        (r"\sum_{j \ge i} s_j - \sum_{j>i} s_j", "s_i"),
        (r"\sum_{j \le i} s_j - \sum_{j<i} s_j", "s_i"),
        (r"\sum_{j \ne i} s_j", r"\sum_j s_j - s_i"),
        (r"\sum_{i \le j} s_i s_j", r"\frac12 ((\sum_i s_i)^2 + \sum_i s_i^2)"),
        (r"\sum_{i \ge j} s_i s_j", r"\frac12 ((\sum_i s_i)^2 + \sum_i s_i^2)"),
    ],
    "calls": [
        (r"\operatorname{diag}(u)_{ij}", r"\delta_{ij} u_i"),
        (r"\operatorname{diag}(A)_i", "A_{ii}"),
        (r"\operatorname{sum}(Q)", r"\sum_{i,j} Q_{ij}"),
        (r"\|Q\|_F^2", r"\sum_{i,j} Q_{ij}^2"),
        (r"\|t\|", r"\sqrt{t_1^2 + t_2^2 + t_3^2}"),
        (r"\|t\|_1", "|t_1| + |t_2| + |t_3|"),
        (r"\|s\|_1", r"\sum_i |s_i|"),
        ("softmax(t)_1", r"\exp(t_1)/(\exp(t_1) + \exp(t_2) + \exp(t_3))"),
        ("softmax(Q)_{12}", r"\exp(Q_{12})/\sum_j \exp(Q_{1j})"),
        (r"\exp(u)_i", r"\exp(u_i)"),
        (r"\log(u)_i", r"\log(u_i)"),
        (r"\sqrt{u}_i", r"\sqrt{u_i}"),
        ("relu(u)_i", r"\max(0, u_i)"),
        ("relu(x)", r"(x + |x|)/2"),
        (r"\operatorname{sign}(u)_1", r"\operatorname{sign}(u_1)"),
        (r"\phi(u + v)", r"\phi(v + u)"),
        (r"\phi(u)^T \phi(v)", r"\phi(v)^T \phi(u)"),
        (r"\phi(A u)_1", r"\phi(\sum_j u_j A^T_{j})_1"),
        ("pair(u, A v)", r"pair(u, \sum_j v_j A^T_j)"),
        ("g(A + B)^T", "g(B + A)^T"),
    ],
    "constants and names": [
        (r"\pi + e", r"e + \pi"),
        ("e^2", r"\exp(2)"),
        (r"|\pi|", r"\pi"),
        ("|n x|", "n |x|"),
        ("|z x|", "z |x|"),
        ("u_{n+1}", "u_{1+n}"),
    ],
}  # fmt: skip


UNPROVED = [
    ("(u v^T)_{ij}", "u_j v_i"),
    ("Q_2", "Q_1"),
    ("[[a, b], [c, x]]_{21}", "b"),
    ("[[a, b, c], [x, 1, 2]]_{ij}", "[[a, b, c], [x, 1, 1]]_{ij}"),
    ("softmax(Q)_{12}", r"\exp(Q_{12})/\sum_j \exp(Q_{j2})"),
    (r"\phi(u)", r"\phi(v)"),
    (r"\phi(A u)_i", r"\phi(A u)_j"),
    ("pair(u, v)", "pair(v, u)"),
    ("g(A)", "g(A^T)"),
    ("g(A)", "g(A)^T"),
    (r"\pi", "e"),
    ("|x|", "x"),
    ("|u_1|", "u_1"),
    ("u_n", "u_1"),
    ("u_n", "u_m"),
    (r"\|s\|", r"\|s\|_1"),
    (r"\sum_{j \le i} s_j", r"\sum_{j<i} s_j"),
    (r"\sum_{j \ge i} s_j", r"\sum_{j \le i} s_j"),
    (r"\sum_{i=1}^{n} i^5", "n^6/6"),
    (r"\operatorname{diag}(u)_{ij}", "u_i"),
]  # fmt: skip


@pytest.mark.parametrize("topic", PROVED)
def test_entries(topic: str) -> None:
    for left, right in PROVED[topic]:
        one = parse(left, NAMES)
        assert same(one, parse(right, NAMES, expected=one.shape)), (left, right)


def test_what_is_not_so_is_not_proved() -> None:
    for left, right in UNPROVED:
        one = parse(left, NAMES)
        assert not same(one, parse(right, NAMES, expected=one.shape)), (left, right)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("i", "j", False),
        ("i + j", "j + i", True),
        ("i", "1", False),
        ("|i|", "i", True),
        ("|i - j|", "i - j", False),
        ("i u_i", "u_i i", True),
        ("i u_i", "j u_i", False),
        ("u_i", "u_j", False),
        (r"\delta_{ij} i", r"\delta_{ij} j", True),
        (r"\delta_{ii}", "1", True),
        (r"\delta_{ij}", r"\delta_{ji}", True),
        (r"\delta_{ij}^2", r"\delta_{ij}", True),
        (r"\delta_{ij}", "1", False),
        (r"\delta_{k2} t_k", r"\delta_{k2} t_2", True),
        (r"\delta_{k2} t_k", r"\delta_{k3} t_3", False),
        (r"\sum_l \delta_{il} u_l", "u_i", True),
        (r"\sum_l \delta_{il} u_l", "u_j", False),
        (r"\sum_{l<i} u_l", r"\sum_{l<j} u_l", False),
    ],
)
def test_indices_that_are_declared(left: str, right: str, equal: bool) -> None:
    assert same(parse(left, POINTED), parse(right, POINTED)) is equal


def test_axes_are_written_out_up_to_twelve_places() -> None:
    assert places_of(12) == range(1, 13)
    assert places_of(1) == range(1, 2)
    assert places_of(13) is None
    assert places_of("n") is None
    assert len(list(all_places((3, "n")))) == 3
    assert list(all_places((2, 2))) == [(("c", i), ("c", j)) for i in (1, 2) for j in (1, 2)]
    assert list(all_places(("n", 13))) == [(("f", "#0"), ("f", "#1"))]
    assert list(all_places(())) == [()]
    assert len(list(all_places((12, 12)))) == 144
    with pytest.raises(TooLarge):
        list(all_places((12, 12, 12)))


@pytest.mark.parametrize(
    ("relation", "x", "y", "value"),
    [(sign, x, y, value) for x, y in ((1, 2), (2, 1), (2, 2)) for sign, value in (
        ("=", x == y), ("!=", x != y), ("<", x < y), (">", x > y), ("<=", x <= y), (">=", x >= y))],
)  # fmt: skip
def test_conditions_between_numbers(relation: str, x: int, y: int, value: bool) -> None:
    assert condition(relation, ("c", x), ("c", y)) == number(int(value))


def test_conditions_between_names() -> None:
    i, j = ("f", "i"), ("f", "j")
    assert condition("<", i, j) == condition(">", j, i) == atom(LESS, (i, j))
    assert condition("<=", i, j) == condition(">=", j, i) == add(atom(LESS, (i, j)), delta(i, j))
    assert condition("!=", i, j) == subtract(number(1), delta(i, j))
    assert add(*(condition(sign, i, j) for sign in "<>=")) == number(1)
    assert condition("<=", i, i) == condition(">=", i, i) == condition("=", i, i) == number(1)
    assert condition("<", i, i) == condition(">", i, i) == condition("!=", i, i) == {}
    with pytest.raises(NotNormal, match="under the condition '~'"):
        condition("~", i, j)


def test_what_a_subscript_names() -> None:
    scope = Scope(bound={"i": ("o", -5)})
    assert place_of(Index((), "i", "d"), scope) == ("o", -5)
    assert place_of(Index((), "j", "d"), scope) == ("f", "j")
    assert place_of(Number((), Fraction(3)), scope) == ("c", 3)
    assert place_of(parse("1 + 2", {}), scope) == ("c", 3)
    kind, _ = place_of(parse("n + 1", NAMES), scope)
    assert kind == "v"
    assert place_of(parse("n + 1", NAMES), scope) == place_of(parse("1 + n", NAMES), scope)
    assert place_of(parse("n + 1", NAMES), scope) != place_of(parse("n + 2", NAMES), scope)
    assert place_of(parse("1/2", {}), scope)[0] == "v"
    pointed = Symbol((), "k", Type("index", ("d",)))
    assert place_of(pointed, scope) == ("f", "k")
    shifted = parse(r"\sum_{i=1}^{n} i", NAMES).body
    assert place_of(shifted, scope) == ("o", -5)


def test_a_subscript_that_is_computed_from_a_bound_index_has_no_normal_form() -> None:
    i = Index((), "i", "n")
    with pytest.raises(NotNormal, match="computed from a bound index"):
        normal(Sum((), (i,), Part((), parse("s", NAMES), (Add((), (i, Number((), Fraction(1)))),))))
    i, t = Index((), "i", 2), parse("t", NAMES)
    following = Part((), t, (Add((), (i, Number((), Fraction(1)))),))
    short = Sum((), (i,), Multiply((), (Part((), t, (i,)), following)))
    assert same(short, parse("t_1 t_2 + t_2 t_3", NAMES))


def test_what_has_no_normal_form_says_what_it_is() -> None:
    with pytest.raises(NotNormal, match="Constant has no normal form"):
        normal(Constant((), "infinity"))
    with pytest.raises(NotNormal, match="sin has no normal form"):
        normal(Call((), "sin", (parse("x", NAMES),)))


def test_a_root_of_an_even_power_is_an_absolute_value() -> None:
    x = parse("x", NAMES)
    for inner, outer, text in ((2, Fraction(1, 2), "|x|"), (4, Fraction(1, 4), "|x|"), (2, Fraction(3, 2), "|x|^3")):
        raised = Power((), Power((), x, Number((), Fraction(inner))), Number((), outer))
        assert same(raised, parse(text, NAMES))
    cube = Power((), Power((), x, Number((), Fraction(3))), Number((), Fraction(1, 2)))
    assert same(cube, parse(r"x \sqrt{x}", NAMES))
    square = Power((), Power((), x, Number((), Fraction(2))), Number((), Fraction(1, 3)))
    assert is_zero(parse("(x^2)^{1/3} - |x|^{2/3}", NAMES))
    assert not same(square, parse("-|x|^{2/3}", NAMES))


def test_rows_and_columns_turn_into_each_other() -> None:
    u = parse("u", NAMES)
    row = Transpose((1, "d"), u)
    scope = scope_of(u)
    at = (("f", "i"),)
    assert entry(row, (("c", 1), *at), scope) == entry(u, at, scope)
    assert entry(Transpose(("d",), row), at, scope) == entry(u, at, scope)
    assert entry(Part((1, "d"), parse("A", NAMES), (Number((), Fraction(2)), None)), (("c", 1), *at), scope) == entry(
        parse("A_2", NAMES), at, scope
    )
    assert entry(Contract((), row, u), (), scope) == entry(parse(r"\|u\|^2", NAMES), (), scope)


def test_a_covariance_is_symmetric() -> None:
    names = {**NAMES, "Sigma": "matrix[d,d]", "q": "random vector[d] ~ (u, Sigma)"}
    for left, right, equal in (
        (r"u^T \Sigma v", r"v^T \Sigma u", True),
        (r"\Sigma_{12}", r"\Sigma_{21}", True),
        (r"\Sigma_{12}", r"\Sigma_{22}", False),
        (r"\Sigma_{12}", r"\Sigma_{13}", False),
        ("u^T A v", "v^T A u", False),
    ):
        one, other = (parse(f"{text} + q_1", names) for text in (left, right))
        assert same(one, other) is equal, (left, right)


def test_sums_under_several_conditions() -> None:
    i, j = Index((), "i", 4), Index((), "j", 4)
    body = parse("x", NAMES)
    for signs, count in (((("<", i, j),), 6), ((("!=", i, j), (">=", i, j)), 6), ((("=", i, j), ("<", i, j)), 0)):
        assert normal(Sum((), (i, j), body, conditions=signs)) == normal(parse(f"{count} x", NAMES))


SCOPE_NAMES = {
    "x": "scalar", "s": "vector[n]", "K": "matrix[n,d/h]", "n": "natural", "y": "scalar = x^2", "z": "scalar = y + 1",
    "mu": "vector[n]", "Sigma": "matrix[n,n]", "q": "random vector[n] ~ N(mu, Sigma)",
    "r": "vector[n] = q + s", "phi": "map vector[e] -> vector[f]", "v": "vector[e]", "g": "natural = 2 n",
}  # fmt: skip


N, D, H = (atom(Head("name", name, (), "natural")) for name in "ndh")


def test_names_of_sizes_are_naturals() -> None:
    assert scope_of(parse("s", SCOPE_NAMES)).naturals == {"n"}
    assert scope_of(parse("K", SCOPE_NAMES)).naturals == {"n", "d", "h"}
    assert scope_of(parse(r"\phi(v)", SCOPE_NAMES)).naturals == {"e", "f"}
    assert scope_of(parse(r"\sum_{i=1}^{n} i", {"n": "natural"})).naturals == {"n"}
    assert scope_of(parse("x", SCOPE_NAMES)).naturals == set()
    assert scope_of(parse("x", SCOPE_NAMES), parse("s", SCOPE_NAMES)).naturals == {"n"}


def test_definitions_and_laws_are_gone_through() -> None:
    scope = scope_of(parse("z + r_1", SCOPE_NAMES))
    assert set(scope.definitions) == {"z", "y", "r"}
    assert set(scope.laws) == {"q"}
    assert scope.symmetric == {"Sigma"}
    assert scope.naturals == {"n"}
    assert scope_of(parse("s_1", SCOPE_NAMES)).laws == {}


def test_scopes_inside_each_other() -> None:
    scope = Scope(naturals={"n"})
    inner = scope.within({"i": ("o", 1)}).within({"j": ("c", 2)})
    assert inner.bound == {"i": ("o", 1), "j": ("c", 2)}
    assert inner.within({"i": ("c", 3)}).bound == {"i": ("c", 3), "j": ("c", 2)}
    assert inner.outside().bound == {}
    assert inner.naturals == inner.outside().naturals == {"n"}
    kept = inner.keeping("x").keeping("y")
    assert kept.kept_names == {"x", "y"}
    assert kept.bound == inner.bound
    assert scope.bound == {}


@pytest.mark.parametrize(
    ("size", "poly"),
    [
        (3, number(3)),
        ("n", N),
        ("n+1", add(N, number(1))),
        ("n-2", add(N, number(-2))),
        ("2*n", scale(N, 2)),
        ("d/h", multiply(D, power(H, -1))),
        ("n^2", multiply(N, N)),
        ("n*d/2", scale(multiply(N, D), Fraction(1, 2))),
        (0, {}),
    ],
)
def test_sizes(size: int | str, poly: dict) -> None:
    assert size_poly(size, Scope()) == poly


def test_sizes_that_are_defined_are_what_they_stand_for() -> None:
    scope = scope_of(parse("g", SCOPE_NAMES))
    assert size_poly("g", scope) == scale(N, 2)
    assert size_poly("g+n", scope) == scale(N, 3)
    with pytest.raises(NotNormal, match="cannot be read"):
        size_poly("n+", Scope())


PRODUCT_NAMES = {
    "s": "vector[n]", "w": "vector[m]", "t": "vector[3]", "x": "scalar", "p": "positive", "n": "natural",
    "m": "natural", "A": "matrix[n,n]",
}  # fmt: skip


PRODUCTS_PROVED = {
    "what is plain": [
        (r"\prod_{i=1}^n 2", "2^n"),
        (r"\prod_{i=1}^n p", "p^n"),
        (r"\prod_{i=1}^n (x + 1)", "(x + 1)^n"),
        (r"\prod_{i=1}^n \exp(s_i x)", r"\exp(x \sum_i s_i)"),
        (r"\prod_{i=1}^n \exp(s_i)^2", r"\exp(2\sum_i s_i)"),
        (r"\prod_{i=1}^n \frac{1}{\exp(s_i)}", r"\exp(-\sum_i s_i)"),
        (r"\prod_{i=1}^n (3 p^2 \exp(s_i))", r"3^n p^{2n} \exp(\sum_i s_i)"),
        (r"\prod_{i=1}^n (s_i + 1)", r"\prod_{j=1}^n (1 + s_j)"),
        (r"\prod_{i=1}^n s_i^2", r"(\prod_{i=1}^n s_i)^2"),
        (r"\prod_{i=1}^n (x s_i)", r"x^n \prod_{i=1}^n s_i"),
        (r"\prod_{i=1}^n (-2 s_i)", r"(-2)^n \prod_i s_i"),
        (r"\prod_{i=1}^n \frac{1}{s_i}", r"1/\prod_i s_i"),
        (r"\prod_{i=1}^n \sqrt{s_i}", r"\prod_i s_i^{1/2}"),
        (r"\prod_{i=1}^n \sqrt{\exp(s_i)}", r"\exp(\sum_i s_i/2)"),
        (r"\prod_{i=1}^n |s_i|^{1/2}", r"\sqrt{\prod_i |s_i|}"),
        (r"|\prod_{i=1}^n (s_i^2 + 1)|", r"\prod_{i=1}^n (1 + s_i^2)"),
        (r"\prod_{i=1}^n A_{ij}", r"\prod_{k=1}^n A_{kj}"),
        (r"\prod_{i=1}^3 t_i", "t_1 t_2 t_3"),
        (r"\prod_{i=1}^4 i", "24"),
        (r"\prod_{i=1}^{12} x", "x^{12}"),
        (r"\prod_{i=1}^{13} x", "x^{13}"),
        (r"\prod_{i=1}^3 \prod_{j=1}^2 (t_i + j)", "(t_1 + 1)(t_1 + 2)(t_2 + 1)(t_2 + 2)(t_3 + 1)(t_3 + 2)"),
        (r"\prod_{1 \le i < j \le 3} (t_i - t_j)", "(t_1 - t_2)(t_1 - t_3)(t_2 - t_3)"),
        (r"\prod_{1 \le i \le j \le 2} (x + i + j)", "(x + 2)(x + 3)(x + 4)"),
        (r"\prod_{i=1}^n \prod_{j=1}^2 s_i", r"\prod_{i=1}^n s_i^2"),
        (r"\prod_{i=1}^2 \prod_{j=1}^n (i s_j)", r"2^n \prod_j s_j^2"),
    ],
}  # fmt: skip


PRODUCTS_UNPROVED = [
    (r"\prod_{i=1}^n (s_i + 1)", r"\prod_{j=1}^n (2 + s_j)"),
    (r"\prod_{i=1}^n s_i", r"\prod_{j=1}^n s_j^2"),
    (r"\prod_{i=1}^n s_i", r"\prod_{j=1}^m w_j"),
    (r"\prod_{i=1}^n (x s_i)", r"x \prod_{i=1}^n s_i"),
    (r"\prod_{i=1}^n (-s_i)", r"-\prod_i s_i"),
    (r"\prod_{i=1}^n x", r"\prod_{i=1}^m x"),
    (r"|\prod_{i=1}^n s_i|", r"\prod_{i=1}^n s_i"),
    (r"\prod_{i=1}^n A_{ij}", r"\prod_{i=1}^n A_{ji}"),
    (r"\prod_{i=1}^n (s_i + 1)", r"\prod_{i=1}^n s_i + 1"),
]  # fmt: skip


@pytest.mark.parametrize("topic", PRODUCTS_PROVED)
def test_products(topic: str) -> None:
    for left, right in PRODUCTS_PROVED[topic]:
        assert same(parse(left, PRODUCT_NAMES), parse(right, PRODUCT_NAMES)), (left, right)


def test_what_is_not_so_is_not_proved_in_products() -> None:
    for left, right in PRODUCTS_UNPROVED:
        assert not same(parse(left, PRODUCT_NAMES), parse(right, PRODUCT_NAMES)), (left, right)


def test_a_long_product_under_a_condition_has_no_normal_form() -> None:
    with pytest.raises(NotNormal, match="only when it is written out"):
        normal(parse(r"\prod_{i \ne j} (s_i - s_j)", PRODUCT_NAMES))
