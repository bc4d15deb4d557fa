"""examples/serve_and_call.py with a tiny model: it answers, and nothing runs afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.serving import write

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve_and_call.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, timeout=100)


@pytest.mark.slow
def test_a_tiny_model_is_served_called_and_stopped(tmp_path: Path) -> None:
    done = run(str(write(tmp_path)), "--tokens", "5")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("tiny at http://127.0.0.1:")
    assert lines.count("  (5 tokens)") == 3
    assert lines[-1] == "the server has stopped"


@pytest.mark.slow
def test_a_file_that_is_no_model_is_named_by_the_server(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(b"")
    done = run(str(path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("qkv: ")
    assert "Traceback" not in done.stderr
