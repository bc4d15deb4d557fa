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


DEFINED = {
    "q": "vector[2] = (1,2)",
    "d": "natural = 3",
    "s": "vector[d] = (2, 8, -20)",
    "A": "matrix[2,3] = [[0.2, 0.3, 0.5], [1/3, 1/3, 1/3]]",
    "V": "matrix[3,2] = [[1, 2], [3, 5], [7, 11]]",
    "x": "vector[2]",
}


@pytest.mark.parametrize(
    ("gold", "answer", "kind"),
    [
        ("softmax([2,8,-20])", "[0.00247, 0.99753, 6.90e-13]", "equal"),
        ("softmax([2,8,-20])", r"(0.0025, 0.998, 6.9 \times 10^{-13})", "equal"),
        ("softmax([2,8,-20])", "[0.00248, 0.99753, 6.90e-13]", "different"),
        ("softmax([2,8,-20])", "[0.00247, 0.99753, 6.91e-13]", "different"),
        ("softmax(s)", "[0.00247, 0.99753, 6.90e-13]", "equal"),
        (r"\sum_i s_i/d", "-3.33", "equal"),
        (r"\sum_i s_i/d", "-3.34", "different"),
        ("A V", "[[4.6, 7.4], [3.67, 6.0]]", "equal"),
        ("A V", "[[4.6, 7.4], [3.67, 6.1]]", "different"),
        ("(A V)^T", "[[4.6, 3.667], [7.4, 6]]", "equal"),
        ("(A V)^T", "[[4.6, 7.4], [3.667, 6]]^T", "equal"),
        ("[[1, 1/3], [2/3, 2]] [3, 1]", "(3.33, 4.0)", "equal"),
        (r"\|q\|", "2.236", "equal"),
        (r"q/\|q\|", "(0.447, 0.894)", "equal"),
        (r"q/\|q\|", "(0.447, 0.895)", "different"),
        ("q", "(1.0, 2.00)", "equal"),
        ("q + x", "(1.0, 2.00)", "different"),
    ],
)
def test_what_is_computed_is_compared_entry_by_entry(gold, answer, kind):
    assert compare(gold, answer, DEFINED).kind == kind
    assert compare(answer, gold, DEFINED).kind == kind


def test_the_entry_that_is_off_is_named():
    verdict = compare("softmax(s)", "[0.00247, 0.9975, 6.91e-13]", DEFINED)
    assert verdict.reason.startswith("entry 3: ")
    assert "6.91" in verdict.reason


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


def test_the_digits_that_were_given_are_shown():
    reason = compare("1/7", "0.142857142858", {}).reason
    assert "does not round to 0.142857142858" in reason
    assert "1.41421357" in compare(r"\sqrt 2", "1.41421357", {}).reason
