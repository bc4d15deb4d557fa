"""`python -m qkv` is the command."""

import re
import shlex
import subprocess
import sys
from typing import Any

import typer

import qkv
from qkv.cli import START, app


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "qkv", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["qkv", qkv.__version__]


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "qkv", *arguments], capture_output=True, text=True, timeout=60, env=environment or None
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_arguments_it_says_where_to_begin() -> None:
    shown = run()
    assert shown.strip() == START
    assert max(map(len, shown.splitlines())) <= 80


def test_the_commands_that_the_first_screen_names_are_there_with_those_options() -> None:
    command: Any = typer.main.get_command(app)
    named = re.split(r"\s{2,}", START[START.index("compute") : START.index("Begin with")])
    lines = [shlex.split(each) for each in named if each.startswith("qkv ")]
    assert {line[1] for line in lines} == set(command.commands) - {"tour", "evaluate", "mcp"}
    for _, name, *arguments in lines:
        options = {option for each in command.commands[name].params for option in each.opts}
        assert {each for each in arguments if each.startswith("--")} <= options


def test_every_command_prints_json_and_shows_errors() -> None:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        options = {option for each in command.params for option in each.opts}
        assert {"--json", "--debug"} <= options, name


def test_a_shell_completes_commands() -> None:
    complete = {"_QKV_COMPLETE": "complete_bash", "COMP_WORDS": "qkv pl", "COMP_CWORD": "1"}
    program = "import sys; sys.argv = ['qkv']; from qkv.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=complete)
    assert done.stdout.split() == ["plan"]
