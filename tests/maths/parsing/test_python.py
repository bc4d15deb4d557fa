"""Python and NumPy expressions are read as mathematics, with the same types, and never run."""

import pytest

from qkv.errors import IllTyped, MathsError, Unreadable
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse, readings

S = {
    "n": "natural", "d": "natural", "a": "scalar", "b": "scalar", "q": "vector[d]", "k": "vector[d]", "s": "vector[n]",
    "Q": "matrix[n,d]", "K": "matrix[n,d]", "V": "matrix[n,m]", "A": "matrix[n,n]",
    "phi": "map vector[d] -> vector[F]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Q @ K.T / math.sqrt(d)", r"\frac{QK^T}{\sqrt d}"),
        ("scores = Q @ K.T / np.sqrt(d)", r"\frac{QK^T}{\sqrt d}"),
        ("np.exp(s) / np.exp(s).sum()", "softmax(s)"),
        ("np.exp(s - s.max()) / np.sum(np.exp(s - s.max()))", r"softmax(s - \max(s) \mathbf{1})"),
        ("np.exp(A) / np.exp(A).sum(axis=-1, keepdims=True)", "softmax(A)"),
        ("torch.softmax(A, dim=-1)", "softmax(A)"),
        ("torch.softmax(A, dim=0)", "softmax(A^T)^T"),
        ("F.softmax(Q @ K.transpose(-2, -1) / d**0.5, dim=-1) @ V", r"softmax(\frac{QK^T}{\sqrt d}) V"),
        ("softmax(Q @ K.T / np.sqrt(d)) @ V", r"softmax(\frac{QK^T}{\sqrt d}) V"),
        ("q.mean()", r"\frac{1}{d} \mathbf{1}^T q"),
        ("q - q.mean()", r"q - \frac{1}{d} \mathbf{1} \mathbf{1}^T q"),
        ("np.dot(q, k)", "q^T k"),
        ("q @ k", "q^T k"),
        ("q @ K.T", "K q"),
        ("np.outer(q, k)", "q k^T"),
        ("np.linalg.norm(q)", r"\|q\|"),
        ("np.linalg.norm(Q)", r"\|Q\|_F"),
        ("np.linalg.inv(A) @ s", "A^{-1} s"),
        ("np.maximum(q, 0)", "relu(q)"),
        ("max(a, b) * np.log(2)", r"\max(a, b) \log 2"),
        ("q.sum() + np.trace(A)", r"\mathbf{1}^T q + tr(A)"),
        ("(Q * K).sum(axis=1)", r"(Q \odot K) \mathbf{1}"),
        ("q**2", r"q \odot q"),
        ("a**2 + 2**n", "a^2 + 2^n"),
        ("np.log2(a)", r"\log_2 a"),
        ("a // b + np.floor(a)", r"\lfloor \frac{a}{b} \rfloor + \lfloor a \rfloor"),
        ("phi(q) @ phi(k)", r"\phi(q)^T \phi(k)"),
        ("phi(Q) @ phi(K).T", r"\phi(Q) \phi(K)^T"),
        ('torch.einsum("id,jd->ij", Q, K)', "Q K^T"),
        ('torch.einsum("nd,d->n", K, q)', "K q"),
        ('np.einsum("i,i->", q, k)', "q^T k"),
        ('np.einsum("i,j->ij", q, k)', "q k^T"),
        ('np.einsum("ij->ji", Q)', "Q^T"),
        ('np.einsum("ii->", A)', "tr(A)"),
        ("2 * np.eye(3)", "2 I_3"),
        ("torch.Size([2, 3])", "(2, 3)"),
        ("math.pi * a", r"\pi a"),
    ],
)
def test_python_says_the_same(text, same) -> None:
    assert compare(same, text, S).kind == "equal"


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("Q @ K / math.sqrt(d)", IllTyped, "do not fit"),
        ("np.exp(zeta)", Unreadable, "ζ is not declared"),
        ('torch.einsum("bhd,bnd->bhn", q, K)', Unreadable, "bhd are 3 axes, and q is a vector of size d"),
        ('torch.einsum("i,i->", q, s)', IllTyped, "different sizes"),
        ("np.foo(q)", Unreadable, "the function foo is not read"),
        ("np.exp(q) / np.exp(k)", Unreadable, "division by the entries"),
        ("lambda x: x**2", Unreadable, "this part of Python"),
        ('__import__("os").system("true")', Unreadable, "not a sign"),
        ("[np.exp(a) for a in range(3)]", Unreadable, "this part of Python"),
        ("np.random.rand(3)", Unreadable, "the function rand"),
        ("torch.softmax(A, dim=n)", Unreadable, "options"),
        ("np.exp(" * 60 + "a" + ")" * 60, Unreadable, "nested too deeply"),
        ("-" * 1500 + "np.exp(a)", MathsError, "sign|nested|deep"),
    ],
)
def test_what_is_refused(text, error, said) -> None:
    with pytest.raises(error, match=said):
        parse(text, S)


def test_what_the_ordinary_reading_takes_stays_its_own() -> None:
    assert parse("A.T", S) == parse("A^T", S)
    first, second = readings("A @ A.T * A", S)
    assert first.node == parse("A A^T A", S)
    assert (second.note, second.node) == ("read as Python", parse(r"(A A^T) \odot A", S))
