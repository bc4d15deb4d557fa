"""What is said of a ledger, and how far its grading is."""

from dataclasses import replace

import pytest

from qkv import tutor
from qkv.tutor.sample import sample
from qkv.tutor.telling import RULES, error_name, readable


@pytest.fixture(scope="module")
def ledger():
    return tutor.grade(tutor.read(sample()))


def test_claims_are_written_as_by_hand(ledger):
    said = [readable(ledger, row, claim.text) for row in ledger.rows for claim in row.claims]
    assert said == ["E[qᵀ k] = d μ²", "E[qᵀk] = ∑_{i=1}^d μ_i² = μᵀμ", "Var(qᵀk) = d", "s = d"]
    assert readable(ledger, ledger.rows[0], "long " * 40) == "long " * 40


def test_errors_and_rules_have_names(ledger):
    assert [error_name(error) for row in ledger.rows for error in row.errors] == [
        "mean read as a scalar", "divided by the variance"
    ]  # fmt: skip
    assert {rule.name for rule in ledger.rules} <= set(RULES)


def test_an_error_without_a_name_is_wrong_however_short_its_reason_is():
    stubborn = "**Student:** (b) is d, not 2d.\n\n**Tutor:** No: (b) is $2d$."
    found = tutor.grade(tutor.read(sample().replace("**Student:** Thanks, that settles it.", stubborn)))
    (error,) = next(row for row in found.rows if row.part == "b").errors
    assert (error_name(error), error.what) == ("wrong", "not the same: d = 2: 2 against 4")
    assert error_name(replace(error, kind="incomplete")) == "not all of it"
    assert error_name(replace(error, kind="conditional")) == "right only under a condition"
    assert error_name(replace(error, kind="false line")) == "a displayed line is false"


def test_grading_tells_how_far_it_is_and_can_be_ended():
    told = []
    tutor.grade(tutor.read(sample()), told=lambda done, of: told.append((done, of)))
    assert told == [(turn, 5) for turn in range(5)]

    def leave(done, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tutor.grade(tutor.read(sample()), told=leave)
