"""Verdicts: the eleven rows of the probe, then every rule, by property where there is one."""

from __future__ import annotations

import itertools
import json
import random
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import OptionError, OptionTypeError
from qkv.maths.comparison.verdict import Verdict, compare, equal

PROBES = tomllib.loads((Path(__file__).parent / "probes.toml").read_text(encoding="utf-8"))
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
def test_the_reason_is_one_line_and_the_carets_are_beside_it(gold, answer):
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
    wrong_before = compare(r"\mu^T\mu", r"d\sigma = \|\mu\|^2", SCORE)
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
            assert (verdict.kind, verdict.evidence) == ("equal", "proved")
    for one, other in itertools.permutations(RATES, 2):
        verdict = compare(one[0], other[-1], {})
        assert (verdict.kind, verdict.evidence) == ("different", "refuted")
        assert "ratio" in verdict.reason


def test_rates_against_values_and_other_bounds():
    assert compare("O(N^2 d)", "2 N^2 d", SCORE).reason == "it grows at the rate that is asked"
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
