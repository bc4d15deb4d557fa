"""Decimals are rounded to the digits shown; everything else is exact."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest

from qkv.maths.comparison.rounding import (
    WrittenNumber,
    compare_numbers,
    has_decimals,
    is_numeric,
    mark_rounded,
    matching_evidence,
    unit_of,
    written_numbers,
    written_units,
)
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse


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


def test_decimals_with_names_are_exact():
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


@pytest.mark.parametrize(
    ("gold", "answer", "evidence", "reason"),
    [
        ("0.667", "2/3", "tested", "2/3 rounds to 0.667"),
        ("2/3", "0.667", "tested", "2/3 rounds to 0.667"),
        ("0.66", "2/3", "refuted", "2/3 does not agree with 0.66 in the digits shown"),
        ("2/3", "0.66", "refuted", "the right value is 2/3, which does not round to 0.66"),
        ("0.5", "0.5", "proved", "the numbers are the same"),
        ("1/2", "0.5", "proved", "the numbers are the same"),
        ("3", "3.0", "proved", "the numbers are the same"),
        ("1.41", r"\sqrt 2", "tested", "1.41421 rounds to 1.41"),
        (r"\sqrt 2", "1.4142136", "tested", "1.41421 rounds to 1.4142136"),
        ("1.41", "1.414", "tested", "1.414 and 1.41 agree in the digits that both show"),
        ("1.41", "1.42", "refuted", "1.42 does not agree with 1.41 in the digits shown"),
        (r"\sqrt 2", "2^{0.5}", "tested", "1.41421 to 40 digits"),
        (r"\sqrt 2", "2^{0.6}", "refuted", "the right value is 1.41421, not 1.51572"),
        ("-1/3", "-0.333", "tested", "−1/3 rounds to −0.333"),
        ("(1/3, 2/3)", "(0.33, 0.67)", "tested", "entry 1: 1/3 rounds to 0.33"),
        ("(1/3, 2/3)", "(0.33, 0.66)", "refuted", "entry 2: the right value is 2/3, which does not round to 0.66"),
        ("(0.5, 1/3)", "(1/2, 0.333)", "tested", "entry 2: 1/3 rounds to 0.333"),
        ("10^{-12}/3", "3.3e-13", "tested", "1/3000000000000 rounds to 3.3e−13"),
        ("10^{-12}/3", "3.4e-13", "refuted", "the right value is 3.33333e−13, which does not round to 3.4e−13"),
        ("1/3", r"\approx 0.3", "tested", "1/3 rounds to 0.3"),
    ],
)
def test_what_is_said_of_two_numbers(gold, answer, evidence, reason):
    verdict = compare(gold, answer, {})
    assert (verdict.evidence, verdict.reason) == (evidence, reason)
    assert verdict.kind == ("different" if evidence == "refuted" else "equal")
    assert (verdict.counterexample is not None) == (evidence == "refuted")


def test_the_counterexample_of_two_numbers_is_both_of_them():
    wrong = compare("(1/3, 2/3)", "(0.33, 0.66)", {}).counterexample
    assert wrong is not None
    assert (wrong.point, wrong.gold, wrong.answer) == ({}, "2/3", "0.66")


def test_the_digits_of_an_entry():
    def unit(text):
        return None if text is None else Fraction(text)

    for text, units in (
        ("0.50", ["1/100"]),
        ("-0.5", ["1/10"]),
        ("1/2", [None]),
        ("7", [None]),
        ("(0.5, 1, 2.25)", ["1/10", None, "1/100"]),
        ("[[0.5, 1], [2.25, 3]]", ["1/10", None, "1/100", None]),
        ("[[0.5, 1], [2.25, 3]]^T", ["1/10", "1/100", None, None]),
        ("[[0.5, 1, 1.000], [2.25, 3, 4]]^T", ["1/10", "1/100", None, None, "1/1000", None]),
        ("(0.5, 1)^T", ["1/10", None]),
    ):
        assert written_units(parse(text, {})) == list(map(unit, units)), text
    assert written_units(parse("2 (0.5, 1)", {})) is None
    assert unit_of(mark_rounded(parse("12", {}))) == 1
    assert unit_of(mark_rounded(parse("1/2", {}))) is None
    assert unit_of(parse("-12", {})) is None


def test_readings_have_half_a_unit_to_spare():
    (reading,) = written_numbers(parse("0.50", {}))
    assert (reading.value, reading.slack, reading.exact, reading.text) == (
        Fraction(1, 2),
        Fraction(1, 200),
        True,
        "0.50",
    )
    (exact,) = written_numbers(parse("1/3", {}))
    assert exact == WrittenNumber(Fraction(1, 3), Fraction(0), True, "1/3")
    (root,) = written_numbers(parse(r"\sqrt 2", {}))
    assert not root.exact
    assert root.text == "1.41421"
    assert written_numbers(mark_rounded(parse("12", {})))[0] == WrittenNumber(Fraction(12), Fraction(1, 2), True, "12")
    assert [one.text for one in written_numbers(parse("(0.5, -1.25, 3)", {}))] == ["0.5", "−1.25", "3"]
    small = ("0.0000010", "0.00000010", "0")
    assert [written_numbers(parse(text, {}))[0].text for text in small] == ["0.0000010", "1.0e−7", "0"]


@pytest.mark.parametrize(
    ("gold", "answer", "found"),
    [
        (("1/2", 0), ("1/2", 0), "proved"),
        (("1/2", 0), ("1/3", 0), None),
        (("1/2", 0), ("0.55", "0.05"), "tested"),
        (("1/2", 0), ("0.56", "0.05"), None),
        (("0.5", "0.05"), ("0.45", 0), "tested"),
        (("0.5", "0.05"), ("0.6", "0.05"), None),
        (("0.5", "0.05"), ("0.59", "0.05"), "tested"),
        (("0.5", "0.05"), ("0.5", "0.05"), "proved"),
    ],
)
def test_what_matches(gold, answer, found):
    def reading(pair, exact=True):
        return WrittenNumber(Fraction(pair[0]), Fraction(pair[1]), exact, "")

    assert matching_evidence(reading(gold), reading(answer)) == found
    assert matching_evidence(reading(answer), reading(gold)) == found
    if found == "proved":
        assert matching_evidence(reading(gold, False), reading(answer)) == "tested"


def test_computed_numbers_have_a_tolerance_in_their_last_digits():
    near = Fraction(1, 2) + Fraction(1, 10**50)
    one, other = WrittenNumber(near, Fraction(0), False, ""), WrittenNumber(Fraction(1, 2), Fraction(0), True, "")
    assert matching_evidence(one, other) == matching_evidence(other, one) == "tested"
    far = WrittenNumber(Fraction(1, 2) + Fraction(1, 10**30), Fraction(0), False, "")
    assert matching_evidence(far, other) is None
    edge = WrittenNumber(Fraction(11, 20), Fraction(1, 20), True, "")
    over = WrittenNumber(Fraction(1, 2) - Fraction(1, 10**46), Fraction(0), False, "")
    assert matching_evidence(over, edge) == matching_evidence(edge, over) == "tested"
    assert matching_evidence(replace(over, exact=True), edge) is None


def test_what_is_numbers_throughout():
    names = {"x": "scalar", "s": "vector[2] = (1, 0.5)", "n": "natural", "u": "vector[n]"}
    assert is_numeric(parse("1 + s_1", names))
    assert not is_numeric(parse("x", names))
    assert not is_numeric(parse("n", names))
    assert not is_numeric(parse("s_i", names))
    assert has_decimals(parse("s_1 + 1", names))
    assert has_decimals(mark_rounded(parse("3", names)))
    assert not has_decimals(parse("1/2 + x", names))
    assert compare_numbers(parse("1", names), parse("2", names)) is None
    assert compare_numbers(parse("1.0", names), parse("x", names)) is None
    assert compare_numbers(parse("1.0/0", names), parse("1.0", names)) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [("1.5e3", "1.5e+3"), ("1.50e3", "1.50e+3"), ("1.500e3", "1500"), ("1.5e1", "15"), ("-2.5e4", "−2.5e+4")],
)
def test_a_number_with_a_unit_above_one_shows_the_digits_that_were_written(text, shown):
    (read,) = written_numbers(parse(text, {}))
    assert read.text == shown


def test_the_reason_names_a_large_decimal_as_it_was_written():
    assert compare("1.5e3", "1551", {}).reason == "1551 does not agree with 1.5e+3 in the digits shown"
