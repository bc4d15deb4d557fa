"""Rows 51 and 52 of the table of faults: misuse of the command line, and worksheets that cannot be solved."""

import json
import os
import re
import subprocess
import sys

import pytest

from qkv import errors
from qkv.cli import app
from qkv.exercises import Asked, Exercise, Given, solve
from qkv.exercises.values import MOST
from tests.helpers.cli_calls import called

COMMANDS = sorted(command.callback.__name__ for command in app.registered_commands)
# What else a command needs before it looks at a file, and the option that names one.
READS = {"grade": ("grade",), "solve": ("solve", "--sheet"), "generate": ("generate", "-p", "x")}
WRITES = {
    "solve": ("solve", "--to", "{}/out.md"),
    "prove": ("prove", "scores", "--quick", "--report", "{}/out.html"),
    "plan": ("plan", "--model", "llama-3-8b", "--hardware", "h100-sxm", "--plot", "{}/out.svg"),
    "copies": ("solve", "by-hand", "--copies", "2", "--as", "md", "--out", "{}/out"),
}


def one_line(done, *codes):
    assert done.returncode in codes, (done.returncode, done.stderr)
    assert done.stderr.startswith("qkv: "), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def shows_where(*words):
    """Whether a traceback is printed, or would be: what main lets through ends a process with one."""
    try:
        return "Traceback" in called(*words).stderr
    except (errors.QkvError, OSError):
        return True


def test_row_51_all_commands_are_here():
    assert (
        sorted(
            [
                "tour",
                "solve",
                "check",
                "count",
                "practice",
                "grade",
                "evaluate",
                "plan",
                "calibrate",
                "prove",
                "generate",
                "lab",
                "mcp",
                "chat",
                "serve",
            ]
        )
        == COMMANDS
    )


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "check"])
def test_row_51_an_unknown_flag(command):
    said = one_line(called(command, "--bogus"), 2)
    assert "--bogus" in said
    assert f"qkv {command} --help" in said


def test_row_51_an_unknown_flag_before_a_command_and_an_unknown_command():
    assert "--bogus" in one_line(called("--bogus"), 2)
    assert "nope" in one_line(called("nope"), 2)
    # An answer may begin with a minus sign: it is read as one, and refused as one.
    one_line(called("check", "--bogus"), 2)


@pytest.mark.parametrize("command", COMMANDS)
def test_row_51_every_command_takes_debug(command):
    done = called(command, "--help")
    assert done.returncode == 0
    assert "--debug" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", READS)
def test_row_51_a_file_that_cannot_be_read(name, tmp_path):
    """A folder where a file should be: not even root can read it."""
    folder = tmp_path / "numbers.json"
    folder.mkdir()
    for place in (folder, tmp_path / "nothing.json"):
        one_line(called(*READS[name], str(place)), 1, 2)
        assert shows_where(*READS[name], str(place), "--debug")


@pytest.mark.parametrize("name", WRITES)
def test_row_51_no_permission_to_write(name):
    """/proc takes no files, not even root's."""
    words = [word.format("/proc/self") for word in WRITES[name]]
    one_line(called(*words), 1, 2)


@pytest.mark.slow
def test_row_51_stdout_is_closed():
    """Closed by the reader or from the start: no traceback, and no output at exit."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "qkv", "solve", "--json"]
    try:
        gone = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=100)
    finally:
        os.close(writes)
    assert (gone.returncode, gone.stderr) == (1, "")
    shut = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=100
    )
    assert (shut.returncode, shut.stderr) == (0, "")


def test_row_51_a_fault_of_our_own_is_one_line_and_debug_shows_where(monkeypatch):
    def fail(*_):
        raise KeyError("an unexpected fault\non two lines")

    monkeypatch.setattr("qkv.cli.solve.run", fail)
    said = one_line(called("solve"), 1)
    assert "KeyError" in said
    assert "--debug" in said
    for words in (["solve", "--debug"], ["--debug", "solve"]):
        done = called(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.search(r"Traceback[^$]*in fail\n[^$]*KeyError", done.stderr)
    one_line(called("solve"), 1)  # one call's --debug is not the next one's


ROWS = 10**6


def test_row_52_an_exercise_with_a_million_keys():
    rows = [[1, 0, 0]] * ROWS
    matrices = {"query": rows[:1], "key": rows, "value": rows}
    givens = [Given(symbol=role[0], role=role, value=value) for role, value in matrices.items()]
    (part,) = solve(Exercise(givens=givens, asked=[Asked(quantity="output")])).parts
    assert part.answer is None
    assert f"at most {MOST}" in part.refusal.words()


@pytest.mark.slow
def test_row_52_the_command_states_the_cap(tmp_path):
    file = tmp_path / "large.json"
    rows = [[1, 0, 0]] * ROWS
    givens = [{"symbol": "q", "role": "query", "value": rows[:1]}, {"symbol": "K", "role": "key", "value": rows},
              {"symbol": "V", "role": "value", "value": rows}]  # fmt: skip
    file.write_text(json.dumps({"givens": givens, "asked": [{"quantity": "output"}]}))
    done = called("solve", str(file))
    assert done.returncode in (1, 2)
    assert "at most" in done.stdout + done.stderr
    many = one_line(called("solve", "by-hand", "--copies", str(ROWS), "--out", str(tmp_path / "out")), 1, 2)
    assert "at most" in many or "from 1 to" in many, many
    assert not (tmp_path / "out").exists()
