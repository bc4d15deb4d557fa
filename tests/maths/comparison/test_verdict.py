"""Verdicts: labelled probes, every rule, any text at all, and rarely used paths."""

from __future__ import annotations

import itertools
import json
import random
import time
import tomllib
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import IllTyped, OptionError, OptionTypeError, Unreadable
from qkv.maths import holds, latex, parse, plain
from qkv.maths.comparison.verdict import COMPARE_EFFORT, Verdict, compare, equal
from qkv.maths.values import arithmetic
from qkv.maths.values.arithmetic import eliminate

PROBES = tomllib.loads((Path(__file__).parents[1] / "probes.toml").read_text(encoding="utf-8"))


SCORE = PROBES["symbols"]


@pytest.mark.parametrize("probe", PROBES["probe"], ids=lambda probe: f"{probe['gold']} {probe['answer']}")
def test_the_eleven_rows(probe):
    verdict = compare(probe["gold"], probe["answer"], SCORE)
    assert bool(verdict) is probe["equal"]
    assert verdict.evidence == ("proved" if probe["equal"] else verdict.evidence)
    json.dumps(verdict.as_dict())
    assert verdict.kind in str(verdict)


# Expressions in classes: within a class all are equal, between classes none is.
CLASSES = [
    [r"\mu^T\mu", r"\|\mu\|^2", r"\sum_{i=1}^d \mu_i^2", r"\operatorname{tr}(\mu\mu^T)", r"\mu\cdot\mu"],
    [r"(\mathbf 1^T\mu)^2", r"(\sum_i \mu_i)^2", r"\sum_i\sum_j \mu_i\mu_j"],
    [r"d\sigma^4", r"\sigma^4 d", r"d(\sigma^2)^2"],
    [r"\sqrt{d}\sigma", r"\sigma d^{1/2}", r"\sigma\frac{d}{\sqrt d}"],
    [r"q^T k", r"k^T q", r"\langle q,k\rangle", r"\sum_i q_i k_i"],
    [r"\log(\sigma^2 d)", r"2\log\sigma + \log d"],
    [r"\|\mu\|", r"\sqrt{\mu^T\mu}"],
    [r"1", r"\frac{\sigma}{\sigma}", r"\sum_i (\operatorname{softmax}(q))_i"],
]


@pytest.mark.parametrize("members", CLASSES)
def test_members_of_a_class_are_equal(members):
    for gold, answer in itertools.permutations(members, 2):
        assert compare(gold, answer, SCORE).kind == "equal", (gold, answer)


def test_members_of_two_classes_are_not():
    for first, second in itertools.combinations(CLASSES, 2):
        there, back = compare(first[0], second[-1], SCORE), compare(second[-1], first[0], SCORE)
        assert not there
        assert not back
        assert there.evidence == back.evidence == "refuted"
        assert there.counterexample is not None
        assert str(there.counterexample) in str(there)


@pytest.mark.parametrize("members", CLASSES)
def test_one_more_is_another_value(members):
    for member in members:
        verdict = compare(member, f"{member} + 1", SCORE)
        assert (verdict.kind, verdict.evidence) == ("different", "refuted")
        assert not compare(f"1 + {member}", member, SCORE)


def test_a_counterexample_does_differ_where_numpy_computes_it():
    verdict = compare(r"\mu^T\mu", r"(\mathbf 1^T\mu)^2 - \sigma", SCORE)
    assert verdict.counterexample is not None
    mu = np.array(verdict.counterexample.point["mu"], dtype=float)
    sigma = float(verdict.counterexample.point["sigma"])
    assert float(verdict.counterexample.gold) == pytest.approx(mu @ mu)
    assert float(verdict.counterexample.answer) == pytest.approx(mu.sum() ** 2 - sigma)
    assert verdict.counterexample.gold != verdict.counterexample.answer


