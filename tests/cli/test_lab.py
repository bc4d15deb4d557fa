"""The command `qkv lab`; tests/lab has the tests of the server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def lab(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qkv", "lab", "--no-browser", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_its_address_as_json() -> None:
    command = [sys.executable, "-m", "qkv", "lab", "--no-browser", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert said["address"].startswith("http://127.0.0.1:")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_models_must_be_in_a_folder(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    done = lab("--models", str(tmp_path / place))
    assert done.returncode == 2
    assert done.stderr.startswith("qkv: --models: got ")
    assert "Traceback" not in done.stderr


def test_help_has_an_example() -> None:
    done = lab("--help")
    assert done.returncode == 0
    assert "Example: qkv lab" in done.stdout
