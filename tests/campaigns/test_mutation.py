"""The fork server and the mutants of a small package: one is detected, one survives, one hangs; the targets exist."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from campaigns.mutation import record
from campaigns.mutation.mutants import Mutant, mutants_of, sample
from campaigns.mutation.record import RECORD, interval
from campaigns.mutation.targets import TARGETS

ROOT = Path(__file__).parents[2]
TOY = '''"""Counts down."""


def down(n: "int" = 3) -> list[int]:
    found = []
    while n > 0:
        found.append(n)
        n -= 1
    return found


def never(words: str) -> int:
    return 7


def twice(n):
    """
    >>> twice(3)
    6
    """
    return 2 * n
'''
TESTS = """from toy import down


def test_down():
    assert down(2) == [2, 1]


def test_that_is_slow():
    assert down(1) == [1]
"""
INI = "[pytest]\naddopts = --doctest-modules --import-mode=importlib\n"
PROGRAM = """
import json, sys
from pathlib import Path
from campaigns.mutation import server

root, changes = Path(sys.argv[1]), json.loads(sys.argv[2])
server.SECONDS = 1.0
server.warm_up(["pytest"])
tests = ["tests/test_toy.py::test_down", "tests/test_toy.py::test_that_is_slow", "src/toy/__init__.py::toy.twice"]
for code in changes:
    outcome = server.run_tests(root, tests, {root / "src" / "toy" / "__init__.py": code}, 0.0)
    print(json.dumps([outcome.kind, outcome.by]))
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    for name, text in (("src/toy/__init__.py", TOY), ("tests/test_toy.py", TESTS), ("pytest.ini", INI)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def changed_to(mutants: list[Mutant], toy: Path, line: str) -> Mutant:
    (found,) = [mutant for mutant in mutants if mutant.lines(toy)[1] == line]
    return found


@pytest.mark.slow
def test_a_mutant_is_detected_survives_or_hangs(toy: Path):
    mutants = mutants_of(toy, "src/toy/__init__.py")
    wanted = {
        "found = None": ["killed", "tests/test_toy.py::test_down"],
        "return 8": ["survived", ""],
        "n += 1": ["timeout", ""],
        "return 2 / n": ["killed", "src/toy/__init__.py::toy.twice"],  # by a doctest of the changed file
    }
    changes = [TOY, *(changed_to(mutants, toy, line).applied(toy) for line in wanted)]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(toy), json.dumps(changes)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert [json.loads(line) for line in ended.stdout.splitlines()] == [["survived", ""], *wanted.values()]


def test_what_has_no_behaviour_is_left_alone(toy: Path):
    changed = {mutant.lines(toy) for mutant in mutants_of(toy, "src/toy/__init__.py")}
    assert ('def down(n: "int" = 3) -> list[int]:', 'def down(n: "int" = 4) -> list[int]:') in changed
    assert not [now for _, now in changed if "Counts" in now or '"XXintXX"' in now]


def test_a_sample_is_the_beginning_of_a_larger_one(toy: Path):
    mutants = mutants_of(toy, "src/toy/__init__.py")
    few, many = sample(mutants, 3, 1, toy), sample(mutants, 6, 1, toy)
    assert few == many[:3]
    assert len(set(many)) == 6
    assert few != sample(mutants, 3, 2, toy)


def test_the_interval_of_a_share():
    """Wilson's interval of 8 in 10, from a published table."""
    low, high = interval(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.49, 0.943)
    assert interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("name", TARGETS)
def test_paths_of_a_target_exist(name: str):
    target = TARGETS[name]
    assert [path for path in (*target.files, *target.tests) if not (ROOT / path).exists()] == []
    assert target.files_in(ROOT)


def test_the_record_has_every_target():
    assert set(json.loads(RECORD.read_text(encoding="utf-8"))) == set(TARGETS)


def test_every_survivor_of_the_record_is_in_a_file_that_exists():
    for name, entry in json.loads(RECORD.read_text(encoding="utf-8")).items():
        assert {one["file"] for one in entry["survivors"] if not (ROOT / one["file"]).exists()} == set()
        assert entry["gone"] + len(entry["survivors"]) == entry["run"] - entry["killed"], name


def test_survivors_in_files_that_are_gone_are_counted_only(tmp_path, monkeypatch):
    (tmp_path / "here.py").touch()
    kept = {"file": "here.py", "why": "equivalent"}
    entry = {"gone": 2, "survivors": [kept, {"file": "gone.py", "why": "equivalent"}]}
    record_file = tmp_path / "record.json"
    record_file.write_text(json.dumps({"inputs": entry}), encoding="utf-8")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(record, "RECORD", record_file)
    record.prune()
    assert json.loads(record_file.read_text(encoding="utf-8")) == {"inputs": {"gone": 3, "survivors": [kept]}}
