"""Differences that no fixed number of digits shows, and noise that looks like one."""

from __future__ import annotations

import pytest

from qkv.maths.verdict import compare

SYMBOLS = {"x": "scalar", "y": "positive"}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("e^{-200}", "0"),
        ("e^{-1000}", "e^{-2000}"),
        ("1 + e^{-200} x", "1"),
        ("e^{1000}", "e^{1000} + 1"),
        ("(1 + 10^{-20})^{1/2}", "1 + 10^{-20}/2"),
        (r"\max(e^{-200}, 0)", "0"),
    ],
)
def test_what_stays_with_more_digits_is_a_difference(gold, answer):
    verdict = compare(gold, answer, SYMBOLS)
    assert (verdict.kind, verdict.evidence) == ("different", "refuted")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\max(\sqrt{2y} - \sqrt 2\sqrt y, -1)", "0"),
        (r"|\log(y^2) - 2\log y| + 1", "1"),
        (r"\max(e^{-200 x^2}, 0)", "e^{-200 x^2}"),
    ],
)
def test_what_shrinks_with_more_digits_is_none(gold, answer):
    assert compare(gold, answer, SYMBOLS).kind != "different"


def test_where_digits_run_out_nothing_is_said():
    verdict = compare("e^{100000}", "e^{100000} + 1", {})
    assert (verdict.kind, verdict.evidence) == ("unreadable", None)
    assert "digits" in verdict.reason


def test_values_that_look_the_same_are_told_apart():
    assert "which differ by 1.00" in compare("e^{1000}", "e^{1000} + 1", {}).reason
    assert "1 against 1.00000000000001" in compare("1", "1 + 10^{-14} \\cdot \\sqrt{1}", {}).reason.replace(
        "100000000000001/100000000000000", "1.00000000000001"
    )
