"""Function calls, maps, and max_j, argmax_j, softmax_j over an index."""

import math
from fractions import Fraction

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.values.evaluate import evaluate

S = {
    "Q": "matrix[n,D]",
    "K": "matrix[n,D]",
    "V": "matrix[n,M]",
    "q": "vector[D]",
    "phi": "map vector[D] -> vector[F]",
    "sim": "map vector[D], vector[D] -> scalar",
}


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (r"\phi(Q_{i\cdot})", (1, "F")),
        (r"\phi(q^T)", (1, "F")),
        (r"\phi(Q_i)", ("F",)),
        (r"\text{sim}(Q_{i\cdot}, K_{j\cdot})", ()),
        (r"\text{sim}(Q_i, K_{j\cdot})", ()),
        (r"\phi(Q_{i\cdot})\sum_j\phi(K_{j\cdot})^T V_{j\cdot}", (1, "M")),
    ],
)
def test_shapes(text, shape) -> None:
    assert parse(text, S).shape == shape


def test_rows_and_columns_say_the_same() -> None:
    first = r"\sum_j \phi(Q_{i\cdot})\phi(K_{j\cdot})^T V_{j\cdot}"
    assert compare(first, r"\phi(Q_{i\cdot})\sum_j\phi(K_{j\cdot})^T V_{j\cdot}", S).kind == "equal"
    assert compare(first, r"\sum_j \phi(Q_i)^T\phi(K_j) V_{j\cdot}", S).kind == "equal"
    assert compare(r"\text{sim}(Q_i, K_j)", r"\text{sim}(Q_{i\cdot}, K_{j\cdot})", S).evidence == "proved"


def test_a_row_of_another_size_does_not_fit() -> None:
    with pytest.raises(IllTyped, match="φ takes a vector of size D"):
        parse(r"\phi(V_{i\cdot})", S)


KNOWN = {
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
    "M": "matrix[8,d]",
    "q": "random vector[d] ~ N(0, I)",
    "p": "random vector[d] ~ N(0, I)",
    "phi": "map vector[d] -> vector[F]",
    "g": "map vector[d], scalar -> scalar",
}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("softmax(x, 2, 3)", "softmax((x, 2, 3))"),
        ("argmax(x, 2, 3)", "argmax((x, 2, 3))"),
        ("diag(x, y)", "diag((x, y))"),
        ("norm(x, y)", r"\|(x, y)\|"),
        ("sum(x, y, n)", "sum((x, y, n))"),
        ("max(x)", "x"),
        ("min(x)", "x"),
        ("norm(x)", "|x|"),
        ("norm(u)", r"\|u\|_2"),
        ("norm(u^T)", r"\|u\|"),
        ("norm(r)", r"\|r^T\|"),
        ("norm_1(u)", r"\|u\|_1"),
        ("norm_2(u)", r"\|u\|"),
        (r"norm_\infty(u)", r"\|u\|_\infty"),
        ("norm_F(Q)", r"\|Q\|_F"),
        ("norm_F(u)", r"\|u\|"),
        ("|u|", r"\|u\|"),
        ("|r|", r"\|r\|"),
        ("|x|_1", "|x|"),
        (r"\max^2(x, y)", r"(\max(x, y))^2"),
        (r"\log_2(u)", r"\frac{\log(u)}{\log(2)}"),
        ("softmax_2(u)", "softmax(u)"),
        ("softmax_{ab}(u)", "softmax(u)"),
        ("softmax_j(u)", "softmax(u)"),
        ("softmax_j(Q)", "softmax(Q)"),
        (r"\| |x| u \|", r"\|(|x| u)\|"),
        (r"\Vert |x| u \Vert", r"\|(|x| u)\|"),
        (r"\vert \|u\| \vert", r"|(\|u\|)|"),
        ("Var(u)", "Cov(u, u)"),
        ("E_{p,q}[q]", "E[q]"),
        ("E_{qp}[q]", "E[q]"),
        ("Var_q(q)", "Var(q)"),
        ("Cov_{q,p}(q, p)", "Cov(q, p)"),
        (r"\binom{n}{0}", "1"),
        (r"\binom{n}{1}", "n"),
        (r"\binom{n}{2}", "n(n-1)/2"),
        (r"\binom{n}{3}", "n(n-1)(n-2)/6"),
        ("phi(0)", r"\phi(\mathbf{0}_d)"),
        ("phi(u^T)", r"\phi(u)^T"),
        ("phi(M_{1:})", r"\phi(M_1)^T"),
        ("g(u^T, x)", "g(u, x)"),
    ],
)
def test_calls_that_say_the_same(text, same) -> None:
    assert parse(text, KNOWN) == parse(same, KNOWN)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("diag(u)", ("d", "d")),
        ("diag(A)", ("d",)),
        ("tr(A)", ()),
        ("det(A)", ()),
        ("argmax(w)", ()),
        ("sum(A)", ()),
        ("softmax(Q)", ("n", "d")),
        ("exp(Q)", ("n", "d")),
        ("log(u)", ("d",)),
        ("relu(u)", ("d",)),
        ("sign(u)", ("d",)),
        ("sqrt(u)", ("d",)),
        ("abs(Q)", ("n", "d")),
        ("max(u)", ()),
        ("min(u)", ()),
        ("max(x, y)", ()),
        ("E[Q]", ("n", "d")),
        ("Cov(x, u)", ("d",)),
        ("Cov(u, s)", ("d", "n")),
        ("Var(x)", ()),
        (r"tr(\mathbf{1}u^T)", ()),
        (r"diag(\mathbf{1} u^T)", ("d",)),
        (r"u^T \mathbf{1}", ()),
    ],
)
def test_shapes_that_functions_give(text, shape) -> None:
    assert parse(text, KNOWN).shape == shape


