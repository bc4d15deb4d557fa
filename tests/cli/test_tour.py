"""`qkv tour`: it is fast, its results are right, it fits 80 columns, and it has JSON."""

import importlib
import json
import subprocess
import sys

import pytest

from tests.helpers.cli_calls import called


def run(*words: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from qkv.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)


def test_it_shows_the_worked_example_in_80_columns() -> None:
    done = called("tour")
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    for words in (
        "2, 8, −20",
        "(−1, 0, −2)",
        "(−7.94, 0.0668)",
        "(−7.27, 0.819)",
        "argmax",
        "■ ■ ■ ■ · ·",
        "-> native",
    ):
        assert words in done.stdout


@pytest.mark.slow
def test_json_is_json_and_nothing_else() -> None:
    done = run("tour", "--json")
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["example"]["scores"][2] == [2, 8, -20]
    assert set(numbers["example"]["similarities"]) >= {"softmax", "argmax"}
    assert numbers["choice"]["backend"] == "native"


@pytest.mark.slow
def test_help_has_an_example_and_needs_no_torch() -> None:
    done = run("tour", "--help")
    assert "Example: qkv tour" in done.stdout
    code = "import sys; from qkv.cli import app; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_version_and_wrong_words() -> None:
    assert run("--version").stdout.startswith("qkv 0.")
    for words in (["touur"], ["tour", "--jsn"]):
        done = run(*words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error() -> None:
    code = "from qkv.cli import main; main()"
    done = subprocess.run(
        f"{sys.executable} -c '{code}' tour --json | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Traceback" not in done.stderr


def test_a_step_of_an_installed_model(tmp_path, monkeypatch):
    from tests.helpers.runtime_files import build, write_gguf

    tour = importlib.import_module("qkv.cli.tour")
    monkeypatch.setattr(tour.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    assert tour.installed_model() is None
    assert "pip install" in tour.model_step(None)["missing"]
    path = write_gguf(build("llama"), tmp_path / "model.gguf")
    assert tour.installed_model() == path
    assert "does not run here" in tour.model_step(path)["missing"], "a file without a vocabulary"
    monkeypatch.undo()
    found = tour.model_step(write_gguf(build("llama"), path, vocabulary=True))
    assert (found["file"], found["model"]) == ("model.gguf", "llama, 3 layers, weights in f32")
    assert found["text"]
    assert found["step_ms"] > 0
