"""docs/extending.md: the family that it adds is complete, short, and works."""

import re
from pathlib import Path

import pytest

from qkv.exercises import bank

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"


@pytest.fixture
def blocks(monkeypatch):
    monkeypatch.setattr(bank, "_ADDED", {})
    section = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (mine,) = (each for each in section if "bank.register(" in each)
    return re.findall(r"```python\n(.*?)```", mine, re.DOTALL)


def test_the_page_runs(blocks, capsys):
    names = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    said = capsys.readouterr().out
    assert "'[[5, 5], [3, 1]]', '(11, 7)'" in said
    assert "states" in bank.names()
    assert len({bank.variant("states", seed).kind for seed in range(24)}) == 24
    names.clear()  # what the page registers keeps its globals, caches included, until the interpreter ends


def test_the_family_is_short(blocks):
    code = [line for line in blocks[0].splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(code) <= 150
