"""The fork server and the mutants of a toy: one is noticed, one lives, one hangs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from campaigns.mutation.mutants import Mutant, mutants_of, sample
from campaigns.mutation.record import interval

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


def test_a_mutant_is_noticed_lives_or_hangs(toy: Path):
    mutants = mutants_of(toy, "src/toy/__init__.py")
    wanted = {
        "found = None": ["killed", "tests/test_toy.py::test_down"],
        "return 8": ["survived", ""],
        "n += 1": ["timeout", ""],
        "return 2 / n": ["killed", "src/toy/__init__.py::toy.twice"],  # by an example in the file that is changed
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
    """Wilson's, as in every table of it: 8 of 10."""
    low, high = interval(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.49, 0.943)
    assert interval(0, 0) == (0.0, 1.0)
