"""Answers that people who had not seen the checker wrote and labelled, to the documents' own questions."""

import tomllib
from pathlib import Path

import pytest

from qkv import problems

pytestmark = pytest.mark.slow

FILES = sorted((Path(__file__).parent / "labelled").glob("*.toml"))
ENTRIES = [entry for path in FILES for entry in tomllib.loads(path.read_text(encoding="utf-8"))["answer"]]


@pytest.fixture(scope="module")
def bank():
    return problems.bank()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_answers_are_judged_as_labelled(bank, entry):
    outcome = bank[entry["problem"]].check(entry["part"], entry["answer"])
    assert outcome.kind == entry["kind"], str(outcome)
    if "misconception" in entry:
        assert entry["misconception"] in outcome.misconceptions
