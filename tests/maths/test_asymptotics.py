"""Growth in several variables, against brute force along many rays."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from qkv.maths.asymptotics import CONSTANT, NoRate, growth, outgrowth, ray
from qkv.maths.dominance import direction
from qkv.maths.tree import Add, Call, Divide, Index, Multiply, Node, Number, Power, Sum, Symbol, Type
from qkv.maths.verdict import compare

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
        found = ray(term, others)
        assert (found is not None) >= brute
        if found is not None:
            w = tuple(found.get(name, Fraction(0)) for name in names)
            assert all(along(w, term) > along(w, other) for other in others)


def test_the_programme_finds_a_direction_or_there_is_none():
    draw = random.Random(11)
    for _ in range(200):
        width = draw.randint(1, 5)
        gaps = [[Fraction(draw.randint(-3, 3)) for _ in range(width)] for _ in range(draw.randint(1, 5))]
        found = direction(gaps, width)
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
    assert compare(f"O({gold})", f"O({answer})", {}).evidence == "proved"
    assert compare(f"O({gold})", f"O(n {answer})", {}).kind == "different"


def test_nothing_at_all_is_no_rate():
    verdict = compare("O(1)", "0", {})
    assert verdict.kind == "different"
    assert "0 throughout" in verdict.reason


def test_the_ratio_is_followed_until_it_moves():
    assert "1, 1, 1" not in compare(r"O(\min(n,512))", "O(n)", {}).reason
