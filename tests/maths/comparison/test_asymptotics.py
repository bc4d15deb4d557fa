"""Growth in several variables, against brute force along many directions."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from qkv.maths.comparison.asymptotics import (
    CONSTANT,
    NoRate,
    growth,
    outgrowing_direction,
    outgrowth,
    positive_direction,
)
from qkv.maths.comparison.verdict import compare
from qkv.maths.tree import Add, Call, Divide, Index, Multiply, Node, Number, Power, Sum, Symbol, Type

N, D, B = (Symbol((), name, Type("natural")) for name in "ndb")


I = Index((), "i", "n")  # noqa: E741


def number(value: int | str) -> Number:
    return Number((), Fraction(value))


def add(*terms: Node) -> Node:
    return Add((), terms)


def times(*factors: Node) -> Node:
    return Multiply((), factors)


def power(base: Node, exponent: int | str) -> Node:
    return Power((), base, number(exponent))


def call(name: str, *arguments: Node) -> Node:
    return Call((), name, arguments)


def same_rate(a: Node, b: Node) -> bool:
    return outgrowth(growth(a), growth(b)) is None and outgrowth(growth(b), growth(a)) is None


SAME = [
    (add(power(N, 2), N), times(number(3), power(N, 2))),
    (call("max", N, D), add(N, D)),
    (call("min", N, D), Divide((), times(N, D), add(N, D))),
    (add(power(N, 2), times(N, D), power(D, 2)), add(power(N, 2), power(D, 2))),
    (power(add(N, D), 2), add(power(N, 2), power(D, 2))),
    (Divide((), times(N, add(N, number(-1))), number(2)), power(N, 2)),
    (add(power(add(N, number(1)), 2), times(number(-1), power(N, 2))), N),
    (call("log", power(N, 3)), Divide((), call("log", N), call("log", number(2)))),
    (call("log", add(N, D)), add(call("log", N), call("log", D))),
    (call("sqrt", add(power(N, 2), N)), N),
    (add(Power((), number(2), N), power(N, 9)), Power((), number(2), N)),
    (Power((), number(2), add(N, number(5))), Power((), number(2), N)),
    (call("exp", times(number(2), N)), power(call("exp", N), 2)),
    (Divide((), add(times(N, D), power(D, 2)), D), add(N, D)),
    (number(7), number(1)),
    (Sum((), (I,), times(number(2), I)), power(N, 2)),
]
OTHER = [
    (times(power(N, 2), D), times(N, power(D, 2))),
    (N, times(N, D)),
    (times(N, call("log", N)), N),
    (call("log", N), power(N, "1/5")),
    (call("log", N), call("log", D)),
    (power(call("log", N), 2), call("log", N)),
    (Power((), number(2), N), Power((), number(3), N)),
    (Power((), number(2), N), power(N, 9)),
    (add(N, D), times(N, D)),
    (N, number(1)),
    (Power((), number(2), times(power(number(10), 9), N)), Power((), number(2), N)),
    (Divide((), N, D), N),
    (call("min", N, D), N),
]


@pytest.mark.parametrize("pair", SAME)
def test_the_same_rate(pair):
    assert same_rate(*pair)


@pytest.mark.parametrize("pair", OTHER)
def test_another_rate(pair):
    assert not same_rate(*pair)


@pytest.mark.parametrize(
    "node",
    [
        add(N, times(number(-1), D)),
        times(number(-1), N),
        Power((), N, D),
        Power((), number(2), times(N, D)),
        call("log", Divide((), N, D)),
        call("log", call("log", N)),
        call("sign", N),
        Sum((), (I,), Divide((), number(1), I)),
        add(power(N, 2), power(D, 2), times(number(-2), N, D)),
        add(call("max", N, D), times(number(-1), N)),
        add(call("sqrt", times(number(4), power(N, 2))), times(number(-1), N)),
        Power((), number(2), call("sqrt", times(number(4), power(N, 2)))),
    ],
)
def test_a_rate_that_cannot_be_told_is_refused(node):
    with pytest.raises(NoRate):
        outgrowth(growth(node), growth(N))


@pytest.mark.slow
def test_dominance_agrees_with_brute_force_on_rays():
    draw = random.Random(3)
    names = ("b", "d", "n")
    rays = [w for w in itertools.product(range(7), repeat=3) if any(w)]
    for _ in range(150):
        term, *others = [
            frozenset((name, Fraction(draw.randint(1, 3))) for name in names if draw.random() < 0.7) for _ in range(4)
        ]

        def along(w: tuple[int | Fraction, ...], one: frozenset[tuple[str, Fraction]]) -> Fraction:
            return sum((Fraction(w[names.index(name)]) * p for name, p in one), Fraction(0))

        brute = any(all(along(w, term) > along(w, other) for other in others) for w in rays)
        found = outgrowing_direction(term, others)
        assert (found is not None) >= brute
        if found is not None:
            w = tuple(found.get(name, Fraction(0)) for name in names)
            assert all(along(w, term) > along(w, other) for other in others)


def test_the_programme_finds_a_direction_or_there_is_none():
    draw = random.Random(11)
    for _ in range(200):
        width = draw.randint(1, 5)
        gaps = [[Fraction(draw.randint(-3, 3)) for _ in range(width)] for _ in range(draw.randint(1, 5))]
        found = positive_direction(gaps, width)
        grid = itertools.product(range(4), repeat=width) if width < 5 else ()
        if found is None:
            assert not any(all(sum(w * g for w, g in zip(ws, gap, strict=True)) > 0 for gap in gaps) for ws in grid)
        else:
            assert min(found) >= 0
            assert all(sum(w * g for w, g in zip(found, gap, strict=True)) > 0 for gap in gaps)


def test_a_definition_is_what_it_stands_for():
    model = Symbol((), "d_model", Type("natural", definition=times(N, D)))
    assert same_rate(power(model, 2), times(power(N, 2), power(D, 2)))
    one = Symbol((), "one", Type("natural", definition=number(1)))
    assert growth(one).top == {CONSTANT: 1}


@pytest.mark.parametrize(
    ("gold", "answer"), [("4^n", "2^{2n}"), ("9^n", "3^{2n}"), ("6^n", "2^n 3^n"), (r"\sqrt{2}^{2n}", "2^n")]
)
def test_exponential_rates_are_exact(gold, answer):
    assert compare(f"O({gold})", f"O({answer})", {}).kind == "equal"
    assert compare(f"O({gold})", f"O(n {answer})", {}).kind == "different"


def test_nothing_at_all_is_no_rate():
    verdict = compare("O(1)", "0", {})
    assert verdict.kind == "different"
    assert "0 throughout" in verdict.reason


def test_the_ratio_is_followed_until_it_moves():
    assert "1, 1, 1" not in compare(r"O(\min(n,512))", "O(n)", {}).reason


PLACES = {"n": "natural", "d": "natural", "g": "natural = 3", "u": "vector[n]", "x": "scalar"}
ALIKE, UNTOLD = "both grow at the same rate", "qkv cannot tell the growth: "


@pytest.mark.parametrize(
    ("gold", "answer", "kind", "reason"),
    [
        # A logarithm takes any power down to itself, and an exponential to its exponent.
        (r"\Theta(\log n)", r"\Theta(\log(n^{1000}))", "equal", ALIKE),
        (r"\Theta(\log n)", r"\Theta(\log(n^{2} d^{0}))", "equal", ALIKE),
        (r"\Theta(n)", r"\Theta(\log 2^n)", "equal", ALIKE),
        (r"O(\log(n d))", r"O(\log n + \log d)", "equal", ALIKE),
        # Constants
        ("O(1)", "O(5)", "equal", ALIKE),
        ("O(1)", r"O(\log 2)", "equal", ALIKE),
        ("O(g n)", "O(n)", "equal", ALIKE),
        ("O(n)", "2 n + 1", "equal", "it grows at the expected rate"),
        # Powers and exponentials
        ("O((n + d)^6)", "O(n^6 + d^6)", "equal", ALIKE),
        ("O((n + d)^7)", "O(n^7 + d^7)", "equal", ALIKE),
        ("O((n - 1)^6)", "O(n^6)", "equal", ALIKE),
        ("O((n - 1)^7)", "O(n^7)", "equal", ALIKE),
        ("O(n^2 - n)", "O(n^2)", "equal", ALIKE),
        ("O(4^n)", "O(2^{2n})", "equal", ALIKE),
        ("O(2^{n+1})", "O(2^n)", "equal", ALIKE),
        ("O(6^n)", "O(2^n 3^n)", "equal", ALIKE),
        (r"O(\sqrt{2}^n)", "O(2^{n/2})", "equal", ALIKE),
        ("O((1/2)^n)", "O(2^{-n})", "equal", ALIKE),
        ("O((3/4)^n)", "O(3^n 2^{-2n})", "equal", ALIKE),
        (r"O(\exp(n))", r"O(\exp(2n)^{1/2})", "equal", ALIKE),
        (r"O(\max(n, d))", "O(n + d)", "equal", ALIKE),
        (r"O(\min(n, d))", "O(n d/(n + d))", "equal", ALIKE),
        (r"O(\sum_{i=1}^n i)", "O(n^2)", "equal", ALIKE),
        ("O(n - n)", "O(0)", "equal", ALIKE),
        # What is asked is not what is given.
        ("O(n)", r"\Theta(n)", "different", ("the rate is right, but O is expected and Θ is given: "
         "Θ is a bound from both sides, O is an upper bound only")),
        (r"\Omega(n)", "O(n)", "different", ("the rate is right, but Ω is expected and O is given: "
         "O is an upper bound only, Ω is a lower bound only")),
        (r"\Theta(n)", r"\Omega(n)", "different", ("the rate is right, but Θ is expected and Ω is given: "
         "Ω is a lower bound only, Θ is a bound from both sides")),
        ("n", "O(n)", "different", "a value is expected, and the answer only says how fast it grows"),
        ("O(n)", "u", "different", "a rate of growth is expected, and the answer is not a scalar"),
        ("O(n)", "0", "different",
         "the answer is 0 throughout, which is below every rate of growth, and the other is not"),
        ("O(0)", "n", "different",
         "the right one is 0 throughout, which is below every rate of growth, and the other is not"),
        # Directions
        ("O(n)", "O(n^2)", "different",
         "the answer grows faster: along n = 4, 16, 64 its ratio to the right one is 4, 16, 64"),
        ("O(n^2)", "O(n)", "different",
         "the answer grows slower: along n = 4, 16, 64 its ratio to the right one is 1/4, 1/16, 1/64"),
        ("O(n d)", "O(n + d)", "different",
         "the answer grows slower: along n = 4, 16, 64, d = 4, 16, 64 its ratio to the right one is 1/2, 1/8, 1/32"),
        ("O(n/d)", "O(n)", "different",
         "the answer grows faster: along d = 4, 16, 64 with n = 1 its ratio to the right one is 4, 16, 64"),
        (r"O(\sqrt n)", "O(n)", "different",
         "the answer grows faster: along n = 4, 16, 64 its ratio to the right one is 2, 4, 8"),
        # What cannot be told
        ("O(n - d)", "O(n)", "unreadable", UNTOLD + "a difference of terms of which neither outgrows the other"),
        ("O(n - d)", "O(n - d)", "equal", "both are the class of the same function"),
        ("O(n - d)", "n - d", "equal", "both are the class of the same function"),
        ("O(n - d)", r"\Theta(n - d)", "unreadable",
         UNTOLD + "a difference of terms of which neither outgrows the other"),
        (r"O(\log(n) - \log(n))", "O(1)", "unreadable", UNTOLD + "a difference of terms that may cancel"),
        (r"O(\sum_{i=1}^n i - n^2)", "O(1)", "unreadable", UNTOLD + "a difference of terms that may cancel"),
        (r"O(\log(1/n))", "O(n)", "unreadable", UNTOLD + "a logarithm of a quotient"),
        (r"O(\log\log n)", "O(n)", "unreadable", UNTOLD + "a logarithm of what may be small"),
        ("O(n^d)", "O(n)", "unreadable", UNTOLD + "a name to the power of a name"),
        ("O(2^{n^2})", "O(2^n)", "unreadable", UNTOLD + "an exponent that is not linear"),
        (r"O(\sum_{i=1}^n 1/i)", r"O(\log n)", "unreadable", UNTOLD + "a sum over an index that it divides by"),
        (r"O(\operatorname{sign}(n))", "O(n)", "unreadable", UNTOLD + "sign has no rate that qkv knows"),
        (r"O(u^T u)", "O(n)", "unreadable", UNTOLD + "it is not a sum of products of powers and logarithms"),
    ],
)  # fmt: skip
def test_verdicts_on_growth_and_what_they_say(gold: str, answer: str, kind: str, reason: str) -> None:
    verdict = compare(gold, answer, PLACES)
    assert (verdict.kind, verdict.reason) == (kind, reason)
    assert verdict.evidence in {"equal": ("proved", "tested"), "different": ("refuted",), "unreadable": (None,)}[kind]
    assert (verdict.evidence == "proved") == (verdict.certificate is not None)
    if "its ratio" in reason:
        assert verdict.counterexample is not None
        assert verdict.counterexample.point["n"] in (1, 64)


def test_the_three_classes_are_named():
    kinds = {"O": ("O(n)", "O is an upper bound only"), "Θ": (r"\Theta(n)", "Θ is a bound from both sides"),
             "Ω": (r"\Omega(n)", "Ω is a lower bound only")}  # fmt: skip
    for one, (gold, wanted) in kinds.items():
        for other, (answer, given) in kinds.items():
            verdict = compare(gold, answer, PLACES)
            reason = f"the rate is right, but {one} is expected and {other} is given: {given}, {wanted}"
            assert verdict.reason == (ALIKE if one == other else reason)


def test_small_powers_are_multiplied_out():
    # What is multiplied out keeps its coefficients, and so what cancels is seen.
    assert growth(raise_to(add(N, number(1)), 6)).exact
    assert len(growth(raise_to(add(N, number(1)), 6)).top) == 7
    assert not growth(raise_to(add(N, number(1)), 7)).exact
    assert len(growth(raise_to(add(N, number(1)), 7)).top) == 2


def raise_to(base: Node, exponent: int) -> Node:
    return Power((), base, number(exponent))


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        ("n^{0.0001} + \\log^{200} n", "\\log^{200} n", "different"),
        ("n^{200} + 1.0001^n", "n^{200}", "different"),
        ("\\log(1.0001^n)", "n", "equal"),
        ("\\log(1.0001^n)", "\\log n", "different"),
        ("\\frac{n}{\\log 1}", "n", "unreadable"),
        ("\\log(2n) - \\log n", "1", "unreadable"),
        ("2^{n+d}", "2^n + 2^d", "different"),
        ("n^2/d + n", "n^2/d", "different"),
        ("\\frac{n}{d} + d", "\\max(n/d, d)", "equal"),
    ],
)
def test_small_powers_large_bases_and_differences(gold, answer, kind):
    assert compare(f"O({gold})", f"O({answer})", {}).kind == kind


def test_sizes_that_only_the_answer_has_are_renamed_or_unread():
    verdict = compare("O(n^2 d)", "O(m^2 d)", {"d": "natural"})
    assert (verdict.kind, verdict.condition, verdict.renaming) == ("conditional", "m means n", (("m", "n"),))
    assert compare("O(n d)", "O(a b)", {}).kind == "unreadable"
    assert compare("O(n^2)", "O(m)", {}).kind == "unreadable"
    assert compare("O(n^2)", "O(m)", {"m": "natural"}).kind == "different"
    assert compare("O(n^2)", "O(n d)", {}).kind == "different"