def expression(draw: random.Random, depth: int) -> tuple[str, Callable[[dict[str, np.ndarray]], float]]:
    """A text for a scalar, and the same computed by numpy."""
    leaves = [
        (r"\mu^T\mu", lambda x: x["mu"] @ x["mu"]),
        (r"q^T k", lambda x: x["q"] @ x["k"]),
        (r"\sum_i q_i", lambda x: x["q"].sum()),
        (r"q^T \mu", lambda x: x["q"] @ x["mu"]),
        (r"\sigma", lambda x: x["sigma"]),
        ("d", lambda x: x["d"]),
        ("3", lambda x: 3.0),
    ]
    if depth == 0:
        return draw.choice(leaves)
    (a, f), (b, g) = expression(draw, depth - 1), expression(draw, depth - 1)
    return draw.choice(
        [
            (f"({a} + {b})", lambda x: f(x) + g(x)),
            (f"({a} - {b})", lambda x: f(x) - g(x)),
            (f"({a})({b})", lambda x: f(x) * g(x)),
            (rf"\frac{{{a}}}{{1 + ({b})^2}}", lambda x: f(x) / (1 + g(x) ** 2)),
            (rf"\max({a}, {b})", lambda x: max(f(x), g(x))),
            (rf"\sqrt{{1 + ({a})^2}}", lambda x: (1 + f(x) ** 2) ** 0.5),
        ]
    )


@pytest.mark.slow
def test_random_expressions_equal_themselves_and_differ_only_where_numpy_says_so():
    for seed in range(25):
        draw = random.Random(seed)
        (gold, f), (answer, g) = expression(draw, 2), expression(draw, 2)
        assert compare(gold, gold, SCORE).kind == "equal"
        there, back = compare(gold, answer, SCORE), compare(answer, gold, SCORE)
        assert (there.kind == "equal") == (back.kind == "equal")
        if there.counterexample is None:
            assert there.kind == "equal"
            continue
        x = {name: np.array(value, dtype=float) for name, value in there.counterexample.point.items()}
        assert float(there.counterexample.gold) == pytest.approx(f(x))
        assert float(there.counterexample.answer) == pytest.approx(g(x))
        assert f(x) != g(x)


def test_a_counterexample_is_small_and_written_with_the_names_of_the_question():
    verdict = compare(r"\mu^T\mu", r"(\mathbf 1^T\mu)^2", SCORE)
    assert str(verdict.counterexample) == "d = 2, μ = (1, 2): 5 against 9"
    assert compare("d", r"d\sigma^4", SCORE).reason.endswith("they agree where σ = 1, not in general")


def test_shapes_are_named():
    verdict = compare(r"\mu^T\mu", r"\mu\mu^T", SCORE)
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")
    assert "d×d" in verdict.reason
    assert "scalar" in verdict.reason
    row = compare(r"\mu", r"\mu^T", SCORE)
    assert row.kind == "different"
    assert "row" in row.reason
    assert "column" in row.reason


def test_refusals_say_whose_they_are():
    ill = compare(r"\mu^T\mu", r"\mu + \sigma", SCORE)
    assert (ill.kind, ill.evidence) == ("ill-typed", None)
    assert "^" not in ill.reason
    assert compare(r"\mu^T\mu", "the square of mu!", SCORE).kind == "unreadable"
    gold = compare(r"\mu + \sigma", r"\mu^T\mu", SCORE)
    assert gold.kind == "ill-typed"
    assert "gold" in gold.reason
    assert compare(r"\frac{", r"\mu^T\mu", SCORE).kind == "unreadable"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\mu^T\mu", "\\mu +\n \t\\sigma"),
        (r"\mu^T\mu", r"\mu^2"),
        (r"\mu^T\mu", "{\u2028mu\v"),
        (r"\mu^T\mu", "the\nsquare\rof"),
        ("{\n\n", r"\mu"),
        (r"\mu^T\mu", r"d\mu^2"),
    ],
)
def test_the_reason_is_one_line_and_the_carets_are_separate(gold, answer):
    verdict = compare(gold, answer, SCORE)
    assert len(verdict.reason.splitlines()) == 1
    source, carets = verdict.where.splitlines()
    assert set(carets.strip()) == {"^"}
    assert len(carets) <= len(source) + 1
    assert str(verdict).endswith(f"\n{verdict.where}")
    assert verdict.as_dict()["where"] == verdict.where


