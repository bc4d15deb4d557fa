"""Wrong calls of all commands: one line that names the argument, what was given and what was expected."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
import typer

from qkv.cli import app
from qkv.cli.errors import exit_code, message
from qkv.errors import MissingExtra, OptionError, QkvError, ShapeError
from tests.helpers.cli_calls import called

FILES = {
    "empty.md": b"",
    "bad.json": b"{ not json",
    "bad.gguf": b"GGUF" + bytes(7),
    "text.gguf": b"a text of more than 24 bytes, and no model",
    "binary.pdf": b"\0\1\2 no PDF",
    "chat.md": b"Student: What is 2?\n\nTutor: Answer (a): 2\n",
    "sheet.md": b"# 1\n\nA layer has width 96 and 8 heads. What is the width of a head?\n",
}
# A call, and what its message begins with.
CALLS = {
    "plam": "command: got 'plam', wanted a command of qkv. Hint: the nearest is plan;",
    "--versoin": "option: got '--versoin', wanted an option of qkv. Hint: the nearest is --version;",
    "tour more": "arguments: got 'more', wanted no more for qkv tour.",
    "tour --jsno": "option: got '--jsno', wanted an option of qkv tour. Hint: the nearest is --json;",
    "tour --json=3": "--json: got a value, wanted none.",
    "generate": "MODEL: got nothing, wanted a value. Hint: for example qkv generate",
    "generate m": "--prompt: got nothing, wanted a value.",
    "generate nothing.gguf -p a": "MODEL: got 'nothing.gguf', which does not exist, wanted a GGUF file",
    "generate bad.gguf -p a": "MODEL: got bad.gguf with no header",
    "generate text.gguf -p a": "MODEL: got text.gguf, which is not a GGUF file",
    "generate folder -p a": "MODEL: got folder with 0 GGUF files",
    "generate m -p a -n many": "--new: got 'many', wanted a whole number of at least 1.",
    "generate m -p a --max-new-tokens 0": "--new: got '0', wanted a whole number of at least 1.",
    "generate m -p a --max_new_tokens 3": "option: got '--max_new_tokens', wanted an option of qkv generate. "
    "Hint: the nearest is --max-new-tokens;",
    "generate m -p a --top-p 1.5": "--top-p: got '1.5', wanted a number from 0 to 1.",
    "generate m -p a --top-k 3": "--top-k: got it with --temperature 0, wanted a temperature above 0.",
    "generate m -p a --kv-cache int5": "--kv-cache: got 'int5', wanted one of f32,",
    "generate m -p a --evict lru": "--evict: got 'lru', wanted one of streaming,",
    "generate m -p a --evict h2o": "--evict: got it without --keep, wanted both.",
    "chat nothing": "MODEL: got 'nothing', which does not exist",
    "chat m --top-k 3": "--top-k: got it with --temperature 0",
    "plan": "--model: got nothing, wanted the name of a model.",
    "plan lama-3-8b": "--model: got 'lama-3-8b', wanted the name of a preset. Hint: the nearest names are llama-3-8b",
    "plan -m lama-3-8b --json": "--model: got 'lama-3-8b'",
    "plan nothing.gguf": "MODEL: got 'nothing.gguf', which does not exist",
    "plan -m gpt-2 --hardware h100": "--hardware: got 'h100', wanted the name of a machine. Hint: the nearest names",
    "plan -m gpt-2 --context": "--context: got nothing, wanted a value.",
    "plan -m gpt-2 --context 8k": "--context: got '8k', wanted a whole number.",
    "plan -m gpt-2 --context 0": "--context: got 0, wanted a whole number from 1",
    "plan -m gpt-2 --link 10GBps": "--link: got it without --machines",
    "plan -m gpt-2 --machines 2 --link 9parsec": "--link: got '9parsec', wanted a rate",
    "plan -m gpt-2 -o curve.png": "--plot: got 'curve.png', wanted a file that ends in .svg or .html.",
    "plan -m gpt-2 -o no/curve.svg": "--plot: got 'no/curve.svg', wanted a file in an existing folder.",
    "plan -m gpt-2 --json --csv": "--json, --csv: got both, wanted one of them.",
    "plan -m gpt-2 --heads 3": "--heads: got a size of a model that is named",
    "plan --layers 3 --heads 1 --width 0": "--width: got 0, wanted a whole number from 1",
    "plan --config bad.json": "--config: got bad.json: Expecting property name",
    "count --layers 3 --width 6 --heads 4": "--heads: got 4 with --width 6, wanted a divisor of --width.",
    "count --layers L --width d -o a.svg": "--to: got it with sizes that are names, wanted numbers",
    "count -m gpt-2 --config a": "--model, --config: got both, wanted one of them.",
    "count -m gpt-2 --length 1.5": "--length: got '1.5', wanted a whole number",
    "calibrate --ranks 1": "--ranks: got '1', wanted a whole number from 2 to 64.",
    "prove scorse": "CLAIM: got 'scorse', wanted the name of a claim. Hint: the nearest names are scores;",
    "prove scores -o a.docx": "--report: got 'a.docx', wanted a file that ends in",
    "check": "arguments: got nothing, wanted an exercise, a part and an answer",
    "check scalng a 2": "PROBLEM: got 'scalng', wanted an exercise of the bank. Hint: the nearest names are scaling,",
    "check scaling z 2": "PART: got 'z', wanted a part of the exercise. Hint: it has a, b, c.",
    "check 2 --glod 3": "option: got '--glod', wanted --gold,",
    "check 2 --gold 2 --let": "--let: got nothing, wanted a value.",
    "check x --gold x --let x:vectr[d]": "--let: for 'x' got 'vectr[d]', wanted a type:",
    "lab --port 99999": "--port: got '99999', wanted a whole number from 0 to 65,535.",
    "lab --models nothing": "--models: got nothing, wanted a folder with checkpoints.",
    "serve nothing": "MODEL: got 'nothing', which does not exist",
    "serve m --timeout 0": "--timeout: got '0', wanted a number of at least 0.1.",
    "solve scalng": "NAME: got 'scalng', wanted an exercise of the bank. Hint: the nearest names are scaling,",
    "solve nothing.toml": "NAME: got 'nothing.toml', wanted an existing file",
    "solve bad.json": "NAME: got a text that is not JSON",
    "solve empty.md": "FILE: got 'empty.md', which is empty, wanted a sheet",
    "solve binary.pdf": "FILE: got 'binary.pdf', which is not what its name says, wanted a pdf file.",
    "solve folder": "NAME: got 'folder', which is a folder, wanted a file",
    "solve -": "NAME: got an empty text, wanted a question in words.",
    "solve --x a": "--x: got 'a', wanted a matrix of numbers",
    "solve --x 1,2 --mask diagonal": "--mask: got 'diagonal', wanted causal, \"window(2, 0)\" or a matrix",
    "solve --heads 2": "--heads: got it without matrices",
    "solve scaling --seed -1": "--seed: got '-1', wanted a whole number from 0 to 2^63 - 1.",
    "solve scaling --to a.docx": "--to: got 'a.docx', wanted a file that ends in",
    "practice scalng": "NAME: got 'scalng', wanted an exercise of the bank.",
    "practice --rounds 0": "--rounds: got '0', wanted a whole number from 1 to 1,000.",
    "grade": "CHAT: got nothing, wanted a value. Hint: for example qkv grade",
    "grade nothing": "CHAT: got 'nothing', which does not exist, wanted a file or a folder.",
    "grade folder": "CHAT: got the folder 'folder' without a file",
    "grade -": "CHAT: got an empty file 'standard input', wanted a chat.",
    "grade chat.md --sheet nothing.md": "--sheet: got 'nothing.md' (No such file or directory), wanted a file",
    "grade chat.md --exercise 4=decodng": "--exercise: got 'decodng', wanted an exercise of the bank.",
    "grade chat.md --to chat.md": "--to: got 'chat.md', which is read, wanted another file.",
    "grade chat.md --reader replay:nothing": "--reader: got 'nothing', which does not exist",
    "grade chat.md --sheet sheet.md --reader replay:bad.json": "--reader: got bad.json (",
    "evaluate": "--model: got nothing, wanted a value. Hint: for example qkv evaluate",
    "evaluate --model a/b --tools calc": "--tools: got 'calc', wanted",
    "evaluate --model a/b --exercises scalng": "--exercises: got 'scalng', wanted an exercise of the bank.",
    "mcp --port 9": "--port: got it without --http, wanted both.",
    "mcp --seconds 0": "--seconds: got '0', wanted a number from 0.1 to 600.",
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"")))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_ends_in_one_line(call: str) -> None:
    done = called(*call.split())
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(f"qkv: {CALLS[call]}")
    assert done.stderr.count("\n") == 1


def test_every_command_is_called_wrongly() -> None:
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert commands <= {call.split()[0] for call in CALLS}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("answer", "said"), [("x", "--gold: x is not declared. Hint: --let 'x: scalar' declares it"), ("{", "--gold: {")]
)
def test_a_formula_is_printed_below_its_error(answer: str, said: str) -> None:
    done = called("check", "2", "--gold", answer)
    assert done.returncode == 2
    assert done.stderr.startswith(f"qkv: {said}")
    assert done.stderr.splitlines()[1:] == [f"  {answer}", "  ^"]


def test_other_encodings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    question = "A layer has width 96 and 8 heads. What is the width of a head? (Größe)"
    for encoding in ("utf-8", "latin-1", "utf-16"):
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(question.encode(encoding))))
        assert "Answer: 12" in called("solve", "-").stdout


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OptionError("a"), 2, "a"),
        (ShapeError("a"), 2, "a"),
        (MissingExtra("a", "b", "c"), 1, "a needs b; not installed here. Hint: pip install 'qkv[c]'."),
        (QkvError("a"), 1, "a"),
        (FileNotFoundError(2, "No such file", "a"), 1, "file: got 'a' (No such file), wanted a file that can be used."),
        (OSError("a"), 1, "a"),
        (MemoryError(), 1, "out of memory"),
        (typer.Abort(), 1, "aborted"),
        (ZeroDivisionError("a"), 1, "internal error: ZeroDivisionError: a. Run the same command with --debug"),
    ],
)
def test_exit_codes_and_messages(error: Exception, code: int, said: str) -> None:
    assert exit_code(error) == code
    assert message(error).startswith(said)


@pytest.mark.usefixtures("files")
def test_debug_adds_where_it_was_raised() -> None:
    done = called("solve", "scalng", "--debug")
    assert done.returncode == 2
    assert done.stderr.startswith("qkv: NAME: got 'scalng'")
    assert "Traceback" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [("plan", "--list"), ("count", "-m", "gpt-2"), ("solve", "--list"), ("plan", "-h")])
def test_a_closed_pipe_and_a_narrow_terminal_are_no_errors(words: tuple[str, ...]) -> None:
    program = [sys.executable, "-m", "qkv", *words]
    environment = {**os.environ, "COLUMNS": "40", "PYTHONUNBUFFERED": "1"}
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(program, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, env=environment)
    finally:
        os.close(write)
    assert "Traceback" not in done.stderr
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0
