"""Messages speak one notation, and what they suggest is mathematics that makes sense in its place."""

import pytest

from qkv.errors import IllTyped
from qkv.maths.parsing.parse import parse
from qkv.maths.parsing.shapes import shortened

S = {
    "mu": "vector[d]",
    "nu": "vector[m]",
    "sigma": "positive",
    "x": "scalar",
    "q": "vector[d]",
    "k": "vector[d]",
    "Q": "matrix[n,d]",
    "K": "matrix[n,d]",
    "A": "matrix[n,n]",
    "B": "matrix[n,n]",
    "s": "vector[n]",
    "phi": "map vector[d] -> scalar",
}

# Mistakes that people make, and whether any suggestion in their place mends the whole.
MISTAKES = [
    (r"\mu^2", True),
    (r"d\,\mu^2", True),
    (r"\mu^2 + q^2", False),
    (r"(\mu + q)^2", True),
    (r"(\mu^T)^2", True),
    (r"\frac{\mu^2}{\sigma}", True),
    (r"q k", True),
    (r"x + qk", True),
    (r"A + s s", True),
    (r"\mu*\mu", True),
    (r"\mu \nu", True),
    (r"(\mu + q)(\mu - q)", True),
    (r"QK", True),
    (r"softmax(QK)", True),
    (r"Q s", True),
    (r"Q^T\mu", True),
    (r"\mu Q", True),
    (r"K^T Q^T", True),
    (r"\mu + x", True),
    (r"\mu - \sigma", True),
    (r"\mu + q + x - k", True),
    (r"\mu + 1", True),
    (r"A + x", True),
    (r"A - 1", True),
    (r"Q + K^T", True),
    (r"x/A", True),
    (r"B/A", True),
    (r"\|A\|", True),
    (r"|A|", True),
    (r"\max(0, \mu)", True),
    (r"Q^2", True),
    (r"\sum_i Q_i K_i", True),
    (r"\sum_i Q_i^2", True),
    (r"2\,sigmma", True),
    (r"\mu'\mu", True),
    (r"softmax(A)^2 + Q^2", False),
    (r"\phi(\mu)\, q k", True),
]


@pytest.mark.parametrize(("text", "mends"), MISTAKES)
def test_suggestions_make_sense(text, mends) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, S)
    error = caught.value
    assert error.suggestion
    start, stop = error.span
    for option in error.suggestion.split(" or "):
        parse(option, S)
        if mends:
            parse(f"{text[:start]}({option}){text[stop:]}", S)


@pytest.mark.parametrize("text", [text for text, _ in MISTAKES])
def test_reasons_and_suggestions_are_in_unicode(text) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, S)
    assert "\\" not in caught.value.reason + caught.value.suggestion
    assert caught.value.source == text


@pytest.mark.parametrize("text", [r"\mu^2", "mu^2", "μ^2", r"\boldsymbol{\mu}^{2}", "μ²"])
def test_one_mistake_is_said_in_one_way(text) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, S)
    assert str(caught.value).splitlines()[0] == "μ^2: a vector has no square; did you mean μᵀμ?"


def test_what_is_long_or_deep_is_cut() -> None:
    with pytest.raises(IllTyped) as caught:
        parse("A " * 900 + "mu", S)
    assert len(caught.value.reason) < 300
    assert not caught.value.suggestion


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"\mu + \sum_j x", "μ is a vector of size d and ∑_j x is a scalar: they cannot be added"),
        (r"\mu + \sum_{j,l} x", "μ is a vector of size d and ∑_{j, l} x is a scalar: they cannot be added"),
        (r"\mu + \sum_{j<l} x", "μ is a vector of size d and ∑_{j < l} x is a scalar: they cannot be added"),
        (r"\mu + \prod_{j \ne l} x", "μ is a vector of size d and ∏_{j ≠ l} x is a scalar: they cannot be added"),
        (r"\mu + \sum_{j=1}^{n} x", "μ is a vector of size d and ∑_{j=1}^n x is a scalar: they cannot be added"),
        (r"x + 2\mathbf{1}", "x is a scalar and 2·𝟏 is a vector of size ?: they cannot be added"),
        (r"x + 2 I", "x is a scalar and 2I is a ?×? matrix: they cannot be added"),
        (r"A + x\mathbf{1}_3", "A is an n×n matrix and x·𝟏_3 is a vector of size 3: they cannot be added"),
        (r"(x + \mu)_1", "x is a scalar and μ is a vector of size d: they cannot be added"),
        (r"\mu^{x+1}", "μ^{x + 1}: a vector has no powers"),
        (r"(\mu + q)^{12}", "(μ + q)^{12}: a vector has no powers"),
        (r"\mu^x", "μ^x: a vector has no powers"),
        ("(A s) Q", "A s Q: (n)(n×d) do not fit"),
        ("(A + B) q", "(A + B)q: (n×n)(d) do not fit"),
        ("q (A + B)", "q (A + B): (d)(n×n) do not fit"),
    ],
)
def test_parts_as_sentences_show_them(text, reason) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, S)
    assert caught.value.reason == reason


def test_what_is_too_deep_is_shown_as_it_was_written() -> None:
    with pytest.raises(IllTyped) as caught:
        parse("A " * 45 + "+ x", S)
    written = ("A " * 45).strip()
    assert caught.value.reason == f"{written[:78]} … is an n×n matrix and x is a scalar: they cannot be added"
    assert caught.value.suggestion == ""
    with pytest.raises(IllTyped) as caught:
        parse(r"A \cdot " * 45 + "mu", S)
    assert caught.value.reason.startswith(r"A \cdot A \cdot")
    with pytest.raises(IllTyped) as caught:
        parse("(" + r"A \cdot " * 45 + r"s)^{2}", S)
    assert caught.value.reason.startswith(r"(A \cdot A \cdot")


def test_long_parts_are_cut() -> None:
    assert shortened("x" * 80) == "x" * 80
    assert shortened("x" * 81) == "x" * 78 + " …"
