"""max_j, argmax_j and softmax_j: what they are over, and what they come to."""

from fractions import Fraction

import pytest

from qkv.errors import Unreadable
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.values.evaluate import evaluate

S = {
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
    assert compare(vector, text, S).evidence == "proved", parse(text, S)


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
    assert evaluate(parse(text, S), {"n": 3}, values) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"\max_i 3", "i does not stand in what max is over"),
        (r"\max_i u", "of one scalar with i in it"),
        (r"\max_i (s_i, u_i)", "of one scalar with i in it"),
        (r"\max_{i,j} A_{ij}", "over one index"),
        (r"\max_{i \ne j} A_{ij}", "over one index"),
        (r"\max_{2 \le i \le n} s_i", "over one index that runs from 1"),
    ],
)
def test_what_is_refused(text, said) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, S)
    assert said in caught.value.reason
