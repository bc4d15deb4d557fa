"""The table of faults has 52 rows, and each has tests here under its number and a probe in benchmarks/trust."""

import ast
import re
from pathlib import Path

import pytest

from benchmarks.trust.rows import rows

ROWS = range(1, 53)


def numbers_in(name):
    """Of test_row_07_… and of test_rows_03_and_08_…."""
    found = re.match(r"test_rows?_(\d\d(?:_and_\d\d)*)_", name)
    return [int(number) for number in re.findall(r"\d\d", found[1])] if found else []


def named_by_row():
    found = {number: [] for number in ROWS}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for number in numbers_in(node.name):
                    found[number].append(f"{path.name}::{node.name}")
    return found


TESTS = named_by_row()


@pytest.mark.parametrize("number", ROWS)
def test_a_row_has_tests_of_its_number(number):
    assert TESTS[number], f"no test in tests/faults is called test_row_{number:02}_…"


def test_numbers_are_read_off_names():
    assert numbers_in("test_row_07_infinite") == [7]
    assert numbers_in("test_rows_03_and_08_scores") == [3, 8]
    assert numbers_in("test_row_7_infinite") == []


def test_every_row_has_one_probe():
    assert list(rows()) == list(ROWS)
    for number, row in rows().items():
        assert row.number == number
        assert 0 < len(row.title) <= 44, row.title