def test_what_was_read_has_no_carets():
    assert compare(r"\mu^T\mu", r"2\mu^T\mu", SCORE).where == ""
    assert "\n" not in str(compare(r"\mu^T\mu", r"2\mu^T\mu", SCORE))


def test_chains_are_their_last_member():
    assert compare(r"\sqrt d", r"s = \sqrt{d}", SCORE)
    assert compare(r"\mu^T\mu", r"\sum_i \mu_i^2 = \|\mu\|^2", SCORE)
    assert compare(r"\mu^T\mu", r"d\sigma = \|\mu\|^2", SCORE).kind == "different"
    wrong_before = compare(r"\mu^T\mu", r"d\sigma = \mu^T\mu = \|\mu\|^2", SCORE)
    assert wrong_before
    assert "not equal" in wrong_before.reason


def test_two_values_are_not_one():
    assert compare(r"\sqrt d", r"\pm\sqrt d", SCORE).kind == "different"
    assert compare(r"\pm\sqrt d", r"\sqrt d", SCORE).kind == "different"
    assert compare(r"\pm\sqrt d", r"\pm d^{1/2}", SCORE).kind == "equal"
    assert compare(r"\pm\sqrt d", r"\pm d", SCORE).kind == "different"


RATES = [
    [r"O(n^2 + n)", r"O(3n^2)", r"O(n^2)"],
    [r"O(n^2 d)", r"O(d n^2 + n d)"],
    [r"O(n d^2)", r"O(nd^2 + d)"],
    [r"O(\max(n,d))", r"O(n+d)"],
    [r"O(n\log n)", r"O(n \log_2 n + n)"],
]


def test_rates_fall_into_classes():
    for rates in RATES:
        for gold, answer in itertools.product(rates, rates):
            verdict = compare(gold, answer, {})
            assert verdict.kind == "equal"
    for one, other in itertools.permutations(RATES, 2):
        verdict = compare(one[0], other[-1], {})
        assert (verdict.kind, verdict.evidence) == ("different", "refuted")
        assert "ratio" in verdict.reason


def test_rates_against_values_and_other_bounds():
    assert compare("O(N^2 d)", "2 N^2 d", SCORE).reason == "it grows at the expected rate"
    assert compare("O(N^2 d)", "N^2", SCORE).kind == "different"
    assert compare("N^2 d", "O(N^2 d)", SCORE).kind == "different"
    explained = compare(r"\Theta(n)", "O(n)", {})
    assert explained.kind == "different"
    assert "upper bound only" in explained.reason


def test_moments_of_random_vectors():
    symbols = {
        "mu": "vector[d]",
        "sigma": "positive",
        "d": "natural",
        "q": "random vector[d] ~ N(mu, sigma^2 I)",
        "k": "random vector[d] ~ N(mu, sigma^2 I)",
    }
    assert compare(r"E[q^T k]", r"\mu^T\mu", symbols)
    assert compare(r"Var(q^T k)", r"d\sigma^4 + 2\sigma^2\mu^T\mu", symbols)
    wrong = compare(r"Var(q^T k)", r"d\sigma^4", symbols)
    assert (wrong.kind, wrong.evidence) == ("different", "refuted")


@pytest.mark.parametrize("symbols", [None, [], "mu", {"mu": 3}, {3: "scalar"}, {"mu": "tensor"}])
def test_broken_symbols(symbols):
    with pytest.raises(OptionError):
        compare("1", "1", symbols)


def test_texts_are_texts():
    with pytest.raises(OptionTypeError):
        compare(1, "1", {})
    with pytest.raises(OptionTypeError):
        compare("1", None, {})