@pytest.mark.parametrize(
    ("text", "reason", "place", "suggestion"),
    [
        ("1 + softmax(x)", "softmax acts on a vector or on the rows of a matrix, and x is a scalar", "softmax(x)", ""),
        ("1 + tr(Q)", "trace takes a square matrix, and Q is an n×d matrix", "tr(Q)", ""),
        ("1 + tr(u)", "trace takes a square matrix, and u is a vector of size d", "tr(u)", ""),
        ("1 + det(x)", "det takes a square matrix, and x is a scalar", "det(x)", ""),
        ("1 + diag(Q)", "diag takes a vector or a square matrix, and Q is an n×d matrix", "diag(Q)", ""),
        ("1 + diag(x)", "diag takes a vector or a square matrix, and x is a scalar", "diag(x)", ""),
        ("1 + argmax(A)", "argmax takes a vector, and A is a d×d matrix", "argmax(A)", ""),
        ("1 + argmax(x)", "argmax takes a vector, and x is a scalar", "argmax(x)", ""),
        ("1 + max(A)", "max takes one vector or several scalars, and A is a d×d matrix", "A", ""),
        ("1 + max(u, v)", "max takes one vector or several scalars, and u is a vector of size d", "u", ""),
        ("1 + max(0, x, u)", "max takes one vector or several scalars, and u is a vector of size d", "u", ""),
        ("1 + min(0, u)", "min takes one vector or several scalars, and u is a vector of size d", "u", ""),
        ("1 + max(1, u)", "max takes one vector or several scalars, and u is a vector of size d", "u", ""),
        (
            "v + max(u, 0)",
            "max takes one vector or several scalars, and u is a vector of size d",
            "max(u, 0)",
            "relu(u)",
        ),
        ("1 + tr(x, y)", "trace takes one argument, not 2", "tr(x, y)", ""),
        ("1 + exp(x, y, x)", "exp takes one argument, not 3", "exp(x, y, x)", ""),
        ("1 + softmax(u, v)", "softmax takes one argument, not 2", "softmax(u, v)", ""),
        ("1 + norm_1(x, y)", "norm takes one argument, not 2", "norm_1(x, y)", ""),
        ("1 + Cov(x)", "Cov takes two arguments, not 1", "Cov(x)", ""),
        ("1 + Cov(x, y, x)", "Cov takes two arguments, not 3", "Cov(x, y, x)", ""),
        ("1 + Cov(u, A)", "a covariance is of scalars or of vectors", "Cov(u, A)", ""),
        ("1 + Cov(A, u)", "a covariance is of scalars or of vectors", "Cov(A, u)", ""),
        ("1 + Var(Q)", "a covariance is of scalars or of vectors", "Var(Q)", ""),
        ("1 + norm(Q)", "Q is an n×d matrix, and only its Frobenius norm is read", "norm(Q)", "‖Q‖_F"),
        (r"1 + \|Q\|", "Q is an n×d matrix, and only its Frobenius norm is read", r"\|Q\|", "‖Q‖_F"),
        (r"1 + \Vert Q\Vert", "Q is an n×d matrix, and only its Frobenius norm is read", r"\Vert Q\Vert", "‖Q‖_F"),
        (r"1 + \vert A\vert", "|·| of a matrix is not read", r"\vert A\vert", "‖A‖_F or det(A)"),
        (r"1 + \|Q\|_2", "Q is an n×d matrix, and only its Frobenius norm is read", r"\|Q\|_2", "‖Q‖_F"),
        (r"1 + \|x\|_F", "‖·‖_F is of a matrix", r"\|x\|_F", ""),
        ("1 + |A|", "|·| of a matrix is not read", "|A|", "‖A‖_F or det(A)"),
        ("1 + |Q|", "|·| of a matrix is not read", "|Q|", "‖Q‖_F"),
        (r"1 + \log_u(y)", "the base of a logarithm is a scalar, and this is a vector of size d", "u", ""),
        (r"1 + \binom{u}{2}", "a binomial coefficient is of scalars", r"\binom{u}{2}", ""),
        (r"1 + \binom{2}{u}", "a binomial coefficient is of scalars", r"\binom{2}{u}", ""),
        ("1 + g(u)", "g takes 2 arguments, not 1", "g(u)", ""),
        ("1 + g(x, u)", "g takes a vector of size d, and x is a scalar", "x", ""),
        ("1 + g(u, v)", "g takes a scalar, and v is a vector of size d", "v", ""),
        (r"1 + \phi([1; 2])", "φ takes a vector of size d, and (1, 2) is a vector of size 2", "[1; 2]", ""),
    ],
)
def test_calls_that_make_no_sense(text, reason, place, suggestion) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, KNOWN)
    assert (caught.value.reason, caught.value.suggestion) == (reason, suggestion)
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        (r"1 + \|u\|_3", "of norms, _1, _2, _∞ and _F are read, not _3", r"\|u\|_3"),
        ("1 + norm_3(u)", "of norms, _1, _2, _∞ and _F are read, not _3", "norm_3(u)"),
        ("1 + exp_2(x)", "a lower index on exp is not read", "_2"),
        ("1 + E_x[q]", "names below an expectation must be random, and x is not", "_x"),
        ("1 + E_z[q]", "names below an expectation must be random, and z is not", "_z"),
        (
            "1 + Var_q(q^T p)",
            "an expectation over q alone is not read; p is random as well, and E[…] is over all that is",
            "_q",
        ),
        (
            r"1 + E_{q \sim N(0,1)}[q]",
            "a law below an expectation is not read: the names have theirs declared",
            r"_{q \sim N(0,1)}",
        ),
        (r"1 + \binom{n}{9}", "a binomial coefficient is read up to 8 below", r"\binom{n}{9}"),
        (r"1 + \binom{n}{-1}", "a binomial coefficient is read up to 8 below", r"\binom{n}{-1}"),
        (r"1 + \binom{n}{0.5}", "a binomial coefficient is read up to 8 below", r"\binom{n}{0.5}"),
        (r"1 + \binom{n}{m}", "a binomial coefficient is read up to 8 below", r"\binom{n}{m}"),
    ],
)
def test_calls_that_are_not_read(text, reason, place) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, KNOWN)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize("below", range(9))
def test_binomial_coefficients_come_to_what_they_are(below) -> None:
    for above in range(12):
        assert compare(rf"\binom{{{above}}}{{{below}}}", str(math.comb(above, below)), {}).kind == "equal"


