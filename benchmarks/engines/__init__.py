"""Programs that run whole models, each in a separate process, so that they neither share threads nor crash the run.

`Worker` starts a process (worker.py) and sends it commands; an `Engine` answers them there. Between commands a worker
waits for input and uses no processor time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

LOGS = Path("build/bench/logs")
# The module, the arguments of its Engine, and the package that must be installed, by the name in the table.
ENGINES: dict[str, tuple[str, dict[str, Any], str]] = {
    "qkv f32": ("native", {"activations": "float32"}, "qkv"),
    "qkv int8": ("native", {"activations": "int8"}, "qkv"),
    "llama.cpp": ("llama", {"flash": False}, "llama-cpp-python"),
    "llama.cpp+fa": ("llama", {"flash": True}, "llama-cpp-python"),
    "mistral.rs": ("mistral", {}, "mistralrs"),
    "OpenVINO": ("openvino", {}, "openvino-genai"),
    "sdpa": ("sdpa", {"dtype": "float32"}, "transformers"),
    "sdpa bf16": ("sdpa", {"dtype": "bfloat16"}, "transformers"),
}
OURS = ("qkv f32", "qkv int8")
Rows = Sequence[Sequence[int]]


class Engine:
    """A loaded model. Tokens are lists of integers, one list for each row; rows may have different lengths."""

    cache_format = ""  # how keys and values are stored

    def __init__(self, path: Path, context: int, threads: int) -> None:
        """Load the model, for at most `context` tokens a row."""
        raise NotImplementedError

    def fill(self, rows: Rows) -> None:
        """Let the cache hold these tokens; what it holds of them already may be kept."""
        raise NotImplementedError

    def steps(self, count: int) -> list[float]:
        """Seconds of steps: one more token in each row."""
        raise NotImplementedError

    def prompt(self, tokens: Sequence[int]) -> float:
        """Seconds from an empty cache to the logits after these tokens."""
        raise NotImplementedError

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The most probable continuation."""
        raise NotImplementedError

    def logits(self, tokens: Sequence[int]) -> list[float] | None:
        """Logits after the tokens, where the program shows them."""
        return None

    def read_bytes(self) -> int | None:
        """Bytes of weights that a step reads."""
        return None


def make_engine(name: str, path: Path, context: int, threads: int, **options: Any) -> Engine:
    module, given, _ = ENGINES[name]
    kind = importlib.import_module(f"{__name__}.{module}").ENGINE
    return kind(path, context, threads, **given, **options)


def version(name: str) -> str | None:
    """The installed version of what runs an engine, or None."""
    try:
        return metadata.version(ENGINES[name][2])
    except metadata.PackageNotFoundError:
        return None


class WorkerFailed(Exception):
    """The process ended, took too long or raised; the text says which."""


class Worker:
    """A process with one engine and one model."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        LOGS.mkdir(parents=True, exist_ok=True)
        self._log = (LOGS / f"{name.replace(' ', '-')}.log").open("w")
        # OpenMP, rayon and TBB read these when they start; OpenVINO and llama.cpp are also told by arguments.
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), str(threads))
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__name__}.worker", name, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=os.environ | counts, bufsize=0,
        )  # fmt: skip
        self._rest, self._command = b"", ""

    def call(self, command: str, timeout: float, **arguments: Any) -> Any:
        """The answer to a command; the process is ended if it takes longer than `timeout` seconds."""
        self.send(command, **arguments)
        return self.receive(timeout)

    def send(self, command: str, **arguments: Any) -> None:
        """Start a command; `receive` waits for its answer."""
        assert self._process.stdin is not None
        self._command = command
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps({"command": command, **arguments}).encode() + b"\n")

    def receive(self, timeout: float) -> Any:
        command = self._command
        try:
            answer = json.loads(self._line(timeout))
        except EOFError:
            code = self._process.wait()
            raise WorkerFailed(f"{command}: the process ended with {code}{self._last_words()}") from None
        except TimeoutError:
            self.close()
            raise WorkerFailed(f"{command}: longer than {timeout:.0f} s") from None
        if "error" in answer:
            raise WorkerFailed(f"{command}: {answer['error']}")
        return answer["result"]

    def _line(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        until, descriptor = time.monotonic() + timeout, self._process.stdout.fileno()
        while b"\n" not in self._rest:
            if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            part = os.read(descriptor, 1 << 20)
            if not part:
                raise EOFError
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._log.flush()
        lines = Path(self._log.name).read_text(errors="replace").strip().splitlines()
        return f" ({lines[-1][:100]})" if lines else ""

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()
