"""Unknown sizes, depth, and the notation of messages and suggestions."""

from fractions import Fraction

import pytest

from qkv.errors import IllTyped, MathsError
from qkv.maths.parsing.parse import parse
from qkv.maths.parsing.shapes import (
    UnknownSize,
    can_unify,
    depth,
    describe_shape,
    describe_size,
    resolve_sizes,
    resolved_size,
    shortened,
    unify,
    unify_shapes,
)
from qkv.maths.tree import Add, Index, Number, Special, Symbol, Type


def test_two_unknown_sizes_become_one() -> None:
    a, b, c = UnknownSize(), UnknownSize(), UnknownSize()
    assert can_unify(a, b)
    assert a.link is None
    assert unify(a, a)
    assert a.link is None
    assert unify(a, b)
    assert unify(c, b)
    assert unify("d", c)
    assert [resolved_size(size) for size in (a, b, c)] == ["d", "d", "d"]
    assert unify(a, "d")
    assert not unify(a, "n")
    assert not can_unify(a, 3)
    assert can_unify(b, c)
    assert can_unify("n", UnknownSize())
    assert can_unify(UnknownSize(), 7)


@pytest.mark.parametrize(("a", "b", "same"), [(3, 3, True), ("d", "d", True), (3, 4, False), ("d", "n", False)])
def test_sizes_that_are_known(a, b, same) -> None:
    assert can_unify(a, b) is unify(a, b) is same


def test_shapes_fit_wholly_or_not_at_all() -> None:
    a, b = UnknownSize(), UnknownSize()
    assert not unify_shapes((a, "d"), ("n", "m"))  # pyright: ignore
    assert a.link is None
    assert not unify_shapes((a,), ("n", "m"))  # pyright: ignore
    assert unify_shapes((a, "d"), ("n", b))  # pyright: ignore
    assert (resolved_size(a), resolved_size(b)) == ("n", "d")
    assert unify_shapes((), ())
    twice = UnknownSize()
    assert not unify_shapes((twice, twice), ("n", "m"))  # pyright: ignore


@pytest.mark.parametrize(
    ("size", "said"),
    [(3, "3"), ("d", "d"), ("mu", "μ"), ("2*alpha+n", "2*α+n"), (UnknownSize(), "?"), ("d_model", "d_model")],
)
def test_sizes_are_said(size, said) -> None:
    assert describe_size(size) == said


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((), "a scalar"),
        (("d",), "a vector of size d"),
        ((1, "d"), "a row of size d"),
        (("d", 1), "a d×1 matrix"),
        (("n", "d"), "an n×d matrix"),
        ((8, 3), "an 8×3 matrix"),
        ((18, 3), "a 18×3 matrix"),
        (("nu", 3), "a ν×3 matrix"),
        ((2, 3), "a 2×3 matrix"),
    ],
)
def test_shapes_are_said(shape, said) -> None:
    assert describe_shape(shape) == said


@pytest.mark.parametrize("letter", "8aefhilmnorsxAEFHILMNORSX")
def test_letters_that_are_spoken_with_a_vowel(letter) -> None:
    assert describe_shape((letter, "d")) == f"an {letter}×d matrix"


@pytest.mark.parametrize("letter", "2345679bcdgjkpqtuvwyzBCDGJKPQTUVWYZ")
def test_letters_that_are_not(letter) -> None:
    assert describe_shape((letter, "d")) == f"a {letter}×d matrix"


def test_depth_counts_levels_with_definitions() -> None:
    one = Number((), Fraction(1))
    two = Add((), (one, one))
    assert [depth(node) for node in (one, two, Add((), (one, two)), Add((), (two, one)))] == [1, 2, 3, 3]
    defined = Symbol((), "a", Type("scalar", definition=Add((), (one, two))))
    assert depth(defined) == 4
    assert depth(Add((), (defined, one))) == 5
    assert depth(Symbol((), "a", Type("scalar"))) == 1
    deep = one
    for _ in range(200):
        deep = Add((), (deep, one))
    assert depth(deep) == 81
    assert depth(deep, 10) == 11
    assert depth(deep, 300) == 201


def test_a_part_that_stands_in_two_depths_counts_in_the_deeper() -> None:
    one = Number((), Fraction(1))
    shared = Add((), (one, one))
    for terms in ((shared, Add((), (Add((), (shared, one)), one))), (Add((), (Add((), (shared, one)), one)), shared)):
        assert depth(Add((), terms)) == 5


def test_sizes_are_settled_all_the_way_down() -> None:
    size = UnknownSize()
    ones = Special((size,), "ones", span=(2, 3))  # pyright: ignore
    index = Index((), "i", size, span=(5, 6))  # pyright: ignore
    missing = []
    tree = Add((size,), (ones, index), span=(0, 9))  # pyright: ignore
    resolve_sizes(tree, missing.append)
    assert missing == [ones, index]
    unify(size, "d")
    missing.clear()
    done = resolve_sizes(tree, missing.append)
    assert missing == []
    assert done == Add(("d",), (Special(("d",), "ones"), Index((), "i", "d")))
    assert (done.span, done.terms[0].span, done.terms[1].span) == ((0, 9), (2, 3), (5, 6))  # pyright: ignore


def test_sizes_are_settled_in_conditions() -> None:
    total = parse(r"\sum_{i<j} s_i s_j", {"s": "vector[n]"})
    assert [index.size for _, *pair in total.conditions for index in pair] == ["n", "n"]  # pyright: ignore


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
    with pytest.raises(MathsError) as caught:
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
    with pytest.raises(MathsError) as caught:
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
