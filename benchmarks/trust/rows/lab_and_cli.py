"""Rows 50 to 52: the lab's server, the command line, and worksheets that are too long."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from ..subjects import Subject
from ..verdict import NotOffered, Wrong, each
from . import row

SCRIPT = "<script>alert(1)</script>"


def _only_qkv(subject: Subject, what: str) -> None:
    if subject.name != "qkv":
        raise NotOffered(what)


@contextmanager
def _lab() -> Iterator[int]:
    """The port of a lab with short timeouts."""
    program = "from qkv.lab.guard import Limits; from qkv.lab.running import run; "
    program += "run(port=0, limits=Limits(header_seconds=1.0, body_seconds=1.0, seconds=5.0))"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                    yield int(found[1])
                    return
            raise Wrong("the lab printed no address")
        finally:
            process.terminate()


def _ask(port: int, path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as line:
        line.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            line.putheader(name.replace("_", "-"), value)
        if body is not None:
            line.putheader("Content-Length", str(len(body.encode())))
        line.endheaders(None if body is None else body.encode())
        answer = line.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")


def _status(found: tuple[int, str], *wanted: int) -> None:
    if found[0] not in wanted or "Traceback" in found[1]:
        raise Wrong(f"answered {found[0]}, not {' or '.join(map(str, wanted))}")


@row(50, "lab: hosts, origins, ../, 10^9, HTML, slow", seconds=240)
def the_lab(subject: Subject) -> str:
    _only_qkv(subject, "no lab")
    body = json.dumps({"x": "1 2; 3 4"})
    kind = {"Content_Type": "application/json"}
    with _lab() as port:

        def markup() -> None:
            status, page = _ask(port, "/walk?x=" + quote(SCRIPT))
            if status >= 500 or SCRIPT in page:
                raise Wrong(f"{status}, and the text of a token is markup")

        def huge() -> None:
            _status(_ask(port, "/api/scale", "POST", json.dumps({"d": 10**9, "keys": 10**9}), **kind), 400, 413, 422)
            _status(_ask(port, "/api/walk", "POST", None, Content_Length=str(10**9), **kind), 413)

        def slow() -> None:
            with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as line:
                line.sendall(b"POST /api/walk HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                before = time.monotonic()
                _status(_ask(port, "/walk"), 200)  # other clients do not wait
                line.recv(4096)  # until it is disconnected
                if time.monotonic() - before > 25:
                    raise Wrong("a client that sends nothing is waited for")

        def elsewhere() -> None:
            listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
            at = [words.split()[1] for words in listening if words.split()[1].endswith(f":{port:04X}")]
            if not at or {place.split(":")[0] for place in at} != {"0100007F"}:
                raise Wrong(f"it listens at {at}")

        each(
            {
                "foreign Host": lambda: _status(_ask(port, "/", Host="evil.example"), 400, 403, 421),
                "cross-origin POST": lambda: _status(
                    _ask(port, "/api/walk", "POST", body, Origin="http://evil.example", **kind), 403
                ),
                "its own POST": lambda: _status(_ask(port, "/api/walk", "POST", body, **kind), 200, 422),
                "../": lambda: _status(_ask(port, "/static/../../../../../../etc/passwd"), 400, 403, 404),
                "sizes of 10^9": huge,
                "HTML in a token": markup,
                "slow client": slow,
                "binds 127.0.0.1 only": elsewhere,
            }
        )
    return "403, 400 or 413 for foreign hosts, paths and sizes; text is escaped; slow clients are disconnected"


def _qkv(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qkv", *words]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=100, **options)  # type: ignore[call-overload]


def _one_line(done: subprocess.CompletedProcess[str], *codes: int) -> str:
    message = done.stderr.strip()
    if done.returncode not in codes:
        raise Wrong(f"ended with {done.returncode}, not {' or '.join(map(str, codes))}: {message[:100]}")
    if len(message.splitlines()) != 1 or "Traceback" in message:
        raise Wrong(f"{len(message.splitlines())} lines: {message[:100]}")
    return f"exit {done.returncode}: {message}"


@row(51, "CLI: flags, files, closed stdout, no access", seconds=240)
def the_command_line(subject: Subject) -> str:
    _only_qkv(subject, "no command line")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "is a folder.md")
        folder.mkdir()

        def nowhere() -> None:
            _one_line(_qkv("solve", "--to", f"{scratch}/not/there/out.md"), 1, 2)
            # Not even root may write there.
            _one_line(_qkv("solve", "--to", "/proc/self/out.md"), 1, 2)

        def closed() -> None:
            reads, writes = os.pipe()
            os.close(reads)
            try:
                done = _qkv("tour", "--json", stdout=writes)
            finally:
                os.close(writes)
            if done.returncode != 1 or done.stderr.strip():
                raise Wrong(f"a closed pipe: {done.returncode}, {done.stderr[:100]}")

        def debug() -> None:
            for words in (("grade", str(folder), "--debug"), ("--debug", "grade", str(folder))):
                if "Traceback" not in _qkv(*words).stderr:
                    raise Wrong("--debug shows no traceback")

        cases: dict[str, Callable[[], str | None]] = {
            "unknown flag": lambda: _one_line(_qkv("plan", "--bogus"), 2),
            "unreadable file": lambda: _one_line(_qkv("grade", str(folder)), 1, 2),
            "nowhere to write": nowhere,
            "closed stdout": closed,
            "--debug": debug,
        }
        each(cases)
    return "exit 2 or 1 with one line, and a traceback with --debug only"


@row(52, "worksheet with 10^6 keys")
def a_worksheet_without_end(subject: Subject) -> str:
    _only_qkv(subject, "no worksheets")
    from qkv.exercises import Asked, Exercise, Given, solve
    from qkv.exercises.values import MOST

    rows = [[1, 0, 0]] * 10**6
    matrices = (("q", "query", rows[:1]), ("K", "key", rows), ("V", "value", rows))
    givens = [Given(symbol=name, role=role, value=value) for name, role, value in matrices]  # pyright: ignore
    (part,) = solve(Exercise(givens=tuple(givens), asked=(Asked(quantity="output"),))).parts
    words = part.refusal.words() if part.refusal else ""
    if str(MOST) not in words:
        raise Wrong(f"the cap of {MOST} is not stated: {words}")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "large.json")
        plain = [{"symbol": name, "role": role, "value": value} for name, role, value in matrices]
        file.write_text(json.dumps({"givens": plain, "asked": [{"quantity": "output"}]}))
        done = _qkv("solve", str(file), stdout=subprocess.PIPE)
        if done.returncode not in (1, 2) or "at most" not in done.stdout + done.stderr:
            raise Wrong(f"the command ended with {done.returncode} and does not state the cap")
    return words
