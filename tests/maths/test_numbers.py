"""Decimals are rounded to the digits shown; everything else is exact."""

from __future__ import annotations

import random
from decimal import ROUND_HALF_UP, Decimal

import pytest

from qkv.maths.verdict import compare


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("0.99753", "0.9975", True),
        ("0.99753", "0.998", True),
        ("0.99753", "0.99752", False),
        ("0.99753", "0.997", False),
        ("2/3", "0.667", True),
        ("2/3", "0.66", False),
        ("2/3", "2/3", True),
        ("2/3", "4/6", True),
        ("0.5", "1/2", True),
        ("1/2", "0.5", True),
        ("3", "4", False),
        ("-1/3", "-0.333", True),
        ("-1/3", "0.333", False),
        (r"\frac{e^8}{e^2+e^8+e^{-20}}", "0.99753", True),
        (r"\frac{e^8}{e^2+e^8+e^{-20}}", "0.9976", False),
        (r"6.90 \times 10^{-13}", "6.9e-13", True),
        (r"6.90 \times 10^{-13}", "6.8e-13", False),
        (r"\sqrt 2", r"\approx 1.414", True),
        (r"\sqrt 2", r"\approx 1.415", False),
        ("(1, 2/3)", "(1, 0.667)", True),
        ("(1, 2/3)", "(1, 0.66)", False),
        ("[1,4,3]", "(1,4,3)", True),
        ("(1,4,3)", "(1,3,4)", False),
        ("[[1,2],[3,4]]", "[1 2; 3 4]", True),
    ],
)
def test_digits(gold, answer, equal):
    verdict = compare(gold, answer, {})
    assert verdict.kind == ("equal" if equal else "different")
    assert compare(answer, gold, {}).kind == verdict.kind


def test_rounding_a_fraction_gives_an_equal_answer_and_the_next_digit_does_not():
    draw = random.Random(2)
    for _ in range(20):
        top, bottom, places = draw.randint(1, 400), draw.choice((7, 11, 13, 17)), draw.randint(2, 5)
        unit = Decimal(1).scaleb(-places)
        rounded = (Decimal(top) / bottom).quantize(unit, rounding=ROUND_HALF_UP)
        assert compare(f"{top}/{bottom}", str(rounded), {}).kind == "equal"
        assert compare(f"{top}/{bottom}", str(rounded + 2 * unit), {}).kind == "different"


def test_evidence_and_the_digits_in_the_reason():
    assert compare("0.5", "1/2", {}).evidence == "proved"
    match = compare("2/3", "0.667", {})
    assert match.evidence == "tested"
    assert "0.667" in match.reason
    miss = compare("2/3", "0.66", {})
    assert miss.evidence == "refuted"
    assert "2/3" in miss.reason


def test_decimals_beside_names_are_exact():
    symbols = {"d": "natural"}
    assert compare("d/2", "0.5 d", symbols).evidence == "proved"
    assert compare("d/3", "0.33 d", symbols).kind == "different"
    assert compare("d/3", r"\approx 0.33 d", symbols).evidence == "tested"
    assert compare("d/3", r"x = d/3 \approx 0.33 d", symbols).evidence == "tested"
    assert compare("d/3", r"\approx 0.34 d", symbols).kind == "different"
