"""Many clients of the lab at once: each sends one request after another over a separate connection.

The answer of a light view depends on the request only, so every answer under load is compared, byte for byte, with the
one that a single client got before.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from qkv.lab.fields import Choice, Flag, Number, typed
from qkv.lab.view import View
from qkv.lab.views import NAMES, view

TIMEOUT = 30.0  # seconds for one answer
STATIC = ("/static/lab.js", "/static/lab.css", "/api/openapi.json")


@dataclass
class Load:
    """The results of all requests: seconds each, and counts of failures."""

    seconds: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    questions: int = 0  # different ones

    def quantile(self, part: float) -> float:
        if len(self.seconds) < 2:
            return float("nan")
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[round(100 * part) - 1]


@contextmanager
def served() -> Iterator[tuple[int, int]]:
    """The port and the process of a running lab."""
    command = [sys.executable, "-m", "qkv", "lab", "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert found, "the lab printed no address"
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(30)


def resident(process: int) -> int:
    """Resident bytes of a process and its children."""
    total = 0
    waiting = [process]
    for each in waiting:
        status = Path(f"/proc/{each}/status").read_text()
        total += 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
        waiting += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
    return total


def light() -> list[View]:
    """The views that answer at once in their initial state."""
    return [each for each in map(view, NAMES) if not _heavy(each, {})]


def _heavy(view: View, state: dict[str, str]) -> bool:
    """Whether the state needs the process for heavy work; a state that cannot be read does not."""
    read = typed(view.fields, state).state
    return read is not None and view.is_heavy(read)


def states(view: View, many: int) -> Iterator[dict[str, str]]:
    """The initial state of a view, then states with other texts in a field or two."""
    draw = random.Random(view.name)
    yield {}
    movable = [each for each in view.fields if isinstance(each, Number | Choice | Flag)]
    for _ in range(many - 1):
        yield {each.name: _text(each, draw) for each in draw.sample(movable, min(2, len(movable)))}


def _text(of: Number | Choice | Flag, draw: random.Random) -> str:
    if isinstance(of, Choice):
        return draw.choice(list(of.options))
    if isinstance(of, Flag):
        return draw.choice(["yes", "no"])
    value = draw.choice([of.default, of.default + of.step, (of.low + of.default) / 2, (of.default + of.high) / 2])
    value = min(max(value, of.low), of.high)
    return of.write(round(value) if of.whole else round(value, 3))


async def questions(port: int, views: list[View], each: int) -> list[tuple[bytes, bytes | None]]:
    """Requests and their answers' bodies, None for any body; a state that a view refuses is left out."""
    found: list[tuple[bytes, bytes | None]] = [(_get(port, path), None) for path in STATIC]
    line = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    for shown in views:
        for state in states(shown, each):
            if _heavy(shown, state):
                continue
            by_api = _get(port, f"/api/{shown.name}?{urlencode(state)}")
            status, body = await request_once(line, by_api)
            if status == 422:
                continue
            assert status == 200, (shown.name, state, body[:200])
            found.append((by_api, body))
            found.append((_get(port, f"/{shown.name}?{urlencode(state)}"), None))
            part = _post(port, f"/part/{shown.name}", json.dumps(state).encode())
            status, body = await request_once(line, part)
            assert status == 200, (shown.name, state, body[:200])
            found.append((part, body))
    line[1].close()
    await line[1].wait_closed()
    return found


def _get(port: int, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


def _post(port: int, path: str, body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def request_once(line: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> tuple[int, bytes]:
    """Status and body."""
    reader, writer = line
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = int(head.split(" ", 2)[1])
    if length := re.search(r"\r\ncontent-length: (\d+)", head):
        return status, await reader.readexactly(int(length[1]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return status, body


async def load(port: int, clients: int, seconds: float, known: list[tuple[bytes, bytes | None]]) -> Load:
    """`clients` clients, each sending known requests in random order until the time is over."""
    found = Load(questions=len(known))
    end = time.monotonic() + seconds
    await asyncio.gather(*(_client(port, random.Random(number), known, end, found) for number in range(clients)))
    return found


async def _client(
    port: int, draw: random.Random, known: list[tuple[bytes, bytes | None]], end: float, found: Load
) -> None:
    line = None
    while time.monotonic() < end:
        request, wanted = draw.choice(known)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT):
                line = line or await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
                status, body = await request_once(line, request)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            found.wrong[type(error).__name__] += 1
            if line is not None:
                line[1].close()
            line = None
            continue
        found.seconds.append(time.perf_counter() - began)
        if status != 200:
            found.wrong[f"status {status}"] += 1
        elif wanted is not None and body != wanted:
            found.wrong[f"another answer to {request.split()[1].decode()}"] += 1
    if line is not None:
        line[1].close()
        await line[1].wait_closed()