def test_a_verdict_is_true_only_where_it_is_equal():
    kinds = ("equal", "different", "conditional", "ill-typed", "unreadable")
    assert [bool(Verdict(kind, None, "")) for kind in kinds] == [True, False, False, False, False]


REALS = {"x": "scalar", "y": "scalar", "A": "matrix[n,n]"}


@pytest.mark.parametrize(
    ("gold", "answer", "kind", "evidence"),
    [
        (r"5\pm 2", r"6\pm 1", "different", "refuted"),
        (r"5\pm 2", r"5\pm(-2)", "equal", "proved"),
        (r"\pm|x|", r"\pm x", "equal", "tested"),
        (r"\pm\sqrt{(x-y)^2}", r"\pm(x-y)", "equal", "tested"),
        (r"x\pm y", r"x\pm|y|", "equal", "tested"),
        (r"e^{\pm x}", r"\pm e^x", "different", "refuted"),
    ],
)
def test_two_values_are_compared_as_a_set(gold, answer, kind, evidence):
    verdict = compare(gold, answer, REALS)
    assert (verdict.kind, verdict.evidence) == (kind, evidence)
    assert (verdict.counterexample is not None) == (kind == "different")


@pytest.mark.parametrize(("gold", "answer"), [("1/0", "1/0"), ("0/0", "0/0"), ("(A-A)^{-1}(A-A)", "I")])
def test_what_has_no_value_is_equal_to_nothing(gold, answer):
    verdict = compare(gold, answer, REALS)
    assert (verdict.kind, verdict.evidence) == ("unreadable", None)


def test_two_shapes_are_shown_at_a_point():
    point = compare(r"\mu^T\mu", r"\mu", SCORE).counterexample
    assert str(point) == "d = 2, μ = (1, 2): 5 against (1, 2)"


def test_what_only_shows_a_difference_takes_little_time():
    symbols = {"d": "natural", "q": "random vector[d] ~ (0, I)"}
    begun = time.process_time()
    for _ in range(50):
        verdict = compare(r"\sqrt d", "Var(exp(q))", symbols)
    assert time.process_time() - begun < 0.8
    assert (verdict.kind, verdict.counterexample) == ("different", None)
    assert not equal(r"\sqrt d", r"\mu", {"mu": "vector[d]"})


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("Cov(q_1, q)", "S_1"),
        ("Cov(q, q_1)", "S_1"),
        ("Cov(q, z)", "0"),
        ("Cov(z, q)", "0"),
        ("Cov(q z, z)", "m"),
    ],
)
def test_the_covariance_of_a_scalar_and_a_vector_is_a_vector(gold, answer):
    symbols = {
        "m": "vector[d]",
        "S": "matrix[d,d]",
        "q": "random vector[d] ~ N(m, S)",
        "z": "random scalar ~ N(0, 1)",
    }
    assert compare(gold, answer, symbols)
    assert compare(gold, "m + m", symbols).kind == "different"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\sqrt d", r"x = \sqrt d"),
        (r"(1/3, 2/3)", r"(1/3, 1 - 1/3) = (0.333, 0.667)"),
        (r"\sqrt 2", r"\sqrt 2 = 1.41"),
    ],
)
def test_a_definition_and_a_rounding_are_no_mistakes_in_a_chain(gold, answer):
    verdict = compare(gold, answer, {**REALS, "d": "natural"})
    assert verdict
    assert "chain" not in verdict.reason


def test_odd_roots_of_negative_numbers():
    assert compare(r"\sqrt[3]{-8}", "-2", {})
    assert compare(r"\sqrt[3]{-8}", "2", {}).kind == "different"
    assert compare(r"\sqrt[4]{-8}", "2", {}).kind == "unreadable"


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


@pytest.mark.slow
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
    with pytest.raises(Unreadable, match=r"ζ is not declared; x is\n"):
        parse("zeta", {"x": "scalar"})
    with pytest.raises(Unreadable, match="ζ is not declared; x, y are"):
        parse("zeta", {"x": "scalar", "y": "scalar"})


