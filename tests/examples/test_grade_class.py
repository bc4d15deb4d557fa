"""examples/grade_class.py: the chats that it writes are graded as they were written."""

import csv
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "grade_class.py"


def test_the_class_is_graded(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--out", str(tmp_path)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    with (tmp_path / "summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {(row["chat"].removesuffix(".txt"), row["part"]): row for row in rows}
    assert len(found) == len(rows) == 15
    once = {("ben", "1(a)"), ("cem", "1(b)"), ("cem", "1(c)"), ("dua", "1(a)"), ("dua", "1(c)")}
    assert {key for key, row in found.items() if row["status"] != "one shot"} == once
    assert {found["dua", part]["status"] for part in ("1(a)", "1(c)")} == {"never right"}
    assert found["ben", "1(a)"]["error"] == "mean read as a scalar"
    assert (found["ben", "1(a)"]["right in turn"], found["ada", "1(a)"]["right in turn"]) == ("4", "2")
    page = (tmp_path / "class.html").read_text(encoding="utf-8")
    assert "divided by the variance" in page
    assert "cem.txt, dua.txt" in page
    assert "summary.csv" in capsys.readouterr().out
