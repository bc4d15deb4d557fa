"""`qkv calibrate`: figures are measured once, stored and printed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qkv.cli import app
from qkv.cost.machine import Machine, calibration_path
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
    prices = {"attend": Price(1e-5, 1e-11, 0)}
    made = replace(Machine.built_in(), taken="2026-11-16", roofs=FIGURES, prices=prices, errors={"attend": 0.08})
    monkeypatch.setattr(Machine, "measure", classmethod(lambda cls, progress=None: made))
    return made


def test_figures_are_kept_and_shown(machine: Machine) -> None:
    made = CliRunner().invoke(app, ["calibrate"])
    assert made.exit_code == 0, made.output
    assert str(calibration_path()) in made.output.replace("\n", "")
    assert Machine.stored() == machine
    shown = CliRunner().invoke(app, ["calibrate", "--show"])
    assert shown.exit_code == 0
    for words in ("20 GB/s", "200 GFLOP/s", "1.5 µs", "1.90 x", "attend", "8%"):
        assert words in shown.output, words
    assert all(len(line) <= 80 for line in shown.output.splitlines() if str(calibration_path()) not in line)


def test_json_has_every_figure(machine: Machine) -> None:
    made = CliRunner().invoke(app, ["calibrate", "--json"])
    found = json.loads(made.stdout)
    assert found["roofs"] == FIGURES
    assert found["prices"]["attend"]["flop"] == 1e-11
    assert found["memory_bytes"] == machine.memory_bytes


def test_nothing_to_show_is_said(machine: Machine) -> None:
    shown = CliRunner().invoke(app, ["calibrate", "--show"])
    assert shown.exit_code != 0
    assert "qkv calibrate" in str(shown.exception)


def test_ranks_that_were_measured(monkeypatch, tmp_path, capsys):
    import json
    import sys

    from qkv.cli import main
    from qkv.cost.communication import Link, Point
    from qkv.profiling import ranks

    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    points = [Point("ring", 1, 512, 0.5, 0), Point("ring", 2, 512, 0.25, 4096, link=Link(1e9, 1e-5, 3e10, ranks=2))]
    monkeypatch.setattr(ranks, "measure_ranks", lambda most: points if most == 2 else [])

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["qkv", "calibrate", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    code, _, err = command("--ranks", "2", "--show")
    assert code == 2
    assert "--ranks 4" in err
    code, out, _ = command("--ranks", "2")
    assert code == 0
    for word in ("512 tokens", "× 2.00", "2 ranks: 1 GB/s", "stored in"):
        assert word in out
    code, out, _ = command("--ranks", "2", "--show", "--json")
    assert [point["seconds"] for point in json.loads(out)["points"]] == [0.5, 0.25]
    assert command("--ranks", "1")[0] == 2
