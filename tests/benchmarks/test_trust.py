"""`make trust` judges as it says: qkv is right on cheap rows, and crashes, hangs and wrong answers are counted."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.trust import page, runner, table
from benchmarks.trust.rows import rows
from benchmarks.trust.runner import run_subject
from benchmarks.trust.subjects import all_subjects, named
from benchmarks.trust.verdict import CRASH, MARKS, NONE, RIGHT, WRONG, Wrong, close, each, refused
from benchmarks.trust.worker import judge
from tests.helpers import trust_fakes

CHEAP = (1, 2, 5, 6, 11, 13, 14, 17, 18, 20, 28, 30, 31, 36, 39, 41, 43)
ROWS = rows()


@pytest.mark.parametrize("number", CHEAP)
def test_qkv_is_right_on_cheap_rows(number: int) -> None:
    result = judge(ROWS[number], named("qkv"))
    assert result["verdict"] == RIGHT, result["seen"]
    assert result["seen"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fake", "verdict", "words", "processes"),
    [
        ("ABORTS", CRASH, "SIGABRT", 2),
        ("LEAVES", CRASH, "ended with 0", 2),
        ("HANGS", CRASH, "no answer in 10 s", 2),
        ("ERRS", WRONG, "off by", 1),
    ],
)
def test_a_crash_a_hang_and_a_wrong_answer_are_counted(
    fake: str, verdict: str, words: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 18 goes wrong; row 17 before and row 20 after it are judged all the same, in a new process where needed."""
    started: list[str] = []
    begin = runner.Worker.__init__
    monkeypatch.setattr(runner.Worker, "__init__", lambda self, name: (started.append(name), begin(self, name))[1])
    results = run_subject(f"tests.helpers.trust_fakes:{fake}", [ROWS[number] for number in (17, 18, 20)], limit=10)
    found = {row.number: result for row, result in results}
    assert {number: result["verdict"] for number, result in found.items()} == {17: RIGHT, 18: verdict, 20: RIGHT}
    assert words in found[18]["seen"]
    assert len(started) == processes


def test_an_error_where_a_result_is_due_is_wrong_and_nothing_offered_is_not_counted() -> None:
    assert judge(ROWS[18], trust_fakes.Raises()) == {
        "verdict": WRONG,
        "seen": "default: raised KeyError: 'unexpected'",
    }
    assert judge(ROWS[18], trust_fakes.OffersNothing())["verdict"] == NONE


def test_refusals_differ_from_unexpected_errors_and_none() -> None:
    def raises(error: Exception) -> None:
        raise error

    assert refused(lambda: raises(ValueError("too large")), ValueError) == "refused: ValueError: too large"
    with pytest.raises(Wrong, match="unexpected KeyError"):
        refused(lambda: raises(KeyError("k")), ValueError)
    with pytest.raises(Wrong, match="without a message"):
        refused(lambda: raises(ValueError()), ValueError)
    with pytest.raises(Wrong, match="without an error"):
        refused(lambda: None)


def test_all_cases_of_a_row_are_tried() -> None:
    def wrong() -> None:
        raise Wrong("so")

    with pytest.raises(Wrong, match=r"a: so; c: raised ZeroDivisionError"):
        each({"a": wrong, "b": lambda: "fine", "c": lambda: str(1 // 0)})


def test_a_hidden_nan_and_one_too_many_are_both_seen() -> None:
    nan, one = torch.tensor([torch.nan, 1.0]), torch.tensor([1.0, 1.0])
    close(nan, nan, torch.float32)
    with pytest.raises(Wrong, match="hides NaN"):
        close(one, nan, torch.float32)
    with pytest.raises(Wrong, match="has NaN"):
        close(nan, one, torch.float32)
    with pytest.raises(Wrong, match="off by"):
        close(one + 1e-3, one, torch.float32)


def a_table() -> tuple[list, table.Found]:
    subjects = all_subjects()
    kinds = (RIGHT, WRONG, CRASH, NONE)
    return subjects, {
        subject.name: {n: {"verdict": kinds[(n + at) % 4], "seen": "a `b` | <c>"} for n in ROWS}
        for at, subject in enumerate(subjects)
    }


def test_the_table_fits_a_terminal() -> None:
    subjects, found = a_table()
    lines = table.printed(list(ROWS.values()), subjects, found).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line[:2].strip().isdigit() for line in lines) == 52
    assert len(table.counts(found)) == 6
    assert sum(table.counts(found)["qkv"].values()) == 39  # 13 of 52 are not offered


def test_the_files_are_as_others_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "COUNTS", tmp_path / "trust.json")
    monkeypatch.setattr(table, "DETAILS", tmp_path / "trust-rows.json")
    _, found = a_table()
    table.write(found, {"machine": {}, "versions": {}})
    counts = json.loads((tmp_path / "trust.json").read_text())
    assert set(counts) == {subject.name for subject in all_subjects()}
    assert all(set(each) == {"right", "wrong", "crash"} for each in counts.values())
    details = json.loads((tmp_path / "trust-rows.json").read_text())["rows"]
    assert set(details["qkv"]) == {str(number) for number in ROWS}


def test_the_page_names_all_that_went_wrong() -> None:
    subjects, found = a_table()
    about = {"versions": {"qkv": "qkv 0"}, "machine": {"python": "3", "cpu": "c", "torch_isa": "i"}}
    text = page.assembled(page.Facts(ROWS, subjects, found, about))
    assert "`make trust`" in text.splitlines()[2]
    assert text.count(f": {MARKS[WRONG]} a \\`b\\`") == sum(each["wrong"] for each in table.counts(found).values())
    assert text.count(f": {MARKS[CRASH]} a \\`b\\`") == sum(each["crash"] for each in table.counts(found).values())