REFUSED = [
    (r"\sum_{j}_{l}^n v_j", r"\sum_{j}_{l}^n v_j", "one lower and one upper end"),
    (r"1 + \sum_{j=2,l=1}^{4} v_j v_l", r"\sum_{j=2,l=1}^{4} v_j v_l", "binds one index"),
    (r"x + v^2", "v^2", "a vector has no square"),
    (r"x + v", "x + v", "cannot be added|is a scalar"),
    (r"1 + x_2", "x_2", "not declared"),
    (r"O(n) + n", "O(n) + n", "asymptotic class"),
    (r"2 \cdot v_{1,2}", "v_{1,2}", "takes one index"),
    (r"1 + zeta", "zeta", "not declared"),
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


SIZE_NAMES = {"n": "natural", "d": "natural"}


@pytest.mark.parametrize(
    ("gold", "answer", "kind", "condition"),
    [
        ("d/2", "1/2d", "conditional", "1/2d is read from left to right"),
        ("1/(2d)", "1/2d", "conditional", "1/2d is read as 1/(2d)"),
        ("2/3d", r"\frac{2d}{3}", "conditional", "2/3d is read from left to right"),
        ("1/2d", "1/2d", "equal", None),
        ("d/2", "1/2 d", "equal", None),
        (r"\frac{n}{\sqrt{d}}", r"1/\sqrt{d}\, n", "equal", None),
        ("n × d", "d × n", "conditional", "n × d is read as a product and d × n is read as a product"),
        ("n × d", "n × d", "equal", None),
        ("n d", "d × n", "equal", None),
        ("(n, d)", "n × d", "equal", None),
        ("(n, d)", "d × n", "different", None),
        ("4 KB", "4 KB", "equal", None),
        ("4000 B", "4 KB", "conditional", "KB is read as 1000 bytes"),
        ("4096 B", "4 KB", "conditional", "KB is read as 1024 bytes"),
        ("n d", "n*d", "equal", None),
    ],
)
def test_right_under_one_reading_only_is_conditional(gold: str, answer: str, kind: str, condition: str | None) -> None:
    verdict = compare(gold, answer, SIZE_NAMES)
    assert (verdict.kind, verdict.condition) == (kind, condition)


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        (r"x^Tx \le 1", r"\frac{1}{d}(\sum_i x_i)^2 \le 1", "different"),
        (r"x^Tx > a", r"d x_1^2 > a", "different"),
        (r"a^2/a < 1", "a < 1", "conditional"),
        (r"a < 1", "-a > -1", "equal"),
    ],
)
def test_inequalities_are_not_the_same_where_components_are_equal(gold: str, answer: str, kind: str) -> None:
    assert compare(gold, answer, {"x": "vector[d]", "a": "scalar"}).kind == kind


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("m^2", "conditional"), ("m_k^2", "conditional"), (r"\tau^2", "conditional"), ("MyLayer^2", "unreadable")],
)
def test_only_symbols_are_renamed(answer: str, kind: str) -> None:
    assert compare("N^2", answer, {"N": "natural"}).kind == kind


@pytest.mark.parametrize(
    ("gold", "answer", "condition"),
    [
        ("q^T k", r"\sqrt{(q^T k)^2}", "qᵀk ≥ 0"),
        ("|q^T k|", "q^T k", "qᵀk ≥ 0"),
        ("a b", r"\sqrt{a^2 b^2}", "a b ≥ 0"),
        ("a b", r"|a| |b|", "a b ≥ 0"),
        (r"\|q\|", r"-\|q\|", None),
        (r"-|a|", "|a|", None),
        ("q^T k", r"\|q\| \|k\|", None),
    ],
)
def test_a_lost_sign_is_a_condition(gold: str, answer: str, condition: str | None) -> None:
    symbols = {"q": "vector[d]", "k": "vector[d]", "a": "scalar", "b": "scalar"}
    verdict = compare(gold, answer, symbols)
    assert (verdict.kind, verdict.condition) == ("conditional" if condition else "different", condition)


