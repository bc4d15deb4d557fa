"""Whatever is written, `compare` gives a verdict, and its work is counted."""

from __future__ import annotations

import json
import random

import pytest

from qkv.maths.comparison.verdict import COMPARE_EFFORT, compare
from qkv.maths.values import arithmetic

SCALARS = (
    r"\gamma", "n", "2", "0.5", "x^T y", r"\|x\|", r"\max(x)", r"\sum_i x_i y_i", r"\operatorname{tr}(A)", r"\det(A)",
    "E[q^T k]", "Var(q^T k)", "E[e^z]", "f(x)", "x_1", "x^T A y", r"\sum_{i<j} x_i x_j", "n^n", r"9^{9^9}", "x_i",
    r"\frac{\partial a_i}{\partial s_j}", r"\pm\gamma", r"O(n^2)", r"\frac10", "1e-400", "(1, 2)", "A^{-1}", "A^{60}",
)  # fmt: skip
JOINED = (
    "({a} + {b})", "{a} {b}", r"\frac{{{a}}}{{{b}}}", "({a})^{{{b}}}", r"\sqrt{{{a}}}", r"\exp({a})", r"\log({a})",
    r"\max({a}, {b})", "E[{a}]", "Var({a})", r"\sum_i {a}", "{a} = {b}", r"{a} \le {b}", r"\approx {a}", r"O({a})",
)  # fmt: skip
STRAY = (*r"xAn01+-^_{}()[]|\,.=' ", r"\mu", "²", "Σ", "±", "\n", r"\frac", r"\left", "&", "\u202e", "а", "$", "768")
SIZES = ("d", "d", "3", "n+1", "d/n", "768", "12")
LAWS = ("N(s, S)", "(0, S)", "N(0, A A^T)", "N(s, A + A^T)", "(s, I)")


def text(draw: random.Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(SCALARS)
    return draw.choice(JOINED).format(a=text(draw, depth - 1), b=text(draw, depth - 1))


def damaged(draw: random.Random, written: str) -> str:
    for _ in range(draw.choice((0, 0, 1, 2))):
        start = draw.randrange(len(written) + 1)
        written = written[:start] + draw.choice((*STRAY, "")) + written[start + draw.randrange(3) :]
    return written


def declared(draw: random.Random) -> dict[str, str]:
    size = draw.choice(SIZES)
    vectors = dict.fromkeys("xys", f"vector[{size}]")
    matrices = dict.fromkeys("AS", f"matrix[{size},{size}]")
    random_names = {name: f"random vector[{size}] ~ {draw.choice(LAWS)}" for name in "qk"}
    rest = {"z": "random scalar ~ N(0, 1)", "f": f"map vector[{size}] -> scalar", "gamma": "scalar", "n": "natural"}
    return {**vectors, **matrices, **random_names, **rest, "a": f"vector[{size}] = softmax(s)"}


@pytest.mark.parametrize("seed", range(4))
def test_every_pair_has_a_verdict(seed):
    draw = random.Random(seed)
    for _ in range(20):
        symbols, gold = declared(draw), damaged(draw, text(draw, draw.randint(0, 2)))
        answer = damaged(draw, gold if draw.random() < 0.5 else text(draw, draw.randint(0, 2)))
        verdict = compare(gold, answer, symbols)
        assert verdict.kind in ("equal", "different", "conditional", "ill-typed", "unreadable")
        assert len(verdict.reason.splitlines()) == 1
        assert json.loads(json.dumps(verdict.as_dict()))["kind"] == verdict.kind
        assert str(verdict).startswith(verdict.kind)


def test_a_quotient_of_defined_sizes_that_is_not_whole():
    symbols = {"d": "natural = 3", "n": "natural = 5", "x": "vector[d/n]"}
    assert compare(r"\|x\|_1 d/n", r"\|x\| d/n", symbols).kind == "unreadable"


def test_the_work_of_one_comparison_is_counted(monkeypatch):
    symbols = {"x": "vector[d]", "A": "matrix[d,d]"}
    units: list[int] = []
    spend = arithmetic.spend

    def counted(number: int = 1) -> None:
        units.append(number)
        spend(number)

    monkeypatch.setattr(arithmetic, "spend", counted)
    verdict = compare("softmax((A^{20})^3 x)", r"softmax(\log(\exp((A^{60}) x)))", symbols)
    assert verdict.kind in ("equal", "unreadable")
    assert 0 < sum(units) < 2 * COMPARE_EFFORT


def test_effort_inside_effort_takes_from_both():
    with arithmetic.effort(10):
        with arithmetic.effort(6):
            arithmetic.spend(5)
        with arithmetic.effort(None):
            arithmetic.spend(1000)
        with arithmetic.effort(100), pytest.raises(arithmetic.Unevaluable):
            arithmetic.spend(6)
        with pytest.raises(arithmetic.Unevaluable):
            arithmetic.spend(1)
    arithmetic.spend(10**9)
