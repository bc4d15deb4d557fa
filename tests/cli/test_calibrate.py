"""`qkv calibrate`: figures are measured once, kept, and shown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qkv.cli import app
from qkv.cost.machine import Machine, path
from qkv.cost.price import Price

FIGURES = {
    "read.memory": 2e10,
    "multiply.float32.square": 2e11,
    "call": 1.5e-6,
    "threads.read": 1.9,
    "exponential": 6e9,
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "new" / "folder"))
    prices = {"attend": Price(1e-5, 0, 1e-11, 0, 0, 0, 0)}
    made = replace(Machine.built_in(), taken="2026-11-16", roofs=FIGURES, prices=prices, errors={"attend": 0.08})
    monkeypatch.setattr(Machine, "measure", classmethod(lambda cls, progress=None: made))
    return made


def test_figures_are_kept_and_shown(machine: Machine) -> None:
    made = CliRunner().invoke(app, ["calibrate"])
    assert made.exit_code == 0, made.output
    assert str(path()) in made.output.replace("\n", "")
    assert Machine.stored() == machine
    shown = CliRunner().invoke(app, ["calibrate", "--show"])
    assert shown.exit_code == 0
    for words in ("20 GB/s", "200 GFLOP/s", "1.5 µs", "1.90 x", "attend", "8%"):
        assert words in shown.output, words
    assert all(len(line) <= 80 for line in shown.output.splitlines() if str(path()) not in line)


def test_json_has_every_figure(machine: Machine) -> None:
    made = CliRunner().invoke(app, ["calibrate", "--json"])
    found = json.loads(made.stdout)
    assert found["roofs"] == FIGURES
    assert found["prices"]["attend"]["product"] == 1e-11
    assert found["memory_bytes"] == machine.memory_bytes


def test_nothing_to_show_is_said(machine: Machine) -> None:
    shown = CliRunner().invoke(app, ["calibrate", "--show"])
    assert shown.exit_code != 0
    assert "qkv calibrate" in str(shown.exception)
