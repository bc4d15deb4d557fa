"""Truths and near misses that take turns which ordinary answers seldom take."""

from decimal import Decimal
from fractions import Fraction

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths import compare, holds, latex, parse, plain
from qkv.maths.values.arithmetic import eliminate

SYMBOLS = {
    "x": "scalar",
    "y": "nonnegative",
    "c": "positive",
    "n": "natural",
    "m": "natural",
    "v": "vector[p]",
    "u": "vector[p]",
    "w": "vector[3]",
    "A": "matrix[p,p]",
    "B": "matrix[n,p]",
    "r": "matrix[1,3]",
    "i": "index[p]",
    "mu": "vector[p]",
    "sigma": "positive",
    "q": "random vector[p] ~ N(mu, sigma^2 I)",
    "k": "random vector[p] ~ N(mu, sigma^2 I)",
}

EQUAL = [
    (r"\frac{d}{dx} x^n", r"n x^{n-1}"),
    (r"\frac{d}{dx} x^{2n}", r"2n x^{2n-1}"),
    (r"\frac{d}{dx} (x^2)^n", r"2n x (x^2)^{n-1}"),
    (r"x^{n+2}", r"x^2 x^n"),
    (r"(2x)^n", r"2^n x^n"),
    (r"(A/c)^{-1}", r"c A^{-1}"),
    (r"(cA)^{-1}", r"A^{-1}/c"),
    (r"(A^T)^{-1}", r"A^{-T}"),
    (r"\Theta(\pi^{n})", r"\Theta(\pi^{n+1})"),
    (r"\Theta(\log_\pi n)", r"\Theta(\log n)"),
    (r"\Theta(4^{n})", r"\Theta(2^{2n})"),
    (r"O(n) + O(m)", r"O(n + m)"),
    (r"\operatorname{Var}(\operatorname{sum}(q))", r"p\sigma^2"),
    (r"E[\operatorname{sum}(q)]", r"\sum_i \mu_i"),
    (r"E[(q^T k)^2]", r"p\sigma^4 + 2\sigma^2\mu^T\mu + (\mu^T\mu)^2"),
    (r"\operatorname{Cov}(q, k)", r"0 \mu\mu^T"),
    (r"\operatorname{Cov}(q, q)", r"\sigma^2 I_p"),
    ("A + 0", "A"),
    (r"B + \mathbf{0}", "B"),
    ("r_2", "r_{1,2}"),
    (r"v^{\odot 2}", r"v \odot v"),
    (r"\sum_{j=1}^3 \prod_{l=1}^{j} w_l", "w_1 + w_1 w_2 + w_1 w_2 w_3"),
    (r"\prod_{j=1}^3 \prod_{l=1}^{j} w_l", "w_1^3 w_2^2 w_3"),
    (r"\sum_{j=0}^{n-1} x^j", r"\sum_{j=1}^{n} x^{j-1}"),
    (r"\sum_{j=2}^{p} v_j", r"\sum_j v_j - v_1"),
    (r"\sum_{j=2}^{3} w_j", "w_2 + w_3"),
    ("i v_i", "v_i i"),
    (r"\sqrt{2}", "2^{0.5}"),
    (r"\sqrt{2}", "1.4142"),
    ("x**2", "x^2"),
    (r"\mathbf{1}^T v", r"\sum_j v_j"),
    (r"\max(x, 2x)", r"\max(2x, x)"),
    (r"\min(x, 2)", r"-\max(-x, -2)"),
    (r"|x|^2", "x^2"),
    (r"\sqrt{y^2}", "y"),
]
DIFFERENT = [
    (r"\frac{d}{dx} x^n", r"n x^{n}"),
    (r"x^{n+2}", r"2 x^n"),
    (r"(A/c)^{-1}", r"A^{-1}/c"),
    (r"\Theta(\pi^{n})", r"\Theta(3^{n})"),
    (r"O(n) + O(m)", "O(n)"),
    (r"\operatorname{Var}(\operatorname{sum}(q))", r"\sigma^2"),
    ("r_2", "r_{1,3}"),
    (r"v^{\odot 2}", r"v \odot u"),
    (r"\prod_{j=1}^3 \prod_{l=1}^{j} w_l", "w_1^3 w_2^2 w_3^2"),
    (r"\sum_{j=2}^{p} v_j", r"\sum_j v_j"),
    (r"\sqrt{2}", "1.4143"),
    (r"\sqrt{2}", "2^{0.51}"),
    (r"\max(x, 2)", r"\min(x, 2)"),
    (r"\sqrt{x^2}", "x"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_what_is_the_same(gold: str, answer: str) -> None:
    assert compare(gold, answer, SYMBOLS).kind == "equal"
    assert compare(answer, gold, SYMBOLS).kind == "equal"


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_what_is_not_the_same(gold: str, answer: str) -> None:
    verdict = compare(gold, answer, SYMBOLS)
    assert verdict.kind in ("different", "conditional")
    assert verdict.evidence == "refuted"


@pytest.mark.parametrize("text", sorted({text for pair in EQUAL + DIFFERENT for text in pair}))
def test_what_is_written_reads_the_same(text: str) -> None:
    tree = parse(text, SYMBOLS)
    assert parse(latex(tree), SYMBOLS) == tree
    assert parse(plain(tree), SYMBOLS) == tree
    assert tree.span == (0, len(text))


def test_the_infinite_is_written_as_itself() -> None:
    assert plain(parse(r"\infty", {})) == "∞"
    assert "∞" in plain(parse(r"\|v\|_\infty", SYMBOLS))
    assert r"\infty" in latex(parse("∞", {}))


def test_what_is_declared_is_said_in_the_right_number() -> None:
    with pytest.raises(IllTyped, match=r"ζ is not declared; x is\n"):
        parse("zeta", {"x": "scalar"})
    with pytest.raises(IllTyped, match="ζ is not declared; x, y are"):
        parse("zeta", {"x": "scalar", "y": "scalar"})


REFUSED = [
    (r"\sum_{j}_{l}^n v_j", r"\sum_{j}_{l}^n v_j", "one lower and one upper end"),
    (r"1 + \sum_{j=2,l=1}^{4} v_j v_l", r"\sum_{j=2,l=1}^{4} v_j v_l", "binds one index"),
    (r"x + v^2", "v^2", "a vector has no square"),
    (r"x + v", "x + v", "cannot be added|is a scalar"),
    (r"1 + x_2", "x_2", "no components"),
    (r"O(n) + n", "O(n) + n", "stands alone"),
    (r"2 \cdot v_{1,2}", "v_{1,2}", "takes one index"),
    (r"1 + zeta", "zeta", "not declared"),
    (r"\prod_{j=2}^{p} v_j", r"\prod_{j=2}^{p} v_j", "runs from 1"),
    (r"\sum_{j=1}^{500} \sum_{l=2}^{500} v_1", r"\sum_{l=2}^{500} v_1", "at most"),
]


@pytest.mark.parametrize(("text", "place", "words"), REFUSED)
def test_what_is_refused_is_pointed_at(text: str, place: str, words: str) -> None:
    with pytest.raises((Unreadable, IllTyped), match=words) as caught:
        parse(text, SYMBOLS)
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize("sign", [">=", "<=", "<", ">"])
def test_bounds_by_every_sign(sign: str) -> None:
    upward = sign in (">=", ">")
    least, most = ("x^2 + 1", "x") if upward else ("x", "x^2 + 1")
    assert holds(least, sign, most, {"x": "scalar"}).kind == "equal"
    assert holds(most, sign, least, {"x": "scalar"}).kind == "different"
    touching = holds("x^2", sign, "0", {"x": "scalar"}).kind
    assert touching == ("equal" if sign == ">=" else "different")


def test_a_bound_that_is_attained_nowhere_it_is_said_to_be() -> None:
    symbols = {"x": "positive"}
    assert holds("x + 1/x", ">=", "2", symbols, attained={"x": 1}).kind == "equal"
    verdict = holds("x + 1/x", ">=", "2", symbols, attained={"x": 0})
    assert verdict.kind == "different"
    assert verdict.evidence == "refuted"
    assert "gives no value" in verdict.reason


@pytest.mark.parametrize(
    ("matrix", "determinant"),
    [
        (((0, 1), (1, 0)), -1),
        (((0, 0, 2), (0, 3, 0), (5, 0, 0)), -30),
        (((2, 1), (1, 1)), 1),
        (((1, 2), (2, 4)), 0),
        (((0, 2, 1), (1, 0, 0), (0, 1, 1)), -1),
    ],
)
def test_elimination_swaps_rows_where_it_must(matrix: tuple, determinant: int) -> None:
    size = len(matrix)
    exact = tuple(tuple(Fraction(entry) for entry in row) for row in matrix)
    identity = tuple(tuple(Fraction(i == j) for j in range(size)) for i in range(size))
    rows, found = eliminate(exact, identity, lambda steps: None)
    assert found == determinant
    if determinant:
        inverse = [row[size:] for row in rows]
        product = [[sum(exact[i][m] * inverse[m][j] for m in range(size)) for j in range(size)] for i in range(size)]
        assert product == [[i == j for j in range(size)] for i in range(size)]


def test_numbers_say_what_they_have_in_common() -> None:
    said = {
        (r"\sqrt{2}", "1.4142"): "1.41421 rounds to 1.4142",
        ("1.41", "1.414"): "agree in the digits that both show",
        ("1.41", "1.43"): "does not agree with 1.41 in the digits shown",
        (r"\sqrt{2}", "1.5"): "does not round to 1.5",
        (r"\sqrt{2}", "2^{0.5}"): "to 40 digits",
    }
    for (gold, answer), words in said.items():
        assert words in compare(gold, answer, {}).reason
    assert Decimal("1.4142") < 2 ** Decimal("0.5") < Decimal("1.4143")
