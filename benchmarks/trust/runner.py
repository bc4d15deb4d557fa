"""Runs rows on subjects, each subject in a process that is restarted after a crash, a signal or a hang."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .rows import Row
from .verdict import CRASH

ROOT = Path(__file__).parents[2]
START = 120.0  # seconds for the import of a library


class Worker:
    """One process for one subject, with the end of its output."""

    def __init__(self, subject: str) -> None:
        reads, writes = os.pipe()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the process runs
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment.setdefault("OMP_NUM_THREADS", "1")
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", f"{__package__}.worker", subject, str(writes)],
            cwd=ROOT, env=environment, pass_fds=(writes,), stdin=subprocess.PIPE, stdout=self.output,
            stderr=self.output, start_new_session=True,
        )  # fmt: skip
        os.close(writes)
        self.answers = os.fdopen(reads, "rb", buffering=0)
        self.rest = b""
        if self._line(START) != b"ready":
            raise RuntimeError(f"the process of {subject} did not start:\n{self.last_output()}")

    def _line(self, seconds: float) -> bytes | None:
        """The next line, or None at the end of the pipe; TimeoutError when it takes longer."""
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            more = self.answers.read(65536)
            if not more:
                return None
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def ask(self, row: Row, seconds: float) -> dict[str, Any]:
        """The verdict; after a crash or a hang the process has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{row.number}\n".encode())
            self.process.stdin.flush()
            line = self._line(seconds)
        except BrokenPipeError:
            line = None
        except TimeoutError:
            self.end()
            return {"verdict": CRASH, "seen": f"no answer in {seconds:.0f} s"}
        if line is not None:
            return json.loads(line)
        code = self.process.wait()
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        words = self.last_output().strip().splitlines()
        self.end()
        return {"verdict": CRASH, "seen": f"the process {how}" + (f": {words[0][:160]}" if words else "")}

    def last_output(self) -> str:
        self.output.seek(0)
        return self.output.read()[-4000:].decode("utf-8", "replace")

    def end(self) -> None:
        """Kill the process and its children."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        with contextlib.suppress(ProcessLookupError):  # it and its children are gone
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.answers.close()
        self.output.close()

    @property
    def alive(self) -> bool:
        return not self.answers.closed


def run_subject(name: str, rows: Iterable[Row], limit: float | None = None) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Run rows in one process; in a new one if the row needs it or the last one died."""
    worker: Worker | None = None
    try:
        for row in rows:
            if worker is not None and row.alone and worker.alive:
                worker.end()
            if worker is None or row.alone or not worker.alive:
                worker = Worker(name)
            yield row, worker.ask(row, limit or row.seconds)
            if row.alone and worker.alive:
                worker.end()
    finally:
        if worker is not None and worker.alive:
            worker.end()
