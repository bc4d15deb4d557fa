"""`python -m qkv` is the command."""

import subprocess
import sys

import qkv


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "qkv", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["qkv", qkv.__version__]
