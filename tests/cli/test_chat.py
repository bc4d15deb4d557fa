"""`qkv chat` in a real terminal and through pipes, with a tiny model that answers at random."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qkv.cli.chat import Session, run
from qkv.cli.generate import Options
from qkv.errors import OptionError
from qkv.runtime import load
from tests.helpers.runtime_files import build, write_gguf

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
COMMAND = (sys.executable, "-m", "qkv", "chat")


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "model.gguf"
    model = build("llama", max_position_embeddings=401)
    return write_gguf(model, path, vocabulary=PRINTABLE, tokenizer__chat_template=TEMPLATE)


def piped(path: Path, said: str, *more: str, code: int = 0) -> tuple[str, str]:
    done = subprocess.run([*COMMAND, str(path), *more], input=said, capture_output=True, text=True, timeout=100)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_turns_through_a_pipe_are_those_of_generate(path, tmp_path):
    file, model = tmp_path / "kept.json", load(path)
    said = f"How are you today?\nAnd now, \\\nagain?\n\n/save {file}\n/reset\nHow are you today?\n/load {file}\nWhy?\n"
    out, err = piped(path, said, "--system", "Be kind.", "--new", "17", "--json")
    turns = list(map(json.loads, out.splitlines()))
    prompt = "system: Be kind.;user: How are you today?;"
    first = model.generate(prompt, 17)
    assert (turns[0]["answer"], turns[0]["new_tokens"]) == (first.text, len(first.tokens))
    prompt += f"assistant: {first.text};user: And now, \nagain?;"
    assert turns[1]["answer"] == model.generate(prompt, 17).text
    assert turns[1]["prompt_tokens"] == len(model.tokenizer.encode(prompt, bare=True))
    # Only what is new runs: the line and the words of the template around it.
    assert turns[1]["prompt_tokens"] - turns[1]["kept_tokens"] <= len(";user: And now, \nagain?;assistant:") + 17
    assert turns[1]["kept_tokens"] > turns[0]["prompt_tokens"] - 6
    assert turns[2]["answer"] == turns[0]["answer"], "/reset begins again, with the system message"
    kept = json.loads(file.read_text())["messages"]
    assert [each["role"] for each in kept] == ["system", "user", "assistant", "user", "assistant"]
    prompt += f"assistant: {turns[1]['answer']};user: Why?;"
    assert turns[3]["answer"] == model.generate(prompt, 17).text
    assert "5 messages saved" in err
    assert "5 messages loaded" in err
    assert all(each["cache_bytes"] > 0 for each in turns)


@pytest.mark.slow
def test_plain_output_and_errors_of_a_turn(path):
    out, err = piped(path, "/nope\n/load /nowhere\nHi there\n" + "x" * 500 + "\nHi\n", "--new", "5", code=1)
    assert len(out.splitlines()) == 2
    assert "qkv: command: got '/nope'" in err
    assert "qkv: /load: got '/nowhere'" in err
    assert re.search(r"qkv: message: got 5\d\d tokens, and 5 for the answer, wanted at most 401", err)
    assert len(re.findall(r"\d+ tokens(, [\d.]+ tokens/s)?; prompt \d+, of which \d+ were kept; cache", err)) == 2


def session(path: Path, system: str | None = None, new: int = 5) -> Session:
    return Session(Options(str(path), new, "f32", 0.0, None, None, None, "float32"), system)


def test_the_oldest_turns_go_when_the_context_is_full(path):
    chat = session(path, new=40, system="Be kind.")
    turns = [chat.answer(f"{at} {'word ' * 14}", lambda text: None) for at in range(9)]
    assert [each["dropped"] for each in turns][:2] == [0, 0]
    assert sum(each["dropped"] for each in turns) >= 4
    assert all(each["prompt_tokens"] + 40 <= 401 for each in turns)
    assert [each["role"] for each in chat.messages][:3] == ["system", "user", "assistant"]
    assert chat.messages[1]["content"].startswith(str(turns[-1]["dropped"] + sum(t["dropped"] for t in turns[:-1])))


@pytest.mark.slow
def test_a_full_context_is_said(path):
    _, err = piped(path, "".join(f"{at} {'word ' * 14}\n" for at in range(9)), "--new", "40")
    assert "the context is full: the oldest 1 of your messages" in err


def test_files_that_are_no_chat(path, tmp_path):
    chat, broken = session(path), tmp_path / "broken.json"
    half = '{"messages": [{"role": "user", "content": "\\ud800"}]}'
    judge = '{"messages": [{"role": "judge", "content": ""}]}'
    for text in ("{", "[]", judge, half, '{"messages": [3]}', '{"messages": 3}'):
        broken.write_text(text)
        with pytest.raises(OptionError, match=r"/load: .*a chat that /save wrote"):
            chat.load(str(broken))
    with pytest.raises(OptionError, match=r"/save: .*can be written"):
        chat.save(str(tmp_path / "no" / "folder"))
    assert chat.messages == []


def test_input_that_is_no_text_and_no_input_at_all(path, monkeypatch, capsys):
    chat = session(path)
    with pytest.raises(OptionError, match="prompt: got bytes that are not UTF-8"):
        chat.answer("a\udcff", print)
    assert chat.messages == []
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where the descriptor is closed
    assert run(chat.options, None, as_json=True)
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_wrong_files_and_options(path, tmp_path):
    assert "MODEL: got " in piped(tmp_path / "nothing.gguf", "", code=2)[1]
    bare = write_gguf(build("llama"), tmp_path / "bare.gguf", vocabulary=PRINTABLE)
    assert "without a chat template" in piped(bare, "", code=2)[1]
    assert "--kv-cache" in piped(path, "", "--kv-cache", "f8", code=2)[1]


class Terminal:
    """The command in another terminal."""

    def __init__(self, *words: str) -> None:
        self.pid, self.file = pty.fork()
        if not self.pid:
            os.environ["TERM"] = "dumb"
            os.execv(sys.executable, [*COMMAND, *words])
        self.text = ""

    def until(self, pattern: str, seconds: float = 60) -> str:
        """Wait for a pattern; returns what came, and forgets it."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text, re.DOTALL)):
            assert time.monotonic() < end, f"{pattern} did not come: {self.text[-500:]!r}"
            if select.select([self.file], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.file, 65536).decode("utf-8", "replace")
                except OSError:  # the terminal was closed
                    self.text += "<closed>"
        said, self.text = self.text[: found.end()], self.text[found.end() :]
        return said

    def type(self, text: str) -> None:
        os.write(self.file, text.encode())

    def close(self) -> int:
        self.until("<closed>")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(path) -> Iterator[Terminal]:
    found = Terminal(str(path), "--new", "390", "--temperature", "1", "--seed", "3")
    try:
        yield found
    finally:
        try:
            os.kill(found.pid, signal.SIGKILL)
            os.waitpid(found.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(found.file)


@pytest.mark.slow
def test_a_terminal(terminal):
    terminal.until("Ctrl-D ends.*> ")
    terminal.type("/help\n")
    terminal.until("/save FILE.*> ")
    terminal.type("Hello you\n")
    terminal.until(r"Hello you\r\n.*\d+ tokens(, [\d.]+ tokens/s)?; prompt \d+.*> ")
    time.sleep(0.5)  # Python's readline misses a signal between its prompt and its wait for a key
    terminal.type("half a li\x03")
    terminal.until("Ctrl-D ends the chat.*> ")
    terminal.type("Hello again\n")
    terminal.until(r"tokens.*; cache.*> ")
    terminal.type("\x04")
    assert terminal.close() == 0


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_and_not_the_chat(path, tmp_path):
    slow = build("llama", max_position_embeddings=100_000)
    file = write_gguf(slow, tmp_path / "slow.gguf", vocabulary=PRINTABLE, tokenizer__chat_template=TEMPLATE)
    terminal = Terminal(str(file), "--new", "90000")
    try:
        for _ in range(2):
            terminal.until("> ")
            terminal.type("Hello\n")
            terminal.until(r"Hello\r\n.{20}")
            terminal.type("\x03")
            terminal.until("; interrupted")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.close() == 0
    finally:
        os.close(terminal.file)
