"""The example in the help of each command runs as it is printed."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

import qkv.cli.evaluate as command
from qkv.cli import app
from qkv.cost.machine import Machine
from qkv.cost.price import Price
from qkv.exercises import bank
from tests.helpers.cli_calls import called
from tests.helpers.examined_toy import mock
from tests.helpers.runtime_files import build, write_gguf
from tests.helpers.small_checkpoint import write

ROOFS = {"read.memory": 2e10, "multiply.float32.square": 2e11}
SERVERS = ("lab", "serve", "mcp")
SLOW = ("tour", "generate", "chat", "evaluate", "prove", *SERVERS)
CHAT = "Student: Problem 1. A layer has width 96 and 8 heads. What is the width of a head?\n\nTutor: Answer: 12\n"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
PRINTABLE = "".join(map(chr, range(32, 127)))


def examples() -> dict[str, list[str]]:
    group: Any = typer.main.get_command(app)
    found = {}
    for name, each in group.commands.items():
        text = (each.epilog or "").replace("\\[", "[")
        found[name] = re.findall(r"qkv .*", text)
    return found


def test_every_command_has_an_example() -> None:
    found = examples()
    assert all(found.values()), found
    assert all(shlex.split(call)[1] == name for name, calls in found.items() for call in calls)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    write(folder / "SmolLM2", max_position_embeddings=211)
    write(folder / "checkpoints" / "one", max_position_embeddings=211)
    model = build("llama", max_position_embeddings=101)
    write_gguf(model, folder / "model.gguf", vocabulary=PRINTABLE, tokenizer__chat_template=TEMPLATE)
    (folder / "logs").mkdir()
    (folder / "logs" / "chat.md").write_text(CHAT, encoding="utf-8")
    (folder / "homework.md").write_text("# 1\n\nA layer has width 96 and 8 heads. What is the width of a head?\n")
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in examples()]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of Inspect
def test_the_example_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("QKV_CACHE", str(folder / "cache"))
    figures = {"taken": "2026-11-16", "roofs": ROOFS, "prices": {"attend": Price(1e-5, 1e-11, 0)}}
    replace(Machine.built_in(), **figures, errors={"attend": 0.08}).store()
    model = mock([bank.named(each, seed) for each in ("scaling", "heads") for seed in range(1)], lambda *_: "(a) 4")
    monkeypatch.setattr(command, "model_named", lambda *_: model)
    for call in examples()[name]:
        words = ["0" if before == "--port" else word for before, word in pairwise(shlex.split(call))]  # any free port
        if name in SERVERS:
            _serves(words)
            continue
        monkeypatch.setattr(sys, "stdin", StringIO("Hello\n"))
        done = called(*words)
        assert done.returncode == 0 or name == "check", done.stderr
        assert done.stdout.strip()
        if name not in ("generate", "chat", "calibrate") and "--json" not in words:  # text of a model, or a path
            assert max(map(len, done.stdout.splitlines())) <= 80


def _serves(words: list[str]) -> None:
    """The server prints its address, and ends when it is told to."""
    more = ["--no-browser"] if words[0] == "lab" else []
    with subprocess.Popen([sys.executable, "-m", "qkv", *words, *more, "--json"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["address"].startswith("http://127.0.0.1:")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