def test_one_argument_is_no_arguments() -> None:
    maps = {"x": "scalar", "phi": "map scalar -> scalar", "psi": "map scalar, scalar -> scalar"}
    for text, said in (
        (r"\phi(x, x)", "φ takes 1 argument, not 2"),
        (r"\psi(x)", "ψ takes 2 arguments, not 1"),
    ):
        with pytest.raises(IllTyped) as caught:
            parse(text, maps)
        assert caught.value.reason == said


INDEXED = {
    "s": "vector[n]",
    "u": "vector[n]",
    "c": "scalar",
    "A": "matrix[n,n]",
    "Q": "matrix[n,d]",
    "K": "matrix[n,d]",
    "q": "random vector[d] ~ N(mu, I)",
    "mu": "vector[d]",
}


@pytest.mark.parametrize(
    ("text", "vector"),
    [
        (r"\max_i|u_i|", "max(abs(u))"),
        (r"\max_i (s_i + c)", r"max(s + c\mathbf{1})"),
        (r"\arg\max_i e^{s_i}", "argmax(exp(s))"),
        (r"\min_{i} -2 s_i u_i", r"min(-2(s \odot u))"),
        (r"\max_{1 \le i \le n} u_i^2", r"max(u \odot u)"),
        (r"\max_j Q_i^T K_j / \sqrt d", r"max(K Q_i)/\sqrt d"),
        (r"\max_j (K_j^T \mu)", r"max(K\mu)"),
        (r"\max_j A_{ij}", "max(A_i)"),
        (r"\max_j (QK^T)_{ij}", "max(K Q_i)"),
        (r"\max_j [QK^T]_{ij}^2", r"max((K Q_i) \odot (K Q_i))"),
        (r"\max_i A_{ij}", "max(A_{:j})"),
        (r"\max_i E[q_i]", "max(E[q])"),
        (r"\max_i \sum_j A_{ij}", r"max(A \mathbf{1})"),
        (r"\max_i \sum_j A_{ij} s_j", "max(A s)"),
        (r"\max_i s_i^2", r"\max_k s_k^2"),
        (r"\text{softmax}_j(Q_i^T K_j/\sqrt d)", r"\text{softmax}(K Q_i/\sqrt d)_j"),
        (r"\sum_j \text{softmax}_j(A_{ij}) s_j", r"\sum_j \text{softmax}(A_i)_j s_j"),
        (r"\text{softmax}_j s_j", r"\text{softmax}(s)_j"),
    ],
)
def test_over_an_index_is_of_a_vector(text, vector) -> None:
    assert compare(vector, text, INDEXED).evidence == "proved", parse(text, INDEXED)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\max_i i s_i", 8),
        (r"\max_i (1/s_i)", 2),
        (r"\arg\max_i (i s_i)", 3),
        (r"\max_i A_{ii}", 6),
        (r"\max_i \sum_j A_{ij}", 15),
        (r"\min_i \max_j A_{ij}", 3),
        (r"\max_i (s_i + 1) + \max_i s_i", 11),
        (r"\max_i \prod_j A_{ij}", 120),
        (r"\max_i ((s_i A)_i^T s)", Fraction(5) * 14),
        (r"\max_i (s^T (s_i A)_i)", Fraction(5) * 14),
        (r"\max_i A_i^T s", 20 + Fraction(5, 2) + 16),
        (r"\max_i s^T A_i", 20 + Fraction(5, 2) + 16),
        (r"\min_i s^T A_{:i}", 5 + 2 + Fraction(8, 3)),
        (r"\max_i A_{i2}", 5),
        (r"\max_i A_{2i}", 6),
        (r"\max_i s_i^3", 125),
        (r"\max_i (2 - s_i)", Fraction(3, 2)),
        (r"\max_i (c s_i / 4)", Fraction(15, 4)),
        (r"\max_i relu(s_i - 1)", 4),
        (r"\max_i -|s_i|", Fraction(-1, 2)),
        (r"\max_i sign(s_i - 1)", 1),
        (r"\max_i s_i A_{ii} A_{i1}", 16),
        (r"\arg\max_i -s_i", 2),
    ],
)
def test_what_they_come_to(text, value) -> None:
    values = {"s": (5, Fraction(1, 2), Fraction(8, 3)), "A": ((1, 2, 3), (4, 5, 6), (1, 2, 6)), "c": 3}
    assert evaluate(parse(text, INDEXED), {"n": 3}, values) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"\max_i 3", "i does not occur in the argument of max"),
        (r"\max_i u", "of one scalar with i in it"),
        (r"\max_i (s_i, u_i)", "of one scalar with i in it"),
        (r"\max_{i,j} A_{ij}", "over one index"),
        (r"\max_{i \ne j} A_{ij}", "over one index"),
        (r"\max_{2 \le i \le n} s_i", "over one index that runs from 1"),
    ],
)
def test_what_is_refused(text, said) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, INDEXED)
    assert said in caught.value.reason
