"""Labelled chats: what was right is not called wrong, and what was wrong does not pass."""

import pytest

from tests.helpers.labelled_chats import RULES, chats, compared, counted, false_accusation, graded, passed

LEAST_RIGHT = {False: 7, True: 24}  # of 122 rows: on the questions as the students put them, and on the bank's


@pytest.mark.slow
@pytest.mark.parametrize("bank", [False, True], ids=["own questions", "the bank's"])
@pytest.mark.parametrize("label", [pytest.param(each, id=each["path"].name) for each in chats()])
def test_no_false_accusation_and_nothing_passed(label, bank):
    for part, labelled, found in compared(label, bank):
        assert not false_accusation(labelled, found), (part, labelled, found)
        assert not passed(labelled, found), (part, labelled, found)


@pytest.mark.parametrize("label", [pytest.param(each, id=each["path"].name) for each in chats()])
def test_no_rule_is_said_to_be_broken_that_was_kept(label):
    broken = {rule.name for rule in graded(label["path"]).rules if rule.broken}
    assert broken <= {RULES[name] for name in label["rules_broken"]}


@pytest.mark.parametrize("bank", [False, True], ids=["own questions", "the bank's"])
def test_how_many_rows_come_out_right(bank):
    counts = counted(bank)
    print(dict(counts))
    assert counts["rows"] == 122
    assert counts["right"] >= LEAST_RIGHT[bank]
