"""Where two trees have a value, and that equality with equal domains is transitive."""

from __future__ import annotations

import itertools

import pytest

from qkv.maths import compare

S = {"x": "scalar", "y": "scalar", "n": "natural", "q": "vector[d]", "v": "vector[m]", "A": "matrix[d,d]"}


@pytest.mark.parametrize(
    ("gold", "answer", "condition"),
    [
        (r"\log|x|", r"\log x", "x > 0"),
        ("x", r"\sqrt{x^2}", "x ≥ 0"),
        ("x^2/x", "x", "x ≠ 0"),
        ("x^2/x", r"\sqrt{x^2}", "x > 0"),
        (r"(\sqrt x)^2", "|x|", "x ≥ 0"),
        (r"\sqrt{|x|}", r"\sqrt x", "x ≥ 0"),
        ("(x^2)^{1/4}", r"\sqrt x", "x ≥ 0"),
        (r"e^{\log x}", "x", "x > 0"),
        (r"\frac{n^2 - 1}{n - 1}", "n + 1", "n ≠ 1"),
        (r"\log(x y)", r"\log x + \log y", "x > 0 and y > 0"),
        (r"\frac{q^T q}{\|q\|}", r"\|q\|", "‖q‖ ≠ 0"),
        (r"\sum_i \log|v_i|", r"\sum_i \log v_i", "v_i > 0 for every i"),
    ],
)
def test_what_has_no_value_somewhere_is_conditional(gold: str, answer: str, condition: str) -> None:
    for there in (compare(gold, answer, S), compare(answer, gold, S)):
        assert (there.kind, there.condition) == ("conditional", condition), str(there)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{\sqrt x}", r"\frac{\sqrt x}{x}"),
        (r"\frac12 \log x^2", r"\log|x|"),
        ("1/x", "x^{-1}"),
        (r"\frac{x}{1 + x^2}", r"\frac{2x}{2 + 2x^2}"),
        ("A A^{-1}", "I_d"),
    ],
)
def test_equal_domains_are_no_condition(gold: str, answer: str) -> None:
    assert compare(gold, answer, S).kind == "equal"


def test_an_inverse_that_does_not_exist_equals_nothing() -> None:
    assert compare("(q q^T)(q q^T)^{-1}", "I_d", S).kind == "unreadable"


POOL = [
    r"\log x",
    r"\log|x|",
    r"\frac12 \log x^2",
    r"2\log\sqrt x",
    r"\sqrt{x^2}",
    "|x|",
    "x",
    "x^2/x",
    r"(\sqrt x)^2",
    r"e^{\log x}",
    r"e^{\log|x|}",
    r"x \cdot \frac{|x|}{|x|}",
    r"\max(x, -x)",
]


@pytest.mark.slow
def test_equality_is_symmetric_and_transitive() -> None:
    kinds = {pair: compare(*pair, S).kind for pair in itertools.product(POOL, POOL)}
    same = {pair for pair, kind in kinds.items() if kind == "equal"}
    assert all((one, one) in same for one in POOL)
    assert "unreadable" not in kinds.values()
    for a, b in same:
        assert (b, a) in same
        for c in POOL:
            assert (b, c) not in same or (a, c) in same, (a, b, c)
    assert len(same) > len(POOL)
