"""The lab in a separate process, and malformed or hostile requests to it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

COMMAND = ("-m", "qkv", "lab", "--port", "0", "--no-browser")
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


@dataclass(frozen=True)
class Lab:
    process: subprocess.Popen[str]
    port: int
    told: list[str]  # what it has printed, line by line

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"http://{self.host}"

    def connect(self, seconds: float = 20.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)

    def raw(self, *pieces: bytes, method: str = "GET", seconds: float = 20.0) -> Answer | None:
        """Return the answer to these bytes; None if the connection is closed without one."""
        with closing(self.connect(seconds)) as line:
            try:
                for piece in pieces:
                    line.sendall(piece)
            except OSError:  # the server has heard enough: what it said is read all the same
                pass
            return answered(line, method)

    def ask(
        self,
        path: str = "/",
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        seconds: float = 20.0,
    ) -> Answer:
        """Send a request with the path unchanged; `headers` may replace Host (or omit it, as "")."""
        lines = {"Host": self.host, "Connection": "close", **(headers or {})}
        if body is not None:
            lines.setdefault("Content-Length", str(len(body)))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
        answer = self.raw(
            f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + (body or b""), method=method, seconds=seconds
        )
        assert answer is not None, f"{method} {path[:80]}: closed without an answer"
        return answer

    def post(self, path: str, body: bytes, kind: str = "application/json", **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask(path, "POST", {"Content-Type": kind, **named}, body)


def answered(line: socket.socket, method: str = "GET") -> Answer | None:
    response = http.client.HTTPResponse(line, method=method)
    try:
        response.begin()
        return Answer(response.status, response.headers, response.read())
    except (http.client.BadStatusLine, ConnectionError):
        return None
    finally:
        response.close()


@contextmanager
def running(*command: str) -> Iterator[Lab]:
    """Run a lab, by default with the command `qkv lab`; it prints its address."""
    process = subprocess.Popen(
        [sys.executable, *(command or COMMAND)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    told: list[str] = []
    # A full pipe without a reader would block the server.
    reading = threading.Thread(target=lambda: told.extend(process.stdout or ()), daemon=True)
    reading.start()
    try:
        lab = Lab(process, _port(process, told), told)
        _until_it_answers(lab)
        yield lab
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reading.join(10)
        assert process.stdout is not None
        process.stdout.close()


def _port(process: subprocess.Popen[str], told: list[str], seconds: float = 60.0) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if found := ADDRESS.search("".join(told)):
            return int(found[1])
        time.sleep(0.02)
    raise AssertionError(f"the lab told no address: {''.join(told)}")


def _until_it_answers(lab: Lab, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            lab.connect().close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def descendants(process: int) -> set[int]:
    """Return the ids of all descendants of a process."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state = status.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended meanwhile
            continue
        if state[0] != "Z":
            parents[int(status.parent.name)] = int(state[1])
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {process}


def patience(seconds: float) -> float:
    """Scale a time limit by the load of the machine."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def limited(**limits: float) -> tuple[str, str]:
    """A command that runs the server with other limits, e.g. to disconnect slow clients sooner than `qkv lab`."""
    wanted = ", ".join(f"{name}={value!r}" for name, value in limits.items())
    program = "from qkv.lab.guard import Limits; from qkv.lab.running import run"
    return "-c", f"{program}; run(port=0, limits=Limits({wanted}))"