def test_a_softmax_of_one_entry_is_exactly_one() -> None:
    symbols = {"s": "vector[n]", "p": "vector[n] = softmax(s)", "i": "index[n]", "j": "index[n]"}
    assert compare(r"\frac{e^{s_i}}{(\sum_k e^{s_k}) - e^{s_j}}", r"\frac{p_i}{1-p_j}", symbols).kind == "equal"


BOUNDARY = {
    "x": "nonnegative",
    "w": "scalar",
    "b": "scalar",
    "c": "scalar",
    "n": "natural",
    "v": "vector[m]",
    "z": "random vector[m] ~ N(0, I)",
    "y": "random scalar ~ N(0, s^2)",
    "s": "positive",
}


@pytest.mark.parametrize(
    ("gold", "answer", "kind", "condition"),
    [
        ("x^x", r"e^{x \log x}", "conditional", "x > 0"),
        ("x^{b+c}", "x^b x^c", "conditional", "x ≠ 0"),
        ("w^n", "w^{n-2} w^2", "conditional", "w ≠ 0"),
        ("x^w", r"\frac{1}{x^{-w}}", "conditional", "x ≠ 0"),
        (r"\sum_{k=1}^n k^3", r"\frac{n^2(n+1)^2}{4} + \frac{(n-1)(n-2)(n-3)(n-4)}{24}", "different", None),
        (r"\sum_{i=1}^n (-1)^i", "0", "different", None),
        (r"\sum_{i=1}^n \delta_{i2}", "1", "different", None),
        (r"\sum_i \delta_{i3} v_i", "v_3", "conditional", "m ≥ 3"),
        ("E[z_1 z_2]", "0", "conditional", "m ≥ 2"),
        ("v_1 + v_3", "v_3 + v_1", "equal", None),
        ("s", r"\max(s, 10^{-12})", "different", None),
        ("s", r"\min(s, \frac{2}{3} 10^6)", "different", None),
        (r"\sin w", r"\tan w \cos w", "conditional", "cos(w) ≠ 0"),
        (r"\tan w", r"\frac{\sin w}{\cos w}", "equal", None),
        (r"\tan(-w)", r"-\tan w", "equal", None),
        ("0", r"\tan(n\pi/2)", "conditional", "cos(n π/2) ≠ 0"),
        ("0", r"\sin(2\pi w)", "different", None),
        ("0", r"\tan(2\pi w)", "different", None),
        (r"\tan(\pi w)", r"\frac{\sin(\pi w)}{\cos(\pi w)}", "equal", None),
        ("s^2", r"w^2 Var(y/w)", "conditional", "w ≠ 0"),
        ("1", r"(\frac{d}{dw}|w|)^2", "conditional", "w ≠ 0"),
        (r"\frac{d}{dw}\max(w, 0)", r"\frac{w + |w|}{2 w}", "equal", None),
    ],
)
def test_values_and_domains_at_corners(gold: str, answer: str, kind: str, condition: str | None) -> None:
    start = time.perf_counter()
    verdict = compare(gold, answer, BOUNDARY)
    assert (verdict.kind, verdict.condition) == (kind, condition)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        ("-3", "-7//2", "different"),
        ("-4", "-7//2", "equal"),
        (r"\lceil n/4 \rceil", "-(-n//4)", "equal"),
        ("-s", "s[-1]", "unreadable"),
        ("0", "0x10", "unreadable"),
        ("0", "2^{-10^{12}}", "unreadable"),
        ("1 = 1", "x/x = 1", "unreadable"),
        ("3", "1 + 2 = 3", "equal"),
    ],
)
def test_what_a_new_user_met(gold: str, answer: str, kind: str) -> None:
    verdict = compare(gold, answer, {"n": "natural", "s": "vector[n]"})
    assert verdict.kind == kind
