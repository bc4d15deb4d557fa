"""Exact arithmetic against NumPy, and rounding against Decimal."""

import random
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from qkv.problems.exact import Scale, dot, exact, mixed, rounded, softmax, times, transposed, vector, written_out


def drawn(seed, rows, columns):
    draw = random.Random(seed)
    return exact([[Fraction(draw.randint(-9, 9), draw.randint(1, 5)) for _ in range(columns)] for _ in range(rows)])


@pytest.mark.parametrize("seed", range(8))
def test_products_are_those_of_fractions_one_by_one(seed):
    left, right = drawn(seed, 3, 5), drawn(seed + 100, 5, 2)
    slow = [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)] for row in left
    ]
    assert [list(row) for row in times(left, right)] == slow
    assert dot(left[0], left[1]) == sum(a * b for a, b in zip(left[0], left[1], strict=True))


def test_softmax_and_mixture_agree_with_numpy():
    scores = [Decimal("1.5"), Decimal(-2), Decimal(4)]
    powers = np.exp([1.5, -2, 4])
    assert [float(weight) for weight in softmax(scores)] == pytest.approx(powers / powers.sum(), rel=1e-14)
    rows = exact(((1, 2), (3, 4), (5, 7)))
    assert [float(e) for e in mixed(softmax(scores), rows)] == pytest.approx(
        powers / powers.sum() @ np.array([[1, 2], [3, 4], [5, 7]])
    )


def test_softmax_survives_scores_far_apart():
    weights = softmax([Decimal(0), Decimal(-100_000)])
    assert float(weights[0]) == 1
    assert weights[1] > 0


@pytest.mark.parametrize("width", range(1, 20))
def test_a_scale_is_one_over_the_root(width):
    scale = Scale.by_root(width)
    assert float(scale.value(Fraction(3))) == pytest.approx(3 / width**0.5, rel=1e-14)
    assert (scale.under == 1) == (int(width**0.5 + 0.5) ** 2 == width)


@pytest.mark.parametrize("seed", range(30))
def test_rounded_numbers_have_five_digits_and_the_right_value(seed):
    draw = random.Random(seed)
    value = Decimal(repr(draw.uniform(-1, 1))) * Decimal(10) ** draw.randint(-14, 6)
    text = rounded(value)
    mantissa, _, power = text.partition("*10^{")
    found = Decimal(mantissa).scaleb(int(power.rstrip("}") or 0))
    assert abs(found - value) <= abs(value) * Decimal("0.00005")
    assert len(mantissa.lstrip("-").lstrip("0.").replace(".", "")) <= 7


def test_texts():
    assert rounded(Decimal("9.999996")) == "10.000"
    assert vector((Fraction(-1, 2), Fraction(3))) == "(-1/2, 3)"
    assert written_out(exact([[2]])[0], exact([[-3]])[0]) == r"2 \cdot (-3)"
    assert transposed(exact(((1, 2), (3, 4)))) == exact(((1, 3), (2, 4)))
